//! The XRC extended transport header.

use crate::Qpn;

/// XRC extended transport header (IBA annex A14): which SRQ of the XRC domain takes the message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct XrcEth {
    /// The SRQ's number, from the same space as QPNs.
    pub xrc_srq: Qpn,
}

impl XrcEth {
    /// Bytes on the wire.
    pub const LEN: usize = 4;

    /// Reads the header; the reserved byte is ignored.
    #[must_use]
    pub const fn parse(b: &[u8; Self::LEN]) -> Self {
        Self { xrc_srq: Qpn::new(u32::from_be_bytes(*b)) }
    }

    /// Writes the header.
    pub fn emit(&self, b: &mut [u8; Self::LEN]) {
        *b = self.xrc_srq.get().to_be_bytes();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: [u8; XrcEth::LEN] = [0, 0xAB, 0xCD, 0xEF];
    const HEADER: XrcEth = XrcEth { xrc_srq: Qpn::new(0xAB_CDEF) };

    #[test]
    fn parses() {
        assert_eq!(XrcEth::parse(&BYTES), HEADER);
    }

    #[test]
    fn emits() {
        let mut bytes = [0xA5; XrcEth::LEN];
        HEADER.emit(&mut bytes);
        assert_eq!(bytes, BYTES);
    }

    #[test]
    fn reserved_byte_is_ignored() {
        assert_eq!(XrcEth::parse(&[0xFF, 0xAB, 0xCD, 0xEF]), HEADER);
    }
}
