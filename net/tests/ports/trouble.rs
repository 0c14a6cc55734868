//! Trouble before or beside the traffic: errors of opening, strangers, floods.

use std::net::{IpAddr, UdpSocket};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as UnixAddr, UnixDatagram};

use urxe_net::{Interface, Port, PortError};
use urxe_wire::{Gid, Qpn};

use crate::end::{End, PATIENCE, introduce};
use crate::namespace::{alone, ip};

//= spec/hosts.md#net-003
//= type=test
//# A port that another program holds MUST be an error that says so.
#[test]
fn a_foreign_holder_of_port_4791_is_an_error_that_names_the_address() {
    for (holder, address) in
        [("127.0.0.1:4791", "127.0.0.1:4791"), ("0.0.0.0:4791", "127.0.0.1:4791"), ("[::1]:4791", "[::1]:4791")]
    {
        alone(|| {
            let _holder = UdpSocket::bind(holder).unwrap();
            let error = Port::open(Interface::by_name("lo").unwrap()).map(|_| ()).unwrap_err();
            assert!(matches!(&error, PortError::PortTaken { address: a } if a.to_string() == address), "{error}");
        });
    }
}

#[test]
fn an_interface_that_is_down_or_without_address_says_so() {
    alone(|| {
        let usable = || Interface::by_name("lo").unwrap().check_usable();
        usable().unwrap();
        ip("link set lo down");
        assert!(matches!(usable(), Err(PortError::InterfaceDown { .. })));
        ip("link set lo up");
        ip("address flush dev lo");
        assert!(matches!(usable(), Err(PortError::NoAddress { .. })));
    });
}

#[test]
fn a_fresh_ipv6_address_is_no_obstacle() {
    alone(|| {
        ip("link add v0 type veth peer name v1");
        ip("address add 10.7.0.1/24 dev v0");
        ip("link set v1 up");
        ip("link set v0 up");
        // Tentative for the next second or so, if it is there already.
        ip("address add 2001:db8::1/64 dev v0");
        let interface = Interface::by_name("v0").unwrap();
        assert!(interface.addresses().iter().any(|a| a.is_ipv6()));
        assert_eq!(interface.path_mtu(), 1024);
        assert_eq!(interface.gids()[0].octets()[..8], [0xFE, 0x80, 0, 0, 0, 0, 0, 0]);
        assert_eq!(interface.gids()[1].octets()[10..], [0xFF, 0xFF, 10, 7, 0, 1]);
        Port::open(interface).unwrap();
    });
}

/// Cheap pseudo-random bytes, the same in every run.
fn noise(seed: &mut u64, len: usize) -> Vec<u8> {
    (0..len)
        .map(|_| {
            *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (*seed >> 56) as u8
        })
        .collect()
}

//= spec/packets.md#pkt-014
//= type=test
//# Datagrams that are no RoCE v2 packets MUST do no harm.
#[test]
fn garbage_does_no_harm() {
    alone(|| {
        let (mut owner, mut other) = (End::on("lo"), End::on("lo"));
        let route = owner.route(1, other.qpn);
        introduce(&mut owner, None, &mut other, &route);
        let stranger = UdpSocket::bind("127.0.0.1:0").unwrap();
        let mailbox = UnixDatagram::unbound().unwrap();
        mailbox.set_nonblocking(true).unwrap();
        let name = format!("urxe/1/qpn/{:04x}", other.qpn.get() >> 8);
        let name = UnixAddr::from_abstract_name(name).unwrap();
        let mut seed = 1;
        for round in 0..5000 {
            let len = [0, 1, 11, 12, 15, 16, 17, 60, 64, 1000, 9000, 65507][round % 12];
            let bytes = noise(&mut seed, len);
            stranger.send_to(&bytes, "127.0.0.1:4791").unwrap();
            // The mailbox may be full at times.
            let _ = mailbox.send_to_addr(&bytes, &name);
            for end in [&mut owner, &mut other] {
                let End { port, rx, .. } = end;
                rx.woken();
                // Random bytes may name a QPN of ours; the ICRC is for the caller to check.
                rx.receive(port, 64, &mut |run| {
                    assert!(run.datagrams().all(|d| d.verify() == urxe_wire::icrc::Check::Bad));
                    false
                });
            }
        }
        for name in ["drop_short", "drop_unknown_qpn"] {
            assert!(owner.count(name) > 1000, "{name}: {:?}", owner.counts());
        }
        assert!(other.count("drop_mailbox_bad") > 1000, "{:?}", other.counts());
        owner.send(&route, other.qpn, 1, 60);
        let start = std::time::Instant::now();
        let arrival = loop {
            // A flow that was idle for long is closed, and then the owner forwards.
            owner.receive();
            if let Some(arrival) = other.receive().into_iter().next() {
                break arrival;
            }
            assert!(start.elapsed() < PATIENCE, "{:?}", other.counts());
        };
        assert_eq!(arrival.number, 1);
    });
}

//= spec/hosts.md#net-005
//= type=test
//# A forwarded packet MUST NOT be forwarded again.
#[test]
fn a_mailbox_does_not_forward_again() {
    alone(|| {
        let (mut owner, mut other) = (End::on("lo"), End::on("lo"));
        // Learn what a forwarded datagram looks like by standing in for the owner of a block.
        let block = (1..0xFFFF).find(|b| ![owner.qpn, other.qpn].map(|q| q.get() >> 8).contains(b)).unwrap();
        let stand_in = |b: u32| UnixAddr::from_abstract_name(format!("urxe/1/qpn/{b:04x}")).unwrap();
        let mailbox = UnixDatagram::bind_addr(&stand_in(block)).unwrap();
        let qpn = Qpn::new(block << 8);
        let route = owner.route(1, qpn);
        owner.send(&route, qpn, 1, 60);
        owner.until("forwarded", |owner| owner.count("forwarded_out") == 1);
        let mut datagram = vec![0; 1 << 16];
        let len = mailbox.recv(&mut datagram).unwrap();
        // The same to a process that does not own the block.
        let to = stand_in(other.qpn.get() >> 8);
        mailbox.send_to_addr(&datagram[..len], &to).unwrap();
        other.until("dropped", |other| other.count("drop_mailbox_bad") == 1);
        assert_eq!((other.count("rx_packets"), other.count("forwarded_out"), other.count("flows_opened")), (0, 0, 0));
    });
}

#[test]
fn packets_longer_than_the_mtu_are_counted_and_the_others_pass() {
    alone(|| {
        ip("link set lo mtu 1500");
        let (mut owner, mut other) = (End::on("lo"), End::on("lo"));
        for gid in [1, 2] {
            let route = other.route(gid, owner.qpn);
            for (count, expected) in [(1, 1), (5, 5)] {
                let before = other.count("tx_too_long");
                for number in 0..count {
                    other.queue(&route, owner.qpn, number, 4108);
                }
                other.tx.flush(&other.port);
                assert_eq!(other.count("tx_too_long") - before, expected, "{:?}", other.counts());
            }
            let before = other.count("tx_runs");
            for number in 0..10 {
                other.queue(&route, owner.qpn, number, 1036);
            }
            other.tx.flush(&other.port);
            assert_eq!(other.count("tx_runs") - before, 1, "runs still go in one piece");
            assert_eq!(owner.expect(10).len(), 10);
        }
    });
}

#[test]
fn without_a_way_packets_are_counted() {
    alone(|| {
        let mut end = End::on("lo");
        let gids = end.port.interface().gids().to_vec();
        let remote = Gid::from(IpAddr::from([192, 0, 2, 1]));
        let to = crate::end::destination(gids[1], remote, Qpn::new(0x1234));
        let route = end.port.route(&to).unwrap();
        end.send(&route, Qpn::new(0x1234), 1, 60);
        let lost = end.count("tx_unreachable") + end.count("tx_other");
        assert_eq!(lost, 1, "{:?}", end.counts());
    });
}
