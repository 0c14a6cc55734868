//! The 24-bit packet sequence number.

use core::fmt;

/// A packet sequence number: 24 bits, wrapping (IBA 9.2 "PSN").
///
/// There is no greatest PSN, so the type has no `Ord`: which of two comes first depends on a point of
/// view, and [`Psn::distance_from`] takes it as a parameter.
///
/// ```
/// use urxe_wire::Psn;
/// let last = Psn::new(0xFF_FFFF);
/// assert_eq!(last.next(), Psn::new(0));
/// assert_eq!(last.next().distance_from(last), 1);
/// assert_eq!(last.distance_from(last.next()), -1);
/// ```
///
/// ```compile_fail
/// use urxe_wire::Psn;
/// assert!(Psn::new(1) < Psn::new(2));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Psn(u32);

impl Psn {
    const MASK: u32 = 0x00FF_FFFF;

    /// The PSN made of the low 24 bits of `value`.
    #[must_use]
    pub const fn new(value: u32) -> Self {
        Self(value & Self::MASK)
    }

    /// The number, below 2^24.
    #[must_use]
    pub const fn get(self) -> u32 {
        self.0
    }

    /// The PSN `packets` later.
    #[must_use]
    pub const fn add(self, packets: u32) -> Self {
        Self::new(self.0.wrapping_add(packets))
    }

    /// The PSN `packets` earlier.
    #[must_use]
    pub const fn sub(self, packets: u32) -> Self {
        Self::new(self.0.wrapping_sub(packets))
    }

    /// The PSN of the packet after this one.
    #[must_use]
    pub const fn next(self) -> Self {
        self.add(1)
    }

    /// Number of packets that this one is after `origin`: in `-2^23 .. 2^23`, negative if before.
    ///
    /// Half of the space is ahead and half behind (IBA 9.7.1: the valid and the duplicate region).
    #[must_use]
    pub const fn distance_from(self, origin: Self) -> i32 {
        // Shifted up, bit 23 becomes the sign; the arithmetic shift back extends it.
        (self.0.wrapping_sub(origin.0) << 8).cast_signed() >> 8
    }

    /// Number of packets to advance from `origin` to get here: in `0 .. 2^24`.
    #[must_use]
    pub const fn advance_from(self, origin: Self) -> u32 {
        self.0.wrapping_sub(origin.0) & Self::MASK
    }
}

impl fmt::Debug for Psn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Psn({:#08x})", self.0)
    }
}

impl fmt::Display for Psn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::Psn;
    use proptest::prelude::*;

    #[test]
    fn wraps_at_24_bits() {
        assert_eq!(Psn::new(0x0100_0000), Psn::new(0));
        assert_eq!(Psn::new(0x00FF_FFFF).next(), Psn::new(0));
        assert_eq!(Psn::new(0).sub(1), Psn::new(0x00FF_FFFF));
    }

    #[test]
    fn distance_has_its_sign_change_in_the_middle() {
        let origin = Psn::new(0x00FF_FFF0);
        assert_eq!(origin.add(0x7F_FFFF).distance_from(origin), 0x7F_FFFF);
        assert_eq!(origin.add(0x80_0000).distance_from(origin), -0x80_0000);
        assert_eq!(origin.sub(1).distance_from(origin), -1);
    }

    proptest! {
        #[test]
        fn distance_undoes_add(start: u32, steps in 0u32..0x80_0000) {
            let origin = Psn::new(start);
            prop_assert_eq!(origin.add(steps).distance_from(origin), i32::try_from(steps).unwrap());
            prop_assert_eq!(origin.add(steps).advance_from(origin), steps);
            prop_assert_eq!(origin.add(steps).sub(steps), origin);
        }
    }
}
