//! The acknowledge extended transport header.

use crate::{Malformed, Msn, Syndrome};

/// Acknowledge extended transport header (IBA 9.3): in ACK, ATOMIC ACK, and READ response First/Last/Only.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Aeth {
    /// ACK, RNR NAK or NAK.
    pub syndrome: Syndrome,
    /// The requests the responder has completed.
    pub msn: Msn,
}

impl Aeth {
    /// Bytes on the wire.
    pub const LEN: usize = 4;

    /// Reads the header.
    ///
    /// # Errors
    /// [`Malformed::Syndrome`] if the syndrome is reserved.
    pub fn parse(b: &[u8; Self::LEN]) -> Result<Self, Malformed> {
        let [syndrome, m0, m1, m2] = *b;
        Ok(Self {
            syndrome: Syndrome::from_u8(syndrome).ok_or(Malformed::Syndrome(syndrome))?,
            msn: Msn::new(u32::from_be_bytes([0, m0, m1, m2])),
        })
    }

    /// Writes the header.
    pub fn emit(&self, b: &mut [u8; Self::LEN]) {
        *b = self.msn.get().to_be_bytes();
        b[0] = self.syndrome.to_u8();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RnrTimer;

    const BYTES: [u8; Aeth::LEN] = [0x2E, 0x12, 0x34, 0x56];
    const HEADER: Aeth = Aeth { syndrome: Syndrome::RnrNak(RnrTimer::new(14)), msn: Msn::new(0x12_3456) };

    #[test]
    fn parses() {
        assert_eq!(Aeth::parse(&BYTES).unwrap(), HEADER);
    }

    #[test]
    fn emits() {
        let mut bytes = [0xA5; Aeth::LEN];
        HEADER.emit(&mut bytes);
        assert_eq!(bytes, BYTES);
    }

    #[test]
    fn reserved_syndromes_are_malformed() {
        for syndrome in [0x40, 0x65, 0x7F, 0x80, 0xFF] {
            assert_eq!(Aeth::parse(&[syndrome, 0, 0, 0]), Err(Malformed::Syndrome(syndrome)));
        }
    }
}
