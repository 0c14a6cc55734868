//! Timers of many queue pairs.
//!
//! ACK timers are set with nearly every send and hardly ever expire. So an entry stays where it is when its time is put
//! off: whoever is found early is asked again, and entered anew. A [`TimerSlot`] beside each queue pair tells without a
//! lock whether the queue needs to be touched at all; a caller with threads puts the [`TimerQueue`] into a lock.

use alloc::collections::BinaryHeap;
use core::cmp::Reverse;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::time::Instant;

/// Not in the queue.
const NEVER: u64 = u64::MAX;

/// Superseded entries of one key that may stay in the queue until they are looked for. A peer may supersede them as often
/// as it likes, with RNR NAKs, and they may be hours away.
const SUPERSEDED: u32 = 64;

/// The earliest times at which keys want to be woken.
#[derive(Clone, Debug)]
pub struct TimerQueue<K: Ord> {
    heap: BinaryHeap<Reverse<(Instant, K)>>,
}

/// The entry of one key in a [`TimerQueue`].
#[derive(Debug)]
pub struct TimerSlot {
    /// The time for which the key is in the queue, or [`NEVER`].
    at: AtomicU64,
    /// Entries superseded by earlier ones since the last clean-up.
    superseded: AtomicU32,
}

impl Default for TimerSlot {
    fn default() -> Self {
        Self { at: AtomicU64::new(NEVER), superseded: AtomicU32::new(0) }
    }
}

/// An earlier time, noted in a [`TimerSlot`] and to be entered in the [`TimerQueue`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use = "the time has no effect until it is entered in the queue"]
pub struct Earlier {
    at: Instant,
    /// The key is in the queue already, for a later time.
    supersedes: bool,
}

impl TimerSlot {
    /// Notes that the key wants to be woken at `at`. `None` if it is in the queue for that time or an earlier one: then
    /// the queue need not be touched.
    #[inline]
    pub fn bring_forward(&self, at: Instant) -> Option<Earlier> {
        // Loaded first, because that is cheaper, and mostly all there is to do.
        if self.at.load(Ordering::Relaxed) <= at.as_nanos() {
            return None;
        }
        let before = self.at.fetch_min(at.as_nanos(), Ordering::Relaxed);
        (before > at.as_nanos()).then_some(Earlier { at, supersedes: before != NEVER })
    }

    /// Notes that [`pop_due`](TimerQueue::pop_due) has taken the key out, for this time. False if the key is in the queue
    /// for another time by now: it was entered once more, earlier, and has been taken out then.
    #[must_use]
    pub fn take(&self, at: Instant) -> bool {
        self.at.compare_exchange(at.as_nanos(), NEVER, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }
}

impl<K: Ord> Default for TimerQueue<K> {
    fn default() -> Self {
        Self::new()
    }
}

impl<K: Ord> TimerQueue<K> {
    /// An empty queue.
    #[must_use]
    pub const fn new() -> Self {
        Self { heap: BinaryHeap::new() }
    }

    /// The earliest time in the queue. No key wants to be woken earlier; one may want to be woken later by now.
    #[must_use]
    pub fn next(&self) -> Option<Instant> {
        self.heap.peek().map(|Reverse((at, _))| *at)
    }

    /// The key with the earliest time, and that time.
    #[must_use]
    pub fn peek(&self) -> Option<(Instant, &K)> {
        self.heap.peek().map(|Reverse((at, key))| (*at, key))
    }

    /// Enters the key of `slot` for the time that was noted there. True if no key wanted so early a time before.
    pub fn enter(&mut self, slot: &TimerSlot, key: K, earlier: Earlier) -> bool {
        if earlier.supersedes && slot.superseded.fetch_add(1, Ordering::Relaxed) >= SUPERSEDED {
            slot.superseded.store(0, Ordering::Relaxed);
            // Another thread may have entered the key for an earlier time by now.
            let present = slot.at.load(Ordering::Relaxed);
            self.heap.retain(|Reverse((at, other))| *other != key || at.as_nanos() == present);
        }
        self.heap.push(Reverse((earlier.at, key)));
        self.next() == Some(earlier.at)
    }

    /// Has the key of `slot` woken at `at`, or earlier. True if no key wanted so early a time before.
    pub fn set(&mut self, slot: &TimerSlot, key: K, at: Instant) -> bool {
        slot.bring_forward(at).is_some_and(|earlier| self.enter(slot, key, earlier))
    }

    /// Takes out a key whose time has come, and that time. The caller asks the key when it really wants to be woken,
    /// unless [`TimerSlot::take`] says that the entry was superseded.
    pub fn pop_due(&mut self, now: Instant) -> Option<(Instant, K)> {
        if self.next()? > now {
            return None;
        }
        self.heap.pop().map(|Reverse(entry)| entry)
    }

    /// Number of entries, superseded ones included.
    #[must_use]
    pub fn len(&self) -> usize {
        self.heap.len()
    }

    /// Whether the queue has no entry.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.heap.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(nanos: u64) -> Instant {
        Instant::from_nanos(nanos)
    }

    #[test]
    fn putting_off_touches_nothing_and_earlier_times_count() {
        let mut timers = TimerQueue::new();
        let (slot, other) = (TimerSlot::default(), TimerSlot::default());
        assert!(timers.set(&slot, 1, at(100)));
        assert_eq!(slot.bring_forward(at(200)), None);
        assert!(!timers.set(&other, 2, at(150)));
        assert_eq!(timers.next(), Some(at(100)));
        assert_eq!(timers.pop_due(at(99)), None);
        assert_eq!(timers.pop_due(at(100)), Some((at(100), 1)));
        assert!(slot.take(at(100)));
        assert!(timers.set(&slot, 1, at(120)));
        assert_eq!(timers.pop_due(at(500)), Some((at(120), 1)));
        assert_eq!(timers.pop_due(at(500)), Some((at(150), 2)));
        assert!(timers.is_empty());
    }

    /// Else each superseded time would come back with every expiry, and they would grow in number without end.
    #[test]
    fn superseded_times_are_forgotten() {
        let (mut timers, slot) = (TimerQueue::new(), TimerSlot::default());
        let mut asked = 0;
        for round in 0..100 {
            let now = 1000 * round;
            timers.set(&slot, 1, at(now + 900));
            timers.set(&slot, 1, at(now + 10));
            while let Some((time, _)) = timers.pop_due(at(now + 1000)) {
                asked += u32::from(slot.take(time));
            }
        }
        assert_eq!((asked, timers.next()), (100, None));
    }

    #[test]
    fn superseded_times_far_away_do_not_gather() {
        let (mut timers, slots) = (TimerQueue::new(), [TimerSlot::default(), TimerSlot::default()]);
        let [far, near] = [1 << 43, 10_000];
        timers.set(&slots[1], 2, at(far));
        for round in 0..10_000 {
            let now = round * near;
            timers.set(&slots[0], 1, at(now + far));
            timers.set(&slots[0], 1, at(now + near));
            let (time, key) = timers.pop_due(at(now + near)).unwrap();
            assert!(key == 1 && slots[0].take(time));
        }
        assert!(timers.len() <= 2 + SUPERSEDED as usize);
        // What counts is still there.
        let (time, key) = timers.pop_due(at(far)).unwrap();
        assert!(key == 2 && slots[1].take(time));
    }
}
