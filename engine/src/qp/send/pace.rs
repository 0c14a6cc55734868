//! How fast packets leave that nobody acknowledges.
//!
//! A requester on RC is held back by its window. UC and UD have no such feedback (IBA 9.8.1), and a receiver in
//! software has a socket buffer of finite size, which a whole long message at once would overrun. So packets leave in
//! bursts that fit into half of such a buffer, at a rate at which a receiver can be expected to take them. It
//! promises nothing: a receiver that sleeps, or has many senders, loses packets all the same, as these services do.

use core::time::Duration;

use crate::congestion::Pacer;
use crate::time::Instant;

/// Time of a receiver for a packet, whatever its length.
const PER_PACKET: Duration = Duration::from_nanos(600);
/// Time of a receiver for 1024 bytes: ICRC and copy.
const PER_KIB: Duration = Duration::from_nanos(300);

/// A bound on the rate of packets.
#[derive(Clone, Copy, Debug)]
pub(in crate::qp) struct Pace {
    /// The receiver's clock, which each packet advances by its cost.
    pacer: Pacer,
    /// How far ahead of time that may be.
    burst: Duration,
    /// Least time for a byte, in picoseconds: the network's.
    per_byte: u64,
}

impl Pace {
    /// Bursts of `packets` full packets of 4096 bytes.
    pub(in crate::qp) fn new(packets: u32) -> Self {
        Self { pacer: Pacer::default(), burst: cost(4096) * packets.max(1), per_byte: 0 }
    }

    /// Notes that a packet of `length` bytes was sent.
    pub(in crate::qp) fn sent(&mut self, now: Instant, length: usize) {
        let least = Duration::from_nanos((length as u64).saturating_mul(self.per_byte) / 1000);
        // Time in which nothing came makes no receiver faster.
        self.pacer.sent(now, Duration::ZERO, cost(length).max(least));
    }

    /// Has packets leave at `rate` bits a second at most; `None`: as fast as a receiver takes them.
    pub(in crate::qp) fn limit(&mut self, rate: Option<u64>) {
        const PICOSECONDS: u64 = 8_000_000_000_000;
        self.per_byte = rate.map_or(0, |rate| PICOSECONDS / rate.max(1));
    }

    /// Time until which to wait before the next packet, if not now: until half a burst may leave at once, so that one does
    /// not wake up for every packet.
    pub(in crate::qp) fn wait(&self, now: Instant) -> Option<Instant> {
        self.pacer.room(now, self.burst).err()
    }
}

fn cost(length: usize) -> Duration {
    PER_PACKET + PER_KIB * u32::try_from(length.div_ceil(1024)).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_and_then_a_wait() {
        let mut pace = Pace::new(16);
        let now = Instant::default() + Duration::from_secs(1);
        let mut sent = 0;
        let until = loop {
            match pace.wait(now) {
                Some(until) => break until,
                None => pace.sent(now, 4096),
            }
            sent += 1;
        };
        assert_eq!(sent, 16);
        let mut sent = 0;
        while pace.wait(until).is_none() {
            pace.sent(until, 4096);
            sent += 1;
        }
        assert_eq!(sent, 8);
    }

    #[test]
    fn small_packets_are_cheaper_but_not_free() {
        let mut pace = Pace::new(16);
        let now = Instant::default() + Duration::from_secs(1);
        let mut sent = 0;
        while pace.wait(now).is_none() {
            pace.sent(now, 1);
            sent += 1;
        }
        assert!((17..64).contains(&sent), "{sent}");
    }
}
