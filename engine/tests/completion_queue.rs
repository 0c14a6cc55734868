//! Completion queues: order, overrun, who is told (IBA 11.4.2; `ibv_req_notify_cq(3)`, `ibv_resize_cq(3)`).

use std::time::Duration;

use urxe_engine::cq::Due;
use urxe_engine::quirks::{CqDelay, Quirks};
use urxe_engine::{CompletionQueue, Cqe, FrameCompletion, Instant, Moderation, Pushed, WcOpcode, WcStatus};
use urxe_wire::{Lid, Qpn};

fn cqe(wr_id: u64) -> Cqe {
    Cqe {
        wr_id,
        status: WcStatus::Success,
        opcode: WcOpcode::Send,
        qpn: Qpn::new(1),
        byte_len: 0,
        imm: None,
        invalidated: None,
        at: Instant::from_nanos(0),
        src_qp: Qpn::default(),
        solicited: false,
        grh: None,
        slid: Lid::NONE,
        frame: FrameCompletion::default(),
        refusal: None,
    }
}

fn polled<Q: Quirks>(cq: &mut CompletionQueue<Q>) -> Vec<u64> {
    std::iter::from_fn(|| cq.poll()).map(|cqe| cqe.wr_id).collect()
}

//= spec/completions.md#cq-001
//= type=test
//# Completions MUST be polled in the order in which they were added.
#[test]
fn first_in_first_out() {
    let mut cq = CompletionQueue::new(3);
    for round in 0..10 {
        for wr_id in 0..3 {
            assert_eq!(cq.push(cqe(round * 3 + wr_id)), Pushed::Quietly);
        }
        assert_eq!(cq.len(), 3);
        assert_eq!(polled(&mut cq), [round * 3, round * 3 + 1, round * 3 + 2]);
        assert!(cq.is_empty());
    }
}

//= spec/completions.md#cq-002
//= type=test
//# An overrun MUST be told once as IBV_EVENT_CQ_ERR, and no completion be taken after it.
#[test]
fn an_overrun_is_told_once_and_lasts() {
    let mut cq = CompletionQueue::new(1);
    assert_eq!(cq.push(cqe(1)), Pushed::Quietly);
    assert!(!cq.has_overrun());
    assert_eq!(cq.push(cqe(2)), Pushed::Overrun { first: true });
    assert_eq!(cq.push(cqe(3)), Pushed::Overrun { first: false });
    assert!(cq.has_overrun());
    assert_eq!(polled(&mut cq), [1], "what was there before can still be had");
    assert_eq!(cq.push(cqe(4)), Pushed::Overrun { first: false }, "a CQ in error takes nothing more");
}

//= spec/completions.md#cq-003
//= type=test
//# One request for notification MUST give one event.
#[test]
fn one_event_for_one_request() {
    let mut cq = CompletionQueue::new(10);
    assert_eq!(cq.push(cqe(1)), Pushed::Quietly, "nobody asked");
    polled(&mut cq);
    assert!(!cq.arm(false));
    assert_eq!(cq.push(cqe(2)), Pushed::RaiseEvent);
    assert_eq!(cq.push(cqe(3)), Pushed::Quietly);
    polled(&mut cq);
    assert!(!cq.arm(false));
    assert!(!cq.arm(false));
    assert_eq!(cq.push(cqe(4)), Pushed::RaiseEvent);
    assert_eq!(cq.push(cqe(5)), Pushed::Quietly, "asking twice is asking once");
}

//= spec/completions.md#cq-004
//= type=test
//# A request for solicited completions MUST be answered by those and by errors only.
#[test]
fn solicited_events_are_for_solicited_messages_and_errors() {
    let mut cq = CompletionQueue::new(10);
    assert!(!cq.arm(true));
    assert_eq!(cq.push(cqe(1)), Pushed::Quietly);
    assert_eq!(cq.push(Cqe { solicited: true, ..cqe(2) }), Pushed::RaiseEvent);
    assert!(!cq.arm(true), "what the event was for");
    assert_eq!(cq.push(Cqe { status: WcStatus::WrFlushError, ..cqe(3) }), Pushed::RaiseEvent);
    assert_eq!(cq.push(Cqe { solicited: true, ..cqe(4) }), Pushed::Quietly);
}

const MODERATION: Moderation = Moderation { count: 3, period: Duration::from_micros(10) };

fn moderated() -> CompletionQueue {
    let mut cq = CompletionQueue::new(20);
    assert!(!cq.moderate(Some(MODERATION)));
    assert!(!cq.arm(false));
    cq
}

//= spec/completions.md#cq-007
//= type=test
//# A moderated event MUST come with the completion that makes the count full, or when the period is over.
/// `ibv_modify_cq(3)`: an event with so many completions, or so long after the first.
#[test]
fn moderated_events_come_with_a_number_of_completions() {
    let mut cq = moderated();
    let by = Instant::from_nanos(10_000);
    for _ in 0..2 {
        assert_eq!(cq.push(cqe(1)), Pushed::LookAt(by));
        assert_eq!(cq.push(cqe(2)), Pushed::Quietly);
        assert_eq!(cq.push(cqe(3)), Pushed::RaiseEvent);
        assert_eq!(cq.push(cqe(4)), Pushed::Quietly, "not armed");
        assert_eq!(cq.handle_timeout(by), Due::default(), "the event has been raised");
        polled(&mut cq);
        assert!(!cq.arm(false));
    }
}

//= spec/completions.md#cq-007
//= type=test
//# A moderated event MUST come with the completion that makes the count full, or when the period is over.
#[test]
fn moderated_events_come_after_a_period() {
    let mut cq = moderated();
    assert_eq!(cq.push(Cqe { at: Instant::from_nanos(500), ..cqe(1) }), Pushed::LookAt(Instant::from_nanos(10_500)));
    assert!(!cq.handle_timeout(Instant::from_nanos(10_499)).raise_event);
    assert!(cq.handle_timeout(Instant::from_nanos(10_500)).raise_event);
    assert_eq!(cq.handle_timeout(Instant::from_nanos(99_999)), Due::default(), "once");
    assert_eq!(cq.push(cqe(2)), Pushed::Quietly, "not armed");
    // A completion that comes late raises what a timer has not.
    polled(&mut cq);
    assert!(!cq.arm(false));
    cq.push(cqe(3));
    assert_eq!(cq.push(Cqe { at: Instant::from_nanos(10_000), ..cqe(4) }), Pushed::RaiseEvent);
}

#[test]
fn a_moderated_event_is_due_when_moderation_changes() {
    let mut cq = moderated();
    cq.push(cqe(1));
    assert!(cq.moderate(None));
    assert!(!cq.arm(false));
    assert_eq!(cq.push(cqe(2)), Pushed::RaiseEvent);
}

#[test]
fn asking_for_any_outweighs_asking_for_solicited() {
    for order in [[false, true], [true, false]] {
        let mut cq = CompletionQueue::new(10);
        order.into_iter().for_each(|solicited_only| assert!(!cq.arm(solicited_only)));
        assert_eq!(cq.push(cqe(1)), Pushed::RaiseEvent, "{order:?}");
    }
}

//= spec/completions.md#cq-009
//= type=test
//# A request MUST be answered at once where a completion came after the last event and has not been polled.
#[test]
fn asking_late_is_not_too_late() {
    let mut cq = CompletionQueue::new(10);
    cq.push(cqe(1));
    assert!(!cq.arm(true), "it was not solicited");
    assert!(cq.arm(false));
    assert!(!cq.arm(false), "announced already");
    assert_eq!(cq.push(cqe(2)), Pushed::RaiseEvent);
    assert_eq!(cq.push(Cqe { solicited: true, ..cqe(3) }), Pushed::Quietly);
    assert_eq!(cq.push(cqe(4)), Pushed::Quietly);
    assert!(cq.arm(true), "for the third");
    assert_eq!(cq.push(cqe(5)), Pushed::Quietly);
    polled(&mut cq);
    assert!(!cq.arm(false), "nothing is left");
}

//= spec/completions.md#cq-005
//= type=test
//# Resizing MUST lose no completion, and be refused where one would have no place.
#[test]
fn resizing_loses_nothing() {
    let mut cq = CompletionQueue::new(4);
    for wr_id in 0..3 {
        cq.push(cqe(wr_id));
    }
    assert_eq!(cq.resize(2), Err(3));
    assert_eq!(cq.capacity(), 4);
    assert_eq!(cq.resize(3), Ok(()));
    assert_eq!(cq.push(cqe(9)), Pushed::Overrun { first: true });
    assert_eq!(polled(&mut cq), [0, 1, 2]);
}

//= spec/completions.md#cq-006
//= type=test
//# The completions of a queue pair that is destroyed or reset MUST vanish with it.
#[test]
fn a_qp_that_is_gone_leaves_nothing() {
    let mut cq = CompletionQueue::new(10);
    for (wr_id, qpn) in [(1, 1), (2, 2), (3, 1), (4, 2)] {
        cq.push(Cqe { qpn: Qpn::new(qpn), ..cqe(wr_id) });
    }
    cq.forget(Qpn::new(1));
    assert_eq!(polled(&mut cq), [2, 4]);
}

/// To know when a completion was made may cost a look at the clock.
#[test]
fn a_queue_wants_the_time_only_if_it_goes_by_it() {
    assert!(!CompletionQueue::new(4).wants_time());
    assert!(moderated().wants_time());
    assert!(CompletionQueue::with_quirks(4, CqDelay::new(5, Duration::from_micros(1))).wants_time());
}

/// Completions that are kept back come in order, none before its time, and count against the capacity.
#[test]
fn late_completions_come_in_order() {
    let most = Duration::from_micros(100);
    let mut cq = CompletionQueue::with_quirks(64, CqDelay::new(5, most));
    let (mut look_at, mut seen, mut late) = (None, Vec::new(), 0);
    for wr_id in 0..64 {
        let now = Instant::from_nanos(wr_id * 1000);
        if let Pushed::LookAt(at) = cq.push(Cqe { at: now, ..cqe(wr_id) }) {
            assert!(at > now && look_at.is_none());
            look_at = Some(at);
        }
        if look_at.is_some_and(|at| at <= now) {
            look_at = cq.handle_timeout(now).look_at;
        }
        seen.extend(polled(&mut cq));
        late += usize::from(!seen.contains(&wr_id));
    }
    assert!(late > 10, "nothing is late");
    assert!(look_at.is_some_and(|at| at <= Instant::from_nanos(63_000) + most));
    while let Some(at) = look_at {
        look_at = cq.handle_timeout(at).look_at;
        seen.extend(polled(&mut cq));
    }
    assert!(seen.into_iter().eq(0..64));
}

#[test]
fn late_completions_overrun_raise_events_and_are_forgotten() {
    // The first that comes is late.
    let late = || {
        (0..)
            .find_map(|seed| {
                let delay = CqDelay::new(seed, Duration::from_micros(100));
                let mut cq = CompletionQueue::with_quirks(2, delay);
                match cq.push(cqe(1)) {
                    Pushed::LookAt(at) => Some((cq, at)),
                    _ => None,
                }
            })
            .expect("there are many seeds")
    };
    let (mut cq, at) = late();
    assert_eq!(cq.push(cqe(2)), Pushed::Quietly);
    assert_eq!(cq.push(cqe(3)), Pushed::Overrun { first: true });
    assert!(!cq.arm(false) && polled(&mut cq).is_empty());
    assert!(cq.handle_timeout(at).raise_event);

    let (mut cq, _) = late();
    cq.forget(Qpn::new(1));
    assert_eq!((cq.len(), cq.handle_timeout(Instant::from_nanos(1 << 40))), (0, Due::default()));
}
