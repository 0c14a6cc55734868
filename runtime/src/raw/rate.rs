//! Rates of raw packet queue pairs (`ibv_modify_qp_rate_limit(3)`).

use std::time::Duration;

use urxe_engine::Instant;
use urxe_engine::congestion::Pacer;

/// Bits a second in the unit of rate limits.
const KILOBIT: u64 = 1000;
/// Bytes of a frame that no program gives: the FCS.
const FCS: u64 = 4;

/// A limit on the rate of frames.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RateLimit {
    /// Kilobits a second of frames with their FCS. At least [`LEAST`](Self::LEAST).
    pub kilobits: u32,
    /// Bytes that may leave at once; 0: what the device likes.
    pub burst: u32,
}

impl RateLimit {
    /// The lowest rate, and the highest, in kilobits a second.
    pub const LEAST: u32 = 1;
    /// 400 Gbit/s.
    pub const MOST: u32 = 400_000_000;
}

/// Clock of a queue pair with a limit.
#[derive(Debug)]
pub(super) struct Rate {
    limit: RateLimit,
    burst: Duration,
    pacer: Pacer,
}

impl Rate {
    pub(super) fn new(limit: RateLimit, now: Instant) -> Self {
        let rate = u64::from(limit.kilobits) * KILOBIT;
        let burst = if limit.burst == 0 { Pacer::BURST } else { Pacer::time_of(limit.burst.into(), rate) };
        Self { limit, burst: burst.max(Duration::from_nanos(2)), pacer: Pacer::new(now) }
    }

    pub(super) const fn limit(&self) -> RateLimit {
        self.limit
    }

    /// Time of a frame on the link.
    fn time_of(&self, length: usize) -> Duration {
        Pacer::time_of(length as u64 + FCS, u64::from(self.limit.kilobits) * KILOBIT)
    }

    /// Number of frames of these lengths that may leave now: at least one, or when to ask again.
    pub(super) fn allowance(&self, now: Instant, lengths: impl Iterator<Item = usize>) -> Result<usize, Instant> {
        let mut room = self.pacer.room(now, self.burst)?;
        let mut count = 0;
        for length in lengths {
            if room.is_zero() {
                break;
            }
            count += 1;
            room = room.saturating_sub(self.time_of(length));
        }
        Ok(count)
    }

    /// Notes a frame that has left.
    pub(super) fn sent(&mut self, now: Instant, length: usize) {
        let time = self.time_of(length);
        self.pacer.sent(now, self.burst, time);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes with FCS that leave in ten seconds of virtual time.
    fn bytes_in_ten_seconds(limit: RateLimit, length: usize) -> u64 {
        let mut now = Instant::from_nanos(1);
        let end = now + Duration::from_secs(10);
        let (mut rate, mut bytes) = (Rate::new(limit, now), 0);
        while now < end {
            match rate.allowance(now, std::iter::repeat_n(length, 64)) {
                Ok(count) => {
                    assert!(count > 0);
                    for _ in 0..count {
                        rate.sent(now, length);
                        bytes += length as u64 + FCS;
                    }
                }
                Err(at) => {
                    assert!(at > now);
                    now = at;
                }
            }
        }
        bytes
    }

    #[test]
    fn the_rate_is_kept_at_every_size_of_frames_and_bursts() {
        for (kilobits, burst, length) in
            [(1000, 0, 1514), (5000, 0, 60), (100_000, 30_000, 1514), (1_000_000, 0, 9014), (64, 3000, 1514)]
        {
            let bits = bytes_in_ten_seconds(RateLimit { kilobits, burst }, length) * 8;
            let wanted = u64::from(kilobits) * 10_000;
            // A frame and a burst more than the rate gives, at most.
            let more = 2 * 8 * (length as u64 + FCS + u64::from(burst)) + wanted / 1000;
            assert!(bits >= wanted - wanted / 100 && bits <= wanted + more, "{bits} bits instead of {wanted}");
        }
    }
}
