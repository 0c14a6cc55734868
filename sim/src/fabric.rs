//! The network between nodes, and its time.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use urxe_engine::ModifyError;
use urxe_engine::attr::{AttrMask, QpAttr};
use urxe_engine::endpoint::{Datagram, Event as NodeEvent, QpSetup, Received, Route, to_rts};
use urxe_engine::{Access, Instant, PostError, QpCap, QpState, QpType, RecvWr, SendWr};
use urxe_wire::{ICRC_LEN, Mtu, Packet, Psn, Qpn, RnrTimer};

use crate::capture::Capture;
use crate::memory::DEFAULT_PD;
use crate::node::{Node, NodeConfig, NodeId};
use crate::rule::{Flight, Rule, Verdict};
use crate::timeouts::Timeouts;

/// The medium between any two nodes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Link {
    /// From the sender to the receiver's buffer.
    pub latency: Duration,
    /// Between two packets of one sender.
    pub gap: Duration,
}

impl Default for Link {
    fn default() -> Self {
        Self { latency: Duration::from_micros(5), gap: Duration::from_nanos(300) }
    }
}

/// Fates of packets so far.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counts {
    /// Sent by nodes.
    pub sent: u64,
    /// Given to queue pairs.
    pub delivered: u64,
    /// Lost by a rule.
    pub dropped: u64,
    /// Sent twice by a rule.
    pub duplicated: u64,
    /// Delayed by a rule.
    pub delayed: u64,
    /// Damaged by a rule.
    pub corrupted: u64,
    /// Changed by a rule, with a right ICRC.
    pub forged: u64,
    /// Lost because a receive buffer was full.
    pub overflowed: u64,
    /// Thrown away because the ICRC was wrong.
    pub bad_icrc: u64,
    /// Thrown away because it was no packet, after a forgery.
    pub malformed: u64,
    /// For an address or a queue pair that does not exist.
    pub unreachable: u64,
}

impl Counts {
    /// Packets that something untoward happened to.
    #[must_use]
    pub const fn impaired(&self) -> u64 {
        self.dropped
            + self.duplicated
            + self.delayed
            + self.corrupted
            + self.forged
            + self.overflowed
            + self.unreachable
    }
}

/// Step of the simulation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// A packet reached a node's receive buffer.
    Arrived(NodeId),
    /// A node did its work: received, did what was due, sent.
    Served(NodeId),
    /// An alarm that the caller set with [`Fabric::alarm`].
    Alarm(u64),
}

#[derive(Debug)]
enum Scheduled {
    Arrive(NodeId, Datagram),
    Serve(NodeId),
    Alarm(u64),
}

/// Scheduled step; of steps at the same time, the one scheduled first comes first.
#[derive(Debug)]
struct Entry {
    at: Instant,
    order: u64,
    what: Scheduled,
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        (self.at, self.order) == (other.at, other.order)
    }
}

impl Eq for Entry {}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Entry {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.order).cmp(&(other.at, other.order))
    }
}

/// Nodes and what is between them.
#[derive(Default)]
pub struct Fabric {
    now: Instant,
    link: Link,
    nodes: Vec<Node>,
    by_address: HashMap<IpAddr, NodeId>,
    timeouts: Timeouts<NodeId>,
    /// Nodes that something has been done with since their timeouts were looked at.
    touched: BTreeSet<NodeId>,
    /// When each node's link is free again.
    free_at: Vec<Instant>,
    rules: Vec<Box<dyn Rule>>,
    schedule: BinaryHeap<Reverse<Entry>>,
    order: u64,
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

    /// Everything that nodes saw, oldest first.
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
        self.touched.insert(id);
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

    /// Makes a queue pair on each node, with CQs of their own, and connects them.
    pub fn connect(&mut self, a: NodeId, b: NodeId, connection: &Connection) -> (Qpn, Qpn) {
        let setups = [a, b].map(|id| {
            let mut verbs = self.nodes[id.0].verbs();
            let (send_cq, recv_cq) = (verbs.create_cq(connection.cq_capacity), verbs.create_cq(connection.cq_capacity));
            QpSetup {
                cap: connection.cap,
                sq_sig_all: connection.sq_sig_all,
                window: connection.window,
                ..QpSetup::new(QpType::Rc, DEFAULT_PD, send_cq, recv_cq)
            }
        });
        let [qp_a, qp_b] = self.connect_made([a, b], setups, connection);
        (qp_a, qp_b)
    }

    /// Makes queue pairs of these properties on both nodes and connects them.
    pub(crate) fn connect_made(
        &mut self,
        [a, b]: [NodeId; 2],
        [setup_a, setup_b]: [QpSetup; 2],
        connection: &Connection,
    ) -> [Qpn; 2] {
        let (qp_a, qp_b) = (self.nodes[a.0].create_qp(&setup_a), self.nodes[b.0].create_qp(&setup_b));
        let [psn_a, psn_b] = connection.psns;
        self.establish(a, qp_a, psn_a, b, qp_b, psn_b, connection);
        self.establish(b, qp_b, psn_b, a, qp_a, psn_a, connection);
        [qp_a, qp_b]
    }

    #[expect(clippy::too_many_arguments, reason = "both ends of a connection, three values each")]
    fn establish(
        &mut self,
        id: NodeId,
        qpn: Qpn,
        psn: Psn,
        peer: NodeId,
        peer_qpn: Qpn,
        peer_psn: Psn,
        c: &Connection,
    ) {
        let attr = QpAttr { dest_qpn: peer_qpn, rq_psn: peer_psn, sq_psn: psn, ..c.attr };
        let source_port = 0xC000 | u16::try_from(qpn.get() & 0x3FFF).unwrap_or(0);
        let route = Route { to: self.nodes[peer.0].address(), source_port };
        let now = self.now;
        for (to, mask) in to_rts(QpType::Rc) {
            let route = (to == QpState::Rtr).then_some(route);
            self.nodes[id.0].modify(now, qpn, to, mask, &attr, route).expect("the attributes are all there");
        }
        self.collect(id);
    }

    /// Has [`Step::Alarm`] returned at `at`.
    pub fn alarm(&mut self, at: Instant, token: u64) {
        self.schedule(at, Scheduled::Alarm(token));
    }

    /// Whether something will still happen.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        !self.schedule.is_empty() || self.nodes.iter().any(|node| node.poll_timeout().is_some())
    }

    /// Takes the next thing that happens; `None` when nothing will ever happen any more.
    pub fn step(&mut self) -> Option<Step> {
        while let Some(id) = self.touched.pop_first() {
            self.timeouts.set(id, self.nodes[id.0].poll_timeout());
        }
        let next = self.schedule.peek().map(|Reverse(entry)| entry.at);
        if let Some((at, id)) = self.timeouts.first()
            && next.is_none_or(|next| at < next)
        {
            self.now = self.now.max(at);
            self.serve(id);
            return Some(Step::Served(id));
        }
        let Reverse(entry) = self.schedule.pop()?;
        self.now = self.now.max(entry.at);
        Some(match entry.what {
            Scheduled::Arrive(id, datagram) => {
                self.arrive(id, datagram);
                Step::Arrived(id)
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

    fn schedule(&mut self, at: Instant, what: Scheduled) {
        self.order += 1;
        self.schedule.push(Reverse(Entry { at, order: self.order, what }));
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

    /// Has the node do its work soon, unless it will anyway.
    fn wake_later(&mut self, id: NodeId) {
        let node = &mut self.nodes[id.0];
        if node.wakes_at.is_none() {
            let at = self.now + node.config().service_delay;
            node.wakes_at = Some(at);
            self.schedule(at, Scheduled::Serve(id));
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
    fn collect(&mut self, id: NodeId) {
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
        let flight = Flight { number, now: self.now, from, to, packet, bytes: &datagram.bytes };
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
        for after in copies {
            self.schedule(arrives + after, Scheduled::Arrive(to, damaged.clone()));
        }
        self.schedule(arrives, Scheduled::Arrive(to, damaged));
    }
}

/// `datagram` with bytes changed, and the ICRC that belongs to them.
fn forged(datagram: Datagram, changes: &[(usize, u8)]) -> Datagram {
    let Datagram { from, to, mut bytes } = datagram;
    if changes.is_empty() {
        return Datagram { from, to, bytes };
    }
    bytes.truncate(bytes.len() - ICRC_LEN);
    for &(at, with) in changes {
        let at = at % bytes.len();
        bytes[at] ^= with;
    }
    Datagram::with_icrc(from, to, bytes)
}

/// The engine's events have no `Hash`; their debug output says everything that is in them.
fn hash_event(event: &NodeEvent, digest: &mut DefaultHasher) {
    struct Sink<'a>(&'a mut DefaultHasher);
    impl std::fmt::Write for Sink<'_> {
        fn write_str(&mut self, text: &str) -> std::fmt::Result {
            self.0.write(text.as_bytes());
            Ok(())
        }
    }
    std::fmt::Write::write_fmt(&mut Sink(digest), format_args!("{event:?}")).expect("hashing does not fail");
}

/// Properties of two connected queue pairs.
#[derive(Clone, Copy, Debug)]
pub struct Connection {
    /// Attributes of both; `dest_qpn`, `rq_psn` and `sq_psn` are filled in.
    pub attr: QpAttr,
    /// The first PSN that each sends.
    pub psns: [Psn; 2],
    /// Sizes of both.
    pub cap: QpCap,
    /// Every send completes with a CQE.
    pub sq_sig_all: bool,
    /// Most packets in flight.
    pub window: u32,
    /// Capacity of each of the four CQs.
    pub cq_capacity: usize,
}

impl Default for Connection {
    fn default() -> Self {
        Self {
            attr: QpAttr {
                access: Access::LOCAL_WRITE
                    | Access::REMOTE_READ
                    | Access::REMOTE_WRITE
                    | Access::REMOTE_ATOMIC
                    | Access::FLUSH_GLOBAL,
                path_mtu: Mtu::Mtu1024,
                timeout: 12,
                retry_cnt: 7,
                rnr_retry: 7,
                min_rnr_timer: RnrTimer::new(12),
                max_rd_atomic: 4,
                max_dest_rd_atomic: 4,
                ..QpAttr::default()
            },
            psns: [Psn::new(0xFF_FFF0), Psn::new(0x12_3456)],
            cap: QpCap { max_send_wr: 64, max_recv_wr: 64, max_send_sge: 4, max_recv_sge: 4, max_inline_data: 1024 },
            sq_sig_all: false,
            window: 128,
            cq_capacity: 1024,
        }
    }
}
