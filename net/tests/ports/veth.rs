//! Two hosts: network namespaces linked by a veth pair with an Ethernet MTU.

use std::sync::mpsc;
use std::time::Instant;

use urxe_wire::icrc::Check;
use urxe_wire::{Gid, Qpn};

use crate::end::{End, PATIENCE, destination};
use crate::namespace::{enter_new, ip};

/// Addresses that a host tells the other.
struct Hello {
    gids: Vec<Gid>,
    qpn: Qpn,
}

fn thread_id() -> i32 {
    // SAFETY: no argument.
    unsafe { libc::gettid() }
}

/// Two hosts exchange runs of packets over each GID pair; the receiver is a follower on its host.
#[test]
fn runs_cross_a_wire() {
    let (tid_out, tid_in) = mpsc::channel();
    let (up_out, up_in) = mpsc::channel();
    let (hello_out, hello_in) = mpsc::channel();
    let (done_out, done_in) = mpsc::channel::<()>();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            enter_new();
            tid_out.send(thread_id()).unwrap();
            up_in.recv().unwrap();
            configure("wire1", 2);
            let mut owner = End::on("wire1");
            let mut end = End::on("wire1");
            hello_out.send(Hello { gids: end.port.interface().gids().to_vec(), qpn: end.qpn }).unwrap();
            // Three GIDs, a lone packet and a run on each.
            let mut arrivals = Vec::new();
            let start = Instant::now();
            while arrivals.len() < 3 * 41 {
                owner.receive();
                arrivals.extend(end.receive());
                assert!(start.elapsed() < 2 * PATIENCE, "{} packets: {:?}", arrivals.len(), end.counts());
            }
            // Several sockets were read; order is promised within each.
            arrivals.sort_by_key(|arrival| arrival.number);
            for (at, arrival) in arrivals.iter().enumerate() {
                assert_eq!((arrival.number as usize, arrival.check), (at, Check::Exact));
            }
            assert_eq!(end.count("flows_opened"), 3);
            assert!(owner.count("forwarded_out") >= 3);
            done_out.send(()).unwrap();
        });
        scope.spawn(move || {
            enter_new();
            let peer = tid_in.recv().unwrap();
            ip(&format!("link add wire0 type veth peer name wire1 netns {peer}"));
            up_out.send(()).unwrap();
            configure("wire0", 1);
            let hello: Hello = hello_in.recv().unwrap();
            let mut end = End::on("wire0");
            let gids = end.port.interface().gids().to_vec();
            assert_eq!(gids.len(), 3, "link-local, IPv4, IPv6");
            let mut number = 0;
            for (local, remote) in gids.iter().zip(&hello.gids) {
                let route = end.port.route(&destination(*local, *remote, hello.qpn)).unwrap();
                end.send(&route, hello.qpn, number, 500);
                number += 1;
                // So that the run most likely finds the flow socket.
                std::thread::sleep(std::time::Duration::from_millis(200));
                for _ in 0..40 {
                    end.queue(&route, hello.qpn, number, 1036);
                    number += 1;
                }
                end.tx.flush(&end.port);
            }
            done_in.recv().expect("the receiver has everything");
        });
    });
}

/// Brings an interface up with an IPv4 and an IPv6 address, none of them tentative.
fn configure(name: &str, host: u8) {
    // Duplicate address detection would take a second or two.
    let dad = format!("/proc/sys/net/ipv6/conf/{name}/accept_dad");
    std::fs::write(&dad, "0").unwrap_or_else(|e| panic!("{dad}: {e}"));
    ip(&format!("address add 10.9.0.{host}/24 dev {name}"));
    ip(&format!("link set {name} up"));
    ip(&format!("address add 2001:db8:9::{host}/64 dev {name} nodad"));
    let start = Instant::now();
    // The link-local address comes when the other end is up too.
    while urxe_net::Interface::by_name(name).map_or(0, |i| i.addresses().len()) < 3 {
        std::thread::sleep(std::time::Duration::from_millis(5));
        assert!(start.elapsed() < PATIENCE, "no link-local address on {name}");
    }
}
