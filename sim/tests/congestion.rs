//! Three senders, one link: what congestion control makes of a bottleneck, in virtual time.

use std::time::Duration;

use urxe_engine::congestion::{Algorithm, CongestionSettings, Parameters};
use urxe_engine::{Access, Data, Instant, Recipient, SendFlags, SendOp, SendWr, Sge, SgeList, WcStatus};

use urxe_sim::{Bottleneck, Connection, Fabric, NodeConfig};

const SENDERS: usize = 3;
const LENGTH: u32 = 16 * 1024;
/// Bits a second of the link.
const RATE: u64 = 1_000_000_000;
/// Until when the senders find their rates, and until when they are measured.
const SETTLED: Duration = Duration::from_millis(100);
const END: Duration = Duration::from_millis(400);

struct Outcome {
    /// Messages of each sender while measured.
    messages: [u64; SENDERS],
    /// Packets lost in the queue.
    lost: u64,
    marked: u64,
    longest: usize,
    digest: u64,
}

impl Outcome {
    /// Jain's index of fairness: 1 if all have got the same.
    fn fairness(&self) -> f64 {
        let rates = self.messages.map(|messages| messages as f64);
        let sum: f64 = rates.iter().sum();
        sum * sum / (SENDERS as f64 * rates.iter().map(|rate| rate * rate).sum::<f64>())
    }

    /// The part of the link that carries packets of messages that have arrived.
    fn utilisation(&self) -> f64 {
        // 16 packets of 1024 bytes, a BTH, an ICRC, a RETH in the first, and the headers of UDP, IPv4 and Ethernet.
        let bytes = 16 * (1024 + 12 + 4 + 46) + 16;
        let messages: u64 = self.messages.iter().sum();
        messages as f64 * f64::from(bytes) * 8.0 / (END - SETTLED).as_secs_f64() / RATE as f64
    }
}

fn share_a_link(congestion: CongestionSettings, marks: Option<(usize, usize)>, seed: u64) -> Outcome {
    let mut fabric = Fabric::new();
    let config = NodeConfig { receive_buffer: 4096, seed, ..NodeConfig::default() };
    let receiver = fabric.add_node(config);
    fabric.set_bottleneck(receiver, Bottleneck { rate: RATE, capacity: 256, marks }, seed);
    let connection = Connection { congestion, window: 256, ..Connection::default() };
    let senders = [(); SENDERS].map(|()| {
        let node = fabric.add_node(config);
        let (qp, _) = fabric.connect(node, receiver, &connection);
        let local = fabric.node_mut(node).memory_mut().register_new(LENGTH as usize, Access::LOCAL_WRITE);
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let remote = fabric.node_mut(receiver).memory_mut().register_new(LENGTH as usize, access);
        let sge = Sge { addr: local.addr, length: LENGTH, l_key: local.key.0 };
        let flags = SendFlags { signaled: true, ..SendFlags::default() };
        let data = Data::Gather(SgeList::new(&[sge]));
        let wr = SendWr { wr_id: 0, op: SendOp::Write(remote.remote()), data, flags, to: Recipient::Peer };
        (node, qp, wr)
    });
    for (node, qp, wr) in &senders {
        for _ in 0..32 {
            fabric.post_send(*node, *qp, wr.clone()).unwrap();
        }
    }
    let mut messages = [0; SENDERS];
    let end = Instant::default() + END;
    fabric.alarm(end, 0);
    while fabric.now() < end {
        fabric.step().expect("they go on sending");
        for ((node, qp, wr), messages) in senders.iter().zip(&mut messages) {
            let cq = fabric.node(*node).send_cq(*qp);
            while let Some(cqe) = fabric.node_mut(*node).poll(cq) {
                assert_eq!(cqe.status, WcStatus::Success);
                *messages += u64::from(fabric.now() >= Instant::default() + SETTLED);
                fabric.post_send(*node, *qp, wr.clone()).unwrap();
            }
        }
    }
    let counts = fabric.counts();
    let (lost, marked, longest) = (counts.queue_full, counts.marked, fabric.longest_queue(receiver));
    Outcome { messages, lost, marked, longest, digest: fabric.digest() }
}

fn settings(algorithm: Algorithm) -> CongestionSettings {
    // Cards have parameters for 100 Gbit/s. Where a queue takes a hundred times as long, CNPs, alpha and increases do, too.
    let parameters = Parameters {
        min_time_between_cnps: 50,
        dce_tcp_rtt: 55,
        rpg_time_reset: 1500,
        rpg_byte_reset: 0,
        rpg_threshold: 5,
        clamp_tgt_rate: 1,
        ..Parameters::default()
    };
    CongestionSettings { ecn: true, algorithm, parameters, line_rate: 1000 }
}

fn show(name: &str, outcome: &Outcome) {
    println!(
        "{name}: {:?} messages, fairness {:.3}, {:.2} of the link, {} lost, {} marked, up to {} in the queue",
        outcome.messages,
        outcome.fairness(),
        outcome.utilisation(),
        outcome.lost,
        outcome.marked,
        outcome.longest
    );
}

#[test]
fn dcqcn_shares_a_link_without_loss() {
    for seed in 1..=3 {
        let outcome = share_a_link(settings(Algorithm::Dcqcn), Some((20, 100)), seed);
        show("dcqcn", &outcome);
        assert_eq!(outcome.lost, 0);
        assert!(outcome.marked > 0);
        assert!(outcome.longest < 192, "{} in the queue", outcome.longest);
        assert!(outcome.fairness() >= 0.95, "fairness {}", outcome.fairness());
        assert!(outcome.utilisation() >= 0.9, "{} of the link", outcome.utilisation());
        assert_eq!(outcome.digest, share_a_link(settings(Algorithm::Dcqcn), Some((20, 100)), seed).digest);
    }
}

#[test]
fn a_window_without_marks_finds_the_end_of_the_queue_by_losses() {
    let outcome = share_a_link(CongestionSettings::NONE, None, 1);
    show("window", &outcome);
    assert!(outcome.lost > 0);
    assert_eq!((outcome.marked, outcome.longest), (0, 256));
}

/// Marks spare the other algorithms the losses, too.
#[test]
fn window_and_swift_obey_marks() {
    for (name, algorithm) in [("window", Algorithm::Window), ("swift", Algorithm::Swift)] {
        let outcome = share_a_link(settings(algorithm), Some((20, 100)), 1);
        show(name, &outcome);
        assert_eq!(outcome.lost, 0, "{name}");
        assert!(outcome.longest < 160, "{name}: {} in the queue", outcome.longest);
        assert!(outcome.utilisation() >= 0.9, "{name}: {} of the link", outcome.utilisation());
    }
}

/// A delay target keeps the queue short without any mark.
#[test]
fn swift_keeps_the_queue_short_by_delay() {
    let outcome = share_a_link(settings(Algorithm::Swift), None, 1);
    show("swift without marks", &outcome);
    assert_eq!(outcome.lost, 0);
    assert!(outcome.longest < 224, "{} in the queue", outcome.longest);
    assert!(outcome.utilisation() >= 0.9, "{} of the link", outcome.utilisation());
}
