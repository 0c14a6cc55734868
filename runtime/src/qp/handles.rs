//! The `ibv_qp`s by which the application knows a queue pair, and its end with the last of them.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use urxe_engine::AsyncEvent;

use super::Qp;
use crate::async_events::AsyncEvents;
use crate::event::EventType;
use crate::lock;

impl Qp {
    /// Tells the application.
    pub(crate) fn raise(&self, event: AsyncEvent) {
        let event_type = EventType::from(event);
        for events in &*lock(&self.listeners) {
            events.raise(event_type);
        }
    }

    /// Opens the queue pair once more, under another `ibv_qp` (`ibv_open_qp(3)`). False if it is being destroyed.
    pub fn open(&self, events: AsyncEvents) -> bool {
        let mut listeners = lock(&self.listeners);
        let alive = !listeners.is_empty();
        if alive {
            listeners.push(Arc::new(events));
        }
        alive
    }

    /// Closes the `ibv_qp` at `handle`, and ends the queue pair with the last one. Returns how many events the
    /// application must acknowledge.
    pub fn close(&self, handle: u64) -> u32 {
        let (closed, last) = {
            let mut listeners = lock(&self.listeners);
            let at = listeners.iter().position(|events| events.is_of(handle));
            let closed = at.map(|at| listeners.swap_remove(at));
            (closed, listeners.is_empty())
        };
        if last {
            self.retire();
        }
        closed.map_or(0, |events| events.retire())
    }

    /// Ends it: no packet reaches it, nothing is outstanding, its completions are gone.
    fn retire(&self) {
        self.retired.store(true, Ordering::Relaxed);
        self.device.remove_qp(self.qpn);
        self.device.with_work(|work| {
            // A completion may be seen while its ACK waits for a request. An application that then destroys the queue pair
            // owes its peer that ACK.
            self.drive(work, |engine, io| engine.flush_delayed(io));
            let reset = urxe_engine::QpState::Reset;
            self.modify(work, |engine, io| {
                let attr = urxe_engine::attr::QpAttr::default();
                // To RESET there is always a way.
                let _ = engine.modify(io, reset, urxe_engine::attr::AttrMask::STATE, &attr, None);
            });
        });
        self.forget_completions();
        // The counters may be destroyed now, whoever still holds the queue pair.
        lock(&self.inner).engine.detach_counters();
    }

    /// Removes the queue pair's completions from their queues, when it is destroyed or reset.
    pub fn forget_completions(&self) {
        {
            let mut inner = lock(&self.inner);
            inner.unacknowledged.clear();
            inner.last_ack.take_back(self.qpn);
        }
        self.inspect(|engine| {
            for cq in [&engine.config().send_cq, &engine.config().recv_cq].into_iter().flatten() {
                cq.forget(self.qpn);
            }
        });
    }
}
