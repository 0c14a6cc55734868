//! Requester: packets that are sent again alone, and news of the peer that change nothing.

use std::time::Duration;

use urxe_engine::attr::QpAttr;
use urxe_engine::endpoint::Event as NodeEvent;
use urxe_engine::{Access, Bind, DropReason, Event, Key, QpState, Remote, SendOp, WcStatus, WindowType};
use urxe_sim::memory::DEFAULT_PD;
use urxe_sim::single_qp::{MTU, RQ_PSN, SQ_PSN, SingleQp};
use urxe_wire::{Aeth, AtomicAckEth, Credits, Ext, Msn, Opcode, Operation as O, Psn, RnrTimer, SelectiveAck, Syndrome};

use crate::{OK, REMOTE, able, able_on, agreed, gets_offer, gets_own, gets_sack};

/// News that later ones have overtaken take nothing back.
#[test]
fn late_news_change_nothing() {
    let late: [fn(&mut SingleQp); 2] = [
        |qp| gets_sack(qp, SQ_PSN + 5, &[1]),
        |qp| {
            qp.gets_aeth(SQ_PSN + 5, Syndrome::RnrNak(RnrTimer::new(1)));
            assert_eq!(qp.drops(), [DropReason::GhostAck]);
        },
    ];
    for late in late {
        let mut qp = agreed();
        qp.post(1, SendOp::Read(REMOTE), 4 * 256);
        qp.post(2, SendOp::Write(REMOTE), 4 * 256);
        assert_eq!(qp.sent().len(), 5);
        // All requests were carried out; the responses are still under way.
        qp.gets_ack(SQ_PSN + 7);
        assert_eq!(qp.sent(), ["RDMA READ Request 200 ?"], "an acknowledgement has overtaken them");
        late(&mut qp);
        assert_eq!(qp.sent(), [""; 0]);
        let aeth = || Ext::Aeth(Aeth { syndrome: Syndrome::Ack(Credits::INVALID), msn: Msn::default() });
        qp.gets(O::ReadResponseFirst, SQ_PSN, aeth(), &[1; MTU]);
        qp.gets(O::ReadResponseMiddle, SQ_PSN + 1, Ext::None, &[2; MTU]);
        qp.gets(O::ReadResponseMiddle, SQ_PSN + 2, Ext::None, &[3; MTU]);
        qp.gets(O::ReadResponseLast, SQ_PSN + 3, aeth(), &[4; MTU]);
        assert_eq!(qp.completed(), [(1, OK), (2, OK)]);
        assert_eq!(qp.timeout(), None, "nothing is outstanding");
    }
}

//= spec/selective.md#sel-012
//= type=test
//# The response at the first PSN of a READ request MUST be an Only or a First, and the one at its last PSN an Only or a Last; others
//# MUST fail the request with IBV_WC_BAD_RESP_ERR.
#[test]
fn responses_at_the_ends_of_a_read_begin_and_end_it() {
    const ALL: [O; 4] = [O::ReadResponseFirst, O::ReadResponseMiddle, O::ReadResponseLast, O::ReadResponseOnly];
    let gets = |qp: &mut SingleQp, operation, psn| {
        let aeth = Ext::Aeth(Aeth { syndrome: Syndrome::Ack(Credits::INVALID), msn: Msn::default() });
        let ext = if operation == O::ReadResponseMiddle { Ext::None } else { aeth };
        qp.gets(operation, psn, ext, &[1; MTU]);
    };
    let right: [(u32, &[O]); 3] = [
        (SQ_PSN, &[O::ReadResponseFirst, O::ReadResponseOnly]),
        (SQ_PSN + 1, &ALL),
        (SQ_PSN + 2, &[O::ReadResponseLast, O::ReadResponseOnly]),
    ];
    for (psn, right) in right {
        for operation in ALL {
            let mut qp = agreed();
            qp.post(1, SendOp::Read(REMOTE), 3 * 256);
            qp.sent();
            gets(&mut qp, operation, psn);
            let failed = (!right.contains(&operation)).then_some((1, WcStatus::BadResponseError));
            assert_eq!(qp.completed(), Vec::from_iter(failed), "{operation:?} at {psn}");
        }
    }
    // A request that is not the oldest fails in its turn.
    let mut qp = agreed();
    qp.post(1, SendOp::Read(REMOTE), 256);
    qp.post(2, SendOp::Read(REMOTE), 2 * 256);
    qp.sent();
    gets(&mut qp, O::ReadResponseMiddle, SQ_PSN + 1);
    assert_eq!(qp.completed(), []);
    gets(&mut qp, O::ReadResponseOnly, SQ_PSN);
    assert_eq!(qp.completed(), [(1, OK), (2, WcStatus::BadResponseError)]);
}

//= spec/selective.md#sel-007
//= type=test
//# Only what is missing MUST be sent again.
#[test]
fn only_what_is_missing_is_sent_again() {
    let mut qp = agreed();
    qp.post(1, SendOp::Write(REMOTE), 20 * 256);
    assert_eq!(qp.sent().len(), 20);
    gets_sack(&mut qp, SQ_PSN + 4, &[1, 2, 3, 5, 6, 7, 8, 9]);
    assert_eq!(qp.sent(), ["RDMA WRITE Middle 204 ?", "RDMA WRITE Middle 208 ?"]);
    // The news again, and older ones: all is said.
    gets_sack(&mut qp, SQ_PSN + 4, &[1, 2, 3, 5, 6, 7, 8, 9]);
    gets_sack(&mut qp, SQ_PSN + 4, &[1, 2]);
    assert_eq!(qp.sent(), [""; 0]);
    gets_sack(&mut qp, SQ_PSN + 8, &[1, 2, 3, 4, 5]);
    assert_eq!(qp.sent(), [""; 0], "it is under way");
    gets_sack(&mut qp, SQ_PSN + 14, &[]);
    qp.gets_ack(SQ_PSN + 19);
    let log = qp.log();
    let count = |wanted: fn(&Event) -> bool| {
        log.iter().filter(|event| matches!(event, NodeEvent::Trace(_, event) if wanted(event))).count()
    };
    assert_eq!(count(|event| matches!(event, Event::SentAgain { .. })), 2);
    assert_eq!(count(|event| matches!(event, Event::Lost { packets: 2 })), 1);
    let completed =
        |event: &NodeEvent| matches!(event, NodeEvent::Completed(_, cqe) if (cqe.wr_id, cqe.status) == (1, OK));
    assert!(log.iter().any(completed));
    assert_eq!(qp.timeout(), None);
}

/// A local operation has no packets: what is missing behind one is a WRITE's.
#[test]
fn write_missing_behind_a_local_operation_is_sent_again() {
    let mut qp = agreed();
    let memory = qp.node.memory_mut();
    let region = memory.register_new(64, Access::LOCAL_WRITE | Access::MW_BIND);
    let window = memory.alloc_window(DEFAULT_PD, WindowType::Two);
    let (new_key, access) = (Key(window.0 ^ 1), Access::REMOTE_READ);
    qp.post(1, SendOp::Write(REMOTE), 10);
    qp.post(
        2,
        SendOp::BindWindow(Bind { window, new_key, region: region.key, access, addr: region.addr, length: 8 }),
        0,
    );
    qp.post(3, SendOp::Write(REMOTE), 6 * 256);
    assert_eq!(qp.sent().len(), 7);
    gets_sack(&mut qp, SQ_PSN, &[2, 3, 4, 5, 6]);
    assert_eq!(qp.sent(), ["RDMA WRITE Only 200 ?", "RDMA WRITE First 201 ?"]);
    qp.gets_ack(SQ_PSN + 6);
    assert_eq!(qp.completed(), [(1, OK), (2, OK), (3, OK)]);
}

//= spec/selective.md#sel-008
//= type=test
//# A selective acknowledgement of what was never sent, or of a part of a READ, MUST change nothing and be counted.
#[test]
fn hostile_ranges_change_nothing() {
    let mut qp = agreed();
    qp.post(1, SendOp::Write(REMOTE), 4 * 256);
    qp.post(2, SendOp::Read(REMOTE), 4 * 256);
    assert_eq!(qp.sent().len(), 5);
    let invalid = DropReason::InvalidSelectiveAck;
    for (missing, arrived, reason) in [
        // Beyond what was sent, by one and by far.
        (SQ_PSN, vec![8], invalid),
        (SQ_PSN, vec![1, 2, 2048], invalid),
        (SQ_PSN + 9, vec![], invalid),
        (SQ_PSN + 0x7F_FFFF, vec![1], invalid),
        // Within a READ.
        (SQ_PSN, vec![5], invalid),
        (SQ_PSN + 3, vec![1, 2], invalid),
        (SQ_PSN + 5, vec![], invalid),
        // Before everything.
        (SQ_PSN - 1, vec![2], DropReason::GhostAck),
        (SQ_PSN.wrapping_sub(0x80_0000) & 0xFF_FFFF, vec![1], DropReason::GhostAck),
    ] {
        gets_sack(&mut qp, missing, &arrived);
        assert_eq!(qp.drops(), [reason], "{missing} {arrived:?}");
        assert_eq!(qp.sent(), [""; 0], "{missing} {arrived:?}");
    }
    let ack = Ext::SelectiveAck(SelectiveAck { duplicates: u32::MAX });
    gets_own(&mut qp, Opcode::SELECTIVE_ACK, SQ_PSN, ack, &[0xFF; 260]);
    gets_own(&mut qp, Opcode::SELECTIVE_ACK, SQ_PSN, ack, &[0xFF; 7]);
    assert_eq!(qp.drops(), [invalid, invalid]);
    assert_eq!((qp.sent(), qp.state()), (vec![], QpState::Rts));
    // It goes on as if nothing had been.
    gets_sack(&mut qp, SQ_PSN + 1, &[1, 2, 3]);
    assert_eq!(qp.sent(), ["RDMA WRITE Middle 201 ?"]);
}

/// If the answer to the offer was lost, a valid selective acknowledgement shows that the peer has selective repeat. An invalid one shows
/// nothing.
//= spec/selective.md#sel-008
//= type=test
//# A selective acknowledgement of what was never sent, or of a part of a READ, MUST change nothing and be counted.
#[test]
fn hostile_ranges_agree_to_nothing() {
    let mut qp = able(RQ_PSN, SQ_PSN);
    qp.post(1, SendOp::Write(REMOTE), 20 * 256);
    assert!(qp.sent().iter().any(|sent| sent.header.bth.opcode == Opcode::SELECTIVE_OFFER));
    let begins = |qp: &mut SingleQp| {
        let is_begin = |event: &NodeEvent| matches!(event, NodeEvent::Trace(_, Event::SelectiveRepeat { .. }));
        qp.log().iter().any(is_begin)
    };
    begins(&mut qp);
    for (missing, arrived) in [(SQ_PSN, vec![20]), (SQ_PSN + 40, vec![]), (SQ_PSN - 1, vec![2])] {
        gets_sack(&mut qp, missing, &arrived);
        assert!(!begins(&mut qp), "{missing} {arrived:?}");
    }
    // More duplicates than were ever sent are as many as were sent.
    let ack = Ext::SelectiveAck(SelectiveAck { duplicates: u32::MAX });
    gets_own(&mut qp, Opcode::SELECTIVE_ACK, SQ_PSN, ack, &[0b1110_0000]);
    assert!(begins(&mut qp));
    assert_eq!(qp.sent(), ["RDMA WRITE First 200 ?"]);
    assert_eq!(qp.state(), QpState::Rts);
}

//= spec/selective.md#sel-009
//= type=test
//# READ responses and results of atomics MUST be taken in any order, and requests complete in theirs.
#[test]
fn responses_come_in_any_order() {
    let mut qp = agreed();
    let aeth = || Aeth { syndrome: Syndrome::Ack(Credits::INVALID), msn: Msn::default() };
    qp.post(1, SendOp::Read(REMOTE), 4 * 256);
    qp.post(2, SendOp::FetchAdd { remote: Remote { addr: 0x1000, ..REMOTE }, add: 1 }, 8);
    qp.post(3, SendOp::Write(REMOTE), 10);
    assert_eq!(qp.sent().len(), 3);
    qp.gets_ack(SQ_PSN + 5);
    let result = Ext::AethAtomicAckEth(aeth(), AtomicAckEth { original: 41 });
    qp.gets(O::AtomicAcknowledge, SQ_PSN + 4, result, &[]);
    qp.gets(O::ReadResponseLast, SQ_PSN + 3, Ext::Aeth(aeth()), &[4; MTU]);
    qp.gets(O::ReadResponseFirst, SQ_PSN, Ext::Aeth(aeth()), &[1; MTU]);
    assert_eq!(qp.completed(), []);
    // What is missing is asked for, alone.
    let sent = qp.sent();
    assert_eq!(sent.len(), 1);
    let Ext::Reth(reth) = sent[0].header.ext else { panic!("{:?}", sent[0]) };
    assert_eq!((sent[0].header.bth.psn.get(), reth.va, reth.dma_len), (SQ_PSN + 1, REMOTE.addr + 256, 2 * 256));
    qp.gets(O::ReadResponseLast, SQ_PSN + 2, Ext::Aeth(aeth()), &[3; MTU]);
    qp.gets(O::ReadResponseFirst, SQ_PSN + 1, Ext::Aeth(aeth()), &[2; MTU]);
    assert_eq!(qp.completed(), [(1, OK), (2, OK), (3, OK)]);
    let bytes = qp.node.memory().peek(qp.local.addr + 256, 3 * 256).to_vec();
    assert_eq!(bytes, [[2; MTU], [3; MTU], [4; MTU]].concat());
    assert_eq!(qp.timeout(), None);
}

/// A receiver that is not ready has kept what is behind: that is not sent again.
#[test]
fn after_an_rnr_nak_the_refused_request_alone_is_sent_again() {
    let mut qp = agreed();
    for wr_id in 1..5 {
        qp.post(wr_id, SendOp::Send, 10);
    }
    assert_eq!(qp.sent().len(), 4);
    let timer = RnrTimer::new(1);
    qp.gets_aeth(SQ_PSN + 1, Syndrome::RnrNak(timer));
    assert_eq!(qp.completed(), [(1, OK)]);
    assert_eq!(qp.sent(), [""; 0]);
    qp.elapse(timer.duration());
    assert_eq!(qp.sent(), ["SEND Only 201 ?"]);
    qp.gets_ack(SQ_PSN + 3);
    assert_eq!(qp.completed(), [(2, OK), (3, OK), (4, OK)]);
}

/// A receiver that is not ready has got what it refuses: the path has lost nothing.
#[test]
fn rnr_naks_are_no_loss_of_the_path() {
    let mut qp = able_on(2, RQ_PSN, SQ_PSN);
    gets_offer(&mut qp, true);
    let timer = RnrTimer::new(1);
    for psn in (SQ_PSN..SQ_PSN + 80).step_by(4) {
        for wr_id in 0..4 {
            qp.post(wr_id, SendOp::Send, 10);
        }
        assert_eq!(qp.sent().len(), 4);
        // Packets of the second path alone.
        if psn / 16 % 2 == 1 {
            qp.gets_aeth(psn, Syndrome::RnrNak(timer));
            gets_sack(&mut qp, psn, &[1, 2, 3]);
            qp.elapse(timer.duration());
            assert_eq!(qp.sent().len(), 1);
        }
        qp.gets_ack(psn + 3);
    }
    let left = |event: &NodeEvent| matches!(event, NodeEvent::Trace(_, Event::LeftPath { .. }));
    assert!(!qp.log().iter().any(left));
}

/// News that come while a receiver is not ready start no ACK timeout that would end what is sent when it is.
#[test]
fn the_time_for_an_answer_begins_when_a_receiver_is_ready() {
    let mut qp = SingleQp::reset(|setup, _| setup.selective_paths = 1);
    let (rq_psn, sq_psn) = (Psn::new(RQ_PSN), Psn::new(SQ_PSN));
    // 2.1 ms for an answer, and 2.56 ms until the receiver is ready.
    let attr = QpAttr { rq_psn, sq_psn, timeout: 9, retry_cnt: 0, ..SingleQp::attr() };
    qp.go_to(QpState::Rts, &attr);
    gets_offer(&mut qp, true);
    for wr_id in 0..4 {
        qp.post(wr_id, SendOp::Send, 10);
    }
    assert_eq!(qp.sent().len(), 4);
    let timer = RnrTimer::new(16);
    qp.gets_aeth(SQ_PSN, Syndrome::RnrNak(timer));
    gets_sack(&mut qp, SQ_PSN, &[1, 2, 3]);
    qp.elapse(timer.duration());
    assert_eq!(qp.sent(), ["SEND Only 200 ?"]);
    qp.elapse(Duration::from_millis(1));
    assert_eq!((qp.completed(), qp.state()), (vec![], QpState::Rts));
    qp.gets_ack(SQ_PSN + 3);
    assert_eq!(qp.completed(), [0, 1, 2, 3].map(|wr_id| (wr_id, OK)));
}

/// The last PSN of a message of 2^31 bytes is further from what is before the message than a signed distance of PSNs tells.
#[test]
fn a_gap_before_the_longest_message_is_filled() {
    let mut qp = agreed();
    qp.post(1, SendOp::Write(REMOTE), 10);
    qp.post(2, SendOp::Write(REMOTE), 1 << 31);
    assert!(qp.sent().len() > 3);
    gets_sack(&mut qp, SQ_PSN, &[1, 2, 3]);
    assert_eq!(qp.sent().first().map(|sent| sent.header.bth.psn), Some(Psn::new(SQ_PSN)));
}

/// A refusal that overtakes responses fails its own request, when those before it are answered.
#[test]
fn a_refusal_waits_for_responses_before_it() {
    let mut qp = agreed();
    let aeth = Aeth { syndrome: Syndrome::Ack(Credits::INVALID), msn: Msn::default() };
    qp.post(1, SendOp::Read(REMOTE), 10);
    qp.post(2, SendOp::Write(REMOTE), 10);
    qp.sent();
    qp.gets_aeth(SQ_PSN + 1, Syndrome::Nak(urxe_wire::NakCode::RemoteAccessError));
    assert_eq!((qp.completed(), qp.state()), (vec![], QpState::Rts));
    qp.gets(O::ReadResponseOnly, SQ_PSN, Ext::Aeth(aeth), &[1; 10]);
    assert_eq!(qp.completed(), [(1, OK), (2, WcStatus::RemoteAccessError)]);
}

/// A receiver that was not ready once too often fails its own request, when those before it are answered.
#[test]
fn the_last_rnr_nak_waits_for_responses_before_it() {
    let mut qp = agreed();
    let aeth = Aeth { syndrome: Syndrome::Ack(Credits::INVALID), msn: Msn::default() };
    qp.post(1, SendOp::Read(REMOTE), 10);
    qp.post(2, SendOp::Send, 10);
    qp.sent();
    let timer = RnrTimer::new(1);
    for _ in 0..SingleQp::attr().rnr_retry {
        qp.gets_aeth(SQ_PSN + 1, Syndrome::RnrNak(timer));
        qp.elapse(timer.duration());
        assert!(qp.sent().iter().any(|sent| *sent == "SEND Only 201 ?"));
    }
    qp.gets_aeth(SQ_PSN + 1, Syndrome::RnrNak(timer));
    assert_eq!((qp.completed(), qp.state()), (vec![], QpState::Rts));
    qp.gets(O::ReadResponseOnly, SQ_PSN, Ext::Aeth(aeth), &[1; 10]);
    assert_eq!(qp.completed(), [(1, OK), (2, WcStatus::RnrRetryExceededError)]);
}
