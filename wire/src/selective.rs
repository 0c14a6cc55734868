//! Headers of the packets by which two urxe agree on selective repeat and acknowledge packets that came out of order.
//!
//! Their opcodes are among those that the InfiniBand specification leaves to manufacturers (IBA 9.2.1: 0xC0 and up), which
//! every other implementation drops without a word.

use crate::{Malformed, Psn};

/// Offer to acknowledge packets out of order, or the answer to one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SelectiveOffer {
    /// Answers an offer; is not answered itself.
    pub answer: bool,
    /// Packets behind a gap that the sender of the offer keeps.
    pub window: u16,
}

impl SelectiveOffer {
    /// Bytes on the wire.
    pub const LEN: usize = 4;

    /// Version of what is offered.
    const VERSION: u8 = 1;

    /// Reads the header.
    ///
    /// # Errors
    /// [`Malformed::SelectiveVersion`] for another version than 1.
    pub const fn parse(bytes: &[u8; Self::LEN]) -> Result<Self, Malformed> {
        let [version, flags, w0, w1] = *bytes;
        //= spec/selective.md#sel-002
        //# An offer of an unknown version MUST be dropped.
        if version != Self::VERSION {
            return Err(Malformed::SelectiveVersion(version));
        }
        Ok(Self { answer: flags & 1 != 0, window: u16::from_be_bytes([w0, w1]) })
    }

    /// Writes the header.
    pub fn emit(&self, bytes: &mut [u8; Self::LEN]) {
        let [w0, w1] = self.window.to_be_bytes();
        *bytes = [Self::VERSION, u8::from(self.answer), w0, w1];
    }
}

/// Header of a selective acknowledgement. The PSN of its BTH is the first that is missing; its payload is a
/// [bitmap](Bitmap) of those behind it that arrived.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SelectiveAck {
    /// Requests that arrived more than once since the queue pair was connected, modulo 2^32.
    pub duplicates: u32,
}

impl SelectiveAck {
    /// Bytes on the wire.
    pub const LEN: usize = 4;

    /// Reads the header.
    #[must_use]
    pub const fn parse(bytes: &[u8; Self::LEN]) -> Self {
        Self { duplicates: u32::from_be_bytes(*bytes) }
    }

    /// Writes the header.
    pub const fn emit(&self, bytes: &mut [u8; Self::LEN]) {
        *bytes = self.duplicates.to_be_bytes();
    }
}

/// Payload of a selective acknowledgement: a bit for each PSN behind the first that is missing, most significant first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bitmap<'a>(&'a [u8]);

impl<'a> Bitmap<'a> {
    /// Bytes at most: a full packet on a path with the smallest MTU.
    pub const MOST: usize = 256;

    /// PSNs at most.
    pub const PSNS: usize = Self::MOST * 8;

    /// The bitmap in a payload; `None` if it is longer than one may be.
    #[must_use]
    pub const fn new(payload: &'a [u8]) -> Option<Self> {
        if payload.len() > Self::MOST || !payload.len().is_multiple_of(4) { None } else { Some(Self(payload)) }
    }

    /// Bytes of a bitmap whose last bit is that of the PSN `behind` places behind the first that is missing.
    #[must_use]
    pub const fn len_for(behind: usize) -> usize {
        behind.div_ceil(32) * 4
    }

    /// Sets the bit of the PSN `behind` places behind the first that is missing, if `bytes` has it.
    pub fn set(bytes: &mut [u8], behind: usize) {
        let Some(bit) = behind.checked_sub(1) else { return };
        if let Some(byte) = bytes.get_mut(bit / 8) {
            *byte |= 0x80 >> (bit % 8);
        }
    }

    /// Returns its bits, 32 at a time, most significant first.
    pub fn words(self) -> impl Iterator<Item = u32> {
        self.0.chunks_exact(4).filter_map(|bytes| bytes.first_chunk().copied()).map(u32::from_be_bytes)
    }

    /// Places behind the first missing PSN of those that arrived, ascending.
    pub fn arrived(self) -> impl Iterator<Item = u32> {
        let (mut words, mut word, mut behind) = (self.0.chunks_exact(4), 0_u32, 0_u32);
        core::iter::from_fn(move || {
            while word == 0 {
                let bytes = words.next()?.first_chunk()?;
                (word, behind) = (u32::from_be_bytes(*bytes), behind + 32);
            }
            let bit = word.leading_zeros();
            word &= !(1 << 31 >> bit);
            Some(behind - 31 + bit)
        })
    }

    /// The last of these.
    #[must_use]
    pub fn last_arrived(self) -> Option<u32> {
        let at = self.0.iter().rposition(|byte| *byte != 0)?;
        let byte = self.0.get(at)?;
        Some(u32::try_from(8 * at).ok()? + 8 - byte.trailing_zeros())
    }

    /// The ranges of PSNs that arrived, first and last of each, where `missing` is the first that did not.
    pub fn ranges(self, missing: Psn) -> impl Iterator<Item = (Psn, Psn)> {
        let mut arrived = self.arrived().peekable();
        core::iter::from_fn(move || {
            let first = arrived.next()?;
            let mut last = first;
            while arrived.next_if_eq(&(last + 1)).is_some() {
                last += 1;
            }
            Some((missing.add(first), missing.add(last)))
        })
    }
}

#[cfg(test)]
mod tests {
    use std::vec;
    use std::vec::Vec;

    use super::*;

    #[test]
    fn an_offer_is_what_it_is() {
        let offer = SelectiveOffer { answer: true, window: 0x0400 };
        let mut bytes = [0xA5; SelectiveOffer::LEN];
        offer.emit(&mut bytes);
        assert_eq!(bytes, [1, 1, 4, 0]);
        assert_eq!(SelectiveOffer::parse(&bytes), Ok(offer));
        assert_eq!(SelectiveOffer::parse(&[1, 0xFE, 4, 0]), Ok(SelectiveOffer { answer: false, ..offer }));
    }

    //= spec/selective.md#sel-002
    //= type=test
    //# An offer of an unknown version MUST be dropped.
    #[test]
    fn offers_of_other_versions_are_malformed() {
        for version in [0, 2, 255] {
            assert_eq!(SelectiveOffer::parse(&[version, 0, 4, 0]), Err(Malformed::SelectiveVersion(version)));
        }
    }

    #[test]
    fn bitmaps_hold_what_was_set() {
        let set = [1, 2, 3, 8, 9, 32, 33, 2048];
        let mut bytes = vec![0; Bitmap::len_for(2048)];
        set.iter().for_each(|&behind| Bitmap::set(&mut bytes, behind));
        assert_eq!(bytes[0], 0b1110_0001);
        let bitmap = Bitmap::new(&bytes).unwrap();
        assert_eq!(bitmap.words().collect::<Vec<_>>()[..3], [0xE180_0001, 0x8000_0000, 0]);
        assert_eq!(bitmap.arrived().map(|behind| behind as usize).collect::<Vec<_>>(), set);
        let ranges: Vec<_> = bitmap.ranges(Psn::new(0xFF_FFFE)).map(|(a, b)| (a.get(), b.get())).collect();
        assert_eq!(ranges, [(0xFF_FFFF, 1), (6, 7), (30, 31), (2046, 2046)]);
    }

    #[test]
    fn bits_beyond_the_bitmap_are_not_set() {
        let mut bytes = vec![0; 4];
        [0, 33, usize::MAX].iter().for_each(|&behind| Bitmap::set(&mut bytes, behind));
        assert_eq!(bytes, [0; 4]);
    }

    #[test]
    fn lengths() {
        assert_eq!([0, 1, 32, 33, 2048].map(Bitmap::len_for), [0, 4, 4, 8, 256]);
        assert!(Bitmap::new(&[0; 256]).is_some() && Bitmap::new(&[]).is_some());
        assert!(Bitmap::new(&[0; 260]).is_none() && Bitmap::new(&[0; 3]).is_none());
    }
}
