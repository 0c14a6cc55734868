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
    loss: Loss,
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
    /// Parks that took longer than [`contention_gap`](super::tuning::Tuning::contention_gap).
    late: i64,
}

/// Result of a look at the calling thread.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Loss {
    /// Time until which the thread counts as one that loses its processor to others.
    pub(super) until: Instant,
    /// The thread may run on one processor only.
    pub(super) has_one_processor: bool,
}

const NO_LOOK: Look = Look {
    at: Instant::from_nanos(0),
    usage: Usage { ran: Duration::ZERO, preempted: 0, waited: 0 },
    given: Given { time: Duration::ZERO, yields: 0, parks: 0, late: 0 },
    loss: Loss { until: Instant::from_nanos(0), has_one_processor: false },
};

thread_local! {
    static LOOK: Cell<Look> = const { Cell::new(NO_LOOK) };
    static GIVEN: Cell<Given> = const { Cell::new(NO_LOOK.given) };
}

/// Notes that the calling thread was parked for so long. Of a long time it waited for a processor after the park.
pub(super) fn parked(time: Duration) {
    let given = GIVEN.get();
    let is_late = time > TUNING.contention_gap;
    let parked = if is_late { TUNING.park } else { time };
    let late = given.late + i64::from(is_late);
    GIVEN.set(Given { time: given.time.saturating_add(parked), parks: given.parks + 1, late, ..given });
}

/// Notes that a yield of the calling thread took so long.
pub(super) fn yielded(time: Duration) {
    if time > scaled(TUNING.yield_alone) {
        let given = GIVEN.get();
        GIVEN.set(Given { time: given.time.saturating_add(time), yields: given.yields + 1, ..given });
    }
}

/// Tells whether the calling thread loses its processor to others. Looks once in
/// [`contention_period`](super::tuning::Tuning::contention_period).
pub(super) fn look(now: Instant) -> Loss {
    // Nobody else runs there, so to say.
    if clock::is_virtual() {
        return NO_LOOK.loss;
    }
    let mut look = LOOK.get();
    if now.since(look.at) >= TUNING.contention_period
        && let Some(usage) = usage()
    {
        let given = GIVEN.get();
        if look.at != NO_LOOK.at && look.has_lost(now, usage, given) {
            look.loss = Loss { until: now + TUNING.contention_lasts, has_one_processor: has_one_processor() };
        }
        look = Look { at: now, usage, given, ..look };
        LOOK.set(look);
    }
    look.loss
}

impl Look {
    /// Whether a thread has lost its processor for a good part of the time since this look.
    fn has_lost(&self, now: Instant, usage: Usage, given: Given) -> bool {
        let elapsed = now.since(self.at);
        let accounted = usage.ran.saturating_sub(self.usage.ran) + given.time.saturating_sub(self.given.time);
        let preempted = usage.preempted - self.usage.preempted - (given.yields - self.given.yields);
        let waited = usage.waited - self.usage.waited - (given.parks - self.given.parks);
        let late = given.late - self.given.late;
        preempted + late > waited.max(0) && elapsed.saturating_sub(accounted) > elapsed / 4
    }
}

/// Whether the calling thread may run on one processor only. False where that cannot be told: on machines of more than 1024.
fn has_one_processor() -> bool {
    // SAFETY: all-zero bytes are an empty set, which the call fills in; the size is that of the set.
    unsafe {
        let mut set = std::mem::zeroed::<libc::cpu_set_t>();
        libc::sched_getaffinity(0, size_of_val(&set), &raw mut set) == 0 && libc::CPU_COUNT(&set) == 1
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
            given: Given { time: millis(20), yields: 1, parks: 2, late: 3 },
            ..NO_LOOK
        };
        // After 20 ms.
        let has_lost_late = |ran: u64, preempted: i64, waited: i64, given: u64, parks: i64, late: i64| {
            let usage = Usage { ran: millis(500 + ran), preempted: 7 + preempted, waited: 3 + waited };
            let yields = 1 + i64::from(given > 0);
            let given = Given { time: millis(20 + given), yields, parks: 2 + parks, late: 3 + late };
            look.has_lost(at + millis(20), usage, given)
        };
        let has_lost = |ran, preempted, waited, given, parks| has_lost_late(ran, preempted, waited, given, parks, 0);
        assert!(has_lost(4, 1, 0, 0, 0));
        assert!(!has_lost(4, 0, 0, 0, 0), "it was not preempted");
        assert!(!has_lost(19, 2, 0, 0, 0), "for a moment");
        assert!(!has_lost(4, 1, 9, 0, 0), "it waited for something");
        assert!(!has_lost(4, 1, 9, 5, 9), "it has yielded");
        assert!(!has_lost(4, 2, 9, 15, 9), "it was parked");
        assert!(has_lost(4, 2, 9, 5, 9), "and had to wait beside that");
        assert!(
            !has_lost_late(4, 0, 9, 1, 9, 0) && has_lost_late(4, 1, 9, 1, 9, 1),
            "it had no processor after a park"
        );
    }

    #[test]
    fn a_park_that_is_too_long_ended_late() {
        let test = || {
            parked(TUNING.contention_gap);
            assert_eq!(GIVEN.get(), Given { time: TUNING.contention_gap, parks: 1, ..NO_LOOK.given });
            parked(millis(30));
            assert_eq!(
                GIVEN.get(),
                Given { time: TUNING.contention_gap + TUNING.park, parks: 2, late: 1, ..NO_LOOK.given }
            );
        };
        std::thread::spawn(test).join().unwrap();
    }

    #[test]
    fn a_thread_is_looked_at_now_and_then() {
        let test = || {
            let now = clock::now();
            assert_eq!(look(now), NO_LOOK.loss, "nothing is known yet");
            let before = LOOK.get();
            look(now + TUNING.contention_period / 2);
            assert_eq!(LOOK.get(), before);
            look(now + TUNING.contention_period);
            let after = LOOK.get();
            assert_eq!(after.at, now + TUNING.contention_period);
            assert!(after.usage.ran >= before.usage.ran && after.usage.preempted >= before.usage.preempted);
        };
        std::thread::spawn(test).join().unwrap();
    }
}
