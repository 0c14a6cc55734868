//! Two ports on `lo`.

use std::net::UdpSocket;
use std::os::fd::AsRawFd;
use std::process::Command;

use urxe_net::Destination;
use urxe_wire::icrc::Check;
use urxe_wire::{Aeth, Bth, Gid, Qpn};

use crate::end::{Arrival, BTH, End, destination, introduce};
use crate::namespace::alone;

/// Default GID, first IPv4, first IPv6.
const GIDS: [usize; 3] = [0, 1, 2];

#[test]
fn first_packet_is_forwarded_the_rest_come_directly() {
    for gid in GIDS {
        alone(|| {
            let (mut owner, mut other) = (End::on("lo"), End::on("lo"));
            let route = owner.route(gid, other.qpn);
            owner.send(&route, other.qpn, 1, 100);
            owner.until("forwarded", |owner| owner.count("forwarded_out") == 1);
            let first = other.expect(1);
            assert_eq!(first, [Arrival { number: 1, len: 100, check: Check::Exact, ..first[0].clone() }]);
            assert_eq!(first[0].source_port, route.local().port());
            assert_eq!((other.count("forwarded_in"), other.count("flows_opened")), (1, 1));
            for number in 2..100 {
                owner.send(&route, other.qpn, number, 100);
                // The owner does not look at its socket any more.
                assert_eq!(other.expect(1)[0].number, number);
            }
            assert_eq!(owner.count("forwarded_out"), 1, "GID {gid}");
            assert_eq!(other.count("forwarded_in"), 1, "GID {gid}");
        });
    }
}

/// Else it would take a peer for silent whose answer lies behind what it has to forward.
#[test]
fn an_owner_is_not_done_while_it_forwards() {
    for gid in GIDS {
        alone(|| {
            let (mut owner, mut other) = (End::on("lo"), End::on("lo"));
            let route = other.route(gid, owner.qpn);
            // The other's own first, which the owner gets.
            other.queue(&route, other.qpn, 1, 100);
            other.queue(&route, owner.qpn, 2, 101);
            other.tx.flush(&other.port);
            let mut lengths = Vec::new();
            let mut look = || {
                owner.rx.woken();
                owner.rx.receive(&owner.port, 1, &mut |run| {
                    lengths.extend(run.datagrams().map(|datagram| datagram.payload.len()));
                    true
                });
                owner.rx.is_done()
            };
            assert!(!look(), "it has forwarded");
            assert!((0..100).any(|_| look()), "it never is");
            assert_eq!(lengths, [101 + 4], "GID {gid}");
        });
    }
}

#[test]
fn the_owner_receives_without_detour() {
    for gid in GIDS {
        alone(|| {
            let (mut owner, mut other) = (End::on("lo"), End::on("lo"));
            let route = other.route(gid, owner.qpn);
            for number in 0..10 {
                other.send(&route, owner.qpn, number, 40);
                assert_eq!(
                    owner.expect(1)[0],
                    Arrival {
                        number,
                        len: 40,
                        check: Check::Exact,
                        source_port: route.local().port(),
                        tclass: 0,
                        hop_limit: 0,
                    }
                );
            }
            assert_eq!((owner.count("forwarded_out"), owner.count("flows_opened")), (0, 0));
        });
    }
}

#[test]
fn a_port_sends_to_itself() {
    alone(|| {
        let mut end = End::on("lo");
        let (qpn, route) = (end.qpn, end.route(1, end.qpn));
        end.send(&route, qpn, 7, 64);
        assert_eq!(end.expect(1)[0].number, 7);
    });
}

/// Packets sent by a list of lengths must arrive so, with a good ICRC, in as many runs as expected.
fn shapes(gid: usize, lens: &[usize], runs: u64) {
    alone(|| {
        let (mut owner, mut other) = (End::on("lo"), End::on("lo"));
        // Once through an owner socket, once through a flow socket.
        let there = owner.route(gid, other.qpn);
        introduce(&mut owner, None, &mut other, &there);
        let back = other.route(gid, owner.qpn);
        let (mut from, mut to) = (owner, other);
        for route in [there, back] {
            let before = from.count("tx_runs");
            for (number, len) in (0..).zip(lens) {
                from.queue(&route, to.qpn, number, *len);
            }
            assert!(!from.tx.is_empty());
            from.tx.flush(&from.port);
            assert!(from.tx.is_empty());
            assert_eq!(from.count("tx_runs") - before, runs, "runs of {lens:?}");
            let arrivals = to.expect(lens.len());
            let arrived: Vec<_> = arrivals.iter().map(|a| (a.number, a.len, a.check)).collect();
            let sent: Vec<_> = (0..).zip(lens).map(|(n, len)| (n, *len, Check::Exact)).collect();
            assert_eq!(arrived, sent);
            assert!(to.receive().is_empty());
            assert_eq!(from.count("tx_gso_refused"), 0);
            (from, to) = (to, from);
        }
    });
}

#[test]
fn runs_of_equal_packets() {
    for gid in [1, 2] {
        shapes(gid, &[BTH; 64], 1);
        shapes(gid, &[4108; 15], 1);
        shapes(gid, &[1036; 3], 1);
    }
}

#[test]
fn the_last_of_a_run_may_be_shorter() {
    for gid in [1, 2] {
        shapes(gid, &[4108, 4108, 4108, BTH], 1);
        shapes(gid, &[4108, 4108, 777], 1);
        shapes(gid, &[1037, 1037, 1036], 1);
    }
}

#[test]
fn unequal_packets_make_several_runs() {
    for gid in [1, 2] {
        // A longer one, and anything after a shorter one, opens a run.
        shapes(gid, &[100, 200, 300], 3);
        shapes(gid, &[300, 200, 100], 2);
        // WRITE First with its RETH, Middles, Last: 4124, 4108…, 512.
        shapes(gid, &[4124, 4108, 4108, 4108, 512, 4124, 4108, 4108, 512], 4);
    }
}

#[test]
fn runs_end_at_the_limits_of_the_kernel() {
    for gid in [1, 2] {
        shapes(gid, &[20; 65], 2);
        shapes(gid, &[4108; 16], 2);
        shapes(gid, &[4108; 31], 3);
        // The batch is emptied when it is full.
        shapes(gid, &[4108; 60], 4);
        let growing: Vec<usize> = (20..120).collect();
        shapes(gid, &growing, 100);
    }
}

#[test]
fn a_packet_not_committed_is_forgotten() {
    alone(|| {
        let (mut owner, mut other) = (End::on("lo"), End::on("lo"));
        let route = other.route(1, owner.qpn);
        other.tx.packet(&other.port, &route, 40).fill(0xEE);
        assert!(other.tx.is_empty());
        other.queue(&route, owner.qpn, 1, 50);
        other.tx.packet(&other.port, &route, 50).fill(0xEE);
        other.tx.packet(&other.port, &route, 60).fill(0xEE);
        other.queue(&route, owner.qpn, 2, 50);
        other.tx.packet(&other.port, &route, 60).fill(0xEE);
        other.tx.forget();
        assert!(other.tx.pending().is_none() && other.tx.commit().is_none());
        other.tx.packet(&other.port, &route, 60).fill(0xEE);
        other.tx.flush(&other.port);
        assert!(other.tx.commit().is_none() && other.tx.is_empty());
        assert_eq!(other.count("tx_runs"), 1, "a run for what was forgotten");
        let numbers: Vec<_> = owner.expect(2).iter().map(|a| a.number).collect();
        assert_eq!(numbers, [1, 2]);
    });
}

#[test]
fn traffic_class_hop_limit_and_flow_label_reach_the_peer() {
    for gid in [1, 2] {
        alone(|| {
            let (mut owner, mut other) = (End::on("lo"), End::on("lo"));
            let gid = other.port.interface().gids()[gid];
            let to =
                Destination { tclass: 0xB9, hop_limit: 3, flow_label: 0x12345, ..destination(gid, gid, owner.qpn) };
            let route = other.port.route(&to).unwrap();
            owner.port.report_headers();
            other.send(&route, owner.qpn, 1, 50);
            let arrival = owner.expect(1).remove(0);
            // 0x12345 folded into 14 bits: 0x2345 ^ 0x4 (rdma_flow_label_to_udp_sport).
            assert_eq!((arrival.tclass, arrival.hop_limit, arrival.source_port), (0xB9, 3, 0xC000 | 0x2341));
            assert_eq!(arrival.check, Check::Exact);
        });
    }
}

#[test]
fn several_qps_of_one_run_are_sorted_by_process() {
    alone(|| {
        let (mut owner, mut other) = (End::on("lo"), End::on("lo"));
        // Like packets of a foreign sender whose source port serves two processes here.
        let route = owner.route(1, other.qpn);
        let to = [owner.qpn, owner.qpn, other.qpn, other.qpn, owner.qpn, other.qpn];
        for (number, qpn) in (0..).zip(&to) {
            owner.queue(&route, *qpn, number, 60);
        }
        owner.tx.flush(&owner.port);
        let own = owner.expect(3);
        let others = other.expect(3);
        assert_eq!(own.iter().map(|a| a.number).collect::<Vec<_>>(), [0, 1, 4]);
        assert_eq!(others.iter().map(|a| a.number).collect::<Vec<_>>(), [2, 3, 5]);
        for arrival in own.iter().chain(&others) {
            assert_eq!(arrival.check, Check::Exact, "{arrival:?}");
        }
        assert_eq!(owner.count("forwarded_out"), 2);
    });
}

/// A second look would be in vain for a sender that waits for the answer. Behind other runs there mostly is another, also behind the
/// two packets of a WRITE, of which the first has a RETH.
#[test]
fn a_look_ends_behind_a_request_and_its_ack() {
    const ACK: usize = Bth::LEN + Aeth::LEN;
    for (lens, looks) in [(&[56, ACK][..], [2, 2]), (&[72, 56], [4, 0]), (&[56, 56, ACK], [6, 0])] {
        alone(|| {
            let (mut owner, mut other) = (End::on("lo"), End::on("lo"));
            let route = other.route(1, owner.qpn);
            for number in 0..2 {
                lens.iter().for_each(|len| other.queue(&route, owner.qpn, number, *len));
                other.tx.flush(&other.port);
            }
            assert_eq!([(); 2].map(|()| owner.receive().len()), looks);
        });
    }
}

#[test]
fn management_and_multicast_packets_stay_with_who_got_them() {
    alone(|| {
        let (mut owner, mut other) = (End::on("lo"), End::on("lo"));
        for (number, qpn) in [(1, Qpn::GSI), (2, Qpn::MULTICAST)] {
            let route = other.route(1, qpn);
            other.send(&route, qpn, number, 60);
            assert_eq!(owner.expect(1)[0].number, number);
        }
    });
}

#[test]
fn epoll_says_when_there_is_something_to_do() {
    alone(|| {
        let (mut owner, mut other) = (End::on("lo"), End::on("lo"));
        let ready = |end: &End, wait: i32| {
            let mut poll = libc::pollfd { fd: end.port.epoll_fd().as_raw_fd(), events: libc::POLLIN, revents: 0 };
            // SAFETY: one pollfd.
            unsafe { libc::poll(&raw mut poll, 1, wait) == 1 }
        };
        // The owner accepts its follower, then all is quiet.
        owner.receive();
        assert!(!ready(&owner, 0) && !ready(&other, 0));
        let route = owner.route(1, other.qpn);
        owner.send(&route, other.qpn, 1, 60);
        assert!(ready(&owner, 60_000));
        owner.receive();
        assert!(ready(&other, 60_000));
        while !other.receive().is_empty() {}
        assert!(!ready(&owner, 0) && !ready(&other, 0));
    });
}

#[test]
fn a_quiet_socket_is_served_while_another_is_busy() {
    alone(|| {
        let (mut owner, mut other) = (End::on("lo"), End::on("lo"));
        let (busy, quiet) = (other.route(1, owner.qpn), other.route(2, owner.qpn));
        other.send(&quiet, owner.qpn, 1_000_000, 60);
        let mut numbers = Vec::new();
        // The poller never says `woken`, and the IPv4 socket always has something.
        for number in 0..1000 {
            other.send(&busy, owner.qpn, number, 60);
            let End { port, rx, .. } = &mut owner;
            rx.receive(port, 1, &mut |run| {
                numbers.extend(run.datagrams().map(|d| u32::from_be_bytes(d.payload[8..12].try_into().unwrap())));
                true
            });
        }
        assert!(numbers.contains(&1_000_000));
    });
}

//= spec/hosts.md#net-002
//= type=test
//# When the owner of the port ends, however it ends, another process MUST take over and the others go on.
#[test]
fn a_vanished_owner_is_succeeded() {
    for gid in [1, 2] {
        alone(|| {
            let (owner, mut other, mut third) = (End::on("lo"), End::on("lo"), End::on("lo"));
            drop(owner);
            other.until("somebody takes over both addresses", |other| {
                third.receive();
                other.count("takeovers") + third.count("takeovers") == 2
            });
            // Each reaches the other, whoever owns the address now.
            for _ in 0..2 {
                let route = other.route(gid, third.qpn);
                other.send(&route, third.qpn, 5, 60);
                third.until("a packet arrives", |third| {
                    other.receive();
                    third.count("rx_packets") > 0
                });
                (other, third) = (third, other);
            }
        });
    }
}

//= spec/hosts.md#net-007
//= type=test
//# The child of a fork MUST have no part in its parent's device.
#[test]
fn a_forked_child_lets_go_of_everything() {
    // In a process of its own: the child of a fork has copies of what other tests have open.
    let this = std::env::current_exe().unwrap();
    let arguments = ["loopback::forking", "--exact", "--ignored", "--nocapture"];
    assert!(Command::new(this).args(arguments).status().unwrap().success());
}

#[test]
#[ignore = "a_forked_child_lets_go_of_everything starts it as a process of its own"]
fn forking() {
    alone(|| {
        let owner = End::on("lo");
        // SAFETY: the child calls only what is async-signal-safe: close(2) by way of `Port::close`, pause, _exit.
        let child = unsafe { libc::fork() };
        if child == 0 {
            owner.port.close();
            // SAFETY: as above.
            unsafe {
                libc::alarm(60);
                libc::pause();
                libc::_exit(0);
            }
        }
        assert!(child > 0);
        drop(owner);
        let start = std::time::Instant::now();
        let taken = loop {
            let mut next = End::on("lo");
            next.receive();
            let route = next.route(1, next.qpn);
            let qpn = next.qpn;
            next.send(&route, qpn, 1, 60);
            if next.receive().len() == 1 {
                break true;
            }
            // The child may not have run yet.
            if start.elapsed() > crate::end::PATIENCE {
                break false;
            }
        };
        // SAFETY: ends and reaps the child started above.
        unsafe {
            libc::kill(child, libc::SIGKILL);
            libc::waitpid(child, core::ptr::null_mut(), 0);
        }
        assert!(taken, "the child still holds the address");
    });
}

#[test]
fn source_and_destination_must_fit() {
    alone(|| {
        let end = End::on("lo");
        let gids = end.port.interface().gids().to_vec();
        let route =
            |local, remote| end.port.route(&destination(local, remote, end.qpn)).map(|r| r.remote().to_string());
        assert!(matches!(route(Gid::new([9; 16]), gids[1]), Err(urxe_net::RouteError::LocalGidUnknown)));
        assert!(matches!(route(gids[1], Gid::UNSPECIFIED), Err(urxe_net::RouteError::RemoteGidUnusable)));
        assert!(matches!(route(gids[1], gids[2]), Err(urxe_net::RouteError::FamilyMismatch)));
        // The default GID of `lo` is no address: it goes with either.
        assert_eq!(route(gids[0], gids[2]).unwrap(), "[::1]:4791");
        assert_eq!(route(gids[2], gids[0]).unwrap(), "[::1]:4791");
        assert_eq!(route(gids[0], gids[0]).unwrap(), "127.0.0.1:4791");
    });
}

#[test]
fn a_stranger_may_use_any_identification() {
    use urxe_wire::icrc;
    alone(|| {
        let mut owner = End::on("lo");
        // A connected socket counts its identifications from a random start.
        let stranger = UdpSocket::bind("127.0.0.1:0").unwrap();
        stranger.connect("127.0.0.1:4791").unwrap();
        let flow = icrc::Flow::new(stranger.local_addr().unwrap(), stranger.peer_addr().unwrap());
        let mut packet = vec![0; 60];
        crate::end::fill(&mut packet, owner.qpn, 1);
        let icrc = icrc::compute(&flow, 4242, &packet);
        packet.extend(icrc.to_le_bytes());
        stranger.send(&packet).unwrap();
        assert_eq!(owner.expect(1)[0].check, Check::Recovered { id: 4242, df: true });
        packet[30] ^= 1;
        stranger.send(&packet).unwrap();
        let mut checks = Vec::new();
        owner.until("the damaged packet", |owner| {
            owner.rx.woken();
            owner.rx.receive(&owner.port, 1, &mut |run| {
                checks.extend(run.datagrams().map(|d| d.verify()));
                false
            });
            !checks.is_empty()
        });
        assert_eq!(checks, [Check::Bad]);
    });
}
