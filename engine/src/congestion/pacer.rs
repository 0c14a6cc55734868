//! When the next packets of a sender may leave at a rate.

use core::time::Duration;

use crate::time::Instant;

/// The clock of a sender, by the generic cell rate algorithm: each packet advances it by its time on the link.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Pacer {
    /// When the link would have taken all that was sent.
    done: Instant,
}

impl Pacer {
    /// Time by which packets may leave early, or a late timer be made up for: nobody wakes up for every packet.
    pub const BURST: Duration = Duration::from_micros(100);

    /// A clock of a sender that has sent nothing.
    #[must_use]
    pub const fn new(now: Instant) -> Self {
        Self { done: now }
    }

    /// Time that packets may take which leave now, where the clock may be ahead of time by less than `burst`.
    ///
    /// # Errors
    /// The time from which on half a burst may leave, if none may now.
    pub fn room(&self, now: Instant, burst: Duration) -> Result<Duration, Instant> {
        let ahead = self.done.since(now);
        if ahead >= burst { Err(now + (ahead - burst / 2)) } else { Ok(burst - ahead) }
    }

    /// Notes packets that take so long on the link. Of the time for which it was idle, up to `burst` is made up for.
    pub fn sent(&mut self, now: Instant, burst: Duration, time: Duration) {
        let burst = u64::try_from(burst.as_nanos()).unwrap_or(u64::MAX);
        let earliest = Instant::from_nanos(now.as_nanos().saturating_sub(burst));
        self.done = self.done.max(earliest) + time;
    }

    /// Ends a wait that is longer than this.
    pub(super) fn wait_at_most(&mut self, now: Instant, most: Duration) {
        self.done = self.done.min(now + most);
    }

    /// Time that so many bytes take at `rate` bits a second.
    #[must_use]
    pub fn time_of(bytes: u64, rate: u64) -> Duration {
        let nanos = u128::from(bytes) * 8 * 1_000_000_000 / u128::from(rate.max(1));
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bursts_make_up_for_late_timers_and_no_more() {
        let (rate, burst) = (8_000_000, Pacer::BURST);
        let now = Instant::from_nanos(1_000_000_000);
        let mut pacer = Pacer::new(now);
        assert_eq!(pacer.room(now, burst), Ok(burst));
        pacer.sent(now, burst, Pacer::time_of(200, rate));
        assert_eq!(pacer.room(now, burst), Err(now + Duration::from_micros(150)), "200 bytes take 200 us");
        let late = now + Duration::from_secs(5);
        pacer.sent(late, burst, Pacer::time_of(100, rate));
        assert_eq!(pacer.room(late, burst), Ok(burst), "100 bytes of what was missed");
        pacer.sent(late, burst, Pacer::time_of(100, rate));
        assert!(pacer.room(late, burst).is_err());
    }
}
