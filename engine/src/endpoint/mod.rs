//! A RoCE v2 endpoint: queue pairs by number, completion queues, timers and an outbox behind one object.
//!
//! An [`Endpoint`] is to queue pairs what `quinn_proto::Endpoint` is to QUIC connections. It performs no I/O:
//!
//! | | |
//! |---|---|
//! | objects | [`create_cq`](Endpoint::create_cq), [`create_srq`](Endpoint::create_srq), [`create_qp`](Endpoint::create_qp), [`destroy_qp`](Endpoint::destroy_qp) |
//! | commands | [`connect`](Endpoint::connect), [`modify`](Endpoint::modify), [`post_send`](Endpoint::post_send), [`post_recv`](Endpoint::post_recv) |
//! | input | [`handle_datagram`](Endpoint::handle_datagram) or [`handle_packet`](Endpoint::handle_packet), [`handle_timeout`](Endpoint::handle_timeout) |
//! | output | [`poll_transmit`](Endpoint::poll_transmit), [`poll_cq`](Endpoint::poll_cq), [`poll_event`](Endpoint::poll_event), [`next_timeout`](Endpoint::next_timeout) |
//!
//! After commands and input, call `poll_transmit` until it returns `None`, and then ask for the next timeout.
//!
//! An endpoint belongs to one thread at a time. A program that shares queue pairs between threads, each in a lock of its
//! own, builds on the parts instead: [`QueuePair`], [`QpnTable`], [`TimerQueue`] with its [`TimerSlot`]s,
//! [`CompletionQueue`](crate::CompletionQueue), [`RegionTable`](crate::RegionTable).

mod heap_memory;
mod outbox;
mod packets;
mod qpn_table;
mod queues;
mod setup;
mod timer_queue;

use alloc::collections::BTreeSet;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;
use core::marker::PhantomData;
use core::net::IpAddr;

use urxe_wire::Qpn;

use crate::counter::{AttachError, CountedOps};
use crate::host::Host;
use crate::memory::Memory;
use crate::mr::Pd;
use crate::qp::attr::{AttrMask, QpAttr};
use crate::qp::migration::Paths;
use crate::qp::state::QpState;
use crate::qp::{ModifyError, QpConfig, QueuePair};
use crate::quirks::Quirks;
use crate::rng::Rng;
use crate::selective::{KeptMemory, SelectiveRepeat};
use crate::time::Instant;
use crate::work::{PostError, RecvWr, SendWr, UdRecipient};
pub use heap_memory::{Buffer, HeapMemory};
pub use outbox::{Datagram, Origin, Outbox, Route};
pub use qpn_table::QpnTable;
pub use queues::{CounterId, CqId, Event, Queues, SrqId};
pub use setup::{QpSetup, connected_attr, to_rts};
pub use timer_queue::{Earlier, TimerQueue, TimerSlot};

/// The [`Host`] of an endpoint's queue pairs.
#[derive(Debug)]
pub struct EndpointHost<M, Q>(PhantomData<(M, Q)>);

impl<M: Memory, Q: Quirks> Host for EndpointHost<M, Q> {
    type Memory = M;
    type Network = Outbox;
    type Consumer = Queues<Q>;
    type Clock = Instant;
    type Quirks = Q;
}

/// The fate of a datagram.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Received {
    /// Handed to this queue pair.
    Delivered(Qpn),
    /// Dropped: the ICRC is wrong.
    BadIcrc,
    /// Dropped: not a RoCE v2 packet.
    Malformed,
    /// Dropped: no queue pair has the destination QPN.
    NoSuchQp,
}

/// A queue pair number that the endpoint does not have, or what its queue pair refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Error<E> {
    /// No queue pair has the number.
    #[error("no queue pair has this number")]
    NoSuchQp,
    /// The queue pair refuses.
    #[error(transparent)]
    Refused(#[from] E),
}

/// A queue pair and what the endpoint knows of it.
struct Slot<M: Memory, Q: Quirks> {
    qp: QueuePair<EndpointHost<M, Q>>,
    /// The time at which the queue pair wants to be called.
    deadline: Option<Instant>,
    timer: TimerSlot,
}

/// Queue pairs, completion queues, timers and packets of one address: see the [module documentation](self).
pub struct Endpoint<M: Memory, Q: Quirks = ()> {
    memory: M,
    outbox: Outbox,
    queues: Queues<Q>,
    qps: QpnTable<Slot<M, Q>>,
    /// Queue pairs that may have something to send.
    busy: BTreeSet<Qpn>,
    /// The queue pair whose turn it is to send first.
    turn: Qpn,
    timers: TimerQueue<Qpn>,
    /// Memory for packets behind gaps.
    kept: Arc<KeptMemory>,
    rng: Rng,
}

impl<M: Memory> Endpoint<M> {
    /// An endpoint at `address` whose queue pairs use `memory`; `seed` decides queue pair numbers.
    #[must_use]
    pub fn new(address: IpAddr, memory: M, seed: u64) -> Self {
        Self::with_quirks(address, memory, seed)
    }

    /// Creates a completion queue of `capacity` elements.
    pub fn create_cq(&mut self, capacity: usize) -> CqId {
        self.queues.create_cq(capacity, ())
    }

    /// Creates a shared receive queue of `max_wr` WQEs with `max_sge` elements each.
    pub fn create_srq(&mut self, pd: Pd, max_wr: u32, max_sge: u32) -> SrqId {
        self.queues.create_srq(pd, max_wr, max_sge, ())
    }

    /// Creates a queue pair in RESET. Its number comes from the endpoint's seed: who knows the seed can predict it.
    pub fn create_qp(&mut self, setup: &QpSetup) -> Qpn {
        self.create_qp_with(setup, ())
    }
}

impl<M: Memory, Q: Quirks> Endpoint<M, Q> {
    /// An endpoint as [`new`](Endpoint::new), whose objects are created with [`Quirks`].
    #[must_use]
    pub fn with_quirks(address: IpAddr, memory: M, seed: u64) -> Self {
        Self {
            memory,
            outbox: Outbox::new(address),
            queues: Queues::new(),
            qps: QpnTable::new(),
            busy: BTreeSet::new(),
            turn: Qpn::new(0),
            timers: TimerQueue::new(),
            kept: Arc::default(),
            rng: Rng::new(seed),
        }
    }

    /// The address that packets are sent from.
    #[must_use]
    pub const fn address(&self) -> IpAddr {
        self.outbox.address()
    }

    /// The memory of work requests and peers.
    #[must_use]
    pub const fn memory(&self) -> &M {
        &self.memory
    }

    /// The memory, to register and change it.
    pub const fn memory_mut(&mut self) -> &mut M {
        &mut self.memory
    }

    /// The outbox, to bound or empty it.
    pub const fn outbox_mut(&mut self) -> &mut Outbox {
        &mut self.outbox
    }

    /// Completion queues, shared receive queues and events.
    pub const fn queues_mut(&mut self) -> &mut Queues<Q> {
        &mut self.queues
    }

    // --- objects -------------------------------------------------------------------------------------------

    /// Creates a queue pair with `quirks`, in RESET.
    pub fn create_qp_with(&mut self, setup: &QpSetup, quirks: Q) -> Qpn {
        let qpn = loop {
            // 0 and 1 are the special queue pairs; all ones is multicast.
            let qpn = Qpn::new(u32::try_from(2 + self.rng.below(0xFF_FFF0)).unwrap_or(2));
            if !self.qps.contains(qpn) {
                break qpn;
            }
        };
        let QpSetup {
            qp_type,
            pd,
            cap,
            sq_sig_all,
            send_cq,
            recv_cq,
            srq,
            xrcd,
            window,
            congestion,
            ack_timer,
            selective_paths: paths,
            port_mtu,
        } = *setup;
        let selective = (paths > 0).then(|| SelectiveRepeat { memory: Arc::clone(&self.kept), paths });
        let (send_cq, recv_cq) = (Some(send_cq), Some(recv_cq));
        let counters = Vec::new();
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
            congestion,
            ack_timer,
            selective,
            port_mtu,
            quirks,
            counters,
        };
        self.qps.insert(qpn, Slot { qp: QueuePair::new(config), deadline: None, timer: TimerSlot::default() });
        qpn
    }

    /// Destroys a queue pair and removes its completions. Packets for it are dropped from now on. False if no queue pair
    /// has the number.
    pub fn destroy_qp(&mut self, qpn: Qpn) -> bool {
        let Some(slot) = self.qps.remove(qpn) else { return false };
        self.busy.remove(&qpn);
        self.queues.forget(slot.qp.config());
        self.settle_timers();
        true
    }

    /// A queue pair.
    #[must_use]
    pub fn qp(&self, qpn: Qpn) -> Option<&QueuePair<EndpointHost<M, Q>>> {
        self.qps.get(qpn).map(|slot| &slot.qp)
    }

    /// Number of queue pairs.
    #[must_use]
    pub const fn qp_count(&self) -> usize {
        self.qps.len()
    }

    // --- commands ------------------------------------------------------------------------------------------

    /// Takes a queue pair from RESET to RTS, with the attributes that its type requires out of `attr`
    /// ([`connected_attr`]).
    ///
    /// # Errors
    /// [`ModifyError`] of the first transition that is refused.
    pub fn connect(
        &mut self,
        now: Instant,
        qpn: Qpn,
        attr: &QpAttr,
        route: Option<Route>,
    ) -> Result<(), Error<ModifyError>> {
        let qp_type = self.qp(qpn).ok_or(Error::NoSuchQp)?.config().qp_type;
        for (to, mask) in to_rts(qp_type) {
            self.modify(now, qpn, to, mask, attr, route.filter(|_| mask.contains(AttrMask::AV)))?;
        }
        Ok(())
    }

    /// Changes state and attributes of a queue pair ([`QueuePair::modify`]). A route, or a primary path, sets [`AttrMask::AV`], an
    /// alternate path [`AttrMask::ALT_PATH`].
    ///
    /// # Errors
    /// [`ModifyError`]; nothing is changed then.
    pub fn modify(
        &mut self,
        now: Instant,
        qpn: Qpn,
        to: QpState,
        mask: AttrMask,
        attr: &QpAttr,
        paths: impl Into<Paths<Route>>,
    ) -> Result<(), Error<ModifyError>> {
        let paths = paths.into();
        let mask = if paths.primary.is_some() { mask.with(AttrMask::AV) } else { mask };
        let mask = if paths.alternate.is_some() { mask.with(AttrMask::ALT_PATH) } else { mask };
        self.command(now, qpn, |qp, io| qp.modify(io, to, mask, attr, paths))
    }

    /// Posts a send request; on UD, with a recipient ([`QueuePair::post_send`]).
    ///
    /// # Errors
    /// [`PostError`]; the request is not queued then.
    pub fn post_send(
        &mut self,
        now: Instant,
        qpn: Qpn,
        wr: SendWr,
        to: Option<UdRecipient<Route>>,
    ) -> Result<(), Error<PostError>> {
        self.command(now, qpn, |qp, io| qp.post_send(io, wr, to))
    }

    /// Posts a receive request ([`QueuePair::post_recv`]).
    ///
    /// # Errors
    /// [`PostError`]; the request is not queued then.
    pub fn post_recv(&mut self, now: Instant, qpn: Qpn, wr: RecvWr) -> Result<(), Error<PostError>> {
        self.command(now, qpn, |qp, io| qp.post_recv(io, wr))
    }

    /// Attaches a completion counter ([`QueuePair::attach_counter`]).
    ///
    /// # Errors
    /// [`AttachError`]; nothing is attached then.
    pub fn attach_counter(&mut self, qpn: Qpn, ops: CountedOps, counter: CounterId) -> Result<(), Error<AttachError>> {
        let slot = self.qps.get_mut(qpn).ok_or(Error::NoSuchQp)?;
        Ok(slot.qp.attach_counter(ops, counter)?)
    }

    /// Puts a queue pair into ERR because its surroundings failed ([`QueuePair::fail`]). False if no queue pair has the
    /// number.
    pub fn fail(&mut self, now: Instant, qpn: Qpn) -> bool {
        self.drive(now, qpn, QueuePair::fail).is_some()
    }

    /// Tells a queue pair that its primary path is down ([`QueuePair::path_failed`]). Whether it goes on over another.
    pub fn path_failed(&mut self, now: Instant, qpn: Qpn) -> bool {
        self.drive(now, qpn, QueuePair::path_failed).is_some_and(|goes_on| goes_on)
    }
}

impl<M: Memory, Q: Quirks> fmt::Debug for Endpoint<M, Q> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Endpoint")
            .field("address", &self.address())
            .field("qps", &self.qps.len())
            .field("next_timeout", &self.next_timeout())
            .finish_non_exhaustive()
    }
}
