//! The caller's clock, and who looks at it.

use core::ops::Add;
use core::time::Duration;

/// Tells the time of a call. To look at a clock may take long, and many calls need no time: so it is asked only where it
/// is needed, and may look then. Within a call it says the same whenever it is asked.
pub trait Clock {
    /// The time of this call.
    fn now(&self) -> Instant;
}

impl Clock for Instant {
    fn now(&self) -> Instant {
        *self
    }
}

/// A point on a monotonic clock that the caller owns.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct Instant(u64);

impl Instant {
    /// `nanoseconds` after the clock's origin.
    #[must_use]
    pub const fn from_nanos(nanoseconds: u64) -> Self {
        Self(nanoseconds)
    }

    /// Nanoseconds since the clock's origin.
    #[must_use]
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// The time from `earlier` until now; zero if it is later.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Instant {
    type Output = Self;

    fn add(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)))
    }
}
