//! How many packets a requester keeps in flight.
//!
//! UDP receive buffers are finite, and what they cannot hold is lost. The window starts small, doubles every
//! round trip until the first loss, then grows by one packet a round trip, and halves at each loss (additive
//! increase, multiplicative decrease, as TCP's Reno: RFC 5681). It counts packets, since a buffer's cost is
//! mostly per packet, and is bounded by what the caller thinks a receiver can hold.

use urxe_wire::Psn;

/// Packets that may be outstanding at least, whatever is lost.
const LEAST: u32 = 2;
const INITIAL: u32 = 32;

/// The window of one requester.
#[derive(Clone, Debug)]
pub(super) struct Window {
    packets: u32,
    most: u32,
    /// Doubling ends here.
    threshold: u32,
    /// Packets acknowledged towards the next step of linear growth.
    acknowledged: u32,
    /// Losses of packets before this one belong to a loss that has been counted.
    recovered_at: Option<Psn>,
}

impl Window {
    /// A window of at most `most` packets.
    pub(super) fn new(most: u32) -> Self {
        let most = most.max(LEAST);
        Self { packets: INITIAL.min(most), most, threshold: most, acknowledged: 0, recovered_at: None }
    }

    /// Packets that may be outstanding now.
    pub(super) const fn packets(&self) -> u32 {
        self.packets
    }

    /// `count` packets more were acknowledged, all before `una`.
    pub(super) fn on_acknowledged(&mut self, count: u32, una: Psn) {
        if let Some(end) = self.recovered_at {
            if una.distance_from(end) < 0 {
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
            self.packets = (self.packets + 1).min(self.most);
        }
    }

    /// A packet was lost; everything before `frontier` was in flight at that time.
    //= spec/requester.md#req-018
    //# The packets in flight SHOULD be halved in number by a loss and grow again slowly.
    pub(super) fn on_loss(&mut self, frontier: Psn) {
        if self.recovered_at.is_none() {
            self.packets = (self.packets / 2).max(LEAST);
            self.threshold = self.packets;
            self.acknowledged = 0;
            self.recovered_at = Some(frontier);
        }
    }

    /// Nothing came back for a whole ACK timeout: begin anew.
    pub(super) fn on_timeout(&mut self) {
        self.threshold = (self.packets / 2).max(LEAST);
        self.packets = LEAST;
        self.acknowledged = 0;
        self.recovered_at = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    //= spec/requester.md#req-018
    //= type=test
    //# The packets in flight SHOULD be halved in number by a loss and grow again slowly.
    #[test]
    fn doubles_then_halves_then_creeps() {
        let mut window = Window::new(256);
        assert_eq!(window.packets(), 32);
        window.on_acknowledged(32, Psn::new(32));
        assert_eq!(window.packets(), 64);
        window.on_loss(Psn::new(100));
        window.on_loss(Psn::new(100));
        assert_eq!(window.packets(), 32, "one loss counts once");
        window.on_acknowledged(10, Psn::new(99));
        assert_eq!(window.packets(), 32, "no growth while recovering");
        window.on_acknowledged(32, Psn::new(132));
        assert_eq!(window.packets(), 33);
    }

    #[test]
    fn stays_within_its_bounds() {
        let mut window = Window::new(1);
        assert_eq!(window.packets(), LEAST);
        for psn in 0..100 {
            window.on_acknowledged(1000, Psn::new(psn));
            assert!(window.packets() <= LEAST);
            window.on_loss(Psn::new(psn));
            window.on_timeout();
            assert_eq!(window.packets(), LEAST);
        }
    }
}
