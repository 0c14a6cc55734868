//! Ports that share memory.

use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use urxe_net::Route;
use urxe_wire::Gid;
use urxe_wire::icrc::Check;

use crate::end::{End, PATIENCE, destination};
use crate::namespace::{alone, enter_new, ip, set_loopback_up};

/// First IPv4, first IPv6.
const GIDS: [usize; 2] = [1, 2];

/// Two ends on `lo`, and the way from one to the other.
fn pair(gid: usize) -> (End, End, Arc<Route>) {
    let (from, to) = (End::sharing_on("lo"), End::sharing_on("lo"));
    let route = from.route(gid, to.qpn);
    (from, to, route)
}

/// Whether a descriptor becomes readable within so many milliseconds.
fn is_readable(fd: RawFd, milliseconds: i32) -> bool {
    let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    // SAFETY: one pollfd.
    unsafe { libc::poll(&raw mut poll, 1, milliseconds) > 0 }
}

#[test]
fn everything_goes_through_memory_from_the_first_packet_on() {
    for gid in GIDS {
        alone(|| {
            let (mut from, mut to, route) = pair(gid);
            assert!(route.is_shared());
            for number in 0..500 {
                from.send(&route, to.qpn, number, 12 + number as usize % 100);
                let arrival = &to.expect(1)[0];
                assert_eq!((arrival.number, arrival.check), (number, Check::Exact));
                assert_eq!((arrival.source_port, arrival.hop_limit), (route.local().port(), 64));
            }
            assert_eq!((from.count("tx_ring_runs"), to.count("rx_ring_runs")), (500, 500));
            assert_eq!((from.count("tx_packets"), to.count("rx_packets")), (500, 500));
            assert_eq!((to.count("forwarded_in"), to.count("flows_opened"), to.count("rings_accepted")), (0, 0, 1));
        });
    }
}

#[test]
fn runs_of_all_lengths_in_order_while_both_are_busy() {
    alone(|| {
        let (mut from, mut to, route) = pair(1);
        const PACKETS: u32 = 100_000;
        let qpn = to.qpn;
        let taken = &AtomicU32::new(0);
        let start = Instant::now();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                for number in 0..PACKETS {
                    // Some runs of many packets, some of one; a fast sender meets the end of the ring, and its own
                    // tail.
                    let len = [36, 4096 + 12, 4096 + 12, 1024, 12, 300][(number / 40 % 6) as usize];
                    // A receiver that takes nothing for 50 ms is not waited for; here it may be the processor that it waits for.
                    let seen = || taken.load(Ordering::Relaxed);
                    let mut before = seen();
                    while !route.has_room() {
                        from.tx.flush(&from.port);
                        while seen() == before {
                            assert!(start.elapsed() < 3 * PATIENCE, "nothing more is taken");
                            std::thread::yield_now();
                        }
                        before = seen();
                    }
                    from.queue(&route, qpn, number, len);
                    if number.is_multiple_of(7) {
                        from.tx.flush(&from.port);
                    }
                }
                from.tx.flush(&from.port);
                assert_eq!(from.count("tx_no_buffer"), 0);
                // The other end has what is left.
            });
            let mut next = 0;
            while next < PACKETS {
                for arrival in to.receive() {
                    assert_eq!((arrival.number, arrival.check), (next, Check::Exact));
                    next += 1;
                }
                taken.store(next, Ordering::Relaxed);
                assert!(start.elapsed() < 3 * PATIENCE, "{next}: {:?}", to.counts());
            }
        });
    });
}

#[test]
fn a_sleeper_is_woken_once_and_then_not_bothered() {
    alone(|| {
        let (mut from, mut to, route) = pair(1);
        let epoll = to.port.epoll_fd();
        to.until("the ring is there", |to| to.count("rings_accepted") == 1);
        assert!(to.rx.prepare_to_wait());
        while is_readable(epoll, 0) {
            to.receive();
        }
        for round in 0..50 {
            from.send(&route, to.qpn, 2 * round, 40);
            assert!(is_readable(epoll, 60_000), "nobody woke it");
            assert_eq!(to.expect(1)[0].number, 2 * round);
            // Awake: it is looked at without being told.
            from.send(&route, to.qpn, 2 * round + 1, 40);
            // Not asleep while something is there.
            assert!(!to.rx.prepare_to_wait());
            assert_eq!(to.expect(1)[0].number, 2 * round + 1);
            assert!(to.rx.prepare_to_wait());
            assert!(!is_readable(epoll, 0), "woken for nothing");
        }
    });
}

//= spec/hosts.md#net-022
//= type=test
//# A receiver that sleeps MUST be woken by what is put into its ring.
/// Against all timings that a second thread comes by.
#[test]
fn no_wake_up_is_lost() {
    alone(|| {
        let (mut from, mut to, route) = pair(1);
        let (back, there) = (to.route(1, from.qpn), route);
        let (from_qpn, to_qpn) = (from.qpn, to.qpn);
        const ROUNDS: u32 = 20_000;
        /// Receives one packet, sleeping if it is not there.
        fn receive(end: &mut End) -> u32 {
            loop {
                if let Some(arrival) = end.receive().first() {
                    return arrival.number;
                }
                if end.rx.prepare_to_wait() {
                    assert!(is_readable(end.port.epoll_fd(), 60_000), "asleep for ever: {:?}", end.counts());
                }
            }
        }
        std::thread::scope(|scope| {
            scope.spawn(move || {
                for number in 0..ROUNDS {
                    assert_eq!(receive(&mut to), number);
                    to.send(&back, from_qpn, number, 40);
                }
            });
            for number in 0..ROUNDS {
                from.send(&there, to_qpn, number, 40);
                assert_eq!(receive(&mut from), number);
            }
        });
    });
}

#[test]
fn full_rings_count_drops_and_sleeping_receivers_hold_up_no_sender() {
    alone(|| {
        let (mut from, mut to, route) = pair(1);
        let mut sent = 0;
        while route.has_room() {
            from.send(&route, to.qpn, sent, 4000);
            sent += 1;
        }
        assert!(sent > 256, "a window of packets fits: {sent}");
        assert_eq!(from.count("tx_no_buffer"), 0);
        let start = Instant::now();
        while !route.has_room() {
            assert!(start.elapsed() < PATIENCE);
            std::thread::sleep(Duration::from_millis(1));
        }
        // Nobody takes anything: it goes the way of what a full socket has no room for.
        while from.count("tx_no_buffer") == 0 {
            from.send(&route, to.qpn, sent, 4000);
            sent += 1;
        }
        let arrivals = to.expect(sent as usize - 1);
        assert!(arrivals.iter().zip(0..).all(|(arrival, number)| arrival.number == number));
        assert!(route.has_room());
    });
}

#[test]
fn the_other_end_goes_and_its_ring_with_it() {
    alone(|| {
        let (mut from, to, route) = pair(1);
        from.send(&route, to.qpn, 0, 100);
        drop(to);
        from.until("the end is noticed", |_| !route.is_shared());
        // By UDP, where nobody is either.
        from.send(&route, urxe_wire::Qpn::new(0x100), 1, 100);
        assert!(route.has_room());
        assert_eq!(from.count("tx_ring_runs"), 1);
    });
}

#[test]
fn packets_sent_before_exit_arrive_and_rings_are_freed() {
    alone(|| {
        let mut to = End::sharing_on("lo");
        for round in 1..=20 {
            let mut from = End::sharing_on("lo");
            let route = from.route(1, to.qpn);
            for number in 0..100 {
                from.send(&route, to.qpn, number, 3000);
            }
            drop((from, route));
            let arrivals = to.expect(100);
            assert!(arrivals.iter().zip(0..).all(|(arrival, number)| arrival.number == number));
            assert_eq!(to.count("rings_accepted"), round);
        }
        to.until("all rings are given back", |to| to.count("rings_closed") == 20);
    });
}

#[test]
fn a_ring_lasts_as_long_as_somebody_has_a_route() {
    alone(|| {
        let (mut from, mut to, route) = pair(1);
        to.until("the ring is there", |to| to.count("rings_accepted") == 1);
        let second = from.route(1, to.qpn);
        assert_eq!(from.count("rings_opened"), 1);
        drop(route);
        from.send(&second, to.qpn, 7, 50);
        assert_eq!(to.expect(1)[0].number, 7);
        drop(second);
        to.until("the ring is given back", |to| to.count("rings_closed") == 1);
        // And made anew.
        let third = from.route(1, to.qpn);
        from.send(&third, to.qpn, 8, 50);
        assert_eq!(to.expect(1)[0].number, 8);
        assert_eq!(from.count("rings_opened"), 2);
    });
}

#[test]
fn with_who_does_not_share_it_is_udp() {
    alone(|| {
        let (mut sharing, mut plain) = (End::sharing_on("lo"), End::on("lo"));
        let (there, back) = (sharing.route(1, plain.qpn), plain.route(1, sharing.qpn));
        assert!(!there.is_shared() && !back.is_shared());
        let (sharing_qpn, plain_qpn) = (sharing.qpn, plain.qpn);
        plain.send(&back, sharing_qpn, 1, 60);
        assert_eq!(sharing.expect(1)[0].number, 1);
        sharing.send(&there, plain_qpn, 2, 60);
        let start = Instant::now();
        while plain.receive().is_empty() {
            sharing.receive();
            assert!(start.elapsed() < PATIENCE);
        }
        assert_eq!((sharing.count("tx_ring_runs"), sharing.count("rings_opened")), (0, 0));
    });
}

#[test]
fn a_process_may_send_to_itself() {
    alone(|| {
        let mut end = End::sharing_on("lo");
        let route = end.route(1, end.qpn);
        let qpn = end.qpn;
        for number in 0..100 {
            end.send(&route, qpn, number, 200);
            assert_eq!(end.expect(1)[0].number, number);
        }
        assert_eq!((end.count("tx_ring_runs"), end.count("rx_ring_runs")), (100, 100));
    });
}

#[test]
fn icrcs_are_there_for_who_wants_to_see_them() {
    for (sender, receiver) in [(true, false), (false, true), (true, true)] {
        alone(|| {
            let (mut from, mut to, route) = pair(1);
            if sender {
                from.port.keep_icrcs();
            }
            if receiver {
                to.port.keep_icrcs();
            }
            for _ in 0..3 {
                from.queue(&route, to.qpn, 5, 1000);
            }
            from.tx.flush(&from.port);
            let (mut checked, start) = (0, Instant::now());
            while checked < 3 {
                to.rx.receive(&to.port, 16, &mut |run| {
                    for datagram in run.datagrams() {
                        assert!(datagram.flow.is_some(), "the ICRC is missing");
                        assert_eq!(datagram.verify(), Check::Exact);
                        checked += 1;
                    }
                    true
                });
                assert!(start.elapsed() < PATIENCE);
            }
        });
    }
}

/// A call takes some of the runs that are for no queue pair, and leaves the rest to the next: a sender may put them there without end.
#[test]
fn runs_for_no_queue_pair_are_taken_some_at_a_time() {
    const RUNS: u32 = 300;
    alone(|| {
        let (mut from, mut to, route) = pair(1);
        // Of a block that nobody here has.
        let nobody = urxe_wire::Qpn::new(to.qpn.get() ^ 0x10_0000);
        (0..RUNS).for_each(|number| from.send(&route, nobody, number, 64));
        assert_eq!(from.count("tx_no_buffer"), 0);
        let mut calls = 0;
        to.until("all are taken", |to| {
            calls += 1;
            to.count("rx_ring_runs") >= u64::from(RUNS)
        });
        assert!(calls > 3, "{calls} calls took {RUNS} runs");
    });
}

#[test]
fn a_packet_damaged_on_purpose_is_noticed() {
    alone(|| {
        let (mut from, mut to, route) = pair(1);
        from.port.keep_icrcs();
        crate::end::fill(from.tx.packet(&from.port, &route, 100), to.qpn, 1);
        from.tx.commit().unwrap().bytes[103] ^= 1;
        from.tx.flush(&from.port);
        assert_eq!(to.expect(1)[0].check, Check::Bad);
    });
}

//= spec/hosts.md#net-020
//= type=test
//# Memory MUST be shared with processes of the same user and host only, and everybody else reached by UDP.
/// Equal numbers of queue pairs may be in use on another host.
#[test]
fn another_network_namespace_is_another_host() {
    std::thread::scope(|scope| {
        scope
            .spawn(|| {
                enter_new();
                set_loopback_up();
                ip("link add wire0 type veth peer name wire1");
                ip("address add 10.9.0.1/24 dev wire0");
                ip("link set wire0 up");
                ip("link set wire1 up");
                let start = Instant::now();
                while urxe_net::Interface::by_name("wire0").is_ok_and(|interface| interface.addresses().is_empty()) {
                    assert!(start.elapsed() < PATIENCE);
                }
                let (end, here) = (End::sharing_on("wire0"), End::sharing_on("lo"));
                let gid = |address: &str| Gid::from(address.parse::<std::net::IpAddr>().unwrap());
                let gids = end.port.interface();
                let local = *gids.gids().iter().find(|known| **known == gid("10.9.0.1")).unwrap();
                // A block that somebody has here, on an address that nobody has.
                let route = end.port.route(&destination(local, gid("10.9.0.2"), here.qpn)).unwrap();
                assert!(!route.is_shared());
                // The number is right and the address is this host's, but not where that port is.
                let mut route = end.port.route(&destination(local, gid("10.9.0.1"), here.qpn)).unwrap();
                let mut here = here;
                here.until("the offer is refused", |here| here.count("rings_refused") == 1);
                let mut end = end;
                end.until("the refusal is noticed", |_| !route.is_shared());
                // And not made again.
                route = end.port.route(&destination(local, gid("10.9.0.1"), here.qpn)).unwrap();
                assert!(!route.is_shared());
            })
            .join()
            .unwrap();
    });
}
