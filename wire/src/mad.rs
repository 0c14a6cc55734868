//! The header of management datagrams.

/// Bytes of a management datagram (IBA 13.4.2).
pub const MAD_LEN: usize = 256;

/// The common MAD header (IBA 13.4.3).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mad {
    /// Management class: [`Mad::CLASS_CM`] is communication management.
    pub class: u8,
    /// Version of the class.
    pub class_version: u8,
    /// Method, with the response bit at the top.
    pub method: u8,
    /// Outcome.
    pub status: u16,
    /// As the class defines it.
    pub class_specific: u16,
    /// Chosen by the sender of a request.
    pub transaction_id: u64,
    /// Which message.
    pub attribute_id: u16,
    /// As the attribute defines it.
    pub attribute_modifier: u32,
}

impl Mad {
    /// Bytes on the wire.
    pub const LEN: usize = 24;
    /// Communication management (IBA 13.4.4).
    pub const CLASS_CM: u8 = 7;
    /// The version of communication management spoken here (IBA 16.7.1).
    pub const CM_VERSION: u8 = 2;
    /// `Send()`: no response of the MAD layer is expected (IBA 13.4.5).
    pub const METHOD_SEND: u8 = 3;
    /// The only version of the header.
    const BASE_VERSION: u8 = 1;

    /// Reads the header; `None` if it is of another base version. The reserved bytes are ignored.
    #[must_use]
    pub const fn parse(b: &[u8; Self::LEN]) -> Option<Self> {
        let [
            base,
            class,
            class_version,
            method,
            s0,
            s1,
            c0,
            c1,
            t0,
            t1,
            t2,
            t3,
            t4,
            t5,
            t6,
            t7,
            a0,
            a1,
            _,
            _,
            m0,
            m1,
            m2,
            m3,
        ] = *b;
        if base != Self::BASE_VERSION {
            return None;
        }
        Some(Self {
            class,
            class_version,
            method,
            status: u16::from_be_bytes([s0, s1]),
            class_specific: u16::from_be_bytes([c0, c1]),
            transaction_id: u64::from_be_bytes([t0, t1, t2, t3, t4, t5, t6, t7]),
            attribute_id: u16::from_be_bytes([a0, a1]),
            attribute_modifier: u32::from_be_bytes([m0, m1, m2, m3]),
        })
    }

    /// Writes the header.
    pub fn emit(&self, b: &mut [u8; Self::LEN]) {
        b[0..4].copy_from_slice(&[Self::BASE_VERSION, self.class, self.class_version, self.method]);
        b[4..6].copy_from_slice(&self.status.to_be_bytes());
        b[6..8].copy_from_slice(&self.class_specific.to_be_bytes());
        b[8..16].copy_from_slice(&self.transaction_id.to_be_bytes());
        b[16..18].copy_from_slice(&self.attribute_id.to_be_bytes());
        b[18..20].copy_from_slice(&[0; 2]);
        b[20..24].copy_from_slice(&self.attribute_modifier.to_be_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: [u8; Mad::LEN] =
        [1, 7, 2, 3, 0x11, 0x22, 0x33, 0x44, 1, 2, 3, 4, 5, 6, 7, 8, 0, 0x10, 0, 0, 0xAA, 0xBB, 0xCC, 0xDD];
    const HEADER: Mad = Mad {
        class: Mad::CLASS_CM,
        class_version: Mad::CM_VERSION,
        method: Mad::METHOD_SEND,
        status: 0x1122,
        class_specific: 0x3344,
        transaction_id: 0x0102_0304_0506_0708,
        attribute_id: 0x10,
        attribute_modifier: 0xAABB_CCDD,
    };

    #[test]
    fn parses() {
        assert_eq!(Mad::parse(&BYTES), Some(HEADER));
    }

    #[test]
    fn emits() {
        let mut bytes = [0xA5; Mad::LEN];
        HEADER.emit(&mut bytes);
        assert_eq!(bytes, BYTES);
    }

    #[test]
    fn other_base_versions_are_refused() {
        let mut bytes = BYTES;
        bytes[0] = 2;
        assert_eq!(Mad::parse(&bytes), None);
    }
}
