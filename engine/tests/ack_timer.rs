//! ACK timeouts of a card, in virtual time: when a peer that does not answer is given up, and what is sent until then.

use std::time::Duration;

use urxe_engine::{AckTimer, QpState, Remote, SendOp, WcStatus};
use urxe_sim::single_qp::SingleQp;
use urxe_wire::{NakCode, RKey, Syndrome};

const REMOTE: Remote = Remote { addr: 0x1234_5678_9ABC, r_key: RKey(0x77) };

fn card(timeout: u8, retry_cnt: u8) -> SingleQp {
    let mut qp = SingleQp::reset(|setup, _| setup.ack_timer = AckTimer::ConnectX);
    qp.go_to(QpState::Rts, &urxe_engine::attr::QpAttr { timeout, retry_cnt, ..SingleQp::attr() });
    qp
}

/// Milliseconds of packets, and of the error: as the harness of rdma-fault-characterization posts a WRITE to a silent peer.
fn unanswered_request(timeout: u8, retry_cnt: u8) -> (Vec<u128>, u128) {
    let mut qp = card(timeout, retry_cnt);
    qp.post(1, SendOp::Write(REMOTE), 64);
    let (mut now, mut packets) = (Duration::ZERO, Vec::new());
    loop {
        packets.extend(qp.sent().iter().map(|_| now.as_millis()));
        if let [(1, status)] = qp.completed()[..] {
            assert_eq!((status, qp.state()), (WcStatus::RetryExceededError, QpState::Err));
            return (packets, now.as_millis());
        }
        let wait = qp.timeout().expect("it waits for something");
        now += wait;
        qp.elapse(wait);
    }
}

/// The timeline of a trial with T=20 in `ack_timeout/NOTES.md`: adaptive retransmissions, and timeouts 8.59 s apart.
#[test]
fn the_packets_of_a_trial() {
    let (packets, error) = unanswered_request(20, 7);
    let measured = [
        0.0, 20.7, 37.7, 71.4, 138.4, 239.1, 440.4, 977.3, 1782.4, 3930.3, 8225.1, 16815.3, 25405.6, 33995.8, 42585.9,
        51176.1,
    ];
    assert_eq!(packets.len(), measured.len(), "{packets:?}");
    for (at, measured) in packets.iter().zip(measured) {
        assert!((*at as f64 - measured).abs() < 3.0, "{packets:?}");
    }
    assert!((error as f64 - 59766.3).abs() < 3.0, "{error}");
}

/// Ranges over all trials of `tables_AB.md`, in milliseconds.
#[test]
fn errors_within_the_ranges_measured() {
    for (timeout, retry_cnt, least, most) in [
        (14, 7, 3547.1, 3751.7),
        (16, 7, 3661.6, 3738.7),
        (17, 7, 7151.3, 7250.5),
        (18, 7, 14667.6, 15037.6),
        (19, 7, 28451.7, 29701.0),
        (20, 7, 59053.5, 59766.3),
        (14, 0, 977.5, 2051.2),
        (14, 1, 440.5, 536.7),
        (14, 3, 1347.5, 1514.4),
        (14, 6, 3115.2, 3125.2),
        (8, 7, 3540.0, 3662.0),
    ] {
        let (_, error) = unanswered_request(timeout, retry_cnt);
        let error = error as f64;
        assert!(
            error > least - 1.0 && error < most + 1.0,
            "T={timeout} R={retry_cnt}: {error} ms, {least} to {most} measured"
        );
    }
}

/// An answer ends the silence: the next one takes as long.
#[test]
fn an_answer_begins_anew() {
    let mut qp = card(14, 2);
    for psn in 200..203 {
        qp.post(psn.into(), SendOp::Write(REMOTE), 64);
        qp.sent();
        // All but the last timeout.
        let mut waited = Duration::ZERO;
        while waited < Duration::from_millis(900) {
            let wait = qp.timeout().unwrap();
            if waited + wait > Duration::from_millis(970) {
                break;
            }
            waited += wait;
            qp.elapse(wait);
            qp.sent();
        }
        assert!(waited > Duration::from_millis(400), "{waited:?}");
        qp.gets_ack(psn);
        assert_eq!(qp.completed(), [(psn.into(), WcStatus::Success)]);
    }
}

/// NAKs count as they do without a card's timers.
#[test]
fn sequence_naks_use_tries() {
    let mut qp = card(14, 1);
    qp.post(1, SendOp::Write(REMOTE), 64);
    qp.sent();
    qp.gets_aeth(200, Syndrome::Nak(NakCode::PsnSequenceError));
    assert_eq!(qp.sent().len(), 1);
    assert_eq!(qp.completed(), []);
    qp.gets_aeth(200, Syndrome::Nak(NakCode::PsnSequenceError));
    assert_eq!(qp.completed(), [(1, WcStatus::RetryExceededError)]);
}
