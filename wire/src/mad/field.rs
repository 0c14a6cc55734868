//! Fields of attributes by position: layouts of subnet management and administration are tables of these.

use super::MAD_LEN;

/// Place of a field in an attribute: most significant bit first, as the IBA counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Field {
    /// First bit, from the start of the attribute.
    at: usize,
    /// Width in bits. What is wider than 64 lies on whole bytes.
    bits: usize,
}

impl Field {
    /// A field of whole bytes.
    #[must_use]
    pub const fn bytes(at: usize, len: usize) -> Self {
        Self { at: at * 8, bits: len * 8 }
    }

    /// A field of bits, the first of which is bit `bit` of byte `at`, counted from the most significant.
    #[must_use]
    pub const fn bits(at: usize, bit: usize, bits: usize) -> Self {
        Self { at: at * 8 + bit, bits }
    }

    /// Place of the field in a record that has the attribute behind this many bytes.
    #[must_use]
    pub const fn moved(self, bytes: usize) -> Self {
        Self { at: self.at + bytes * 8, bits: self.bits }
    }

    /// Bytes of the attribute from its start to the field's end.
    #[must_use]
    pub const fn end(&self) -> usize {
        (self.at + self.bits).div_ceil(8)
    }

    /// Bytes that hold the field, and how far it is from the end of the last.
    fn place(&self) -> (core::ops::Range<usize>, u32) {
        let end = self.end();
        (self.at / 8..end, u32::try_from(end * 8 - self.at - self.bits).unwrap_or_default())
    }

    /// Reads a field of at most 64 bits; zero where the attribute is too short.
    #[must_use]
    pub fn get(&self, attribute: &[u8]) -> u64 {
        let (bytes, shift) = self.place();
        let bytes = attribute.get(bytes).unwrap_or_default();
        let value = bytes.iter().fold(0_u128, |value, byte| value << 8 | u128::from(*byte)) >> shift;
        u64::try_from(value & u128::from(self.largest())).unwrap_or(u64::MAX)
    }

    /// Reads a field of at most 16 bits, or the largest number for one that is longer and does not fit.
    #[must_use]
    pub fn get_u16(&self, attribute: &[u8]) -> u16 {
        u16::try_from(self.get(attribute)).unwrap_or(u16::MAX)
    }

    /// Writes a field of at most 64 bits; upper bits that do not fit are left out. Nothing where the attribute is too short.
    pub fn put(&self, attribute: &mut [u8], value: u64) {
        let (bytes, shift) = self.place();
        let (value, kept) = (u128::from(value & self.largest()) << shift, !(u128::from(self.largest()) << shift));
        let Some(bytes) = attribute.get_mut(bytes) else { return };
        for (index, byte) in bytes.iter_mut().rev().enumerate() {
            let ([part, ..], [mask, ..]) = ((value >> (8 * index)).to_le_bytes(), (kept >> (8 * index)).to_le_bytes());
            *byte = *byte & mask | part;
        }
    }

    /// Largest value of a field of at most 64 bits.
    #[must_use]
    pub const fn largest(&self) -> u64 {
        if self.bits >= 64 { u64::MAX } else { (1 << self.bits) - 1 }
    }

    /// Bytes of a field of whole bytes; none where the attribute is too short.
    #[must_use]
    pub fn slice<'a>(&self, attribute: &'a [u8]) -> &'a [u8] {
        attribute.get(self.at / 8..self.end()).unwrap_or_default()
    }

    /// Writes a field of whole bytes, as far as there are bytes.
    pub fn put_slice(&self, attribute: &mut [u8], value: &[u8]) {
        if let Some(bytes) = attribute.get_mut(self.at / 8..self.end()) {
            for (to, from) in bytes.iter_mut().zip(value) {
                *to = *from;
            }
        }
    }

    /// Writes the field of one attribute into another.
    pub fn copy(&self, from: &[u8], to: &mut [u8]) {
        if self.bits > 64 { self.put_slice(to, self.slice(from)) } else { self.put(to, self.get(from)) }
    }

    /// Whether two attributes agree in the field.
    #[must_use]
    pub fn is_same(&self, one: &[u8], other: &[u8]) -> bool {
        if self.bits > 64 { self.slice(one) == self.slice(other) } else { self.get(one) == self.get(other) }
    }
}

/// The bytes of a datagram from `start` on.
#[must_use]
pub fn data(datagram: &[u8; MAD_LEN], start: usize) -> &[u8] {
    datagram.get(start..).unwrap_or_default()
}

/// The bytes of a datagram from `start` on, to write.
pub fn data_mut(datagram: &mut [u8; MAD_LEN], start: usize) -> &mut [u8] {
    datagram.get_mut(start..).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_of_bits_and_bytes() {
        let mut bytes = [0xFF; 24];
        let (half, word, long, odd) =
            (Field::bits(1, 4, 4), Field::bytes(2, 2), Field::bytes(4, 8), Field::bits(12, 4, 20));
        half.put(&mut bytes, 0x13);
        word.put(&mut bytes, 0x1234);
        long.put(&mut bytes, 0x0102_0304_0506_0708);
        odd.put(&mut bytes, 0xA_BCDE);
        assert_eq!(bytes[..16], [0xFF, 0xF3, 0x12, 0x34, 1, 2, 3, 4, 5, 6, 7, 8, 0xFA, 0xBC, 0xDE, 0xFF]);
        assert_eq!(
            [half, word, long, odd].map(|field| field.get(&bytes)),
            [3, 0x1234, 0x0102_0304_0506_0708, 0xA_BCDE]
        );
        assert_eq!(half.moved(2).get(&bytes), 4);
    }

    #[test]
    fn fields_outside_the_bytes_are_zero_and_stay() {
        let mut bytes = [7; 4];
        Field::bytes(2, 4).put(&mut bytes, 1);
        Field::bytes(3, 16).put_slice(&mut bytes, &[1; 16]);
        assert_eq!((bytes, Field::bytes(2, 4).get(&bytes)), ([7; 4], 0));
        assert!(Field::bytes(3, 16).slice(&bytes).is_empty());
    }
}
