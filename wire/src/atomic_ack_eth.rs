//! The atomic acknowledge extended transport header.

/// Atomic acknowledge extended transport header (IBA 9.3): what the memory held before the operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AtomicAckEth {
    /// The original eight bytes, as a number.
    pub original: u64,
}

impl AtomicAckEth {
    /// Bytes on the wire.
    pub const LEN: usize = 8;

    /// Reads the header; every value is legal.
    #[must_use]
    pub const fn parse(b: &[u8; Self::LEN]) -> Self {
        Self { original: u64::from_be_bytes(*b) }
    }

    /// Writes the header.
    pub fn emit(&self, b: &mut [u8; Self::LEN]) {
        *b = self.original.to_be_bytes();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: [u8; AtomicAckEth::LEN] = [0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88];
    const HEADER: AtomicAckEth = AtomicAckEth { original: 0x1122_3344_5566_7788 };

    #[test]
    fn parses() {
        assert_eq!(AtomicAckEth::parse(&BYTES), HEADER);
    }

    #[test]
    fn emits() {
        let mut bytes = [0xA5; AtomicAckEth::LEN];
        HEADER.emit(&mut bytes);
        assert_eq!(bytes, BYTES);
    }
}
