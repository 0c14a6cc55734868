//! A host: an endpoint, an address space, and a bounded receive buffer.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::time::Duration;

use urxe_engine::ModifyError;
use urxe_engine::attr::{AttrMask, QpAttr};
use urxe_engine::endpoint::{CounterId, CqId, Datagram, EndpointHost, Error, Outbox, QpSetup, Received, Route};
use urxe_engine::{
    AttachError, CountedOps, Cqe, Endpoint, Instant, Paths, PostError, QpState, QueuePair, QuirkSet, RecvWr, SendWr,
    UdRecipient,
};
use urxe_wire::{Mtu, Qpn};

use crate::memory::AddressSpace;
use crate::verbs::{SimQuirks, Verbs, boxed};

/// Bytes of payload in the largest datagram of UD.
pub(crate) const PORT_MTU: Mtu = Mtu::Mtu1024;

/// Number of a node in its fabric.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct NodeId(pub(crate) usize);

/// A queue pair of a node.
pub type SimQueuePair = QueuePair<EndpointHost<AddressSpace, SimQuirks>>;

/// Configuration of a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NodeConfig {
    /// Address; the fabric chooses one if there is none.
    pub address: Option<IpAddr>,
    /// Decides keys and QP numbers.
    pub seed: u64,
    /// Packets that its receive buffer holds; more are lost.
    pub receive_buffer: usize,
    /// Time for which packets lie there before the node looks.
    pub service_delay: Duration,
    /// Packets it can send before it must wait for `service_delay`.
    pub send_room: usize,
    /// Quirks of its objects.
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

/// A host: an [`Endpoint`] with a bounded receive buffer.
pub struct Node {
    config: NodeConfig,
    endpoint: Endpoint<AddressSpace, SimQuirks>,
    pub(crate) inbox: VecDeque<Datagram>,
    /// The time at which the node looks at its receive buffer.
    pub(crate) wakes_at: Option<Instant>,
}

impl Node {
    /// A node with this address, and no room in its send buffer.
    #[must_use]
    pub fn new(address: IpAddr, config: NodeConfig) -> Self {
        let memory = AddressSpace::new(config.seed);
        let mut endpoint = Endpoint::with_quirks(address, memory, config.seed ^ 0x51CE_D0DE);
        endpoint.outbox_mut().set_room(0);
        endpoint.queues_mut().set_tracing(true);
        Self { config, endpoint, inbox: VecDeque::new(), wakes_at: None }
    }

    /// The configuration.
    #[must_use]
    pub const fn config(&self) -> &NodeConfig {
        &self.config
    }

    /// The address.
    #[must_use]
    pub const fn address(&self) -> IpAddr {
        self.endpoint.address()
    }

    /// The memory.
    #[must_use]
    pub const fn memory(&self) -> &AddressSpace {
        self.endpoint.memory()
    }

    /// The memory, to map, register and poke.
    pub const fn memory_mut(&mut self) -> &mut AddressSpace {
        self.endpoint.memory_mut()
    }

    /// The send buffer.
    pub const fn nic(&mut self) -> &mut Outbox {
        self.endpoint.outbox_mut()
    }

    /// Completion queues, shared receive queues and log.
    pub const fn verbs(&mut self) -> Verbs<'_> {
        Verbs { quirks: self.config.quirks, queues: self.endpoint.queues_mut() }
    }

    /// Creates a queue pair, with a number that the seed decides.
    pub fn create_qp(&mut self, setup: &QpSetup) -> Qpn {
        let nth = self.endpoint.qp_count() as u64;
        let quirks = self.config.quirks.map(|quirks| quirks.queue_pair(nth));
        self.endpoint.create_qp_with(&QpSetup { port_mtu: PORT_MTU, ..*setup }, boxed(quirks))
    }

    /// Destroys a queue pair; packets for it find nobody.
    pub fn destroy_qp(&mut self, qpn: Qpn) {
        assert!(self.endpoint.destroy_qp(qpn), "there is no queue pair {qpn}");
    }

    /// A queue pair.
    ///
    /// # Panics
    /// If there is none with this number.
    #[must_use]
    pub fn qp(&self, qpn: Qpn) -> &SimQueuePair {
        self.endpoint.qp(qpn).expect("the QP exists")
    }

    /// Completion queue of a queue pair's sends.
    #[must_use]
    pub fn send_cq(&self, qpn: Qpn) -> CqId {
        self.qp(qpn).config().send_cq.expect("given to every QP")
    }

    /// Completion queue of a queue pair's receives.
    #[must_use]
    pub fn recv_cq(&self, qpn: Qpn) -> CqId {
        self.qp(qpn).config().recv_cq.expect("given to every QP")
    }

    /// `ibv_poll_cq(3)` for one completion.
    pub fn poll(&mut self, cq: CqId) -> Option<Cqe> {
        self.endpoint.poll_cq(cq)
    }

    /// `ibv_modify_qp(3)`. A route, or a primary path, sets [`AttrMask::AV`], an alternate path [`AttrMask::ALT_PATH`].
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
        paths: impl Into<Paths<Route>>,
    ) -> Result<(), ModifyError> {
        self.endpoint.modify(now, qpn, to, mask, attr, paths).map_err(refusal)
    }

    /// Puts a queue pair into ERR as if its surroundings had failed.
    pub fn fail(&mut self, now: Instant, qpn: Qpn) {
        assert!(self.endpoint.fail(now, qpn), "there is no queue pair {qpn}");
    }

    /// The primary path of a queue pair is down. Returns whether it goes on over the alternate one.
    pub fn path_failed(&mut self, now: Instant, qpn: Qpn) -> bool {
        self.endpoint.path_failed(now, qpn)
    }

    /// `ibv_post_send(3)`; nothing is sent yet.
    ///
    /// # Errors
    /// As [`QueuePair::post_send`].
    pub fn post_send(&mut self, now: Instant, qpn: Qpn, wr: SendWr) -> Result<(), PostError> {
        self.endpoint.post_send(now, qpn, wr, None).map_err(refusal)
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
        self.endpoint.post_send(now, qpn, wr, Some(to)).map_err(refusal)
    }

    /// `ibv_qp_attach_comp_cntr(3)`.
    ///
    /// # Errors
    /// As [`QueuePair::attach_counter`].
    pub fn attach_counter(&mut self, qpn: Qpn, ops: CountedOps, counter: CounterId) -> Result<(), AttachError> {
        self.endpoint.attach_counter(qpn, ops, counter).map_err(refusal)
    }

    /// `ibv_post_recv(3)`.
    ///
    /// # Errors
    /// As [`QueuePair::post_recv`].
    pub fn post_recv(&mut self, now: Instant, qpn: Qpn, wr: RecvWr) -> Result<(), PostError> {
        self.endpoint.post_recv(now, qpn, wr).map_err(refusal)
    }

    /// Checks a datagram and gives it to its queue pair.
    pub fn receive(&mut self, now: Instant, datagram: &Datagram) -> Received {
        self.endpoint.handle_datagram(now, datagram)
    }

    /// Handles the deadlines that have passed.
    pub fn handle_timeouts(&mut self, now: Instant) {
        self.endpoint.handle_timeout(now);
    }

    /// The earliest time at which the node wants to be called.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.endpoint.next_timeout()
    }

    /// Lets all queue pairs send what they have; `false` if the send buffer had no room for everything.
    pub fn transmit(&mut self, now: Instant) -> bool {
        self.endpoint.transmit(now)
    }
}

/// The refusal of a queue pair, which exists.
fn refusal<E>(error: Error<E>) -> E {
    match error {
        Error::Refused(refusal) => refusal,
        Error::NoSuchQp => panic!("the QP exists"),
    }
}
