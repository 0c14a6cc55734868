//! Completion events that are put off (`ibv_modify_cq(3)`), and completions ([`urxe_engine::quirks`]).

use std::sync::{Arc, Mutex, Weak};

use urxe_engine::Instant;

use super::cq::Cq;
use super::lock;
use super::progress::sleep_deadline::Deadline;

/// Completion queues to look at, by time: at most two entries for each queue, so a handful.
#[derive(Debug)]
pub(crate) struct Moderated {
    entries: Mutex<Vec<(Instant, Weak<Cq>)>>,
    /// The earliest of them.
    next: Deadline,
}

impl Moderated {
    pub(crate) fn new() -> Self {
        Self { entries: Mutex::new(Vec::new()), next: Deadline::never() }
    }

    /// The earliest time.
    pub(crate) fn next(&self) -> Option<Instant> {
        self.next.get()
    }

    /// Whether the deadline has come.
    pub(crate) fn is_over(&self, now: Instant) -> bool {
        self.next.is_over(now)
    }

    /// Looks at the queue at this time.
    pub(crate) fn add(&self, at: Instant, cq: &Arc<Cq>) {
        let mut entries = lock(&self.entries);
        entries.push((at, Arc::downgrade(cq)));
        self.publish(&entries);
    }

    /// Looks at the queues whose time has come.
    pub(crate) fn expire(&self, now: Instant) {
        if !self.next.is_over(now) {
            return;
        }
        let due: Vec<_> = {
            let mut entries = lock(&self.entries);
            let due = entries.extract_if(.., |(at, _)| *at <= now).collect();
            self.publish(&entries);
            due
        };
        for cq in due.into_iter().filter_map(|(_, cq)| cq.upgrade()) {
            if let Some(at) = cq.handle_timeout(now) {
                self.add(at, &cq);
            }
        }
    }

    fn publish(&self, entries: &[(Instant, Weak<Cq>)]) {
        self.next.set(entries.iter().map(|(at, _)| *at).min());
    }
}
