//! The target's side: queue pairs and regions that peers see.

use std::sync::Weak;
use std::sync::atomic::Ordering;

use urxe_engine::{CountedOps, Io, QueuePair};
use urxe_net::direct::{Export, SharedQp, Taken};
use urxe_status::Counters;

use super::inlet::Inlet;
use super::{CompletesDirect, PSN, RECEIVES, Reach, digest, halves, kind, numbers};
use crate::host::DeviceHost;

/// A queue pair that its peer sees.
#[derive(Debug)]
pub(super) struct Shown {
    /// Requests of the peer that the responder knows of.
    absorbed: Taken,
    /// Word that the peer was told last ([`tell`](Self::tell)).
    told: u64,
    /// Receive WQEs that the peer fills; `None`: packets do.
    inlet: Option<Inlet>,
}

impl Shown {
    /// Shows a queue pair, if its peer may do anything itself.
    pub(super) fn new(
        reach: Reach<'_>,
        engine: &QueuePair<DeviceHost>,
        qp: &Weak<dyn CompletesDirect>,
    ) -> Option<Self> {
        let (config, route) = (engine.config(), engine.route().filter(|_| engine.may_be_skipped())?);
        // Whoever counts the peer's WRITEs counts packets.
        let is_counted = config.counters.iter().any(|(ops, _)| ops.overlaps(CountedOps::REMOTE_RDMA_WRITE));
        if is_counted || !route.is_shared() {
            return None;
        }
        let attr = engine.attr();
        let mut inlet = Inlet::new(reach, engine, qp);
        if let Some(inlet) = &mut inlet {
            inlet.show(reach, engine);
        }
        let receives = if inlet.is_some() { RECEIVES } else { 0 };
        let shared = SharedQp {
            numbers: numbers(config.qpn, engine.dest_qpn()),
            rights: halves(config.pd.0, attr.access.bits()),
            addresses: digest(route.local(), route.remote()),
            limits: halves(attr.max_dest_rd_atomic.into(), kind(config.qp_type)? | receives),
        };
        let base = u64::from(engine.expected_psn().get());
        let is_shown = reach.export.show_qp(config.qpn, &shared, base, route);
        is_shown.then_some(Self { absorbed: Taken::default(), told: base, inlet })
    }

    /// Tells the responder what the peer has carried out since the last time.
    #[inline]
    pub(super) fn absorb(&mut self, export: &Export, engine: &mut QueuePair<DeviceHost>, counters: &Counters) {
        let taken = export.taken(engine.config().qpn);
        if taken.psns != self.absorbed.psns {
            self.take(taken, engine, counters);
        }
    }

    fn take(&mut self, taken: Taken, engine: &mut QueuePair<DeviceHost>, counters: &Counters) {
        let Self { absorbed, .. } = self;
        let (psns, messages) = (taken.psns.wrapping_sub(absorbed.psns), taken.messages.wrapping_sub(absorbed.messages));
        engine.skip_requests((psns & PSN) as u32, (messages & PSN) as u32);
        counters.direct_served.fetch_add(messages, Ordering::Relaxed);
        counters.direct_served_bytes.fetch_add(taken.bytes.wrapping_sub(absorbed.bytes), Ordering::Relaxed);
        self.absorbed = taken;
    }

    /// Completes receive WQEs that the peer has filled.
    #[inline]
    pub(super) fn complete(&self, engine: &mut QueuePair<DeviceHost>, io: &mut Io<'_, DeviceHost>) {
        if let Some(inlet) = &self.inlet {
            inlet.complete(engine, io);
        }
    }

    /// Tells the peer what has been executed of its packets, and which receive WQEs it may fill.
    #[inline]
    pub(super) fn tell(&mut self, reach: Reach<'_>, engine: &QueuePair<DeviceHost>) {
        let export = reach.export;
        let expected = u64::from(engine.expected_psn().get());
        let by_packets = self.inlet.as_mut().map_or(0, |inlet| inlet.show(reach, engine));
        let base = expected.wrapping_sub(self.absorbed.psns) & PSN | by_packets << PSN.count_ones();
        // The peer reads the word with each request: a store takes it out of the cache of its processor.
        if base != self.told {
            export.set_base(engine.config().qpn, base);
            self.told = base;
        }
    }

    /// Hides the queue pair; with `io` what its peer is at is waited for first, so that the responder learns of it, and messages that it has
    /// put into buffers are completed.
    pub(super) fn hide(
        mut self,
        reach: Reach<'_>,
        engine: &mut QueuePair<DeviceHost>,
        io: Option<&mut Io<'_, DeviceHost>>,
    ) -> Option<Hidden> {
        let version = reach.export.hide_qp(engine.config().qpn);
        let inlet = self.inlet.take();
        if let Some(io) = io {
            reach.export.wait();
            inlet.iter().for_each(|inlet| inlet.complete(engine, io));
        }
        let mut hidden = Hidden { shown: self, version };
        hidden.absorb(reach.export, engine, reach.counters).then_some(hidden)
    }
}

/// A queue pair that was hidden while its peer was stopped in the middle of a request. An atomic that was done is told later.
#[derive(Debug)]
pub(super) struct Hidden {
    shown: Shown,
    version: u64,
}

impl Hidden {
    /// Tells the responder what the peer has carried out. False: that was the last.
    #[cold]
    pub(super) fn absorb(&mut self, export: &Export, engine: &mut QueuePair<DeviceHost>, counters: &Counters) -> bool {
        let taken = export.taken_of_hidden(engine.config().qpn, self.version);
        taken.is_some_and(|(taken, goes_on)| {
            self.shown.take(taken, engine, counters);
            goes_on
        })
    }
}
