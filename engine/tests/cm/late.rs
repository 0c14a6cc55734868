//! Messages that come when their receiver is further, or not as far, as their sender thinks.

use urxe_engine::cm::{Disconnect, Event};
use urxe_wire::cm::RejReason;

use super::pair::{A, B, LossyNetwork, Pair, rep};

/// Withdraws a REQ before a REP has told the peer's communication id.
//= spec/connections.md#cm-012
//= type=test
//# A request that its sender withdraws MUST be told as rejected to whoever was asked.
#[test]
fn a_request_is_withdrawn() {
    let mut pair = Pair::new(1, LossyNetwork::default());
    let b = pair.request();
    pair.ends[A].release(pair.now, super::CommId(1));
    let (id, event) = pair.wait(B);
    assert!(matches!(&event, Event::Rejected(rej) if rej.reason == RejReason::TIMEOUT), "{event:?}");
    assert_eq!(id, b);
    assert!(pair.ends[B].accept(pair.now, b, &rep(), 0).is_err());
    pair.ends[B].release(pair.now, b);
    pair.run_dry();
}

/// All answers were lost until the connection was done with here, and its id has not been let go of.
//= spec/connections.md#cm-005
//= type=test
//# A disconnect of an unknown connection MUST be agreed to.
#[test]
fn a_disconnect_that_comes_again_after_the_end_is_agreed_to() {
    let mut pair = Pair::new(1, LossyNetwork::default());
    let (a, b) = pair.established();
    pair.ends[A].disconnect(pair.now, a).unwrap();
    assert!(matches!(pair.wait(B).1, Event::Disconnected(Disconnect::Asked, _)));
    pair.network.loss = 100;
    pair.ends[B].disconnect(pair.now, b).unwrap();
    assert_eq!(pair.wait(B), (b, Event::TimeWaitExit));
    pair.network.loss = 0;
    assert!(matches!(pair.wait(A), (id, Event::Disconnected(Disconnect::Agreed, _)) if id == a));
}

/// The reply has come, and the application has not looked at it yet.
//= spec/connections.md#cm-013
//= type=test
//# Who is disconnected before it has said that it is ready MUST be told.
#[test]
fn a_disconnect_overtakes_the_readiness() {
    let mut pair = Pair::new(1, LossyNetwork::default());
    let b = pair.request();
    pair.ends[B].accept(pair.now, b, &rep(), 0).unwrap();
    let (a, event) = pair.wait(A);
    assert!(matches!(event, Event::Reply(_)), "{event:?}");
    pair.ends[B].disconnect(pair.now, b).unwrap();
    assert!(matches!(pair.wait(A), (id, Event::Disconnected(Disconnect::Asked, _)) if id == a));
    assert!(pair.ends[A].establish(a).is_err());
    pair.ends[A].disconnect(pair.now, a).unwrap();
    assert!(matches!(pair.wait(B), (id, Event::Disconnected(Disconnect::Agreed, _)) if id == b));
}
