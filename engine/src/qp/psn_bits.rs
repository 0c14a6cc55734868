//! A bit for each PSN near one another: which packets are kept, or have arrived. 32 of them are looked at together.

use urxe_wire::Psn;

/// Words of 32 PSNs: twice as many PSNs as are kept, so that those at both ends differ.
const WORDS: usize = PsnBits::PSNS / 32;

/// Bits by PSN, modulo their number, the most significant first.
#[derive(Debug)]
pub(super) struct PsnBits([u32; WORDS]);

impl Default for PsnBits {
    fn default() -> Self {
        Self([0; WORDS])
    }
}

impl PsnBits {
    /// PSNs in a row whose bits differ.
    pub(super) const PSNS: usize = 2048;

    /// The word of a PSN, and its bit there.
    const fn place(psn: Psn) -> (usize, u32) {
        (psn.get() as usize / 32 % WORDS, psn.get() % 32)
    }

    pub(super) fn set(&mut self, psn: Psn, is_set: bool) {
        let (word, bit) = Self::place(psn);
        if let Some(word) = self.0.get_mut(word) {
            let mask = 1 << 31 >> bit;
            *word = if is_set { *word | mask } else { *word & !mask };
        }
    }

    /// Whether the bit of `psn` is set.
    pub(super) fn is_set(&self, psn: Psn) -> bool {
        let (word, bit) = Self::place(psn);
        self.0.get(word).is_some_and(|word| word << bit >> 31 != 0)
    }

    /// Number of PSNs in a row from `first` on whose bits are set.
    pub(super) fn run(&self, first: Psn) -> u32 {
        let mut run = 0;
        while (run as usize) < Self::PSNS {
            let more = self.word(first.add(run)).leading_ones();
            run += more;
            if more < 32 {
                break;
            }
        }
        run
    }

    /// Clears the bits of `count` PSNs from `first` on. Returns how many of them were set.
    pub(super) fn clear(&mut self, first: Psn, count: u32) -> u32 {
        let (mut done, mut cleared) = (0, 0);
        while done < count {
            let (word, bit) = Self::place(first.add(done));
            let len = (32 - bit).min(count - done);
            if let Some(word) = self.0.get_mut(word) {
                let mask = Self::first(len) >> bit;
                cleared += (*word & mask).count_ones();
                *word &= !mask;
            }
            done += len;
        }
        cleared
    }

    /// The bits of 32 PSNs from `psn` on.
    pub(super) fn word(&self, psn: Psn) -> u32 {
        let (word, bit) = Self::place(psn);
        let [first, second] = [word, (word + 1) % WORDS].map(|word| self.0.get(word).copied().unwrap_or_default());
        let both = u64::from(first) << 32 | u64::from(second);
        (both << bit >> 32) as u32
    }

    /// The bits that are not set of the first 32 or less among `count` PSNs from `first` on.
    pub(super) fn clear_word(&self, first: Psn, count: u32) -> u32 {
        !self.word(first) & Self::first(count)
    }

    /// The first `count` bits of a word, or all.
    pub(super) const fn first(count: u32) -> u32 {
        if count >= 32 { u32::MAX } else { !(u32::MAX >> count) }
    }

    /// Writes those from `first` on.
    pub(super) fn emit(&self, first: Psn, bytes: &mut [u8]) {
        for (bytes, nth) in bytes.chunks_exact_mut(4).zip(0..) {
            bytes.copy_from_slice(&self.word(first.add(32 * nth)).to_be_bytes());
        }
    }
}

/// The bits of a word that are set, the most significant being the 0th.
pub(super) fn ones(mut word: u32) -> impl Iterator<Item = u32> {
    core::iter::from_fn(move || {
        let bit = (word != 0).then(|| word.leading_zeros())?;
        word &= !(1 << 31 >> bit);
        Some(bit)
    })
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use super::*;

    #[test]
    fn clear_bits_of_some_psns() {
        for base in [0, 17, 2047, (1 << 24) - 40] {
            let (base, mut bits) = (Psn::new(base), PsnBits::default());
            let set = [0, 1, 31, 33, 70];
            set.into_iter().for_each(|behind| bits.set(base.add(behind), true));
            for count in [0, 1, 2, 3, 31, 32, 33, 100] {
                for first in [0, 1, 40] {
                    let wanted = (0..count.min(32)).filter(|behind| !set.contains(&(first + behind)));
                    let found = ones(bits.clear_word(base.add(first), count));
                    assert_eq!(found.collect::<Vec<_>>(), wanted.collect::<Vec<_>>(), "{base:?} {first} {count}");
                }
            }
        }
    }

    #[test]
    fn rows_of_bits() {
        for base in [0, 17, 2047, (1 << 24) - 40] {
            let (base, mut bits) = (Psn::new(base), PsnBits::default());
            (3..80).for_each(|behind| bits.set(base.add(behind), true));
            assert_eq!([0, 3, 40, 79, 80].map(|behind| bits.run(base.add(behind))), [0, 77, 40, 1, 0], "{base:?}");
            assert_eq!([2, 3, 79, 80].map(|behind| bits.is_set(base.add(behind))), [false, true, true, false]);
            assert_eq!((bits.clear(base, 5), bits.clear(base.add(70), 1000), bits.clear(base, 0)), (2, 10, 0));
            assert_eq!((bits.run(base.add(4)), bits.run(base.add(5))), (0, 65));
            assert_eq!(bits.clear(base, 1 << 11), 65);
        }
        let mut all = PsnBits::default();
        (0..2048).for_each(|psn| all.set(Psn::new(psn), true));
        assert_eq!(all.run(Psn::new(7)), 2048);
    }

    #[test]
    fn bits_of_psns_around_the_last_one() {
        for base in [0, 17, 2047, (1 << 24) - 40] {
            let (base, mut bits) = (Psn::new(base), PsnBits::default());
            for behind in [0, 1, 31, 32, 63, 1000] {
                bits.set(base.add(behind), true);
            }
            bits.set(base.add(32), false);
            let mut bytes = [0xFF; 128];
            bits.emit(base, &mut bytes);
            let mut wanted = [0; 128];
            (wanted[0], wanted[3], wanted[7], wanted[125]) = (0xC0, 1, 1, 0x80);
            assert_eq!(bytes, wanted, "{base:?}");
        }
    }
}
