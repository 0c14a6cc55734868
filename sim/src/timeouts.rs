//! When each of many wants to be woken.

use std::collections::{BTreeMap, BTreeSet};

use urxe_engine::Instant;

/// One time each, at most; the earliest is at hand.
#[derive(Debug)]
pub(crate) struct Timeouts<K> {
    in_order: BTreeSet<(Instant, K)>,
    of: BTreeMap<K, Instant>,
}

impl<K> Default for Timeouts<K> {
    fn default() -> Self {
        Self { in_order: BTreeSet::new(), of: BTreeMap::new() }
    }
}

impl<K: Copy + Ord> Timeouts<K> {
    /// Sets the time at which `who` is woken.
    pub(crate) fn set(&mut self, who: K, at: Option<Instant>) {
        let before = match at {
            Some(at) => self.of.insert(who, at),
            None => self.of.remove(&who),
        };
        if before != at {
            if let Some(before) = before {
                self.in_order.remove(&(before, who));
            }
            self.in_order.extend(at.map(|at| (at, who)));
        }
    }

    /// The earliest time, and the key that wants to be woken then.
    pub(crate) fn first(&self) -> Option<(Instant, K)> {
        self.in_order.first().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_word_counts() {
        let at = |nanoseconds| Some(Instant::from_nanos(nanoseconds));
        let mut timeouts = Timeouts::default();
        assert_eq!(timeouts.first(), None);
        for (who, when) in [(1, at(30)), (2, at(20)), (3, at(10)), (3, at(40)), (2, None), (4, at(30)), (4, at(30))] {
            timeouts.set(who, when);
        }
        assert_eq!(timeouts.first(), Some((Instant::from_nanos(30), 1)));
        timeouts.set(1, None);
        timeouts.set(1, None);
        assert_eq!(timeouts.first(), Some((Instant::from_nanos(30), 4)));
    }
}
