//! Trying again: going back after NAKs and timeouts, receivers that are not ready, and how often.

use std::time::Duration;

use urxe_engine::{QpState, Remote, SendOp, WcStatus};
use urxe_sim::single_qp::SingleQp;
use urxe_wire::{Credits, NakCode, RKey, RnrTimer, Syndrome};

const REMOTE: Remote = Remote { addr: 0x1234_5678_9ABC, r_key: RKey(0x77) };
/// 4.096 µs · 2^14.
const ACK_TIMEOUT: Duration = Duration::from_nanos(67_108_864);
/// Timeouts behind the first.
const LATER_TIMEOUT: Duration = Duration::from_nanos(4 * 67_108_864);
const OK: WcStatus = WcStatus::Success;
const FLUSHED: WcStatus = WcStatus::WrFlushError;

fn nak(code: NakCode) -> Syndrome {
    Syndrome::Nak(code)
}

// --- trying again ------------------------------------------------------------------------------------------

//= spec/completer.md#cmp-004
//= type=test
//# After a PSN sequence error NAK everything from the PSN it names on MUST be sent again.
#[test]
fn a_sequence_nak_goes_back_to_the_gap() {
    let mut qp = SingleQp::rts();
    qp.post(1, SendOp::Send, 10);
    qp.post(2, SendOp::Send, 600);
    assert_eq!(qp.sent().len(), 4);
    qp.gets_aeth(202, nak(NakCode::PsnSequenceError));
    assert_eq!(qp.completed(), [(1, OK)], "it acknowledges what is before");
    assert_eq!(qp.sent(), ["SEND Middle 202 ?", "SEND Last 203 ?"], "the first asks for an ACK at once");
}

#[test]
fn an_ack_while_going_back_skips_what_arrived() {
    let mut qp = SingleQp::rts();
    qp.post(1, SendOp::Send, 4 * 256);
    qp.sent();
    qp.gets_aeth(200, nak(NakCode::PsnSequenceError));
    qp.gets_ack(202);
    assert_eq!(qp.sent(), ["SEND Last 203 ?"]);
}

//= spec/requester.md#req-014
//= type=test
//# Duplicates of a NAK, before anything was sent again, MUST count as one try.
#[test]
fn duplicates_of_a_nak_are_one_try() {
    let mut qp = SingleQp::rts();
    qp.post(1, SendOp::Send, 10);
    qp.sent();
    for _ in 0..20 {
        qp.gets_aeth(200, nak(NakCode::PsnSequenceError));
    }
    assert_eq!(qp.sent(), ["SEND Only 200 ?"]);
    assert_eq!(qp.state(), QpState::Rts);
}

#[test]
fn tries_after_sequence_naks_are_counted() {
    for retry_cnt in 0..=7 {
        let mut qp = SingleQp::with(|attr| attr.retry_cnt = retry_cnt);
        qp.post(1, SendOp::Send, 10);
        qp.post(2, SendOp::Send, 10);
        qp.sent();
        for _ in 0..retry_cnt {
            qp.gets_aeth(200, nak(NakCode::PsnSequenceError));
            assert_eq!(qp.sent().len(), 2);
        }
        assert_eq!(qp.completed(), []);
        qp.gets_aeth(200, nak(NakCode::PsnSequenceError));
        assert_eq!(qp.completed(), [(1, WcStatus::RetryExceededError), (2, FLUSHED)], "retry_cnt {retry_cnt}");
    }
}

//= spec/requester.md#req-010
//= type=test
//# When retry_cnt tries in a row brought nothing, the oldest request MUST fail with IBV_WC_RETRY_EXC_ERR.
#[test]
fn tries_after_timeouts_are_counted() {
    for retry_cnt in [0, 1, 3, 7] {
        let mut qp = SingleQp::with(|attr| attr.retry_cnt = retry_cnt);
        qp.post(1, SendOp::Write(REMOTE), 10);
        qp.sent();
        let mut timeout = ACK_TIMEOUT;
        for _ in 0..retry_cnt {
            assert_eq!(qp.timeout(), Some(timeout));
            qp.elapse(timeout - Duration::from_nanos(1));
            assert_eq!(qp.sent(), [""; 0]);
            qp.elapse(Duration::from_nanos(1));
            assert_eq!(qp.sent(), ["RDMA WRITE Only 200 ?"]);
            timeout = LATER_TIMEOUT;
        }
        assert_eq!(qp.completed(), []);
        qp.elapse(timeout);
        assert_eq!(qp.completed(), [(1, WcStatus::RetryExceededError)], "retry_cnt {retry_cnt}");
        assert_eq!((qp.state(), qp.timeout()), (QpState::Err, None));
    }
}

#[test]
fn progress_gives_all_tries_back() {
    let mut qp = SingleQp::rts();
    qp.post(1, SendOp::Send, 12 * 256);
    qp.sent();
    for psn in 200..212 {
        for _ in 0..3 {
            qp.elapse(LATER_TIMEOUT);
            // After timeouts the window is small; what it lets through is not the matter here.
            qp.sent();
        }
        qp.gets_ack(psn);
        qp.sent();
    }
    assert_eq!(qp.completed(), [(1, OK)]);
}

#[test]
fn every_acknowledgement_restarts_the_timer() {
    let mut qp = SingleQp::rts();
    qp.post(1, SendOp::Send, 10);
    qp.post(2, SendOp::Send, 10);
    qp.sent();
    qp.elapse(ACK_TIMEOUT / 2);
    qp.gets_ack(200);
    assert_eq!(qp.timeout(), Some(ACK_TIMEOUT));
    qp.elapse(ACK_TIMEOUT / 2);
    qp.gets_ack(200);
    assert_eq!(qp.timeout(), Some(ACK_TIMEOUT / 2), "but not one that says nothing new");
}

//= spec/requester.md#req-011
//= type=test
//# Without an answer for 4.096 us times 2^timeout (and 2 ms at least) everything unacknowledged MUST be sent again.
#[test]
fn ack_timeouts() {
    let millis = Duration::from_millis;
    for (timeout, expected) in [
        (0, None),
        (1, Some(millis(2))),
        (8, Some(millis(2))),
        (9, Some(Duration::from_nanos(2_097_152))),
        (14, Some(ACK_TIMEOUT)),
        (18, Some(Duration::from_nanos(1_073_741_824))),
        (31, Some(Duration::from_nanos(8_796_093_022_208))),
    ] {
        let mut qp = SingleQp::with(|attr| attr.timeout = timeout);
        qp.post(1, SendOp::Send, 10);
        qp.sent();
        assert_eq!(qp.timeout(), expected, "timeout {timeout}");
    }
}

// --- receiver not ready ------------------------------------------------------------------------------------

//= spec/requester.md#req-012
//= type=test
//# After an RNR NAK the requester MUST wait as long as it says before it sends the request again.
#[test]
fn an_rnr_nak_is_waited_for() {
    let mut qp = SingleQp::rts();
    qp.post(1, SendOp::Send, 10);
    qp.post(2, SendOp::Send, 10);
    qp.sent();
    for (code, micros) in [(0, 655_360), (14, 1280), (31, 491_520)] {
        let wait = Duration::from_micros(micros);
        qp.gets_aeth(200, Syndrome::RnrNak(RnrTimer::new(code)));
        assert_eq!(qp.timeout(), Some(wait), "timer {code}");
        qp.elapse(wait - Duration::from_nanos(1));
        assert_eq!(qp.sent(), [""; 0]);
        qp.elapse(Duration::from_nanos(1));
        assert_eq!(qp.sent(), ["SEND Only 200 ?", "SEND Only 201 ?"]);
    }
    qp.gets_ack(200);
    qp.gets_aeth(201, Syndrome::RnrNak(RnrTimer::new(1)));
    assert_eq!(qp.timeout(), Some(Duration::from_micros(10)), "progress gives all tries back");
    assert_eq!(qp.completed(), [(1, OK)]);
}

//= spec/requester.md#req-013
//= type=test
//# An rnr_retry of 7 MUST be without end; fewer MUST be counted and end in IBV_WC_RNR_RETRY_EXC_ERR.
#[test]
fn tries_after_rnr_naks_are_counted() {
    for rnr_retry in 0..=6 {
        // Tries after timeouts are a count of their own.
        let mut qp = SingleQp::with(|attr| (attr.rnr_retry, attr.retry_cnt) = (rnr_retry, 0));
        qp.post(1, SendOp::Send, 10);
        qp.sent();
        for _ in 0..rnr_retry {
            qp.gets_aeth(200, Syndrome::RnrNak(RnrTimer::new(1)));
            qp.elapse(Duration::from_micros(10));
            assert_eq!(qp.sent(), ["SEND Only 200 ?"]);
        }
        assert_eq!(qp.completed(), []);
        qp.gets_aeth(200, Syndrome::RnrNak(RnrTimer::new(1)));
        assert_eq!(qp.completed(), [(1, WcStatus::RnrRetryExceededError)], "rnr_retry {rnr_retry}");
    }
}

//= spec/requester.md#req-013
//= type=test
//# An rnr_retry of 7 MUST be without end; fewer MUST be counted and end in IBV_WC_RNR_RETRY_EXC_ERR.
#[test]
fn seven_tries_after_rnr_naks_are_without_end() {
    let mut qp = SingleQp::with(|attr| attr.rnr_retry = 7);
    qp.post(1, SendOp::Send, 10);
    qp.sent();
    for _ in 0..1000 {
        qp.gets_aeth(200, Syndrome::RnrNak(RnrTimer::new(1)));
        qp.elapse(Duration::from_micros(10));
        assert_eq!(qp.sent(), ["SEND Only 200 ?"]);
    }
    qp.gets_ack(200);
    assert_eq!(qp.completed(), [(1, OK)]);
}

/// The kernel's rxe answers a burst with an RNR NAK, and what is behind the refused packet with a sequence NAK. That
/// one may be so late that the burst has been sent again.
//= spec/requester.md#req-021
//= type=test
//# An RNR NAK MUST give the tries of retry_cnt back: the responder is there, and got what it refuses.
#[test]
fn sequence_naks_behind_rnr_naks_do_not_use_tries_up() {
    let mut qp = SingleQp::with(|attr| (attr.rnr_retry, attr.retry_cnt) = (7, 1));
    qp.post(1, SendOp::Send, 10);
    qp.post(2, SendOp::Send, 10);
    qp.sent();
    for _ in 0..20 {
        qp.gets_aeth(200, Syndrome::RnrNak(RnrTimer::new(1)));
        qp.elapse(Duration::from_micros(10));
        assert_eq!(qp.sent(), ["SEND Only 200 ?", "SEND Only 201 ?"]);
        qp.gets_aeth(200, Syndrome::Nak(NakCode::PsnSequenceError));
        assert_eq!(qp.sent(), ["SEND Only 200 ?", "SEND Only 201 ?"]);
    }
    qp.gets_aeth(200, Syndrome::Nak(NakCode::PsnSequenceError));
    assert_eq!(qp.completed(), [(1, WcStatus::RetryExceededError), (2, WcStatus::WrFlushError)]);
}

//= spec/requester.md#req-014
//= type=test
//# Duplicates of a NAK, before anything was sent again, MUST count as one try.
#[test]
fn duplicates_of_an_rnr_nak_are_one_try() {
    let mut qp = SingleQp::with(|attr| attr.rnr_retry = 1);
    qp.post(1, SendOp::Send, 10);
    qp.sent();
    for _ in 0..20 {
        qp.gets_aeth(200, Syndrome::RnrNak(RnrTimer::new(1)));
    }
    qp.elapse(Duration::from_micros(10));
    assert_eq!(qp.sent(), ["SEND Only 200 ?"]);
}

#[test]
fn an_ack_with_credits_ends_the_wait() {
    let mut qp = SingleQp::rts();
    qp.post(1, SendOp::Send, 10);
    qp.sent();
    qp.gets_aeth(200, Syndrome::RnrNak(RnrTimer::new(0)));
    qp.gets_aeth(199, Syndrome::Ack(Credits::from_wqes(0)));
    assert_eq!(qp.sent(), [""; 0]);
    qp.gets_aeth(199, Syndrome::Ack(Credits::from_wqes(1)));
    assert_eq!(qp.sent(), ["SEND Only 200 ?"]);
    assert_eq!(qp.timeout(), Some(ACK_TIMEOUT));
}
