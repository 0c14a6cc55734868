//! Telling the application what the engine left to be told: completion events that are put off, asynchronous events.

use std::ptr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use urxe_engine::{Consumer as _, Cqe};

use super::{Device, TxContext};
use crate::cq::Cq;
use crate::lock;

impl Device {
    /// Tells the application of completions that were made outside of a queue pair's turn. The caller holds no lock.
    pub fn tell(&self, work: &mut TxContext) {
        self.deliver_notifications(work);
    }

    /// Tells the application what the engine left to be told. No lock but the receive token is held.
    #[inline]
    pub(crate) fn deliver_notifications(&self, work: &mut TxContext) {
        if work.notifications.has_news() {
            self.tell_all(work);
        }
        if let Some(interceptor) = self.packet_interceptor() {
            self.attend(interceptor, work);
        }
    }

    #[cold]
    fn tell_all(&self, work: &mut TxContext) {
        self.moderate(work);
        while let Some(cq) = work.notifications.overruns.pop() {
            self.overrun(&cq, work);
        }
        for (qpn, event) in work.notifications.async_events.drain(..) {
            if let Some(qp) = self.qp(qpn) {
                qp.raise(event);
            }
        }
    }

    fn moderate(&self, work: &mut TxContext) {
        for (at, cq) in work.notifications.moderated.drain(..) {
            self.moderated.add(at, &cq);
            self.wake_for(at);
        }
    }

    /// Adds a completion for a message that has come by a queue pair of another process. That of a queue that overruns
    /// is left to the background thread: no queue pair's engine is taken here.
    pub(crate) fn complete_for_other(&self, cq: &Arc<Cq>, cqe: Cqe) {
        self.with_work(|work| {
            work.notifications.complete(cq, cqe);
            self.moderate(work);
            if !work.notifications.overruns.is_empty() {
                lock(&self.overran).append(&mut work.notifications.overruns);
                self.has_overran.store(true, Ordering::Release);
                self.wake();
            }
        });
    }

    /// Tells of the queues that were left to the background thread.
    pub(super) fn tell_overruns(&self) {
        if self.has_overran.swap(false, Ordering::Acquire) {
            let overran = std::mem::take(&mut *lock(&self.overran));
            self.with_work(|work| overran.iter().for_each(|cq| self.overrun(cq, work)));
        }
    }

    /// A completion was lost: the queue is of no use any more, and neither are the queue pairs that complete there
    /// (IBA 11.6.3.2, 11.6.3.3).
    fn overrun(&self, cq: &Arc<Cq>, work: &mut TxContext) {
        cq.raise_error();
        for qp in self.whole_queue_pairs().into_iter().filter(|qp| qp.uses(cq)) {
            if ptr::eq(Arc::as_ptr(qp.device()), self) {
                qp.drive(work, |engine, io| engine.fail(io));
            } else {
                qp.device().with_work(|work| qp.drive(work, |engine, io| engine.fail(io)));
            }
            qp.raise(urxe_engine::AsyncEvent::QpFatal);
        }
    }
}
