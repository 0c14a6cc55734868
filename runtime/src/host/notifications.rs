//! Completions and events on their way to the application.

use std::sync::Arc;

use urxe_engine::{AsyncEvent, Consumer, Cqe, Event, Instant, Pd, RecvWr, XrcDomain};
use urxe_status::Counters;
use urxe_wire::Qpn;

use crate::counter::CompletionCounter;
use crate::counters::QpCounters;
use crate::cq::{Added, Cq};
use crate::interceptor::{self, Interceptor};
use crate::srq::{AnySrq, XrcSrqs};

/// A completion that the application is not to see before the ACK has left.
#[derive(Debug)]
pub(crate) enum Unacknowledged {
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
    pub async_events: Vec<(Qpn, AsyncEvent)>,
    /// Completion queues that have just overrun.
    pub overruns: Vec<Arc<Cq>>,
    /// Number of completions.
    pub(crate) completions: u64,
    /// The interceptor wants the queue pair at work to go to the error state.
    is_broken: bool,
    /// Completion queues that are to be looked at later.
    pub(crate) moderated: Vec<(Instant, Arc<Cq>)>,
    /// Completions of the XRC target at work, held back until its answers are out.
    held: Vec<(AnySrq, Cqe)>,
    /// Completions of the queue pair at work, in order, held back until its ACK is out.
    unacknowledged: Vec<Unacknowledged>,
    /// Completions of received messages are held back.
    holds_received: bool,
    /// The engine's events of the queue pair at work, for its own counters.
    traced: Vec<Event>,
    /// Requests of the queue pair at work that came behind a gap, and those of them that were kept.
    out_of_order: (u64, u64),
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
            async_events: Vec::new(),
            overruns: Vec::new(),
            completions: 0,
            is_broken: false,
            moderated: Vec::new(),
            held: Vec::new(),
            unacknowledged: Vec::new(),
            holds_received: false,
            traced: Vec::new(),
            out_of_order: (0, 0),
            counters,
            xrc_srqs,
            interceptor,
        }
    }

    /// Counts the engine's events of the queue pair at work. Requests behind a gap are only noted.
    #[inline]
    pub(crate) fn count(&mut self, counters: &mut QpCounters) {
        if !self.traced.is_empty() {
            self.count_traced(counters);
        }
        if self.out_of_order.0 > 0 {
            let (requests, kept) = std::mem::take(&mut self.out_of_order);
            counters.note_out_of_order(requests, kept);
        }
    }

    // Apart: turns without an event are many.
    #[inline(never)]
    fn count_traced(&mut self, counters: &mut QpCounters) {
        self.traced.drain(..).for_each(|event| counters.count(event));
    }

    /// Whether the application is to hear of something.
    pub(crate) const fn has_news(&self) -> bool {
        !(self.async_events.is_empty() && self.overruns.is_empty() && self.moderated.is_empty())
    }

    /// Adds the completions held back to their queues.
    ///
    /// An application that answers a message does so by another queue pair, on XRC. Its peer expects the ACK first, as
    /// a card sends it: perftest takes a completion event that comes before that of its own SEND for the latter.
    #[inline]
    pub(crate) fn release(&mut self) {
        if !self.held.is_empty() {
            self.complete_held();
        }
    }

    /// Holds completions of received messages back from now on.
    #[inline]
    pub(crate) fn hold_received(&mut self) {
        self.holds_received = true;
    }

    /// Has completions come behind those that a queue pair has held back.
    #[inline]
    pub(crate) fn queue_behind(&mut self, before: &mut Vec<Unacknowledged>) {
        if !before.is_empty() {
            std::mem::swap(&mut self.unacknowledged, before);
        }
    }

    /// Gives what is held back to the queue pair, until its ACK has left.
    #[inline]
    pub(crate) fn give_unacknowledged(&mut self, to: &mut Vec<Unacknowledged>) {
        self.holds_received = false;
        if !self.unacknowledged.is_empty() {
            std::mem::swap(&mut self.unacknowledged, to);
        }
    }

    /// The ACK has left: the application may see what was held back for it. `cq` is the queue pair's for receives.
    #[inline]
    pub(crate) fn complete_unacknowledged(&mut self, cq: Option<&Arc<Cq>>) {
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
    pub(crate) const fn is_broken(&self) -> bool {
        self.is_broken
    }

    /// Takes the wish that the queue pair at work goes to the error state.
    #[inline]
    pub(crate) const fn take_broken(&mut self) -> bool {
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
        self.async_events.push((qpn, event));
    }

    fn trace(&mut self, qpn: Qpn, event: Event) {
        if let Some(interceptor) = interceptor::active(&self.interceptor) {
            interceptor.event(qpn, &event);
        }
        // Behind a gap there is one for each packet: they are counted together.
        if let Event::OutOfOrder { kept, .. } = event {
            self.out_of_order.0 += 1;
            self.out_of_order.1 += u64::from(kept);
            return;
        }
        self.counters.count(event);
        self.traced.push(event);
    }
}
