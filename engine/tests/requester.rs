//! The requester and its completer, packet by packet: segments, acknowledgements, credits, window.

use urxe_engine::{
    Data, DropReason, QpState, Recipient, Remote, SendFlags, SendOp, SendWr, Sge, SgeList, WcOpcode, WcStatus,
};
use urxe_sim::single_qp::{MTU, SQ_PSN, SingleQp};
use urxe_wire::{Aeth, Credits, Ext, ImmDt, Msn, NakCode, Operation as O, RKey, Reth, Syndrome};

const REMOTE: Remote = Remote { addr: 0x1234_5678_9ABC, r_key: RKey(0x77) };
const OK: WcStatus = WcStatus::Success;
const FLUSHED: WcStatus = WcStatus::WrFlushError;

fn nak(code: NakCode) -> Syndrome {
    Syndrome::Nak(code)
}

fn send_wr(wr_id: u64, data: Data, flags: SendFlags) -> SendWr {
    SendWr { wr_id, op: SendOp::Send, data, flags, to: Recipient::Peer }
}

// --- segments ----------------------------------------------------------------------------------------------

//= spec/requester.md#req-002
//= type=test
//# A message MUST be cut into packets of one path MTU, all full but the last.
#[test]
fn a_message_is_cut_at_the_mtu() {
    let mut qp = SingleQp::rts();
    let bytes: Vec<u8> = (0..600).map(|at: u32| at.to_le_bytes()[0]).collect();
    qp.node.memory_mut().poke(qp.local.addr, &bytes);
    qp.post(1, SendOp::Send, 600);
    qp.post(2, SendOp::SendWithImmediate(ImmDt([1, 2, 3, 4])), 256);
    let sent = qp.sent();
    assert_eq!(sent, ["SEND First 200", "SEND Middle 201", "SEND Last 202 ?", "SEND Only with Immediate 203 ?"]);
    assert_eq!(sent[..3].iter().flat_map(|sent| sent.payload.clone()).collect::<Vec<_>>(), bytes);
    assert_eq!(sent[3].header.ext, Ext::ImmDt(ImmDt([1, 2, 3, 4])));
}

#[test]
fn a_write_says_once_where_it_goes() {
    let mut qp = SingleQp::rts();
    qp.post(1, SendOp::Write(REMOTE), 257);
    qp.post(2, SendOp::WriteWithImmediate(REMOTE, ImmDt([7; 4])), 300);
    qp.post(3, SendOp::WriteWithImmediate(REMOTE, ImmDt([7; 4])), 0);
    let sent = qp.sent();
    assert_eq!(
        sent,
        [
            "RDMA WRITE First 200",
            "RDMA WRITE Last 201 ?",
            "RDMA WRITE First 202",
            "RDMA WRITE Last with Immediate 203 ?",
            "RDMA WRITE Only with Immediate 204 ?",
        ]
    );
    let reth = |dma_len| Reth { va: REMOTE.addr, r_key: REMOTE.r_key, dma_len };
    assert_eq!((sent[0].header.ext, sent[1].header.ext), (Ext::Reth(reth(257)), Ext::None));
    assert_eq!(sent[4].header.ext, Ext::RethImmDt(reth(0), ImmDt([7; 4])));
}

#[test]
fn a_message_is_gathered_from_its_elements() {
    let mut qp = SingleQp::rts();
    qp.node.memory_mut().poke(qp.local.addr, b"0123456789");
    let sge = |offset, length| Sge { addr: qp.local.addr + offset, length, l_key: qp.local.key.0 };
    let list = SgeList::new(&[sge(8, 2), sge(0, 0), sge(0, 3), sge(5, 1)]);
    qp.post_wr(send_wr(1, Data::Gather(list), SendFlags::default())).unwrap();
    assert_eq!(qp.sent()[0].payload, b"890125");
}

#[test]
fn inline_data_are_cut_like_any() {
    let mut qp = SingleQp::rts();
    let bytes: Vec<u8> = (0..600).map(|at: u32| at.to_le_bytes()[0]).collect();
    qp.post_wr(send_wr(1, Data::Inline(bytes.as_slice().into()), SendFlags::default())).unwrap();
    let sent = qp.sent();
    assert_eq!(sent, ["SEND First 200", "SEND Middle 201", "SEND Last 202 ?"]);
    assert_eq!(sent.iter().flat_map(|sent| sent.payload.clone()).collect::<Vec<_>>(), bytes);
}

//= spec/requester.md#req-003
//= type=test
//# Only the last packet of a message that consumes a receive WQE MAY ask for a solicited event.
#[test]
fn only_the_end_of_what_consumes_a_receive_is_solicited() {
    let mut qp = SingleQp::rts();
    let flags = SendFlags { solicited: true, ..SendFlags::default() };
    let data = Data::Gather(qp.sges(300));
    qp.post_wr(SendWr { wr_id: 1, op: SendOp::Send, data: data.clone(), flags, to: Recipient::Peer }).unwrap();
    qp.post_wr(SendWr { wr_id: 2, op: SendOp::Write(REMOTE), data, flags, to: Recipient::Peer }).unwrap();
    let solicited: Vec<_> = qp.sent().iter().map(|sent| sent.header.bth.solicited_event).collect();
    assert_eq!(solicited, [false, true, false, false]);
}

//= spec/requester.md#req-001
//= type=test
//# Each request packet MUST have the next PSN of 24 bits; a READ takes one for each packet of its response.
#[test]
fn psns_wrap() {
    let mut qp = SingleQp::with(|attr| attr.sq_psn = urxe_wire::Psn::new(0xFF_FFFF));
    qp.post(1, SendOp::Send, 300);
    qp.post(2, SendOp::Send, 1);
    assert_eq!(qp.sent(), ["SEND First 16777215", "SEND Last 0 ?", "SEND Only 1 ?"]);
    qp.gets_ack(0xFF_FFFF);
    assert_eq!(qp.completed(), []);
    qp.gets_ack(1);
    assert_eq!(qp.completed(), [(1, OK), (2, OK)]);
}

// --- acknowledgements --------------------------------------------------------------------------------------

#[test]
fn a_request_completes_when_its_last_packet_is_acknowledged() {
    let mut qp = SingleQp::rts();
    qp.post(1, SendOp::Send, 600);
    qp.sent();
    qp.gets_ack(201);
    assert_eq!(qp.completed(), []);
    qp.gets_ack(202);
    let [cqe] = qp.cqes().try_into().unwrap();
    assert_eq!((cqe.wr_id, cqe.status, cqe.opcode, cqe.qpn), (1, OK, WcOpcode::Send, qp.qpn));
    assert_eq!(qp.timeout(), None, "nothing is outstanding");
}

//= spec/completer.md#cmp-002
//= type=test
//# An acknowledgement MUST complete every request up to its PSN.
//= spec/requester.md#req-007
//= type=test
//# Requests MUST complete in the order in which they were posted.
#[test]
fn one_ack_completes_everything_before() {
    let mut qp = SingleQp::rts();
    for wr_id in 1..=4 {
        let flags = SendFlags { signaled: wr_id != 2, ..SendFlags::default() };
        let data = Data::Gather(qp.sges(10));
        qp.post_wr(send_wr(wr_id, data, flags)).unwrap();
    }
    qp.sent();
    qp.gets_ack(202);
    assert_eq!(qp.completed(), [(1, OK), (3, OK)], "the second is not signaled");
    qp.gets_ack(203);
    assert_eq!(qp.completed(), [(4, OK)]);
}

//= spec/completer.md#cmp-001
//= type=test
//# An acknowledgement of what is not outstanding MUST change nothing.
#[test]
fn ghost_acks_change_nothing() {
    let mut qp = SingleQp::rts();
    qp.post(1, SendOp::Send, 10);
    qp.post(2, SendOp::Send, 10);
    qp.sent();
    for psn in [198, 202, 0, 0x80_00C8] {
        qp.gets_ack(psn);
        qp.gets_aeth(psn + 1, nak(NakCode::RemoteAccessError));
    }
    assert_eq!(qp.drops(), [DropReason::GhostAck; 8]);
    qp.gets_ack(200);
    qp.gets_ack(200);
    qp.gets_ack(199);
    assert_eq!(qp.completed(), [(1, OK)]);
    qp.gets_ack(201);
    // Nothing is outstanding that could be refused.
    qp.gets_aeth(202, nak(NakCode::RemoteAccessError));
    assert_eq!(qp.completed(), [(2, OK)]);
    assert_eq!(qp.state(), QpState::Rts);
}

//= spec/completer.md#cmp-005
//= type=test
//# A NAK of an error MUST fail the request it names with the status of its code.
#[test]
fn refusals_fail_the_request_they_name() {
    for (code, status) in [
        (NakCode::InvalidRequest, WcStatus::RemoteInvalidRequestError),
        (NakCode::RemoteAccessError, WcStatus::RemoteAccessError),
        (NakCode::RemoteOperationalError, WcStatus::RemoteOperationError),
        (NakCode::InvalidRdRequest, WcStatus::RemoteInvalidRequestError),
    ] {
        let mut qp = SingleQp::rts();
        for wr_id in 1..=4 {
            let flags = SendFlags { signaled: wr_id == 1, ..SendFlags::default() };
            let data = Data::Gather(qp.sges(300));
            qp.post_wr(send_wr(wr_id, data, flags)).unwrap();
        }
        qp.recv(9, 4);
        qp.sent();
        // In the middle of the second.
        qp.gets_aeth(203, nak(code));
        assert_eq!(qp.completed(), [(1, OK), (2, status), (3, FLUSHED), (4, FLUSHED), (9, FLUSHED)], "{code:?}");
        assert_eq!((qp.state(), qp.sent().len(), qp.timeout()), (QpState::Err, 0, None));
    }
}

//= spec/requester.md#req-017
//= type=test
//# A request whose local buffers no L_Key gives MUST fail in its turn with IBV_WC_LOC_PROT_ERR.
#[test]
fn bad_local_memory_fails_the_request_in_its_turn() {
    let elements: [fn(&SingleQp) -> Sge; 3] = [
        |_| Sge { addr: 0, length: 10, l_key: 0 },
        |qp| Sge { addr: qp.local.addr + qp.local.length - 9, length: 10, l_key: qp.local.key.0 },
        |qp| Sge { addr: u64::MAX - 3, length: 10, l_key: qp.local.key.0 },
    ];
    for element in elements {
        let mut qp = SingleQp::rts();
        qp.post(1, SendOp::Send, 10);
        let data = Data::Gather(SgeList::new(&[element(&qp)]));
        qp.post_wr(send_wr(2, data, SendFlags::default())).unwrap();
        qp.post(3, SendOp::Send, 10);
        assert_eq!(qp.sent(), ["SEND Only 200 ?"]);
        assert_eq!(qp.completed(), []);
        qp.gets_ack(200);
        assert_eq!(qp.completed(), [(1, OK), (2, WcStatus::LocalProtectionError), (3, FLUSHED)]);
        assert_eq!(qp.node.memory().violations(), []);
    }
}

#[test]
fn local_memory_that_is_gone_fails_the_request() {
    let mut qp = SingleQp::rts();
    qp.post(1, SendOp::Send, 300);
    qp.node.memory_mut().unmap(qp.local.addr);
    assert_eq!(qp.sent(), [""; 0]);
    assert_eq!(qp.completed(), [(1, WcStatus::LocalProtectionError)]);
    assert_eq!(qp.state(), QpState::Err);
}

// --- credits -----------------------------------------------------------------------------------------------

//= spec/requester.md#req-015
//= type=test
//# Messages that consume receive WQEs MUST NOT exceed the credits, but for one that finds out.
#[test]
fn credits_limit_what_consumes_receives() {
    let mut qp = SingleQp::rts();
    qp.post(1, SendOp::Send, 10);
    qp.sent();
    qp.gets_aeth(200, Syndrome::Ack(Credits::from_wqes(2)));
    for wr_id in 2..=5 {
        qp.post(wr_id, SendOp::Send, 10);
    }
    assert_eq!(qp.sent(), ["SEND Only 201 ?", "SEND Only 202 ?"]);
    qp.gets_aeth(201, Syndrome::Ack(Credits::from_wqes(2)));
    assert_eq!(qp.sent(), ["SEND Only 203 ?"], "one of the two is on its way");
    qp.gets_aeth(203, Syndrome::Ack(Credits::INVALID));
    assert_eq!(qp.sent(), ["SEND Only 204 ?"], "a responder that does not count has no limit");
}

#[test]
fn a_message_acknowledged_in_part_has_its_receive_already() {
    let mut qp = SingleQp::rts();
    qp.post(1, SendOp::Send, 600);
    qp.sent();
    qp.gets_aeth(200, Syndrome::Ack(Credits::from_wqes(1)));
    qp.post(2, SendOp::Send, 10);
    qp.post(3, SendOp::Send, 10);
    assert_eq!(qp.sent(), ["SEND Only 203 ?"]);
}

#[test]
fn a_write_with_immediate_acknowledged_in_part_has_none_yet() {
    let mut qp = SingleQp::rts();
    qp.post(1, SendOp::WriteWithImmediate(REMOTE, ImmDt([0; 4])), 600);
    qp.sent();
    qp.gets_aeth(200, Syndrome::Ack(Credits::from_wqes(1)));
    qp.post(2, SendOp::Send, 10);
    assert_eq!(qp.sent(), [""; 0]);
}

//= spec/requester.md#req-015
//= type=test
//# Messages that consume receive WQEs MUST NOT exceed the credits, but for one that finds out.
#[test]
fn without_credits_one_message_finds_out() {
    let mut qp = SingleQp::rts();
    qp.post(1, SendOp::Send, 10);
    qp.sent();
    qp.gets_aeth(200, Syndrome::Ack(Credits::from_wqes(0)));
    qp.post(2, SendOp::WriteWithImmediate(REMOTE, ImmDt([0; 4])), 600);
    qp.post(3, SendOp::Send, 10);
    assert_eq!(qp.sent().len(), 3, "a whole message");
    qp.gets_aeth(203, Syndrome::Ack(Credits::from_wqes(0)));
    assert_eq!(qp.sent(), ["SEND Only 204 ?"]);
}

#[test]
fn credits_do_not_limit_writes() {
    let mut qp = SingleQp::rts();
    qp.post(1, SendOp::Send, 10);
    qp.sent();
    qp.gets_aeth(200, Syndrome::Ack(Credits::from_wqes(0)));
    qp.post(2, SendOp::Write(REMOTE), 10);
    qp.post(3, SendOp::Write(REMOTE), 10);
    assert_eq!(qp.sent().len(), 2);
}

// --- window ------------------------------------------------------------------------------------------------

//= spec/requester.md#req-004
//= type=test
//# The last packet of a message, and the last that the window lets out, MUST ask for an acknowledgement.
#[test]
fn a_window_is_in_flight_and_its_end_asks_for_an_ack() {
    let mut qp = SingleQp::rts();
    qp.post(1, SendOp::Send, 64 * 256);
    let sent = qp.sent();
    assert_eq!(sent.len(), 32);
    assert!(sent[31].header.bth.ack_req);
    assert!(sent.iter().filter(|sent| sent.header.bth.ack_req).count() >= 4, "often enough to keep it moving");
    qp.gets_ack(207);
    assert_eq!(qp.sent().len(), 16, "eight were acknowledged, and it grows by as many");
}

#[test]
fn no_room_in_the_network_is_not_the_end() {
    let mut qp = SingleQp::rts();
    qp.post(1, SendOp::Send, 600);
    qp.node.nic().set_room(1);
    assert_eq!(qp.sent(), ["SEND First 200"]);
    assert_eq!(qp.sent(), [""; 0]);
    qp.node.nic().set_room(9);
    assert_eq!(qp.sent(), ["SEND Middle 201", "SEND Last 202 ?"]);
    qp.gets_ack(202);
    assert_eq!(qp.completed(), [(1, OK)]);
}

#[test]
fn responses_without_requests_change_nothing() {
    let mut qp = SingleQp::rts();
    qp.post(1, SendOp::Send, 600);
    qp.sent();
    let aeth = Ext::Aeth(Aeth { syndrome: Syndrome::Ack(Credits::INVALID), msn: Msn::default() });
    qp.gets(O::ReadResponseOnly, 200, aeth, &[1; 10]);
    qp.gets(O::ReadResponseMiddle, 201, Ext::None, &[1; MTU]);
    qp.gets(O::ReadResponseOnly, 203, aeth, &[1; 10]);
    assert_eq!(qp.drops(), [DropReason::UnexpectedResponse, DropReason::UnexpectedResponse, DropReason::GhostAck]);
    qp.gets_ack(202);
    assert_eq!(qp.completed(), [(1, OK)]);
}

/// A full window is not filled up a packet at a time, unless nothing else would tell that what is outstanding was lost.
#[test]
fn silly_windows_are_avoided() {
    for (timeout, sent) in [(14, 0), (0, 2)] {
        let mut qp = SingleQp::with(|attr| attr.timeout = timeout);
        for id in 0..64 {
            qp.post(id, SendOp::Write(REMOTE), 8);
        }
        assert_eq!(qp.sent().len(), 32);
        qp.gets_ack(SQ_PSN);
        assert_eq!(qp.sent().len(), sent, "ACK timeout {timeout}");
        // An eighth of the window.
        qp.gets_ack(SQ_PSN + 3);
        assert!(qp.sent().len() >= 4);
    }
}
