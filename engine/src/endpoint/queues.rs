//! Completion queues, shared receive queues and events of an endpoint.

use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::vec::Vec;

use urxe_wire::Qpn;

use crate::async_event::AsyncEvent;
use crate::cq::{CompletionQueue, Cqe, Pushed};
use crate::event;
use crate::host::{Consumer, Host};
use crate::mr::Pd;
use crate::qp::QpConfig;
use crate::quirks::Quirks;
use crate::srq::{SharedReceiveQueue, XrcDomain};
use crate::time::Instant;
use crate::work::RecvWr;

/// Names a completion queue of an endpoint.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct CqId(usize);

/// Names a shared receive queue of an endpoint.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct SrqId(usize);

/// Names a completion counter; the numbers are the caller's.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct CounterId(pub usize);

/// Event for the consumer of an endpoint.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Event {
    /// A queue pair raised an affiliated asynchronous event.
    Async(Qpn, AsyncEvent),
    /// A completion queue raised the completion event that was asked for.
    CompletionEvent(CqId),
    /// A completion queue overran: a completion was lost.
    CqError(CqId),
    /// A shared receive queue went below its limit.
    SrqLimit(SrqId),
    /// An attached counter counted an operation, as one that succeeded or not.
    Counted(CounterId, bool),
    /// A completion was added to a queue. Told only while tracing.
    Completed(CqId, Cqe),
    /// A queue pair did something that a person debugging wants to know. Told only while tracing.
    Trace(Qpn, event::Event),
}

#[derive(Debug)]
struct Srq<Q> {
    queue: SharedReceiveQueue<Q>,
    pd: Pd,
    /// The completion queue of an XRC SRQ.
    cq: Option<CqId>,
}

/// The [`Consumer`] of an endpoint's queue pairs.
#[derive(Debug)]
pub struct Queues<Q> {
    cqs: Vec<CompletionQueue<Q>>,
    srqs: Vec<Srq<Q>>,
    xrc: BTreeMap<(XrcDomain, Qpn), SrqId>,
    events: VecDeque<Event>,
    /// Times at which completion queues want to be looked at.
    timers: BTreeSet<(Instant, CqId)>,
    tracing: bool,
}

impl<Q: Quirks> Queues<Q> {
    pub(super) const fn new() -> Self {
        Self {
            cqs: Vec::new(),
            srqs: Vec::new(),
            xrc: BTreeMap::new(),
            events: VecDeque::new(),
            timers: BTreeSet::new(),
            tracing: false,
        }
    }

    /// Creates a completion queue of `capacity` elements.
    pub fn create_cq(&mut self, capacity: usize, quirks: Q) -> CqId {
        self.cqs.push(CompletionQueue::with_quirks(capacity, quirks));
        CqId(self.cqs.len() - 1)
    }

    /// Creates a shared receive queue of `max_wr` WQEs with `max_sge` elements each.
    pub fn create_srq(&mut self, pd: Pd, max_wr: u32, max_sge: u32, quirks: Q) -> SrqId {
        self.srqs.push(Srq { queue: SharedReceiveQueue::with_quirks(max_wr, max_sge, quirks), pd, cq: None });
        SrqId(self.srqs.len() - 1)
    }

    /// Makes `srq` an XRC SRQ: requests in `domain` name it by `number`, and complete to `cq`.
    pub fn open_to_xrc(&mut self, srq: SrqId, domain: XrcDomain, number: Qpn, cq: CqId) {
        if let Some(srq) = self.srqs.get_mut(srq.0) {
            srq.cq = Some(cq);
        }
        self.xrc.insert((domain, number), srq);
    }

    /// Number of completion queues created.
    #[must_use]
    pub const fn cq_count(&self) -> usize {
        self.cqs.len()
    }

    /// Number of shared receive queues created.
    #[must_use]
    pub const fn srq_count(&self) -> usize {
        self.srqs.len()
    }

    /// A completion queue.
    ///
    /// An id of another endpoint may name a different queue here.
    ///
    /// # Panics
    /// If the endpoint has created no such queue.
    pub fn cq(&mut self, cq: CqId) -> &mut CompletionQueue<Q> {
        &mut self.cqs[cq.0]
    }

    /// A shared receive queue.
    ///
    /// An id of another endpoint may name a different queue here.
    ///
    /// # Panics
    /// If the endpoint has created no such queue.
    pub fn srq(&mut self, srq: SrqId) -> &mut SharedReceiveQueue<Q> {
        &mut self.srqs[srq.0].queue
    }

    /// Tells of completions and of what queue pairs do as well, from now on.
    pub const fn set_tracing(&mut self, tracing: bool) {
        self.tracing = tracing;
    }

    /// Takes the oldest event.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// The earliest time at which a completion queue wants to be looked at.
    pub(super) fn next_timeout(&self) -> Option<Instant> {
        self.timers.first().map(|(at, _)| *at)
    }

    /// Looks at the completion queues whose time has come.
    pub(super) fn handle_timeout(&mut self, now: Instant) {
        while self.next_timeout().is_some_and(|at| at <= now) {
            let Some((_, cq)) = self.timers.pop_first() else { break };
            let due = self.cq(cq).handle_timeout(now);
            self.timers.extend(due.look_at.map(|at| (at, cq)));
            if due.raise_event {
                self.events.push_back(Event::CompletionEvent(cq));
            }
        }
    }

    /// Removes the completions of a queue pair.
    pub(super) fn forget<H: Host<Consumer = Self>>(&mut self, config: &QpConfig<H>) {
        for cq in [config.send_cq, config.recv_cq].into_iter().flatten() {
            self.cq(cq).forget(config.qpn);
        }
    }
}

impl<Q: Quirks> Consumer for Queues<Q> {
    type Cq = CqId;
    type Srq = SrqId;
    type Counter = CounterId;

    fn complete(&mut self, cq: &CqId, cqe: Cqe) {
        if self.tracing {
            self.events.push_back(Event::Completed(*cq, cqe));
        }
        match self.cq(*cq).push(cqe) {
            Pushed::Quietly | Pushed::Overrun { first: false } => {}
            Pushed::LookAt(at) => {
                self.timers.insert((at, *cq));
            }
            Pushed::RaiseEvent => self.events.push_back(Event::CompletionEvent(*cq)),
            Pushed::Overrun { first: true } => self.events.push_back(Event::CqError(*cq)),
        }
    }

    fn count(&mut self, counter: &CounterId, succeeded: bool) {
        self.events.push_back(Event::Counted(*counter, succeeded));
    }

    fn take_recv(&mut self, srq: &SrqId) -> Option<RecvWr> {
        let taken = self.srq(*srq).take()?;
        if taken.limit_reached {
            self.events.push_back(Event::SrqLimit(*srq));
        }
        Some(taken.wr)
    }

    fn srq_pd(&self, srq: &SrqId) -> Pd {
        self.srqs[srq.0].pd
    }

    fn xrc_srq(&self, domain: XrcDomain, number: Qpn) -> Option<SrqId> {
        self.xrc.get(&(domain, number)).copied()
    }

    fn complete_xrc(&mut self, srq: &SrqId, cqe: Cqe) {
        if let Some(cq) = self.srqs[srq.0].cq {
            self.complete(&cq, cqe);
        }
    }

    fn async_event(&mut self, qpn: Qpn, event: AsyncEvent) {
        self.events.push_back(Event::Async(qpn, event));
    }

    fn trace(&mut self, qpn: Qpn, event: event::Event) {
        if self.tracing {
            self.events.push_back(Event::Trace(qpn, event));
        }
    }
}
