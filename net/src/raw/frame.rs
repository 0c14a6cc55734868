//! Received frames.

/// A frame in the receive ring.
#[derive(Debug)]
pub struct RawFrame<'a> {
    /// Bytes from the MAC addresses on, without FCS.
    pub bytes: &'a mut [u8],
    /// The frame was longer than a slot of the ring, and its end is missing.
    pub is_cut: bool,
    /// Frame of this host, seen as it leaves.
    pub is_sent: bool,
    /// State of the checksums inside.
    pub checksum: Checksum,
}

/// State of the transport checksum in a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Checksum {
    /// Unknown: neither the interface nor its driver has looked.
    Unknown,
    /// The interface or its driver has found it right.
    Valid,
    /// Left by this host to a card that there is none of: the field holds the sum of the pseudo header.
    Partial,
}
