//! The checksum of IPv4, TCP and UDP (RFC 1071).

/// Returns the one's complement sum of bytes, not folded. Sums of parts add up if all but the last have an even length.
#[must_use]
pub fn sum(bytes: &[u8]) -> u64 {
    // Words of 32 bits add up to the same, as 1 << 16 is 1 there.
    let words = bytes.chunks_exact(4);
    let mut last = [0; 4];
    for (to, from) in last.iter_mut().zip(words.remainder()) {
        *to = *from;
    }
    let word = |bytes: &[u8]| u64::from(u32::from_be_bytes(bytes.try_into().unwrap_or_default()));
    words.map(word).sum::<u64>() + u64::from(u32::from_be_bytes(last))
}

/// Folds a sum to 16 bits.
#[must_use]
pub const fn fold(mut sum: u64) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    let [.., high, low] = sum.to_be_bytes();
    u16::from_be_bytes([high, low])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_of_the_textbooks() {
        let header = [0x45, 0, 0, 0x73, 0, 0, 0x40, 0, 0x40, 0x11, 0, 0, 0xc0, 0xa8, 0, 1, 0xc0, 0xa8, 0, 0xc7];
        assert_eq!(!fold(sum(&header)), 0xb861);
    }

    #[test]
    fn sums_of_parts_add_up() {
        let bytes: [u8; 23] = core::array::from_fn(|at| u8::try_from(at * 37 % 256).unwrap());
        for at in (0..bytes.len()).step_by(2) {
            let (first, second) = bytes.split_at(at);
            assert_eq!(fold(sum(first) + sum(second)), fold(sum(&bytes)), "{at}");
        }
        assert_eq!((fold(sum(&[])), fold(sum(&[1])), fold(sum(&[1, 2, 3]))), (0, 0x100, 0x402));
    }
}
