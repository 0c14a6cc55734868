//! The round-trip time, smoothed as TCP's (RFC 6298).

use urxe_wire::Psn;

use crate::time::{Clock, Instant};

/// Variations of the round trip in the longest time that an answer takes (RFC 6298).
const VARIATIONS: u64 = 4;
/// A longer round trip counts as this long, in nanoseconds: far longer than a peer that lives takes.
const LONGEST: u64 = 60_000_000_000;
/// Packets acknowledged between two measurements where nothing is lost: to look at a clock may take as long as all the rest
/// of an exchange, and what is known is smoothed anyway.
const REST: u32 = 16;

/// Measures round trips.
#[derive(Debug, Default)]
pub(super) struct RttEstimator {
    known: Option<Rtt>,
    /// The packet that is measured, and when it left, once that is known.
    sample: Option<(Psn, Option<Instant>)>,
    /// Packets to be acknowledged before the next is measured.
    rests: u32,
}

/// A round-trip time in nanoseconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Rtt {
    pub(super) smoothed: u64,
    variation: u64,
}

impl Rtt {
    const fn first(time: u64) -> Self {
        Self { smoothed: time, variation: time / 2 }
    }

    const fn then(self, time: u64) -> Self {
        let variation = (3 * self.variation + self.smoothed.abs_diff(time)) / 4;
        Self { smoothed: (7 * self.smoothed + time) / 8, variation }
    }

    /// The longest time that an answer takes: twice the round trip at least.
    pub(super) fn longest(self) -> u64 {
        (self.smoothed + VARIATIONS * self.variation).max(2 * self.smoothed)
    }
}

impl RttEstimator {
    /// The round trip, once one was measured.
    pub(super) const fn known(&self) -> Option<Rtt> {
        self.known
    }

    /// Notes that a packet is sent for the first time. Returns whether its time of [leaving](Self::left) is wanted;
    /// `always` measures without rests.
    pub(super) const fn sent(&mut self, psn: Psn, always: bool) -> bool {
        let measures = self.sample.is_none() && (self.rests == 0 || always);
        if measures {
            self.sample = Some((psn, None));
        }
        measures
    }

    /// Notes that what was sent has left.
    pub(super) fn left(&mut self, now: Instant) {
        if let Some((_, left_at)) = &mut self.sample {
            left_at.get_or_insert(now);
        }
    }

    /// Notes that `count` packets more are acknowledged, all before `snd_una`. Returns the round trip in nanoseconds, if one
    /// of them was measured.
    #[inline]
    pub(super) fn acknowledged(&mut self, count: u32, snd_una: Psn, clock: &impl Clock) -> Option<u64> {
        self.rests = self.rests.saturating_sub(count);
        if self.sample.is_some_and(|(psn, _)| psn.distance_from(snd_una) < 0) { self.arrived(clock) } else { None }
    }

    /// Notes that the packet that is measured has arrived. Returns the round trip in nanoseconds, if it is known when it left.
    // Apart: one packet in many is measured.
    #[inline(never)]
    pub(super) fn arrived(&mut self, clock: &impl Clock) -> Option<u64> {
        let (_, left_at) = self.sample.take()?;
        let time = clock.now().as_nanos().saturating_sub(left_at?.as_nanos()).min(LONGEST);
        self.known = Some(self.known.map_or(Rtt::first(time), |known| known.then(time)));
        self.rests = REST;
        Some(time)
    }

    /// The packet that is measured.
    pub(super) const fn measured(&self) -> Option<Psn> {
        match self.sample {
            Some((psn, _)) => Some(psn),
            None => None,
        }
    }

    /// Forgets the packet that is measured: it is sent again, and an answer does not tell to which time of sending.
    pub(super) const fn forget_sample(&mut self) {
        self.sample = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Exchanges of one packet each; returns how many of them were measured.
    fn exchange(rtt: &mut RttEstimator, packets: u32, always: bool) -> usize {
        let measured = |psn: &u32| {
            let measures = rtt.sent(Psn::new(*psn), always);
            rtt.left(Instant::from_nanos(1000));
            rtt.acknowledged(1, Psn::new(psn + 1), &Instant::from_nanos(6000));
            measures
        };
        (0..packets).filter(measured).count()
    }

    #[test]
    fn one_packet_in_many_is_measured() {
        let mut rtt = RttEstimator::default();
        assert_eq!(exchange(&mut rtt, 10 * (REST + 1), false), 10);
        assert_eq!(rtt.known().map(|known| known.smoothed), Some(5000));
        assert_eq!(exchange(&mut rtt, 100, true), 100);
    }

    #[test]
    fn unsent_packets_are_not_measured() {
        let mut rtt = RttEstimator::default();
        assert!(rtt.sent(Psn::new(0), false));
        rtt.acknowledged(1, Psn::new(1), &Instant::from_nanos(6000));
        assert!(rtt.known().is_none() && rtt.sent(Psn::new(1), false));
    }
}
