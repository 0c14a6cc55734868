//! Programs that poll, on too few processors.
//!
//! A poll in vain now and then offers its processor to others, since the peer may be waiting for this very one. Who finds
//! somebody else at such offers had better sleep until something comes: a program that spins on gets its processor back only
//! when the others have used up their time, milliseconds later, while one that sleeps is let in soon after its packet has
//! come.
//!
//! Besides, the kernel may leave two programs that spin and yield on one processor for many milliseconds while another is
//! idle: each looks busy, with a warm cache. Who finds somebody else again and again therefore asks to be moved, which on
//! Linux is to exclude the present processor from those the thread may run on, and to allow it again.

use std::mem::{MaybeUninit, size_of};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use urxe_engine::Instant;

use super::clock;
use super::pace::stretched;

/// For how long polls are in vain before the processor is offered to others: longer than a ping-pong waits for its answer.
const PATIENCE: Duration = Duration::from_micros(40);
/// The same when somebody took it the last time. Over UDP an answer takes half as long.
const PATIENCE_AMONG_OTHERS: Duration = Duration::from_micros(20);
/// A yield that takes longer has let somebody else run.
const ALONE: Duration = Duration::from_micros(3);
/// Yields in a row that found somebody else: it was not by chance.
const NOT_BY_CHANCE: u32 = 2;
/// So often a poll sleeps before the next yield tells whether somebody else is still there.
const DOZES: u32 = 16;
/// Yields in a row that found somebody else before a move: so many, and by chance up to as many again, so that of two
/// who meet one moves first and the other then finds itself alone.
const MEETINGS: u32 = 4;
/// Between moves, at first; as long as somebody is everywhere it doubles, up to the longest.
const FIRST_REST: Duration = Duration::from_millis(1);
const LONGEST_REST: Duration = Duration::from_millis(256);

/// Who else is on the processor.
#[derive(Debug, Default)]
pub(super) struct Crowd {
    /// When to offer the processor to others, in nanoseconds.
    offer_at: AtomicU64,
    /// Yields in a row that found somebody else.
    meetings: AtomicU32,
    /// Polls that sleep before the next yield.
    dozes: AtomicU32,
    /// No move before, in nanoseconds.
    rests_until: AtomicU64,
    /// The next rest, in nanoseconds.
    rest: AtomicU64,
}

impl Crowd {
    /// A poll found something.
    pub(super) fn found(&self, now: Instant) {
        let alone = self.meetings.load(Ordering::Relaxed) == 0;
        let patience = if alone { PATIENCE } else { PATIENCE_AMONG_OTHERS };
        self.offer_at.store((now + stretched(patience)).as_nanos(), Ordering::Relaxed);
    }

    /// A poll found something, and did not look at the clock: the next that does begins anew.
    pub(super) fn found_unseen(&self) {
        self.offer_at.store(0, Ordering::Relaxed);
    }

    /// A poll was in vain: offers the processor to others, if it is time, and goes to another if they are always there. True:
    /// the caller had better sleep for a moment, and say so ([`found`](Self::found)) when it has.
    #[must_use]
    pub(super) fn found_nothing(&self, now: Instant) -> bool {
        let offer_at = Instant::from_nanos(self.offer_at.load(Ordering::Relaxed));
        if now < offer_at {
            return false;
        }
        // Nobody polled for longer than that: polling begins anew.
        if now.since(offer_at) > stretched(PATIENCE) {
            self.found(now);
            return false;
        }
        let dozes = self.dozes.load(Ordering::Relaxed);
        if dozes > 0 {
            self.dozes.store(dozes - 1, Ordering::Relaxed);
            return true;
        }
        self.give_way(now);
        self.found(clock::now());
        false
    }

    fn give_way(&self, before: Instant) {
        thread::yield_now();
        if self.offered(before, clock::now()) {
            leave_processor();
        }
    }

    /// The processor was offered to others, from then to now. Returns whether to go to another.
    fn offered(&self, before: Instant, now: Instant) -> bool {
        if now.since(before) <= stretched(ALONE) {
            self.meetings.store(0, Ordering::Relaxed);
            self.rest.store(0, Ordering::Relaxed);
            return false;
        }
        let meetings = self.meetings.fetch_add(1, Ordering::Relaxed) + 1;
        if meetings >= NOT_BY_CHANCE {
            self.dozes.store(DOZES, Ordering::Relaxed);
        }
        let leaves = meetings > MEETINGS + chance(now) && now.as_nanos() >= self.rests_until.load(Ordering::Relaxed);
        if leaves {
            let nanos = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
            let rest = self.rest.load(Ordering::Relaxed).clamp(nanos(FIRST_REST), nanos(LONGEST_REST));
            self.rests_until.store(now.as_nanos() + rest, Ordering::Relaxed);
            self.rest.store(rest * 2, Ordering::Relaxed);
            self.meetings.store(0, Ordering::Relaxed);
        }
        leaves
    }
}

/// A number below [`MEETINGS`] that two processes do not share: from the clock's least significant bits.
fn chance(now: Instant) -> u32 {
    u32::try_from((now.as_nanos() >> 2) % u64::from(MEETINGS)).unwrap_or_default()
}

/// Moves the calling thread to another processor, if it may run on any other.
fn leave_processor() {
    let mut allowed = MaybeUninit::<libc::cpu_set_t>::zeroed();
    // SAFETY: a set of the size given. Where the machine has more processors than it can name, this fails.
    let got = unsafe { libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), allowed.as_mut_ptr()) };
    // SAFETY: all-zero bytes are an empty set.
    let allowed = unsafe { allowed.assume_init() };
    // SAFETY: no pointers.
    let Ok(present) = usize::try_from(unsafe { libc::sched_getcpu() }) else { return };
    let bits = 8 * size_of::<libc::cpu_set_t>();
    // SAFETY: a set; the index is within it.
    if got != 0 || present >= bits || unsafe { libc::CPU_COUNT(&allowed) } < 2 {
        return;
    }
    let mut others = allowed;
    // SAFETY: as above.
    unsafe { libc::CPU_CLR(present, &mut others) };
    // SAFETY: sets of the size given. Fails only if all of these processors have just been taken away.
    unsafe {
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const others);
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const allowed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allowed() -> libc::cpu_set_t {
        let mut set = MaybeUninit::<libc::cpu_set_t>::zeroed();
        // SAFETY: a set of the size given, zeroed.
        unsafe {
            assert_eq!(libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), set.as_mut_ptr()), 0);
            set.assume_init()
        }
    }

    #[test]
    fn a_move_leaves_the_allowed_processors_as_they_were() {
        let before = allowed();
        leave_processor();
        // SAFETY: two sets.
        assert!(unsafe { libc::CPU_EQUAL(&before, &allowed()) });
    }

    #[test]
    fn the_processor_is_offered_after_a_while_of_vain_polls() {
        let crowd = Crowd::default();
        let start = clock::now() + Duration::from_secs(100);
        let offer_at = || Instant::from_nanos(crowd.offer_at.load(Ordering::Relaxed));
        assert!(!crowd.found_nothing(start));
        assert_eq!(offer_at(), start + PATIENCE, "polling has just begun");
        assert!(!crowd.found_nothing(start + PATIENCE / 2));
        assert_eq!(offer_at(), start + PATIENCE);
        crowd.found(start + PATIENCE / 2);
        assert_eq!(offer_at(), start + PATIENCE / 2 + PATIENCE);
        assert!(!crowd.found_nothing(offer_at()));
        assert!(offer_at() < start, "it was offered, at the clock's time");
        crowd.found_unseen();
        assert!(!crowd.found_nothing(start));
        assert_eq!(offer_at(), start + PATIENCE, "whoever has found something begins anew");
    }

    #[test]
    fn who_meets_somebody_twice_had_better_sleep() {
        let crowd = Crowd::default();
        let start = clock::now() + Duration::from_secs(100);
        let offer_at = || Instant::from_nanos(crowd.offer_at.load(Ordering::Relaxed));
        let polls_sleep = || {
            crowd.found(start);
            crowd.found_nothing(offer_at())
        };
        assert!(!crowd.offered(start, start + 2 * ALONE) && !polls_sleep(), "it may be by chance");
        crowd.meetings.store(NOT_BY_CHANCE - 1, Ordering::Relaxed);
        assert!(!crowd.offered(start, start + 2 * ALONE));
        assert_eq!(crowd.dozes.load(Ordering::Relaxed), DOZES);
        for _ in 0..DOZES {
            assert!(polls_sleep());
        }
        assert!(!polls_sleep(), "it looks whether somebody is still there");
    }

    #[test]
    fn who_meets_somebody_for_long_leaves_and_then_stays_for_a_while() {
        let crowd = Crowd::default();
        let start = clock::now() + Duration::from_secs(100);
        let meetings = |from: Instant| (1..).find(|_| crowd.offered(from, from + 2 * ALONE)).unwrap();
        assert!((MEETINGS + 1..=2 * MEETINGS).contains(&meetings(start)));
        let later = start + FIRST_REST;
        assert!((1..100).all(|_| !crowd.offered(start, start + 2 * ALONE)));
        assert!(crowd.offered(later, later + 2 * ALONE));
    }

    #[test]
    fn a_thread_with_one_processor_stays() {
        thread::spawn(|| {
            let before = allowed();
            let mut one = before;
            for processor in 0..8 * size_of::<libc::cpu_set_t>() {
                // SAFETY: within the set.
                if unsafe { libc::CPU_ISSET(processor, &before) && libc::CPU_COUNT(&one) > 1 } {
                    // SAFETY: as above.
                    unsafe { libc::CPU_CLR(processor, &mut one) };
                }
            }
            // SAFETY: a set of the size given.
            assert_eq!(unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const one) }, 0);
            leave_processor();
            // SAFETY: two sets.
            assert!(unsafe { libc::CPU_EQUAL(&one, &allowed()) });
        })
        .join()
        .unwrap();
    }
}
