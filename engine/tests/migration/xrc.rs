//! XRC: initiator and target have paths of their own, though requests go one way.

use std::net::IpAddr;

use urxe_engine::{
    AsyncEvent, Data, MigrationState, Pd, QpState, QpType, Recipient, RecvWr, SendFlags, SendOp, SendWr, WcStatus,
    XrcDomain,
};
use urxe_sim::memory::DEFAULT_PD;
use urxe_sim::single_qp::{RQ_PSN, SQ_PSN, SingleQp};
use urxe_wire::packet::Service;
use urxe_wire::{Aeth, Bth, Credits, Ext, Header, Msn, Opcode, Operation as O, Psn, Qpn, Syndrome, Transport, XrcEth};

use crate::{ACK_TIMEOUT, ALTERNATE, LATER_TIMEOUT, PRIMARY, rearm, sent, state};

const DOMAIN: XrcDomain = XrcDomain(3);
const SRQ: Qpn = Qpn::new(0x51);

fn bth(qp: &SingleQp, operation: O, psn: u32, mig_req: bool) -> Bth {
    let opcode = Opcode::new(Transport::Xrc, operation).unwrap();
    Bth { mig_req, ..Bth::new(opcode, qp.qpn, Psn::new(psn)) }
}

/// A SEND of the initiator to the target's SRQ.
fn gets_send(qp: &mut SingleQp, from: IpAddr, psn: u32, mig_req: bool) {
    let bth = Bth { ack_req: true, ..bth(qp, O::SendOnly, psn, mig_req) };
    let header = Header { bth, service: Service::Xrc(XrcEth { xrc_srq: SRQ }), ext: Ext::None };
    qp.gets_from(from, &header, &[]);
}

/// An ACK of the target.
fn gets_ack(qp: &mut SingleQp, from: IpAddr, psn: u32, mig_req: bool) {
    let aeth = Aeth { syndrome: Syndrome::Ack(Credits::INVALID), msn: Msn::default() };
    let header = Header::new(bth(qp, O::Acknowledge, psn, mig_req), Ext::Aeth(aeth));
    qp.gets_from(from, &header, &[]);
}

/// An initiator is armed by an ACK. When its tries have run out, it goes on over the alternate path.
#[test]
fn an_initiator_migrates() {
    let mut qp = SingleQp::of(QpType::XrcSend);
    rearm(&mut qp, ALTERNATE);
    assert_eq!(state(&qp), MigrationState::Rearm);
    gets_ack(&mut qp, PRIMARY, SQ_PSN - 1, false);
    assert_eq!(state(&qp), MigrationState::Armed);
    let flags = SendFlags { signaled: true, ..SendFlags::default() };
    let data = Data::Gather(qp.sges(300));
    qp.post_wr(SendWr { wr_id: 1, op: SendOp::Send, data, flags, to: Recipient::XrcSrq(SRQ) }).unwrap();
    assert_eq!(sent(&mut qp), [(PRIMARY, false, SQ_PSN), (PRIMARY, false, SQ_PSN + 1)]);
    for timeout in [ACK_TIMEOUT, LATER_TIMEOUT, LATER_TIMEOUT] {
        qp.elapse(timeout);
        assert!(sent(&mut qp).iter().all(|packet| packet.0 == PRIMARY));
    }
    qp.log();
    qp.elapse(LATER_TIMEOUT);
    assert_eq!(qp.async_events(), [AsyncEvent::PathMigrated]);
    assert_eq!(state(&qp), MigrationState::Migrated);
    assert_eq!(sent(&mut qp), [(ALTERNATE, true, SQ_PSN), (ALTERNATE, true, SQ_PSN + 1)]);
    gets_ack(&mut qp, ALTERNATE, SQ_PSN + 1, true);
    assert_eq!(qp.completed(), [(1, WcStatus::Success)]);
}

/// A target is armed by a request, and follows its initiator to the alternate path: its answers leave there.
#[test]
fn a_target_follows_its_initiator() {
    let mut srq = None;
    let mut qp = SingleQp::reset(|setup, node| {
        (setup.qp_type, setup.pd, setup.xrcd) = (QpType::XrcRecv, Pd(0), Some(DOMAIN));
        let cq = node.verbs().create_cq(8);
        srq = Some(node.verbs().create_xrc_srq(DEFAULT_PD, 8, cq, DOMAIN, SRQ));
    });
    qp.go_to(QpState::Rts, &SingleQp::attr());
    for wr_id in 0..2 {
        let buffers = qp.sges(8);
        qp.node.verbs().srq(srq.unwrap()).post(RecvWr { wr_id, buffers }).unwrap();
    }
    rearm(&mut qp, ALTERNATE);
    assert_eq!(state(&qp), MigrationState::Rearm);
    gets_send(&mut qp, PRIMARY, RQ_PSN, false);
    assert_eq!(state(&qp), MigrationState::Armed);
    assert_eq!(sent(&mut qp), [(PRIMARY, false, RQ_PSN)]);
    qp.log();
    gets_send(&mut qp, ALTERNATE, RQ_PSN + 1, true);
    assert_eq!(qp.async_events(), [AsyncEvent::PathMigrated]);
    assert_eq!(state(&qp), MigrationState::Migrated);
    assert_eq!(sent(&mut qp), [(ALTERNATE, true, RQ_PSN + 1)]);
}
