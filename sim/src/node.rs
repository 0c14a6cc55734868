//! A host: an address space, completion queues, a network interface, queue pairs.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::IpAddr;
use std::time::Duration;

use urxe_engine::attr::{AttrMask, ModifyError, QpAttr};
use urxe_engine::rng::Rng;
use urxe_engine::{
    AttachError, CountedOps, Cqe, Host, Instant, Io, Pd, PostError, Progress, QpCap, QpConfig, QpQuirks, QpState,
    QpType, QueuePair, QuirkSet, RecvWr, SendWr, UdRecipient, XrcDomain,
};
use urxe_wire::{Mtu, Packet, Qpn};

use crate::memory::{AddressSpace, DEFAULT_PD};
use crate::network::{Datagram, Nic, Origin, Route};
use crate::timeouts::Timeouts;
use crate::verbs::{CounterId, CqId, SrqId, Verbs};

/// Bytes of payload in the largest datagram of UD.
pub(crate) const PORT_MTU: Mtu = Mtu::Mtu1024;

/// Which node of a fabric.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct NodeId(pub(crate) usize);

/// The engine's surroundings in a simulation.
#[derive(Debug)]
pub enum SimHost {}

impl Host for SimHost {
    type Memory = AddressSpace;
    type Network = Nic;
    type Consumer = Verbs;
    type Clock = Instant;
    type Quirks = QpQuirks;
}

/// What a node is like.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NodeConfig {
    /// Its address; the fabric chooses one if there is none.
    pub address: Option<IpAddr>,
    /// Decides keys and QP numbers.
    pub seed: u64,
    /// Packets that its receive buffer holds; more are lost.
    pub receive_buffer: usize,
    /// How long packets lie there before the node looks.
    pub service_delay: Duration,
    /// Packets it can send before it must wait for `service_delay`.
    pub send_room: usize,
    /// What it does where it is free to choose, unless what is ordinary.
    pub quirks: Option<QuirkSet>,
}

impl Default for NodeConfig {
    fn default() -> Self {
        Self {
            address: None,
            seed: 1,
            receive_buffer: 256,
            service_delay: Duration::from_micros(2),
            send_room: 1024,
            quirks: None,
        }
    }
}

/// How a packet that arrived was taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Received {
    /// A queue pair has it.
    Delivered(Qpn),
    /// Its ICRC is wrong.
    BadIcrc,
    /// It is not a packet, although its ICRC is right.
    Malformed,
    /// No queue pair has this number.
    NoSuchQp,
}

/// A host.
pub struct Node {
    config: NodeConfig,
    memory: AddressSpace,
    nic: Nic,
    verbs: Verbs,
    qps: BTreeMap<Qpn, QueuePair<SimHost>>,
    /// The numbers of all of them, lowest first.
    qpns: Vec<Qpn>,
    /// Those that may have something to send.
    busy: BTreeSet<Qpn>,
    timeouts: Timeouts<Qpn>,
    rng: Rng,
    /// Counts calls of `transmit`, so that each QP is the first to send in its turn.
    turn: usize,
    pub(crate) inbox: VecDeque<Datagram>,
    /// When the node looks at its receive buffer.
    pub(crate) wakes_at: Option<Instant>,
}

impl Node {
    /// A node with this address.
    #[must_use]
    pub fn new(address: IpAddr, config: NodeConfig) -> Self {
        Self {
            config,
            memory: AddressSpace::new(config.seed),
            nic: Nic::new(address),
            verbs: Verbs::new(config.quirks),
            qps: BTreeMap::new(),
            qpns: Vec::new(),
            busy: BTreeSet::new(),
            timeouts: Timeouts::default(),
            rng: Rng::new(config.seed ^ 0x51CE_D0DE),
            turn: 0,
            inbox: VecDeque::new(),
            wakes_at: None,
        }
    }

    /// What it is like.
    #[must_use]
    pub const fn config(&self) -> &NodeConfig {
        &self.config
    }

    /// Its address.
    #[must_use]
    pub const fn address(&self) -> IpAddr {
        self.nic.address()
    }

    /// Its memory.
    #[must_use]
    pub const fn memory(&self) -> &AddressSpace {
        &self.memory
    }

    /// Its memory, to map, register and poke.
    pub const fn memory_mut(&mut self) -> &mut AddressSpace {
        &mut self.memory
    }

    /// Its network interface.
    pub const fn nic(&mut self) -> &mut Nic {
        &mut self.nic
    }

    /// Its completion queues and log.
    pub const fn verbs(&mut self) -> &mut Verbs {
        &mut self.verbs
    }

    /// Makes a queue pair of the default protection domain, with a number nobody guesses.
    pub fn create_qp(&mut self, qp: QpSetup) -> Qpn {
        let qpn = loop {
            let qpn = Qpn::new(u32::try_from(2 + self.rng.below(0xFF_FFF0)).unwrap_or(2));
            if !self.qps.contains_key(&qpn) {
                break qpn;
            }
        };
        let QpSetup { qp_type, pd, cap, sq_sig_all, send_cq, recv_cq, srq, xrcd, window } = qp;
        let nth = self.qps.len() as u64;
        let quirks = self.config.quirks.map_or(QpQuirks::default(), |quirks| quirks.queue_pair(nth));
        let (send_cq, recv_cq) = (Some(send_cq), Some(recv_cq));
        let (port_mtu, counters) = (PORT_MTU, Vec::new());
        let config = QpConfig {
            qpn,
            qp_type,
            pd,
            cap,
            sq_sig_all,
            send_cq,
            recv_cq,
            srq,
            xrcd,
            window,
            port_mtu,
            quirks,
            counters,
        };
        self.qps.insert(qpn, QueuePair::new(config));
        self.qpns.insert(self.qpns.partition_point(|other| *other < qpn), qpn);
        qpn
    }

    /// Destroys a queue pair; packets for it find nobody.
    pub fn destroy_qp(&mut self, qpn: Qpn) {
        self.qps.remove(&qpn);
        self.qpns.retain(|other| *other != qpn);
        self.busy.remove(&qpn);
        self.timeouts.set(qpn, None);
    }

    /// A queue pair.
    ///
    /// # Panics
    /// If there is none with this number.
    #[must_use]
    pub fn qp(&self, qpn: Qpn) -> &QueuePair<SimHost> {
        &self.qps[&qpn]
    }

    /// The numbers of its queue pairs.
    pub fn qpns(&self) -> impl Iterator<Item = Qpn> + '_ {
        self.qps.keys().copied()
    }

    /// Where a queue pair's sends complete.
    #[must_use]
    pub fn send_cq(&self, qpn: Qpn) -> CqId {
        self.qp(qpn).config().send_cq.expect("given to every QP")
    }

    /// Where a queue pair's receives complete.
    #[must_use]
    pub fn recv_cq(&self, qpn: Qpn) -> CqId {
        self.qp(qpn).config().recv_cq.expect("given to every QP")
    }

    /// `ibv_poll_cq(3)` for one completion.
    pub fn poll(&mut self, cq: CqId) -> Option<Cqe> {
        self.verbs.cq(cq).poll()
    }

    /// `ibv_modify_qp(3)`. A `route` sets [`AttrMask::AV`].
    ///
    /// # Errors
    /// As [`QueuePair::modify`].
    pub fn modify(
        &mut self,
        now: Instant,
        qpn: Qpn,
        to: QpState,
        mask: AttrMask,
        attr: &QpAttr,
        route: Option<Route>,
    ) -> Result<(), ModifyError> {
        let mask = if route.is_some() { mask.with(AttrMask::AV) } else { mask };
        self.drive(now, qpn, |qp, io| qp.modify(io, to, mask, attr, route)).expect("the QP exists")
    }

    /// Puts a queue pair into ERR as if its surroundings had failed.
    pub fn fail(&mut self, now: Instant, qpn: Qpn) {
        self.drive(now, qpn, QueuePair::fail).expect("the QP exists");
    }

    /// `ibv_post_send(3)`; nothing is sent yet.
    ///
    /// # Errors
    /// As [`QueuePair::post_send`].
    pub fn post_send(&mut self, now: Instant, qpn: Qpn, wr: SendWr) -> Result<(), PostError> {
        self.drive(now, qpn, |qp, io| qp.post_send(io, wr, None)).expect("the QP exists")
    }

    /// `ibv_post_send(3)` on UD.
    ///
    /// # Errors
    /// As [`QueuePair::post_send`].
    pub fn post_datagram(
        &mut self,
        now: Instant,
        qpn: Qpn,
        wr: SendWr,
        to: UdRecipient<Route>,
    ) -> Result<(), PostError> {
        self.drive(now, qpn, |qp, io| qp.post_send(io, wr, Some(to))).expect("the QP exists")
    }

    /// `ibv_qp_attach_comp_cntr(3)`.
    ///
    /// # Errors
    /// As [`QueuePair::attach_counter`].
    pub fn attach_counter(&mut self, qpn: Qpn, ops: CountedOps, counter: CounterId) -> Result<(), AttachError> {
        self.qps.get_mut(&qpn).expect("the QP exists").attach_counter(ops, counter)
    }

    /// `ibv_post_recv(3)`.
    ///
    /// # Errors
    /// As [`QueuePair::post_recv`].
    pub fn post_recv(&mut self, now: Instant, qpn: Qpn, wr: RecvWr) -> Result<(), PostError> {
        self.drive(now, qpn, |qp, io| qp.post_recv(io, wr)).expect("the QP exists")
    }

    /// Checks a datagram and gives it to its queue pair.
    pub fn receive(&mut self, now: Instant, datagram: &Datagram) -> Received {
        if !datagram.is_whole() {
            return Received::BadIcrc;
        }
        let Ok(packet) = Packet::parse(&datagram.bytes) else { return Received::Malformed };
        let qpn = packet.bth().dest_qp;
        let origin = Origin(datagram.from.ip(), datagram.to.ip());
        match self.drive(now, qpn, |qp, io| qp.handle_packet(io, &packet, &origin)) {
            Some(_) => Received::Delivered(qpn),
            None => Received::NoSuchQp,
        }
    }

    /// Does what is due.
    pub fn handle_timeouts(&mut self, now: Instant) {
        self.verbs.handle_timeouts(now);
        for qpn in self.timeouts.due(now) {
            self.drive(now, qpn, QueuePair::handle_timeout);
        }
    }

    /// The earliest time at which a queue pair wants to be called.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.timeouts.first().map(|(at, _)| at).into_iter().chain(self.verbs.poll_timeout()).min()
    }

    /// Lets all queue pairs send what they have; `false` if the network had no room for everything.
    pub fn transmit(&mut self, now: Instant) -> bool {
        let mut all = true;
        self.turn += 1;
        let first = self.qpns.get(self.turn % self.qpns.len().max(1)).copied().unwrap_or_default();
        let busy = std::mem::take(&mut self.busy);
        for &qpn in busy.range(first..).chain(busy.range(..first)) {
            let blocked = self.drive(now, qpn, |qp, io| {
                loop {
                    match qp.transmit(io) {
                        Progress::Idle => return false,
                        Progress::More => {}
                        Progress::Blocked => return true,
                    }
                }
            });
            if blocked == Some(true) {
                all = false;
            } else {
                // Until something is done with it.
                self.busy.remove(&qpn);
            }
        }
        all
    }

    /// Lets `act` at a queue pair, if there is one with this number.
    fn drive<T>(
        &mut self,
        now: Instant,
        qpn: Qpn,
        act: impl FnOnce(&mut QueuePair<SimHost>, &mut Io<'_, SimHost>) -> T,
    ) -> Option<T> {
        let qp = self.qps.get_mut(&qpn)?;
        let io = &mut Io { clock: &now, memory: &self.memory, network: &mut self.nic, consumer: &mut self.verbs };
        let result = act(qp, io);
        self.timeouts.set(qpn, qp.poll_timeout(&now));
        self.busy.insert(qpn);
        Some(result)
    }
}

/// What a queue pair is made of.
#[derive(Clone, Copy, Debug)]
pub struct QpSetup {
    /// Its service.
    pub qp_type: QpType,
    /// Its protection domain.
    pub pd: Pd,
    /// Its sizes.
    pub cap: QpCap,
    /// Every send completes with a CQE.
    pub sq_sig_all: bool,
    /// Where sends complete.
    pub send_cq: CqId,
    /// Where receives complete.
    pub recv_cq: CqId,
    /// Where receives come from, if not from its own queue.
    pub srq: Option<SrqId>,
    /// The domain of an XRC target.
    pub xrcd: Option<XrcDomain>,
    /// Most packets in flight.
    pub window: u32,
}

impl QpSetup {
    /// An RC queue pair of moderate size.
    #[must_use]
    pub const fn rc(send_cq: CqId, recv_cq: CqId) -> Self {
        Self {
            qp_type: QpType::Rc,
            pd: DEFAULT_PD,
            cap: QpCap { max_send_wr: 64, max_recv_wr: 64, max_send_sge: 4, max_recv_sge: 4, max_inline_data: 1024 },
            sq_sig_all: false,
            send_cq,
            recv_cq,
            srq: None,
            xrcd: None,
            window: 128,
        }
    }
}
