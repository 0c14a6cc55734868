//! Queue pair states.

use core::fmt;

/// A queue pair's state (IBA 10.3.1). The numbers are libibverbs'.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[repr(u32)]
#[expect(missing_docs, reason = "the names are the specification's")]
pub enum QpState {
    Reset = 0,
    Init = 1,
    Rtr = 2,
    Rts = 3,
    Sqd = 4,
    Sqe = 5,
    Err = 6,
}

impl QpState {
    /// Every state.
    pub const ALL: [Self; 7] = [Self::Reset, Self::Init, Self::Rtr, Self::Rts, Self::Sqd, Self::Sqe, Self::Err];

    /// Takes libibverbs' number.
    #[must_use]
    pub const fn from_u32(number: u32) -> Option<Self> {
        if number < 7 { Some(Self::ALL[number as usize]) } else { None }
    }

    /// Whether the responder takes requests: from RTR on, until ERR.
    #[must_use]
    pub const fn receives(self) -> bool {
        matches!(self, Self::Rtr | Self::Rts | Self::Sqd | Self::Sqe)
    }

    /// Whether the requester deals with what it has sent.
    #[must_use]
    pub const fn sends(self) -> bool {
        matches!(self, Self::Rts | Self::Sqd)
    }
}

impl fmt::Display for QpState {
    /// Writes the specification's name: `RESET`, `RTS`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Reset => "RESET",
            Self::Init => "INIT",
            Self::Rtr => "RTR",
            Self::Rts => "RTS",
            Self::Sqd => "SQD",
            Self::Sqe => "SQE",
            Self::Err => "ERR",
        })
    }
}
