//! Packets of the peer that arm a queue pair or migrate it, and those that do not.

use std::net::{IpAddr, SocketAddr};

use urxe_engine::attr::AttrMask;
use urxe_engine::endpoint::{Datagram, Event as NodeEvent};
use urxe_engine::{Access, AsyncEvent, DropReason, Event, MigrationState, QpState, SendOp};
use urxe_sim::single_qp::{MTU, RQ_PSN, SQ_PSN, SingleQp};
use urxe_wire::{
    Aeth, Bth, Credits, Ext, Header, Msn, Opcode, Operation as O, Psn, RKey, ROCE_PORT, Reth, SelectiveAck,
    SelectiveOffer, Syndrome, Transport,
};

use crate::{
    ALTERNATE, ELSEWHERE, GIVEN, PRIMARY, armed, attr, gets, gets_ack, gets_ack_with, rearm, sent, set, state, to,
};

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
