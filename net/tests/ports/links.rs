//! Links that come up after the port was opened, and that go down.

use std::net::IpAddr;
use std::time::Instant;

use urxe_net::LinkEvent;
use urxe_wire::{Gid, Qpn};

use crate::end::{End, PATIENCE, destination};
use crate::namespace::{alone, ip};

/// A port is opened on an interface that is down, with an address or without any. It receives from when the link is up.
#[test]
fn a_port_opens_before_its_link_is_up() {
    for (before, after) in
        [(&["address add 10.7.0.1/24 dev v0"][..], &[][..]), (&[], &["address add 10.7.0.1/24 dev v0"])]
    {
        alone(|| {
            ip("link add v0 type veth peer name v1");
            ip("link set v1 up");
            before.iter().for_each(|line| ip(line));
            let [mut near, mut far] = [(); 2].map(|()| End::on("v0"));
            let gids = |end: &End| end.port.interface().gids().len();
            assert_eq!((gids(&near), near.port.interface().is_running()), (1 + before.len(), false));
            assert!(near.port.receive_buffer() > 0);
            ip("link set v0 up");
            after.iter().for_each(|line| ip(line));
            for end in [&mut near, &mut far] {
                end.until("the address is known", |end| gids(end) > 1 && end.port.interface().is_running());
                assert!(end.port.take_link_events().contains(&LinkEvent::Up));
            }
            let route = near.route(1, far.qpn);
            near.send(&route, far.qpn, 0, 64);
            // One of the two owns the address, and forwards what is for the other.
            let start = Instant::now();
            let mut arrivals = Vec::new();
            while arrivals.is_empty() {
                near.receive();
                arrivals.extend(far.receive());
                assert!(start.elapsed() < PATIENCE, "{:?} {:?}", near.counts(), far.counts());
            }
            assert_eq!(arrivals[0].number, 0);
        });
    }
}

/// The link goes down while packets are on their way, and the host has another way to the peer: they are lost, as on a card, and
/// do not leave by the other interface.
#[test]
fn packets_of_a_link_that_is_down_take_no_other_way() {
    alone(|| {
        for (name, address) in [("v0", "10.7.0.1/24"), ("w0", "10.8.0.1/24")] {
            ip(&format!("link add {name} type veth peer name {name}x"));
            ip(&format!("link set {name}x up"));
            ip(&format!("address add {address} dev {name}"));
            ip(&format!("link set {name} up"));
        }
        ip("route add default via 10.8.0.2 dev w0");
        ip("neighbor add 10.8.0.2 lladdr 02:00:00:00:00:09 dev w0");
        let mut end = End::on("v0");
        let own = end.port.interface().gids()[1];
        let peer = Gid::from(IpAddr::from([10, 7, 0, 2]));
        let route = end.port.route(&destination(own, peer, Qpn::new(0x111))).unwrap();
        ip("link set v0 down");
        end.until("the port is down", |end| !end.port.interface().is_running());
        let sent = || std::fs::read_to_string("/proc/thread-self/net/dev").unwrap();
        let by_other = |text: String| {
            let line = text.lines().find(|line| line.trim().starts_with("w0:")).unwrap().to_owned();
            line.split_whitespace().nth(10).unwrap().parse::<u64>().unwrap()
        };
        let before = by_other(sent());
        for number in 0..100 {
            end.send(&route, Qpn::new(0x111), number, 1000);
        }
        assert!(by_other(sent()) < before + 100, "packets left by w0");
        assert_eq!(end.count("tx_unreachable"), 100);
    });
}
