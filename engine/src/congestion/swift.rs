//! Swift: packets in flight by the round-trip time (Kumar et al., SIGCOMM 2020, section 3).
//!
//! A delay target, additive increase below it, multiplicative decrease above it, by how far above, once a round trip. The
//! target is the least round trip seen and a fixed allowance for queues: an end in software does not know which part of the
//! round trip is the network's, and paths scale by their own least. Windows below two packets, and the part of the target
//! that depends on the number of flows, are left out.

use urxe_wire::Psn;

use super::{Acknowledged, Controller, INITIAL, LEAST};
use crate::time::Instant;

/// One packet, of the window's fraction.
const PACKET: u64 = 1 << 8;
/// Weight of the excess delay in a decrease, in hundredths: beta of the paper.
const BETA: u64 = 80;
/// The largest part of the window that a decrease takes, in hundredths: max_mdf of the paper.
const MOST_DECREASE: u64 = 50;

/// The window of one requester.
#[derive(Clone, Debug)]
pub(super) struct Swift {
    /// Packets, in fractions.
    window: u64,
    most: u64,
    /// Nanoseconds that queues may add.
    allowance: u64,
    /// The least round trip seen, nanoseconds.
    least: u64,
    /// The last round trip seen, nanoseconds.
    delay: u64,
    /// The window doubles every round trip until the first delay.
    doubles: bool,
    /// Delays of packets before this one belong to a delay that has been answered.
    decreased_at: Option<Psn>,
}

impl Swift {
    /// A window of at most `most` packets; queues may add `allowance` microseconds.
    pub(super) fn new(most: u32, allowance: u32) -> Self {
        let most = u64::from(most.max(LEAST)) * PACKET;
        Self {
            window: most.min(u64::from(INITIAL) * PACKET),
            most,
            allowance: u64::from(allowance) * 1000,
            least: u64::MAX,
            delay: 0,
            doubles: true,
            decreased_at: None,
        }
    }

    /// Nanoseconds that a round trip may take.
    const fn target(&self) -> u64 {
        self.least.saturating_add(self.allowance)
    }

    /// Takes so many hundredths of the window, once for all packets before `snd_max`.
    fn decrease(&mut self, hundredths: u64, snd_max: Psn) {
        self.doubles = false;
        if self.decreased_at.is_none() {
            self.window -= self.window * hundredths.min(MOST_DECREASE) / 100;
            self.window = self.window.max(u64::from(LEAST) * PACKET);
            self.decreased_at = Some(snd_max);
        }
    }
}

impl Controller for Swift {
    fn packets(&self) -> u32 {
        u32::try_from(self.window / PACKET).unwrap_or(u32::MAX)
    }

    fn on_acknowledged(&mut self, Acknowledged { count, snd_una, snd_max, round_trip }: Acknowledged) {
        if self.decreased_at.is_some_and(|end| snd_una.distance_from(end) >= 0) {
            self.decreased_at = None;
        }
        if let Some(delay) = round_trip {
            self.delay = delay;
            self.least = self.least.min(delay);
        }
        let (delay, target) = (self.delay, self.target());
        if delay > target {
            self.decrease(BETA * (delay - target) / delay, snd_max);
        } else if self.decreased_at.is_none() {
            let acknowledged = u64::from(count) * PACKET;
            // One packet a round trip.
            let step = if self.doubles { acknowledged } else { acknowledged * PACKET / self.window };
            self.window = (self.window + step).min(self.most);
        }
    }

    fn on_loss(&mut self, snd_max: Psn) {
        self.decrease(MOST_DECREASE, snd_max);
    }

    fn on_timeout(&mut self) {
        // The path may be another one.
        (self.least, self.delay, self.doubles) = (u64::MAX, 0, false);
        self.window = u64::from(LEAST) * PACKET;
        self.decreased_at = None;
    }

    fn on_notification(&mut self, _now: Instant, snd_max: Psn) {
        self.decrease(MOST_DECREASE, snd_max);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn acked(count: u32, una: u32, micros: u64) -> Acknowledged {
        Acknowledged { count, snd_una: Psn::new(una), snd_max: Psn::new(una + 64), round_trip: Some(micros * 1000) }
    }

    #[test]
    fn grows_below_the_target_and_shrinks_by_the_excess() {
        let mut swift = Swift::new(256, 100);
        swift.on_acknowledged(acked(32, 32, 50));
        assert_eq!(swift.packets(), 64, "doubles");
        // The target is 150 µs: 0.8 · (200 - 150) / 200 = 0.2.
        swift.on_acknowledged(acked(1, 33, 200));
        assert_eq!(swift.packets(), 51);
        swift.on_acknowledged(acked(1, 34, 400));
        assert_eq!(swift.packets(), 51, "once a round trip");
        // 0.8 · (1000 - 150) / 1000 = 0.68, and half is the most.
        swift.on_acknowledged(acked(63, 97, 1000));
        assert_eq!(swift.packets(), 25);
        swift.on_acknowledged(acked(64, 161, 150));
        assert_eq!(swift.packets(), 28, "additive: 64 packets of 25.6 are two and a half round trips");
        swift.on_timeout();
        assert_eq!(swift.packets(), LEAST);
    }

    #[test]
    fn losses_and_notifications_halve_once_a_round_trip() {
        let mut swift = Swift::new(64, 100);
        swift.on_loss(Psn::new(10));
        swift.on_notification(Instant::default(), Psn::new(10));
        assert_eq!(swift.packets(), 16);
        for _ in 0..100 {
            swift.on_timeout();
            swift.on_loss(Psn::new(10));
            assert_eq!(swift.packets(), LEAST);
        }
    }
}
