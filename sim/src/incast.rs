//! Three senders, one link: what congestion control makes of the queue in front of it.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

pub use urxe_engine::congestion::Algorithm;
use urxe_engine::congestion::{CongestionSettings, Parameters};
use urxe_engine::{Access, Data, Instant, Recipient, SendFlags, SendOp, SendWr, Sge, SgeList, WcStatus};
use urxe_wire::Qpn;

use crate::{Bottleneck, Connection, Fabric, Flight, NodeConfig, NodeId, Verdict};

/// Hosts that send.
pub const SENDERS: usize = 3;
/// Bits a second of the link.
pub const RATE: u64 = 1_000_000_000;
/// Packets that the queue holds.
pub const CAPACITY: usize = 256;
/// Time from one [`Sample`] to the next.
pub const INTERVAL: Duration = Duration::from_micros(250);

/// Bytes of a message, and messages of a sender at a time.
const LENGTH: u32 = 16 * 1024;
const DEPTH: usize = 32;
/// Until when the senders find their rates, and until when they are measured.
const SETTLED: Duration = Duration::from_millis(100);
const END: Duration = Duration::from_millis(400);
/// Packets in the queue from which on some are marked, and all.
const MARKS: (usize, usize) = (20, 100);

/// A way to share the link.
#[derive(Clone, Copy, Debug)]
pub struct Incast {
    /// Congestion control of the senders.
    pub congestion: CongestionSettings,
    /// The queue marks packets.
    pub is_marking: bool,
    /// Decides which packets are marked.
    pub seed: u64,
}

impl Incast {
    /// Senders with this algorithm, and a queue that marks.
    #[must_use]
    pub fn new(algorithm: Algorithm) -> Self {
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
        let congestion = CongestionSettings { ecn: true, algorithm, parameters, line_rate: 1000 };
        Self { congestion, is_marking: true, seed: 1 }
    }

    /// Streams WRITEs from all senders for 0.4 s.
    ///
    /// # Panics
    /// If a WRITE fails.
    #[must_use]
    pub fn run(&self) -> Outcome {
        let mut fabric = Fabric::new();
        let config = NodeConfig { receive_buffer: 4096, seed: self.seed, ..NodeConfig::default() };
        let receiver = fabric.add_node(config);
        let marks = self.is_marking.then_some(MARKS);
        fabric.set_bottleneck(receiver, Bottleneck { rate: RATE, capacity: CAPACITY, marks }, self.seed);
        let connection = Connection { congestion: self.congestion, window: 256, ..Connection::default() };
        let senders = [(); SENDERS].map(|()| Sender::new(&mut fabric, receiver, config, &connection));
        let sent = Rc::<RefCell<[u64; SENDERS]>>::default();
        let (nodes, counted) = (senders.each_ref().map(|sender| sender.node), Rc::clone(&sent));
        fabric.add_rule(move |flight: &Flight<'_>| {
            if let Some(at) = nodes.iter().position(|node| *node == flight.from) {
                counted.borrow_mut()[at] += flight.bytes.len() as u64;
            }
            Verdict::Pass
        });
        for sender in &senders {
            (0..DEPTH).for_each(|_| sender.post(&mut fabric));
        }
        let (mut messages, mut samples) = ([0; SENDERS], Vec::new());
        let (end, mut next) = (Instant::default() + END, Instant::default() + INTERVAL);
        fabric.alarm(end, 0);
        while fabric.now() < end {
            fabric.step().expect("they go on sending");
            while next <= fabric.now() {
                let queue = fabric.queue_length(receiver);
                samples.push(Sample { queue, sent: std::mem::take(&mut sent.borrow_mut()) });
                next = next + INTERVAL;
            }
            for (sender, messages) in senders.iter().zip(&mut messages) {
                for _ in 0..sender.completed(&mut fabric) {
                    *messages += u64::from(fabric.now() >= Instant::default() + SETTLED);
                    sender.post(&mut fabric);
                }
            }
        }
        let counts = fabric.counts();
        let (lost, marked, longest) = (counts.queue_full, counts.marked, fabric.longest_queue(receiver));
        Outcome { messages, lost, marked, longest, digest: fabric.digest(), samples }
    }
}

/// A host that sends.
struct Sender {
    node: NodeId,
    qp: Qpn,
    wr: SendWr,
}

impl Sender {
    fn new(fabric: &mut Fabric, receiver: NodeId, config: NodeConfig, connection: &Connection) -> Self {
        let node = fabric.add_node(config);
        let (qp, _) = fabric.connect(node, receiver, connection);
        let local = fabric.node_mut(node).memory_mut().register_new(LENGTH as usize, Access::LOCAL_WRITE);
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let remote = fabric.node_mut(receiver).memory_mut().register_new(LENGTH as usize, access);
        let sge = Sge { addr: local.addr, length: LENGTH, l_key: local.key.0 };
        let flags = SendFlags { signaled: true, ..SendFlags::default() };
        let data = Data::Gather(SgeList::new(&[sge]));
        let wr = SendWr { wr_id: 0, op: SendOp::Write(remote.remote()), data, flags, to: Recipient::Peer };
        Self { node, qp, wr }
    }

    fn post(&self, fabric: &mut Fabric) {
        fabric.post_send(self.node, self.qp, self.wr.clone()).expect("there is room");
    }

    /// Messages that have completed.
    fn completed(&self, fabric: &mut Fabric) -> usize {
        let cq = fabric.node(self.node).send_cq(self.qp);
        let polled = std::iter::from_fn(|| fabric.node_mut(self.node).poll(cq));
        polled.inspect(|cqe| assert_eq!(cqe.status, WcStatus::Success)).count()
    }
}

/// State of the link at a time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sample {
    /// Packets in the queue.
    pub queue: usize,
    /// Bytes from BTH to ICRC that each sender has sent since the last sample.
    pub sent: [u64; SENDERS],
}

/// Outcome of [`Incast::run`].
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Messages of each sender while measured.
    pub messages: [u64; SENDERS],
    /// Packets lost in the queue.
    pub lost: u64,
    /// Packets marked in the queue.
    pub marked: u64,
    /// Most packets in the queue at a time.
    pub longest: usize,
    /// [`Fabric::digest`].
    pub digest: u64,
    /// Samples, one each [`INTERVAL`].
    pub samples: Vec<Sample>,
}

impl Outcome {
    /// Jain's index of fairness: 1 if all have got the same.
    #[must_use]
    pub fn fairness(&self) -> f64 {
        let rates = self.messages.map(|messages| messages as f64);
        let sum: f64 = rates.iter().sum();
        sum * sum / (SENDERS as f64 * rates.iter().map(|rate| rate * rate).sum::<f64>())
    }

    /// The part of the link that carries packets of messages that have arrived.
    #[must_use]
    pub fn utilisation(&self) -> f64 {
        // 16 packets of 1024 bytes, a BTH, an ICRC, a RETH in the first, and the headers of UDP, IPv4 and Ethernet.
        let bytes = 16 * (1024 + 12 + 4 + 46) + 16;
        let messages: u64 = self.messages.iter().sum();
        messages as f64 * f64::from(bytes) * 8.0 / (END - SETTLED).as_secs_f64() / RATE as f64
    }
}
