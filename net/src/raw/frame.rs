//! Received frames.

/// A frame in the receive ring.
#[derive(Debug)]
pub struct RawFrame<'a> {
    /// Bytes from the MAC addresses on, without FCS.
    pub bytes: &'a mut [u8],
    /// Reason why the frame is not whole, if it is not.
    pub missing: Option<Missing>,
    /// Segments that the frame is to be cut into, if it is several.
    pub segments: Option<Segments>,
    /// Frame of this host, seen as it leaves.
    pub is_sent: bool,
    /// XDP has taken the frame: the host does not get it.
    pub is_taken: bool,
    /// State of the checksums inside.
    pub checksum: Checksum,
}

/// Reason why the end of a frame is missing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Missing {
    /// Longer than any frame may be.
    TooLong,
    /// Longer than a slot, and the socket's buffer for those was full.
    NoRoom,
}

/// Frames that the kernel hands on as one: those that a sender has left to its card to cut, and those that a receiver's driver
/// has put together (GSO, GRO). The one frame has the headers of all of them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Segments {
    /// Bytes of payload in each, but for the last.
    pub size: u16,
    /// Segments of TCP, else datagrams of UDP.
    pub is_tcp: bool,
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
    /// Unknown, and perhaps left to a card: XDP does not say.
    MaybePartial,
}
