//! The atomic extended transport header: CMP_SWP and FETCH_ADD requests.

use crate::RKey;

/// Atomic extended transport header (IBA 9.3).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AtomicEth {
    /// Address of the eight bytes.
    pub va: u64,
    /// Key of the region or window.
    pub r_key: RKey,
    /// CMP_SWP: the value to store. FETCH_ADD: the value to add.
    pub swap_add: u64,
    /// CMP_SWP: the value to compare with. FETCH_ADD: ignored.
    pub compare: u64,
}

impl AtomicEth {
    /// Bytes on the wire.
    pub const LEN: usize = 28;

    /// Reads the header; every value is legal here.
    #[must_use]
    pub fn parse(b: &[u8; Self::LEN]) -> Self {
        let quad = |at: usize| {
            let mut bytes = [0; 8];
            bytes.copy_from_slice(&b[at..at + 8]);
            u64::from_be_bytes(bytes)
        };
        Self {
            va: quad(0),
            r_key: RKey(u32::from_be_bytes([b[8], b[9], b[10], b[11]])),
            swap_add: quad(12),
            compare: quad(20),
        }
    }

    /// Writes the header.
    pub fn emit(&self, b: &mut [u8; Self::LEN]) {
        b[0..8].copy_from_slice(&self.va.to_be_bytes());
        b[8..12].copy_from_slice(&self.r_key.0.to_be_bytes());
        b[12..20].copy_from_slice(&self.swap_add.to_be_bytes());
        b[20..28].copy_from_slice(&self.compare.to_be_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: [u8; AtomicEth::LEN] = [
        0, 0, 0x7F, 0x12, 0x34, 0x56, 0x78, 0x98, 0xDE, 0xAD, 0xBE, 0xEF, 0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77,
        0x88, 0xA1, 0xA2, 0xA3, 0xA4, 0xA5, 0xA6, 0xA7, 0xA8,
    ];
    const HEADER: AtomicEth = AtomicEth {
        va: 0x7F12_3456_7898,
        r_key: RKey(0xDEAD_BEEF),
        swap_add: 0x1122_3344_5566_7788,
        compare: 0xA1A2_A3A4_A5A6_A7A8,
    };

    #[test]
    fn parses() {
        assert_eq!(AtomicEth::parse(&BYTES), HEADER);
    }

    #[test]
    fn emits() {
        let mut bytes = [0xA5; AtomicEth::LEN];
        HEADER.emit(&mut bytes);
        assert_eq!(bytes, BYTES);
    }
}
