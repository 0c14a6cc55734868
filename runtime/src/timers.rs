//! Timers of the queue pairs of a device: the engine's [`TimerQueue`] in a lock, and its earliest time beside it.

use std::sync::Mutex;

use urxe_engine::Instant;
use urxe_engine::endpoint::{TimerQueue, TimerSlot};
use urxe_wire::Qpn;

use super::lock;
use super::progress::sleep_deadline::Deadline;

/// The timers of a device.
#[derive(Debug)]
pub(crate) struct Timers {
    queue: Mutex<TimerQueue<Qpn>>,
    /// The earliest in the queue.
    next: Deadline,
}

impl Timers {
    pub(crate) fn new() -> Self {
        Self { queue: Mutex::new(TimerQueue::new()), next: Deadline::never() }
    }

    /// The earliest time.
    pub(crate) fn next(&self) -> Option<Instant> {
        self.next.get()
    }

    /// Whether the earliest time has come.
    pub(crate) fn is_over(&self, now: Instant) -> bool {
        self.next.is_over(now)
    }

    /// Has a queue pair woken at `at`, or earlier. True if no queue pair wanted so early a time before.
    pub(crate) fn set(&self, slot: &TimerSlot, qpn: Qpn, at: Instant) -> bool {
        // Mostly there is nothing to do, and the lock is not taken.
        let Some(earlier) = slot.bring_forward(at) else { return false };
        let mut queue = lock(&self.queue);
        let is_first = queue.enter(slot, qpn, earlier);
        self.next.set(queue.next());
        is_first
    }

    /// Takes out a queue pair whose time has come, and that time; the queue pair must be asked when it really wants to be
    /// woken, unless it has been since ([`TimerSlot::take`]).
    pub(crate) fn expired(&self, now: Instant) -> Option<(Instant, Qpn)> {
        if !self.next.is_over(now) {
            return None;
        }
        let mut queue = lock(&self.queue);
        let due = queue.pop_due(now);
        self.next.set(queue.next());
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_earliest_time_is_beside_the_queue() {
        let timers = Timers::new();
        let (slot, other) = (TimerSlot::default(), TimerSlot::default());
        let at = Instant::from_nanos;
        assert!(timers.set(&slot, Qpn::new(1), at(100)));
        assert!(!timers.set(&slot, Qpn::new(1), at(200)), "put off");
        assert!(!timers.set(&other, Qpn::new(2), at(150)));
        assert_eq!(timers.next(), Some(at(100)));
        assert_eq!(timers.expired(at(99)), None);
        assert_eq!(timers.expired(at(100)), Some((at(100), Qpn::new(1))));
        assert!(slot.take(at(100)));
        assert_eq!(timers.next(), Some(at(150)));
        assert_eq!(timers.expired(at(500)), Some((at(150), Qpn::new(2))));
        assert_eq!(timers.next(), None);
    }
}
