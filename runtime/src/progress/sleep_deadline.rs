//! That the background thread does not oversleep what is set while it falls asleep.
//!
//! It says until when it will sleep, and then looks at every deadline; who sets a deadline stores it, and then looks
//! until when the thread sleeps. One of the two has to see what the other stored. So each has a sequentially consistent
//! fence between storing and looking: without, both may look before either store is seen, and the deadline passes
//! unnoticed. `make loom` has this checked.

#[cfg(not(loom))]
use core::sync::atomic::{AtomicU64, Ordering, fence};
#[cfg(loom)]
use loom::sync::atomic::{AtomicU64, Ordering, fence};

use urxe_engine::Instant;

/// "No deadline."
const NEVER: u64 = u64::MAX;
/// The thread does not sleep.
const AWAKE: u64 = 0;

/// When the background thread has to be awake for something.
#[derive(Debug)]
pub(crate) struct Deadline(AtomicU64);

impl Deadline {
    /// There is none.
    pub(crate) fn never() -> Self {
        Self(AtomicU64::new(NEVER))
    }

    pub(crate) fn get(&self) -> Option<Instant> {
        match self.0.load(Ordering::Acquire) {
            NEVER => None,
            nanos => Some(Instant::from_nanos(nanos)),
        }
    }

    /// Whoever sets it wakes the thread if [`SleepDeadline::outlasts`] it.
    pub(crate) fn set(&self, at: Option<Instant>) {
        self.0.store(at.map_or(NEVER, Instant::as_nanos), Ordering::Release);
    }

    /// Whether there is one.
    pub(crate) fn is_set(&self) -> bool {
        self.0.load(Ordering::Acquire) != NEVER
    }

    /// Whether it has come.
    pub(crate) fn is_over(&self, now: Instant) -> bool {
        // NEVER is later than any time that there is.
        self.0.load(Ordering::Acquire) <= now.as_nanos()
    }
}

/// Until when the background thread sleeps, unless something else comes.
#[derive(Debug)]
pub(crate) struct SleepDeadline(AtomicU64);

impl SleepDeadline {
    /// It is awake.
    pub(crate) fn none() -> Self {
        Self(AtomicU64::new(AWAKE))
    }

    /// It falls asleep, and will look at the deadlines next.
    pub(crate) fn begin(&self, until: Option<Instant>) {
        self.0.store(until.map_or(NEVER, Instant::as_nanos), Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// It is awake, and will see what is due.
    pub(crate) fn end(&self) {
        self.0.store(AWAKE, Ordering::Relaxed);
    }

    /// Whether it may sleep past a deadline that has just been set.
    pub(crate) fn outlasts(&self, at: Instant) -> bool {
        fence(Ordering::SeqCst);
        self.0.load(Ordering::Relaxed) > at.as_nanos()
    }
}
