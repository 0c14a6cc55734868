//! Order of ACKs and requests that are due at once: IBA 9.7.2 and 9.7.5 leave it open, so the engine takes the one that is
//! fastest.

use urxe_engine::{Key, SendOp, WcStatus};
use urxe_sim::single_qp::{RQ_PSN, SQ_PSN, SingleQp};
use urxe_wire::{Ext, Operation as O, RKey, Reth};

/// A queue pair that has received a message and owes its ACK.
fn owing() -> SingleQp {
    let mut qp = SingleQp::rts();
    qp.recv(1, 64);
    qp.gets(O::SendOnly, RQ_PSN, Ext::None, b"question");
    assert!(qp.node.qp(qp.qpn).owes_only_ack());
    qp
}

#[test]
fn an_ack_goes_behind_a_short_request() {
    let mut qp = owing();
    qp.post(2, SendOp::Send, 6);
    assert!(!qp.node.qp(qp.qpn).owes_only_ack());
    assert_eq!(qp.sent(), [format!("SEND Only {SQ_PSN} ?").as_str(), "ACK 100"]);
    assert!(!qp.node.qp(qp.qpn).owes_only_ack());
}

#[test]
fn an_ack_does_not_wait_for_a_long_request() {
    let mut qp = owing();
    qp.post(2, SendOp::Send, 257);
    assert_eq!(qp.sent(), ["ACK 100", "SEND First 200", "SEND Last 201 ?"]);
}

#[test]
fn an_ack_does_not_wait_for_many_requests() {
    let mut qp = owing();
    qp.post(2, SendOp::Send, 6);
    qp.post(3, SendOp::Send, 6);
    assert_eq!(qp.sent(), ["ACK 100", "SEND Only 200 ?", "SEND Only 201 ?"]);
}

/// The message before was received, whatever becomes of the request.
#[test]
fn an_ack_leaves_though_the_request_fails() {
    let mut qp = owing();
    let gone = qp.local.key;
    qp.post(2, SendOp::Send, 6);
    qp.node.memory_mut().deregister(gone);
    assert_eq!(qp.sent(), ["ACK 100"]);
    assert_eq!(qp.completed(), [(1, WcStatus::Success), (2, WcStatus::LocalProtectionError)]);
}

/// A NAK says what went wrong, and nobody should wait for it.
#[test]
fn a_nak_goes_first() {
    let mut qp = SingleQp::rts();
    let nowhere = Reth { va: 0, r_key: RKey(Key(0).0), dma_len: 4 };
    qp.gets(O::SendOnly, RQ_PSN + 1, Ext::None, b"later");
    assert!(!qp.node.qp(qp.qpn).owes_only_ack() && qp.node.qp(qp.qpn).owes_refusal());
    qp.post(2, SendOp::Send, 6);
    assert_eq!(qp.sent(), ["NAK PsnSequenceError 100", "SEND Only 200 ?"]);
    assert!(!qp.node.qp(qp.qpn).owes_refusal(), "once");
    qp.gets(O::WriteOnly, RQ_PSN, Ext::Reth(nowhere), &[0; 4]);
    assert!(!qp.node.qp(qp.qpn).owes_only_ack());
}

/// Nor for the answer to a READ, which has data.
#[test]
fn a_response_goes_first() {
    let mut qp = SingleQp::rts();
    let reth = Reth { va: qp.remote.addr, r_key: RKey(qp.remote.key.0), dma_len: 4 };
    qp.gets(O::ReadRequest, RQ_PSN, Ext::Reth(reth), &[]);
    assert!(!qp.node.qp(qp.qpn).owes_only_ack());
    qp.post(2, SendOp::Send, 6);
    assert_eq!(qp.sent(), ["RDMA READ response Only 100", "SEND Only 200 ?"]);
}
