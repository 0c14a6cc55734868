//! The target's side: queue pairs and regions that peers see.

use std::sync::atomic::Ordering;

use urxe_engine::{CountedOps, QueuePair};
use urxe_net::direct::{Export, SharedQp, Taken};
use urxe_status::Counters;

use super::{PSN, digest, halves, kind, numbers};
use crate::host::DeviceHost;

/// A queue pair that its peer sees.
#[derive(Debug)]
pub(super) struct Shown {
    /// Requests of the peer that the responder knows of.
    absorbed: Taken,
}

impl Shown {
    /// Shows a queue pair, if its peer may do anything itself.
    pub(super) fn new(export: &Export, engine: &QueuePair<DeviceHost>) -> Option<Self> {
        let (config, route) = (engine.config(), engine.route().filter(|_| engine.may_be_skipped())?);
        // Whoever counts the peer's WRITEs counts packets.
        let is_counted = config.counters.iter().any(|(ops, _)| ops.overlaps(CountedOps::REMOTE_RDMA_WRITE));
        if is_counted || !route.is_shared() {
            return None;
        }
        let attr = engine.attr();
        let qp = SharedQp {
            numbers: numbers(config.qpn, engine.dest_qpn()),
            rights: halves(config.pd.0, attr.access.bits()),
            addresses: digest(route.local(), route.remote()),
            limits: halves(attr.max_dest_rd_atomic.into(), kind(config.qp_type)?),
        };
        let base = u64::from(engine.expected_psn().get());
        export.show_qp(config.qpn, &qp, base, route).then_some(Self { absorbed: Taken::default() })
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
        let Self { absorbed } = self;
        let (psns, messages) = (taken.psns.wrapping_sub(absorbed.psns), taken.messages.wrapping_sub(absorbed.messages));
        engine.skip_requests((psns & PSN) as u32, (messages & PSN) as u32);
        counters.direct_served.fetch_add(messages, Ordering::Relaxed);
        counters.direct_served_bytes.fetch_add(taken.bytes.wrapping_sub(absorbed.bytes), Ordering::Relaxed);
        self.absorbed = taken;
    }

    /// Tells the peer what has been executed of its packets.
    #[inline]
    pub(super) fn tell(&self, export: &Export, engine: &QueuePair<DeviceHost>) {
        let expected = u64::from(engine.expected_psn().get());
        export.set_base(engine.config().qpn, expected.wrapping_sub(self.absorbed.psns) & PSN);
    }

    /// Hides the queue pair; what its peer is at may be waited for first, so that the responder learns of it.
    pub(super) fn hide(
        self,
        export: &Export,
        engine: &mut QueuePair<DeviceHost>,
        counters: &Counters,
        waits: bool,
    ) -> Option<Hidden> {
        let version = export.hide_qp(engine.config().qpn);
        if waits {
            export.wait();
        }
        let mut hidden = Hidden { shown: self, version };
        hidden.absorb(export, engine, counters).then_some(hidden)
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
