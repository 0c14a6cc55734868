//! A peer that is silent for longer than round trips take is asked before the ACK timeout.

use std::time::Duration;

use urxe_engine::{Remote, SendOp, WcStatus};
use urxe_sim::single_qp::SingleQp;
use urxe_wire::{NakCode, RKey, Syndrome};

const REMOTE: Remote = Remote { addr: 0x1234_5678_9ABC, r_key: RKey(0x77) };
/// 4.096 µs · 2^14.
const ACK_TIMEOUT: Duration = Duration::from_nanos(67_108_864);
const OK: WcStatus = WcStatus::Success;

/// A requester that knows how long a round trip takes, and may not try again.
fn acquainted(round_trip: Duration) -> SingleQp {
    let mut qp = SingleQp::with(|attr| attr.retry_cnt = 0);
    qp.post(1, SendOp::Write(REMOTE), 10);
    qp.sent();
    qp.elapse(round_trip);
    qp.gets_ack(200);
    assert_eq!(qp.completed(), [(1, OK)]);
    qp
}

//= spec/requester.md#req-022
//= type=test
//# When nothing has come back for several round trips, the oldest packet MAY be sent again before the ACK
//# timeout; that MUST NOT count as a try.
#[test]
fn a_probe_resends_the_oldest_packet() {
    let mut qp = acquainted(Duration::from_micros(100));
    for wr_id in 2..5 {
        qp.post(wr_id, SendOp::Write(REMOTE), 10);
    }
    assert_eq!(qp.sent().len(), 3);
    for wait in [2, 4, 8].map(Duration::from_millis) {
        assert_eq!(qp.timeout(), Some(wait));
        qp.elapse(wait - Duration::from_nanos(1));
        assert_eq!(qp.sent(), [""; 0]);
        qp.elapse(Duration::from_nanos(1));
        assert_eq!(qp.sent(), ["RDMA WRITE Only 201 ?"], "no more before it is known what is missing");
    }
    qp.gets_ack(201);
    assert_eq!(qp.sent(), ["RDMA WRITE Only 202 ?", "RDMA WRITE Only 203 ?"], "what was behind it is lost as well");
    qp.gets_ack(203);
    assert_eq!(qp.completed(), [(2, OK), (3, OK), (4, OK)]);
    assert_eq!(qp.timeout(), None);
}

#[test]
fn recent_loss_shortens_the_probe_timeout() {
    let mut qp = SingleQp::with(|attr| attr.retry_cnt = 1);
    let exchange = |qp: &mut SingleQp, wr_id, psn| {
        qp.post(wr_id, SendOp::Write(REMOTE), 10);
        qp.sent();
        qp.elapse(Duration::from_micros(200));
        qp.gets_ack(psn);
    };
    exchange(&mut qp, 1, 200);
    qp.post(2, SendOp::Write(REMOTE), 10);
    qp.sent();
    qp.gets_aeth(201, Syndrome::Nak(NakCode::PsnSequenceError));
    assert_eq!(qp.sent().len(), 1);
    // A round trip, and four times what the first is thought to deviate by.
    assert_eq!(qp.timeout(), Some(Duration::from_micros(600)));
    qp.gets_ack(201);
    // Not for ever.
    for (wr_id, psn) in (3..).zip(202..).take(1 << 14) {
        exchange(&mut qp, wr_id, psn);
    }
    qp.post(1 << 20, SendOp::Write(REMOTE), 10);
    qp.sent();
    assert_eq!(qp.timeout(), Some(Duration::from_millis(2)));
}

#[test]
fn a_peer_that_had_everything_says_so() {
    let mut qp = acquainted(Duration::from_micros(100));
    qp.post(2, SendOp::Write(REMOTE), 10);
    qp.post(3, SendOp::Write(REMOTE), 10);
    qp.sent();
    qp.elapse(Duration::from_millis(2));
    assert_eq!(qp.sent(), ["RDMA WRITE Only 201 ?"]);
    qp.gets_ack(202);
    assert_eq!(qp.sent(), [""; 0]);
    qp.post(4, SendOp::Write(REMOTE), 10);
    assert_eq!(qp.sent(), ["RDMA WRITE Only 203 ?"]);
}

/// Sends one packet again, not the whole window, to a peer that is late but has lost nothing.
#[test]
fn a_slow_peer_is_not_sent_everything_again() {
    let mut qp = acquainted(Duration::from_micros(100));
    for wr_id in 2..8 {
        qp.post(wr_id, SendOp::Write(REMOTE), 10);
    }
    assert_eq!(qp.sent().len(), 6);
    qp.elapse(Duration::from_millis(2));
    assert_eq!(qp.sent(), ["RDMA WRITE Only 201 ?"]);
    qp.gets_ack(203);
    assert_eq!(qp.sent(), [""; 0], "it has taken more than what was sent again");
    qp.post(8, SendOp::Write(REMOTE), 10);
    assert_eq!(qp.sent(), ["RDMA WRITE Only 207 ?"]);
    qp.gets_ack(207);
    assert_eq!(qp.completed(), (2..9).map(|wr_id| (wr_id, OK)).collect::<Vec<_>>());
}

//= spec/requester.md#req-023
//= type=test
//# Where the network loses nothing, a packet SHOULD NOT be sent again before the ACK timeout.
#[test]
fn a_lossless_network_gets_no_probe() {
    let mut qp = SingleQp::with(|attr| attr.retry_cnt = 2);
    qp.node.nic().promise_no_loss();
    qp.post(1, SendOp::Write(REMOTE), 10);
    qp.sent();
    qp.elapse(Duration::from_micros(100));
    qp.gets_ack(200);
    qp.post(2, SendOp::Write(REMOTE), 10);
    qp.post(3, SendOp::Write(REMOTE), 10);
    qp.sent();
    assert_eq!(qp.timeout(), Some(ACK_TIMEOUT));
    qp.elapse(ACK_TIMEOUT - Duration::from_nanos(1));
    assert_eq!(qp.sent(), [""; 0]);
    // The peer may be gone, whatever the network promises.
    qp.elapse(Duration::from_nanos(1));
    assert_eq!(qp.sent(), ["RDMA WRITE Only 201 ?", "RDMA WRITE Only 202 ?"]);
    // And a loss that is seen counts more than the promise.
    qp.gets_ack(201);
    qp.gets_aeth(202, Syndrome::Nak(NakCode::PsnSequenceError));
    qp.sent();
    assert!(qp.timeout().is_some_and(|at| at < ACK_TIMEOUT), "{:?}", qp.timeout());
}

/// Tries are counted by the ACK timeout alone, which probes do not put off.
#[test]
fn probes_do_not_put_the_end_off() {
    let mut qp = acquainted(Duration::from_micros(100));
    qp.post(2, SendOp::Write(REMOTE), 10);
    qp.sent();
    let mut left = ACK_TIMEOUT;
    while let Some(wait) = qp.timeout() {
        qp.elapse(wait);
        qp.sent();
        left = left.saturating_sub(wait);
    }
    assert_eq!(left, Duration::ZERO);
    assert_eq!(qp.completed(), [(2, WcStatus::RetryExceededError)]);
}

/// Where a round trip takes as long as the ACK timeout is, nothing is asked before.
#[test]
fn slow_networks_are_not_probed() {
    let mut qp = acquainted(ACK_TIMEOUT / 2);
    qp.post(2, SendOp::Write(REMOTE), 10);
    qp.sent();
    assert_eq!(qp.timeout(), Some(ACK_TIMEOUT));
}
