//! Receive WQEs that a queue pair's peer fills itself.
//!
//! A queue pair shows the oldest of its receive WQEs, as far as each has one buffer in a region that is shared. The peer puts messages
//! into them, in order, and says so in words that polls of the completion queue read. Who finds a message there completes its WQE: a poll,
//! or who handles a packet of the peer, which comes behind the message.
//!
//! Where the application could sleep until a completion, or several queue pairs share their receive WQEs, packets bring messages.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use urxe_engine::{Access, Accessor, DirectMessage, Io, QpType, QueuePair, Region, RegionKind};
use urxe_net::direct::{Message, Receives, SharedReceive};
use urxe_wire::ImmDt;

use super::{CompletesDirect, Reach};
use crate::cq::{Arrivals, Cq};
use crate::host::DeviceHost;

/// Receive WQEs shown in a row, while the peer sees many.
const BATCH: u64 = 4;

/// Messages of a peer that its queue pair knows of, and where others come.
#[derive(Debug)]
struct Inbound {
    receives: Receives,
    /// Messages that were completed. Changed with the queue pair locked.
    completed: AtomicU64,
    qp: Weak<dyn CompletesDirect>,
}

impl Arrivals for Inbound {
    #[inline]
    fn any(&self) -> bool {
        self.receives.has(self.completed.load(Ordering::Relaxed))
    }

    fn qp(&self) -> Option<Arc<dyn CompletesDirect>> {
        self.qp.upgrade()
    }
}

/// Receive WQEs of a queue pair that its peer sees.
#[derive(Debug)]
pub(super) struct Inlet {
    inbound: Arc<Inbound>,
    cq: Arc<Cq>,
    /// Receive WQEs that were taken before the first that was shown.
    origin: u64,
    /// Receive WQEs that the peer was shown, or that are not for it, from then on.
    shown: u64,
    /// The region of the buffer that was shown last.
    region: Option<Buffers>,
}

/// Region that buffers are in.
#[derive(Debug)]
struct Buffers {
    region: Region,
    /// Where it is in the shared file.
    at: u64,
    /// Version of its words there.
    version: u64,
    /// Generation of the table that has it.
    generation: u64,
}

impl Inlet {
    /// Shows none yet. `None`: packets bring messages.
    pub(super) fn new(
        reach: Reach<'_>,
        engine: &QueuePair<DeviceHost>,
        qp: &Weak<dyn CompletesDirect>,
    ) -> Option<Self> {
        let config = engine.config();
        let cq = config.recv_cq.as_ref().filter(|_| config.qp_type == QpType::Rc && config.srq.is_none())?;
        let receives = reach.export.receives(config.qpn)?;
        let inbound = Arc::new(Inbound { receives, completed: AtomicU64::new(0), qp: Weak::clone(qp) });
        let arrivals: Arc<dyn Arrivals> = Arc::clone(&inbound) as _;
        let (cq, origin) = (Arc::clone(cq), engine.receives_taken());
        cq.look_at(arrivals).then_some(Self { inbound, cq, origin, shown: 0, region: None })
    }

    /// Completes the receive WQEs of messages that have come.
    #[inline]
    pub(super) fn complete(&self, engine: &mut QueuePair<DeviceHost>, io: &mut Io<'_, DeviceHost>) {
        if self.inbound.any() {
            self.complete_all(engine, io);
        }
    }

    fn complete_all(&self, engine: &mut QueuePair<DeviceHost>, io: &mut Io<'_, DeviceHost>) {
        let Inbound { receives, completed, .. } = &*self.inbound;
        for nth in completed.load(Ordering::Relaxed).. {
            // A peer that says more than it can have put anywhere is not believed.
            let Some(message) = receives.message(nth).filter(|_| engine.receive(0).is_some()) else { break };
            let Message { length, imm, solicited } = message;
            let imm = imm.map(|imm| ImmDt(imm.to_ne_bytes()));
            engine.complete_direct(io, &DirectMessage { length, imm, solicited });
            completed.store(nth + 1, Ordering::Relaxed);
        }
    }

    /// Shows receive WQEs that the peer does not see yet. Returns how many packets have taken since the first was shown.
    #[inline]
    pub(super) fn show(&mut self, reach: Reach<'_>, engine: &QueuePair<DeviceHost>) -> u64 {
        let taken = engine.receives_taken().wrapping_sub(self.origin);
        // Packets may have taken some that were not shown.
        self.shown = self.shown.max(taken);
        // The peer has read the cache lines of those that it has taken: to write there takes as long as the message.
        let is_short = self.shown - taken <= Receives::SLOTS - BATCH;
        while is_short && self.shown - taken < Receives::SLOTS && self.show_next(reach, engine, taken) {}
        taken.wrapping_sub(self.inbound.completed.load(Ordering::Relaxed))
    }

    /// Shows the next one, if there is one and it is for the peer. False: there is none.
    fn show_next(&mut self, reach: Reach<'_>, engine: &QueuePair<DeviceHost>, taken: u64) -> bool {
        let nth = usize::try_from(self.shown - taken).ok();
        let Some(wr) = nth.and_then(|nth| engine.receive(nth)) else { return false };
        if let [sge] = wr.buffers.as_slice()
            && let Some(Buffers { region, at, version, .. }) = self.buffers(reach, sge.l_key)
            && let by = Accessor::Local(engine.config().pd)
            && let Ok(host) = region.check(by, Access::LOCAL_WRITE, sge.addr, sge.length.into())
        {
            let (at, version) = (at + (host - region.host), *version);
            let receive = SharedReceive { at, length: sge.length, key: sge.l_key, version };
            self.inbound.receives.show(self.shown, &receive);
        }
        self.shown += 1;
        true
    }

    /// The region with this key, if peers see it.
    fn buffers(&mut self, reach: Reach<'_>, l_key: u32) -> Option<&Buffers> {
        let generation = reach.regions.generation();
        let is_known = |known: &Buffers| known.region.key.0 == l_key && known.generation == generation;
        if !self.region.as_ref().is_some_and(is_known) {
            let version = reach.export.region_version(l_key)?;
            let (region, at) = reach.regions.shared(l_key)?;
            let is_memory = region.kind == RegionKind::Memory;
            self.region = is_memory.then_some(Buffers { region, at, version, generation });
        }
        self.region.as_ref()
    }
}

impl Drop for Inlet {
    fn drop(&mut self) {
        let arrivals: Arc<dyn Arrivals> = Arc::clone(&self.inbound) as _;
        self.cq.look_away(&arrivals);
    }
}
