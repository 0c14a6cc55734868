//! Contention for the processor: whether the calling thread loses it to others.
//!
//! A thread that spins has its processor all the time, unless others want it. getrusage(2) tells how long it ran, how often it was
//! preempted, and how often it waited. What it gives away by itself, by yields and parks, is no loss.

use std::cell::Cell;
use std::time::Duration;

use urxe_engine::Instant;

use super::time_scale::scaled;
use super::tuning::TUNING;
use crate::clock;

/// A look at a thread.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Look {
    at: Instant,
    usage: Usage,
    given: Given,
    /// Time until which the thread counts as one that loses its processor.
    contended_until: Instant,
}

/// Use of the processor by a thread, from its beginning.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Usage {
    /// Time on the processor.
    ran: Duration,
    /// How often it was preempted, or has given way.
    preempted: i64,
    /// How often it waited.
    waited: i64,
}

/// Yields and parks of a thread, from its beginning.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Given {
    /// Time that these took.
    time: Duration,
    /// Yields that let another thread run.
    yields: i64,
    parks: i64,
}

const NO_LOOK: Look = Look {
    at: Instant::from_nanos(0),
    usage: Usage { ran: Duration::ZERO, preempted: 0, waited: 0 },
    given: Given { time: Duration::ZERO, yields: 0, parks: 0 },
    contended_until: Instant::from_nanos(0),
};

thread_local! {
    static LOOK: Cell<Look> = const { Cell::new(NO_LOOK) };
    static GIVEN: Cell<Given> = const { Cell::new(NO_LOOK.given) };
}

/// Notes that the calling thread was parked for so long.
pub(super) fn parked(time: Duration) {
    let Given { time: before, yields, parks } = GIVEN.get();
    GIVEN.set(Given { time: before.saturating_add(time), yields, parks: parks + 1 });
}

/// Notes that a yield of the calling thread took so long.
pub(super) fn yielded(time: Duration) {
    if time > scaled(TUNING.yield_alone) {
        let Given { time: before, yields, parks } = GIVEN.get();
        GIVEN.set(Given { time: before.saturating_add(time), yields: yields + 1, parks });
    }
}

/// Time until which the calling thread counts as one that loses its processor to others. Looks once in
/// [`contention_period`](super::tuning::Tuning::contention_period).
pub(super) fn contended_until(now: Instant) -> Instant {
    // Nobody else runs there, so to say.
    if clock::is_virtual() {
        return Instant::default();
    }
    let mut look = LOOK.get();
    if now.since(look.at) >= TUNING.contention_period
        && let Some(usage) = usage()
    {
        let given = GIVEN.get();
        if look.at != NO_LOOK.at && look.has_lost(now, usage, given) {
            look.contended_until = now + TUNING.contention_lasts;
        }
        look = Look { at: now, usage, given, ..look };
        LOOK.set(look);
    }
    look.contended_until
}

impl Look {
    /// Whether a thread has lost its processor for a good part of the time since this look.
    fn has_lost(&self, now: Instant, usage: Usage, given: Given) -> bool {
        let elapsed = now.since(self.at);
        let accounted = usage.ran.saturating_sub(self.usage.ran) + given.time.saturating_sub(self.given.time);
        let preempted = usage.preempted - self.usage.preempted - (given.yields - self.given.yields);
        let waited = usage.waited - self.usage.waited - (given.parks - self.given.parks);
        preempted > waited.max(0) && elapsed.saturating_sub(accounted) > elapsed / 4
    }
}

/// Use of the processor by the calling thread.
fn usage() -> Option<Usage> {
    // SAFETY: all-zero bytes are a valid rusage, which the call fills in.
    let usage = unsafe {
        let mut usage = std::mem::zeroed::<libc::rusage>();
        if libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage) != 0 {
            return None;
        }
        usage
    };
    let time = |time: libc::timeval| {
        Duration::from_secs(time.tv_sec.unsigned_abs()) + Duration::from_micros(time.tv_usec.unsigned_abs())
    };
    Some(Usage { ran: time(usage.ru_utime) + time(usage.ru_stime), preempted: usage.ru_nivcsw, waited: usage.ru_nvcsw })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn millis(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    #[test]
    fn a_thread_that_others_keep_from_running_has_lost_its_processor() {
        let at = Instant::from_nanos(1_000_000_000);
        let look = Look {
            at,
            usage: Usage { ran: millis(500), preempted: 7, waited: 3 },
            given: Given { time: millis(20), yields: 1, parks: 2 },
            ..NO_LOOK
        };
        // After 20 ms.
        let has_lost = |ran: u64, preempted: i64, waited: i64, given: u64, parks: i64| {
            let usage = Usage { ran: millis(500 + ran), preempted: 7 + preempted, waited: 3 + waited };
            let yields = 1 + i64::from(given > 0);
            look.has_lost(at + millis(20), usage, Given { time: millis(20 + given), yields, parks: 2 + parks })
        };
        assert!(has_lost(4, 1, 0, 0, 0));
        assert!(!has_lost(4, 0, 0, 0, 0), "it was not preempted");
        assert!(!has_lost(19, 2, 0, 0, 0), "for a moment");
        assert!(!has_lost(4, 1, 9, 0, 0), "it waited for something");
        assert!(!has_lost(4, 1, 9, 5, 9), "it has yielded");
        assert!(!has_lost(4, 2, 9, 15, 9), "it was parked");
        assert!(has_lost(4, 2, 9, 5, 9), "and had to wait beside that");
    }

    #[test]
    fn a_thread_is_looked_at_now_and_then() {
        let test = || {
            let now = clock::now();
            assert_eq!(contended_until(now), Instant::default(), "nothing is known yet");
            let before = LOOK.get();
            contended_until(now + TUNING.contention_period / 2);
            assert_eq!(LOOK.get(), before);
            contended_until(now + TUNING.contention_period);
            let after = LOOK.get();
            assert_eq!(after.at, now + TUNING.contention_period);
            assert!(after.usage.ran >= before.usage.ran && after.usage.preempted >= before.usage.preempted);
        };
        std::thread::spawn(test).join().unwrap();
    }
}
