//! Several paths to one destination, each from a source port of its own.

use std::collections::BTreeSet;
use std::sync::Arc;

use urxe_net::{Destination, Route};

use crate::end::{End, destination};
use crate::namespace::alone;

/// Source ports of packets that arrive over each of `paths` paths with a flow label, in the order of the paths.
fn source_ports(gid: usize, flow_label: u32, paths: u8) -> Vec<u16> {
    let (mut owner, mut other) = (End::on("lo"), End::on("lo"));
    let gid = other.port.interface().gids()[gid];
    let to = Destination { flow_label, ..destination(gid, gid, owner.qpn) };
    let route = other.port.route(&to).unwrap();
    let first = other.port.spread(route, &to, paths);
    let all: Vec<_> = (1..paths).map(|path| first.on_path(path)).collect();
    let mut ports = Vec::new();
    for (number, route) in (0..).zip([&first].into_iter().chain(&all)) {
        other.send(route, owner.qpn, number, 50);
        let arrival = owner.expect(1).remove(0);
        assert_eq!((arrival.number, arrival.source_port), (number, route.local().port()));
        ports.push(arrival.source_port);
    }
    ports
}

/// The first path has the port of the flow label, as a connection of one path has, and the others have others.
#[test]
fn the_first_path_has_the_port_of_the_flow_label() {
    for gid in [1, 2] {
        for paths in [1, 2, 4, 8] {
            alone(|| {
                // 0x12345 folded into 14 bits: 0x2345 ^ 0x4 (rdma_flow_label_to_udp_sport).
                let ports = source_ports(gid, 0x12345, paths);
                assert_eq!(ports[0], 0xC000 | 0x2341);
                let different: BTreeSet<_> = ports.iter().collect();
                assert_eq!(different.len(), usize::from(paths), "{ports:?}");
                assert!(ports.iter().all(|port| *port >= 0xC000), "{ports:?}");
            });
        }
    }
}

#[test]
fn without_a_flow_label_paths_have_different_ports() {
    alone(|| {
        let ports = source_ports(1, 0, 8);
        assert_eq!(ports.iter().collect::<BTreeSet<_>>().len(), 8, "{ports:?}");
    });
}

/// Paths of one destination are the same for all that send to it.
#[test]
fn paths_to_one_destination_are_shared() {
    alone(|| {
        let (owner, other) = (End::on("lo"), End::on("lo"));
        let gid = other.port.interface().gids()[1];
        let to = Destination { flow_label: 7, ..destination(gid, gid, owner.qpn) };
        let spread = || other.port.spread(other.port.route(&to).unwrap(), &to, 4);
        let (one, another) = (spread(), spread());
        let ports = |route: &Arc<Route>| (1..4).map(|path| route.on_path(path).local().port()).collect::<Vec<_>>();
        assert_eq!(ports(&one), ports(&another));
        assert_eq!(one.local(), another.local());
    });
}
