//! The acknowledge extended transport header.

use crate::{Malformed, Msn, Syndrome};

/// Acknowledge extended transport header (IBA 9.3.5): in ACK, ATOMIC ACK, and READ response First/Last/Only.
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
