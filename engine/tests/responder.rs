//! The responder, packet by packet: messages, order, readiness, credits.

use urxe_engine::attr::AttrMask;
use urxe_engine::{Access, AsyncEvent, DropReason, Event, QpState, RecvWr, SendOp, SgeList, WcOpcode, WcStatus};
use urxe_sim::NodeEvent;
use urxe_sim::memory::DEFAULT_PD;

use urxe_sim::single_qp::{MTU, PEER_QPN, RQ_PSN, Sent, SingleQp};
use urxe_wire::{Aeth, Ext, ImmDt, Operation as O, Psn, RKey, Reth, Syndrome};

/// A RETH for the first `dma_len` bytes of the buffer that peers may use.
fn reth(qp: &SingleQp, dma_len: u32) -> Ext {
    Ext::Reth(Reth { va: qp.remote.addr, r_key: RKey(qp.remote.key.0), dma_len })
}

fn aeth(sent: &Sent) -> Aeth {
    match sent.header.ext {
        Ext::Aeth(aeth) | Ext::AethAtomicAckEth(aeth, _) => aeth,
        ext => panic!("no AETH: {ext:?}"),
    }
}

fn credits(sent: &Sent) -> Option<u32> {
    match aeth(sent).syndrome {
        Syndrome::Ack(credits) => credits.wqes(),
        syndrome => panic!("no ACK: {syndrome:?}"),
    }
}

// --- messages ----------------------------------------------------------------------------------------------

//= spec/responder.md#rsp-018
//= type=test
//# A request that asks for an acknowledgement MUST get one; one MAY answer all before it.
#[test]
fn one_ack_for_a_burst_of_requests() {
    let mut qp = SingleQp::rts();
    for (wr_id, psn) in (0..3).zip(RQ_PSN..) {
        qp.recv(wr_id, 64);
        qp.gets(O::SendOnly, psn, Ext::None, b"message");
    }
    let sent = qp.sent();
    assert_eq!(sent, ["ACK 102"]);
    assert_eq!(aeth(&sent[0]).msn.get(), 3);
    assert_eq!(qp.completed(), [0, 1, 2].map(|wr_id| (wr_id, WcStatus::Success)));
}

//= spec/responder.md#rsp-018
//= type=test
//# A request that asks for an acknowledgement MUST get one; one MAY answer all before it.
#[test]
fn no_ack_unless_asked_for() {
    let mut qp = SingleQp::rts();
    qp.recv(1, 64);
    qp.gets_changed(O::SendOnly, 100, Ext::None, b"x", |bth| bth.ack_req = false);
    assert_eq!(qp.sent(), [""; 0]);
    assert_eq!(qp.completed(), [(1, WcStatus::Success)]);
}

#[test]
fn a_receive_completion_tells_everything() {
    let mut qp = SingleQp::rts();
    qp.recv(7, 1024);
    qp.gets(O::SendFirst, 100, Ext::None, &[1; MTU]);
    qp.gets(O::SendMiddle, 101, Ext::None, &[2; MTU]);
    let imm = ImmDt([1, 2, 3, 4]);
    qp.gets_changed(O::SendLastWithImmediate, 102, Ext::ImmDt(imm), &[3; 5], |bth| bth.solicited_event = true);
    let [cqe] = qp.cqes().try_into().unwrap();
    assert_eq!((cqe.wr_id, cqe.status, cqe.opcode), (7, WcStatus::Success, WcOpcode::Recv));
    assert_eq!((cqe.byte_len, cqe.imm, cqe.solicited), (2 * 256 + 5, Some(imm), true));
    assert_eq!((cqe.qpn, cqe.src_qp), (qp.qpn, PEER_QPN));
    let bytes = qp.node.memory().peek(qp.local.addr, 520);
    assert_eq!((bytes[255], bytes[256], bytes[512], bytes[516], bytes[517]), (1, 2, 3, 3, 0));
}

//= spec/responder.md#rsp-020
//= type=test
//# A WRITE with immediate MUST take its receive WQE at its last packet.
#[test]
fn write_with_immediate_takes_a_receive_but_not_its_buffers() {
    let mut qp = SingleQp::rts();
    qp.recv(3, 4);
    let reth = Reth { va: qp.remote.addr + 8, r_key: RKey(qp.remote.key.0), dma_len: 300 };
    qp.gets(O::WriteFirst, 100, Ext::Reth(reth), &[5; MTU]);
    qp.gets(O::WriteLastWithImmediate, 101, Ext::ImmDt(ImmDt([9; 4])), &[6; 44]);
    let [cqe] = qp.cqes().try_into().unwrap();
    assert_eq!((cqe.opcode, cqe.byte_len, cqe.imm), (WcOpcode::RecvRdmaWithImm, 300, Some(ImmDt([9; 4]))));
    assert_eq!(qp.node.memory().peek(qp.local.addr, 4), [0; 4]);
    assert_eq!(qp.node.memory().peek(qp.remote.addr + 7, 302), [&[0][..], &[5; 256], &[6; 44], &[0]].concat());
}

#[test]
fn a_response_acknowledges_what_came_before() {
    let mut qp = SingleQp::rts();
    qp.gets(O::WriteOnly, 100, reth(&qp, 4), b"data");
    qp.gets(O::ReadRequest, 101, reth(&qp, 4), &[]);
    let sent = qp.sent();
    assert_eq!(sent, ["RDMA READ response Only 101"]);
    assert_eq!((sent[0].payload.as_slice(), aeth(&sent[0]).msn.get()), (&b"data"[..], 2));
}

//= spec/responder.md#rsp-010
//= type=test
//# A WRITE or READ of no bytes MUST succeed whatever its R_Key and address are.
#[test]
fn zero_bytes_need_no_key_and_no_buffer() {
    let mut qp = SingleQp::rts();
    let nowhere = Ext::Reth(Reth { va: u64::MAX, r_key: RKey(0), dma_len: 0 });
    qp.recv_wr(RecvWr { wr_id: 1, buffers: SgeList::new(&[]) }).unwrap();
    qp.gets(O::WriteOnly, 100, nowhere, &[]);
    qp.gets(O::ReadRequest, 101, nowhere, &[]);
    qp.gets(O::SendOnly, 102, Ext::None, &[]);
    let sent = qp.sent();
    assert_eq!(sent, ["RDMA READ response Only 101", "ACK 102"]);
    assert_eq!(sent[0].payload, []);
    assert_eq!(qp.completed(), [(1, WcStatus::Success)]);
}

#[test]
fn a_long_read_does_not_keep_requests_from_leaving() {
    let mut qp = SingleQp::rts();
    let long = qp.node.memory_mut().register_new(1 << 20, Access::REMOTE_READ);
    let reth = Reth { va: long.addr, r_key: RKey(long.key.0), dma_len: 1 << 20 };
    qp.gets(O::ReadRequest, 100, Ext::Reth(reth), &[]);
    qp.post(1, SendOp::Send, 4);
    let sent = qp.sent();
    assert_eq!(sent.len(), 4096 + 1);
    let at = sent.iter().position(|sent| *sent == "SEND Only 200 ?").unwrap();
    assert!(at < 200, "the request waited for {at} responses");
}

// --- order -------------------------------------------------------------------------------------------------

//= spec/responder.md#rsp-001
//= type=test
//# A request behind a gap MUST be refused with a PSN sequence error NAK once, and once more when the
//# requester has gone back and the gap is still there, and else be dropped until the gap is filled.
#[test]
fn a_retransmission_that_is_lost_gets_a_second_nak() {
    let mut qp = SingleQp::rts();
    qp.recv(1, 64);
    let behind = |qp: &mut SingleQp| (101..105).for_each(|psn| qp.gets(O::SendOnly, psn, Ext::None, b"behind"));
    behind(&mut qp);
    assert_eq!(qp.sent(), ["NAK PsnSequenceError 100"]);
    behind(&mut qp);
    assert_eq!(qp.sent(), ["NAK PsnSequenceError 100"], "the requester has gone back, and 100 is still missing");
    behind(&mut qp);
    assert_eq!(qp.sent(), [""; 0], "not for ever: a NAK counts as a try");
    qp.gets(O::SendOnly, 100, Ext::None, b"first");
    assert_eq!(qp.sent(), ["ACK 100"]);
}

#[test]
fn an_rnr_nak_leaves_no_gap() {
    let mut qp = SingleQp::rts();
    for _ in 0..3 {
        (100..105).for_each(|psn| qp.gets(O::SendOnly, psn, Ext::None, b"message"));
        assert_eq!(qp.sent(), ["RNR NAK 100"]);
    }
}

//= spec/responder.md#rsp-001
//= type=test
//# A request behind a gap MUST be refused with a PSN sequence error NAK once, and once more when the
//# requester has gone back and the gap is still there, and else be dropped until the gap is filled.
#[test]
fn a_gap_is_reported_once() {
    let mut qp = SingleQp::rts();
    qp.recv(1, 64);
    qp.gets(O::SendOnly, 101, Ext::None, b"second");
    qp.gets(O::SendOnly, 102, Ext::None, b"third");
    assert_eq!(qp.sent(), ["NAK PsnSequenceError 100"]);
    qp.gets(O::SendOnly, 103, Ext::None, b"fourth");
    assert_eq!(qp.sent(), [""; 0], "once, until the missing packet comes");
    assert_eq!(qp.drops(), [DropReason::OutOfSequence, DropReason::OutOfSequence]);

    qp.gets(O::SendOnly, 100, Ext::None, b"first");
    qp.gets(O::SendOnly, 102, Ext::None, b"third");
    let sent = qp.sent();
    assert_eq!(sent, ["NAK PsnSequenceError 101"], "a new gap; the NAK acknowledges what is before it");
    assert_eq!(aeth(&sent[0]).msn.get(), 1);
    assert_eq!(qp.completed(), [(1, WcStatus::Success)]);
}

#[test]
fn a_refusal_that_has_not_left_is_overtaken_by_the_missing_packet() {
    let mut qp = SingleQp::rts();
    qp.recv(1, 64);
    qp.gets(O::SendOnly, 101, Ext::None, b"second");
    qp.gets(O::SendOnly, 100, Ext::None, b"first");
    assert_eq!(qp.sent(), ["ACK 100"]);
}

#[test]
fn a_refusal_that_stands_is_not_overwritten_by_a_duplicate() {
    let mut qp = SingleQp::rts();
    qp.gets(O::SendOnly, 101, Ext::None, b"second");
    qp.gets(O::SendOnly, 99, Ext::None, b"old");
    assert_eq!(qp.sent(), ["NAK PsnSequenceError 100"]);
}

#[test]
fn psns_wrap() {
    let mut qp = SingleQp::with(|attr| attr.rq_psn = Psn::new(0xFF_FFFF));
    qp.recv(1, 600);
    qp.gets(O::SendFirst, 0xFF_FFFF, Ext::None, &[0; MTU]);
    qp.gets(O::SendLast, 0, Ext::None, &[0; 1]);
    assert_eq!(qp.sent(), ["ACK 0"]);
    qp.gets(O::SendOnly, 0x80_0001, Ext::None, &[]);
    assert_eq!(qp.sent(), ["ACK 0"], "half of the PSNs are behind");
    qp.gets(O::SendOnly, 0x80_0000, Ext::None, &[]);
    assert_eq!(qp.sent(), ["NAK PsnSequenceError 1"], "and half are ahead");
}

#[test]
fn refusals_are_traced() {
    let mut qp = SingleQp::rts();
    qp.gets(O::SendOnly, 105, Ext::None, &[]);
    let is_nak =
        |event: &NodeEvent| matches!(event, NodeEvent::Trace(_, Event::SentNak { psn, .. }) if psn.get() == 100);
    assert_eq!(qp.log().iter().filter(|event| is_nak(event)).count(), 1);
}

// --- readiness and credits ---------------------------------------------------------------------------------

//= spec/responder.md#rsp-007
//= type=test
//# A message for which there is no receive WQE MUST be put off with an RNR NAK of min_rnr_timer.
#[test]
fn without_a_receive_the_request_is_put_off() {
    let mut qp = SingleQp::rts();
    qp.gets(O::SendOnly, 100, Ext::None, b"early");
    qp.gets(O::SendOnly, 101, Ext::None, b"behind");
    let sent = qp.sent();
    assert_eq!(sent, ["RNR NAK 100"]);
    assert_eq!(aeth(&sent[0]).syndrome, Syndrome::RnrNak(SingleQp::attr().min_rnr_timer));
    assert_eq!(qp.drops(), [DropReason::OutOfSequence]);

    qp.recv(1, 64);
    let sent = qp.sent();
    assert_eq!(sent, ["ACK 99"], "an unsolicited ACK says that there is a receive now");
    assert_eq!(credits(&sent[0]), Some(1));
    qp.gets(O::SendOnly, 100, Ext::None, b"early");
    assert_eq!(qp.sent(), ["ACK 100"]);
    assert_eq!(qp.completed(), [(1, WcStatus::Success)]);
}

#[test]
fn an_rnr_nak_may_be_repeated_when_it_was_lost() {
    let mut qp = SingleQp::rts();
    for _ in 0..2 {
        qp.gets(O::SendOnly, 100, Ext::None, b"early");
        assert_eq!(qp.sent(), ["RNR NAK 100"]);
    }
}

//= spec/responder.md#rsp-020
//= type=test
//# A WRITE with immediate MUST take its receive WQE at its last packet.
#[test]
fn write_with_immediate_waits_at_its_last_packet() {
    let mut qp = SingleQp::rts();
    qp.gets(O::WriteFirst, 100, reth(&qp, 260), &[1; MTU]);
    qp.gets(O::WriteLastWithImmediate, 101, Ext::ImmDt(ImmDt([0; 4])), &[2; 4]);
    assert_eq!(qp.sent(), ["RNR NAK 101"]);
    qp.recv(1, 0);
    qp.gets(O::WriteLastWithImmediate, 101, Ext::ImmDt(ImmDt([0; 4])), &[2; 4]);
    assert_eq!(qp.sent(), ["ACK 101"]);
    assert_eq!(qp.completed(), [(1, WcStatus::Success)]);
}

#[test]
fn writes_and_reads_need_no_receive() {
    let mut qp = SingleQp::rts();
    qp.gets(O::WriteOnly, 100, reth(&qp, 4), b"data");
    qp.gets(O::ReadRequest, 101, reth(&qp, 4), &[]);
    let sent = qp.sent();
    assert_eq!(sent, ["RDMA READ response Only 101"]);
    assert_eq!(credits(&sent[0]), Some(0));
    qp.recv(1, 4);
    assert_eq!(qp.sent(), ["ACK 101"], "the response said that there was no receive");
    qp.recv(2, 4);
    assert_eq!(qp.sent(), [""; 0], "more of them are told with the next ACK");
}

//= spec/responder.md#rsp-019
//= type=test
//# An acknowledgement MUST tell how many receive WQEs are posted, or that they are not counted.
#[test]
fn credits_count_receives() {
    let mut qp = SingleQp::rts();
    for wr_id in 0..6 {
        qp.recv(wr_id, 4);
    }
    qp.gets(O::SendOnly, 100, Ext::None, b"x");
    assert_eq!(credits(&qp.sent()[0]), Some(4), "five are left, and the code has no five");
}

#[test]
fn receives_from_an_srq() {
    let mut srq = None;
    let mut qp = SingleQp::reset(|setup, node| {
        srq = Some(node.verbs().create_srq(DEFAULT_PD, 64));
        setup.srq = srq;
    });
    qp.go_to(QpState::Rts, &SingleQp::attr());
    qp.gets(O::SendOnly, 100, Ext::None, b"x");
    assert_eq!(qp.sent(), ["RNR NAK 100"]);
    let buffers = qp.sges(4);
    qp.node.verbs().srq(srq.unwrap()).post(RecvWr { wr_id: 5, buffers }).unwrap();
    qp.gets(O::SendOnly, 100, Ext::None, b"x");
    assert_eq!(credits(&qp.sent()[0]), None, "receives of an SRQ are promised to nobody");
    assert_eq!(qp.completed(), [(5, WcStatus::Success)]);
    qp.modify(QpState::Err, AttrMask::NONE, &SingleQp::attr()).unwrap();
    assert_eq!(qp.async_events(), [AsyncEvent::LastWqeReached]);
}
