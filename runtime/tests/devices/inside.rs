//! Messages between queue pairs of one device.

use std::sync::PoisonError;
use std::thread;

use urxe_engine::{SendOp, WcStatus};
use urxe_runtime::device::OpenOptions;
use urxe_wire::{ImmDt, Mtu};

use crate::exchange;
use crate::node::{Node, TESTS, WORDS, in_namespace, in_new_namespace, open};

/// Options of a device whose queue pairs hand packets to each other.
pub(crate) fn inside() -> OpenOptions<'static> {
    OpenOptions { shares_memory: true, key_seed: 1, ..OpenOptions::default() }
}

#[test]
fn messages_of_one_device_stay_inside() {
    in_namespace(|| {
        let mut a = Node::new(1, true);
        let b = Node::on(&a.device);
        exchange(&mut a, &b);
        assert!(a.count("inside_runs") > 0);
        for counter in ["tx_runs", "tx_ring_runs", "rx_datagrams", "rings_opened"] {
            assert_eq!(a.count(counter), 0, "{counter}");
        }
        assert_eq!((a.count("tx_packets"), a.count("tx_bytes")), (a.count("rx_packets"), a.count("rx_bytes")));
        let qp = |node: &Node| node.qp.counters().into_iter().collect::<std::collections::HashMap<_, _>>();
        assert_eq!(qp(&a)["tx_packets"] + qp(&b)["tx_packets"], a.count("tx_packets"));
        assert_eq!(qp(&a)["rx_bytes"], qp(&b)["tx_bytes"]);
    });
}

/// A device that shares no memory uses UDP for its own queue pairs, too: its user wants to see packets.
#[test]
fn messages_of_one_device_go_over_udp_if_it_shares_no_memory() {
    in_namespace(|| {
        let mut a = Node::new(1, false);
        let b = Node::on(&a.device);
        exchange(&mut a, &b);
        assert!(a.count("inside_runs") == 0 && a.count("tx_runs") > 0);
    });
}

/// A peer that is no more is silent.
#[test]
fn a_queue_pair_that_was_destroyed_takes_nothing() {
    in_namespace(|| {
        let a = Node::new(1, true);
        let b = Node::on(&a.device);
        a.connect(b.qp.qpn());
        b.connect(a.qp.qpn());
        a.post_send(SendOp::Write(b.remote(0)), 0, 8);
        assert_eq!(a.completion().status, WcStatus::Success);
        let before = a.count("unknown_qp");
        let remote = b.remote(0);
        drop(b);
        a.post_send(SendOp::Write(remote), 0, 8);
        assert!(a.count("unknown_qp") > before);
        assert_eq!(a.cq.poll(1, |_| ()), 0);
    });
}

/// Two threads that send to each other all the time, on the same two queue pairs: packets keep their order, and no thread
/// waits for another without end.
#[test]
fn threads_at_both_ends_do_not_disturb_the_order() {
    const MESSAGES: u64 = 20_000;
    in_namespace(|| {
        let a = Node::new(1, true);
        let b = Node::on(&a.device);
        a.connect(b.qp.qpn());
        b.connect(a.qp.qpn());
        let immediate = |number: u64| ImmDt(u32::try_from(number).unwrap().to_be_bytes());
        // The first half of a buffer is sent, the second half received into.
        let half = 4 * WORDS as u64;
        let end = |node: &Node| {
            let (mut sent, mut completed, mut received) = (0, 0, 0);
            while completed < MESSAGES || received < MESSAGES {
                // As the peer does: it has a receive for each.
                if sent < MESSAGES && sent - completed < 8 && sent < received + 7 {
                    node.post_send(SendOp::SendWithImmediate(immediate(sent)), 0, 8);
                    sent += 1;
                }
                let mut found = None;
                if node.cq.poll(1, |cqe| found = Some(*cqe)) == 0 {
                    node.device.polled(false);
                    continue;
                }
                let cqe = found.unwrap();
                assert_eq!(cqe.status, WcStatus::Success);
                if cqe.wr_id == 1 {
                    completed += 1;
                } else {
                    assert_eq!(cqe.imm, Some(immediate(received)));
                    received += 1;
                    node.post_recv(half, 8);
                }
            }
        };
        for node in [&a, &b] {
            (0..16).for_each(|_| node.post_recv(half, 8));
        }
        thread::scope(|scope| {
            scope.spawn(|| end(&a));
            scope.spawn(|| end(&b));
        });
        for counter in ["out_of_seq_request", "duplicate_request", "send_rnr_err"] {
            assert_eq!(a.count(counter), 0, "{counter}");
        }
        assert_eq!(a.count("tx_runs"), 0);
    });
}

/// Threads with queue pairs of their own share no lock.
#[test]
fn threads_with_queue_pairs_of_their_own_meet_at_no_lock() {
    const MESSAGES: usize = 20_000;
    const THREADS: usize = 4;
    let _alone = TESTS.write().unwrap_or_else(PoisonError::into_inner);
    in_new_namespace(|| {
        let device = Node::new(1, true);
        let pairs: Vec<_> = (0..THREADS).map(|_| (Node::on(&device.device), Node::on(&device.device))).collect();
        let before = device.count("contended_locks");
        thread::scope(|scope| {
            for (a, b) in &pairs {
                scope.spawn(|| {
                    a.connect(b.qp.qpn());
                    b.connect(a.qp.qpn());
                    for _ in 0..MESSAGES {
                        a.post_send(SendOp::Write(b.remote(0)), 0, 8);
                        assert_eq!(a.completion().status, WcStatus::Success);
                    }
                });
            }
        });
        let contended = device.count("contended_locks") - before;
        assert!(contended < (MESSAGES * THREADS / 100) as u64, "{contended}");
    });
}

/// A message of several runs has one ACK.
#[test]
fn messages_of_many_packets_are_acknowledged_once() {
    // As many as any window has; a run has 64 KiB at most, headers included.
    const PACKETS: u32 = 16;
    in_namespace(|| {
        let device = open(inside());
        let (a, b) = (Node::on(&device), Node::on(&device));
        a.connect_with(b.qp.qpn(), Mtu::Mtu4096);
        b.connect_with(a.qp.qpn(), Mtu::Mtu4096);
        for op in [SendOp::Write(b.remote(0)), SendOp::Send] {
            let (packets, runs) = (a.count("tx_packets"), a.count("inside_runs"));
            b.post_recv(0, 4096 * PACKETS);
            a.post_send(op, 0, 4096 * PACKETS);
            assert_eq!(a.completion().status, WcStatus::Success);
            assert!(a.count("inside_runs") - runs > 2, "the message fits into a run");
            assert_eq!(a.count("tx_packets") - packets, u64::from(PACKETS) + 1, "packets, and one ACK");
        }
    });
}

/// A look gives many queue pairs with long messages a turn each, and then a call's worth of turns once: their packets would keep the
/// receive token from all others.
#[test]
fn turns_of_one_look_are_bounded() {
    const PAIRS: usize = 32;
    const LENGTH: u32 = 32 << 20;
    // What a turn makes at most, with headers; and turns of a call.
    const TURN: u64 = (128 << 10) + 4096;
    const TURNS: u64 = 64;
    in_namespace(|| {
        let device = open(inside());
        let memory = Node::with_words(&device, LENGTH as usize / 8);
        let pairs: Vec<_> = (0..PAIRS).map(|_| (Node::on(&device), Node::on(&device))).collect();
        for (a, b) in &pairs {
            a.connect(b.qp.qpn());
            b.connect(a.qp.qpn());
        }
        // Each call gives turns, and leaves the rest to who looks.
        pairs.iter().for_each(|(a, _)| a.post_send_of(SendOp::Write(memory.remote(0)), memory.sge(0, LENGTH)));
        let (mut done, mut looks) = (0, 0);
        while done < PAIRS {
            let before = memory.count("tx_bytes");
            device.look();
            let bytes = memory.count("tx_bytes") - before;
            assert!(bytes <= (PAIRS as u64 + TURNS) * TURN, "{bytes} bytes in one look");
            looks += 1;
            let succeeds = |(a, _): &&(Node, Node)| a.cq.poll(1, |cqe| assert_eq!(cqe.status, WcStatus::Success)) > 0;
            done += pairs.iter().filter(succeeds).count();
        }
        assert!(looks > 10, "the messages are too short to show anything");
    });
}

/// Threads that end leave nothing behind, and the others go on.
#[test]
fn short_threads_send() {
    const THREADS: usize = 10_000;
    in_namespace(|| {
        let a = Node::new(1, true);
        let b = Node::on(&a.device);
        a.connect(b.qp.qpn());
        b.connect(a.qp.qpn());
        for _ in 0..THREADS {
            thread::scope(|scope| {
                scope.spawn(|| {
                    a.post_send(SendOp::Write(b.remote(0)), 0, 8);
                    assert_eq!(a.completion().status, WcStatus::Success);
                });
            });
        }
        assert_eq!(a.count("inside_runs"), 2 * THREADS as u64);
    });
}
