//! The FLUSH extended transport header.

use crate::Malformed;

/// FLUSH extended transport header (IBA annex A19, `struct rxe_feth`): how durable, and how much.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Feth {
    /// Placement type: make earlier writes globally visible.
    pub global_visibility: bool,
    /// Placement type: make earlier writes persistent.
    pub persistence: bool,
    /// Selectivity level.
    pub level: FlushLevel,
}

/// Memory that a FLUSH is about (IBA annex A19).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FlushLevel {
    /// The range the RETH names.
    Range,
    /// The whole region of the R_Key.
    Region,
}

impl Feth {
    /// Bytes on the wire.
    pub const LEN: usize = 4;

    /// Reads the header.
    ///
    /// # Errors
    /// [`Malformed::FlushLevel`] if the selectivity level is reserved.
    pub fn parse(b: &[u8; Self::LEN]) -> Result<Self, Malformed> {
        let word = u32::from_be_bytes(*b);
        let level = match (word >> 4) & 3 {
            0 => FlushLevel::Range,
            1 => FlushLevel::Region,
            //= spec/packets.md#pkt-008
            //# A reserved selectivity level of a FLUSH MUST be refused.
            _ => return Err(Malformed::FlushLevel),
        };
        Ok(Self { global_visibility: word & 1 != 0, persistence: word & 2 != 0, level })
    }

    /// Writes the header.
    pub fn emit(&self, b: &mut [u8; Self::LEN]) {
        let level = match self.level {
            FlushLevel::Range => 0,
            FlushLevel::Region => 1,
        };
        let word = u32::from(self.global_visibility) | u32::from(self.persistence) << 1 | level << 4;
        *b = word.to_be_bytes();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: [u8; Feth::LEN] = [0, 0, 0, 0x12];
    const HEADER: Feth = Feth { global_visibility: false, persistence: true, level: FlushLevel::Region };

    #[test]
    fn parses() {
        assert_eq!(Feth::parse(&BYTES).unwrap(), HEADER);
    }

    #[test]
    fn emits() {
        let mut bytes = [0xA5; Feth::LEN];
        HEADER.emit(&mut bytes);
        assert_eq!(bytes, BYTES);
    }

    #[test]
    fn each_bit_is_where_it_belongs() {
        let range = Feth { global_visibility: true, persistence: false, level: FlushLevel::Range };
        let mut bytes = [0xA5; Feth::LEN];
        range.emit(&mut bytes);
        assert_eq!(bytes, [0, 0, 0, 0x01]);
        assert_eq!(Feth::parse(&bytes), Ok(range));
    }

    #[test]
    fn reserved_bits_are_ignored_and_reserved_levels_are_not() {
        assert_eq!(Feth::parse(&[0xFF, 0xFF, 0xFF, 0xDE]), Ok(HEADER));
        assert_eq!(Feth::parse(&[0, 0, 0, 0x20]), Err(Malformed::FlushLevel));
        assert_eq!(Feth::parse(&[0, 0, 0, 0x30]), Err(Malformed::FlushLevel));
    }
}
