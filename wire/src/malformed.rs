//! Bytes that are no packet.

use core::fmt;

/// Why bytes are not a RoCE v2 packet. Such packets are dropped without an answer (IBA 9.6).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Malformed {
    /// Shorter than its headers, its pad bytes and the ICRC.
    TooShort,
    /// Not a multiple of four bytes long.
    Unaligned,
    /// The opcode byte is not in the table.
    Opcode(u8),
    /// TVer is not 0.
    TransportVersion,
    /// PadCnt is larger than the payload.
    PadCount,
    /// The AETH syndrome is reserved.
    Syndrome(u8),
    /// The FETH selectivity level is reserved.
    FlushLevel,
    /// An offer of selective repeat is of an unknown version.
    SelectiveVersion(u8),
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooShort => f.write_str("shorter than its headers"),
            Self::Unaligned => f.write_str("length is not a multiple of four"),
            Self::Opcode(byte) => write!(f, "unknown opcode {byte:#04x}"),
            Self::TransportVersion => f.write_str("transport header version is not 0"),
            Self::PadCount => f.write_str("more padding than payload"),
            Self::Syndrome(byte) => write!(f, "reserved AETH syndrome {byte:#04x}"),
            Self::FlushLevel => f.write_str("reserved FLUSH selectivity level"),
            Self::SelectiveVersion(version) => write!(f, "unknown version {version} of selective repeat"),
        }
    }
}

impl core::error::Error for Malformed {}
