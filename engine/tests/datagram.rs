//! UD: every packet is a message, for whom its request says (IBA 9.8.3).

use std::net::{IpAddr, Ipv4Addr};

use urxe_engine::{Data, DropReason, PostError, QpState, QpType, Recipient, SendFlags, SendOp, SendWr, WcStatus};
use urxe_sim::single_qp::{PEER_QPN, Q_KEY, SingleQp};
use urxe_wire::packet::{Service, pad_count};
use urxe_wire::{Bth, Deth, Ext, Header, ImmDt, Opcode, Operation, Psn, QKey, Qpn, Transport};

const PORT_MTU: u32 = 1024;
const GRH: usize = 40;

fn ud() -> SingleQp {
    SingleQp::of(QpType::Ud)
}

fn request(qp: &SingleQp, len: u32) -> SendWr {
    let flags = SendFlags { signaled: true, ..SendFlags::default() };
    SendWr { wr_id: 1, op: SendOp::Send, data: Data::Gather(qp.sges(len)), flags, to: Recipient::Peer }
}

fn deth_of(service: Service) -> Deth {
    let Service::Datagram(deth) = service else { panic!("no datagram: {service:?}") };
    deth
}

/// A datagram with this Q_Key arrives.
fn gets_with(qp: &mut SingleQp, q_key: QKey, payload: &[u8]) {
    let mut bth = Bth::new(Opcode::new(Transport::Ud, Operation::SendOnly).unwrap(), qp.qpn, Psn::new(5));
    bth.pad_count = pad_count(payload.len());
    let service = Service::Datagram(Deth { q_key, src_qp: PEER_QPN, lid_routed: false });
    qp.gets_from(IpAddr::V4(Ipv4Addr::new(10, 0, 0, 77)), &Header { bth, service, ext: Ext::None }, payload);
}

//= spec/unreliable.md#unr-006
//= type=test
//# A request on UC or UD MUST complete when its last packet is sent, and no acknowledgement be asked for.
#[test]
fn each_request_is_one_packet_and_done_when_sent() {
    let mut qp = ud();
    qp.post(1, SendOp::Send, 5);
    qp.post(2, SendOp::SendWithImmediate(ImmDt([1, 2, 3, 4])), 0);
    let sent = qp.sent();
    assert_eq!(sent.len(), 2);
    assert_eq!(deth_of(sent[0].header.service), Deth { q_key: Q_KEY, src_qp: qp.qpn, lid_routed: false });
    assert_eq!((sent[0].header.bth.psn.get(), sent[1].header.bth.psn.get()), (200, 201));
    assert!(sent.iter().all(|packet| !packet.header.bth.ack_req));
    assert_eq!(sent[1].header.ext, Ext::ImmDt(ImmDt([1, 2, 3, 4])));
    assert_eq!(qp.completed(), [(1, WcStatus::Success), (2, WcStatus::Success)]);
}

/// IBA 10.2.5: a controlled Q_Key, with the high bit set, cannot be given by a request.
//= spec/unreliable.md#unr-004
//= type=test
//# A Q_Key with the high bit set MUST stand for the queue pair's own.
#[test]
fn a_q_key_with_the_high_bit_stands_for_the_queue_pairs_own() {
    let mut qp = ud();
    for (given, on_the_wire) in [(0x2222_2222, 0x2222_2222), (0x8001_0000, Q_KEY.0), (0xFFFF_FFFF, Q_KEY.0)] {
        let wr = request(&qp, 4);
        qp.post_to(wr, PEER_QPN, QKey(given)).unwrap();
        assert_eq!(deth_of(qp.sent()[0].header.service).q_key, QKey(on_the_wire), "{given:#x}");
    }
}

//= spec/unreliable.md#unr-005
//= type=test
//# The receive buffer of a datagram MUST begin with 40 bytes of network header.
#[test]
fn the_network_header_stands_before_the_message() {
    let mut qp = ud();
    qp.recv(1, 64);
    gets_with(&mut qp, Q_KEY, b"hello");
    let cqes = qp.cqes();
    assert_eq!(cqes.len(), 1);
    assert_eq!((cqes[0].byte_len, cqes[0].src_qp, cqes[0].grh.is_some()), (45, PEER_QPN, true));
    let stored = qp.node.memory().peek(qp.local.addr, GRH + 5);
    assert_eq!(stored[..20], [0; 20]);
    assert_eq!(stored[20], 0x45);
    // IPv4 20, UDP 8, BTH 12, DETH 8, payload 5 and 3 to pad, ICRC 4.
    assert_eq!(stored[22..24], [0, 60]);
    assert_eq!(stored[32..40], [10, 0, 0, 77, 10, 0, 0, 1]);
    assert_eq!(stored[GRH..], *b"hello");
}

//= spec/unreliable.md#unr-003
//= type=test
//# A datagram whose Q_Key is not the queue pair's MUST be dropped.
#[test]
fn q_key_of_the_receiver_admits_any_sender() {
    let mut qp = ud();
    qp.recv(1, 64);
    gets_with(&mut qp, QKey(Q_KEY.0 ^ 1), b"no");
    assert_eq!(qp.drops(), [DropReason::QKey]);
    gets_with(&mut qp, Q_KEY, b"yes");
    assert_eq!(qp.completed(), [(1, WcStatus::Success)]);
}

//= spec/unreliable.md#unr-007
//= type=test
//# On UC and UD nothing that a peer sends MUST stop the queue pair.
#[test]
fn a_receive_that_is_too_short_keeps_waiting() {
    let mut qp = ud();
    qp.recv(1, 44);
    gets_with(&mut qp, Q_KEY, b"hello");
    assert_eq!(qp.drops(), [DropReason::Refused]);
    gets_with(&mut qp, Q_KEY, b"fits");
    assert_eq!(qp.completed(), [(1, WcStatus::Success)]);
    assert_eq!(qp.state(), QpState::Rts);
}

#[test]
fn datagram_without_receive_is_dropped() {
    let mut qp = ud();
    gets_with(&mut qp, Q_KEY, b"x");
    assert_eq!(qp.drops(), [DropReason::NoReceive]);
    assert!(qp.sent().is_empty());
}

#[test]
fn an_empty_message_needs_room_for_the_header() {
    let mut qp = ud();
    qp.recv(1, 40);
    gets_with(&mut qp, Q_KEY, b"");
    assert_eq!(qp.cqes()[0].byte_len, 40);
}

/// C10-93.1.1.
//= spec/unreliable.md#unr-008
//= type=test
//# A datagram longer than the port's MTU MUST NOT be sent.
#[test]
fn a_message_longer_than_the_ports_mtu_is_not_sent_and_no_error() {
    let mut qp = ud();
    qp.post(1, SendOp::Send, PORT_MTU);
    qp.post(2, SendOp::Send, PORT_MTU + 1);
    qp.post(3, SendOp::Send, 1);
    assert_eq!(qp.sent().len(), 2);
    assert_eq!(qp.completed(), [(1, WcStatus::Success), (2, WcStatus::Success), (3, WcStatus::Success)]);
}

#[test]
fn a_request_must_say_for_whom() {
    let mut qp = ud();
    let wr = request(&qp, 4);
    assert_eq!(qp.node.post_send(qp.now, qp.qpn, wr), Err(PostError::Operation));
}

#[test]
fn one_queue_pair_writes_to_many() {
    let mut qp = ud();
    for (wr_id, number) in [(1, 0x10), (2, 0x20)] {
        let wr = SendWr { wr_id, ..request(&qp, 4) };
        let number = Qpn::new(number);
        qp.post_to(wr, number, Q_KEY).unwrap();
    }
    qp.node.transmit(qp.now);
    let sent = qp.node.nic().take_sent();
    let to = |at: usize| urxe_wire::Packet::parse(&sent[at].bytes).unwrap().bth().dest_qp.get();
    assert_eq!((sent.len(), to(0), to(1)), (2, 0x10, 0x20));
}
