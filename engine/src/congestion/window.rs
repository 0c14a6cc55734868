//! How many packets a requester keeps in flight.
//!
//! UDP receive buffers are finite, and what they cannot hold is lost. The window starts small, doubles every
//! round trip until the first loss, then grows by a small part of its bound a round trip, and becomes smaller at each
//! loss (additive increase, multiplicative decrease, as TCP's Reno: RFC 5681). A buffer that overflows does so again as
//! soon as the window has grown; losses more seldom than that are the network's, which does not mend by waiting for it,
//! and take only an eighth. It counts packets, since a buffer's cost is mostly per packet, and is bounded by what the
//! caller thinks a receiver can hold.

use urxe_wire::Psn;

use super::{Acknowledged, Controller, INITIAL, LEAST};
use crate::time::Instant;

/// Round trips from nothing to the bound, after losses. By one packet each, a network that loses one packet in a hundred
/// would be left with a dozen in flight (RFC 5681), of which none makes a run.
const STEPS: u32 = 32;
/// Losses with so many packets between them are not those of a buffer that is too small for the window.
const SELDOM: u32 = 64;
/// A time without losses counts as no longer than this.
const LONG_AGO: u32 = 1024;

/// The window of one requester.
#[derive(Clone, Debug)]
pub(crate) struct CongestionWindow {
    packets: u32,
    most: u32,
    /// Doubling ends here.
    threshold: u32,
    /// Packets acknowledged towards the next step of linear growth.
    acknowledged: u32,
    /// Packets acknowledged since the last loss, and between losses on average.
    since_loss: u32,
    between_losses: u32,
    /// Losses of packets before this one belong to a loss that has been counted.
    recovered_at: Option<Psn>,
    /// Packets lost alone before this PSN leave so many outstanding at least.
    least: Option<(Psn, u32)>,
}

impl CongestionWindow {
    /// A window of at most `most` packets.
    pub(crate) fn new(most: u32) -> Self {
        let most = most.max(LEAST);
        Self {
            packets: INITIAL.min(most),
            most,
            threshold: most,
            acknowledged: 0,
            since_loss: 0,
            between_losses: 0,
            recovered_at: None,
            least: None,
        }
    }

    /// Takes one `part`th off the window, once for all packets before `snd_max`.
    fn decrease(&mut self, part: u32, snd_max: Psn) {
        self.packets = (self.packets - self.packets / part).max(LEAST);
        self.threshold = self.packets;
        self.acknowledged = 0;
        self.recovered_at = Some(snd_max);
    }
}

impl Controller for CongestionWindow {
    fn packets(&self) -> u32 {
        self.packets
    }

    #[inline]
    fn on_acknowledged(&mut self, Acknowledged { count, snd_una, .. }: Acknowledged) {
        self.since_loss = self.since_loss.saturating_add(count);
        self.least.take_if(|(end, _)| snd_una.distance_from(*end) >= 0);
        if let Some(end) = self.recovered_at {
            if snd_una.distance_from(end) < 0 {
                return;
            }
            self.recovered_at = None;
        }
        if self.packets < self.threshold {
            self.packets = (self.packets + count).min(self.threshold).min(self.most);
            return;
        }
        self.acknowledged += count;
        if self.acknowledged >= self.packets {
            self.acknowledged = 0;
            self.packets = (self.packets + (self.most / STEPS).max(1)).min(self.most);
        }
    }

    /// A packet was lost; everything before `snd_max` was in flight at that time.
    //= spec/requester.md#req-018
    //# The packets in flight SHOULD become fewer by a loss, half as many if losses are frequent, and grow again slowly.
    fn on_loss(&mut self, snd_max: Psn) {
        if self.recovered_at.is_none() {
            let since = core::mem::take(&mut self.since_loss).min(LONG_AGO);
            self.between_losses = (3 * self.between_losses + since) / 4;
            let part = if self.between_losses >= SELDOM { 8 } else { 2 };
            self.decrease(part, snd_max);
        }
    }

    /// A buffer that overflows loses what does not fit, so the window becomes smaller by that. Where packets are lost for
    /// another reason, the window settles where it grows as fast. A round trip takes half of it at most.
    //= spec/selective.md#sel-010
    //# Packets that are lost while others arrive SHOULD make those in flight fewer by as many.
    fn on_selective_loss(&mut self, lost: u32, snd_max: Psn) {
        let (_, least) = *self.least.get_or_insert((snd_max, (self.packets / 2).max(LEAST)));
        self.packets = self.packets.saturating_sub(lost).max(least.min(self.packets));
        self.threshold = self.packets;
    }

    /// A queue that marks would soon overflow (RFC 3168, 6.1.2): the window reacts as to a loss in a full buffer.
    fn on_notification(&mut self, _now: Instant, snd_max: Psn) {
        if self.recovered_at.is_none() {
            self.decrease(2, snd_max);
        }
    }

    fn on_timeout(&mut self) {
        self.threshold = (self.packets / 2).max(LEAST);
        self.packets = LEAST;
        self.acknowledged = 0;
        self.recovered_at = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn acked(count: u32, snd_una: Psn) -> Acknowledged {
        Acknowledged { count, snd_una, snd_max: snd_una, round_trip: None }
    }

    //= spec/requester.md#req-018
    //= type=test
    //# The packets in flight SHOULD become fewer by a loss, half as many if losses are frequent, and grow again slowly.
    #[test]
    fn doubles_then_halves_then_creeps() {
        let mut window = CongestionWindow::new(256);
        assert_eq!(window.packets(), 32);
        window.on_acknowledged(acked(32, Psn::new(32)));
        assert_eq!(window.packets(), 64);
        window.on_loss(Psn::new(100));
        window.on_loss(Psn::new(100));
        assert_eq!(window.packets(), 32, "one loss counts once");
        window.on_acknowledged(acked(10, Psn::new(99)));
        assert_eq!(window.packets(), 32, "no growth while recovering");
        window.on_acknowledged(acked(32, Psn::new(132)));
        assert_eq!(window.packets(), 32 + 256 / STEPS);
    }

    /// Acknowledges that many packets in small steps, then loses one. Returns the window before and after.
    fn lose_after(window: &mut CongestionWindow, psn: &mut Psn, packets: u32) -> (u32, u32) {
        for _ in 0..packets {
            *psn = psn.next();
            window.on_acknowledged(acked(1, *psn));
        }
        let before = window.packets();
        window.on_loss(*psn);
        (before, window.packets())
    }

    #[test]
    fn seldom_losses_take_little() {
        let (mut window, mut psn) = (CongestionWindow::new(256), Psn::new(0));
        let (before, after) = lose_after(&mut window, &mut psn, 1000);
        assert_eq!(after, before - before / 8);
        for _ in 0..20 {
            lose_after(&mut window, &mut psn, 100);
        }
        let (before, after) = lose_after(&mut window, &mut psn, 100);
        assert_eq!(after, before - before / 8);
        assert!(after >= 48, "one in a hundred leaves {after} in flight");
        for _ in 0..20 {
            lose_after(&mut window, &mut psn, 20);
        }
        assert!(window.packets() < 16, "one in twenty leaves {} in flight", window.packets());
    }

    //= spec/selective.md#sel-010
    //= type=test
    //# Packets that are lost while others arrive SHOULD make those in flight fewer by as many.
    #[test]
    fn selective_loss_shrinks_the_window_by_as_many_packets() {
        let mut window = CongestionWindow::new(256);
        window.on_acknowledged(acked(224, Psn::new(224)));
        window.on_selective_loss(13, Psn::new(500));
        assert_eq!(window.packets(), 243);
        for psn in 225..468 {
            window.on_acknowledged(acked(1, Psn::new(psn)));
        }
        assert_eq!(window.packets(), 251, "it grows meanwhile");
        window.on_selective_loss(1000, Psn::new(500));
        assert_eq!(window.packets(), 128, "half of it at most");
        window.on_selective_loss(1000, Psn::new(600));
        assert_eq!(window.packets(), 128, "in a round trip");
        window.on_acknowledged(acked(1, Psn::new(600)));
        window.on_selective_loss(1000, Psn::new(700));
        assert_eq!(window.packets(), 64);
    }

    #[test]
    fn a_notification_halves_once_a_window() {
        let mut window = CongestionWindow::new(256);
        for _ in 0..2 {
            window.on_notification(Instant::default(), Psn::new(32));
            assert_eq!(window.packets(), 16);
        }
        window.on_acknowledged(acked(1, Psn::new(32)));
        window.on_notification(Instant::default(), Psn::new(64));
        assert_eq!(window.packets(), 8);
    }

    #[test]
    fn stays_within_its_bounds() {
        let mut window = CongestionWindow::new(1);
        assert_eq!(window.packets(), LEAST);
        for psn in 0..100 {
            window.on_acknowledged(acked(1000, Psn::new(psn)));
            assert!(window.packets() <= LEAST);
            window.on_loss(Psn::new(psn));
            window.on_timeout();
            assert_eq!(window.packets(), LEAST);
        }
    }
}
