//! The atomic acknowledge extended transport header.

/// Atomic acknowledge extended transport header (IBA 9.5.3): what the memory held before the operation.
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
