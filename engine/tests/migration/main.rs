//! Automatic path migration, packet by packet.

mod both_ends;
mod peer;
mod xrc;

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use urxe_engine::attr::{AttrMask, QpAttr};
use urxe_engine::endpoint::{Event as NodeEvent, Route};
use urxe_engine::{Access, AsyncEvent, Event, MigrationState, ModifyError, Paths, QpState, QpType, SendOp, WcStatus};
use urxe_sim::single_qp::{RQ_PSN, SQ_PSN, SingleQp};
use urxe_wire::{
    Aeth, Bth, Credits, Ext, Header, Msn, Opcode, Operation as O, Packet, Psn, RKey, Reth, Syndrome, Transport,
};

const PRIMARY: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2));
const ALTERNATE: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 1, 0, 2));
const ELSEWHERE: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 2, 0, 2));
/// 4.096 µs · 2^14, and 2^15 on the alternate path.
const ACK_TIMEOUT: Duration = Duration::from_nanos(67_108_864);
/// Timeouts behind the first.
const LATER_TIMEOUT: Duration = Duration::from_nanos(4 * 67_108_864);
const ALT_TIMEOUT: u8 = 15;

const GIVEN: AttrMask = AttrMask::ALT_PATH.with(AttrMask::PATH_MIG_STATE);

fn to(address: IpAddr) -> Paths<Route> {
    Paths { primary: None, alternate: Some(Route { to: address, source_port: 0xC002 }) }
}

fn attr(path_mig_state: MigrationState) -> QpAttr {
    QpAttr { path_mig_state, alt_timeout: ALT_TIMEOUT, ..SingleQp::attr() }
}

fn rearm(qp: &mut SingleQp, alternate: IpAddr) {
    let attr = attr(MigrationState::Rearm);
    qp.node.modify(qp.now, qp.qpn, QpState::Rts, GIVEN, &attr, to(alternate)).unwrap();
}

fn set(qp: &mut SingleQp, state: MigrationState) -> Result<(), ModifyError> {
    qp.modify(QpState::Rts, AttrMask::PATH_MIG_STATE, &attr(state))
}

fn state(qp: &SingleQp) -> MigrationState {
    qp.node.qp(qp.qpn).attr().path_mig_state
}

/// A queue pair that has been armed by a packet of its peer.
fn armed() -> SingleQp {
    let mut qp = SingleQp::rts();
    rearm(&mut qp, ALTERNATE);
    assert_eq!(state(&qp), MigrationState::Rearm);
    qp.gets_ack(SQ_PSN - 1);
    assert_eq!(state(&qp), MigrationState::Armed);
    qp.log();
    qp
}

/// A SEND of the peer that takes a path of its own.
fn gets(qp: &mut SingleQp, from: IpAddr, psn: u32, mig_req: bool) {
    let opcode = Opcode::new(Transport::Rc, O::SendOnly).unwrap();
    let bth = Bth { mig_req, ack_req: true, ..Bth::new(opcode, qp.qpn, Psn::new(psn)) };
    qp.gets_from(from, &Header::new(bth, Ext::None), &[]);
}

fn gets_ack(qp: &mut SingleQp, from: IpAddr, psn: u32) {
    gets_ack_with(qp, from, psn, true);
}

fn gets_ack_with(qp: &mut SingleQp, from: IpAddr, psn: u32, mig_req: bool) {
    let opcode = Opcode::new(Transport::Rc, O::Acknowledge).unwrap();
    let aeth = Aeth { syndrome: Syndrome::Ack(Credits::INVALID), msn: Msn::default() };
    let bth = Bth { mig_req, ..Bth::new(opcode, qp.qpn, Psn::new(psn)) };
    qp.gets_from(from, &Header::new(bth, Ext::Aeth(aeth)), &[]);
}

/// Packets that leave: where to, MigReq, PSN.
fn sent(qp: &mut SingleQp) -> Vec<(IpAddr, bool, u32)> {
    qp.node.transmit(qp.now);
    let told = |bytes: &[u8]| {
        let bth = *Packet::parse(bytes).unwrap().bth();
        (bth.mig_req, bth.psn.get())
    };
    let sent = qp.node.nic().take_sent();
    sent.iter()
        .map(|datagram| {
            let (mig_req, psn) = told(&datagram.bytes);
            (datagram.to.ip(), mig_req, psn)
        })
        .collect()
}

//= spec/states.md#qps-012
//= type=test
//# MigReq MUST be 1 in MIGRATED, and 0 in ARMED and, but for QPS-018, in REARM; without an alternate path it MUST be 0.
#[test]
fn mig_req_says_the_state() {
    let mut qp = SingleQp::rts();
    qp.recv(1, 64);
    let both = |qp: &mut SingleQp, psn: u32, mig_req| {
        qp.recv(9, 64);
        qp.post(2, SendOp::Send, 1);
        gets(qp, PRIMARY, RQ_PSN + psn, false);
        let expected = [(PRIMARY, mig_req, RQ_PSN + psn), (PRIMARY, mig_req, SQ_PSN + psn)];
        let mut found = sent(qp);
        found.sort_by_key(|(.., psn)| *psn);
        assert_eq!(found, expected, "{:?}", state(qp));
        gets_ack(qp, PRIMARY, SQ_PSN + psn);
    };
    both(&mut qp, 0, false);
    let given = attr(MigrationState::Migrated);
    qp.node.modify(qp.now, qp.qpn, QpState::Rts, AttrMask::ALT_PATH, &given, to(ALTERNATE)).unwrap();
    both(&mut qp, 1, true);
    set(&mut qp, MigrationState::Rearm).unwrap();
    both(&mut qp, 2, false);
    assert_eq!(state(&qp), MigrationState::Armed);
    both(&mut qp, 3, false);
}

/// READ responses and results of atomics carry the bit as well, and so do requests of UC.
#[test]
fn mig_req_is_in_every_packet() {
    let mut qp = SingleQp::rts();
    rearm(&mut qp, ALTERNATE);
    set(&mut qp, MigrationState::Migrated).unwrap();
    let reth = Reth { va: qp.remote.addr, r_key: RKey(qp.remote.key.0), dma_len: 600 };
    qp.gets(O::ReadRequest, RQ_PSN, Ext::Reth(reth), &[]);
    let expected: Vec<_> = (RQ_PSN..RQ_PSN + 3).map(|psn| (PRIMARY, true, psn)).collect();
    assert_eq!(sent(&mut qp), expected);
    let remote = urxe_engine::Remote { addr: 0x1000, r_key: RKey(7) };
    qp.post(1, SendOp::Read(remote), 600);
    assert_eq!(sent(&mut qp), [(PRIMARY, true, SQ_PSN)]);
    let mut uc = SingleQp::of(QpType::Uc);
    rearm(&mut uc, ALTERNATE);
    set(&mut uc, MigrationState::Migrated).unwrap();
    uc.post(1, SendOp::Send, 1);
    assert_eq!(sent(&mut uc), [(PRIMARY, true, SQ_PSN)]);
}

//= spec/states.md#qps-013
//= type=test
//# REARM without an alternate path, and ARMED unless it is armed for the same path, MUST be refused with EINVAL.
#[test]
fn states_that_cannot_be_set() {
    let refused = Err(ModifyError::Value(AttrMask::PATH_MIG_STATE));
    let mut qp = SingleQp::rts();
    set(&mut qp, MigrationState::Migrated).unwrap();
    assert_eq!(set(&mut qp, MigrationState::Rearm), refused);
    assert_eq!(set(&mut qp, MigrationState::Armed), refused);
    let given = QpAttr { alt_timeout: 32, ..attr(MigrationState::Rearm) };
    let modified = qp.node.modify(qp.now, qp.qpn, QpState::Rts, GIVEN, &given, to(ALTERNATE));
    assert_eq!(modified, Err(ModifyError::Value(AttrMask::ALT_PATH)));
    assert_eq!(qp.modify(QpState::Rts, AttrMask::ALT_PATH, &attr(MigrationState::Migrated)), modified);
    assert!(!qp.node.qp(qp.qpn).attr().has_alternate);
    rearm(&mut qp, ALTERNATE);
    assert_eq!(set(&mut qp, MigrationState::Armed), refused);
    qp.gets_ack(SQ_PSN - 1);
    set(&mut qp, MigrationState::Armed).unwrap();
    assert_eq!(qp.async_events(), []);
    let given = attr(MigrationState::Armed);
    assert_eq!(qp.node.modify(qp.now, qp.qpn, QpState::Rts, GIVEN, &given, to(ELSEWHERE)), refused);
    // RESET forgets the alternate path.
    qp.modify(QpState::Reset, AttrMask::STATE, &SingleQp::attr()).unwrap();
    qp.go_to(QpState::Rts, &SingleQp::attr());
    assert_eq!(set(&mut qp, MigrationState::Rearm), refused);
}

//= spec/states.md#qps-016
//= type=test
//# When the tries of an armed queue pair have run out, it MUST go on over the alternate path, with all its tries.
//= spec/states.md#qps-017
//= type=test
//# A queue pair that migrates MUST raise PATH_MIG.
#[test]
fn tries_that_run_out_migrate() {
    let mut qp = armed();
    qp.post(1, SendOp::Send, 300);
    assert_eq!(sent(&mut qp), [(PRIMARY, false, SQ_PSN), (PRIMARY, false, SQ_PSN + 1)]);
    for timeout in [ACK_TIMEOUT, LATER_TIMEOUT, LATER_TIMEOUT] {
        qp.elapse(timeout);
        assert!(sent(&mut qp).iter().all(|packet| packet.0 == PRIMARY));
    }
    qp.elapse(LATER_TIMEOUT);
    let log = qp.log();
    assert!(log.contains(&NodeEvent::Async(qp.qpn, AsyncEvent::PathMigrated)), "{log:?}");
    assert!(log.iter().any(|event| matches!(event, NodeEvent::Trace(_, Event::Migrated { .. }))));
    assert_eq!(state(&qp), MigrationState::Migrated);
    assert_eq!(sent(&mut qp), [(ALTERNATE, true, SQ_PSN), (ALTERNATE, true, SQ_PSN + 1)]);
    let found = qp.node.qp(qp.qpn).attr();
    assert_eq!((found.timeout, found.alt_timeout), (ALT_TIMEOUT, 14));
    // All tries again, each as long as this path has.
    for timeout in [ACK_TIMEOUT * 2, LATER_TIMEOUT, LATER_TIMEOUT] {
        qp.elapse(timeout);
        assert!(sent(&mut qp).contains(&(ALTERNATE, true, SQ_PSN)));
    }
    gets_ack(&mut qp, ALTERNATE, SQ_PSN + 1);
    assert_eq!(qp.completed(), [(1, WcStatus::Success)]);
    assert_eq!(qp.state(), QpState::Rts);
}

#[test]
fn without_an_armed_path_tries_end_the_request() {
    let mut migrated = SingleQp::rts();
    rearm(&mut migrated, ALTERNATE);
    set(&mut migrated, MigrationState::Migrated).unwrap();
    let mut rearmed = SingleQp::rts();
    rearm(&mut rearmed, ALTERNATE);
    let mut again = armed();
    assert!(again.node.path_failed(again.now, again.qpn));
    for mut qp in [SingleQp::rts(), migrated, rearmed, again] {
        qp.log();
        qp.post(1, SendOp::Send, 300);
        for _ in 0..4 {
            sent(&mut qp);
            qp.elapse(LATER_TIMEOUT);
        }
        assert_eq!(qp.completed(), [(1, WcStatus::RetryExceededError)]);
        assert_eq!(qp.state(), QpState::Err);
        assert!(!qp.node.path_failed(qp.now, qp.qpn));
    }
}

#[test]
fn the_consumer_migrates() {
    let mut qp = armed();
    qp.post(1, SendOp::Send, 1);
    sent(&mut qp);
    set(&mut qp, MigrationState::Migrated).unwrap();
    assert_eq!(qp.async_events(), [AsyncEvent::PathMigrated]);
    assert_eq!(sent(&mut qp), [(ALTERNATE, true, SQ_PSN)]);
    assert_eq!(qp.node.qp(qp.qpn).route().unwrap().to, ALTERNATE);
    assert_eq!(qp.node.qp(qp.qpn).alternate_route().unwrap().to, PRIMARY);
    assert!(qp.node.qp(qp.qpn).has_swapped_paths());
    set(&mut qp, MigrationState::Migrated).unwrap();
    assert_eq!(qp.node.qp(qp.qpn).route().unwrap().to, ALTERNATE);
}

/// UC has no tries: its responder follows, and its requester goes where a link is up.
#[test]
fn unreliable_connections_migrate() {
    let uc = || {
        let mut qp = SingleQp::of(QpType::Uc);
        rearm(&mut qp, ALTERNATE);
        qp.recv(1, 64);
        qp.gets(O::SendOnly, RQ_PSN, Ext::None, &[]);
        assert_eq!(state(&qp), MigrationState::Armed);
        qp
    };
    let mut qp = uc();
    qp.log();
    let opcode = Opcode::new(Transport::Uc, O::SendOnly).unwrap();
    let bth = Bth { mig_req: true, ..Bth::new(opcode, qp.qpn, Psn::new(RQ_PSN + 1)) };
    qp.gets_from(ALTERNATE, &Header::new(bth, Ext::None), &[]);
    assert_eq!(qp.async_events(), [AsyncEvent::PathMigrated]);
    let mut qp = uc();
    assert!(qp.node.path_failed(qp.now, qp.qpn));
    qp.post(1, SendOp::Send, 1);
    assert_eq!(sent(&mut qp), [(ALTERNATE, true, SQ_PSN)]);
}

/// A responder that answers an RNR NAK keeps its time across a migration.
#[test]
fn an_rnr_wait_goes_on() {
    let mut qp = armed();
    qp.post(1, SendOp::Send, 1);
    sent(&mut qp);
    qp.gets_aeth(SQ_PSN, Syndrome::RnrNak(urxe_wire::RnrTimer::new(20)));
    assert!(qp.node.path_failed(qp.now, qp.qpn));
    assert_eq!(sent(&mut qp), []);
    qp.elapse(Duration::from_millis(11));
    assert_eq!(sent(&mut qp), [(ALTERNATE, true, SQ_PSN)]);
}

#[test]
fn access_of_others_is_as_it_was() {
    let qp = armed();
    assert!(qp.node.qp(qp.qpn).attr().access.contains(Access::REMOTE_READ));
    assert!(!qp.node.qp(qp.qpn).may_be_skipped(), "migration needs packets");
    assert!(SingleQp::rts().node.qp(qp.qpn).may_be_skipped());
}
