//! The FLUSH extended transport header.

use crate::Malformed;

/// FLUSH extended transport header (IBA annex A19): how durable, and how much.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Feth {
    /// Placement type: make earlier writes globally visible.
    pub global_visibility: bool,
    /// Placement type: make earlier writes persistent.
    pub persistence: bool,
    /// Selectivity level.
    pub level: FlushLevel,
}

/// Which memory a FLUSH is about (IBA annex A19).
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
