//! The network between nodes, and its time.

use std::collections::{BTreeSet, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher as _};
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use urxe_engine::ModifyError;
use urxe_engine::attr::{AttrMask, QpAttr};
use urxe_engine::endpoint::{Datagram, Event as NodeEvent, Received};
use urxe_engine::{Instant, PostError, QpState, RecvWr, SendWr};
use urxe_wire::{ICRC_LEN, Packet, Qpn};

use crate::bottleneck::{Bottleneck, SwitchQueue};
use crate::capture::Capture;
use crate::counts::Counts;
use crate::digest::hash_event;
use crate::node::{Node, NodeConfig, NodeId};
use crate::rule::{Flight, Rule, Verdict};
use crate::schedule::{Schedule, Scheduled};
use crate::timeouts::Timeouts;

/// The medium between any two nodes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Link {
    /// Time from the sender to the receiver's buffer.
    pub latency: Duration,
    /// Time between two packets of one sender.
    pub gap: Duration,
}

impl Default for Link {
    fn default() -> Self {
        Self { latency: Duration::from_micros(5), gap: Duration::from_nanos(300) }
    }
}

/// Step of the simulation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// A packet reached the queue in front of a node's link.
    Queued(NodeId),
    /// A packet reached a node's receive buffer.
    Arrived(NodeId),
    /// A node did its work: received, did what was due, sent.
    Served(NodeId),
    /// An alarm that the caller set with [`Fabric::alarm`].
    Alarm(u64),
}

/// Nodes and what is between them.
#[derive(Default)]
pub struct Fabric {
    pub(crate) now: Instant,
    link: Link,
    pub(crate) nodes: Vec<Node>,
    by_address: HashMap<IpAddr, NodeId>,
    timeouts: Timeouts<NodeId>,
    /// Nodes that something has been done with since their timeouts were looked at.
    dirty: BTreeSet<NodeId>,
    /// When each node's link is free again.
    free_at: Vec<Instant>,
    /// The switch's queue for each node, if it is not unlimited.
    queues: HashMap<NodeId, SwitchQueue>,
    rules: Vec<Box<dyn Rule>>,
    schedule: Schedule,
    counts: Counts,
    capture: Option<Capture>,
    journal: Vec<(Instant, NodeId, NodeEvent)>,
    digest: DefaultHasher,
}

impl Fabric {
    /// An empty one, at time 0.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a node. Nodes without an address of their own get 10.0.0.1, 10.0.0.2, …
    pub fn add_node(&mut self, config: NodeConfig) -> NodeId {
        let id = NodeId(self.nodes.len());
        let host = u32::try_from(id.0).unwrap_or(u32::MAX);
        let address = config.address.unwrap_or(IpAddr::V4(Ipv4Addr::from_bits(0x0A00_0001 + host)));
        self.nodes.push(Node::new(address, config));
        self.by_address.entry(address).or_insert(id);
        self.free_at.push(Instant::default());
        id
    }

    /// Adds a rule behind the others.
    pub fn add_rule(&mut self, rule: impl Rule + 'static) {
        self.rules.push(Box::new(rule));
    }

    /// Puts a queue in front of a node's link; `seed` decides which packets it marks.
    pub fn set_bottleneck(&mut self, to: NodeId, bottleneck: Bottleneck, seed: u64) {
        self.queues.insert(to, SwitchQueue::new(bottleneck, seed));
    }

    /// Most packets that were in a node's queue at a time.
    #[must_use]
    pub fn longest_queue(&self, to: NodeId) -> usize {
        self.queues.get(&to).map_or(0, SwitchQueue::longest)
    }

    /// Packets in a node's queue now.
    #[must_use]
    pub fn queue_length(&self, to: NodeId) -> usize {
        self.queues.get(&to).map_or(0, |queue| queue.len(self.now))
    }

    /// Removes all rules.
    pub fn clear_rules(&mut self) {
        self.rules.clear();
    }

    /// Keeps all packets from now on, as they were sent.
    pub fn start_capture(&mut self) {
        self.capture = Some(Capture::default());
    }

    /// The packets kept.
    #[must_use]
    pub const fn capture(&self) -> Option<&Capture> {
        self.capture.as_ref()
    }

    /// The present time.
    #[must_use]
    pub const fn now(&self) -> Instant {
        self.now
    }

    /// Fates of packets so far.
    #[must_use]
    pub const fn counts(&self) -> &Counts {
        &self.counts
    }

    /// A hash of all packets sent and all that happened, with their times: equal for equal runs.
    #[must_use]
    pub fn digest(&self) -> u64 {
        self.digest.finish()
    }

    /// Events that nodes saw, oldest first.
    #[must_use]
    pub fn journal(&self) -> &[(Instant, NodeId, NodeEvent)] {
        &self.journal
    }

    /// A node.
    #[must_use]
    pub fn node(&self, id: NodeId) -> &Node {
        &self.nodes[id.0]
    }

    /// A node, to be changed.
    pub fn node_mut(&mut self, id: NodeId) -> &mut Node {
        self.dirty.insert(id);
        &mut self.nodes[id.0]
    }

    /// Posts a send request and sends.
    ///
    /// # Errors
    /// As [`urxe_engine::QueuePair::post_send`].
    pub fn post_send(&mut self, id: NodeId, qpn: Qpn, wr: SendWr) -> Result<(), PostError> {
        let now = self.now;
        let posted = self.nodes[id.0].post_send(now, qpn, wr);
        self.flush(id);
        posted
    }

    /// Posts a receive request.
    ///
    /// # Errors
    /// As [`urxe_engine::QueuePair::post_recv`].
    pub fn post_recv(&mut self, id: NodeId, qpn: Qpn, wr: RecvWr) -> Result<(), PostError> {
        let now = self.now;
        let posted = self.nodes[id.0].post_recv(now, qpn, wr);
        self.flush(id);
        posted
    }

    /// Changes a queue pair's state and attributes.
    ///
    /// # Errors
    /// As [`urxe_engine::QueuePair::modify`].
    pub fn modify(
        &mut self,
        id: NodeId,
        qpn: Qpn,
        to: QpState,
        mask: AttrMask,
        attr: &QpAttr,
    ) -> Result<(), ModifyError> {
        let now = self.now;
        let modified = self.nodes[id.0].modify(now, qpn, to, mask, attr, None);
        self.flush(id);
        modified
    }

    /// Has [`Step::Alarm`] returned at `at`.
    pub fn alarm(&mut self, at: Instant, token: u64) {
        self.schedule.push(at, Scheduled::Alarm(token));
    }

    /// Whether something will still happen.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        !self.schedule.is_empty() || self.nodes.iter().any(|node| node.poll_timeout().is_some())
    }

    /// Takes the next thing that happens; `None` when nothing will ever happen any more.
    pub fn step(&mut self) -> Option<Step> {
        while let Some(id) = self.dirty.pop_first() {
            self.timeouts.set(id, self.nodes[id.0].poll_timeout());
        }
        let next = self.schedule.next_at();
        if let Some((at, id)) = self.timeouts.first()
            && next.is_none_or(|next| at < next)
        {
            self.now = self.now.max(at);
            self.serve(id);
            return Some(Step::Served(id));
        }
        let (at, what) = self.schedule.pop()?;
        self.now = self.now.max(at);
        Some(match what {
            Scheduled::Arrive(id, datagram) => {
                self.arrive(id, datagram);
                Step::Arrived(id)
            }
            Scheduled::Enqueue(id, datagram) => {
                self.enqueue(id, datagram);
                Step::Queued(id)
            }
            Scheduled::Serve(id) => {
                self.nodes[id.0].wakes_at = None;
                self.serve(id);
                Step::Served(id)
            }
            Scheduled::Alarm(token) => Step::Alarm(token),
        })
    }

    /// Steps until nothing will ever happen any more. Does not return if two nodes keep each other busy.
    pub fn run(&mut self) {
        while self.step().is_some() {}
    }

    /// Steps until `at`, which is then the present time.
    pub fn run_until(&mut self, at: Instant) {
        self.alarm(at, u64::MAX);
        while self.step().is_some_and(|step| step != Step::Alarm(u64::MAX)) {}
    }

    fn arrive(&mut self, id: NodeId, datagram: Datagram) {
        let node = &mut self.nodes[id.0];
        if node.inbox.len() >= node.config().receive_buffer {
            self.counts.overflowed += 1;
            return;
        }
        node.inbox.push_back(datagram);
        self.wake_later(id);
    }

    /// A packet reaches the queue of the node's link.
    fn enqueue(&mut self, id: NodeId, mut datagram: Datagram) {
        let Some(queue) = self.queues.get_mut(&id) else { return self.arrive(id, datagram) };
        if let Some(leaves) = queue.take(self.now, &mut datagram, &mut self.counts) {
            self.schedule.push(leaves, Scheduled::Arrive(id, datagram));
        }
    }

    /// Has the node do its work soon, unless it will anyway.
    fn wake_later(&mut self, id: NodeId) {
        let node = &mut self.nodes[id.0];
        if node.wakes_at.is_none() {
            let at = self.now + node.config().service_delay;
            node.wakes_at = Some(at);
            self.schedule.push(at, Scheduled::Serve(id));
        }
    }

    /// The node takes what has arrived, does what is due, and sends.
    fn serve(&mut self, id: NodeId) {
        let now = self.now;
        while let Some(datagram) = self.nodes[id.0].inbox.pop_front() {
            match self.nodes[id.0].receive(now, &datagram) {
                Received::Delivered(_) => self.counts.delivered += 1,
                Received::BadIcrc => self.counts.bad_icrc += 1,
                Received::NoSuchQp => self.counts.unreachable += 1,
                // Forgers write what they like, and the engine sends only packets.
                Received::Malformed if self.counts.forged > 0 => self.counts.malformed += 1,
                Received::Malformed => panic!("a packet with a good ICRC is malformed: {:02x?}", datagram.bytes),
            }
        }
        self.nodes[id.0].handle_timeouts(now);
        self.flush(id);
    }

    /// Lets the node send.
    pub fn flush(&mut self, id: NodeId) {
        let now = self.now;
        let node = &mut self.nodes[id.0];
        let room = node.config().send_room;
        node.nic().set_room(room);
        let all = node.transmit(now);
        let sent = node.nic().take_sent();
        if !all {
            self.wake_later(id);
        }
        for datagram in sent {
            self.send(id, datagram);
        }
        self.collect(id);
    }

    /// Moves what the node's consumer saw into the journal.
    pub(crate) fn collect(&mut self, id: NodeId) {
        for event in self.node_mut(id).verbs().take_log() {
            self.now.as_nanos().hash(&mut self.digest);
            hash_event(&event, &mut self.digest);
            self.journal.push((self.now, id, event));
        }
    }

    fn send(&mut self, from: NodeId, datagram: Datagram) {
        let number = self.counts.sent;
        self.counts.sent += 1;
        (self.now.as_nanos(), &datagram.bytes).hash(&mut self.digest);
        if let Some(capture) = &mut self.capture {
            capture.push(self.now, datagram.clone());
        }
        let Some(&to) = self.by_address.get(&datagram.to.ip()) else {
            self.counts.unreachable += 1;
            return;
        };
        let packet = Packet::parse(&datagram.bytes).expect("the engine sends what can be parsed");
        let (now, source_port) = (self.now, datagram.from.port());
        let flight = Flight { number, now, from, to, source_port, packet, bytes: &datagram.bytes };
        let (mut delay, mut copies, mut flips, mut forgeries) = (Duration::ZERO, Vec::new(), Vec::new(), Vec::new());
        for rule in &mut self.rules {
            match rule.on_packet(&flight) {
                Verdict::Pass => {}
                Verdict::Drop => {
                    self.counts.dropped += 1;
                    return;
                }
                Verdict::Duplicate(after) => {
                    self.counts.duplicated += 1;
                    copies.push(after);
                }
                Verdict::Delay(by) => {
                    self.counts.delayed += 1;
                    delay += by;
                }
                Verdict::Corrupt(bit) => {
                    self.counts.corrupted += 1;
                    flips.push(bit);
                }
                Verdict::Forge(at, with) => {
                    self.counts.forged += 1;
                    forgeries.push((at, with));
                }
            }
        }
        let mut damaged = forged(datagram, &forgeries);
        for bit in flips {
            let bit = bit % (damaged.bytes.len() * 8);
            damaged.bytes[bit / 8] ^= 0x80 >> (bit % 8);
        }
        let leaves = self.free_at[from.0].max(self.now) + self.link.gap;
        self.free_at[from.0] = leaves;
        let arrives = leaves + self.link.latency + delay;
        let arrival = if self.queues.contains_key(&to) { Scheduled::Enqueue } else { Scheduled::Arrive };
        for after in copies {
            self.schedule.push(arrives + after, arrival(to, damaged.clone()));
        }
        self.schedule.push(arrives, arrival(to, damaged));
    }
}

/// `datagram` with bytes changed, and the ICRC that belongs to them.
fn forged(datagram: Datagram, changes: &[(usize, u8)]) -> Datagram {
    let Datagram { from, to, mut bytes, is_marked } = datagram;
    if changes.is_empty() {
        return Datagram { from, to, bytes, is_marked };
    }
    bytes.truncate(bytes.len() - ICRC_LEN);
    for &(at, with) in changes {
        let at = at % bytes.len();
        bytes[at] ^= with;
    }
    Datagram { is_marked, ..Datagram::with_icrc(from, to, bytes) }
}
