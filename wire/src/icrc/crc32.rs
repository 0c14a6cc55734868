//! The CRC-32 of Ethernet over bytes.
//!
//! Processors multiply polynomials, which [`crc32fast`] makes use of; but to begin with that and to end it takes as long
//! as dozens of bytes take by tables, and on a processor that is emulated much longer. A packet that has just been written
//! costs more still: sixteen bytes at once have to wait until what was stored in smaller pieces has reached the cache.
//! So few bytes go by tables, sixteen at a time, each at its own distance from the end of the sixteen.

use crc32fast::Hasher;

use super::{BYTE, shifted_bytes};

/// Most bytes that go by tables. That ceases to be faster at 80 bytes that have just been written, at 32 that lay in the
/// cache.
pub(super) const FEW: usize = 64;

/// Bytes that are taken at once, if there are as many.
const STRIDE: usize = 16;

/// Remainders of a byte in the register, by how many others of its stride are behind it.
static TABLES: [[u32; 256]; STRIDE] = {
    let mut tables = [[0; 256]; STRIDE];
    let mut behind = 0;
    while behind < STRIDE {
        tables[behind] = shifted_bytes(BYTE, behind + 1);
        behind += 1;
    }
    tables
};

/// The CRC of what `crc` is the CRC of and `bytes` behind it.
#[inline]
pub(super) fn extend(crc: u32, bytes: &[u8]) -> u32 {
    if bytes.len() > FEW {
        return extend_by_many(crc, bytes);
    }
    let mut register = !crc;
    let (strides, rest) = bytes.as_chunks::<STRIDE>();
    for stride in strides {
        register = pass(register, stride);
    }
    let (words, rest) = rest.as_chunks::<4>();
    for word in words {
        register = pass(register, word);
    }
    for byte in rest {
        let [low, ..] = register.to_le_bytes();
        register = register >> 8 ^ TABLES[0][usize::from(low ^ byte)];
    }
    !register
}

/// By itself, for it needs registers that the other way does not.
#[inline(never)]
fn extend_by_many(crc: u32, bytes: &[u8]) -> u32 {
    let mut hasher = Hasher::new_with_initial(crc);
    hasher.update(bytes);
    hasher.finalize()
}

/// The register behind these bytes, at least four and at most a stride. The first four meet what was in it: they come last, for
/// until then the processor can look up all others without having waited for the stride before.
#[inline]
fn pass<const N: usize>(register: u32, bytes: &[u8; N]) -> u32 {
    let Some((first, rest)) = bytes.split_first_chunk::<4>() else { return register };
    let look_up = |sum, (byte, table): (&u8, &[u32; 256])| sum ^ table[usize::from(*byte)];
    let sum = rest.iter().zip(TABLES[..N - 4].iter().rev()).fold(0, look_up);
    let first = (register ^ u32::from_le_bytes(*first)).to_le_bytes();
    first.iter().zip(TABLES[N - 4..N].iter().rev()).fold(sum, look_up)
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use ::crc::{CRC_32_ISO_HDLC, Crc};
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Wherever they lie and whatever is in front of them.
        #[test]
        fn any_number_of_bytes(bytes in prop::collection::vec(any::<u8>(), 310), offset in 0_usize..10) {
            let crc = Crc::<u32>::new(&CRC_32_ISO_HDLC);
            let bytes = &bytes[offset..];
            for len in 0..=300 {
                let expected = crc.checksum(&bytes[..len]);
                prop_assert_eq!(extend(0, &bytes[..len]), expected, "{} bytes", len);
                let halves = bytes[..len].split_at(len / 2);
                prop_assert_eq!(extend(extend(0, halves.0), halves.1), expected, "{} bytes in two pieces", len);
            }
        }
    }

    /// Each bit of each byte, in packets that go by tables and in those that do not.
    #[test]
    #[cfg_attr(miri, ignore = "minutes, and no memory access that others lack")]
    fn any_bit() {
        let crc = Crc::<u32>::new(&CRC_32_ISO_HDLC);
        for len in 1..=FEW + 2 {
            let mut bytes: Vec<u8> = std::vec![0; len];
            for bit in 0..8 * len {
                bytes[bit / 8] = 1 << (bit % 8);
                assert_eq!(extend(0, &bytes), crc.checksum(&bytes), "bit {bit} of {len} bytes");
                bytes[bit / 8] = 0;
            }
        }
    }
}
