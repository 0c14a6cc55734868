//! Automatic path migration, packet by packet.

use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use urxe_engine::attr::{AttrMask, QpAttr};
use urxe_engine::endpoint::{Datagram, Event as NodeEvent, Route};
use urxe_engine::rng::Rng;
use urxe_engine::{
    Access, AsyncEvent, DropReason, Event, MigrationState, ModifyError, Paths, QpState, QpType, SendOp, WcStatus,
};
use urxe_sim::single_qp::{MTU, RQ_PSN, SQ_PSN, SingleQp};
use urxe_wire::{
    Aeth, Bth, Credits, Ext, Header, Msn, Opcode, Operation as O, Packet, Psn, RKey, ROCE_PORT, Reth, SelectiveAck,
    SelectiveOffer, Syndrome, Transport,
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

//= spec/states.md#qps-014
//= type=test
//# In REARM a packet without MigReq on the primary path MUST arm the queue pair; when it is armed, one with MigReq on the
//# alternate path MUST migrate it.
#[test]
fn the_peer_is_followed() {
    let mut qp = SingleQp::rts();
    (0..4).for_each(|nth| qp.recv(nth, 64));
    rearm(&mut qp, ALTERNATE);
    gets(&mut qp, PRIMARY, RQ_PSN, true);
    assert_eq!(state(&qp), MigrationState::Rearm, "the peer is not armed");
    gets(&mut qp, PRIMARY, RQ_PSN + 1, false);
    assert_eq!(state(&qp), MigrationState::Armed);
    // One that was sent before the peer was armed.
    gets(&mut qp, PRIMARY, RQ_PSN, true);
    assert_eq!(state(&qp), MigrationState::Armed);
    sent(&mut qp);
    qp.post(7, SendOp::Send, 1);
    sent(&mut qp);
    qp.log();
    gets(&mut qp, ALTERNATE, RQ_PSN + 2, true);
    let log = qp.log();
    assert_eq!(log.iter().filter(|event| matches!(event, NodeEvent::Async(..))).count(), 1);
    assert!(log.contains(&NodeEvent::Async(qp.qpn, AsyncEvent::PathMigrated)));
    assert_eq!(state(&qp), MigrationState::Migrated);
    // The request that may have been lost takes the other path with the answer.
    let mut leaves = sent(&mut qp);
    leaves.sort_by_key(|(.., psn)| *psn);
    assert_eq!(leaves, [(ALTERNATE, true, RQ_PSN + 2), (ALTERNATE, true, SQ_PSN)]);
    // What was late on the path that was left counts.
    gets(&mut qp, PRIMARY, RQ_PSN + 3, false);
    assert_eq!(sent(&mut qp), [(ALTERNATE, true, RQ_PSN + 3)]);
    assert_eq!(qp.async_events(), []);
    // REARM without another path takes the one that was left.
    set(&mut qp, MigrationState::Rearm).unwrap();
    gets_ack(&mut qp, ALTERNATE, SQ_PSN);
    gets(&mut qp, ALTERNATE, RQ_PSN + 3, false);
    assert_eq!(state(&qp), MigrationState::Armed);
    assert!(qp.node.path_failed(qp.now, qp.qpn));
    assert!(sent(&mut qp).iter().all(|packet| packet.0 == PRIMARY));
}

/// The peer was armed, and the packets that would have armed this end were lost with its path.
#[test]
fn a_peer_that_was_armed_first_is_followed() {
    let mut qp = SingleQp::rts();
    qp.recv(1, 64);
    rearm(&mut qp, ALTERNATE);
    gets(&mut qp, ALTERNATE, RQ_PSN, false);
    assert_eq!(qp.drops(), [DropReason::Stranger]);
    gets(&mut qp, ALTERNATE, RQ_PSN, true);
    assert_eq!(qp.async_events(), [AsyncEvent::PathMigrated]);
    assert_eq!(sent(&mut qp), [(ALTERNATE, true, RQ_PSN)]);
}

//= spec/states.md#qps-015
//= type=test
//# A packet with MigReq that takes neither path of an armed queue pair MUST be dropped, and raise PATH_MIG_ERR, once, if one of
//# its addresses is that of an end of a path.
#[test]
fn a_path_that_is_none_of_its_own() {
    let mut qp = armed();
    gets(&mut qp, ELSEWHERE, RQ_PSN, false);
    assert_eq!(qp.drops(), [DropReason::Stranger]);
    for events in [&[AsyncEvent::PathMigrationError][..], &[]] {
        gets(&mut qp, ELSEWHERE, RQ_PSN, true);
        assert_eq!(qp.async_events(), events);
        assert_eq!(state(&qp), MigrationState::Armed);
    }
    assert_eq!(sent(&mut qp), []);
    // Armed anew, it is told anew.
    rearm(&mut qp, ALTERNATE);
    qp.gets_ack(SQ_PSN - 1);
    gets(&mut qp, ELSEWHERE, RQ_PSN, true);
    assert_eq!(qp.async_events(), [AsyncEvent::PathMigrationError]);
    // Neither from the peer, nor to where it sends.
    let mut qp = armed();
    let opcode = Opcode::new(Transport::Rc, O::SendOnly).unwrap();
    let header = Header::new(Bth { mig_req: true, ..Bth::new(opcode, qp.qpn, Psn::new(RQ_PSN)) }, Ext::None);
    let mut bytes = vec![0; header.len()];
    header.emit(&mut bytes);
    let [from, to] = [ELSEWHERE, IpAddr::from([10, 2, 0, 1])].map(|address| SocketAddr::new(address, ROCE_PORT));
    qp.node.receive(qp.now, &Datagram::with_icrc(from, to, bytes));
    let log = qp.log();
    assert!(log.iter().any(|event| matches!(event, NodeEvent::Trace(_, Event::Dropped { .. }))), "{log:?}");
    assert!(!log.iter().any(|event| matches!(event, NodeEvent::Async(..))), "{log:?}");
    // Without an alternate path it is a stranger like any.
    let mut qp = SingleQp::rts();
    gets(&mut qp, ALTERNATE, RQ_PSN, true);
    assert_eq!(qp.async_events(), []);
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

//= spec/states.md#qps-018
//= type=test
//# A queue pair that has migrated on its own, or takes a packet without MigReq of the path it left, MUST send MigReq in
//# REARM too, until the peer is heard on the new path; paths of the same addresses are not told apart.
#[test]
fn a_peer_that_has_heard_nothing_is_told_after_rearm() {
    let mut qp = armed();
    (0..4).for_each(|nth| qp.recv(nth, 64));
    assert!(qp.node.path_failed(qp.now, qp.qpn));
    set(&mut qp, MigrationState::Rearm).unwrap();
    qp.post(1, SendOp::Send, 1);
    assert_eq!(sent(&mut qp), [(ALTERNATE, true, SQ_PSN)]);
    // The peer has not heard, and is still on the path that was left: that does not arm.
    gets(&mut qp, PRIMARY, RQ_PSN, false);
    assert_eq!(state(&qp), MigrationState::Rearm);
    assert_eq!(sent(&mut qp), [(ALTERNATE, true, RQ_PSN)]);
    // It has followed.
    gets_ack(&mut qp, ALTERNATE, SQ_PSN);
    assert_eq!(state(&qp), MigrationState::Rearm);
    qp.post(2, SendOp::Send, 1);
    assert_eq!(sent(&mut qp), [(ALTERNATE, false, SQ_PSN + 1)]);
    gets(&mut qp, ALTERNATE, RQ_PSN + 1, false);
    assert_eq!(state(&qp), MigrationState::Armed);
    // One that has followed its peer has nothing to tell.
    let mut qp = armed();
    qp.recv(1, 64);
    gets(&mut qp, ALTERNATE, RQ_PSN, true);
    set(&mut qp, MigrationState::Rearm).unwrap();
    assert_eq!(sent(&mut qp), [(ALTERNATE, false, RQ_PSN)]);
}

/// An end that has migrated back takes a late acknowledgement for word that its peer is there, too. The peer is heard nevertheless,
/// and told.
#[test]
fn a_late_packet_of_the_path_returned_to() {
    let mut qp = armed();
    (0..4).for_each(|nth| qp.recv(nth, 64));
    qp.post(1, SendOp::Send, 1);
    sent(&mut qp);
    assert!(qp.node.path_failed(qp.now, qp.qpn));
    set(&mut qp, MigrationState::Rearm).unwrap();
    gets_ack_with(&mut qp, ALTERNATE, SQ_PSN, false);
    assert_eq!(state(&qp), MigrationState::Armed);
    sent(&mut qp);
    assert!(qp.node.path_failed(qp.now, qp.qpn));
    gets_ack_with(&mut qp, PRIMARY, SQ_PSN, false);
    set(&mut qp, MigrationState::Rearm).unwrap();
    qp.post(2, SendOp::Send, 1);
    assert_eq!(sent(&mut qp), [(PRIMARY, false, SQ_PSN + 1)]);
    qp.log();
    gets(&mut qp, ALTERNATE, RQ_PSN, false);
    assert_eq!(qp.drops(), []);
    assert_eq!(sent(&mut qp), [(PRIMARY, true, RQ_PSN)]);
    // One that a late packet has armed takes those of the path it left, too.
    gets_ack_with(&mut qp, PRIMARY, SQ_PSN + 1, false);
    assert_eq!(state(&qp), MigrationState::Armed);
    gets(&mut qp, ALTERNATE, RQ_PSN + 1, false);
    assert_eq!(sent(&mut qp), [(PRIMARY, false, RQ_PSN + 1)]);
    assert_eq!(state(&qp), MigrationState::Armed);
}

/// The usual answer to PATH_MIG: another alternate path. The peer, which has not heard of the migration, is heard and told.
#[test]
fn the_path_that_was_left_is_known_behind_another_alternate_one() {
    let mut qp = armed();
    (0..4).for_each(|nth| qp.recv(nth, 64));
    assert!(qp.node.path_failed(qp.now, qp.qpn));
    rearm(&mut qp, ELSEWHERE);
    gets(&mut qp, PRIMARY, RQ_PSN, false);
    assert_eq!(state(&qp), MigrationState::Rearm);
    assert_eq!(sent(&mut qp), [(ALTERNATE, true, RQ_PSN)]);
    gets(&mut qp, PRIMARY, RQ_PSN + 1, true);
    assert_eq!(state(&qp), MigrationState::Rearm, "another path than that which the peer asks for");
    gets(&mut qp, ALTERNATE, RQ_PSN + 2, false);
    assert_eq!(state(&qp), MigrationState::Armed);
}

/// Two queue pairs with two paths that both work, and packets on their way to each.
struct Ends {
    ends: [SingleQp; 2],
    /// By the end that gets them, then by path.
    flights: [[VecDeque<Vec<u8>>; 2]; 2],
    posted: [u64; 2],
    done: [u64; 2],
}

impl Ends {
    fn new() -> Self {
        let ends = [(); 2].map(|()| SingleQp::with(|attr| attr.rq_psn = Psn::new(SQ_PSN)));
        let mut ends = Self { ends, flights: Default::default(), posted: [0; 2], done: [0; 2] };
        ends.ends.iter_mut().for_each(|qp| rearm(qp, ALTERNATE));
        ends
    }

    fn post(&mut self, end: usize) {
        self.posted[end] += 1;
        self.ends[1 - end].recv(0, 64);
        self.ends[end].post(self.posted[end], SendOp::Send, 1);
    }

    fn transmit(&mut self) {
        for end in 0..2 {
            let qp = &mut self.ends[end];
            qp.node.transmit(qp.now);
            for datagram in qp.node.nic().take_sent() {
                let path = usize::from(datagram.to.ip() == ALTERNATE);
                self.flights[1 - end][path].push_back(datagram.bytes);
            }
        }
    }

    /// The first packet of a path to an end arrives there. Returns whether there was one.
    fn deliver(&mut self, end: usize, path: usize) -> bool {
        self.transmit();
        let Some(bytes) = self.flights[end][path].pop_front() else { return false };
        let packet = Packet::parse(&bytes).unwrap();
        let mut header = packet.header;
        header.bth.dest_qp = self.ends[end].qpn;
        self.ends[end].gets_from([PRIMARY, ALTERNATE][path], &header, packet.payload);
        true
    }

    /// Lets all that is posted complete.
    fn finish(&mut self, what: &str) {
        for _ in 0..100 {
            while (0..4).any(|nth| self.deliver(nth / 2, nth % 2)) {}
            for end in 0..2 {
                for cqe in self.ends[end].cqes() {
                    assert_eq!(cqe.status, WcStatus::Success, "{what}, end {end}");
                    self.done[end] += u64::from(cqe.wr_id != 0);
                }
            }
            if self.done == self.posted {
                return;
            }
            self.ends.iter_mut().for_each(|qp| qp.elapse(ACK_TIMEOUT / 4));
        }
        panic!("{what}: {:?} of {:?}", self.done, self.posted);
    }

    fn states(&self) -> [MigrationState; 2] {
        [0, 1].map(|end| state(&self.ends[end]))
    }
}

/// Ends migrate and are re-armed in any order, before or after they have heard of each other: nothing fails, and both come to the
/// same path and are armed again.
#[test]
fn any_order_of_migration_and_rearm_is_survived() {
    for seed in 0..400 {
        let mut rng = Rng::new(seed);
        let mut both = Ends::new();
        for round in 0..4 {
            let what = format!("seed {seed}, round {round}");
            (0..4).for_each(|nth| {
                both.post(nth % 2);
                both.finish(&what);
            });
            assert_eq!(both.states(), [MigrationState::Armed; 2], "{what}");
            let mut may_migrate = [2_u8; 2];
            for _ in 0..rng.below(16) {
                let end = usize::from(rng.next_u8() & 1);
                let qp = &mut both.ends[end];
                match rng.below(4) {
                    0 if may_migrate[end] > 0 && state(qp) == MigrationState::Armed => {
                        may_migrate[end] -= 1;
                        assert!(qp.node.path_failed(qp.now, qp.qpn));
                    }
                    0 | 1 if state(qp) == MigrationState::Migrated => set(qp, MigrationState::Rearm).unwrap(),
                    2 => both.post(end),
                    _ => {
                        both.deliver(end, usize::from(rng.next_u8() & 1));
                    }
                }
            }
            both.post(usize::from(rng.next_u8() & 1));
            both.finish(&what);
            (0..2).for_each(|end| both.post(end));
            both.finish(&what);
            let paths = [0, 1].map(|end| both.ends[end].node.qp(both.ends[end].qpn).route().unwrap().to);
            assert_eq!(paths[0], paths[1], "{what}");
            for qp in &mut both.ends {
                if state(qp) == MigrationState::Migrated {
                    set(qp, MigrationState::Rearm).unwrap();
                }
            }
        }
    }
}

//= spec/states.md#qps-019
//= type=test
//# An alternate path given in ARMED MUST put the queue pair in REARM: the peer was armed for another.
#[test]
fn another_path_is_armed_anew() {
    let mut qp = armed();
    gets(&mut qp, ELSEWHERE, RQ_PSN, true);
    assert_eq!(qp.async_events(), [AsyncEvent::PathMigrationError]);
    let given = attr(MigrationState::Migrated);
    qp.node.modify(qp.now, qp.qpn, QpState::Rts, AttrMask::ALT_PATH, &given, to(ELSEWHERE)).unwrap();
    assert_eq!(state(&qp), MigrationState::Rearm);
    assert!(!qp.node.path_failed(qp.now, qp.qpn), "the peer has not agreed");
    qp.gets_ack(SQ_PSN - 1);
    assert_eq!(state(&qp), MigrationState::Armed);
    gets(&mut qp, ALTERNATE, RQ_PSN, true);
    assert_eq!(qp.async_events(), [AsyncEvent::PathMigrationError]);
    assert!(qp.node.path_failed(qp.now, qp.qpn));
    assert_eq!(qp.node.qp(qp.qpn).route().unwrap().to, ELSEWHERE);
    // MIGRATED with another path does not go there either.
    let mut qp = armed();
    qp.node.modify(qp.now, qp.qpn, QpState::Rts, GIVEN, &given, to(ELSEWHERE)).unwrap();
    assert_eq!(state(&qp), MigrationState::Migrated);
    assert_eq!(qp.node.qp(qp.qpn).route().unwrap().to, PRIMARY);
    assert_eq!(qp.async_events(), []);
}

//= spec/states.md#qps-020
//= type=test
//# Packets of the path that was left last MUST be taken, when armed those without MigReq; other packets of the alternate path
//# MUST be dropped in MIGRATED, and everywhere those without MigReq.
#[test]
fn migrated_takes_the_primary_path() {
    let mut qp = SingleQp::rts();
    (0..4).for_each(|nth| qp.recv(nth, 64));
    let given = attr(MigrationState::Migrated);
    qp.node.modify(qp.now, qp.qpn, QpState::Rts, AttrMask::ALT_PATH, &given, to(ALTERNATE)).unwrap();
    for mig_req in [false, true] {
        gets(&mut qp, ALTERNATE, RQ_PSN, mig_req);
        assert_eq!(qp.drops(), [DropReason::Stranger], "a path that was never armed");
    }
    let mut qp = armed();
    (0..4).for_each(|nth| qp.recv(nth, 64));
    gets(&mut qp, ALTERNATE, RQ_PSN, true);
    assert_eq!(state(&qp), MigrationState::Migrated);
    gets(&mut qp, PRIMARY, RQ_PSN + 1, false);
    assert_eq!(qp.drops(), []);
    // Both ends may be MIGRATED, each on a path of its own: no packet of before the migration.
    gets(&mut qp, PRIMARY, RQ_PSN + 2, true);
    assert_eq!((qp.drops(), state(&qp)), (vec![], MigrationState::Migrated));
    // A path that is given later was never the primary one; that which was left still was.
    qp.node.modify(qp.now, qp.qpn, QpState::Rts, AttrMask::ALT_PATH, &given, to(ELSEWHERE)).unwrap();
    qp.log();
    gets(&mut qp, ELSEWHERE, RQ_PSN + 3, false);
    assert_eq!(qp.drops(), [DropReason::Stranger]);
    gets(&mut qp, PRIMARY, RQ_PSN + 3, false);
    assert_eq!(qp.drops(), []);
}

//= spec/states.md#qps-021
//= type=test
//# CNPs, selective repeat offers, requests of RC and XRC far from the one expected, and answers to what is not outstanding MUST
//# NOT arm or migrate a queue pair, nor raise PATH_MIG_ERR.
#[test]
fn packets_that_say_nothing_of_paths() {
    let chatter = |qp: &mut SingleQp, from, mig_req| {
        let offer = SelectiveOffer { answer: false, window: 64 };
        let own = [(Opcode::CNP, Ext::CnpReserved), (Opcode::SELECTIVE_OFFER, Ext::SelectiveOffer(offer))];
        for (opcode, ext) in own {
            let bth = Bth { mig_req, becn: opcode == Opcode::CNP, ..Bth::new(opcode, qp.qpn, Psn::new(0)) };
            qp.gets_from(from, &Header::new(bth, ext), &[]);
        }
        // Before the last one done, and never sent.
        for psn in [SQ_PSN - 2, SQ_PSN] {
            let opcode = Opcode::new(Transport::Rc, O::Acknowledge).unwrap();
            let aeth = Aeth { syndrome: Syndrome::Ack(Credits::INVALID), msn: Msn::default() };
            let bth = Bth { mig_req, ..Bth::new(opcode, qp.qpn, Psn::new(psn)) };
            qp.gets_from(from, &Header::new(bth, Ext::Aeth(aeth)), &[]);
        }
        // Guesses.
        for psn in [Psn::new(RQ_PSN).add(100_000), Psn::new(RQ_PSN).sub(100_000)] {
            gets(qp, from, psn.get(), mig_req);
        }
    };
    let mut qp = SingleQp::rts();
    rearm(&mut qp, ALTERNATE);
    chatter(&mut qp, PRIMARY, false);
    assert_eq!(state(&qp), MigrationState::Rearm);
    let mut qp = armed();
    chatter(&mut qp, ALTERNATE, true);
    chatter(&mut qp, ELSEWHERE, true);
    assert_eq!(state(&qp), MigrationState::Armed);
    assert_eq!(qp.async_events(), []);
    // What is outstanding counts.
    qp.post(1, SendOp::Send, 1);
    sent(&mut qp);
    gets_ack(&mut qp, ALTERNATE, SQ_PSN);
    assert_eq!(state(&qp), MigrationState::Migrated);
}

/// The peer repeats a READ from where its answer broke off, far from the request that comes next.
#[test]
fn the_rest_of_a_long_read_is_a_request_of_the_peer() {
    const LENGTH: u32 = 2 << 20;
    let mut qp = armed();
    let region = qp.node.memory_mut().register_new(LENGTH as usize, Access::LOCAL_WRITE | Access::REMOTE_READ);
    let read = |qp: &mut SingleQp, from, packets: u32, mig_req| {
        let opcode = Opcode::new(Transport::Rc, O::ReadRequest).unwrap();
        let at = packets * u32::try_from(MTU).unwrap();
        let reth = Reth { va: region.addr + u64::from(at), r_key: RKey(region.key.0), dma_len: LENGTH - at };
        let bth = Bth { mig_req, ack_req: true, ..Bth::new(opcode, qp.qpn, Psn::new(RQ_PSN + packets)) };
        qp.gets_from(from, &Header::new(bth, Ext::Reth(reth)), &[]);
    };
    read(&mut qp, PRIMARY, 0, false);
    while !sent(&mut qp).is_empty() {}
    read(&mut qp, ALTERNATE, 100, true);
    assert_eq!(state(&qp), MigrationState::Migrated);
    assert_eq!(sent(&mut qp).first(), Some(&(ALTERNATE, true, RQ_PSN + 100)));
}

/// A responder that has migrated may owe a selective acknowledgement only: it takes its peer along.
#[test]
fn selective_acknowledgements_speak_of_paths() {
    let told = |psn| {
        let mut qp = SingleQp::reset(|setup, _| setup.selective_paths = 1);
        qp.go_to(QpState::Rts, &SingleQp::attr());
        rearm(&mut qp, ALTERNATE);
        qp.gets_ack(SQ_PSN - 1);
        let offer = Ext::SelectiveOffer(SelectiveOffer { answer: false, window: 64 });
        qp.gets_from(PRIMARY, &Header::new(Bth::new(Opcode::SELECTIVE_OFFER, qp.qpn, Psn::new(0)), offer), &[]);
        qp.post(1, SendOp::Send, 600);
        sent(&mut qp);
        let bth = Bth { mig_req: true, ..Bth::new(Opcode::SELECTIVE_ACK, qp.qpn, Psn::new(psn)) };
        let header = Header::new(bth, Ext::SelectiveAck(SelectiveAck { duplicates: 0 }));
        qp.gets_from(ALTERNATE, &header, &[]);
        state(&qp)
    };
    for psn in [SQ_PSN, SQ_PSN + 3] {
        assert_eq!(told(psn), MigrationState::Migrated, "{psn}");
    }
    for psn in [SQ_PSN - 1, SQ_PSN + 4] {
        assert_eq!(told(psn), MigrationState::Armed, "{psn}");
    }
}
