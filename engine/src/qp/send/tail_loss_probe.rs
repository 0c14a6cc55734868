//! Tail loss probes: the oldest packet is sent again when nothing was heard for several round trips.
//!
//! A receiver that misses a packet says so as soon as a later one arrives. When the last packets of a window are lost, or
//! the NAK, or what was sent again, nobody says anything more until the ACK timeout, which is tens of milliseconds where
//! the round trip takes tens of microseconds. So, as in TCP (RFC 8985), the oldest packet alone is sent once more when
//! nothing was heard for longer than round trips take: either answer tells what is missing.

use urxe_wire::Psn;

use super::rtt::{Rtt, RttEstimator};
use crate::time::{Clock, Instant};

/// Round trips without an answer before a probe, where nothing is lost: one hardly deviates, until another program wants
/// the processor, and a peer that waits for one need not be asked.
const ROUND_TRIPS: u64 = 4;
/// The least time before a probe there, in nanoseconds.
pub(super) const LEAST: u64 = 2_000_000;
/// The least time before a probe where packets are lost, in nanoseconds: silence mostly means that it happened again.
const LEAST_LOSSY: u64 = 500_000;
/// The least time where packets are lost and a probe sends one packet alone again, in nanoseconds: it costs little.
const LEAST_SELECTIVE: u64 = 100_000;
/// Packets acknowledged after a loss until the network counts as one that loses nothing.
const CALM: u32 = 1 << 14;
/// The time doubles with each probe that is not answered, so many times.
const MOST_PROBES: u32 = 6;
/// Where a probe sends one packet alone again, it doubles with every other one. A peer may be off its processor for longer than a
/// few probes last, and after them nothing happens before the ACK timeout.
const MOST_SELECTIVE: u32 = 18;

/// The probe timer of one requester.
#[derive(Debug, Default)]
pub(super) struct TailLossProbe {
    rtt: RttEstimator,
    /// The time of the next probe.
    at: Option<Instant>,
    /// Probes since the last answer.
    probes: u32,
    /// A probe is to be sent, or on its way.
    probing: bool,
    /// Packets to be acknowledged until the last loss is forgotten.
    lossy: u32,
    /// The network loses nothing.
    lossless: bool,
    /// Only what is missing is sent again.
    selective: bool,
}

impl TailLossProbe {
    /// The time of the next probe, unless the ACK timeout is before.
    pub(super) const fn deadline(&self) -> Option<Instant> {
        self.at
    }

    /// Whether a probe is to be sent, or on its way: nothing else leaves.
    pub(super) const fn is_probing(&self) -> bool {
        self.probing
    }

    /// Notes that a packet is sent for the first time. Returns whether its time of [leaving](Self::left) is wanted;
    /// `always` wants every round trip.
    pub(super) const fn sent(&mut self, psn: Psn, always: bool) -> bool {
        self.rtt.sent(psn, always || self.lossy > 0)
    }

    /// Notes that what was sent has left.
    pub(super) fn left(&mut self, now: Instant) {
        self.rtt.left(now);
    }

    /// Notes whether the network may lose packets. A recent loss counts more than what the network promises.
    pub(super) const fn may_lose(&mut self, may_lose: bool) {
        self.lossless = !may_lose;
    }

    /// Starts the timer, unless no round trip is known yet.
    //= spec/requester.md#req-023
    //# Where the network loses nothing, a packet SHOULD NOT be sent again before the ACK timeout.
    pub(super) fn start(&mut self, now: Instant) {
        let is_lossless = self.lossless && self.lossy == 0;
        let most = if self.selective { MOST_SELECTIVE } else { MOST_PROBES };
        self.at = match self.rtt.known() {
            Some(rtt) if self.probes < most && !is_lossless => {
                let wait = match self.lossy {
                    0 => (ROUND_TRIPS * rtt.smoothed).max(LEAST),
                    _ if self.selective => rtt.longest().max(LEAST_SELECTIVE),
                    _ => rtt.longest().max(LEAST_LOSSY),
                };
                let doublings = if self.selective { self.probes / 2 } else { self.probes };
                Some(Instant::from_nanos(now.as_nanos().saturating_add(wait << doublings)))
            }
            Some(_) | None => None,
        };
    }

    /// Sets the time of the next probe.
    pub(super) const fn start_at(&mut self, at: Option<Instant>) {
        self.at = at;
    }

    /// Probes since the last answer.
    pub(super) const fn unanswered(&self) -> u32 {
        self.probes
    }

    /// Begins a probe.
    pub(super) fn probe(&mut self, now: Instant) {
        self.probing = true;
        self.probes += 1;
        self.start(now);
    }

    /// Notes that only what is missing is sent again from now on.
    pub(super) const fn set_selective(&mut self) {
        self.selective = true;
    }

    /// Notes that the oldest packet is sent again as a probe, and others may leave meanwhile.
    pub(super) fn probe_silently(&mut self, now: Instant) {
        self.probes += 1;
        self.start(now);
    }

    /// The round trip, once one was measured.
    pub(super) const fn round_trip(&self) -> Option<Rtt> {
        self.rtt.known()
    }

    /// The packet whose round trip is being measured.
    pub(super) const fn measured(&self) -> Option<Psn> {
        self.rtt.measured()
    }

    /// Notes that this packet arrived at the peer, whatever is missing before it.
    pub(super) fn arrived(&mut self, clock: &impl Clock) {
        self.rtt.arrived(clock);
    }

    /// Notes that the `psns` from `psn` on are sent again.
    pub(super) fn sent_again(&mut self, psn: Psn, psns: u32) {
        if self.rtt.measured().is_some_and(|measured| measured.advance_from(psn) < psns) {
            self.rtt.forget_sample();
        }
    }

    /// Forgets the packet whose round trip is being measured.
    pub(super) const fn forget_sample(&mut self) {
        self.rtt.forget_sample();
    }

    /// Notes that a packet was lost.
    pub(super) const fn lost(&mut self) {
        self.lossy = CALM;
    }

    /// Notes that `count` packets more are acknowledged, all before `snd_una`. Returns whether a probe had asked for that,
    /// and the round trip in nanoseconds if it was measured.
    #[inline]
    pub(super) fn acknowledged(&mut self, count: u32, snd_una: Psn, clock: &impl Clock) -> (bool, Option<u64>) {
        self.lossy = self.lossy.saturating_sub(count);
        let round_trip = self.rtt.acknowledged(count, snd_una, clock);
        self.probes = 0;
        (core::mem::take(&mut self.probing), round_trip)
    }

    /// Notes that packets are sent again.
    pub(super) const fn gone_back(&mut self) {
        self.rtt.forget_sample();
        self.probing = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_packet_is_measured_after_a_loss() {
        let mut probe = TailLossProbe::default();
        assert!(probe.sent(Psn::new(0), false));
        probe.left(Instant::from_nanos(1000));
        probe.acknowledged(1, Psn::new(1), &Instant::from_nanos(6000));
        assert!(!probe.sent(Psn::new(1), false), "one in many is enough");
        probe.lost();
        assert!(probe.sent(Psn::new(2), false));
    }
}
