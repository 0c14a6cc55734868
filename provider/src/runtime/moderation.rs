//! Completion events that are put off (`ibv_modify_cq(3)`), and completions ([`urxe_engine::chaos`]).

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};

use urxe_engine::Instant;

use super::cq::Cq;
use super::lock;

/// "No timer."
const NEVER: u64 = u64::MAX;

/// When which completion queues are to be looked at: at most two entries for each queue, so a handful.
#[derive(Debug)]
pub(crate) struct Moderated {
    entries: Mutex<Vec<(Instant, Weak<Cq>)>>,
    /// The earliest of them.
    next: AtomicU64,
}

impl Moderated {
    pub(crate) const fn new() -> Self {
        Self { entries: Mutex::new(Vec::new()), next: AtomicU64::new(NEVER) }
    }

    /// The earliest time.
    pub(crate) fn next(&self) -> Option<Instant> {
        match self.next.load(Ordering::Acquire) {
            NEVER => None,
            nanos => Some(Instant::from_nanos(nanos)),
        }
    }

    /// Looks at the queue at this time.
    pub(crate) fn add(&self, at: Instant, cq: &Arc<Cq>) {
        let mut entries = lock(&self.entries);
        entries.push((at, Arc::downgrade(cq)));
        self.publish(&entries);
    }

    /// Looks at the queues whose time has come.
    pub(crate) fn expire(&self, now: Instant) {
        if self.next().is_none_or(|next| next > now) {
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
        let next = entries.iter().map(|(at, _)| at.as_nanos()).min();
        self.next.store(next.unwrap_or(NEVER), Ordering::SeqCst);
    }
}
