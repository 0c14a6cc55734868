//! When queue pairs want to be woken.
//!
//! ACK timers are set with nearly every send and hardly ever expire, so an entry stays where it is when the time is
//! put off: a queue pair found early is asked again, and entered anew.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use urxe_engine::Instant;
use urxe_wire::Qpn;

use super::lock;
use super::slumber::Deadline;

/// Not in the heap.
const NEVER: u64 = u64::MAX;

/// The timers of a port.
#[derive(Debug)]
pub(crate) struct Timers {
    heap: Mutex<BinaryHeap<Reverse<(Instant, Qpn)>>>,
    /// The earliest in the heap.
    next: Deadline,
}

/// Entries of a queue pair that earlier ones have overtaken and that stay where they are, until they are looked for. A
/// peer may overtake them as often as it likes, with RNR NAKs, and they may be hours away.
const OVERTAKEN: u32 = 64;

/// What a queue pair has in the heap.
#[derive(Debug)]
pub(crate) struct TimerSlot {
    /// The time for which it stands there.
    at: AtomicU64,
    /// How many others were overtaken.
    overtaken: AtomicU32,
}

impl Default for TimerSlot {
    fn default() -> Self {
        Self { at: AtomicU64::new(NEVER), overtaken: AtomicU32::new(0) }
    }
}

impl Timers {
    pub(crate) fn new() -> Self {
        Self { heap: Mutex::new(BinaryHeap::new()), next: Deadline::never() }
    }

    /// The earliest time.
    pub(crate) fn next(&self) -> Option<Instant> {
        self.next.get()
    }

    /// Whether it has come.
    pub(crate) fn is_over(&self, now: Instant) -> bool {
        self.next.is_over(now)
    }

    /// The queue pair wants to be woken at `at`. True if nobody wanted so early a time before.
    pub(crate) fn set(&self, slot: &TimerSlot, qpn: Qpn, at: Instant) -> bool {
        // Asked first, because that is cheaper, and mostly all there is to do.
        let is_earlier = |before: u64| before <= at.as_nanos();
        if is_earlier(slot.at.load(Ordering::Relaxed)) {
            return false;
        }
        let before = slot.at.fetch_min(at.as_nanos(), Ordering::Relaxed);
        if is_earlier(before) {
            return false;
        }
        let mut heap = lock(&self.heap);
        if before != NEVER && slot.overtaken.fetch_add(1, Ordering::Relaxed) >= OVERTAKEN {
            slot.overtaken.store(0, Ordering::Relaxed);
            // Another thread may have entered it for an earlier time by now.
            let present = slot.at.load(Ordering::Relaxed);
            heap.retain(|Reverse((at, other))| *other != qpn || at.as_nanos() == present);
        }
        heap.push(Reverse((at, qpn)));
        self.publish(&heap) == Some(at)
    }

    /// Takes a queue pair out whose time has come, and that time; it must be asked when it really wants to be woken, unless
    /// it has been since ([`TimerSlot::take`]).
    pub(crate) fn expired(&self, now: Instant) -> Option<(Instant, Qpn)> {
        if !self.next.is_over(now) {
            return None;
        }
        let mut heap = lock(&self.heap);
        let Reverse((at, qpn)) = *heap.peek()?;
        if at > now {
            return None;
        }
        heap.pop();
        self.publish(&heap);
        Some((at, qpn))
    }

    fn publish(&self, heap: &BinaryHeap<Reverse<(Instant, Qpn)>>) -> Option<Instant> {
        let next = heap.peek().map(|Reverse((at, _))| *at);
        self.next.set(next);
        next
    }
}

impl TimerSlot {
    /// The queue pair has been taken out, for this time. False if it stands in the heap for another by now: it was entered
    /// once more, earlier, and has been taken out then.
    #[must_use]
    pub(crate) fn take(&self, at: Instant) -> bool {
        self.at.compare_exchange(at.as_nanos(), NEVER, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn putting_off_costs_nothing_and_earlier_times_count() {
        let timers = Timers::new();
        let (slot, other) = (TimerSlot::default(), TimerSlot::default());
        let at = Instant::from_nanos;
        assert!(timers.set(&slot, Qpn::new(1), at(100)));
        assert!(!timers.set(&slot, Qpn::new(1), at(200)));
        assert!(!timers.set(&other, Qpn::new(2), at(150)));
        assert_eq!(timers.next(), Some(at(100)));
        assert_eq!(timers.expired(at(99)), None);
        assert_eq!(timers.expired(at(100)), Some((at(100), Qpn::new(1))));
        assert!(slot.take(at(100)));
        assert!(timers.set(&slot, Qpn::new(1), at(120)));
        assert_eq!(timers.expired(at(500)), Some((at(120), Qpn::new(1))));
        assert_eq!(timers.expired(at(500)), Some((at(150), Qpn::new(2))));
        assert_eq!(timers.next(), None);
    }

    /// Else each time that was ever overtaken by an earlier one would come back with every expiry, and they would grow in
    /// number without end.
    #[test]
    fn times_that_were_overtaken_are_forgotten() {
        let timers = Timers::new();
        let slot = TimerSlot::default();
        let at = Instant::from_nanos;
        let mut asked = 0;
        for round in 0..100 {
            let now = 1000 * round;
            timers.set(&slot, Qpn::new(1), at(now + 900));
            timers.set(&slot, Qpn::new(1), at(now + 10));
            while let Some((time, _)) = timers.expired(at(now + 1000)) {
                asked += u32::from(slot.take(time));
            }
        }
        assert_eq!((asked, timers.next()), (100, None));
    }

    #[test]
    fn times_far_away_that_are_overtaken_again_and_again_do_not_gather() {
        let (timers, slots) = (Timers::new(), [TimerSlot::default(), TimerSlot::default()]);
        let [far, near] = [1 << 43, 10_000];
        timers.set(&slots[1], Qpn::new(2), Instant::from_nanos(far));
        for round in 0..10_000 {
            let now = round * near;
            timers.set(&slots[0], Qpn::new(1), Instant::from_nanos(now + far));
            timers.set(&slots[0], Qpn::new(1), Instant::from_nanos(now + near));
            let (at, qpn) = timers.expired(Instant::from_nanos(now + near)).unwrap();
            assert!(qpn == Qpn::new(1) && slots[0].take(at));
        }
        assert!(lock(&timers.heap).len() <= 2 + OVERTAKEN as usize);
        // What counts is still there.
        let (at, qpn) = timers.expired(Instant::from_nanos(far)).unwrap();
        assert!(qpn == Qpn::new(2) && slots[1].take(at));
    }
}
