//! When the peer is silent for too long.
//!
//! A receiver that misses a packet says so as soon as a later one arrives. When the last packets of a window are lost, or
//! the NAK, or what was sent again, nobody says anything more until the ACK timeout, which is tens of milliseconds where
//! the round trip takes tens of microseconds. So the round trip is measured, and how much it varies, and when for longer
//! nothing was heard the oldest packet alone is sent once more, as TCP's tail loss probe is (RFC 8985): either
//! answer tells what is missing.

use urxe_wire::Psn;

use crate::time::{Clock, Instant};

/// Where nothing is lost, so many round trips are silence: one hardly deviates, until somebody else wants the processor, and
/// who waits for one need not be asked.
const ROUND_TRIPS: u64 = 4;
/// Not sooner, in nanoseconds.
const LEAST: u64 = 2_000_000;
/// Where packets are lost, silence mostly means that it happened again. A round trip, and so many times what it deviates
/// by, is as long as an answer takes (RFC 6298).
const DEVIATIONS: u64 = 4;
/// Not sooner, in nanoseconds.
const LEAST_LOSSY: u64 = 500_000;
/// So many packets after a loss, nothing is lost any more.
const CALM: u32 = 1 << 14;
/// A round trip that took longer, in nanoseconds, counts as this long: far longer than a peer that lives takes.
const LONGEST: u64 = 60_000_000_000;
/// Where nothing is lost, one packet in so many is measured: to look at a clock may take as long as all the rest of an
/// exchange, and what is known is smoothed anyway.
const REST: u32 = 16;
/// The time doubles with each probe that is not answered, so often.
const MOST_PROBES: u32 = 6;

/// What is known of the time that answers take.
#[derive(Debug, Default)]
pub(in crate::qp) struct TailLossProbe {
    round_trip: Option<RoundTrip>,
    /// The packet by which it is measured, and when it left, once that is known.
    sample: Option<(Psn, Option<Instant>)>,
    /// Packets to be acknowledged before the next is measured.
    rests: u32,
    /// When to probe.
    at: Option<Instant>,
    /// Probes since the last answer.
    probes: u32,
    /// A probe is to be sent, or on its way.
    probing: bool,
    /// Packets acknowledged until the last loss is forgotten.
    lossy: u32,
    /// The network loses nothing.
    lossless: bool,
}

/// A round trip, smoothed as TCP's (RFC 6298), in nanoseconds.
#[derive(Clone, Copy, Debug)]
struct RoundTrip {
    smooth: u64,
    deviation: u64,
}

impl RoundTrip {
    const fn first(time: u64) -> Self {
        Self { smooth: time, deviation: time / 2 }
    }

    const fn then(self, time: u64) -> Self {
        let deviation = (3 * self.deviation + self.smooth.abs_diff(time)) / 4;
        Self { smooth: (7 * self.smooth + time) / 8, deviation }
    }

    /// How long it may take.
    fn longest(self, lossy: bool) -> u64 {
        if lossy {
            (self.smooth + DEVIATIONS * self.deviation).max(2 * self.smooth).max(LEAST_LOSSY)
        } else {
            (ROUND_TRIPS * self.smooth).max(LEAST)
        }
    }
}

impl TailLossProbe {
    /// When a probe is due, unless the ACK timeout is before.
    pub(in crate::qp) const fn deadline(&self) -> Option<Instant> {
        self.at
    }

    /// Whether a probe is to be sent, or on its way: nothing else leaves.
    pub(in crate::qp) const fn is_probing(&self) -> bool {
        self.probing
    }

    /// A packet is sent for the first time. Returns whether it wants to know when it [`left`](Self::left).
    pub(in crate::qp) const fn sent(&mut self, psn: Psn) -> bool {
        let measures = self.sample.is_none() && (self.rests == 0 || self.lossy > 0);
        if measures {
            self.sample = Some((psn, None));
        }
        measures
    }

    /// What was sent has left.
    pub(in crate::qp) fn left(&mut self, now: Instant) {
        if let Some((_, left_at)) = &mut self.sample {
            left_at.get_or_insert(now);
        }
    }

    /// Whether the network may lose packets. What was lost lately says that it does, whatever it promises.
    pub(in crate::qp) const fn may_lose(&mut self, may_lose: bool) {
        self.lossless = !may_lose;
    }

    /// TailLossProbe begins; nothing is known of it before the first round trip.
    //= spec/requester.md#req-023
    //# Where the network loses nothing, a packet SHOULD NOT be sent again before the ACK timeout.
    pub(in crate::qp) fn begin(&mut self, now: Instant) {
        let is_lossless = self.lossless && self.lossy == 0;
        self.at = match self.round_trip {
            Some(known) if self.probes < MOST_PROBES && !is_lossless => {
                Some(Instant::from_nanos(now.as_nanos().saturating_add(known.longest(self.lossy > 0) << self.probes)))
            }
            Some(_) | None => None,
        };
    }

    /// It was long enough.
    pub(in crate::qp) fn probe(&mut self, now: Instant) {
        self.probing = true;
        self.probes += 1;
        self.begin(now);
    }

    /// A packet was lost.
    pub(in crate::qp) const fn lost(&mut self) {
        self.lossy = CALM;
    }

    /// `count` packets more are acknowledged, all before `snd_una`. Returns whether that had been asked for by a probe.
    pub(in crate::qp) fn heard(&mut self, count: u32, snd_una: Psn, clock: &impl Clock) -> bool {
        self.lossy = self.lossy.saturating_sub(count);
        self.rests = self.rests.saturating_sub(count);
        if let Some((_, left_at)) = self.sample.filter(|(psn, _)| psn.distance_from(snd_una) < 0) {
            self.sample = None;
            if let Some(left_at) = left_at {
                let time = clock.now().as_nanos().saturating_sub(left_at.as_nanos()).min(LONGEST);
                self.round_trip = Some(self.round_trip.map_or(RoundTrip::first(time), |known| known.then(time)));
                self.rests = REST;
            }
        }
        self.probes = 0;
        core::mem::take(&mut self.probing)
    }

    /// Packets are sent again: an answer does not tell to which time of sending.
    pub(in crate::qp) const fn gone_back(&mut self) {
        self.sample = None;
        self.probing = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Exchanges of one packet each; returns how many of them were measured.
    fn exchange(probe: &mut TailLossProbe, packets: u32) -> usize {
        let measured = |psn: &u32| {
            let measures = probe.sent(Psn::new(*psn));
            probe.left(Instant::from_nanos(1000));
            probe.heard(1, Psn::new(psn + 1), &Instant::from_nanos(6000));
            measures
        };
        (0..packets).filter(measured).count()
    }

    #[test]
    fn one_packet_in_many_is_measured_where_nothing_is_lost() {
        let mut probe = TailLossProbe::default();
        assert_eq!(exchange(&mut probe, 10 * (REST + 1)), 10);
        assert_eq!(probe.round_trip.map(|known| known.smooth), Some(5000));
        probe.lost();
        assert_eq!(exchange(&mut probe, 100), 100, "what happened lately counts");
    }

    #[test]
    fn unsent_packets_are_not_measured() {
        let mut probe = TailLossProbe::default();
        assert!(probe.sent(Psn::new(0)));
        probe.heard(1, Psn::new(1), &Instant::from_nanos(6000));
        assert!(probe.round_trip.is_none() && probe.sent(Psn::new(1)));
    }
}
