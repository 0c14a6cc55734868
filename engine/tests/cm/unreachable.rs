//! The peer falls silent in each state: what an end is told, and when at the latest; what its neighbours would say for it.

use std::time::Duration;

use urxe_engine::cm::{Disconnect, Event, SLOWEST, Transmit};
use urxe_wire::cm::{CmMad, CommId, Message, RejReason, Rejected, SidrReq, SidrStatus};
use urxe_wire::{PKey, QKey, Qpn};

use super::pair::{A, B, LossyNetwork, Pair, SERVICE, rep};

/// An end's state, after IBA 12.9.7.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    ReqSent,
    /// REQ sent, and the peer has answered by an MRA.
    MraRcvd,
    ReqRcvd,
    RepSent,
    RepRcvd,
    Established,
    DreqSent,
    DreqRcvd,
    TimeWait,
    SidrReqSent,
    SidrReqRcvd,
}

/// Event that ends a connection whose peer is silent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Told {
    /// RDMA_CM_EVENT_UNREACHABLE, -ETIMEDOUT.
    Unreachable,
    /// RDMA_CM_EVENT_DISCONNECTED, -ETIMEDOUT; and then that nothing is under way any more.
    Disconnected,
    /// RDMA_CM_EVENT_TIMEWAIT_EXIT.
    TimeWaitExit,
}

/// Message sent on behalf of a process that has died.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum LastWill {
    Reject(Rejected, RejReason),
    Dreq,
    Drep,
    NoService,
}

/// State; what is told, within how many seconds; will.
type Row = (State, Option<(Told, u64)>, Option<LastWill>);

/// The state of an end when its peer falls silent, what it is told within how many seconds, and its will. Nothing is
/// told where the other end or the application has the word: the kernel's cm.c has no timers in these states
/// (`cm_process_send_error` knows the others), and wills are what its `cm_destroy_id` says.
const TABLE: [Row; 11] = [
    (State::ReqSent, Some((Told::Unreachable, 60)), Some(LastWill::Reject(Rejected::None, RejReason::TIMEOUT))),
    // A MRA asks for 4.096 us * 2^24 more, 69 s.
    (State::MraRcvd, Some((Told::Unreachable, 140)), Some(LastWill::Reject(Rejected::None, RejReason::TIMEOUT))),
    (State::ReqRcvd, None, Some(LastWill::Reject(Rejected::Req, RejReason::CONSUMER_DEFINED))),
    (
        State::RepSent,
        Some((Told::Unreachable, 60)),
        Some(LastWill::Reject(Rejected::None, RejReason::CONSUMER_DEFINED)),
    ),
    (State::RepRcvd, None, Some(LastWill::Reject(Rejected::Rep, RejReason::CONSUMER_DEFINED))),
    (State::Established, None, Some(LastWill::Dreq)),
    (State::DreqSent, Some((Told::Disconnected, 10)), Some(LastWill::Dreq)),
    (State::DreqRcvd, None, Some(LastWill::Drep)),
    (State::TimeWait, Some((Told::TimeWaitExit, 2)), None),
    (State::SidrReqSent, Some((Told::Unreachable, 60)), None),
    (State::SidrReqRcvd, None, Some(LastWill::NoService)),
];

/// Brings an end there: which it is, and its name for the connection. Then the network takes everything.
fn reach(pair: &mut Pair, state: State) -> (usize, CommId) {
    let lookup = SidrReq { request_id: CommId(5), p_key: PKey::DEFAULT, service_id: SERVICE, private_data: [1; 216] };
    let end = match state {
        State::ReqSent => {
            pair.network.loss = 100;
            pair.connect(1);
            (A, CommId(1))
        }
        State::MraRcvd => {
            pair.request();
            // The request again, and the MRA.
            for _ in 0..3 {
                pair.step();
            }
            (A, CommId(1))
        }
        State::ReqRcvd => (B, pair.request()),
        State::RepSent => {
            let b = pair.request();
            pair.network.loss = 100;
            pair.ends[B].accept(pair.now, b, &rep(), 0).unwrap();
            (B, b)
        }
        State::RepRcvd => {
            let b = pair.request();
            pair.ends[B].accept(pair.now, b, &rep(), 0).unwrap();
            (A, pair.wait(A).0)
        }
        State::Established => (A, pair.established().0),
        State::DreqSent => {
            let (a, _) = pair.established();
            pair.network.loss = 100;
            pair.ends[A].disconnect(pair.now, a).unwrap();
            (A, a)
        }
        State::DreqRcvd | State::TimeWait => {
            let (a, b) = pair.established();
            pair.ends[A].disconnect(pair.now, a).unwrap();
            pair.wait(B);
            if state == State::TimeWait {
                pair.ends[B].disconnect(pair.now, b).unwrap();
            }
            (B, b)
        }
        State::SidrReqSent => {
            pair.network.loss = 100;
            pair.ends[A].resolve_service(pair.now, Pair::ends(A), &lookup).unwrap();
            (A, CommId(5))
        }
        State::SidrReqRcvd => {
            pair.ends[A].resolve_service(pair.now, Pair::ends(A), &lookup).unwrap();
            (B, pair.wait(B).0)
        }
    };
    pair.network.loss = 100;
    end
}

#[test]
fn a_silent_peer_in_each_state() {
    for (state, told, _) in TABLE {
        let mut pair = Pair::new(1, LossyNetwork::default());
        let (end, id) = reach(&mut pair, state);
        pair.hush(end);
        pair.events = Default::default();
        let begun = pair.now;
        let Some((told, seconds)) = told else {
            pair.run_dry();
            assert_eq!(pair.events[end], [], "{state:?}");
            continue;
        };
        let (about, event) = pair.wait(end);
        assert_eq!(about, id, "{state:?}");
        let matches = match told {
            Told::Unreachable => event == Event::Unreachable,
            Told::Disconnected => matches!(event, Event::Disconnected(Disconnect::Unanswered, _)),
            Told::TimeWaitExit => event == Event::TimeWaitExit,
        };
        assert!(matches, "{state:?}: {event:?}");
        let took = pair.now.since(begun);
        assert!(took <= Duration::from_secs(seconds), "{state:?}: {took:?}");
        assert!(told != Told::Unreachable || took > 5 * SLOWEST, "{state:?}: given up after {took:?}");
        pair.run_dry();
        let after: Vec<_> = pair.events[end].drain(..).map(|(_, event)| event).collect();
        let expected = if told == Told::Disconnected { vec![Event::TimeWaitExit] } else { vec![] };
        assert_eq!(after, expected, "{state:?}");
    }
}

//= spec/connections.md#cm-010
//= type=test
//# The peer of a process that was killed MUST be told what it would be told if the process had let go of its connections.
#[test]
fn a_last_will_in_each_state() {
    for (state, _, will) in TABLE {
        let mut pair = Pair::new(1, LossyNetwork::default());
        let (end, id) = reach(&mut pair, state);
        let mut last = None;
        while let Some((about, will)) = pair.ends[end].poll_last_will() {
            if about == id {
                last = will;
            }
        }
        let said = last.map(|Transmit { ends, payload }| {
            assert_eq!(ends, Pair::ends(end));
            match CmMad::parse(&payload).unwrap().message {
                Message::Rej(rej) => LastWill::Reject(rej.message, rej.reason),
                Message::Dreq(_) => LastWill::Dreq,
                Message::Drep(_) => LastWill::Drep,
                Message::SidrRep(rep) if rep.status == SidrStatus::REJECT => LastWill::NoService,
                other => panic!("{state:?}: {other:?}"),
            }
        });
        assert_eq!(said, will, "{state:?}");
    }
}

/// The program ends as soon as it has let go, and nothing is repeated any more.
//= spec/connections.md#cm-011
//= type=test
//# A DREQ that is not answered when its program lets go of the connection MUST be sent once more.
#[test]
fn a_lost_dreq_is_repeated_by_who_lets_go() {
    let mut pair = Pair::new(1, LossyNetwork::default());
    let (a, b) = pair.established();
    pair.ends[A].disconnect(pair.now, a).unwrap();
    assert!(pair.ends[A].poll_transmit().is_some() && pair.ends[A].poll_transmit().is_none(), "it is lost");
    let begun = pair.now;
    pair.ends[A].release(pair.now, a);
    assert!(matches!(pair.wait(B), (id, Event::Disconnected(Disconnect::Asked, _)) if id == b));
    assert!(pair.now.since(begun) < Duration::from_millis(100), "not by a timer");
}

/// A service that was answered for needs nothing more.
#[test]
fn no_last_will_after_the_end() {
    let mut pair = Pair::new(1, LossyNetwork::default());
    let (end, id) = reach(&mut pair, State::SidrReqRcvd);
    pair.ends[end].answer_service(id, SidrStatus::SUCCESS, Qpn::new(7), QKey(1), &[0; 136]).unwrap();
    let last = std::iter::from_fn(|| pair.ends[end].poll_last_will()).last();
    assert!(matches!(last, Some((about, None)) if about == id), "{last:?}");
}
