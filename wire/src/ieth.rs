//! The invalidate extended transport header: SEND with invalidate.

use crate::RKey;

/// Invalidate extended transport header (IBA 9.3): the key the responder shall invalidate.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ieth {
    /// Key of the region or window to invalidate.
    pub r_key: RKey,
}

impl Ieth {
    /// Bytes on the wire.
    pub const LEN: usize = 4;

    /// Reads the header.
    #[must_use]
    pub const fn parse(b: &[u8; Self::LEN]) -> Self {
        Self { r_key: RKey(u32::from_be_bytes(*b)) }
    }

    /// Writes the header.
    pub fn emit(&self, b: &mut [u8; Self::LEN]) {
        *b = self.r_key.0.to_be_bytes();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: [u8; Ieth::LEN] = [0xDE, 0xAD, 0xBE, 0xEF];
    const HEADER: Ieth = Ieth { r_key: RKey(0xDEAD_BEEF) };

    #[test]
    fn parses() {
        assert_eq!(Ieth::parse(&BYTES), HEADER);
    }

    #[test]
    fn emits() {
        let mut bytes = [0xA5; Ieth::LEN];
        HEADER.emit(&mut bytes);
        assert_eq!(bytes, BYTES);
    }
}
