//! States of a queue pair: what each takes, the order of flushing, what RESET forgets.

use std::net::IpAddr;

use urxe_engine::ModifyError;
use urxe_engine::attr::{AttrMask, QpAttr};
use urxe_engine::{
    AsyncEvent, Data, DropReason, Event, PostError, QpState, QpType, Recipient, RecvWr, Remote, SendFlags, SendOp,
    SendWr, Sge, SgeList, WcStatus,
};
use urxe_sim::NodeEvent;
use urxe_sim::memory::DEFAULT_PD;
use urxe_sim::single_qp::{PEER_QPN, RQ_PSN, SQ_PSN, SingleQp};
use urxe_wire::{
    Bth, Ext, Feth, FlushLevel, Header, ImmDt, Opcode, Operation as O, PKey, Psn, Qpn, RKey, Reth, Syndrome, Transport,
};

const REMOTE: Remote = Remote { addr: 0, r_key: RKey(1) };
const OK: WcStatus = WcStatus::Success;
const FLUSHED: WcStatus = WcStatus::WrFlushError;

fn in_state(state: QpState) -> SingleQp {
    let mut qp = SingleQp::reset(|_, _| {});
    match state {
        QpState::Reset => {}
        QpState::Init | QpState::Rtr | QpState::Rts => qp.go_to(state, &SingleQp::attr()),
        QpState::Sqd | QpState::Err => {
            qp.go_to(QpState::Rts, &SingleQp::attr());
            qp.modify(state, AttrMask::NONE, &SingleQp::attr()).unwrap();
            qp.log();
        }
        QpState::Sqe => unreachable!("an RC QP has no SQE"),
    }
    assert_eq!(qp.state(), state);
    qp
}

fn send(qp: &SingleQp) -> SendWr {
    SendWr {
        wr_id: 1,
        op: SendOp::Send,
        data: Data::Gather(qp.sges(4)),
        flags: SendFlags::default(),
        to: Recipient::Peer,
    }
}

fn recv(qp: &SingleQp) -> RecvWr {
    RecvWr { wr_id: 2, buffers: qp.sges(4) }
}

// --- posting -----------------------------------------------------------------------------------------------

//= spec/states.md#qps-007
//= type=test
//# Send requests MUST be refused with EINVAL in RESET, INIT and RTR; receive requests in RESET.
#[test]
fn states_that_take_work_requests() {
    for (state, sends, recvs) in [
        (QpState::Reset, false, false),
        (QpState::Init, false, true),
        (QpState::Rtr, false, true),
        (QpState::Rts, true, true),
        (QpState::Sqd, true, true),
        (QpState::Err, true, true),
    ] {
        let mut qp = in_state(state);
        let refused = Err(PostError::State(state));
        let (send, recv) = (send(&qp), recv(&qp));
        assert_eq!(qp.post_wr(send), if sends { Ok(()) } else { refused }, "{state:?}");
        assert_eq!(qp.recv_wr(recv), if recvs { Ok(()) } else { refused }, "{state:?}");
        let flushed = if state == QpState::Err { vec![(1, FLUSHED), (2, FLUSHED)] } else { vec![] };
        assert_eq!(qp.completed(), flushed, "{state:?}");
    }
}

//= spec/requester.md#req-020
//= type=test
//# A work request with more elements or inline data than the queue pair was made for MUST be refused when posted.
#[test]
fn refused_work_requests() {
    let mut qp = SingleQp::rts();
    let good = send(&qp);
    let with = |op, data| SendWr { op, data, ..good.clone() };
    let gather = |count: usize, length| Data::Gather(SgeList::new(&vec![Sge { addr: 0, length, l_key: 0 }; count]));
    let inline = |len| Data::Inline(vec![0; len].into());
    let fetch_add = SendOp::FetchAdd { remote: REMOTE, add: 1 };
    let how = Feth { global_visibility: true, persistence: false, level: FlushLevel::Range };
    let flush = SendOp::Flush { remote: REMOTE, length: 1024, how };
    for (op, data, expected) in [
        (SendOp::Send, gather(4, 1), Ok(())),
        (SendOp::Send, gather(5, 1), Err(PostError::TooManySge)),
        (SendOp::Send, inline(1024), Ok(())),
        (SendOp::Send, inline(1025), Err(PostError::InlineTooLong)),
        (SendOp::Send, gather(1, 1 << 31), Ok(())),
        (SendOp::Send, gather(1, (1 << 31) + 1), Err(PostError::Length)),
        (SendOp::Write(REMOTE), gather(4, 1 << 30), Err(PostError::Length)),
        (SendOp::Read(REMOTE), gather(4, u32::MAX), Err(PostError::Length)),
        (SendOp::Read(REMOTE), inline(8), Err(PostError::Operation)),
        (fetch_add, inline(8), Err(PostError::Operation)),
        (fetch_add, gather(1, 8), Ok(())),
        (fetch_add, gather(2, 4), Ok(())),
        (fetch_add, gather(1, 4), Err(PostError::Length)),
        (fetch_add, gather(0, 0), Err(PostError::Length)),
        (flush, gather(0, 0), Ok(())),
        (flush, gather(1, 8), Err(PostError::Length)),
        (flush, inline(8), Err(PostError::Length)),
    ] {
        assert_eq!(qp.post_wr(with(op, data.clone())), expected, "{op:?} of {data:?}");
    }
    let five = SgeList::new(&[Sge::default(); 5]);
    assert_eq!(qp.recv_wr(RecvWr { wr_id: 1, buffers: five }), Err(PostError::TooManySge));
}

#[test]
fn queues_are_as_long_as_asked_for() {
    let mut qp = SingleQp::reset(|setup, _| (setup.cap.max_send_wr, setup.cap.max_recv_wr) = (3, 2));
    qp.go_to(QpState::Rts, &SingleQp::attr());
    for _ in 0..3 {
        qp.post(1, SendOp::Send, 4);
    }
    let (send, recv) = (send(&qp), recv(&qp));
    assert_eq!(qp.post_wr(send.clone()), Err(PostError::QueueFull));
    qp.sent();
    assert_eq!(qp.post_wr(send.clone()), Err(PostError::QueueFull), "sent is not done");
    qp.gets_ack(SQ_PSN);
    assert_eq!(qp.post_wr(send), Ok(()));

    assert_eq!(qp.recv_wr(recv.clone()), Ok(()));
    assert_eq!(qp.recv_wr(recv.clone()), Ok(()));
    assert_eq!(qp.recv_wr(recv), Err(PostError::QueueFull));
}

#[test]
fn services_take_only_their_operations() {
    let imm = ImmDt([0; 4]);
    let all = [
        SendOp::Send,
        SendOp::SendWithImmediate(imm),
        SendOp::Write(REMOTE),
        SendOp::WriteWithImmediate(REMOTE, imm),
        SendOp::Read(REMOTE),
        SendOp::CompareSwap { remote: REMOTE, compare: 0, swap: 0 },
        SendOp::FetchAdd { remote: REMOTE, add: 0 },
    ];
    for (qp_type, taken) in
        [(QpType::Rc, 7), (QpType::XrcSend, 7), (QpType::Uc, 4), (QpType::Ud, 2), (QpType::XrcRecv, 0)]
    {
        let mut qp = SingleQp::reset(|setup, _| setup.qp_type = qp_type);
        let own = if qp_type == QpType::Ud { AttrMask::QKEY } else { AttrMask::ACCESS_FLAGS };
        let init = AttrMask::PKEY_INDEX.with(AttrMask::PORT).with(own);
        qp.modify(QpState::Init, init, &SingleQp::attr()).unwrap();
        qp.modify(QpState::Err, AttrMask::NONE, &SingleQp::attr()).unwrap();
        for (at, op) in all.into_iter().enumerate() {
            let expected = if at < taken { Ok(()) } else { Err(PostError::Operation) };
            let (to, astray) = match qp_type {
                QpType::XrcSend => (Recipient::XrcSrq(Qpn::new(7)), Recipient::Peer),
                _ => (Recipient::Peer, Recipient::XrcSrq(Qpn::new(7))),
            };
            let wr = SendWr { wr_id: 1, op, data: Data::Gather(qp.sges(8)), flags: SendFlags::default(), to };
            assert_eq!(qp.post_wr(SendWr { to: astray, ..wr.clone() }), Err(PostError::Operation), "{qp_type:?}");
            assert_eq!(qp.post_wr(wr), expected, "{qp_type:?} {op:?}");
        }
    }
}

#[test]
fn no_receive_of_its_own_with_an_srq() {
    let mut qp = SingleQp::reset(|setup, node| setup.srq = Some(node.verbs().create_srq(DEFAULT_PD, 4)));
    qp.go_to(QpState::Init, &SingleQp::attr());
    let wr = recv(&qp);
    assert_eq!(qp.recv_wr(wr), Err(PostError::NoRecvQueue));
}

// --- packets -----------------------------------------------------------------------------------------------

//= spec/states.md#qps-008
//= type=test
//# Packets MUST be dropped in the states that do not receive.
#[test]
fn states_that_receive_nothing() {
    for state in [QpState::Reset, QpState::Init, QpState::Err] {
        let mut qp = in_state(state);
        qp.gets(O::SendOnly, RQ_PSN, Ext::None, &[]);
        qp.gets_ack(SQ_PSN);
        assert_eq!(qp.drops(), [DropReason::State(state); 2]);
        assert_eq!(qp.sent(), [""; 0]);
    }
}

#[test]
fn rtr_answers_but_does_not_ask() {
    let mut qp = in_state(QpState::Rtr);
    qp.recv(1, 64);
    qp.gets(O::SendOnly, RQ_PSN, Ext::None, b"first");
    qp.gets(O::WriteOnly, RQ_PSN + 1, Ext::Reth(Reth { va: 0, r_key: RKey(0), dma_len: 0 }), &[]);
    assert_eq!(qp.sent(), ["ACK 101"]);
    assert_eq!(qp.async_events(), [AsyncEvent::CommunicationEstablished], "once");
    qp.gets_ack(SQ_PSN);
    assert_eq!(qp.drops(), [DropReason::State(QpState::Rtr)]);
}

//= spec/packets.md#pkt-013
//= type=test
//# A packet of another transport, partition or peer than the queue pair's MUST be dropped without an answer.
#[test]
fn packets_that_are_not_for_this_connection() {
    let mut qp = SingleQp::rts();
    qp.recv(1, 64);
    let bth = |transport, operation| Bth::new(Opcode::new(transport, operation).unwrap(), qp.qpn, Psn::new(RQ_PSN));
    let rc = Header::new(bth(Transport::Rc, O::SendOnly), Ext::None);
    let uc = Header::new(bth(Transport::Uc, O::SendOnly), Ext::None);
    let peer: IpAddr = "10.0.0.2".parse().unwrap();

    qp.gets_from("10.0.0.3".parse().unwrap(), &rc, b"x");
    qp.gets_from(peer, &uc, b"x");
    qp.gets_changed(O::SendOnly, RQ_PSN, Ext::None, b"x", |bth| bth.p_key = PKey(0x8001));
    assert_eq!(qp.drops(), [DropReason::Stranger, DropReason::Transport, DropReason::PKey]);
    assert_eq!(qp.sent(), [""; 0]);
    qp.gets_changed(O::SendOnly, RQ_PSN, Ext::None, b"x", |bth| bth.p_key = PKey(0x7FFF));
    assert_eq!(qp.completed(), [(1, OK)], "a limited member of the default partition may send");
}

// --- ERR and RESET -----------------------------------------------------------------------------------------

//= spec/states.md#qps-004
//= type=test
//# In ERR every work request, posted before or then, MUST complete as flushed, in order.
//= spec/requester.md#req-009
//= type=test
//# After a request has failed, those behind it MUST be flushed in order and MUST NOT be executed.
#[test]
fn everything_is_flushed_in_order() {
    let mut qp = SingleQp::rts();
    for wr_id in 1..=3 {
        let wr = SendWr { wr_id, ..send(&qp) };
        qp.post_wr(wr).unwrap();
    }
    qp.sent();
    for wr_id in 11..=13 {
        qp.recv(wr_id, 1024);
    }
    // The first receive has a message begun, and an answer is due.
    qp.gets(O::SendFirst, RQ_PSN, Ext::None, &[0; 256]);
    qp.modify(QpState::Err, AttrMask::NONE, &SingleQp::attr()).unwrap();
    assert_eq!(qp.completed(), [1, 2, 3, 11, 12, 13].map(|wr_id| (wr_id, FLUSHED)), "unsignaled ones too");
    assert_eq!((qp.sent().len(), qp.timeout()), (0, None));
    qp.gets_ack(SQ_PSN + 2);
    qp.gets(O::SendLast, RQ_PSN + 1, Ext::None, &[0]);
    qp.modify(QpState::Err, AttrMask::NONE, &SingleQp::attr()).unwrap();
    assert_eq!((qp.completed(), qp.sent().len()), (vec![], 0));
}

//= spec/states.md#qps-005
//= type=test
//# RESET MUST forget everything without completions.
#[test]
fn reset_forgets_everything_without_completions() {
    let mut qp = SingleQp::rts();
    qp.post(1, SendOp::Read(REMOTE), 400);
    qp.recv(2, 1024);
    qp.sent();
    qp.gets(O::SendFirst, RQ_PSN, Ext::None, &[0; 256]);
    qp.modify(QpState::Reset, AttrMask::NONE, &SingleQp::attr()).unwrap();
    assert_eq!(qp.completed(), []);
    assert_eq!((qp.timeout(), qp.sent().len()), (None, 0));

    // And it works again, from PSNs of its own.
    let attr = QpAttr { rq_psn: Psn::new(1000), sq_psn: Psn::new(2000), ..SingleQp::attr() };
    qp.go_to(QpState::Rts, &attr);
    qp.gets_ack(SQ_PSN + 1);
    qp.gets(O::SendLast, RQ_PSN + 1, Ext::None, &[0]);
    assert_eq!(qp.sent(), ["ACK 999"], "a packet of the old connection is a duplicate at most");
    qp.recv(3, 4);
    qp.post(4, SendOp::Send, 4);
    qp.gets(O::SendOnly, 1000, Ext::None, &[0]);
    assert_eq!(qp.sent(), ["SEND Only 2000 ?", "ACK 1000"]);
    qp.gets_ack(2000);
    assert_eq!(qp.completed(), [(3, OK), (4, OK)]);
}

#[test]
fn surroundings_that_fail() {
    let mut qp = SingleQp::rts();
    qp.post(1, SendOp::Send, 4);
    qp.node.fail(qp.now, qp.qpn);
    assert_eq!((qp.state(), qp.completed()), (QpState::Err, vec![(1, FLUSHED)]));
    let mut qp = SingleQp::reset(|_, _| {});
    qp.node.fail(qp.now, qp.qpn);
    assert_eq!(qp.state(), QpState::Reset);
}

//= spec/states.md#qps-009
//= type=test
//# A timer MUST NOT outlive the state that it was set in.
#[test]
fn timers_do_not_outlive_their_state() {
    for rnr in [false, true] {
        let mut qp = SingleQp::rts();
        qp.post(1, SendOp::Send, 4);
        qp.sent();
        if rnr {
            qp.gets_aeth(SQ_PSN, Syndrome::RnrNak(urxe_wire::RnrTimer::new(1)));
        }
        let wait = qp.timeout().unwrap();
        qp.modify(QpState::Err, AttrMask::NONE, &SingleQp::attr()).unwrap();
        qp.log();
        qp.elapse(wait);
        assert_eq!((qp.timeout(), qp.completed(), qp.sent().len()), (None, vec![], 0));
    }
}

#[test]
fn changes_of_state_are_traced() {
    let mut qp = SingleQp::rts();
    qp.gets(O::SendMiddle, RQ_PSN, Ext::None, &[0; 256]);
    let state = |event: &NodeEvent| match event {
        NodeEvent::Trace(_, Event::State { from, to }) => Some((*from, *to)),
        _ => None,
    };
    assert_eq!(qp.log().iter().filter_map(state).collect::<Vec<_>>(), [(QpState::Rts, QpState::Err)]);
}

// --- attributes --------------------------------------------------------------------------------------------

#[test]
fn queried_psns_are_the_next_ones() {
    let mut qp = SingleQp::rts();
    qp.recv(1, 64);
    qp.gets(O::SendOnly, RQ_PSN, Ext::None, &[]);
    qp.post(2, SendOp::Send, 600);
    qp.sent();
    let attr = qp.node.qp(qp.qpn).attr();
    assert_eq!((attr.rq_psn.get(), attr.sq_psn.get(), attr.dest_qpn), (101, 203, PEER_QPN));
}

//= spec/states.md#qps-002
//= type=test
//# A modify without a required attribute, or with one that does not belong there, MUST be refused with EINVAL and
//# change nothing.
#[test]
fn a_refused_modify_changes_nothing() {
    let mut qp = in_state(QpState::Init);
    let before = qp.node.qp(qp.qpn).attr();
    let attr = QpAttr { min_rnr_timer: urxe_wire::RnrTimer::new(5), ..SingleQp::attr() };
    let refused = qp.modify(QpState::Rtr, AttrMask::MIN_RNR_TIMER, &attr);
    let missing = AttrMask::AV
        .with(AttrMask::PATH_MTU)
        .with(AttrMask::DEST_QPN)
        .with(AttrMask::RQ_PSN)
        .with(AttrMask::MAX_DEST_RD_ATOMIC);
    assert_eq!(refused, Err(ModifyError::Missing(missing)));
    assert_eq!((qp.state(), qp.node.qp(qp.qpn).attr()), (QpState::Init, before));
}

//= spec/states.md#qps-003
//= type=test
//# An attribute whose value is out of range MUST be refused with EINVAL.
#[test]
fn values_out_of_range() {
    let rts = AttrMask::SQ_PSN
        .with(AttrMask::TIMEOUT)
        .with(AttrMask::RETRY_CNT)
        .with(AttrMask::RNR_RETRY)
        .with(AttrMask::MAX_QP_RD_ATOMIC);
    for (attr, bad) in [
        (QpAttr { timeout: 32, ..SingleQp::attr() }, AttrMask::TIMEOUT),
        (QpAttr { retry_cnt: 8, ..SingleQp::attr() }, AttrMask::RETRY_CNT),
        (QpAttr { rnr_retry: 8, ..SingleQp::attr() }, AttrMask::RNR_RETRY),
    ] {
        let mut qp = in_state(QpState::Rtr);
        assert_eq!(qp.modify(QpState::Rts, rts, &attr), Err(ModifyError::Value(bad)));
        assert_eq!(qp.state(), QpState::Rtr);
    }
    let mut qp = in_state(QpState::Init);
    let all = rts.with(AttrMask::AV);
    assert_eq!(qp.modify(QpState::Err, all, &SingleQp::attr()), Err(ModifyError::Unexpected(all)));
}

#[test]
fn transitions_that_are_not_there() {
    for (from, to) in [
        (QpState::Reset, QpState::Rtr),
        (QpState::Init, QpState::Rts),
        (QpState::Rtr, QpState::Init),
        (QpState::Rts, QpState::Rtr),
        (QpState::Err, QpState::Rts),
    ] {
        let refused = in_state(from).modify(to, AttrMask::NONE, &SingleQp::attr());
        assert_eq!(refused, Err(ModifyError::NoTransition { from, to }));
    }
}
