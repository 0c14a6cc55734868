//! Device of this process: sockets, queue pairs, regions and timers.
//!
//! - `open`: opening;
//! - `rx`: packets, by whoever holds the receive token;
//! - `dispatch`: packets to those they are for;
//! - `acks`: ACKs and responses, and what one turn did not finish;
//! - `inside`: queue pairs that got packets of others of this process;
//! - `timers`: timers of all kinds, and waking the background thread for them;
//! - `notify`: the application, of what the engine left to be told;
//! - `shards`: ports of their own for queue pairs of some completion queues.

mod acks;
mod dispatch;
mod inside;
mod intercept;
mod notify;
mod open;
mod paths;
mod rx;
mod shards;
mod timers;
mod tx_contexts;

use std::iter;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, Weak};

use urxe_engine::endpoint::QpnTable;
use urxe_net::Port;
use urxe_net::direct::Export;
use urxe_net::identity::CheckedFd;
use urxe_status::Counters;
use urxe_wire::Qpn;

use super::backpressure::Backpressure;
use super::cq::Cq;
use super::groups::Groups;
use super::gsi::{Gsi, MadHandler};
pub use super::host::TxContext;
use super::lock;
use super::moderation::Moderated;
use super::port_events::PortEvents;
use super::progress::policy::ProgressPolicy;
use super::progress::sleep_deadline::{Deadline, SleepDeadline};
use super::qp::Qp;
use super::raw::Raw;
use super::run_queue::RunQueue;
use super::srq::XrcSrqs;
use super::timers::Timers;
use crate::counters::{DirectTraffic, InsideTraffic};
use crate::direct::Reach;
use crate::event::{EventSink, EventType};
use crate::interceptor::{self, Interceptor};
use crate::memory::region_cache::RegionCache;
use crate::memory::regions::Regions;
use crate::xrc::listeners::Server;
use crate::xrc::rx_queue::RxQueue;
pub(crate) use intercept::is_seen_by_its_first;
pub use open::{MakeInterceptor, OpenOptions};
use rx::Token;
pub(super) use rx::{Drained, FEW};
use tx_contexts::Contexts;
pub(super) use tx_contexts::in_child as free_places_in_child;

/// Function that gets a device's name and its counters when the device is closed or the program ends.
pub type FinalCounters = fn(&str, &mut dyn Iterator<Item = (&'static str, u64)>);

/// A device in this process.
pub struct Device {
    name: String,
    port: Arc<Port>,
    /// Shards of the device.
    shards: RwLock<Vec<Arc<Self>>>,
    /// Device that this one is a shard of.
    primary: Option<Weak<Self>>,
    /// The receive token: who holds it receives for everybody.
    token: Mutex<Token>,
    qps: RwLock<QpnTable<Arc<Qp>>>,
    regions: Arc<Regions>,
    /// Table in which peers of this host see queue pairs and regions.
    export: Option<Arc<Export>>,
    groups: Groups,
    raw: Raw,
    timers: Timers,
    moderated: Moderated,
    /// Queue pairs with more to send than one turn allows.
    unfinished: RunQueue,
    has_unfinished: AtomicBool,
    /// Queue pairs whose packets found no room.
    pub(super) backpressure: Backpressure,
    /// Transmit contexts.
    contexts: Arc<Contexts>,
    /// Traffic that each of them has handed from one queue pair of this process to another.
    inside: Mutex<Vec<Arc<InsideTraffic>>>,
    /// Requests that each of them has carried out at peers' memory.
    carried_out: Mutex<Vec<Arc<DirectTraffic>>>,
    counters: Arc<Counters>,
    /// Whether `counters` have been added to `final_counters`.
    is_settled: AtomicBool,
    /// Hooks of captures, explanations and fault injection; `None` unless the environment asks for any.
    interceptor: Option<Arc<dyn Interceptor>>,
    /// Whether the interceptor touches packets.
    touches_packets: bool,
    final_counters: Option<FinalCounters>,
    /// Queue pairs keep ACKs back on purpose, which leave when the program ends.
    has_quirks: bool,
    pub(super) listeners: Arc<PortEvents>,
    xrc_srqs: Arc<XrcSrqs>,
    /// Answers other processes that use XRC SRQs of this one.
    server: Server,
    /// Packets for XRC SRQs of other processes.
    xrc_rx: RxQueue,
    /// Completion queues that overran by a message for such a process.
    overran: Mutex<Vec<Arc<Cq>>>,
    has_overran: AtomicBool,
    /// Handler of datagrams to QP1.
    gsi: RwLock<Option<Arc<dyn Gsi>>>,
    /// Next timer of `gsi`.
    gsi_timer: Deadline,
    /// Handler of other management datagrams.
    mads: RwLock<Option<Arc<dyn MadHandler>>>,
    /// Next timer of `mads`.
    mad_timer: Deadline,
    /// When raw frames may leave that keep a rate.
    raw_timer: Deadline,
    /// Wakes the background thread (eventfd).
    kick: CheckedFd,
    /// Time until which the background thread sleeps.
    pub(super) sleep_deadline: SleepDeadline,
    /// Decisions about progress.
    pub(crate) policy: ProgressPolicy,
    /// The program ends: no ACK waits any more.
    exits: AtomicBool,
    /// The application has closed descriptors.
    lost: AtomicBool,
    pub(super) stop: AtomicBool,
}

impl Device {
    /// Returns the name of the device, such as `urxe0`.
    pub fn device_name(&self) -> &str {
        &self.name
    }

    /// Bound of congestion windows, in packets. A peer is taken to have a receive buffer as large as this host's.
    pub fn window(&self) -> u32 {
        // Half of it, at what a packet of 4096 bytes costs the kernel in a run.
        u32::try_from(self.port.receive_buffer() / 2 / 4608).unwrap_or(u32::MAX).clamp(16, 256)
    }

    /// Sockets, addresses, queue pair numbers.
    pub fn net(&self) -> &Port {
        &self.port
    }

    /// Whether the device can do nothing any more.
    pub fn has_failed(&self) -> bool {
        self.listeners.has_failed()
    }

    /// Whether the device was taken out, or its interface.
    pub fn is_gone(&self) -> bool {
        self.listeners.is_gone()
    }

    /// Tells every context of an event of the port.
    pub fn raise_port_event(&self, event_type: EventType) {
        self.listeners.raise(event_type);
    }

    /// Adds events of the port and the device to this file from now on.
    pub fn tell_changes(&self, file: &Arc<dyn EventSink>) {
        self.listeners.add(file);
        self.opened();
    }

    /// Registers a completion channel: its readers get the end of the file when the device is taken out.
    pub fn listen(&self, channel: &Arc<dyn EventSink>) {
        self.listeners.add_channel(channel);
    }

    /// Multicast groups.
    pub const fn groups(&self) -> &Groups {
        &self.groups
    }

    /// Returns the raw Ethernet side.
    pub const fn raw(&self) -> &Raw {
        &self.raw
    }

    /// Returns the device's error counters.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// All counters, those of the sockets first, with those of shards.
    pub fn all_counters(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let shards = self.shards();
        let devices = || iter::once(self).chain(shards.iter().map(Arc::as_ref));
        let inside: Vec<_> = devices().flat_map(|device| lock(&device.inside).clone()).collect();
        let carried_out: Vec<_> = devices().flat_map(|device| lock(&device.carried_out).clone()).collect();
        let mut sums: Vec<_> = self.port.counters().named().collect();
        for shard in &shards {
            sums.iter_mut().zip(shard.port.counters().named()).for_each(|(sum, (_, value))| sum.1 += value);
        }
        let port = sums.into_iter().map(move |(name, value)| {
            let parts = inside.iter().map(|traffic| traffic.part_of(name)).sum::<u64>();
            let locks = if name == "contended_locks" { crate::contended_locks() } else { 0 };
            (name, value + parts + locks)
        });
        let own = self.counters.named().map(move |(name, value)| {
            (name, value + carried_out.iter().map(|traffic| traffic.part_of(name)).sum::<u64>())
        });
        port.chain(own)
    }

    /// Reports the final values of the counters, once, before the device closes.
    pub fn settle(&self) {
        if let Some(report) = self.final_counters
            && !self.is_settled.swap(true, Ordering::Relaxed)
        {
            report(&self.name, &mut self.all_counters());
        }
    }

    /// The parts that requests without packets need, if peers may make them.
    #[inline]
    pub(crate) fn direct(&self) -> Option<Reach<'_>> {
        let export = self.export.as_ref()?;
        Some(Reach { export, regions: &self.regions, net: &self.port, counters: &self.counters })
    }

    /// Whether peers of this user and host may reach registered memory themselves.
    pub fn gives_direct_access(&self) -> bool {
        self.export.is_some()
    }

    /// Returns the hooks of captures, explanations and fault injection, if the environment asks for any.
    pub const fn interceptor(&self) -> Option<&Arc<dyn Interceptor>> {
        interceptor::active(&self.interceptor)
    }

    /// Registered memory.
    pub fn regions(&self) -> &Regions {
        &self.regions
    }

    /// Returns access to the bytes of registered memory. For one access: dropping the cache releases its regions.
    pub fn memory(&self) -> RegionCache {
        RegionCache::new(Arc::clone(&self.regions), self.interceptor.clone())
    }

    pub(super) fn kick_fd(&self) -> RawFd {
        self.kick.as_raw_fd()
    }

    /// Runs `then` with a transmit context that no other thread uses meanwhile.
    #[inline]
    pub fn with_work<T>(&self, then: impl FnOnce(&mut TxContext) -> T) -> T {
        self.contexts.lend(|kept| self.new_work(kept), then)
    }

    pub(super) fn add_qp(&self, qp: Arc<Qp>) {
        if let Some(interceptor) = self.interceptor() {
            interceptor.created(qp.qpn());
        }
        self.qps.write().unwrap_or_else(PoisonError::into_inner).insert(qp.qpn(), qp);
    }

    pub(super) fn remove_qp(&self, qpn: Qpn) {
        // Before its packets are for nobody, and before another has its number.
        if let Some(interceptor) = self.interceptor() {
            interceptor.destroyed(qpn);
        }
        self.qps.write().unwrap_or_else(PoisonError::into_inner).remove(qpn);
        self.port.free_qpn(qpn);
    }

    /// All queue pairs of the device, but for those of its shards.
    pub fn queue_pairs(&self) -> Vec<Arc<Qp>> {
        self.qps.read().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }

    /// The queue pair of this number.
    pub fn qp(&self, qpn: Qpn) -> Option<Arc<Qp>> {
        self.qps.read().unwrap_or_else(PoisonError::into_inner).get(qpn).cloned()
    }

    /// The XRC SRQs within reach.
    pub const fn xrc_srqs(&self) -> &Arc<XrcSrqs> {
        &self.xrc_srqs
    }

    /// Returns the server that answers other processes about XRC SRQs.
    pub(crate) const fn server(&self) -> &Server {
        &self.server
    }

    /// Sets the handler of communication management. Without one, requests that arrive at QP1 are refused.
    pub fn set_gsi(&self, gsi: Option<Arc<dyn Gsi>>) {
        *self.gsi.write().unwrap_or_else(PoisonError::into_inner) = gsi;
    }

    /// Tells who takes them that the device is taken out: first of all, or a program whose requests fail meanwhile may have
    /// ended before it hears why.
    pub(super) fn leave(&self, work: &mut TxContext) {
        self.listeners.leave();
        if let Some(gsi) = self.gsi() {
            gsi.removed(work);
        }
    }

    pub(super) fn gsi(&self) -> Option<Arc<dyn Gsi>> {
        self.gsi.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Sets the handler of management datagrams of other classes. Without one, each `Get()` and `Set()` is refused.
    pub fn set_mads(&self, mads: Option<Arc<dyn MadHandler>>) {
        *self.mads.write().unwrap_or_else(PoisonError::into_inner) = mads;
    }

    fn mads(&self) -> Option<Arc<dyn MadHandler>> {
        self.mads.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns the queue of packets for XRC SRQs of other processes.
    pub(crate) const fn xrc_rx(&self) -> &RxQueue {
        &self.xrc_rx
    }

    /// The device is closed: gives up sockets and names, though queue pairs that were not destroyed refer to them.
    pub(super) fn close(&self) {
        // Who looks at the sockets for any other reason finds nothing from now on.
        lock(&self.token).work = None;
        // A shard's is the device's.
        if let Some(export) = self.export.as_ref().filter(|_| self.primary.is_none()) {
            export.close();
        }
        self.raw.close();
        self.port.close();
    }

    /// Whether the application has closed descriptors of the device (daemon(7) closes all). Then the device fails, what is
    /// left of its descriptors is closed, and the numbers of others are not touched any more. Asks the system: not for each
    /// packet, so packets that come or go before somebody asks may do so through a socket that is the application's.
    pub fn has_lost_descriptors(&self) -> bool {
        if !self.lost.load(Ordering::Relaxed) && (self.port.has_lost_descriptors() || !self.kick.is_ours()) {
            self.lose();
        }
        self.lost.load(Ordering::Relaxed)
    }

    #[cold]
    fn lose(&self) {
        self.lost.store(true, Ordering::Relaxed);
        self.stop.store(true, Ordering::Release);
        self.listeners.fail();
        self.close();
        // Nobody asks the device while its own sockets are idle, and only the device tells the application.
        if let Some(device) = self.primary.as_ref().and_then(Weak::upgrade) {
            device.has_lost_descriptors();
        }
    }

    /// Closes a forked child's copies of the sockets. Takes no lock, allocates nothing.
    pub(super) fn close_in_child(&self) {
        self.port.close();
        self.policy.watchdog.close_in_child();
        if self.kick.is_ours() {
            // SAFETY: this process will not use it: the device is dead here, and this structure is never dropped.
            unsafe { libc::close(self.kick.as_raw_fd()) };
        }
    }
}
