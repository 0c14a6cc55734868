//! The datagram extended transport header: UD.

use crate::{QKey, Qpn};

/// Datagram extended transport header (IBA 9.3).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Deth {
    /// Must be the receiving QP's.
    pub q_key: QKey,
    /// The QP that sent it.
    pub src_qp: Qpn,
    /// The sender's address vector has a LID and no GRH. urxe's own use of the reserved byte between ports whose link layer is
    /// InfiniBand, which have no other way to tell; others send 0 there and ignore it.
    pub lid_routed: bool,
}

/// Bit of the reserved byte: [`Deth::lid_routed`].
const LID_ROUTED: u8 = 1;

impl Deth {
    /// Bytes on the wire.
    pub const LEN: usize = 8;

    /// Reads the header; the other bits of the reserved byte are ignored.
    #[must_use]
    pub const fn parse(b: &[u8; Self::LEN]) -> Self {
        let [k0, k1, k2, k3, reserved, q0, q1, q2] = *b;
        Self {
            q_key: QKey(u32::from_be_bytes([k0, k1, k2, k3])),
            src_qp: Qpn::new(u32::from_be_bytes([0, q0, q1, q2])),
            lid_routed: reserved & LID_ROUTED != 0,
        }
    }

    /// Writes the header.
    pub fn emit(&self, b: &mut [u8; Self::LEN]) {
        b[0..4].copy_from_slice(&self.q_key.0.to_be_bytes());
        b[4..8].copy_from_slice(&self.src_qp.get().to_be_bytes());
        b[4] = if self.lid_routed { LID_ROUTED } else { 0 };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: [u8; Deth::LEN] = [0x11, 0x22, 0x33, 0x44, 0, 0xAB, 0xCD, 0xEF];
    const HEADER: Deth = Deth { q_key: QKey(0x1122_3344), src_qp: Qpn::new(0xAB_CDEF), lid_routed: false };

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
    fn one_bit_of_the_reserved_byte_has_a_meaning() {
        let mut bytes = BYTES;
        bytes[4] = 0xFE;
        assert_eq!(Deth::parse(&bytes), HEADER);
        bytes[4] = 0x01;
        let header = Deth { lid_routed: true, ..HEADER };
        assert_eq!(Deth::parse(&bytes), header);
        let mut written = [0xA5; Deth::LEN];
        header.emit(&mut written);
        assert_eq!(written, bytes);
    }
}
