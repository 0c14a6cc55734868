//! How late packets may be and not be lost: learnt from those that came late.
//!
//! As in TCP (RACK, RFC 8985), a packet is lost when one that was sent after it has arrived, and it has not within the
//! reordering window since. Where nothing was ever late, three that overtook it are enough.

/// Packets that overtake a lost one where nothing was ever late (RFC 5681).
const OVERTAKING: i32 = 3;
/// The least window, in nanoseconds.
const LEAST: u64 = 10_000;
/// The longest window, in nanoseconds.
const MOST: u64 = 100_000_000;
/// Losses without a packet sent in vain until the window shrinks.
const CALM: u32 = 256;

/// The reordering window of a requester.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Reordering {
    /// Packets have overtaken one another.
    seen: bool,
    /// Packets take several paths.
    several: bool,
    /// Window by what was seen, in nanoseconds.
    learnt: u64,
    /// Losses since a packet was sent in vain.
    calm: u32,
}

impl Reordering {
    /// Packets are expected to overtake one another: they take several paths.
    pub(super) const fn expect(&mut self) {
        (self.seen, self.several) = (true, true);
    }

    /// How late a packet may be, in nanoseconds, where a round trip takes `round_trip`.
    pub(super) fn window(&self, round_trip: u64) -> u64 {
        // How far paths differ is not known before; by a round trip at most, as a rule.
        let least = if self.several { round_trip } else { round_trip / 4 };
        self.learnt.max(least).clamp(LEAST, MOST)
    }

    /// Whether a packet that so many sent later have overtaken is lost at once.
    pub(super) const fn is_lost_at_once(&self, overtaking: i32) -> bool {
        !self.seen && overtaking >= OVERTAKING
    }

    /// A packet came `late` nanoseconds after one that was sent behind it.
    pub(super) fn came_late(&mut self, late: u64) {
        self.seen = true;
        self.learnt = self.learnt.max(late + late / 4).min(MOST);
    }

    /// A packet was sent again in vain.
    pub(super) fn in_vain(&mut self, round_trip: u64) {
        self.calm = 0;
        if core::mem::replace(&mut self.seen, true) {
            let more = self.window(round_trip) + round_trip / 4;
            self.learnt = more.min(8 * round_trip.max(LEAST)).max(self.learnt).min(MOST);
        }
    }

    /// A packet was found lost.
    pub(super) const fn lost(&mut self) {
        self.calm += 1;
        if self.calm >= CALM {
            self.calm = 0;
            self.learnt -= self.learnt / 8;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_reordering_three_are_enough() {
        let mut reordering = Reordering::default();
        assert!(!reordering.is_lost_at_once(2) && reordering.is_lost_at_once(3));
        reordering.came_late(1);
        assert!(!reordering.is_lost_at_once(1000));
    }

    #[test]
    fn the_window_fits_what_came_late() {
        let mut reordering = Reordering::default();
        assert_eq!(reordering.window(400_000), 100_000);
        reordering.came_late(200_000);
        assert_eq!(reordering.window(400_000), 250_000);
        reordering.came_late(100_000);
        assert_eq!(reordering.window(400_000), 250_000);
        reordering.in_vain(400_000);
        assert_eq!(reordering.window(400_000), 350_000);
        (0..100).for_each(|_| reordering.in_vain(400_000));
        assert_eq!(reordering.window(400_000), 3_200_000, "no longer than several round trips");
        (0..100 * CALM).for_each(|_| reordering.lost());
        assert_eq!(reordering.window(400_000), 100_000, "forgets");
        reordering.came_late(u64::MAX / 2);
        assert_eq!(reordering.window(0), MOST);
    }
}
