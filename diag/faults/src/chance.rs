//! Dice that remember nothing: a throw is a function of the seed and of which throw it is.

/// Probability in millionths.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Chance(pub(crate) u32);

impl Chance {
    pub(crate) const ALWAYS: Self = Self(1_000_000);

    /// Whether a throw of the dice is a hit.
    pub(crate) const fn happens(self, throw: u64) -> bool {
        throw % 1_000_000 < self.0 as u64
    }
}

/// The `count`th throw of the dice of `rule` (SplitMix64, Steele et al. 2014).
pub(crate) const fn throw(seed: u64, rule: u64, count: u64) -> u64 {
    let mut z = seed
        .wrapping_add(rule.wrapping_mul(0xD1B5_4A32_D192_ED03))
        .wrapping_add(count.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15));
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percent_is_about_one_in_a_hundred() {
        let chance = Chance(10_000);
        let hits = (0..100_000).filter(|count| chance.happens(throw(42, 3, *count))).count();
        assert!((900..1100).contains(&hits), "{hits}");
        assert!(chance.happens(throw(1, 2, 3)) == chance.happens(throw(1, 2, 3)));
        assert!((0..1000).all(|count| Chance::ALWAYS.happens(throw(7, 0, count))));
    }
}
