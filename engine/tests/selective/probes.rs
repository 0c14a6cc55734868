//! Probes, and packets that are late rather than lost.

use std::time::Duration;

use urxe_engine::endpoint::Event as NodeEvent;
use urxe_engine::{Event, SendOp};
use urxe_sim::single_qp::{MTU, SQ_PSN};
use urxe_wire::{Aeth, Credits, Ext, Msn, Operation as O, Syndrome};

use crate::{OK, REMOTE, agreed, gets_duplicates, gets_sack};

/// A packet that is but late is not sent again, once packets were seen to be late.
#[test]
fn late_packets_are_waited_for() {
    let mut qp = agreed();
    qp.post(1, SendOp::Write(REMOTE), 4 * 256);
    qp.sent();
    qp.elapse(Duration::from_micros(400));
    gets_sack(&mut qp, SQ_PSN, &[1, 2]);
    assert_eq!(qp.sent(), [""; 0], "two may have overtaken it");
    qp.elapse(Duration::from_micros(50));
    qp.gets_ack(SQ_PSN + 3);
    assert_eq!(qp.completed(), [(1, OK)]);
    qp.post(2, SendOp::Write(REMOTE), 12 * 256);
    qp.sent();
    qp.elapse(Duration::from_micros(400));
    gets_sack(&mut qp, SQ_PSN + 4, &[1, 2, 3, 4, 5, 6, 7, 8]);
    assert_eq!(qp.sent(), [""; 0], "it was late before");
    let wait = qp.timeout().expect("it looks again");
    assert!(wait >= Duration::from_micros(50) && wait < Duration::from_millis(1), "{wait:?}");
    qp.elapse(wait);
    assert_eq!(qp.sent(), ["RDMA WRITE First 204 ?"]);
}

/// A packet seems to be late as long as the program had no processor to take the news. A loss does not cost that time later.
#[test]
fn lateness_counts_no_more_than_a_round_trip() {
    let mut qp = agreed();
    for (wr_id, psn) in [(0, SQ_PSN), (1, SQ_PSN + 4)] {
        qp.post(wr_id, SendOp::Write(REMOTE), 4 * 256);
        qp.sent();
        qp.elapse(Duration::from_micros(40));
        if wr_id == 1 {
            gets_sack(&mut qp, psn, &[1, 2]);
            assert_eq!(qp.sent(), [""; 0], "two may have overtaken it");
            // Nothing runs meanwhile.
            qp.now = qp.now + Duration::from_millis(10);
        }
        qp.gets_ack(psn + 3);
        assert_eq!(qp.completed(), [(wr_id, OK)]);
    }
    for wr_id in 2..4 {
        qp.post(wr_id, SendOp::Write(REMOTE), 12 * 256);
        let first = qp.sent()[0].header.bth.psn.get();
        qp.elapse(Duration::from_micros(40));
        gets_sack(&mut qp, first, &[1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(qp.sent(), [""; 0], "it may be late");
        let wait = qp.timeout().expect("it looks again");
        assert!(wait < Duration::from_millis(3), "{wait:?}");
        qp.elapse(wait);
        assert_eq!(qp.sent().len(), 1);
        qp.gets_ack(first + 11);
    }
}

/// A peer that is off its processor for a while is asked again and again, long before the ACK timeout.
#[test]
fn probes_last_until_the_ack_timeout() {
    let mut qp = agreed();
    // The round trip is known, and that packets are lost.
    for (wr_id, psn) in [(1, SQ_PSN), (2, SQ_PSN + 10)] {
        qp.post(wr_id, SendOp::Write(REMOTE), 10 * 256);
        assert_eq!(qp.sent().len(), 10);
        assert!(qp.timeout().is_some());
        qp.elapse(Duration::from_micros(50));
        if wr_id == 2 {
            gets_sack(&mut qp, psn, &[1, 2, 3, 4, 5]);
            assert_eq!(qp.sent(), ["RDMA WRITE First 210 ?"]);
        }
        qp.gets_ack(psn + 9);
    }
    qp.post(3, SendOp::Write(REMOTE), 10);
    assert_eq!(qp.sent().len(), 1);
    let (end, mut probes) = (qp.now + Duration::from_millis(60), 0);
    while let Some(wait) = qp.timeout().filter(|wait| qp.now + *wait < end) {
        qp.elapse(wait);
        probes += qp.sent().len();
    }
    assert!((13..=18).contains(&probes), "{probes} probes in 60 ms; the ACK timeout is 67 ms");
    qp.gets_ack(SQ_PSN + 20);
    assert_eq!(qp.completed(), [(1, OK), (2, OK), (3, OK)]);
}

/// A peer that was off its processor takes up where it stopped. The probe is behind what it takes, and has overtaken nothing.
#[test]
fn a_late_peer_is_sent_nothing_again_but_the_probe() {
    for together in [true, false] {
        let mut qp = agreed();
        // The round trip is known, and that packets are lost.
        for (wr_id, psn) in [(1, SQ_PSN), (2, SQ_PSN + 10)] {
            qp.post(wr_id, SendOp::Write(REMOTE), 10 * 256);
            assert_eq!(qp.sent().len(), 10);
            qp.elapse(Duration::from_micros(50));
            if wr_id == 2 {
                gets_sack(&mut qp, psn, &[1, 2, 3, 4, 5]);
                assert_eq!(qp.sent(), ["RDMA WRITE First 210 ?"]);
            }
            qp.gets_ack(psn + 9);
        }
        qp.post(3, SendOp::Write(REMOTE), 20 * 256);
        assert_eq!(qp.sent().len(), 20);
        let wait = qp.timeout().expect("it probes");
        qp.elapse(wait);
        assert_eq!(qp.sent(), ["RDMA WRITE First 220 ?"]);
        qp.elapse(Duration::from_micros(50));
        if together {
            qp.gets_ack(SQ_PSN + 25);
            assert_eq!(qp.sent(), [""; 0], "the others are under way");
        } else {
            // It was lost, and what is behind it as well; the last two were overtaken by too few to tell.
            qp.gets_ack(SQ_PSN + 20);
            assert_eq!(qp.sent().len(), 17);
        }
    }
}

/// A probe in vain says that the peer was slow, and nothing of the order of packets: what three overtake is lost as before.
#[test]
fn a_probe_in_vain_is_no_reordering() {
    let mut qp = agreed();
    // The round trip is known, and that packets are lost.
    for (wr_id, psn) in [(1, SQ_PSN), (2, SQ_PSN + 10)] {
        qp.post(wr_id, SendOp::Write(REMOTE), 10 * 256);
        assert_eq!(qp.sent().len(), 10);
        qp.elapse(Duration::from_micros(50));
        if wr_id == 2 {
            gets_sack(&mut qp, psn, &[1, 2, 3, 4, 5]);
            assert_eq!(qp.sent(), ["RDMA WRITE First 210 ?"]);
        }
        qp.gets_ack(psn + 9);
    }
    // Duplicates in all, and those of this turn.
    for (duplicates, probes, psn) in [(2, 2, SQ_PSN + 20), (3, 1, SQ_PSN + 30)] {
        qp.post(3, SendOp::Write(REMOTE), 10 * 256);
        assert_eq!(qp.sent().len(), 10);
        for _ in 0..probes {
            let wait = qp.timeout().expect("it probes");
            qp.elapse(wait);
            assert_eq!(qp.sent().len(), 1);
        }
        qp.log();
        qp.gets_ack(psn + 9);
        gets_duplicates(&mut qp, psn + 10, duplicates);
        let in_vain = NodeEvent::Trace(qp.qpn, Event::SentInVain { packets: probes });
        assert!(qp.log().contains(&in_vain), "{probes} probes in vain");
    }
    qp.post(4, SendOp::Write(REMOTE), 10 * 256);
    assert_eq!(qp.sent().len(), 10);
    gets_sack(&mut qp, SQ_PSN + 40, &[1, 2, 3]);
    assert_eq!(qp.sent(), ["RDMA WRITE First 240 ?"]);
    // Another packet in vain is.
    qp.gets_ack(SQ_PSN + 49);
    gets_duplicates(&mut qp, SQ_PSN + 50, 4);
    qp.post(5, SendOp::Write(REMOTE), 10 * 256);
    assert_eq!(qp.sent().len(), 10);
    gets_sack(&mut qp, SQ_PSN + 50, &[1, 2, 3]);
    assert_eq!(qp.sent(), [""; 0], "it may be late");
}

/// Peers tell of READs by responses alone: a response to what was sent behind a probe ends it, and a later packet in vain is none of it.
#[test]
fn a_response_ends_the_probes_before_it() {
    let mut qp = agreed();
    // The round trip is known, and that packets are lost.
    for (wr_id, psn) in [(1, SQ_PSN), (2, SQ_PSN + 10)] {
        qp.post(wr_id, SendOp::Write(REMOTE), 10 * 256);
        assert_eq!(qp.sent().len(), 10);
        qp.elapse(Duration::from_micros(50));
        if wr_id == 2 {
            gets_sack(&mut qp, psn, &[1, 2, 3, 4, 5]);
            assert_eq!(qp.sent(), ["RDMA WRITE First 210 ?"]);
        }
        qp.gets_ack(psn + 9);
    }
    let aeth = || Ext::Aeth(Aeth { syndrome: Syndrome::Ack(Credits::INVALID), msn: Msn::default() });
    // The first request was lost, and is asked for again; the second is behind it.
    for (wr_id, psn) in [(3, SQ_PSN + 20), (4, SQ_PSN + 21)] {
        qp.post(wr_id, SendOp::Read(REMOTE), 256);
        assert_eq!(qp.sent().len(), 1);
        if wr_id == 3 {
            let wait = qp.timeout().expect("it probes");
            qp.elapse(wait);
            assert_eq!(qp.sent().len(), 1);
        }
        qp.gets(O::ReadResponseOnly, psn, aeth(), &[1; MTU]);
    }
    // A packet that was only late is sent again: packets are known to be late from then on.
    for (wr_id, psn, is_resent) in [(5, SQ_PSN + 22, true), (6, SQ_PSN + 32, false)] {
        qp.post(wr_id, SendOp::Write(REMOTE), 10 * 256);
        assert_eq!(qp.sent().len(), 10);
        gets_sack(&mut qp, psn, &[1, 2, 3]);
        assert_eq!(qp.sent().len(), usize::from(is_resent), "{wr_id}");
        qp.gets_ack(psn + 9);
        gets_duplicates(&mut qp, psn + 10, 1);
    }
    assert_eq!(qp.completed(), [(1, OK), (2, OK), (3, OK), (4, OK), (5, OK), (6, OK)]);
}
