//! Packets that have come.

use urxe_wire::icrc::Check;
use urxe_wire::{Ext, Packet, Psn, Syndrome};

/// A packet that has come.
#[derive(Clone, Debug)]
pub struct Arrived {
    /// Bytes from the BTH to the ICRC.
    pub bytes: Vec<u8>,
    /// Whether its ICRC is right.
    pub check: Check,
}

impl Arrived {
    /// The packet, unless it is malformed.
    #[must_use]
    pub fn packet(&self) -> Option<Packet<'_>> {
        Packet::parse(&self.bytes).ok()
    }

    /// The packet in the words of `urxe trace`.
    #[must_use]
    pub fn text(&self) -> String {
        describe(&self.bytes) + if self.check == Check::Bad { " (wrong ICRC)" } else { "" }
    }

    /// Returns PSN and syndrome of an ACK or a NAK.
    #[must_use]
    pub fn acknowledgement(&self) -> Option<(Psn, Syndrome)> {
        let packet = self.packet()?;
        match packet.header.ext {
            Ext::Aeth(aeth) | Ext::AethAtomicAckEth(aeth, _) => Some((packet.header.bth.psn, aeth.syndrome)),
            _ => None,
        }
    }
}

/// A packet, ICRC included, in the words of `urxe trace`.
#[must_use]
pub fn describe(bytes: &[u8]) -> String {
    match Packet::parse(bytes) {
        Ok(packet) => packet.to_string(),
        Err(malformed) => format!("no RoCE v2 packet, {malformed}: {}", hex(bytes)),
    }
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
