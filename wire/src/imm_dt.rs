//! Immediate data.

/// Immediate data (IBA 9.3): four bytes for the receiver's completion, in network order as the
/// application gave them.
// Aligned as other headers are, so that it is moved by itself and not with what is beside it.
#[repr(align(4))]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ImmDt(pub [u8; 4]);

impl ImmDt {
    /// Bytes on the wire.
    pub const LEN: usize = 4;

    /// Reads the header.
    #[must_use]
    pub const fn parse(b: &[u8; Self::LEN]) -> Self {
        Self(*b)
    }

    /// Writes the header.
    pub fn emit(&self, b: &mut [u8; Self::LEN]) {
        *b = self.0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: [u8; ImmDt::LEN] = [0xC0, 0xFF, 0xEE, 0x42];
    const HEADER: ImmDt = ImmDt([0xC0, 0xFF, 0xEE, 0x42]);

    #[test]
    fn parses() {
        assert_eq!(ImmDt::parse(&BYTES), HEADER);
    }

    #[test]
    fn emits() {
        let mut bytes = [0xA5; ImmDt::LEN];
        HEADER.emit(&mut bytes);
        assert_eq!(bytes, BYTES);
    }
}
