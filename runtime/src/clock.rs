//! The engine's time: CLOCK_MONOTONIC, or virtual time for fuzz targets.

use std::cell::Cell;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicU64, Ordering};

use urxe_engine::{Clock, Instant};

/// Virtual time in nanoseconds; 0 while time is real.
static VIRTUAL: AtomicU64 = AtomicU64::new(0);
/// Virtual nanoseconds that a reading of the clock takes.
const READ_TIME: u64 = 100;

/// Makes time virtual, for as long as the process lives: each look at the clock takes 100 ns, and a poll that finds nothing
/// goes on to the next timer ([`Device::polled`](crate::device::Device::polled)).
pub fn make_virtual() {
    let _ = VIRTUAL.compare_exchange(0, 1_000_000_000, Ordering::AcqRel, Ordering::Acquire);
}

/// Whether time is virtual.
pub fn is_virtual() -> bool {
    VIRTUAL.load(Ordering::Relaxed) != 0
}

/// Goes on to a virtual time.
pub(crate) fn advance_to(at: Instant) {
    VIRTUAL.fetch_max(at.as_nanos(), Ordering::AcqRel);
}

/// Returns the present time.
pub fn now() -> Instant {
    if is_virtual() {
        return Instant::from_nanos(VIRTUAL.fetch_add(READ_TIME, Ordering::AcqRel));
    }
    let mut time = MaybeUninit::<libc::timespec>::uninit();
    // SAFETY: with this clock and a valid pointer the call cannot fail (clock_gettime(2)).
    let time = unsafe {
        libc::clock_gettime(libc::CLOCK_MONOTONIC, time.as_mut_ptr());
        time.assume_init()
    };
    Instant::from_nanos(time.tv_sec.cast_unsigned() * 1_000_000_000 + time.tv_nsec.cast_unsigned())
}

/// A look at the clock, taken when somebody first needs it: where the clock is an emulated device, it takes as long as
/// hundreds of instructions.
#[derive(Debug, Default)]
pub struct LazyInstant(Cell<Option<Instant>>);

impl LazyInstant {
    /// The time, if anybody has needed it.
    pub const fn taken(&self) -> Option<Instant> {
        self.0.get()
    }

    /// Looks once more.
    pub fn renew(&self) -> Instant {
        let now = now();
        self.0.set(Some(now));
        now
    }
}

impl Clock for LazyInstant {
    #[inline]
    fn now(&self) -> Instant {
        self.taken().unwrap_or_else(|| self.renew())
    }
}

impl From<Instant> for LazyInstant {
    fn from(now: Instant) -> Self {
        Self(Cell::new(Some(now)))
    }
}

/// Converts `at` to `CLOCK_REALTIME` nanoseconds since 1970, by the present offset between the two clocks.
pub fn wall_clock(at: Instant) -> u64 {
    let since_1970 = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    let ago = now().as_nanos().saturating_sub(at.as_nanos());
    u64::try_from(since_1970.as_nanos()).unwrap_or(u64::MAX).saturating_sub(ago)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_look_is_taken_once_and_only_if_needed() {
        let look = LazyInstant::default();
        assert_eq!(look.taken(), None);
        let time = look.now();
        assert_eq!((look.taken(), look.now()), (Some(time), time));
        assert!(look.renew() >= time);
    }
}
