//! UC: nothing is acknowledged, and what does not arrive whole is dropped (IBA 9.8.2).

use std::time::Duration;

use urxe_engine::attr::{AttrMask, QpAttr};
use urxe_engine::{
    AsyncEvent, Data, DropReason, PostError, QpState, QpType, Recipient, Remote, SendFlags, SendOp, SendWr, Sge,
    SgeList, WcOpcode, WcStatus,
};
use urxe_sim::single_qp::{MTU, RQ_PSN, SQ_PSN, SingleQp};
use urxe_wire::{Ext, ImmDt, Operation, RKey, Reth};

/// Three full packets.
const LONG: u32 = 768;

/// UC queue pair in RTS that has sent its first message.
fn uc() -> SingleQp {
    let mut qp = SingleQp::of(QpType::Uc);
    qp.post(0, SendOp::Send, 0);
    assert_eq!(qp.sent(), ["SEND Only 200"]);
    assert_eq!(qp.completed(), [(0, WcStatus::Success)]);
    qp.elapse(Duration::from_millis(4));
    qp
}

/// A peer that opens a socket for a new flow may see what follows before what came first.
#[test]
fn the_first_long_message_pauses_behind_its_first_packet() {
    let mut qp = SingleQp::of(QpType::Uc);
    qp.post(1, SendOp::Send, LONG);
    assert_eq!(qp.sent(), ["SEND First 200"]);
    assert!(qp.completed().is_empty());
    let pause = qp.timeout().unwrap();
    qp.elapse(pause);
    assert_eq!(qp.sent(), ["SEND Middle 201", "SEND Last 202"]);
    qp.post(2, SendOp::Send, LONG);
    assert_eq!(qp.sent().len(), 3, "once is enough");
}

fn full() -> [u8; MTU] {
    [7; MTU]
}

//= spec/unreliable.md#unr-006
//= type=test
//# A request on UC or UD MUST complete when its last packet is sent, and no acknowledgement be asked for.
#[test]
fn a_request_completes_when_its_last_packet_is_sent() {
    let mut qp = uc();
    qp.post(1, SendOp::Send, LONG);
    let sent = qp.sent();
    assert_eq!(sent, ["SEND First 201", "SEND Middle 202", "SEND Last 203"], "without AckReq");
    assert_eq!(qp.completed(), [(1, WcStatus::Success)]);
    assert_eq!(qp.timeout(), None, "there is nothing to wait for");
    assert_eq!(qp.node.qp(qp.qpn).attr().sq_psn.get(), SQ_PSN + 4);
}

#[test]
fn a_write_with_immediate_arrives() {
    let mut qp = uc();
    qp.recv(1, 0);
    let reth = Reth { va: qp.remote.addr, r_key: RKey(qp.remote.key.0), dma_len: 300 };
    qp.gets(Operation::WriteFirst, RQ_PSN, Ext::Reth(reth), &full());
    qp.gets(Operation::WriteLastWithImmediate, RQ_PSN + 1, Ext::ImmDt(ImmDt([1, 2, 3, 4])), &[9; 44]);
    let cqes = qp.cqes();
    assert_eq!(cqes.len(), 1);
    assert_eq!((cqes[0].opcode, cqes[0].byte_len, cqes[0].grh), (WcOpcode::RecvRdmaWithImm, 300, None));
    assert_eq!(cqes[0].imm, Some(ImmDt([1, 2, 3, 4])));
    assert!(qp.sent().is_empty(), "nobody is told");
}

//= spec/unreliable.md#unr-001
//= type=test
//# On UC a gap MUST drop the message under way, and its receive WQE serve the next one.
#[test]
fn a_gap_drops_the_message_and_the_next_one_uses_its_receive() {
    let mut qp = uc();
    qp.recv(1, LONG);
    qp.gets(Operation::SendFirst, RQ_PSN, Ext::None, &full());
    // The Middle is lost.
    qp.gets(Operation::SendLast, RQ_PSN + 2, Ext::None, &full());
    assert_eq!(qp.drops(), [DropReason::OutOfSequence]);
    qp.gets(Operation::SendOnly, RQ_PSN + 3, Ext::None, b"next");
    assert_eq!(qp.completed(), [(1, WcStatus::Success)]);
    assert!(qp.sent().is_empty());
    assert_eq!(qp.state(), QpState::Rts);
}

#[test]
fn after_a_gap_the_rest_is_dropped_even_if_in_sequence() {
    let mut qp = uc();
    qp.recv(1, LONG);
    for psn in [RQ_PSN + 1, RQ_PSN + 2] {
        qp.gets(Operation::SendMiddle, psn, Ext::None, &full());
    }
    qp.gets(Operation::SendLast, RQ_PSN + 3, Ext::None, &full());
    assert_eq!(qp.drops(), [DropReason::OutOfSequence; 3]);
    assert!(qp.completed().is_empty());
}

//= spec/unreliable.md#unr-002
//= type=test
//# On UC a new message MUST be taken at any PSN.
#[test]
fn a_new_message_begins_at_any_psn() {
    let mut qp = uc();
    qp.recv(1, 64);
    qp.recv(2, 64);
    qp.gets(Operation::SendOnly, RQ_PSN + 1000, Ext::None, b"far ahead");
    qp.gets(Operation::SendOnly, RQ_PSN, Ext::None, b"behind");
    assert_eq!(qp.completed(), [(1, WcStatus::Success), (2, WcStatus::Success)]);
}

#[test]
fn an_unfinished_message_gives_way_to_the_next() {
    let mut qp = uc();
    qp.recv(1, LONG);
    qp.gets(Operation::SendFirst, RQ_PSN, Ext::None, &full());
    qp.gets(Operation::SendOnly, RQ_PSN + 1, Ext::None, b"the other");
    let cqes = qp.cqes();
    assert_eq!((cqes[0].wr_id, cqes[0].byte_len), (1, 9));
}

#[test]
fn no_receive_is_a_loss() {
    let mut qp = uc();
    qp.gets(Operation::SendFirst, RQ_PSN, Ext::None, &full());
    qp.gets(Operation::SendLast, RQ_PSN + 1, Ext::None, &full());
    assert_eq!(qp.drops(), [DropReason::NoReceive, DropReason::OutOfSequence]);
    assert!(qp.sent().is_empty());
    assert_eq!(qp.state(), QpState::Rts);
}

//= spec/unreliable.md#unr-007
//= type=test
//# On UC and UD nothing that a peer sends MUST stop the queue pair.
#[test]
fn peer_errors_do_not_stop_uc() {
    let mut qp = uc();
    qp.recv(1, 8);
    let nowhere = Reth { va: 0, r_key: RKey(0xBAD), dma_len: 4 };
    qp.gets(Operation::WriteOnly, RQ_PSN, Ext::Reth(nowhere), b"abcd");
    let too_long = Reth { va: qp.remote.addr, r_key: RKey(qp.remote.key.0), dma_len: 8 };
    qp.gets(Operation::WriteOnly, RQ_PSN + 1, Ext::Reth(too_long), b"abcd");
    qp.gets(Operation::SendOnly, RQ_PSN + 2, Ext::None, b"longer than eight");
    qp.gets(Operation::SendFirst, RQ_PSN + 3, Ext::None, b"not a full packet");
    assert_eq!(qp.drops(), [DropReason::Refused; 4]);
    assert!(qp.sent().is_empty());
    // The receive WQE is still there.
    qp.gets(Operation::SendOnly, RQ_PSN + 4, Ext::None, b"fits");
    assert_eq!(qp.completed(), [(1, WcStatus::Success)]);
}

#[test]
fn a_receive_with_a_bad_key_ends_the_queue_pair() {
    let mut qp = uc();
    let buffers = SgeList::new(&[Sge { addr: qp.local.addr, length: 64, l_key: 0xBAD }]);
    qp.recv_wr(urxe_engine::RecvWr { wr_id: 1, buffers }).unwrap();
    qp.recv(2, 64);
    qp.gets(Operation::SendOnly, RQ_PSN, Ext::None, b"x");
    assert_eq!(qp.completed(), [(1, WcStatus::LocalProtectionError), (2, WcStatus::WrFlushError)]);
    assert_eq!(qp.state(), QpState::Err);
}

fn bad_send(qp: &SingleQp, wr_id: u64) -> SendWr {
    let data = Data::Gather(SgeList::new(&[Sge { addr: qp.local.addr, length: 64, l_key: 0xBAD }]));
    SendWr { wr_id, op: SendOp::Send, data, flags: SendFlags::default(), to: Recipient::Peer }
}

#[test]
fn a_send_that_fails_stops_sending_but_not_receiving() {
    let mut qp = uc();
    qp.recv(9, 64);
    qp.post(1, SendOp::Send, 8);
    let bad = bad_send(&qp, 2);
    qp.post_wr(bad).unwrap();
    qp.post(3, SendOp::Send, 8);
    assert_eq!(qp.sent(), ["SEND Only 201"]);
    let expected = [(1, WcStatus::Success), (2, WcStatus::LocalProtectionError), (3, WcStatus::WrFlushError)];
    assert_eq!(qp.completed(), expected);
    assert_eq!(qp.state(), QpState::Sqe);

    qp.gets(Operation::SendOnly, RQ_PSN, Ext::None, b"still");
    assert_eq!(qp.completed(), [(9, WcStatus::Success)]);
    qp.post(4, SendOp::Send, 8);
    assert_eq!(qp.completed(), [(4, WcStatus::WrFlushError)], "until it is in RTS again");

    qp.modify(QpState::Rts, AttrMask::NONE, &QpAttr::default()).unwrap();
    qp.post(5, SendOp::Send, 8);
    assert_eq!(qp.sent(), ["SEND Only 202"]);
}

#[test]
fn sqd_finishes_the_message_begun_and_starts_no_other() {
    let mut qp = uc();
    qp.node.nic().set_room(1);
    qp.post(1, SendOp::Send, LONG);
    qp.post(2, SendOp::Send, 8);
    assert_eq!(qp.sent(), ["SEND First 201"]);
    let notify = QpAttr { sqd_notify: true, ..SingleQp::attr() };
    qp.modify(QpState::Sqd, AttrMask::EN_SQD_ASYNC_NOTIFY, &notify).unwrap();
    assert!(qp.async_events().is_empty());
    qp.node.nic().set_room(usize::MAX);
    assert_eq!(qp.sent(), ["SEND Middle 202", "SEND Last 203"]);
    assert_eq!(qp.async_events(), [AsyncEvent::SqDrained]);
    qp.modify(QpState::Rts, AttrMask::NONE, &QpAttr::default()).unwrap();
    assert_eq!(qp.sent(), ["SEND Only 204"]);
}

#[test]
fn a_long_message_leaves_in_bursts() {
    let mut qp = uc();
    let packets = 16;
    for wr_id in 0..48 {
        qp.post(wr_id, SendOp::Write(Remote { addr: 0, r_key: RKey(1) }), packets * 256);
    }
    let mut sent = qp.sent().len();
    assert!(sent < 48 * packets as usize, "all at once");
    let mut waits = 0;
    while let Some(wait) = qp.timeout() {
        waits += 1;
        assert!(qp.sent().is_empty(), "it waits");
        qp.elapse(wait);
        let burst = qp.sent().len();
        assert!(burst > 1, "a timer for each packet");
        sent += burst;
    }
    assert!(waits > 0);
    assert_eq!(sent, 48 * packets as usize);
    assert_eq!(qp.completed().len(), 48);
}

#[test]
fn a_peer_that_asks_for_acks_gets_none() {
    let mut qp = uc();
    qp.recv(1, 64);
    qp.gets_changed(Operation::SendOnly, RQ_PSN, Ext::None, b"x", |bth| bth.ack_req = true);
    assert_eq!(qp.completed(), [(1, WcStatus::Success)]);
    assert!(qp.sent().is_empty());
}

#[test]
fn recipients_are_for_datagrams() {
    let mut qp = uc();
    let wr = SendWr {
        wr_id: 1,
        op: SendOp::Send,
        data: Data::Gather(qp.sges(8)),
        flags: SendFlags::default(),
        to: Recipient::Peer,
    };
    let refused = qp.post_to(wr, urxe_sim::single_qp::PEER_QPN, urxe_sim::single_qp::Q_KEY);
    assert_eq!(refused, Err(PostError::Operation));
    qp.elapse(Duration::from_millis(1));
    assert!(qp.sent().is_empty());
}
