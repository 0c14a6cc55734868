//! The datagram extended transport header: UD.

use crate::{QKey, Qpn};

/// Datagram extended transport header (IBA 9.3).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Deth {
    /// Must be the receiving QP's.
    pub q_key: QKey,
    /// The QP that sent it.
    pub src_qp: Qpn,
}

impl Deth {
    /// Bytes on the wire.
    pub const LEN: usize = 8;

    /// Reads the header; the reserved byte is ignored.
    #[must_use]
    pub const fn parse(b: &[u8; Self::LEN]) -> Self {
        let [k0, k1, k2, k3, _, q0, q1, q2] = *b;
        Self {
            q_key: QKey(u32::from_be_bytes([k0, k1, k2, k3])),
            src_qp: Qpn::new(u32::from_be_bytes([0, q0, q1, q2])),
        }
    }

    /// Writes the header.
    pub fn emit(&self, b: &mut [u8; Self::LEN]) {
        b[0..4].copy_from_slice(&self.q_key.0.to_be_bytes());
        b[4..8].copy_from_slice(&self.src_qp.get().to_be_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: [u8; Deth::LEN] = [0x11, 0x22, 0x33, 0x44, 0, 0xAB, 0xCD, 0xEF];
    const HEADER: Deth = Deth { q_key: QKey(0x1122_3344), src_qp: Qpn::new(0xAB_CDEF) };

    #[test]
    fn parses() {
        assert_eq!(Deth::parse(&BYTES), HEADER);
    }

    #[test]
    fn emits() {
        let mut bytes = [0xA5; Deth::LEN];
        HEADER.emit(&mut bytes);
        assert_eq!(bytes, BYTES);
    }

    #[test]
    fn reserved_byte_is_ignored() {
        let mut bytes = BYTES;
        bytes[4] = 0xFF;
        assert_eq!(Deth::parse(&bytes), HEADER);
    }
}
