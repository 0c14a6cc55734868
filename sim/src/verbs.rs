//! The consumer's objects of a node: completion queues and shared receive queues with the quirks of the node, and a log of
//! everything that happens.

use urxe_engine::endpoint::{CqId, Event, Queues, SrqId};
use urxe_engine::quirks::Quirks;
use urxe_engine::{CompletionQueue, Pd, QuirkSet, SharedReceiveQueue, XrcDomain};
use urxe_wire::Qpn;

/// Quirks of an object of a node; `None` is an ordinary one.
pub type SimQuirks = Option<Box<dyn Quirks>>;

/// Boxes quirks, if there are any.
pub(crate) fn boxed<Q: Quirks + 'static>(quirks: Option<Q>) -> SimQuirks {
    quirks.map(|quirks| Box::new(quirks) as Box<dyn Quirks>)
}

/// Completion queues, shared receive queues and log of a node.
#[derive(Debug)]
pub struct Verbs<'a> {
    pub(crate) queues: &'a mut Queues<SimQuirks>,
    pub(crate) quirks: Option<QuirkSet>,
}

impl Verbs<'_> {
    /// Creates a completion queue.
    pub fn create_cq(&mut self, capacity: usize) -> CqId {
        let nth = self.queues.cq_count() as u64;
        let delay = self.quirks.and_then(|quirks| quirks.cq_delay(nth));
        let cq = self.queues.create_cq(capacity, boxed(delay));
        let moderation = self.quirks.and_then(|quirks| quirks.moderation(nth));
        self.cq(cq).moderate(moderation);
        cq
    }

    /// Creates a shared receive queue of `max_wr` WQEs.
    pub fn create_srq(&mut self, pd: Pd, max_wr: u32) -> SrqId {
        let nth = self.queues.srq_count() as u64;
        let order = self.quirks.and_then(|quirks| quirks.srq_order(nth));
        self.queues.create_srq(pd, max_wr, 4, boxed(order))
    }

    /// Creates an XRC SRQ with a number that requests name.
    pub fn create_xrc_srq(&mut self, pd: Pd, max_wr: u32, cq: CqId, domain: XrcDomain, number: Qpn) -> SrqId {
        let srq = self.create_srq(pd, max_wr);
        self.queues.open_to_xrc(srq, domain, number, cq);
        srq
    }

    /// A completion queue.
    pub fn cq(&mut self, cq: CqId) -> &mut CompletionQueue<SimQuirks> {
        self.queues.cq(cq)
    }

    /// A shared receive queue.
    pub fn srq(&mut self, srq: SrqId) -> &mut SharedReceiveQueue<SimQuirks> {
        self.queues.srq(srq)
    }

    /// Takes the log of what happened since the last call, oldest first.
    pub fn take_log(&mut self) -> Vec<Event> {
        std::iter::from_fn(|| self.queues.poll_event()).collect()
    }
}
