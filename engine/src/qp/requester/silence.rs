//! When the peer is silent for too long.
//!
//! A receiver that misses a packet says so as soon as a later one arrives. When the last packets of a window are lost, or
//! the NAK, or what was sent again, nobody says anything more until the ACK timeout, which is tens of milliseconds where
//! the round trip takes tens of microseconds. So the round trip is measured, and after several of them without a word the
//! oldest packet alone is sent once more, as TCP's tail loss probe is (RFC 8985): either answer tells what is missing.

use core::time::Duration;

use urxe_wire::Psn;

use crate::time::Instant;

/// How many round trips.
const ROUND_TRIPS: u32 = 4;
/// Not sooner: software among other processes may wait so long for a processor.
const LEAST: Duration = Duration::from_millis(2);
/// The time doubles with each probe that is not answered, so often.
const MOST_PROBES: u32 = 6;

/// What is known of the time that answers take.
#[derive(Debug, Default)]
pub(super) struct Silence {
    /// A round trip, smoothed as TCP's (RFC 6298).
    round_trip: Option<Duration>,
    /// The packet by which it is measured, and when it was sent.
    sample: Option<(Psn, Instant)>,
    /// When to probe.
    at: Option<Instant>,
    /// Probes since the last answer.
    probes: u32,
    /// A probe is to be sent, or on its way.
    probing: bool,
}

impl Silence {
    /// When a probe is due, unless the ACK timeout is before.
    pub(super) const fn deadline(&self) -> Option<Instant> {
        self.at
    }

    /// Whether a probe is to be sent, or on its way: nothing else leaves.
    pub(super) const fn is_probing(&self) -> bool {
        self.probing
    }

    /// A packet left for the first time.
    pub(super) const fn sent(&mut self, psn: Psn, now: Instant) {
        if self.sample.is_none() {
            self.sample = Some((psn, now));
        }
    }

    /// Silence begins; nothing is known of it before the first round trip.
    pub(super) fn begin(&mut self, now: Instant) {
        let patience = self.round_trip.map(|time| (ROUND_TRIPS * time).max(LEAST));
        self.at = patience.filter(|_| self.probes < MOST_PROBES).map(|patience| now + patience * (1 << self.probes));
    }

    /// It was long enough.
    pub(super) fn probe(&mut self, now: Instant) {
        self.probing = true;
        self.probes += 1;
        self.begin(now);
    }

    /// Everything before `una` is acknowledged. Returns whether it had been asked for by a probe.
    pub(super) fn heard(&mut self, una: Psn, now: Instant) -> bool {
        if let Some((_, sent_at)) = self.sample.filter(|(psn, _)| psn.distance_from(una) < 0) {
            let time = now.since(sent_at);
            self.round_trip = Some(self.round_trip.map_or(time, |smooth| (7 * smooth + time) / 8));
            self.sample = None;
        }
        self.probes = 0;
        core::mem::take(&mut self.probing)
    }

    /// Packets are sent again: an answer does not tell to which time of sending.
    pub(super) const fn gone_back(&mut self) {
        self.sample = None;
        self.probing = false;
    }
}
