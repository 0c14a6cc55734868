//! Prevents lost wake-ups: a deadline that is set while the background thread goes to sleep is always observed.
//!
//! The thread stores until when it will sleep, and then reads every deadline. Another thread stores a deadline, and
//! then reads until when the background thread sleeps. One of the two must see the other's store. So each has a
//! sequentially consistent fence between its store and its load: without, both loads may precede both stores, and the
//! deadline passes unnoticed. `make loom` checks this.

#[cfg(not(loom))]
use core::sync::atomic::{AtomicU64, Ordering, fence};
#[cfg(loom)]
use loom::sync::atomic::{AtomicU64, Ordering, fence};

use urxe_engine::Instant;

/// "No deadline."
const NEVER: u64 = u64::MAX;
/// The thread does not sleep.
const AWAKE: u64 = 0;

/// Time at which the background thread has to be awake.
#[derive(Debug)]
pub(crate) struct Deadline(AtomicU64);

impl Deadline {
    /// Deadline that never comes.
    pub(crate) fn never() -> Self {
        Self(AtomicU64::new(NEVER))
    }

    pub(crate) fn get(&self) -> Option<Instant> {
        match self.0.load(Ordering::Acquire) {
            NEVER => None,
            nanos => Some(Instant::from_nanos(nanos)),
        }
    }

    /// Sets the deadline. The caller must wake the thread if [`SleepDeadline::outlasts`] it.
    pub(crate) fn set(&self, at: Option<Instant>) {
        self.0.store(at.map_or(NEVER, Instant::as_nanos), Ordering::Release);
    }

    /// Whether a deadline is set.
    pub(crate) fn is_set(&self) -> bool {
        self.0.load(Ordering::Acquire) != NEVER
    }

    /// Whether the deadline has come.
    pub(crate) fn is_over(&self, now: Instant) -> bool {
        // NEVER is later than any time that there is.
        self.0.load(Ordering::Acquire) <= now.as_nanos()
    }
}

/// Time until which the background thread sleeps, unless something else comes.
#[derive(Debug)]
pub(crate) struct SleepDeadline(AtomicU64);

impl SleepDeadline {
    /// State of a thread that is awake.
    pub(crate) fn none() -> Self {
        Self(AtomicU64::new(AWAKE))
    }

    /// The thread goes to sleep until `until`; it must read the deadlines next.
    pub(crate) fn begin(&self, until: Option<Instant>) {
        self.0.store(until.map_or(NEVER, Instant::as_nanos), Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// The thread is awake, and will process whatever is due.
    pub(crate) fn end(&self) {
        self.0.store(AWAKE, Ordering::Relaxed);
    }

    /// Whether the thread may sleep past a deadline that has just been set.
    pub(crate) fn outlasts(&self, at: Instant) -> bool {
        fence(Ordering::SeqCst);
        self.0.load(Ordering::Relaxed) > at.as_nanos()
    }
}
