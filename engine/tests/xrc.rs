//! XRC (IBA annex A14): requests name the SRQ that takes them, and go one way.

use std::net::{IpAddr, Ipv4Addr};

use urxe_engine::attr::AttrMask;
use urxe_engine::{
    Access, AsyncEvent, Data, DropReason, Pd, PostError, QpState, QpType, Recipient, RecvWr, Remote, SendFlags, SendOp,
    SendWr, WcStatus, XrcDomain,
};
use urxe_sim::memory::DEFAULT_PD;
use urxe_sim::single_qp::{MTU, RQ_PSN, SingleQp};
use urxe_sim::{CqId, SrqId};
use urxe_wire::packet::{Service, pad_count};
use urxe_wire::{Bth, Credits, Ext, Header, Opcode, Operation as O, Psn, Qpn, RKey, Reth, Syndrome, Transport, XrcEth};

const PEER: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2));
const DOMAIN: XrcDomain = XrcDomain(3);
const FIRST: Qpn = Qpn::new(0x51);
const SECOND: Qpn = Qpn::new(0x52);
const STRANGE: Qpn = Qpn::new(0x53);
const OTHER_PD: Pd = Pd(77);

/// A target with two SRQs in its domain, of different protection domains, and one in another domain.
struct Target {
    qp: SingleQp,
    srqs: [SrqId; 2],
    cqs: [CqId; 2],
}

impl Target {
    fn new() -> Self {
        let (mut srqs, mut cqs) = (Vec::new(), Vec::new());
        let mut qp = SingleQp::reset(|setup, node| {
            (setup.qp_type, setup.pd, setup.xrcd) = (QpType::XrcRecv, Pd(0), Some(DOMAIN));
            for (pd, domain, number) in
                [(DEFAULT_PD, DOMAIN, FIRST), (OTHER_PD, DOMAIN, SECOND), (DEFAULT_PD, XrcDomain(4), STRANGE)]
            {
                cqs.push(node.verbs().create_cq(8));
                srqs.push(node.verbs().create_xrc_srq(pd, 8, cqs[cqs.len() - 1], domain, number));
            }
        });
        qp.go_to(QpState::Rts, &SingleQp::attr());
        Self { qp, srqs: [srqs[0], srqs[1]], cqs: [cqs[0], cqs[1]] }
    }

    fn posts(&mut self, srq: usize, wr_id: u64, len: u32) {
        let buffers = self.qp.sges(len);
        self.qp.node.verbs().srq(self.srqs[srq]).post(RecvWr { wr_id, buffers }).unwrap();
    }

    fn gets(&mut self, operation: O, psn: u32, srq: Qpn, ext: Ext, payload: &[u8]) {
        let mut bth = Bth::new(Opcode::new(Transport::Xrc, operation).unwrap(), self.qp.qpn, Psn::new(psn));
        bth.pad_count = pad_count(payload.len());
        bth.ack_req = true;
        let header = Header { bth, service: Service::Xrc(XrcEth { xrc_srq: srq }), ext };
        self.qp.gets_from(PEER, &header, payload);
    }

    fn completed(&mut self, srq: usize) -> Option<(u64, WcStatus, Qpn, u32)> {
        let cqe = self.qp.node.poll(self.cqs[srq])?;
        Some((cqe.wr_id, cqe.status, cqe.qpn, cqe.byte_len))
    }
}

//= spec/responder.md#rsp-026
//= type=test
//# An XRC request MUST be received and protected by the SRQ that it names, in the target's domain.
#[test]
fn messages_go_to_the_srq_they_name_and_complete_on_its_cq() {
    let mut target = Target::new();
    let qpn = target.qp.qpn;
    target.posts(0, 1, 8);
    target.posts(1, 2, 0);
    target.gets(O::SendOnly, RQ_PSN, SECOND, Ext::None, b"");
    target.gets(O::SendOnly, RQ_PSN + 1, FIRST, Ext::None, b"first");
    assert_eq!(target.completed(0), Some((1, WcStatus::Success, qpn, 5)));
    assert_eq!(target.completed(1), Some((2, WcStatus::Success, qpn, 0)));
    assert_eq!(target.qp.node.memory().peek(target.qp.local.addr, 5), b"first");
    let sent = target.qp.sent();
    assert_eq!(sent, ["ACK 101"]);
    let Ext::Aeth(aeth) = sent[0].header.ext else { panic!("{:?}", sent[0]) };
    assert_eq!(aeth.syndrome, Syndrome::Ack(Credits::INVALID), "receives of an SRQ are promised to nobody");
    assert_eq!(sent[0].header.service, Service::Connected, "responses have no XRCETH");
}

#[test]
fn an_empty_srq_is_not_ready_though_another_is() {
    let mut target = Target::new();
    target.posts(0, 1, 8);
    target.gets(O::SendOnly, RQ_PSN, SECOND, Ext::None, b"");
    assert_eq!(target.qp.sent(), ["RNR NAK 100"]);
    target.posts(1, 2, 0);
    target.gets(O::SendOnly, RQ_PSN, SECOND, Ext::None, b"");
    assert_eq!(target.completed(1).map(|(wr_id, ..)| wr_id), Some(2));
    assert_eq!(target.completed(0), None);
}

//= spec/responder.md#rsp-026
//= type=test
//# An XRC request MUST be received and protected by the SRQ that it names, in the target's domain.
#[test]
fn an_srq_of_another_domain_is_none() {
    for number in [STRANGE, Qpn::new(0x99)] {
        let mut target = Target::new();
        target.gets(O::SendOnly, RQ_PSN, number, Ext::None, b"");
        assert_eq!(target.qp.sent(), ["NAK InvalidRequest 100"]);
        assert_eq!(target.qp.async_events(), [AsyncEvent::QpRequestError]);
        assert_eq!(target.qp.state(), QpState::Err);
    }
}

/// The memory is that of the SRQ's protection domain, receive buffers and remote memory alike.
//= spec/responder.md#rsp-026
//= type=test
//# An XRC request MUST be received and protected by the SRQ that it names, in the target's domain.
#[test]
fn protection_is_the_srqs() {
    let reth = |target: &Target| {
        let remote = target.qp.remote;
        Ext::Reth(Reth { va: remote.addr, r_key: RKey(remote.key.0), dma_len: 4 })
    };
    let mut target = Target::new();
    let ext = reth(&target);
    target.gets(O::WriteOnly, RQ_PSN, FIRST, ext, b"mine");
    assert_eq!(target.qp.node.memory().peek(target.qp.remote.addr, 4), b"mine");
    target.gets(O::ReadRequest, RQ_PSN + 1, FIRST, ext, b"");
    let sent = target.qp.sent();
    assert_eq!(sent, ["RDMA READ response Only 101"]);
    assert_eq!(sent[0].payload, b"mine");
    // A duplicate is read again in the domain of the SRQ that it names.
    target.gets(O::ReadRequest, RQ_PSN + 1, SECOND, ext, b"");
    assert_eq!(target.qp.sent(), ["NAK RemoteAccessError 101"]);
    target.gets(O::ReadRequest, RQ_PSN + 1, FIRST, ext, b"");
    assert_eq!(target.qp.sent(), ["RDMA READ response Only 101"]);
    target.gets(O::WriteOnly, RQ_PSN + 2, SECOND, ext, b"his!");
    assert_eq!(target.qp.sent(), ["NAK RemoteAccessError 102"]);
    assert_eq!(target.qp.node.memory().peek(target.qp.remote.addr, 4), b"mine");

    let mut target = Target::new();
    target.posts(1, 2, 8);
    target.gets(O::SendOnly, RQ_PSN, SECOND, Ext::None, b"x");
    assert_eq!(target.completed(1).map(|(_, status, ..)| status), Some(WcStatus::LocalProtectionError));
}

/// Only the WQE of the message under way is flushed: the others are the SRQ's, and other queue pairs' to take.
#[test]
fn in_error_the_srq_keeps_its_wqes() {
    let mut target = Target::new();
    target.posts(0, 1, 2 * 256);
    target.posts(0, 2, 8);
    target.gets(O::SendFirst, RQ_PSN, FIRST, Ext::None, &[1; MTU]);
    target.qp.modify(QpState::Err, AttrMask::NONE, &SingleQp::attr()).unwrap();
    assert_eq!(target.completed(0).map(|(wr_id, status, ..)| (wr_id, status)), Some((1, WcStatus::WrFlushError)));
    assert_eq!(target.completed(0), None);
    let srq = target.srqs[0];
    assert_eq!(target.qp.node.verbs().srq(srq).len(), 1);
}

/// The SRQ is of another process, which does not answer while a packet is carried out: it counts as lost.
//= spec/hosts.md#net-012
//= type=test
//# A request for an XRC SRQ whose process does not answer in time MUST be dropped, to be repeated by its requester, or
//# put off with an RNR NAK.
#[test]
fn an_unanswered_xrc_request_counts_as_lost() {
    let parts = [[1; MTU], [2; MTU], [3; MTU]];
    let message = [(O::SendFirst, 0), (O::SendMiddle, 1), (O::SendLast, 2)];
    for silent in 0..3 {
        let mut target = Target::new();
        target.posts(0, 1, 3 * 256);
        for (operation, part) in message {
            let psn = RQ_PSN + part;
            if part == silent {
                target.qp.node.memory().fall_silent(1);
                target.gets(operation, psn, FIRST, Ext::None, &parts[part as usize]);
                assert_eq!(target.qp.drops(), [DropReason::NoAnswer]);
                assert_eq!(target.qp.state(), QpState::Rts);
            }
            target.gets(operation, psn, FIRST, Ext::None, &parts[part as usize]);
        }
        assert_eq!(
            target.completed(0).map(|(wr_id, status, _, length)| (wr_id, status, length)),
            Some((1, WcStatus::Success, 3 * 256))
        );
        assert_eq!(target.qp.node.memory().peek(target.qp.local.addr, 3 * MTU), parts.concat());
        let srq = target.srqs[0];
        assert_eq!(target.qp.node.verbs().srq(srq).len(), 0, "one WQE for one message");
    }
    // Memory that requests name, and what a READ is answered with.
    let mut target = Target::new();
    let remote = target.qp.remote;
    let ext = Ext::Reth(Reth { va: remote.addr, r_key: RKey(remote.key.0), dma_len: 4 });
    for (operation, psn, payload) in [(O::WriteOnly, RQ_PSN, &b"word"[..]), (O::ReadRequest, RQ_PSN + 1, b"")] {
        target.qp.node.memory().fall_silent(1);
        target.gets(operation, psn, FIRST, ext, payload);
        assert_eq!(target.qp.drops(), [DropReason::NoAnswer]);
        target.gets(operation, psn, FIRST, ext, payload);
    }
    let sent = target.qp.sent();
    assert_eq!(sent, ["RDMA READ response Only 101"]);
    assert_eq!(sent[0].payload, b"word");
}

/// A WQE that waits for the message to come again is not there for one to another SRQ.
//= spec/responder.md#rsp-026
//= type=test
//# An XRC request MUST be received and protected by the SRQ that it names, in the target's domain.
#[test]
fn an_srq_that_changes_within_a_message_is_refused() {
    let mut target = Target::new();
    target.posts(0, 1, 8);
    target.qp.node.memory().fall_silent(1);
    target.gets(O::SendOnly, RQ_PSN, FIRST, Ext::None, b"text");
    assert_eq!(target.qp.drops(), [DropReason::NoAnswer]);
    target.gets(O::SendOnly, RQ_PSN, SECOND, Ext::None, b"text");
    assert_eq!(target.qp.sent(), ["NAK InvalidRequest 100"]);
    assert_eq!(target.completed(1), None);
    let flushed = target.completed(0).map(|(wr_id, status, ..)| (wr_id, status));
    assert_eq!(flushed, Some((1, WcStatus::WrFlushError)));
}

#[test]
fn an_initiator_says_for_which_srq() {
    let mut qp = SingleQp::reset(|setup, _| setup.qp_type = QpType::XrcSend);
    qp.go_to(QpState::Rts, &SingleQp::attr());
    let remote = Remote { addr: 0, r_key: RKey(1) };
    let wr = |qp: &SingleQp, wr_id, op, to| {
        let flags = SendFlags { signaled: true, ..SendFlags::default() };
        SendWr { wr_id, op, data: Data::Gather(qp.sges(8)), flags, to }
    };
    let astray = wr(&qp, 0, SendOp::Send, Recipient::Peer);
    assert_eq!(qp.post_wr(astray), Err(PostError::Operation));
    let requests = [
        SendOp::Send,
        SendOp::Write(remote),
        SendOp::Read(remote),
        SendOp::FetchAdd { remote, add: 1 },
        SendOp::CompareSwap { remote, compare: 1, swap: 2 },
    ];
    for (wr_id, op) in (0..).zip(requests) {
        let wr = wr(&qp, wr_id, op, Recipient::XrcSrq(SECOND));
        qp.post_wr(wr).unwrap();
    }
    let sent = qp.sent();
    assert_eq!(sent.len(), 5);
    for sent in sent {
        assert_eq!(sent.header.service, Service::Xrc(XrcEth { xrc_srq: SECOND }), "{sent:?}");
        assert_eq!(sent.header.bth.opcode.transport(), Transport::Xrc);
    }
    let header = |operation, ext| {
        let bth = Bth::new(Opcode::new(Transport::Xrc, operation).unwrap(), qp.qpn, Psn::new(201));
        Header { bth, service: Service::Connected, ext }
    };
    let aeth = urxe_wire::Aeth { syndrome: Syndrome::Ack(Credits::INVALID), msn: urxe_wire::Msn::default() };
    let ack = header(O::Acknowledge, Ext::Aeth(aeth));
    let mut request = header(O::SendOnly, Ext::None);
    request.service = Service::Xrc(XrcEth { xrc_srq: FIRST });
    qp.gets_from(PEER, &ack, b"");
    assert_eq!(qp.completed(), [(0, WcStatus::Success), (1, WcStatus::Success)]);
    qp.gets_from(PEER, &request, b"");
    assert_eq!(qp.drops(), [DropReason::Transport], "XRC goes one way");
}

#[test]
fn nothing_is_posted_to_a_target() {
    let mut qp = Target::new().qp;
    let recv = RecvWr { wr_id: 1, buffers: qp.sges(8) };
    assert_eq!(qp.recv_wr(recv), Err(PostError::NoRecvQueue));
    let mut qp = SingleQp::reset(|setup, _| setup.qp_type = QpType::XrcSend);
    let recv = RecvWr { wr_id: 1, buffers: qp.sges(8) };
    assert_eq!(qp.recv_wr(recv), Err(PostError::NoRecvQueue));
}

/// An RC queue pair's receive buffers are of its SRQ's protection domain (IBA 10.2.9.3).
#[test]
fn receive_buffers_are_of_the_srqs_domain() {
    for (pd, status) in [(DEFAULT_PD, WcStatus::Success), (OTHER_PD, WcStatus::LocalProtectionError)] {
        let mut srq = None;
        let mut qp = SingleQp::reset(|setup, node| {
            srq = Some(node.verbs().create_srq(pd, 8));
            (setup.srq, setup.pd) = (srq, Pd(1000));
        });
        qp.go_to(QpState::Rts, &SingleQp::attr());
        let buffers = qp.sges(8);
        qp.node.verbs().srq(srq.unwrap()).post(RecvWr { wr_id: 1, buffers }).unwrap();
        qp.gets(O::SendOnly, RQ_PSN, Ext::None, b"x");
        assert_eq!(qp.completed(), [(1, status)]);
    }
}

/// Only a limit that is armed is reported, once.
#[test]
fn the_limit_is_reported_to_the_consumer() {
    let mut srq = None;
    let mut qp = SingleQp::reset(|setup, node| {
        srq = Some(node.verbs().create_srq(DEFAULT_PD, 8));
        setup.srq = srq;
    });
    let srq = srq.unwrap();
    qp.go_to(QpState::Rts, &SingleQp::attr());
    for wr_id in 0..4 {
        let buffers = qp.sges(0);
        qp.node.verbs().srq(srq).post(RecvWr { wr_id, buffers }).unwrap();
    }
    qp.node.verbs().srq(srq).modify(None, Some(3)).unwrap();
    let limits =
        |qp: &mut SingleQp| qp.log().iter().filter(|event| **event == urxe_sim::NodeEvent::SrqLimit(srq)).count();
    for (psn, reported) in (RQ_PSN..).zip([0, 1, 0]) {
        qp.gets(O::SendOnly, psn, Ext::None, b"");
        assert_eq!(limits(&mut qp), reported, "PSN {psn}");
    }
}

/// Remote access flags are the target's own.
#[test]
fn a_target_has_access_flags() {
    let mut target = Target::new();
    let attr = urxe_engine::attr::QpAttr { access: Access::NONE, ..SingleQp::attr() };
    target.qp.modify(QpState::Rts, AttrMask::ACCESS_FLAGS, &attr).unwrap();
    let remote = target.qp.remote;
    let ext = Ext::Reth(Reth { va: remote.addr, r_key: RKey(remote.key.0), dma_len: 1 });
    target.gets(O::WriteOnly, RQ_PSN, FIRST, ext, b"x");
    assert_eq!(target.qp.state(), QpState::Err);
    assert_eq!(target.qp.node.memory().peek(remote.addr, 1), [0]);
}
