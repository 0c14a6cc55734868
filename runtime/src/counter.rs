//! A completion counter that several queue pairs and threads may use (`ibv_create_comp_cntr(3)`).

use std::sync::atomic::{AtomicU64, Ordering};

/// A completion counter.
#[derive(Debug, Default)]
pub struct CompletionCounter {
    /// Operations that ended well.
    pub completions: Count,
    /// Operations that did not.
    pub errors: Count,
}

/// A value of a counter: successes or errors.
#[derive(Debug, Default)]
pub struct Count(AtomicU64);

impl Count {
    /// Loads the value with acquire ordering: the bytes that the counted operations wrote are visible to the reader.
    pub fn read(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }

    /// Replaces the value.
    pub fn set(&self, value: u64) {
        self.0.store(value, Ordering::Release);
    }

    /// Adds `amount`, wrapping at `u64::MAX`.
    pub fn add(&self, amount: u64) {
        self.0.fetch_add(amount, Ordering::AcqRel);
    }
}

impl CompletionCounter {
    /// Counts an operation.
    pub(super) fn count(&self, succeeded: bool) {
        if succeeded { &self.completions } else { &self.errors }.add(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_counter_counts_both_ways_and_wraps() {
        let counter = CompletionCounter::default();
        let values = || (counter.completions.read(), counter.errors.read());
        assert_eq!(values(), (0, 0));
        counter.count(true);
        counter.count(true);
        counter.count(false);
        assert_eq!(values(), (2, 1));
        counter.completions.set(u64::MAX);
        counter.errors.add(7);
        assert_eq!(values(), (u64::MAX, 8));
        counter.count(true);
        assert_eq!(values(), (0, 8));
    }

    #[test]
    fn none_is_lost_between_threads() {
        const EACH: u64 = 10_000;
        let counter = CompletionCounter::default();
        std::thread::scope(|scope| {
            for succeeded in [true, false, true, false] {
                let counter = &counter;
                scope.spawn(move || (0..EACH).for_each(|_| counter.count(succeeded)));
            }
        });
        assert_eq!((counter.completions.read(), counter.errors.read()), (2 * EACH, 2 * EACH));
    }
}
