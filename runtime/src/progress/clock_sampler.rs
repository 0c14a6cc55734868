//! Sampling of the clock by polling threads.
//!
//! Reading the clock costs as much as half an empty poll of shared memory, and where the clock is an emulated device more than
//! the rest of the poll. But decisions by the clock, such as putting the watchdog off and yielding, need microseconds only. So a
//! thread that spins reads the clock now and then. A thread that polls a few queues in a row, and comes back some time later,
//! reads it each time: else the last reading would be old.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use urxe_engine::Instant;

use super::time_scale::scaled;
use super::tuning::TUNING;

/// Looks at the clock.
#[derive(Debug, Default)]
pub(super) struct ClockSampler {
    /// Polls that may go by without.
    left: AtomicU32,
    /// Looks in a row that came soon, up to [`Tuning::spins`](super::tuning::Tuning::spins).
    row: AtomicU32,
    /// The last look, in nanoseconds.
    last: AtomicU64,
}

impl ClockSampler {
    /// Whether a poll need not look at the clock. Of two threads that poll, one may miss what the other says.
    pub(super) fn may_skip(&self) -> bool {
        let left = self.left.load(Ordering::Relaxed);
        if left > 0 {
            self.left.store(left - 1, Ordering::Relaxed);
        }
        left > 0
    }

    /// A poll has looked.
    pub(super) fn looked(&self, now: Instant) {
        let last = Instant::from_nanos(self.last.load(Ordering::Relaxed));
        self.last.store(now.as_nanos(), Ordering::Relaxed);
        let row = self.row.load(Ordering::Relaxed);
        let polls = if row == TUNING.spins { TUNING.clock_skips + 1 } else { 1 };
        let row = if now.since(last) < scaled(TUNING.spin_gap * polls) { TUNING.spins.min(row + 1) } else { 0 };
        self.row.store(row, Ordering::Relaxed);
        self.left.store(if row == TUNING.spins { TUNING.clock_skips } else { 0 }, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many of the next polls need not look.
    fn skipped(clock_sampler: &ClockSampler) -> u32 {
        (0..100).take_while(|_| clock_sampler.may_skip()).count().try_into().unwrap()
    }

    /// A time, in nanoseconds after the first look.
    fn at(nanos: u64) -> Instant {
        Instant::from_nanos(10_000_000 + nanos)
    }

    #[test]
    fn spinning_thread_samples_the_clock_now_and_then() {
        let clock_sampler = ClockSampler::default();
        for poll in 0..=u64::from(TUNING.spins) {
            assert_eq!(skipped(&clock_sampler), 0, "nothing is known yet");
            clock_sampler.looked(at(500 * poll));
        }
        let mut now = 500 * u64::from(TUNING.spins);
        for _ in 0..10 {
            assert_eq!(skipped(&clock_sampler), TUNING.clock_skips);
            now += u64::from(TUNING.clock_skips + 1) * 1000 - 100;
            clock_sampler.looked(at(now));
        }
        assert_eq!(skipped(&clock_sampler), TUNING.clock_skips);
        clock_sampler.looked(at(now + u64::from(TUNING.clock_skips + 1) * 1000));
        assert_eq!(skipped(&clock_sampler), 0, "it has ceased to spin");
    }

    #[test]
    fn rare_polls_of_several_queues_sample_the_clock_each_time() {
        let clock_sampler = ClockSampler::default();
        for round in 0..100 {
            for queue in 0..8 {
                assert_eq!(skipped(&clock_sampler), 0);
                clock_sampler.looked(at(100_000 * round + 100 * queue));
            }
        }
    }
}
