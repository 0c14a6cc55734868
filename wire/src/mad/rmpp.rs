//! The header of the reliable multi-packet protocol (IBA 13.6.2.1), which carries messages longer than a datagram.

use super::{MAD_LEN, Mad};

/// RMPP header: bytes 24 to 35 of a datagram whose class [has one](super::has_rmpp).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rmpp {
    /// Version of the protocol: [`Rmpp::VERSION`].
    pub version: u8,
    /// Type of the packet, if it [is active](Self::is_active).
    pub kind: u8,
    /// Response time in the upper five bits ([`Rmpp::NO_RESPONSE_TIME`]), flags in the lower three.
    pub time_and_flags: u8,
    /// Reason of a STOP or ABORT.
    pub status: u8,
    /// Number of the segment, from 1; of an ACK: all segments up to it have arrived.
    pub segment: u32,
    /// Payload length of a DATA packet, new window end of an ACK.
    pub length_or_window: u32,
}

impl Rmpp {
    /// The only version (IBA 13.6.2.1).
    pub const VERSION: u8 = 1;
    /// Type of a segment.
    pub const DATA: u8 = 1;
    /// Type of an acknowledgement.
    pub const ACK: u8 = 2;
    /// Type of a refusal for lack of resources.
    pub const STOP: u8 = 3;
    /// Type of a refusal for an error.
    pub const ABORT: u8 = 4;
    /// Flag: the packet takes part in the protocol.
    pub const ACTIVE: u8 = 1;
    /// Flag: the first segment.
    pub const FIRST: u8 = 2;
    /// Flag: the last segment.
    pub const LAST: u8 = 4;
    /// Response time "none given".
    pub const NO_RESPONSE_TIME: u8 = 0xF8;
    /// Payload bytes of a segment, class header included (IBA 13.6.2.1 "PayloadLength").
    pub const SEGMENT: u32 = 220;

    /// Status of a STOP: resources exhausted (IBA 13.6.3 table 117).
    pub const RESOURCES_EXHAUSTED: u8 = 1;
    /// Status of an ABORT: total time too long.
    pub const TOO_LONG: u8 = 118;
    /// Status of an ABORT: inconsistent last flag and length.
    pub const BAD_LENGTH: u8 = 119;
    /// Status of an ABORT: inconsistent first flag and segment number.
    pub const BAD_SEGMENT: u8 = 120;
    /// Status of an ABORT: bad type.
    pub const BAD_TYPE: u8 = 121;
    /// Status of an ABORT: new window end smaller than the segment acknowledged.
    pub const WINDOW_TOO_SMALL: u8 = 122;
    /// Status of an ABORT: segment number too big.
    pub const SEGMENT_TOO_BIG: u8 = 123;
    /// Status of an ABORT: illegal status.
    pub const BAD_STATUS: u8 = 124;
    /// Status of an ABORT: version not supported.
    pub const BAD_VERSION: u8 = 125;
    /// Status of an ABORT: too many retries.
    pub const TOO_MANY_RETRIES: u8 = 126;

    /// Bytes of the header.
    pub const LEN: usize = 12;
    /// End of the header in a datagram.
    pub const END: usize = Mad::LEN + Self::LEN;

    /// Reads the header of a datagram.
    #[must_use]
    pub fn of(datagram: &[u8; MAD_LEN]) -> Self {
        let mut bytes = [0; Self::LEN];
        bytes.copy_from_slice(&datagram[Mad::LEN..Self::END]);
        let [version, kind, time_and_flags, status, s0, s1, s2, s3, l0, l1, l2, l3] = bytes;
        Self {
            version,
            kind,
            time_and_flags,
            status,
            segment: u32::from_be_bytes([s0, s1, s2, s3]),
            length_or_window: u32::from_be_bytes([l0, l1, l2, l3]),
        }
    }

    /// Writes the header into a datagram.
    pub fn put(&self, datagram: &mut [u8; MAD_LEN]) {
        datagram[24..28].copy_from_slice(&[self.version, self.kind, self.time_and_flags, self.status]);
        datagram[28..32].copy_from_slice(&self.segment.to_be_bytes());
        datagram[32..36].copy_from_slice(&self.length_or_window.to_be_bytes());
    }

    /// Whether the packet takes part in the protocol.
    #[must_use]
    pub const fn is_active(&self) -> bool {
        self.time_and_flags & Self::ACTIVE != 0
    }

    /// Whether the packet is the first segment.
    #[must_use]
    pub const fn is_first(&self) -> bool {
        self.time_and_flags & Self::FIRST != 0
    }

    /// Whether the packet is the last segment.
    #[must_use]
    pub const fn is_last(&self) -> bool {
        self.time_and_flags & Self::LAST != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_and_emits() {
        let mut datagram = [0xA5; MAD_LEN];
        let header = Rmpp {
            version: 1,
            kind: Rmpp::DATA,
            time_and_flags: Rmpp::NO_RESPONSE_TIME | Rmpp::ACTIVE | Rmpp::LAST,
            status: 0,
            segment: 0x0102_0304,
            length_or_window: 220,
        };
        header.put(&mut datagram);
        assert_eq!(datagram[24..36], [1, 1, 0xFD, 0, 1, 2, 3, 4, 0, 0, 0, 220]);
        assert_eq!((datagram[23], datagram[36]), (0xA5, 0xA5));
        assert_eq!(Rmpp::of(&datagram), header);
        assert!(header.is_active() && header.is_last() && !header.is_first());
    }
}
