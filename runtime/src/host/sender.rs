//! Transmit side of a queue pair's host: fills the send batch, and flushes it.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use urxe_engine::{Instant, Network};
use urxe_net::{InsideRun, Port, Route, TxBatch};
use urxe_wire::{Gid, ICRC_LEN, Lid, LinkLayer, Qpn, grh};

use super::Origin;
use crate::counters::Traffic;
use crate::interceptor::{self, Interceptor};

/// Bytes that a turn makes at most for queue pairs of its process, before these have taken them.
const INSIDE_MOST: usize = 128 << 10;

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
    pub(crate) fn speak_for(&mut self, qpn: Qpn) {
        self.qpn = qpn;
    }

    /// Returns the traffic that the queue pair's counters do not contain yet, for the caller to take.
    pub(crate) const fn sent(&mut self) -> &mut Traffic {
        &mut self.sent
    }

    /// Whether a packet for a queue pair of this process found no room since the last call.
    pub(crate) const fn take_full(&mut self) -> bool {
        std::mem::replace(&mut self.is_full, false)
    }

    /// Whether there are packets for queue pairs of this process, to be taken.
    #[inline]
    pub(crate) fn has_inside(&self) -> bool {
        self.batch.has_inside()
    }

    /// Packets for queue pairs of this process, to be taken.
    #[inline]
    pub(crate) fn inside(&mut self) -> Option<impl Iterator<Item = InsideRun>> {
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
    pub(crate) fn send_due(&mut self, now: Instant) {
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

    #[inline(always)]
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
