//! Queue pair states and the table of transitions between them.
//!
//! Which attributes a transition must and may have: IBA 11.2.5.2 table "QP state transition properties", as in
//! `qp_state_table` of `drivers/infiniband/core/verbs.c`.

use core::fmt;

use super::QpType;
use super::attr::AttrMask;

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
    /// All of them.
    pub const ALL: [Self; 7] = [Self::Reset, Self::Init, Self::Rtr, Self::Rts, Self::Sqd, Self::Sqe, Self::Err];

    /// From libibverbs' number.
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

/// What a transition needs and takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Transition {
    /// Attributes that must be given.
    pub required: AttrMask,
    /// Attributes that may be given.
    pub optional: AttrMask,
}

/// The row of the table for `from` → `to`; `None` if there is no such transition.
#[must_use]
//= spec/states.md#qps-001
//# A queue pair MUST change its state only along the table's transitions.
pub fn transition(qp_type: QpType, from: QpState, to: QpState) -> Option<Transition> {
    use QpState::{Err, Init, Reset, Rtr, Rts, Sqd, Sqe};
    use QpType::{Rc, Uc, Ud, XrcRecv, XrcSend};

    const NONE: AttrMask = AttrMask::NONE;
    const PORT: AttrMask = AttrMask::PKEY_INDEX.with(AttrMask::PORT);
    const ACCESS: AttrMask = AttrMask::ACCESS_FLAGS;
    const PATHS: AttrMask = AttrMask::ALT_PATH.with(ACCESS).with(AttrMask::PATH_MIG_STATE);
    const CUR: AttrMask = AttrMask::CUR_STATE;
    const RNR: AttrMask = AttrMask::MIN_RNR_TIMER;
    const PEER: AttrMask = AttrMask::AV.with(AttrMask::PATH_MTU).with(AttrMask::DEST_QPN).with(AttrMask::RQ_PSN);
    const RESPONDER: AttrMask = AttrMask::MAX_DEST_RD_ATOMIC.with(RNR);
    const RETRY: AttrMask =
        AttrMask::TIMEOUT.with(AttrMask::RETRY_CNT).with(AttrMask::RNR_RETRY).with(AttrMask::MAX_QP_RD_ATOMIC);

    let row = |required, optional| Some(Transition { required, optional });
    match (from, to) {
        (Reset, Err) => None,
        (_, Reset | Err) => row(NONE, NONE),
        (Reset, Init) => match qp_type {
            Rc | Uc | XrcSend | XrcRecv => row(PORT.with(ACCESS), NONE),
            Ud => row(PORT.with(AttrMask::QKEY), NONE),
        },
        (Init, Init) => match qp_type {
            Rc | Uc | XrcSend | XrcRecv => row(NONE, PORT.with(ACCESS)),
            Ud => row(NONE, PORT.with(AttrMask::QKEY)),
        },
        (Init, Rtr) => {
            let connected = AttrMask::ALT_PATH.with(ACCESS).with(AttrMask::PKEY_INDEX);
            match qp_type {
                Rc | XrcRecv => row(PEER.with(RESPONDER), connected),
                Uc | XrcSend => row(PEER, connected),
                Ud => row(NONE, AttrMask::PKEY_INDEX.with(AttrMask::QKEY)),
            }
        }
        (Rtr, Rts) => match qp_type {
            Rc => row(RETRY.with(AttrMask::SQ_PSN), CUR.with(PATHS).with(RNR)),
            XrcSend => row(RETRY.with(AttrMask::SQ_PSN), CUR.with(PATHS)),
            XrcRecv => row(AttrMask::TIMEOUT.with(AttrMask::SQ_PSN), CUR.with(PATHS).with(RNR)),
            Uc => row(AttrMask::SQ_PSN, CUR.with(PATHS)),
            Ud => row(AttrMask::SQ_PSN, CUR.with(AttrMask::QKEY)),
        },
        (Rts | Sqd, Rts) => match qp_type {
            Rc | XrcRecv => row(NONE, CUR.with(PATHS).with(RNR)),
            Uc | XrcSend => row(NONE, CUR.with(PATHS)),
            Ud => row(NONE, CUR.with(AttrMask::QKEY)),
        },
        (Rts, Sqd) => match qp_type {
            Rc | Uc | Ud | XrcSend | XrcRecv => row(NONE, AttrMask::EN_SQD_ASYNC_NOTIFY),
        },
        (Sqd, Sqd) => {
            let path = AttrMask::AV.with(PATHS).with(AttrMask::PKEY_INDEX);
            match qp_type {
                Rc => row(NONE, path.with(AttrMask::PORT).with(RETRY).with(RESPONDER)),
                XrcSend => row(NONE, path.with(AttrMask::PORT).with(RETRY)),
                XrcRecv => row(NONE, path.with(AttrMask::PORT).with(AttrMask::TIMEOUT).with(RESPONDER)),
                Uc => row(NONE, path),
                Ud => row(NONE, AttrMask::PKEY_INDEX.with(AttrMask::QKEY)),
            }
        }
        (Sqe, Rts) => match qp_type {
            Uc => row(NONE, CUR.with(ACCESS)),
            Ud => row(NONE, CUR.with(AttrMask::QKEY)),
            Rc | XrcSend | XrcRecv => None,
        },
        (Reset | Init | Rtr | Sqd | Sqe | Err, _) | (Rts, Init | Rtr | Sqe) => None,
    }
}
