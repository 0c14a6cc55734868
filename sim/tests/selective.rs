//! Goodput with selective repeat where packets are lost or overtake one another, in virtual time.

use std::collections::BTreeMap;
use std::time::Duration;

use urxe_engine::endpoint::Event as NodeEvent;
use urxe_engine::event::RetryReason;
use urxe_engine::{Access, Data, Event, Recipient, SendFlags, SendOp, SendWr, Sge, SgeList, WcStatus};
use urxe_sim::rule::{Chance, Delays, Drops, Flight, Rule, Verdict};
use urxe_sim::{Connection, Fabric, Link, NodeConfig};
use urxe_wire::{Opcode, Operation, Psn};

const MESSAGES: u32 = 256;
const LENGTH: u32 = 64 * 1024;

/// Outcome of a stream of messages.
#[derive(Clone, Copy, Debug)]
struct Outcome {
    micros: u64,
    again: u64,
    in_vain: u64,
    /// Tail loss probes and ACK timeouts.
    probes: u64,
    timeouts: u64,
    /// Paths that were left.
    left: u64,
}

/// Streams 16 MiB of WRITEs or READs through what `rule` does to packets.
fn stream(read: bool, paths: u8, rule: Option<Box<dyn Rule>>) -> Outcome {
    stream_from(Connection::default().psns[0], MESSAGES, read, paths, rule)
}

/// Streams so many WRITEs or READs of 64 KiB, the first of which has this PSN.
fn stream_from(first: Psn, messages: u32, read: bool, paths: u8, rule: Option<Box<dyn Rule>>) -> Outcome {
    let mut fabric = Fabric::new();
    let config = NodeConfig { service_delay: Duration::from_micros(5), ..NodeConfig::default() };
    let (a, b) = (fabric.add_node(config), fabric.add_node(config));
    if let Some(mut rule) = rule {
        fabric.add_rule(move |flight: &Flight<'_>| rule.on_packet(flight));
    }
    let mut connection = Connection { selective_paths: [paths; 2], window: 256, ..Connection::default() };
    connection.psns[0] = first;
    // As perftest has them.
    (connection.attr.max_rd_atomic, connection.attr.max_dest_rd_atomic) = (128, 128);
    connection.attr.timeout = 14;
    let (qp, _) = fabric.connect(a, b, &connection);
    let local = fabric.node_mut(a).memory_mut().register_new(LENGTH as usize, Access::LOCAL_WRITE);
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
    let remote = fabric.node_mut(b).memory_mut().register_new(LENGTH as usize, access);
    let cq = fabric.node(a).send_cq(qp);
    let (mut posted, mut done, mut at) = (0, 0, 0);
    loop {
        while posted < u64::from(messages) && posted < done + 32 {
            let sge = Sge { addr: local.addr, length: LENGTH, l_key: local.key.0 };
            let op = if read { SendOp::Read(remote.remote()) } else { SendOp::Write(remote.remote()) };
            let flags = SendFlags { signaled: true, ..SendFlags::default() };
            let data = Data::Gather(SgeList::new(&[sge]));
            fabric.post_send(a, qp, SendWr { wr_id: posted, op, data, flags, to: Recipient::Peer }).unwrap();
            posted += 1;
        }
        if fabric.step().is_none() {
            break;
        }
        while let Some(cqe) = fabric.node_mut(a).poll(cq) {
            assert_eq!((cqe.wr_id, cqe.status), (done, WcStatus::Success));
            done += 1;
            at = fabric.now().as_nanos() / 1000;
        }
    }
    assert_eq!(done, u64::from(messages));
    let mut outcome = Outcome { micros: at, again: 0, in_vain: 0, probes: 0, timeouts: 0, left: 0 };
    for (_, _, event) in fabric.journal() {
        match event {
            NodeEvent::Trace(_, Event::SentAgain { .. }) => outcome.again += 1,
            NodeEvent::Trace(_, Event::SentInVain { packets }) => outcome.in_vain += u64::from(*packets),
            NodeEvent::Trace(_, Event::Retry { reason: RetryReason::TailLossProbe, .. }) => outcome.probes += 1,
            NodeEvent::Trace(_, Event::Retry { reason: RetryReason::AckTimeout, .. }) => outcome.timeouts += 1,
            NodeEvent::Trace(_, Event::LeftPath { .. }) => outcome.left += 1,
            _ => {}
        }
    }
    outcome
}

/// Goodput with selective repeat under `rule`, in thousandths of that without loss; and that of going back.
fn goodput(read: bool, what: &str, rule: &dyn Fn() -> Box<dyn Rule>) -> (u64, Outcome) {
    let [back, selective] = [0, 1].map(|paths| {
        let lossless = stream(read, paths, None);
        let outcome = stream(read, paths, Some(rule()));
        (lossless.micros * 1000 / outcome.micros, outcome)
    });
    let verb = if read { "READ" } else { "WRITE" };
    println!(
        "{verb}, {what}: {} of 1000 instead of {}; {} packets sent again, {} of them in vain; {} probes, {} timeouts",
        selective.0, back.0, selective.1.again, selective.1.in_vain, selective.1.probes, selective.1.timeouts
    );
    selective
}

const PACKETS: u64 = (MESSAGES * LENGTH / 1024) as u64;

#[test]
fn losses() {
    for (per_mille, write, read) in [(1, 970, 970), (10, 900, 900), (30, 750, 750), (100, 400, 400)] {
        let rule = || -> Box<dyn Rule> { Box::new(Drops::new(7, Chance::per_mille(per_mille))) };
        let what = format!("{per_mille} in 1000 lost");
        for (is_read, least) in [(false, write), (true, read)] {
            let (goodput, outcome) = goodput(is_read, &what, &rule);
            assert!(goodput >= least, "{goodput} of 1000");
            assert!(outcome.in_vain * 1000 <= PACKETS, "{outcome:?}");
        }
    }
}

#[test]
fn losses_in_a_row() {
    let rule = || -> Box<dyn Rule> {
        let is_lost = |flight: &Flight<'_>| (flight.now.as_nanos() + 250_000) % 500_000 < 12_000;
        Box::new(move |flight: &Flight<'_>| if is_lost(flight) { Verdict::Drop } else { Verdict::Pass })
    };
    for is_read in [false, true] {
        let (goodput, _) = goodput(is_read, "all lost for 12 µs of 500 µs", &rule);
        assert!(goodput >= 600, "{goodput} of 1000");
    }
}

/// Later acknowledgements say again all that lost ones said.
#[test]
fn lost_acknowledgements() {
    let rule = || -> Box<dyn Rule> {
        let mut losses = Drops::new(7, Chance::percent(1));
        let mut acks = Drops::new(8, Chance::percent(50));
        Box::new(move |flight: &Flight<'_>| match flight.packet.bth().opcode {
            Opcode::SELECTIVE_ACK => acks.on_packet(flight),
            _ => losses.on_packet(flight),
        })
    };
    let (goodput, _) = goodput(false, "1 % lost, and half of the selective acknowledgements", &rule);
    assert!(goodput >= 800, "{goodput} of 1000");
}

#[test]
fn packets_that_overtake_one_another() {
    let rule = || -> Box<dyn Rule> { Box::new(Delays::new(7, Chance::percent(1), Duration::from_nanos(64 * 300))) };
    for is_read in [false, true] {
        let (goodput, outcome) = goodput(is_read, "1 % late by up to 64 packets", &rule);
        assert!(goodput >= 950, "{goodput} of 1000");
        assert!(outcome.in_vain * 1000 <= PACKETS, "{outcome:?}");
    }
}

/// Packets that take eight paths of different delays overtake one another all the time. What is known of the first path, before any
/// packet takes another, may be that it is the fastest, or the slowest.
#[test]
fn paths_of_different_delay() {
    // How far two paths that are next to one another differ: all together by a round trip or so, by some, and by a hundred.
    for step in [3, 30, 250] {
        let delay = move |path: u64| Verdict::Delay(Duration::from_micros(path * step));
        for (is_read, first) in [(false, 0), (false, 7), (true, 0), (true, 7)] {
            let one = stream(is_read, 1, Some(Box::new(move |_: &Flight<'_>| delay(7))));
            let mut known = None;
            let rule = move |flight: &Flight<'_>| {
                let path = flight.source_port / 0x111;
                let behind = path.wrapping_sub(*known.get_or_insert(path)) % 8;
                delay((first + u64::from(behind)) % 8)
            };
            let eight = stream(is_read, 8, Some(Box::new(rule)));
            println!("READ {is_read}, {step} µs, {first} first: {eight:?}; the slowest path alone: {one:?}");
            assert!(eight.micros * 95 <= one.micros * 100, "slower than the slowest path");
            assert!(eight.in_vain * 1000 <= PACKETS, "{eight:?}");
        }
    }
}

/// Delays packets as a program that forwards them between two hosts: by source port, in the order in which ports are used first, each
/// direction for itself. A packet takes 3 µs, and nothing leaves during the `stall`.
fn forwarder(base: u64, stall: std::ops::Range<u64>) -> Box<dyn Rule> {
    const STEP: u64 = 200_000;
    #[derive(Default)]
    struct Direction {
        ports: Vec<u16>,
        /// When the last packet left its sender, and when the program had it.
        left: u64,
        came: u64,
    }
    let mut directions = BTreeMap::<_, Direction>::new();
    let gap = u64::try_from(Link::default().gap.as_nanos()).unwrap();
    Box::new(move |flight: &Flight<'_>| {
        let Direction { ports, left, came } = directions.entry(flight.from).or_default();
        let at = ports.iter().position(|port| *port == flight.source_port).unwrap_or_else(|| {
            ports.push(flight.source_port);
            ports.len() - 1
        });
        *left = flight.now.as_nanos().max(*left) + gap;
        *came = (*left).max(*came) + 3_000;
        let due = *came + base + (at as u64 % 8) * STEP;
        let due = if stall.contains(&due) { stall.end } else { due };
        Verdict::Delay(Duration::from_nanos(due - *left))
    })
}

/// While little is known of the paths, one packet that seems to be lost must not make others seem so.
#[test]
fn hardly_any_are_sent_in_vain_from_the_beginning_on() {
    const STREAM: u32 = 48;
    let mut worst = 0;
    for psn in (0..128).step_by(10) {
        for base in [0, 20_000, 60_000] {
            for (from, time) in [(0, 0), (500_000, 1_000_000), (1_500_000, 1_000_000), (2_500_000, 2_000_000)] {
                let rule = forwarder(base, from..from + time);
                let outcome = stream_from(Psn::new(psn), STREAM, false, 8, Some(rule));
                let most = outcome.probes + u64::from(STREAM * (LENGTH / 1024) / 1000);
                if outcome.in_vain > most {
                    println!("PSN {psn}, {base} ns, stalled at {from} for {time} ns: {outcome:?}");
                }
                worst = worst.max(outcome.in_vain.saturating_sub(most));
            }
        }
    }
    assert_eq!(worst, 0, "packets more than allowed");
}

/// A path that loses everything is left; without that, each packet that takes it is sent twice.
#[test]
fn a_broken_path_is_left() {
    for lost in [1000, 200] {
        let rule = || -> Box<dyn Rule> {
            let mut losses = Drops::new(7, Chance::per_mille(lost));
            let mut broken = None;
            Box::new(move |flight: &Flight<'_>| {
                // The first path that is not the first.
                let is_request = matches!(flight.packet.bth().opcode.operation(), Operation::WriteMiddle);
                if is_request && flight.number > 400 {
                    broken.get_or_insert(flight.source_port);
                }
                if broken == Some(flight.source_port) { losses.on_packet(flight) } else { Verdict::Pass }
            })
        };
        let lossless = stream(false, 4, None);
        let outcome = stream(false, 4, Some(rule()));
        println!("one of four paths loses {lost} of 1000: {outcome:?}, nothing: {lossless:?}");
        assert_eq!(outcome.left, 1, "{outcome:?}");
        assert!(outcome.again < 400, "{outcome:?}");
        assert!(lossless.micros * 1000 / outcome.micros >= 600, "{outcome:?} instead of {lossless:?}");
    }
}
