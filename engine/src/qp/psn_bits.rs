//! Which PSNs are marked, a bit each: a selective acknowledgement is written from them without a look at the packets.

use urxe_wire::Psn;

/// Words of 32 PSNs: twice as many PSNs as are kept, so that those at both ends differ.
const WORDS: usize = 64;

/// Bits by PSN, modulo their number, the most significant first.
#[derive(Debug)]
pub(super) struct PsnBits([u32; WORDS]);

impl Default for PsnBits {
    fn default() -> Self {
        Self([0; WORDS])
    }
}

impl PsnBits {
    /// The word of a PSN, and its bit there.
    const fn place(psn: Psn) -> (usize, u32) {
        (psn.get() as usize / 32 % WORDS, psn.get() % 32)
    }

    pub(super) fn set(&mut self, psn: Psn, is_kept: bool) {
        let (word, bit) = Self::place(psn);
        if let Some(word) = self.0.get_mut(word) {
            let mask = 1 << 31 >> bit;
            *word = if is_kept { *word | mask } else { *word & !mask };
        }
    }

    /// The bits of 32 PSNs from `psn` on.
    fn word(&self, psn: Psn) -> u32 {
        let (word, bit) = Self::place(psn);
        let [first, second] = [word, (word + 1) % WORDS].map(|word| self.0.get(word).copied().unwrap_or_default());
        let both = u64::from(first) << 32 | u64::from(second);
        (both << bit >> 32) as u32
    }

    /// Writes those from `first` on.
    pub(super) fn emit(&self, first: Psn, bytes: &mut [u8]) {
        for (bytes, nth) in bytes.chunks_exact_mut(4).zip(0..) {
            bytes.copy_from_slice(&self.word(first.add(32 * nth)).to_be_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
