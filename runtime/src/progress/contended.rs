//! Conduct of a device whose application loses its processor to others.
//!
//! Two programs that answer each other make an exchange in a microsecond while both have a processor, and one in a time slice of the
//! scheduler otherwise. So little depends on how soon a packet is taken, and much on how often both have a processor, and on whether both
//! poll then:
//!
//! - Packets are left to an application whose last poll found nothing: it polls on as soon as it has a processor. The progress thread would
//!   have to send the ACK alone, and from then on the peer, which has polled its completion, looks at its memory instead of polling.
//! - Of two ends one spins while it waits, and the other parks: the scheduler owes a processor to a thread that has slept, so it has one soon
//!   after the packet that wakes it, while the other end still spins. Two that spin may have their slices beside each other for seconds.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use urxe_engine::Instant;

use super::contention;

/// A poll this long after the one before says that its thread may have lost the processor.
const GAP: Duration = Duration::from_millis(1);

/// State of one device.
#[derive(Debug, Default)]
pub(super) struct Contended {
    /// Time until which the thread that answered late counts as one that loses its processor, in nanoseconds; 0 if it does not.
    until: AtomicU64,
    /// The end spins that waits, where the other parks.
    spins: AtomicBool,
    /// The application has got completions by its last poll: it may not poll again for long.
    has_completed: AtomicBool,
}

impl Contended {
    /// Whether a thread that answers has lost its processor to others lately.
    #[inline]
    pub(super) fn is_on(&self) -> bool {
        self.until.load(Ordering::Relaxed) != 0
    }

    /// Whether that is so still. Forgets it in time.
    pub(super) fn is_on_at(&self, now: Instant) -> bool {
        let is_on = now.as_nanos() < self.until.load(Ordering::Relaxed);
        if !is_on && self.is_on() {
            self.until.store(0, Ordering::Relaxed);
        }
        is_on
    }

    /// Looks whether the calling thread, which has answered late, loses its processor. `spins`: this end is the one that spins.
    pub(super) fn answers_late(&self, now: Instant, spins: bool) -> bool {
        let loss = contention::look(now);
        self.until.store(loss.until.as_nanos(), Ordering::Relaxed);
        // Nobody else has the one processor of a thread that spins.
        self.spins.store(spins && !loss.has_one_processor, Ordering::Relaxed);
        now < loss.until
    }

    /// Notes that a poll has begun; `before`: time of the one before, in nanoseconds.
    #[inline]
    pub(super) fn polls(&self, now: Instant, before: u64) {
        if !self.is_on() {
            return;
        }
        if self.has_completed.load(Ordering::Relaxed) {
            self.has_completed.store(false, Ordering::Relaxed);
        }
        if before != 0 && now.since(Instant::from_nanos(before)) > GAP {
            let until = contention::look(now).until;
            if now < until {
                self.until.store(until.as_nanos(), Ordering::Relaxed);
            }
        }
    }

    /// Notes that a poll has handed out completions.
    #[inline]
    pub(super) fn completed(&self) {
        if self.is_on() {
            self.has_completed.store(true, Ordering::Relaxed);
        }
    }

    /// Whether the application polls as soon as it has a processor, if it has polled lately.
    pub(super) fn awaits_poll(&self) -> bool {
        self.is_on() && !self.has_completed.load(Ordering::Relaxed)
    }

    /// Whether polls spin while they wait; else they park.
    pub(super) fn spins(&self) -> bool {
        self.spins.load(Ordering::Relaxed)
    }

    /// State until that time.
    #[cfg(test)]
    pub(super) fn set(&self, until: Instant, spins: bool) {
        self.until.store(until.as_nanos(), Ordering::Relaxed);
        self.spins.store(spins, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Instant {
        Instant::from_nanos(1_000_000 * millis)
    }

    #[test]
    fn contention_is_forgotten_in_time() {
        let contended = Contended::default();
        assert!(!contended.is_on_at(at(1)) && !contended.awaits_poll());
        contended.set(at(100), false);
        assert!(contended.is_on_at(at(99)) && contended.is_on());
        assert!(!contended.is_on_at(at(100)) && !contended.is_on());
    }

    #[test]
    fn a_poll_that_hands_out_completions_may_be_the_last() {
        let contended = Contended::default();
        contended.completed();
        contended.set(at(100), false);
        assert!(contended.awaits_poll(), "it was not contended then");
        contended.completed();
        assert!(!contended.awaits_poll());
        contended.polls(at(10), at(10).as_nanos());
        assert!(contended.awaits_poll());
    }
}
