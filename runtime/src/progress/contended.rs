//! Conduct of a device whose application loses its processor to others.
//!
//! Two programs that answer each other make an exchange in a microsecond while both have a processor, and one in a time slice of the
//! scheduler otherwise. So little depends on how soon a packet is taken, and much on how often both have a processor, and on whether both
//! poll then:
//!
//! - Packets are left to an application that has polled in vain: it polls on as soon as it has a processor. The progress thread would
//!   have to send the ACK alone, and from then on the peer, which has polled its completion, looks at its memory instead of polling.
//! - Of two ends one spins while it waits, and the other parks: the scheduler owes a processor to a thread that has slept (its lag is kept,
//!   `place_entity` of the kernel's sched/fair.c), so it has one soon after the packet that wakes it, while the other end still spins. Two that spin may have their slices beside each other for seconds.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use urxe_engine::Instant;

use super::contention;
use super::several_devices::this_thread;
use super::tuning::TUNING;

/// Contention at one device.
#[derive(Debug, Default)]
pub(super) struct Contended {
    /// End of the contention, in nanoseconds; 0: none. One that has passed is forgotten at the next look with a time.
    until: AtomicU64,
    /// Empty polls spin here; those of the peer park.
    spins: AtomicBool,
    /// Polls in vain since the last that handed out completions, up to [`vain_polls`](super::tuning::Tuning::vain_polls).
    vain: AtomicU32,
    /// A poll has found packets since contention was last looked for.
    has_found: AtomicBool,
    /// Thread of the last poll.
    polled_by: AtomicUsize,
    /// Time until which the progress thread leaves no packets, in nanoseconds.
    leaves_none_until: AtomicU64,
    /// Completions of some queue pair may be waited for in sleep.
    may_sleep: AtomicBool,
}

impl Contended {
    /// Whether a thread that answers has lost its processor to others lately.
    #[inline]
    pub(super) fn is_on(&self) -> bool {
        self.until.load(Ordering::Relaxed) != 0
    }

    /// Whether contention lasts at `now`. Forgets it when it is over.
    pub(super) fn is_on_at(&self, now: Instant) -> bool {
        let is_on = now.as_nanos() < self.until.load(Ordering::Relaxed);
        if !is_on && self.is_on() {
            self.until.store(0, Ordering::Relaxed);
        }
        is_on
    }

    /// Looks whether the calling thread, which has answered late, loses its processor. `spins`: empty polls are to spin here.
    pub(super) fn answers_late(&self, now: Instant, spins: bool) -> bool {
        let loss = contention::look(now);
        let is_lost = now < loss.until;
        if is_lost && !self.is_on() {
            // Completions were not counted before.
            self.vain.store(0, Ordering::Relaxed);
        }
        self.until.store(if is_lost { loss.until.as_nanos() } else { 0 }, Ordering::Relaxed);
        // The peer, too, waits for the one processor of a thread that has no other.
        self.spins.store(spins && !loss.has_one_processor, Ordering::Relaxed);
        is_lost
    }

    /// Notes a poll that has handed out nothing yet; `before`: time of the one before, in nanoseconds. Contention lasts as long as polls that stand
    /// still for want of a processor find packets.
    #[inline]
    pub(super) fn polls(&self, now: Instant, before: u64) {
        if self.is_on() {
            self.polls_contended(now, before);
        }
    }

    fn polls_contended(&self, now: Instant, before: u64) {
        let vain = self.vain.load(Ordering::Relaxed);
        if vain < TUNING.vain_polls {
            self.vain.store(vain + 1, Ordering::Relaxed);
        }
        let (thread, other) = (this_thread(), self.polled_by.load(Ordering::Relaxed));
        if thread != other {
            self.polled_by.store(thread, Ordering::Relaxed);
            if other != 0 {
                self.leave_none(now);
            }
        }
        let has_stood_still = before != 0 && now.since(Instant::from_nanos(before)) > TUNING.contention_gap;
        if has_stood_still && self.has_found.swap(false, Ordering::Relaxed) {
            let until = contention::look(now).until;
            if now < until {
                self.until.store(until.as_nanos(), Ordering::Relaxed);
            }
        }
    }

    /// Notes that a poll has found packets.
    #[inline]
    pub(super) fn found(&self) {
        if self.is_on() && !self.has_found.load(Ordering::Relaxed) {
            self.has_found.store(true, Ordering::Relaxed);
        }
    }

    /// Notes that a poll has handed out completions: it may be the last for long.
    #[inline]
    pub(super) fn completed(&self) {
        if self.is_on() {
            self.vain.store(0, Ordering::Relaxed);
        }
    }

    /// Notes that completions of some queue pair may be waited for in sleep: no poll tells what else the application waits for.
    pub(super) fn may_sleep(&self) {
        self.may_sleep.store(true, Ordering::Relaxed);
    }

    /// Has packets taken at once for a while: several threads poll, or other hosts send.
    pub(super) fn leave_none(&self, now: Instant) {
        self.leaves_none_until.store((now + TUNING.contention_lasts).as_nanos(), Ordering::Relaxed);
    }

    /// Whether packets are left to the application, if it has polled lately: it polls on as soon as it has a processor.
    pub(super) fn leaves(&self, now: Instant) -> bool {
        self.is_on_at(now)
            && self.vain.load(Ordering::Relaxed) >= TUNING.vain_polls
            && !self.may_sleep.load(Ordering::Relaxed)
            && now.as_nanos() >= self.leaves_none_until.load(Ordering::Relaxed)
    }

    /// Whether polls spin while they wait; else they park.
    pub(super) fn spins(&self) -> bool {
        self.spins.load(Ordering::Relaxed)
    }

    /// Sets contention until that time.
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

    /// A device whose application has polled in vain, with contention for 100 ms.
    fn contended() -> Contended {
        let contended = Contended::default();
        contended.set(at(100), false);
        (0..TUNING.vain_polls).for_each(|_| contended.polls(at(1), at(1).as_nanos()));
        contended
    }

    #[test]
    fn contention_is_forgotten_in_time() {
        let contended = Contended::default();
        assert!(!contended.is_on_at(at(1)) && !contended.leaves(at(1)));
        contended.set(at(100), false);
        assert!(contended.is_on_at(at(99)) && contended.is_on());
        assert!(!contended.is_on_at(at(100)) && !contended.is_on());
    }

    #[test]
    fn packets_are_left_behind_polls_in_vain() {
        let contended = Contended::default();
        contended.polls(at(1), at(1).as_nanos());
        contended.set(at(100), false);
        assert!(!contended.leaves(at(1)), "polls were not counted");
        (1..TUNING.vain_polls).for_each(|_| contended.polls(at(1), at(1).as_nanos()));
        assert!(!contended.leaves(at(1)), "it may go on to something else");
        contended.polls(at(1), at(1).as_nanos());
        assert!(contended.leaves(at(99)) && !contended.leaves(at(100)));
    }

    #[test]
    fn a_poll_that_hands_out_completions_may_be_the_last() {
        let contended = contended();
        contended.completed();
        assert!(!contended.leaves(at(2)));
    }

    #[test]
    fn packets_are_left_to_one_thread_that_never_sleeps() {
        let contended = contended();
        std::thread::scope(|scope| scope.spawn(|| contended.polls(at(2), at(2).as_nanos())).join()).unwrap();
        assert!(!contended.leaves(at(3)));
        contended.set(at(1000), false);
        assert!(!contended.leaves(at(1) + TUNING.contention_lasts));
        assert!(contended.leaves(at(2) + TUNING.contention_lasts));
        contended.may_sleep();
        assert!(!contended.leaves(at(2) + TUNING.contention_lasts));
    }
}
