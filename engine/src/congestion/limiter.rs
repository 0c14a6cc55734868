//! A limit on the rate of packets.

use core::time::Duration;

use super::ReactionPoint;
use super::pacer::Pacer;
use crate::time::Instant;

/// Longest time from now on for which nothing may leave: more than two packets of 4096 bytes take at 1 Mbit/s.
const MOST_AHEAD: Duration = Duration::from_millis(100);
/// Bytes that a packet takes of a link besides its own: headers of Ethernet, IPv4 and UDP, ICRC, FCS.
const OVERHEAD: u64 = 14 + 20 + 8 + 4 + 4;

/// Packets that were sent, and their bytes without ICRC.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Sent {
    pub(crate) packets: u32,
    pub(crate) bytes: u64,
}

impl Sent {
    /// Counts a packet of `length` bytes.
    #[inline]
    pub(crate) const fn add(&mut self, length: usize) {
        self.packets += 1;
        self.bytes += length as u64;
    }
}

/// A limit on the rate of one queue pair.
#[derive(Clone, Debug)]
pub(crate) struct RateLimiter {
    pub(super) point: ReactionPoint,
    pacer: Pacer,
    /// Requests had the last turn, and not READ responses.
    turn: bool,
}

impl RateLimiter {
    /// A limit from now on.
    pub(super) const fn new(point: ReactionPoint, now: Instant) -> Self {
        Self { point, pacer: Pacer::new(now), turn: false }
    }

    /// Packets of up to `length` bytes that may leave now, or when to ask again.
    //= spec/congestion.md#ecn-004
    //# A rate that is limited MUST stay between rpg_min_rate and the speed of the interface, and hold back no ACK.
    pub(crate) fn allowance(&mut self, now: Instant, length: usize) -> Result<u32, Instant> {
        self.point.advance(now);
        let room = self.pacer.room(now, Pacer::BURST)?;
        let packet = time_of(1, length as u64, self.point.rate()).as_nanos().max(1);
        let packets = room.as_nanos() / packet;
        Ok(u32::try_from(packets).unwrap_or(u32::MAX).max(1))
    }

    /// Whether requests have their turn, rather than READ responses; every other time.
    pub(crate) const fn takes_turn(&mut self) -> bool {
        self.turn = !self.turn;
        self.turn
    }

    /// Notes what was sent.
    pub(crate) fn sent(&mut self, now: Instant, Sent { packets, bytes }: Sent) {
        self.pacer.sent(now, Pacer::BURST, time_of(packets.into(), bytes, self.point.rate()));
        self.pacer.wait_at_most(now, MOST_AHEAD);
        self.point.sent(now, bytes);
    }
}

/// Time that packets take at `rate` bits a second.
fn time_of(packets: u64, bytes: u64, rate: u64) -> Duration {
    Pacer::time_of(bytes + packets * OVERHEAD, rate)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::congestion::{CongestionSettings, Parameters};

    /// Bytes that leave in a second of virtual time at a rate that does not change.
    fn bytes_in_a_second(megabits: u32, length: usize) -> u64 {
        let parameters = Parameters {
            rate_to_set_on_first_cnp: megabits,
            rpg_time_reset: 131_071,
            rpg_byte_reset: 0,
            rpg_ai_rate: 1,
            ..Parameters::default()
        };
        let mut now = Instant::from_nanos(1);
        let settings = CongestionSettings { ecn: true, parameters, ..CongestionSettings::default() };
        let mut limiter = RateLimiter::new(ReactionPoint::new(&settings, now), now);
        let (end, mut bytes) = (now + Duration::from_secs(1), 0);
        while now < end {
            match limiter.allowance(now, length) {
                Ok(packets) => {
                    let sent = Sent { packets, bytes: u64::from(packets) * length as u64 };
                    limiter.sent(now, sent);
                    bytes += sent.bytes;
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
    fn the_rate_is_that_of_the_link() {
        for (megabits, length) in [(10, 1024), (100, 1024), (1000, 64), (5000, 4096)] {
            let bytes = bytes_in_a_second(megabits, length);
            let on_the_link = bytes / length as u64 * (length as u64 + OVERHEAD) * 8;
            // A few Mbit/s of increase by the timer are within.
            let rate = on_the_link / 1_000_000;
            let wanted = u64::from(megabits);
            assert!((wanted..=wanted + wanted / 20 + 8).contains(&rate), "{rate} Mbit/s instead of {megabits}");
        }
    }
}
