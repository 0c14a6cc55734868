//! Congestion notification: marks in, CNPs out, and the other way round.

mod rate;

use std::time::Duration;

use urxe_engine::congestion::{Algorithm, CongestionSettings, Parameters};
use urxe_engine::endpoint::Event as NodeEvent;
use urxe_engine::{Event, QpState, QpType};
use urxe_sim::single_qp::{PEER_QPN, RQ_PSN, SingleQp};
use urxe_wire::{Bth, Ext, Header, Opcode, Operation as O, PKey, Psn, Transport};

fn with(settings: CongestionSettings, qp_type: QpType) -> SingleQp {
    let mut qp = SingleQp::reset(|setup, _| {
        setup.congestion = settings;
        setup.qp_type = qp_type;
    });
    qp.go_to(QpState::Rts, &SingleQp::attr());
    qp
}

fn settings(algorithm: Algorithm) -> CongestionSettings {
    let parameters = Parameters { min_time_between_cnps: 50, ..Parameters::default() };
    CongestionSettings { ecn: true, algorithm, parameters, line_rate: 1000 }
}

fn send_only(qp: &SingleQp, psn: u32) -> Header {
    let opcode = Opcode::new(Transport::Rc, O::SendOnly).unwrap();
    Header::new(Bth { ack_req: true, ..Bth::new(opcode, qp.qpn, Psn::new(psn)) }, Ext::None)
}

fn cnp(qp: &SingleQp) -> Header {
    Header::new(Bth { becn: true, ..Bth::new(Opcode::CNP, qp.qpn, Psn::new(0)) }, Ext::CnpReserved)
}

/// Events about congestion.
fn told(qp: &mut SingleQp) -> Vec<Event> {
    let about = |event| match event {
        NodeEvent::Trace(_, event @ (Event::Marked { .. } | Event::SentCnp | Event::ReceivedCnp { .. })) => Some(event),
        _ => None,
    };
    qp.log().into_iter().filter_map(about).collect()
}

//= spec/congestion.md#ecn-002
//= type=test
//# A packet of the peer that has met congestion MUST be answered by a CNP, but by no more than one in
//# min_time_between_cnps.
#[test]
fn marks_are_answered_once_an_interval() {
    let mut qp = with(settings(Algorithm::Window), QpType::Rc);
    for n in 0..4 {
        qp.recv(n, 64);
    }
    qp.gets_marked(&send_only(&qp, RQ_PSN), b"a");
    qp.gets_marked(&send_only(&qp, RQ_PSN + 1), b"b");
    assert_eq!(told(&mut qp), [Event::Marked { packets: 1 }, Event::SentCnp, Event::Marked { packets: 1 }]);
    let sent = qp.sent();
    assert_eq!(sent, ["CNP 0", "ACK 101"]);
    let bth = sent[0].header.bth;
    assert!(bth.becn && !bth.fecn && !bth.ack_req && bth.dest_qp == PEER_QPN && bth.p_key == PKey::DEFAULT);
    qp.elapse(Duration::from_micros(50));
    qp.gets_marked(&send_only(&qp, RQ_PSN + 2), b"c");
    assert_eq!(qp.sent(), ["CNP 0", "ACK 102"]);
}

/// Values of `min_time_between_cnps`: of marked packets that come every 3 µs, the first that comes so long after a CNP gets
/// the next one.
//= spec/congestion.md#ecn-002
//= type=test
//# A packet of the peer that has met congestion MUST be answered by a CNP, but by no more than one in
//# min_time_between_cnps.
#[test]
fn min_time_between_cnps_is_kept() {
    const PACKETS: u32 = 40;
    // Which packets get a CNP: each that is a multiple.
    for (micros, every) in [(0, 1), (4, 2), (50, 17), (4095, PACKETS)] {
        let mut often = settings(Algorithm::Window);
        often.parameters.set("min_time_between_cnps", micros).unwrap();
        let mut qp = with(often, QpType::Rc);
        for nth in 0..PACKETS {
            qp.recv(nth.into(), 64);
            qp.gets_marked(&send_only(&qp, RQ_PSN + nth), b"x");
            let notified = qp.sent().iter().any(|packet| packet.header.bth.opcode == Opcode::CNP);
            assert_eq!(notified, nth % every == 0, "{micros} µs, packet {nth}");
            qp.elapse(Duration::from_micros(3));
        }
    }
}

/// FECN in a BTH says what CE says.
#[test]
fn fecn_is_answered_as_ce_is() {
    let mut qp = with(settings(Algorithm::Window), QpType::Rc);
    qp.recv(1, 64);
    qp.gets_changed(O::SendOnly, RQ_PSN, Ext::None, b"x", |bth| bth.fecn = true);
    assert_eq!(qp.sent(), ["CNP 0", "ACK 100"]);
}

/// A duplicate and a stranger's packet are what anybody could send; a CNP is no data.
#[test]
fn cnps_and_packets_of_strangers_get_no_cnp() {
    let mut qp = with(settings(Algorithm::Window), QpType::Rc);
    qp.gets_marked(&cnp(&qp), &[]);
    assert_eq!(told(&mut qp), [Event::ReceivedCnp { handled: true }]);
    let mut bth = send_only(&qp, RQ_PSN);
    bth.bth.fecn = true;
    qp.gets_from("10.0.0.3".parse().unwrap(), &bth, b"x");
    assert_eq!(qp.sent(), [""; 0]);
    let mut off = with(CongestionSettings::NONE, QpType::Rc);
    off.recv(1, 64);
    off.gets_marked(&send_only(&off, RQ_PSN), b"x");
    assert_eq!(off.sent(), ["ACK 100"]);
    assert_eq!(told(&mut off), []);
}

//= spec/congestion.md#ecn-003
//= type=test
//# A CNP of the peer MUST slow the requester. One without BECN, with a payload, or to a queue pair that does not send or
//# has no part in ECN MUST change nothing and be counted.
#[test]
fn cnps_slow_the_requester_or_are_ignored() {
    let ignored = [Event::ReceivedCnp { handled: false }];
    for algorithm in Algorithm::ALL.map(|(_, algorithm)| algorithm) {
        let mut qp = with(settings(algorithm), QpType::Rc);
        let before = qp.node.qp(qp.qpn).window();
        let mut without_becn = cnp(&qp);
        without_becn.bth.becn = false;
        qp.gets_from("10.0.0.2".parse().unwrap(), &without_becn, &[]);
        assert_eq!(told(&mut qp), ignored);
        qp.gets_from("10.0.0.2".parse().unwrap(), &cnp(&qp), b"data");
        assert_eq!(told(&mut qp), ignored);
        assert_eq!(qp.node.qp(qp.qpn).window(), before);
        qp.gets_from("10.0.0.2".parse().unwrap(), &cnp(&qp), &[]);
        assert_eq!(told(&mut qp), [Event::ReceivedCnp { handled: true }]);
        let slowed = qp.node.qp(qp.qpn).window() < before;
        assert_eq!(slowed, algorithm != Algorithm::Dcqcn, "{algorithm:?}: the window, or the rate");
    }
    let mut off = with(CongestionSettings::NONE, QpType::Rc);
    off.gets_from("10.0.0.2".parse().unwrap(), &cnp(&off), &[]);
    assert_eq!(told(&mut off), ignored);
}

/// BECN in another packet of the peer slows its requester as a CNP does, and is not answered; a stranger's changes nothing.
#[test]
fn becn_in_another_packet_is_obeyed() {
    let mut qp = with(settings(Algorithm::Window), QpType::Rc);
    qp.recv(1, 64);
    let before = qp.node.qp(qp.qpn).window();
    let mut header = send_only(&qp, RQ_PSN);
    header.bth.becn = true;
    qp.gets_from("10.0.0.3".parse().unwrap(), &header, b"x");
    assert_eq!(qp.node.qp(qp.qpn).window(), before);
    qp.gets_changed(O::SendOnly, RQ_PSN, Ext::None, b"x", |bth| bth.becn = true);
    assert!(qp.node.qp(qp.qpn).window() < before);
    assert_eq!(qp.sent(), ["ACK 100"]);
}
