//! Back-off of empty polls where too few processors run too many spinning programs.
//!
//! An empty poll yields now and then, since the peer may wait for this very processor. If each yield lets another thread run,
//! the processor is contended: a program that spins on gets it back only when the others have used up their time slices,
//! milliseconds later, while a thread that sleeps is scheduled soon after its packet has arrived. Then polls park.
//!
//! Scheduling parameters of the application's threads stay as they are: no affinity, no priority.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use urxe_engine::Instant;

use super::time_scale::scaled;
use super::tuning::TUNING;

/// Next step of an empty poll.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Backoff {
    /// Returns at once.
    Spin,
    /// Yields the processor, and reports how long that took.
    Yield,
    /// Sleeps until something arrives, for [`Tuning::park`](super::tuning::Tuning::park) at most.
    Park,
}

/// State of the back-off of a device's polls.
#[derive(Debug, Default)]
pub(super) struct PollBackoff {
    /// Time of the next yield, in nanoseconds.
    yield_at: AtomicU64,
    /// Yields in a row that let another thread run.
    contended: AtomicU32,
    /// Polls that park before the next yield.
    parks: AtomicU32,
}

impl PollBackoff {
    /// Records that a poll found something.
    pub(super) fn found(&self, now: Instant) {
        let alone = self.contended.load(Ordering::Relaxed) == 0;
        let after = if alone { TUNING.yield_after } else { TUNING.yield_after_contended };
        self.yield_at.store((now + scaled(after)).as_nanos(), Ordering::Relaxed);
    }

    /// Records that a poll found something and did not read the clock: the next that does begins anew.
    pub(super) fn found_unseen(&self) {
        self.yield_at.store(0, Ordering::Relaxed);
    }

    /// Decides what an empty poll does.
    pub(super) fn found_nothing(&self, now: Instant) -> Backoff {
        let yield_at = Instant::from_nanos(self.yield_at.load(Ordering::Relaxed));
        if now < yield_at {
            return Backoff::Spin;
        }
        // No poll for longer than that: polling begins anew.
        if now.since(yield_at) > scaled(TUNING.yield_after) {
            self.found(now);
            return Backoff::Spin;
        }
        let parks = self.parks.load(Ordering::Relaxed);
        if parks > 0 {
            self.parks.store(parks - 1, Ordering::Relaxed);
            return Backoff::Park;
        }
        Backoff::Yield
    }

    /// Records a yield.
    pub(super) fn yielded(&self, before: Instant, after: Instant) {
        if after.since(before) <= scaled(TUNING.yield_alone) {
            self.contended.store(0, Ordering::Relaxed);
        } else {
            let contended = self.contended.load(Ordering::Relaxed).saturating_add(1);
            self.contended.store(contended, Ordering::Relaxed);
            if contended >= TUNING.contended_yields {
                self.parks.store(TUNING.parks, Ordering::Relaxed);
            }
        }
        self.found(after);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const START: Instant = Instant::from_nanos(1_000_000_000);
    const CONTENDED: Duration = Duration::from_micros(6);

    fn yield_at(backoff: &PollBackoff) -> Instant {
        Instant::from_nanos(backoff.yield_at.load(Ordering::Relaxed))
    }

    #[test]
    fn empty_polls_yield_after_a_while() {
        let backoff = PollBackoff::default();
        assert_eq!(backoff.found_nothing(START), Backoff::Spin);
        assert_eq!(yield_at(&backoff), START + TUNING.yield_after, "polling has just begun");
        assert_eq!(backoff.found_nothing(START + TUNING.yield_after / 2), Backoff::Spin);
        backoff.found(START + TUNING.yield_after / 2);
        assert_eq!(yield_at(&backoff), START + TUNING.yield_after / 2 + TUNING.yield_after);
        let now = yield_at(&backoff);
        assert_eq!(backoff.found_nothing(now), Backoff::Yield);
        backoff.yielded(now, now + TUNING.yield_alone);
        assert_eq!(backoff.found_nothing(now + TUNING.yield_alone), Backoff::Spin);
        backoff.found_unseen();
        assert_eq!(backoff.found_nothing(START), Backoff::Spin, "a poll that found something begins anew");
    }

    #[test]
    fn contended_yield_twice_parks() {
        let backoff = PollBackoff::default();
        let mut now = START;
        let mut decide = |backoff: &PollBackoff| {
            now = yield_at(backoff).max(now);
            let decision = backoff.found_nothing(now);
            if decision == Backoff::Yield {
                backoff.yielded(now, now + CONTENDED);
            } else {
                backoff.found(now);
            }
            decision
        };
        backoff.found(START);
        for _ in 0..TUNING.contended_yields {
            assert_eq!(decide(&backoff), Backoff::Yield, "once may be chance");
        }
        for _ in 0..TUNING.parks {
            assert_eq!(decide(&backoff), Backoff::Park);
        }
        assert_eq!(decide(&backoff), Backoff::Yield, "asks whether the processor is still contended");
        assert_eq!(decide(&backoff), Backoff::Park);
    }

    #[test]
    fn a_quick_yield_ends_the_contention() {
        let backoff = PollBackoff::default();
        backoff.yielded(START, START + CONTENDED);
        backoff.yielded(START, START + TUNING.yield_alone);
        backoff.yielded(START, START + CONTENDED);
        assert_eq!(backoff.parks.load(Ordering::Relaxed), 0);
        assert_eq!(yield_at(&backoff), START + CONTENDED + TUNING.yield_after_contended);
    }
}
