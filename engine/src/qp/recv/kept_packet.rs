//! A packet that is kept: whole, or without bytes that are stored already.

use alloc::vec::Vec;

use urxe_wire::{Header, Packet};

/// A request that is kept.
#[derive(Debug)]
pub(in crate::qp) struct KeptPacket {
    pub(super) header: Header,
    pub(super) payload: Payload,
}

/// Payload of a request that is kept.
#[derive(Debug)]
pub(super) enum Payload {
    Bytes(Vec<u8>),
    /// Number of bytes, which are stored already.
    Stored(u16),
}

/// Stands for bytes that are stored already.
pub(super) static STORED: [u8; 4096] = [0; 4096];

impl KeptPacket {
    /// The packet as it came; of bytes that [are stored](Self::is_stored) it has the length alone.
    pub(in crate::qp) fn packet(&self) -> Packet<'_> {
        let payload = match &self.payload {
            Payload::Bytes(bytes) => bytes,
            Payload::Stored(len) => STORED.get(..usize::from(*len)).unwrap_or_default(),
        };
        Packet { header: self.header, payload }
    }

    /// Whether its bytes are stored already.
    pub(in crate::qp) const fn is_stored(&self) -> bool {
        matches!(self.payload, Payload::Stored(_))
    }
}

/// Fate of a packet behind a gap.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::qp) enum Keeping {
    Kept,
    Duplicate,
    NoRoom,
}
