//! A node's verbs consumer: completion queues, shared receive queues, and a log of everything that happens.

use std::collections::{BTreeMap, BTreeSet};

use urxe_engine::{
    AsyncEvent, CompletionQueue, Consumer, CqDelay, Cqe, Event, Instant, Pd, Pushed, QuirkSet, RecvWr,
    SharedReceiveQueue, SrqOrder, XrcDomain,
};
use urxe_wire::Qpn;

/// A completion queue of a node.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct CqId(pub(crate) usize);

/// A shared receive queue of a node.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct SrqId(pub(crate) usize);

/// A completion counter of a node.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct CounterId(pub usize);

/// Something a node's consumer saw.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NodeEvent {
    /// A trace event of a QP.
    Trace(Qpn, Event),
    /// An affiliated asynchronous event.
    Async(Qpn, AsyncEvent),
    /// A completion was added to a CQ.
    Completed(CqId, Cqe),
    /// An operation was counted, as one that succeeded or not.
    Counted(CounterId, bool),
    /// A CQ raised a completion event.
    CompletionEvent(CqId),
    /// A CQ overran.
    CqError(CqId),
    /// An SRQ went below its limit.
    SrqLimit(SrqId),
}

#[derive(Debug)]
struct Srq {
    queue: SharedReceiveQueue<Option<SrqOrder>>,
    pd: Pd,
    /// Of an XRC SRQ.
    cq: Option<CqId>,
}

/// The consumer of one node.
#[derive(Debug, Default)]
pub struct Verbs {
    cqs: Vec<CompletionQueue<Option<CqDelay>>>,
    srqs: Vec<Srq>,
    xrc: BTreeMap<(u32, u32), SrqId>,
    log: Vec<NodeEvent>,
    /// When completion queues want to be looked at.
    timers: BTreeSet<(Instant, usize)>,
    quirks: Option<QuirkSet>,
}

impl Verbs {
    pub(crate) fn new(quirks: Option<QuirkSet>) -> Self {
        Self { quirks, ..Self::default() }
    }

    /// Makes a completion queue.
    pub fn create_cq(&mut self, capacity: usize) -> CqId {
        let nth = self.cqs.len() as u64;
        let mut cq = CompletionQueue::with_quirks(capacity, self.quirks.and_then(|quirks| quirks.cq_delay(nth)));
        cq.moderate(self.quirks.and_then(|quirks| quirks.moderation(nth)));
        self.cqs.push(cq);
        CqId(self.cqs.len() - 1)
    }

    /// The earliest time at which a completion queue wants to be looked at.
    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        self.timers.first().map(|(at, _)| *at)
    }

    /// Looks at those whose time has come.
    pub(crate) fn handle_timeouts(&mut self, now: Instant) {
        while self.timers.first().is_some_and(|(at, _)| *at <= now) {
            let Some((_, cq)) = self.timers.pop_first() else { break };
            let due = self.cqs[cq].handle_timeout(now);
            self.timers.extend(due.look_at.map(|at| (at, cq)));
            if due.raise_event {
                self.log.push(NodeEvent::CompletionEvent(CqId(cq)));
            }
        }
    }

    /// Makes a shared receive queue of `max_wr` WQEs.
    pub fn create_srq(&mut self, pd: Pd, max_wr: u32) -> SrqId {
        let order = self.quirks.and_then(|quirks| quirks.srq_order(self.srqs.len() as u64));
        self.srqs.push(Srq { queue: SharedReceiveQueue::with_quirks(max_wr, 4, order), pd, cq: None });
        SrqId(self.srqs.len() - 1)
    }

    /// Makes an XRC SRQ with a number that requests name.
    pub fn create_xrc_srq(&mut self, pd: Pd, max_wr: u32, cq: CqId, domain: XrcDomain, number: Qpn) -> SrqId {
        let id = self.create_srq(pd, max_wr);
        self.srqs[id.0].cq = Some(cq);
        self.xrc.insert((domain.0, number.get()), id);
        id
    }

    /// A completion queue.
    pub fn cq(&mut self, cq: CqId) -> &mut CompletionQueue<Option<CqDelay>> {
        &mut self.cqs[cq.0]
    }

    /// A shared receive queue.
    pub fn srq(&mut self, srq: SrqId) -> &mut SharedReceiveQueue<Option<SrqOrder>> {
        &mut self.srqs[srq.0].queue
    }

    /// What happened since the last [`take_log`](Self::take_log), oldest first.
    #[must_use]
    pub fn log(&self) -> &[NodeEvent] {
        &self.log
    }

    /// Takes the log.
    pub fn take_log(&mut self) -> Vec<NodeEvent> {
        std::mem::take(&mut self.log)
    }
}

impl Consumer for Verbs {
    type Cq = CqId;
    type Srq = SrqId;
    type Counter = CounterId;

    fn complete(&mut self, cq: &CqId, cqe: Cqe) {
        self.log.push(NodeEvent::Completed(*cq, cqe));
        match self.cqs[cq.0].push(cqe) {
            Pushed::Quietly | Pushed::Overrun { first: false } => {}
            Pushed::LookAt(at) => {
                self.timers.insert((at, cq.0));
            }
            Pushed::RaiseEvent => self.log.push(NodeEvent::CompletionEvent(*cq)),
            Pushed::Overrun { first: true } => self.log.push(NodeEvent::CqError(*cq)),
        }
    }

    fn count(&mut self, counter: &CounterId, succeeded: bool) {
        self.log.push(NodeEvent::Counted(*counter, succeeded));
    }

    fn take_recv(&mut self, srq: &SrqId) -> Option<RecvWr> {
        let taken = self.srqs[srq.0].queue.take()?;
        if taken.limit_reached {
            self.log.push(NodeEvent::SrqLimit(*srq));
        }
        Some(taken.wr)
    }

    fn srq_pd(&self, srq: &SrqId) -> Pd {
        self.srqs[srq.0].pd
    }

    fn xrc_srq(&self, domain: XrcDomain, number: Qpn) -> Option<SrqId> {
        self.xrc.get(&(domain.0, number.get())).copied()
    }

    fn complete_xrc(&mut self, srq: &SrqId, cqe: Cqe) {
        if let Some(cq) = self.srqs[srq.0].cq {
            self.complete(&cq, cqe);
        }
    }

    fn async_event(&mut self, qpn: Qpn, event: AsyncEvent) {
        self.log.push(NodeEvent::Async(qpn, event));
    }

    fn trace(&mut self, qpn: Qpn, event: Event) {
        self.log.push(NodeEvent::Trace(qpn, event));
    }
}
