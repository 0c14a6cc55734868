//! The engine's surroundings: sockets below, the application above.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use urxe_engine::congestion::Marks;
use urxe_engine::{AsyncEvent, Consumer, Cqe, Event, Host, Instant, Network, Pd, RecvWr, XrcDomain};
use urxe_net::{Headers, InsideRun, Port, Route, TxBatch};
use urxe_status::Counters;
use urxe_wire::{Gid, ICRC_LEN, Lid, LinkLayer, Qpn, grh};

use super::clock::LazyInstant;
use super::counter::CompletionCounter;
use super::cq::{Added, Cq};
use super::due::Due;
use super::quirks;
use super::srq::{AnySrq, XrcSrqs};
use crate::counters::{InsideTraffic, Tally, Traffic};
use crate::interceptor::{self, Interceptor};
use crate::memory::region_cache::RegionCache;

/// Bytes that a turn makes at most for queue pairs of its process, before these have taken them.
const INSIDE_MOST: usize = 128 << 10;

/// The engine's [`Host`].
#[derive(Debug)]
pub struct DeviceHost;

impl Host for DeviceHost {
    type Memory = RegionCache;
    type Network = Sender;
    type Consumer = PendingNotifications;
    type Clock = LazyInstant;
    type Quirks = quirks::Qp;
}

/// Transmit batch, memory access and pending notifications: all that a queue pair needs to send and to complete.
#[derive(Debug)]
pub struct TxContext {
    pub(super) sender: Sender,
    pub(super) memory: RegionCache,
    pub(super) notifications: PendingNotifications,
    pub(super) inside: Inside,
}

/// Queue pairs as a thread's context knows them.
pub(super) trait Turn: std::fmt::Debug + Send + Sync {
    /// Number.
    fn qpn(&self) -> Qpn;

    /// Does what is due.
    fn turn(&self, work: &mut TxContext);
}

/// State of a context for packets that stay in the process.
#[derive(Debug, Default)]
pub(super) struct Inside {
    /// Queue pairs whose turn is next: they have got packets, or may send more.
    pub(super) due: Due<dyn Turn>,
    /// Set while a call further up gives those their turns.
    pub(super) is_delivering: bool,
    /// Packets that stayed in the process. Written by who has the context.
    pub(super) traffic: Arc<InsideTraffic>,
}

/// Packets on their way out.
#[derive(Debug)]
pub struct Sender {
    port: Arc<Port>,
    batch: TxBatch,
    /// For whom packets are sent.
    qpn: Qpn,
    /// Traffic of that queue pair that its counters do not contain yet.
    sent: Traffic,
    /// Bytes of the packet last handed out.
    pending: usize,
    /// A packet for a queue pair of this process found no room: what there is has to be taken first.
    is_full: bool,
    interceptor: Option<Arc<dyn Interceptor>>,
    link_layer: LinkLayer,
    /// The interceptor, if it touches packets.
    packet_interceptor: Option<Arc<dyn Interceptor>>,
}

impl Sender {
    pub(crate) fn new(port: Arc<Port>, interceptor: Option<Arc<dyn Interceptor>>) -> Self {
        let packet_interceptor = interceptor.clone().filter(|interceptor| interceptor.touches_packets());
        let link_layer = port.interface().link_layer();
        Self {
            port,
            link_layer,
            batch: TxBatch::new(),
            qpn: Qpn::GSI,
            sent: Traffic::default(),
            pending: 0,
            is_full: false,
            interceptor,
            packet_interceptor,
        }
    }

    /// Says for whom packets are sent from now on.
    pub(super) fn speak_for(&mut self, qpn: Qpn) {
        self.qpn = qpn;
    }

    /// Returns the traffic that the queue pair's counters do not contain yet, for the caller to take.
    pub(super) const fn sent(&mut self) -> &mut Traffic {
        &mut self.sent
    }

    /// Whether a packet for a queue pair of this process found no room since the last call.
    pub(super) const fn take_full(&mut self) -> bool {
        std::mem::replace(&mut self.is_full, false)
    }

    /// Packets for queue pairs of this process, to be taken.
    #[inline]
    pub(super) fn inside(&mut self) -> Option<impl Iterator<Item = InsideRun>> {
        self.batch.has_inside().then(|| self.batch.take_inside())
    }

    /// Whether there is room for a packet.
    #[inline]
    fn has_room(&mut self, route: &Route) -> bool {
        if route.is_inside() {
            self.is_full = self.batch.inside_len() >= INSIDE_MOST;
            return !self.is_full;
        }
        route.has_room()
    }

    /// Sends what the interceptor held back and is due.
    pub(super) fn send_due(&mut self, now: Instant) {
        if let Some(interceptor) = interceptor::active(&self.packet_interceptor) {
            interceptor.send_due(now, &mut self.batch, &self.port);
        }
        self.flush();
    }

    /// Sends what has been committed.
    pub fn flush(&mut self) {
        self.batch.flush(&self.port);
        if let Some(interceptor) = interceptor::active(&self.interceptor) {
            interceptor.flush();
        }
    }
}

/// Addresses between which a packet travelled.
#[derive(Clone, Copy, Debug)]
pub struct Origin {
    pub(super) local: IpAddr,
    pub(super) peer: IpAddr,
    fields: grh::Fields,
}

impl From<&Headers> for Origin {
    fn from(headers: &Headers) -> Self {
        let fields = grh::Fields { tclass: headers.tclass, hop_limit: headers.hop_limit };
        Self { local: headers.local.ip(), peer: headers.peer.ip(), fields }
    }
}

impl Origin {
    /// Marks in the IP header.
    pub(super) const fn marks(&self) -> Marks {
        Marks::of_class(self.fields.tclass)
    }
}

impl Network for Sender {
    type Route = Arc<Route>;
    type Origin = Origin;

    fn is_from(route: &Arc<Route>, origin: &Origin) -> bool {
        route.remote().ip() == origin.peer && route.local().ip() == origin.local
    }

    fn shares_end(&self, route: &Arc<Route>, origin: &Origin) -> bool {
        route.remote().ip() == origin.peer || route.local().ip() == origin.local
    }

    fn on_path(route: &Arc<Route>, path: u8) -> Arc<Route> {
        route.on_path(path)
    }

    fn network_header(&self, origin: &Origin, len: usize) -> [u8; grh::LEN] {
        if !self.link_layer.is_infiniband() {
            return grh::network_header(origin.peer, origin.local, origin.fields, len);
        }
        let interface = self.port.interface();
        let [from, to] = [origin.peer, origin.local].map(|address| interface.shown_gid(&Gid::from(address)));
        grh::infiniband(&from, &to, origin.fields, len)
    }

    fn source_lid(&self, origin: &Origin) -> Lid {
        if !self.link_layer.is_infiniband() {
            return Lid::NONE;
        }
        let lid = self.port.lids().lid_of(&self.port.interface(), origin.peer);
        if lid == Lid::NONE {
            self.port.counters().lid_conflicts.fetch_add(1, Ordering::Relaxed);
        }
        lid
    }

    #[inline]
    fn packet(&mut self, route: &Arc<Route>, len: usize) -> Option<&mut [u8]> {
        self.pending = len + ICRC_LEN;
        self.has_room(route).then(|| self.batch.packet(&self.port, route, len))
    }

    fn notification(&mut self, route: &Arc<Route>, len: usize, dscp: u8) -> Option<&mut [u8]> {
        self.pending = len + ICRC_LEN;
        self.has_room(route).then(|| self.batch.packet_of_class(&self.port, route, len, dscp << 2))
    }

    #[inline]
    fn commit(&mut self) {
        self.sent.add(self.pending);
        match interceptor::active(&self.packet_interceptor) {
            None => _ = self.batch.commit(),
            Some(interceptor) => interceptor.send(self.qpn, &mut self.batch, &self.port),
        }
    }

    /// An interceptor may drop packets. What a peer's interceptor drops here, nobody foresees: the ACK timeout finds that.
    fn may_lose(&self, route: &Arc<Route>) -> bool {
        interceptor::active(&self.packet_interceptor).is_some() || route.may_lose()
    }
}

/// A completion that the application is not to see before the ACK has left.
#[derive(Debug)]
pub(super) enum Unacknowledged {
    /// Completion of a message that was received. Its queue is the queue pair's: counting a reference would wait for what was stored
    /// before to reach memory that the peer is reading.
    Received(Cqe),
    /// Made behind one of these.
    Behind(Arc<Cq>, Cqe),
    /// Count that a counter shows then.
    Counted(Arc<CompletionCounter>, bool),
}

/// Events and completions to report to the application once the queue pair is unlocked.
#[derive(Debug)]
pub struct PendingNotifications {
    /// Asynchronous events of queue pairs.
    pub events: Vec<(Qpn, AsyncEvent)>,
    /// Completion queues that have just overrun.
    pub overruns: Vec<Arc<Cq>>,
    /// Number of completions.
    pub(super) completions: u64,
    /// The interceptor wants the queue pair at work to go to the error state.
    is_broken: bool,
    /// Completion queues that are to be looked at later.
    pub(super) moderated: Vec<(Instant, Arc<Cq>)>,
    /// Completions of the XRC target at work, held back until its answers are out.
    held: Vec<(AnySrq, Cqe)>,
    /// Completions of the queue pair at work, in order, held back until its ACK is out.
    unacknowledged: Vec<Unacknowledged>,
    /// Completions of received messages are held back.
    holds_received: bool,
    /// Events of the queue pair at work, for its own counters.
    traced: Vec<Event>,
    counters: Arc<Counters>,
    xrc_srqs: Arc<XrcSrqs>,
    interceptor: Option<Arc<dyn Interceptor>>,
}

impl PendingNotifications {
    pub(crate) const fn new(
        counters: Arc<Counters>,
        xrc_srqs: Arc<XrcSrqs>,
        interceptor: Option<Arc<dyn Interceptor>>,
    ) -> Self {
        Self {
            events: Vec::new(),
            overruns: Vec::new(),
            completions: 0,
            is_broken: false,
            moderated: Vec::new(),
            held: Vec::new(),
            unacknowledged: Vec::new(),
            holds_received: false,
            traced: Vec::new(),
            counters,
            xrc_srqs,
            interceptor,
        }
    }

    /// Counts what the queue pair at work reported.
    #[inline]
    pub(super) fn count(&mut self, tally: &mut Tally) {
        if !self.traced.is_empty() {
            self.traced.drain(..).for_each(|event| tally.count(event));
        }
    }

    /// Whether the application is to hear of something.
    pub(super) const fn has_news(&self) -> bool {
        !(self.events.is_empty() && self.overruns.is_empty() && self.moderated.is_empty())
    }

    /// Adds the completions held back to their queues.
    ///
    /// An application that answers a message does so by another queue pair, on XRC. Its peer expects the ACK first, as
    /// a card sends it: perftest takes a completion event that comes before that of its own SEND for the latter.
    #[inline]
    pub(super) fn release(&mut self) {
        if !self.held.is_empty() {
            self.complete_held();
        }
    }

    /// Holds completions of received messages back from now on.
    #[inline]
    pub(super) fn hold_received(&mut self) {
        self.holds_received = true;
    }

    /// Has completions come behind those that a queue pair has held back.
    #[inline]
    pub(super) fn queue_behind(&mut self, before: &mut Vec<Unacknowledged>) {
        if !before.is_empty() {
            std::mem::swap(&mut self.unacknowledged, before);
        }
    }

    /// Gives what is held back to the queue pair, until its ACK has left.
    #[inline]
    pub(super) fn give_unacknowledged(&mut self, to: &mut Vec<Unacknowledged>) {
        self.holds_received = false;
        if !self.unacknowledged.is_empty() {
            std::mem::swap(&mut self.unacknowledged, to);
        }
    }

    /// The ACK has left: the application may see what was held back for it. `cq` is the queue pair's for receives.
    #[inline]
    pub(super) fn complete_unacknowledged(&mut self, cq: Option<&Arc<Cq>>) {
        self.holds_received = false;
        if !self.unacknowledged.is_empty() {
            self.show(cq);
        }
    }

    // Apart: turns in which nothing is held back are many.
    #[inline(never)]
    fn show(&mut self, cq: Option<&Arc<Cq>>) {
        let mut unacknowledged = std::mem::take(&mut self.unacknowledged);
        for completion in unacknowledged.drain(..) {
            match (&completion, cq) {
                (Unacknowledged::Received(cqe), Some(cq)) => self.push(cq, cqe),
                (Unacknowledged::Behind(cq, cqe), _) => self.push(cq, cqe),
                (Unacknowledged::Counted(counter, succeeded), _) => counter.count(*succeeded),
                // A queue pair that receives has one.
                (Unacknowledged::Received(_), None) => {}
            }
        }
        // Its room is for the next.
        self.unacknowledged = unacknowledged;
    }

    /// The application sees a completion from now on.
    #[inline]
    fn push(&mut self, cq: &Arc<Cq>, cqe: &Cqe) {
        match cq.push(cqe) {
            Added::Done => {}
            Added::LookAt(at) => self.moderated.push((at, Arc::clone(cq))),
            Added::Overrun => {
                if let Some(interceptor) = interceptor::active(&self.interceptor) {
                    interceptor.overrun(cqe, cq.capacity());
                }
                self.overruns.push(Arc::clone(cq));
            }
        }
    }

    /// Whether the queue pair at work is to go to the error state.
    #[inline]
    pub(super) const fn is_broken(&self) -> bool {
        self.is_broken
    }

    /// Takes the wish that the queue pair at work goes to the error state.
    #[inline]
    pub(super) const fn take_broken(&mut self) -> bool {
        std::mem::replace(&mut self.is_broken, false)
    }

    /// Counts a completion, and shows it to who looks.
    #[inline]
    fn note(&mut self, cqe: &mut Cqe) {
        self.completions += 1;
        if let Some(interceptor) = interceptor::active(&self.interceptor) {
            self.is_broken |= interceptor.completion(cqe);
        }
    }

    #[cold]
    fn complete_held(&mut self) {
        for (srq, cqe) in std::mem::take(&mut self.held) {
            match srq {
                AnySrq::Local(srq) => {
                    if let Some(xrc) = srq.xrc() {
                        self.complete(&xrc.cq, cqe);
                    }
                }
                AnySrq::Remote(srq) => srq.complete(cqe),
            }
        }
    }
}

impl Consumer for PendingNotifications {
    type Cq = Arc<Cq>;
    type Srq = AnySrq;
    type Counter = Arc<CompletionCounter>;

    fn wants_time(&self, cq: &Arc<Cq>) -> bool {
        cq.wants_time()
    }

    fn complete(&mut self, cq: &Arc<Cq>, mut cqe: Cqe) {
        self.note(&mut cqe);
        if self.unacknowledged.is_empty() {
            self.push(cq, &cqe);
        } else {
            // In the order in which they were made.
            self.unacknowledged.push(Unacknowledged::Behind(Arc::clone(cq), cqe));
        }
    }

    //= spec/hosts.md#net-034
    //# A message MUST be acknowledged, though its receiver ends as soon as it has polled it: before it can be polled, or by
    //# what the peer's process finds.
    fn complete_received(&mut self, cq: &Arc<Cq>, mut cqe: Cqe) {
        if self.holds_received {
            self.note(&mut cqe);
            self.unacknowledged.push(Unacknowledged::Received(cqe));
        } else {
            self.complete(cq, cqe);
        }
    }

    fn count(&mut self, counter: &Arc<CompletionCounter>, succeeded: bool) {
        if self.holds_received || !self.unacknowledged.is_empty() {
            self.unacknowledged.push(Unacknowledged::Counted(Arc::clone(counter), succeeded));
        } else {
            counter.count(succeeded);
        }
    }

    fn take_recv(&mut self, srq: &AnySrq) -> Option<RecvWr> {
        match srq {
            AnySrq::Local(srq) => srq.take(),
            AnySrq::Remote(srq) => srq.take(),
        }
    }

    fn srq_pd(&self, srq: &AnySrq) -> Pd {
        match srq {
            AnySrq::Local(srq) => srq.pd(),
            AnySrq::Remote(srq) => srq.pd(),
        }
    }

    fn xrc_srq(&self, domain: XrcDomain, number: Qpn) -> Option<AnySrq> {
        self.xrc_srqs.find(domain, number)
    }

    fn complete_xrc(&mut self, srq: &AnySrq, cqe: Cqe) {
        self.held.push((srq.clone(), cqe));
    }

    fn async_event(&mut self, qpn: Qpn, event: AsyncEvent) {
        if let Some(interceptor) = interceptor::active(&self.interceptor) {
            interceptor.async_event(qpn, event);
        }
        self.events.push((qpn, event));
    }

    fn trace(&mut self, qpn: Qpn, event: Event) {
        if let Some(interceptor) = interceptor::active(&self.interceptor) {
            interceptor.event(qpn, &event);
        }
        self.counters.count(event);
        self.traced.push(event);
    }
}
