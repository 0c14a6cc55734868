//! When queue pairs want to be woken.
//!
//! ACK timers are set with nearly every send and hardly ever expire, so an entry stays where it is when the time is
//! put off: a queue pair found early is asked again, and entered anew.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use urxe_engine::Instant;
use urxe_wire::Qpn;

use super::lock;

/// "No timer."
const NEVER: u64 = u64::MAX;

/// The timers of a port.
#[derive(Debug)]
pub(crate) struct Timers {
    heap: Mutex<BinaryHeap<Reverse<(Instant, Qpn)>>>,
    /// The earliest in the heap.
    next: AtomicU64,
}

/// The time for which a queue pair stands in the heap.
#[derive(Debug)]
pub(crate) struct TimerSlot(AtomicU64);

impl Default for TimerSlot {
    fn default() -> Self {
        Self(AtomicU64::new(NEVER))
    }
}

impl Timers {
    pub(crate) fn new() -> Self {
        Self { heap: Mutex::new(BinaryHeap::new()), next: AtomicU64::new(NEVER) }
    }

    /// The earliest time.
    pub(crate) fn next(&self) -> Option<Instant> {
        match self.next.load(Ordering::Acquire) {
            NEVER => None,
            nanos => Some(Instant::from_nanos(nanos)),
        }
    }

    /// The queue pair wants to be woken at `at`. True if nobody wanted so early a time before.
    pub(crate) fn set(&self, slot: &TimerSlot, qpn: Qpn, at: Instant) -> bool {
        if slot.0.load(Ordering::Relaxed) <= at.as_nanos() {
            return false;
        }
        slot.0.store(at.as_nanos(), Ordering::Relaxed);
        let mut heap = lock(&self.heap);
        heap.push(Reverse((at, qpn)));
        self.publish(&heap) == Some(at)
    }

    /// Takes a queue pair out whose time has come; it must be asked when it really wants to be woken.
    pub(crate) fn expired(&self, now: Instant) -> Option<Qpn> {
        if self.next()? > now {
            return None;
        }
        let mut heap = lock(&self.heap);
        let Reverse((at, qpn)) = *heap.peek()?;
        if at > now {
            return None;
        }
        heap.pop();
        self.publish(&heap);
        Some(qpn)
    }

    fn publish(&self, heap: &BinaryHeap<Reverse<(Instant, Qpn)>>) -> Option<Instant> {
        let next = heap.peek().map(|Reverse((at, _))| *at);
        self.next.store(next.map_or(NEVER, Instant::as_nanos), Ordering::Release);
        next
    }
}

impl TimerSlot {
    /// The queue pair has been taken out.
    pub(crate) fn clear(&self) {
        self.0.store(NEVER, Ordering::Relaxed);
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
        assert_eq!(timers.expired(at(100)), Some(Qpn::new(1)));
        slot.clear();
        assert!(timers.set(&slot, Qpn::new(1), at(120)));
        assert_eq!(timers.expired(at(500)), Some(Qpn::new(1)));
        assert_eq!(timers.expired(at(500)), Some(Qpn::new(2)));
        assert_eq!(timers.next(), None);
    }
}
