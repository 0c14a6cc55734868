//! The RDMA extended transport header: WRITE First/Only and READ request.

use crate::RKey;

/// RDMA extended transport header (IBA 9.3): the remote memory an RDMA operation is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reth {
    /// Address in the responder's region, in bytes.
    pub va: u64,
    /// Key of the region or window.
    pub r_key: RKey,
    /// Bytes of the whole message, at most 2^31.
    pub dma_len: u32,
}

impl Reth {
    /// Bytes on the wire.
    pub const LEN: usize = 16;

    /// Reads the header; every value is legal here (limits are the responder's to check).
    #[must_use]
    pub const fn parse(b: &[u8; Self::LEN]) -> Self {
        let [v0, v1, v2, v3, v4, v5, v6, v7, k0, k1, k2, k3, l0, l1, l2, l3] = *b;
        Self {
            va: u64::from_be_bytes([v0, v1, v2, v3, v4, v5, v6, v7]),
            r_key: RKey(u32::from_be_bytes([k0, k1, k2, k3])),
            dma_len: u32::from_be_bytes([l0, l1, l2, l3]),
        }
    }

    /// Writes the header.
    #[inline]
    pub fn emit(&self, b: &mut [u8; Self::LEN]) {
        b[0..8].copy_from_slice(&self.va.to_be_bytes());
        b[8..12].copy_from_slice(&self.r_key.0.to_be_bytes());
        b[12..16].copy_from_slice(&self.dma_len.to_be_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: [u8; Reth::LEN] = [0, 0, 0x7F, 0x12, 0x34, 0x56, 0x78, 0x9A, 0xDE, 0xAD, 0xBE, 0xEF, 0x80, 0, 0, 1];
    const HEADER: Reth = Reth { va: 0x7F12_3456_789A, r_key: RKey(0xDEAD_BEEF), dma_len: 0x8000_0001 };

    #[test]
    fn parses() {
        assert_eq!(Reth::parse(&BYTES), HEADER);
    }

    #[test]
    fn emits() {
        let mut bytes = [0xA5; Reth::LEN];
        HEADER.emit(&mut bytes);
        assert_eq!(bytes, BYTES);
    }
}
