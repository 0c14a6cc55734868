//! Connection requests between ports on `lo`: for services that nobody has yet, and copies of requests.

use urxe_net::Port;
use urxe_wire::cm::{CmMad, CommId, Message, SidrReq};
use urxe_wire::mad::MAD_LEN;
use urxe_wire::packet::Service;
use urxe_wire::{Bth, Deth, Ext, Gid, Header, Opcode, Operation, PKey, Packet, Psn, QKey, Qpn, Transport};

use crate::end::{End, destination};
use crate::namespace::alone;

const SERVICE_ID: u64 = 0x0106_1C06;

/// Sends request `id` to the owner of the address.
fn ask(end: &mut End, id: u32) {
    let request =
        SidrReq { request_id: CommId(id), p_key: PKey::DEFAULT, service_id: SERVICE_ID, private_data: [0; 216] };
    let mad = CmMad { transaction_id: id.into(), attribute_modifier: 0, message: Message::SidrReq(request) };
    let opcode = Opcode::new(Transport::Ud, Operation::SendOnly).unwrap();
    let service = Service::Datagram(Deth { q_key: QKey::GSI, src_qp: Qpn::GSI, lid_routed: false });
    let header = Header { bth: Bth::new(opcode, Qpn::GSI, Psn::default()), service, ext: Ext::None };
    let gid = gid(&end.port);
    let route = end.port.route(&destination(gid, gid, Qpn::GSI)).unwrap();
    let packet = end.tx.packet(&end.port, &route, header.len() + MAD_LEN);
    let at = header.emit(packet);
    packet[at..].copy_from_slice(&mad.to_bytes());
    end.tx.commit();
    end.tx.flush(&end.port);
}

fn gid(port: &Port) -> Gid {
    port.interface().gids()[1]
}

/// Receives what is there now: the requests that are delivered, and whether they are to be refused.
fn receive(end: &mut End, seen: &mut Vec<(u32, bool)>) {
    end.rx.woken();
    end.rx.receive(&end.port, 64, &mut |run| {
        for datagram in run.datagrams() {
            let packet = Packet::parse(datagram.payload).unwrap();
            let Message::SidrReq(request) = CmMad::parse(packet.payload).unwrap().message else { panic!("a request") };
            seen.push((request.request_id.0, datagram.is_refused));
        }
        false
    });
}

/// Receives until `condition` holds.
fn until(end: &mut End, seen: &mut Vec<(u32, bool)>, condition: impl Fn(&End, &[(u32, bool)]) -> bool) {
    let start = std::time::Instant::now();
    while !condition(end, seen) {
        receive(end, seen);
        assert!(start.elapsed() < crate::end::PATIENCE, "{seen:?}, {:?}", end.counts());
    }
}

//= spec/connections.md#cm-016
//= type=test
//# All copies of a request MUST be refused, or none.
#[test]
fn a_refused_request_is_refused_again_although_somebody_listens_by_then() {
    alone(|| {
        let (mut owner, mut server) = (End::on("lo"), End::on("lo"));
        let (mut here, mut there) = (Vec::new(), Vec::new());
        for copies in 1..=2 {
            ask(&mut owner, 1);
            until(&mut owner, &mut here, |owner, _| owner.count("early_requests") == copies);
        }
        until(&mut owner, &mut here, |_, here| !here.is_empty());
        assert_eq!(here, [(1, true)], "the copies share one refusal");
        let _service = server.port.serve(SERVICE_ID, gid(&server.port)).unwrap();
        ask(&mut owner, 1);
        until(&mut owner, &mut here, |_, here| here.len() == 2);
        assert_eq!(here, [(1, true); 2]);
        // Another is delivered, and nothing came before it.
        ask(&mut owner, 2);
        until(&mut owner, &mut here, |owner, _| owner.count("forwarded_out") > 0);
        until(&mut server, &mut there, |_, there| !there.is_empty());
        assert_eq!((here.len(), there), (2, vec![(2, false)]));
    });
}

#[test]
fn copies_of_a_refused_request_are_not_for_a_listener_of_the_owner() {
    alone(|| {
        let (mut owner, mut here) = (End::on("lo"), Vec::new());
        ask(&mut owner, 1);
        until(&mut owner, &mut here, |_, here| !here.is_empty());
        let _service = owner.port.serve(SERVICE_ID, gid(&owner.port)).unwrap();
        ask(&mut owner, 1);
        ask(&mut owner, 2);
        until(&mut owner, &mut here, |_, here| here.len() == 3);
        assert_eq!(here, [(1, true), (1, true), (2, false)]);
    });
}

#[test]
fn copies_that_wait_are_delivered_once() {
    alone(|| {
        let (mut owner, mut server) = (End::on("lo"), End::on("lo"));
        let (mut here, mut there) = (Vec::new(), Vec::new());
        ask(&mut owner, 1);
        ask(&mut owner, 1);
        ask(&mut owner, 1);
        until(&mut owner, &mut here, |owner, _| owner.count("early_requests") == 3);
        let _service = server.port.serve(SERVICE_ID, gid(&server.port)).unwrap();
        until(&mut owner, &mut here, |owner, here| owner.count("forwarded_out") > 0 || !here.is_empty());
        ask(&mut owner, 2);
        until(&mut owner, &mut here, |owner, here| owner.count("forwarded_out") > 1 || here.len() > 1);
        until(&mut server, &mut there, |_, there| there.len() + here.len() > 1);
        assert_eq!((here, there), (vec![], vec![(1, false), (2, false)]));
    });
}

/// A server may take a request, listen no more, and answer when it is ready.
#[test]
fn a_delivered_request_is_not_refused_when_its_listener_is_gone() {
    alone(|| {
        let (mut owner, mut server) = (End::on("lo"), End::on("lo"));
        let (mut here, mut there) = (Vec::new(), Vec::new());
        let service = server.port.serve(SERVICE_ID, gid(&server.port)).unwrap();
        ask(&mut owner, 1);
        until(&mut owner, &mut here, |owner, _| owner.count("forwarded_out") == 1);
        until(&mut server, &mut there, |_, there| !there.is_empty());
        drop(service);
        ask(&mut owner, 1);
        // A process that another test has forked may still have the listener's socket: other requests go there until it ends.
        let mut last = 1;
        while here.is_empty() {
            last += 1;
            ask(&mut owner, last);
            let forwarded = u64::from(last) + 1;
            until(&mut owner, &mut here, |owner, here| !here.is_empty() || owner.count("forwarded_out") == forwarded);
        }
        assert_eq!((here, there), (vec![(last, true)], vec![(1, false)]));
    });
}
