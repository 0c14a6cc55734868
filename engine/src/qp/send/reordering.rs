//! How late packets may be and not be lost: learnt from those that came late.
//!
//! As in TCP (RACK, RFC 8985), a packet is lost when one that was sent after it has arrived, and it has not within the
//! reordering window since. Where nothing was ever late, three that overtook it are enough.
//!
//! Where packets take several paths, those of one path arrive in order as a rule, and one of another path tells little: until
//! something is known of a path, nobody can tell a slow one from one that loses all.

use super::tail_loss_probe;

/// Packets that overtake a lost one where nothing was ever late (RFC 5681).
const OVERTAKING: i32 = 3;
/// The least window, in nanoseconds.
const LEAST: u64 = 10_000;
/// The longest window, in nanoseconds.
const MOST: u64 = 100_000_000;
/// Round trips of the longest window where packets take several paths. On one path it is one: a packet seems to be late for as long as
/// a program had no processor to take the news, and each loss would then cost that time.
const MOST_ROUND_TRIPS: u64 = 8;
/// Window, in nanoseconds, of a path of which nothing is known to have arrived: as long as the probe waits.
const UNHEARD: u64 = tail_loss_probe::LEAST;
/// Losses without a packet sent in vain until the window shrinks.
const CALM: u32 = 16;

/// The reordering window of a requester.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Reordering {
    /// Packets have overtaken one another.
    seen: bool,
    /// Packets take several paths.
    several: bool,
    /// Window by what was seen, in nanoseconds.
    learnt: u64,
    /// Window by what was seen between paths.
    learnt_across: u64,
    /// Bits of the paths of which something has arrived.
    heard: u16,
    /// Losses since a packet was sent in vain.
    calm: u32,
}

impl Reordering {
    /// Packets are expected to overtake one another: they take several paths.
    pub(super) const fn expect(&mut self) {
        (self.seen, self.several) = (true, true);
    }

    /// Delay that a packet may have, in nanoseconds, where a round trip takes `round_trip`.
    pub(super) fn window(&self, round_trip: u64) -> u64 {
        // How far paths differ is not known before; by a round trip at most, as a rule.
        let least = if self.several { round_trip } else { round_trip / 4 };
        self.learnt.clamp(least, self.most(round_trip)).clamp(LEAST, MOST)
    }

    /// Whether packets take several paths.
    pub(super) const fn takes_several(&self) -> bool {
        self.several
    }

    /// Delay that a packet may have of which only those of other paths tell.
    pub(super) fn window_across(&self, round_trip: u64, path: u8) -> u64 {
        let is_heard = self.heard & Self::bit(path) != 0;
        let least = (MOST_ROUND_TRIPS * round_trip).max(if is_heard { LEAST } else { UNHEARD });
        self.learnt_across.max(least).min(MOST)
    }

    /// A packet has arrived on this path.
    pub(super) const fn hear_of(&mut self, path: u8) {
        self.heard |= Self::bit(path);
    }

    const fn bit(path: u8) -> u16 {
        1 << (path % 16)
    }

    /// The longest window where a round trip takes `round_trip`.
    const fn most(&self, round_trip: u64) -> u64 {
        if self.several { MOST_ROUND_TRIPS * round_trip } else { round_trip }
    }

    /// Whether a packet that so many sent later have overtaken is lost at once.
    pub(super) const fn is_lost_at_once(&self, overtaking: i32) -> bool {
        !self.seen && overtaking >= OVERTAKING
    }

    /// A packet came `late` nanoseconds after one that was sent behind it, on its own path or on another.
    pub(super) fn came_late(&mut self, late: u64, on_path: bool) {
        self.seen = true;
        let learnt = if on_path { &mut self.learnt } else { &mut self.learnt_across };
        *learnt = (*learnt).max(late + late / 4).min(MOST);
    }

    /// A packet was sent again in vain.
    pub(super) fn in_vain(&mut self, round_trip: u64) {
        self.calm = 0;
        if core::mem::replace(&mut self.seen, true) {
            let more = self.window(round_trip) + round_trip / 4;
            self.learnt = more.min(self.most(round_trip)).max(self.learnt).min(MOST);
        }
        if self.several {
            self.learnt_across = (self.learnt_across.max(MOST_ROUND_TRIPS * round_trip) + round_trip).min(MOST);
        }
    }

    /// A packet was found lost.
    pub(super) const fn lost(&mut self) {
        self.calm += 1;
        if self.calm >= CALM {
            self.calm = 0;
            self.learnt -= self.learnt / 8;
            self.learnt_across -= self.learnt_across / 8;
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
        reordering.came_late(1, true);
        assert!(!reordering.is_lost_at_once(1000));
    }

    #[test]
    fn the_window_fits_what_came_late() {
        let mut reordering = Reordering::default();
        assert_eq!(reordering.window(400_000), 100_000);
        reordering.came_late(200_000, true);
        assert_eq!(reordering.window(400_000), 250_000);
        reordering.came_late(100_000, true);
        assert_eq!(reordering.window(400_000), 250_000);
        reordering.in_vain(400_000);
        assert_eq!(reordering.window(400_000), 350_000);
        (0..100).for_each(|_| reordering.in_vain(400_000));
        assert_eq!(reordering.window(400_000), 400_000, "no longer than a round trip");
        (0..100 * CALM).for_each(|_| reordering.lost());
        assert_eq!(reordering.window(400_000), 100_000, "forgets");
    }

    /// A program that is off its processor takes all news late.
    #[test]
    fn one_packet_that_seemed_very_late_makes_no_loss_dear() {
        let mut reordering = Reordering::default();
        reordering.came_late(10_000_000, true);
        assert_eq!(reordering.window(400_000), 400_000);
        assert_eq!(reordering.window(0), LEAST);
        reordering.expect();
        assert_eq!(reordering.window(400_000), 3_200_000, "paths may differ by several round trips");
        reordering.came_late(u64::MAX / 2, true);
        assert_eq!(reordering.window(u64::MAX / 16), MOST);
    }

    #[test]
    fn between_paths_the_window_is_what_these_differ_by() {
        let mut reordering = Reordering::default();
        reordering.expect();
        assert_eq!(reordering.window_across(10_000, 3), UNHEARD);
        reordering.hear_of(3);
        assert_eq!([2, 3].map(|path| reordering.window_across(10_000, path)), [UNHEARD, 80_000]);
        reordering.came_late(1_000_000, false);
        assert_eq!((reordering.window_across(10_000, 3), reordering.window(10_000)), (1_250_000, 10_000));
        reordering.in_vain(10_000);
        assert_eq!(reordering.window_across(10_000, 3), 1_260_000);
        (0..100 * CALM).for_each(|_| reordering.lost());
        assert_eq!(reordering.window_across(10_000, 3), 80_000, "forgets");
    }
}
