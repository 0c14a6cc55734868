//! Two communication managers on a virtual network in virtual time.

mod late;
mod pair;
mod unreachable;

use std::time::Duration;

use proptest::prelude::*;
use urxe_engine::Instant;
use urxe_engine::cm::{Cm, Disconnect, Ends, Event, Verdict};
use urxe_wire::cm::{Apr, CmMad, CommId, Ids, Lap, Message, RejReason, SidrReq, SidrStatus};
use urxe_wire::{Gid, PKey, QKey, Qpn};

use pair::{A, B, GIDS, LossyNetwork, Pair, SERVICE, rep, req};

#[test]
fn connecting_and_disconnecting_takes_five_messages() {
    let mut pair = Pair::new(1, LossyNetwork::default());
    let (a, b) = pair.established();
    assert_eq!(pair.sent, 3);
    pair.ends[A].disconnect(pair.now, a).unwrap();
    assert!(matches!(pair.wait(B), (id, Event::Disconnected(Disconnect::Asked, _)) if id == b));
    pair.ends[B].disconnect(pair.now, b).unwrap();
    assert!(matches!(pair.wait(A), (id, Event::Disconnected(Disconnect::Agreed, _)) if id == a));
    assert_eq!(pair.wait(B), (b, Event::TimeWaitExit));
    assert_eq!(pair.wait(A), (a, Event::TimeWaitExit));
    assert_eq!(pair.sent, 5);
    for (of, id) in [(A, a), (B, b)] {
        pair.ends[of].release(pair.now, id);
        assert_eq!(pair.wait(of), (id, Event::Gone));
    }
    assert!(!pair.step());
}

//= spec/connections.md#cm-006
//= type=test
//# When both sides disconnect at once, each MUST answer the other and end.
#[test]
fn both_disconnect_at_once() {
    let mut pair = Pair::new(1, LossyNetwork::default());
    let (a, b) = pair.established();
    pair.ends[A].disconnect(pair.now, a).unwrap();
    pair.ends[B].disconnect(pair.now, b).unwrap();
    for of in [A, B] {
        assert!(matches!(pair.wait(of).1, Event::Disconnected(Disconnect::Asked, _)));
        assert_eq!(pair.wait(of).1, Event::TimeWaitExit);
    }
    pair.run_dry();
    assert_eq!(pair.events, [vec![], vec![]]);
}

//= spec/connections.md#cm-007
//= type=test
//# A rejection MUST bring the reason and private data that were given.
#[test]
fn a_rejection_brings_reason_and_private_data() {
    let mut pair = Pair::new(1, LossyNetwork::default());
    let b = pair.request();
    pair.ends[B].reject(b, RejReason::CONSUMER_DEFINED, &[], &[9; 148]).unwrap();
    let (_, Event::Rejected(rej)) = pair.wait(A) else { panic!() };
    assert_eq!((rej.reason, rej.private_data), (RejReason::CONSUMER_DEFINED, [9; 148]));
    assert!(pair.ends[B].accept(pair.now, b, &rep(), 0).is_err(), "not after that");
}

//= spec/connections.md#cm-004
//= type=test
//# A request for a service that nobody serves MUST be rejected as an invalid service id.
#[test]
fn request_without_listener_is_rejected() {
    let mut pair = Pair::new(1, LossyNetwork::default());
    pair.verdict = Some(Verdict::Refuse);
    pair.connect(1);
    let (_, Event::Rejected(rej)) = pair.wait(A) else { panic!() };
    assert_eq!(rej.reason, RejReason::INVALID_SERVICE_ID);
}

//= spec/connections.md#cm-003
//= type=test
//# A message without an answer MUST be sent again 15 times, a DREQ 4 times, and the connection then be given up.
#[test]
fn request_without_answer_is_unreachable() {
    let mut pair = Pair::new(1, LossyNetwork { loss: 100, ..LossyNetwork::default() });
    pair.connect(1);
    assert_eq!(pair.wait(A), (CommId(1), Event::Unreachable));
    assert_eq!(pair.sent, 16, "one and fifteen retries");
    assert!(pair.now.since(Instant::from_nanos(0)) > Duration::from_secs(30));
}

#[test]
fn a_busy_listener_is_asked_again() {
    let mut pair = Pair::new(1, LossyNetwork::default());
    pair.verdict = Some(Verdict::Ignore);
    pair.connect(1);
    for _ in 0..6 {
        pair.step();
    }
    assert_eq!(pair.events, [vec![], vec![]]);
    pair.verdict = None;
    assert!(matches!(pair.wait(B).1, Event::Request(_)));
}

//= spec/connections.md#cm-002
//= type=test
//# A request that comes again MUST be answered as before, and not be told twice.
#[test]
fn a_slow_listener_asks_for_patience() {
    let mut pair = Pair::new(1, LossyNetwork::default());
    let b = pair.request();
    // The request comes again, a MRA goes back, and then nothing for longer than all retries would take.
    for _ in 0..3 {
        pair.step();
    }
    assert_eq!(pair.sent, 3, "REQ, REQ, MRA");
    assert!(pair.ends[A].poll_timeout().unwrap().since(pair.now) > Duration::from_secs(60));
    pair.ends[B].accept(pair.now, b, &rep(), 0).unwrap();
    assert!(matches!(pair.wait(A).1, Event::Reply(_)));
}

//= spec/connections.md#cm-003
//= type=test
//# A message without an answer MUST be sent again 15 times, a DREQ 4 times, and the connection then be given up.
#[test]
fn messages_for_released_connections_are_answered() {
    let mut pair = Pair::new(1, LossyNetwork::default());
    let (a, b) = pair.established();
    pair.ends[A].release(pair.now, a);
    assert!(matches!(pair.wait(B), (id, Event::Disconnected(Disconnect::Asked, _)) if id == b));
    pair.ends[B].release(pair.now, b);
    pair.run_dry();
    assert_eq!(pair.events, [vec![(a, Event::Gone)], vec![(b, Event::Gone)]]);
}

//= spec/connections.md#cm-005
//= type=test
//# A disconnect of an unknown connection MUST be agreed to.
#[test]
fn an_unknown_connection_is_released_at_once() {
    let mut pair = Pair::new(1, LossyNetwork::default());
    let (_, b) = pair.established();
    pair.ends[A] = Cm::new();
    pair.ends[B].disconnect(pair.now, b).unwrap();
    assert!(matches!(pair.wait(B).1, Event::Disconnected(Disconnect::Agreed, _)));
}

#[test]
fn a_service_is_looked_up() {
    let mut pair = Pair::new(1, LossyNetwork { loss: 30, dup: 30, delay: 0 });
    let request = SidrReq { request_id: CommId(5), p_key: PKey::DEFAULT, service_id: SERVICE, private_data: [1; 216] };
    pair.ends[A].resolve_service(pair.now, Pair::ends(A), &request).unwrap();
    let (b, Event::ServiceRequest(_)) = pair.wait(B) else { panic!() };
    pair.ends[B].answer_service(b, SidrStatus::SUCCESS, Qpn::new(0x77), QKey(5), &[2; 136]).unwrap();
    let (a, Event::ServiceReply(reply)) = pair.wait(A) else { panic!() };
    assert_eq!((a, reply.qpn, reply.q_key, reply.service_id), (CommId(5), Qpn::new(0x77), QKey(5), SERVICE));
}

//= spec/connections.md#cm-008
//= type=test
//# A message about a connection MUST come from its peer, or be ignored.
#[test]
fn strangers_are_not_listened_to() {
    let mut pair = Pair::new(1, LossyNetwork::default());
    let (a, _) = pair.established();
    let spoofed = CmMad {
        transaction_id: 1,
        attribute_modifier: 0,
        message: Message::Dreq(urxe_wire::cm::Dreq {
            ids: Ids { local: CommId(101), remote: a },
            remote_qpn: Qpn::new(0),
            private_data: [0; 220],
        }),
    };
    let stranger = Ends { local: GIDS[A], remote: Gid::new([0xC; 16]) };
    pair.ends[A].handle(pair.now, stranger, &spoofed, &mut |_| Verdict::Refuse);
    assert_eq!(pair.ends[A].poll_event(), None);
}

//= spec/connections.md#cm-017
//= type=test
//# A request to load an alternate path MUST be answered: it is not supported, or the connection is unknown.
#[test]
fn an_alternate_path_is_refused() {
    let mut pair = Pair::new(1, LossyNetwork::default());
    let (a, b) = pair.established();
    for (to, status) in [(b, Apr::NOT_SUPPORTED), (CommId(0x1234), Apr::INVALID_COMM_ID)] {
        let lap = Lap { ids: Ids { local: a, remote: to }, rest: [7; 224] };
        let mad = CmMad { transaction_id: 0xAB_CDEF, attribute_modifier: 0, message: Message::Lap(lap) };
        // Its answer may be lost, so it may come twice.
        for _ in 0..2 {
            pair.ends[B].handle(pair.now, Pair::ends(B), &mad, &mut |_| Verdict::Refuse);
            let answer = CmMad::parse(&pair.ends[B].poll_transmit().unwrap().payload).unwrap();
            assert_eq!(answer.transaction_id, 0xAB_CDEF);
            let Message::Apr(apr) = answer.message else { panic!("{answer:?}") };
            assert_eq!((apr.ids, apr.status), (Ids { local: to, remote: a }, status));
        }
    }
    // A stranger is told nothing of the connection, and the connection goes on.
    let lap = Lap { ids: Ids { local: a, remote: b }, rest: [7; 224] };
    let mad = CmMad { transaction_id: 1, attribute_modifier: 0, message: Message::Lap(lap) };
    let stranger = Ends { local: GIDS[B], remote: Gid::new([0xC; 16]) };
    pair.ends[B].handle(pair.now, stranger, &mad, &mut |_| Verdict::Refuse);
    let answer = CmMad::parse(&pair.ends[B].poll_transmit().unwrap().payload).unwrap();
    assert!(matches!(answer.message, Message::Apr(Apr { status: Apr::INVALID_COMM_ID, .. })));
    pair.ends[A].disconnect(pair.now, a).unwrap();
    assert!(matches!(pair.wait(B), (id, Event::Disconnected(Disconnect::Asked, _)) if id == b));
}

proptest! {
    /// Establishes and ends a connection while messages are lost, duplicated and reordered; nothing is left behind.
    //= spec/connections.md#cm-002
    //= type=test
    //# A request that comes again MUST be answered as before, and not be told twice.
    #[test]
    fn over_a_lossy_network(seed: u64, loss in 0_u64..40, dup in 0_u64..40, delay in 0_u64..600) {
        let mut pair = Pair::new(seed, LossyNetwork { loss, dup, delay });
        let (a, b) = match pair.try_to_establish() {
            Ok(ids) => ids,
            // Once in some ten thousand times every copy of a message is lost, or of its answer.
            Err(event) => {
                prop_assert!(loss > 20 && matches!(event, Event::Unreachable), "{event:?}");
                return Ok(());
            }
        };
        pair.ends[A].disconnect(pair.now, a).unwrap();
        match pair.next(B) {
            Some((_, event)) => prop_assert!(matches!(event, Event::Disconnected(..)), "{event:?}"),
            // All of the few DREQs were lost, which their sender has noticed.
            None => {
                let unanswered = |event: &Event| matches!(event, Event::Disconnected(Disconnect::Unanswered, _));
                prop_assert!(loss > 0 && pair.events[A].iter().any(|(_, event)| unanswered(event)));
            }
        }
        // The peer may have waited in vain by now.
        let _ = pair.ends[B].disconnect(pair.now, b);
        pair.ends[A].release(pair.now, a);
        pair.ends[B].release(pair.now, b);
        pair.run_dry();
        for of in [A, B] {
            prop_assert!(matches!(pair.events[of].last(), Some((_, Event::Gone))));
        }
    }

    /// No message in no state makes it panic.
    //= spec/connections.md#cm-001
    //= type=test
    //# Any bytes MUST be taken for a management datagram or refused.
    #[test]
    fn any_message(attribute in 0x10_u16..0x1B, ids: (u8, u8), fill: u8, established: bool) {
        let mut pair = Pair::new(1, LossyNetwork::default());
        if established {
            pair.established();
        } else {
            pair.request();
        }
        let mut bytes = [fill; 232];
        bytes[..8].copy_from_slice(&[0, 0, 0, ids.0 % 110, 0, 0, 0, ids.1 % 110]);
        if let Ok(message) = Message::parse(attribute, &bytes) {
            let mad = CmMad { transaction_id: 0, attribute_modifier: 0, message };
            for of in [A, B] {
                pair.ends[of].handle(pair.now, Pair::ends(of), &mad, &mut |_| Verdict::Ignore);
            }
        }
        pair.run_dry();
    }
}

/// A request that is taken under a name in use is as if it had not come, and its sender asks again.
#[test]
fn a_name_in_use_is_not_given_twice() {
    let mut pair = Pair::new(1, LossyNetwork::default());
    pair.connect(1);
    let name = CommId(7);
    pair.ends[B].connect(pair.now, Pair::ends(B), &req(7), 0).unwrap();
    pair.verdict = Some(Verdict::Take(name));
    let (id, event) = pair.wait(B);
    assert_eq!((id, event), (name, Event::Unreachable), "the connection that had the name goes on");
    pair.run_dry();
    assert_eq!(pair.events[B], []);
}
