//! The table of transitions between queue pair states, and the checks of `modify`.
//!
//! Which attributes a transition must and may have: IBA 11.2.5.2 table "QP state transition properties", as in
//! `qp_state_table` of `drivers/infiniband/core/verbs.c`.

use super::attr::AttrMask;
use super::qp_type::QpType;
use super::state::QpState;

/// Attributes of a transition.
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

/// Why `modify` is refused (`ibv_modify_qp(3)`: EINVAL).
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ModifyError {
    /// The table has no such transition for this type.
    #[error("no transition from {from} to {to}")]
    NoTransition {
        /// The state it is in.
        from: QpState,
        /// The state asked for.
        to: QpState,
    },
    /// Required attributes are not given.
    #[error("required attributes are missing: {0}")]
    Missing(AttrMask),
    /// Attributes are given that the transition does not take.
    #[error("the transition does not take the attributes {0}")]
    Unexpected(AttrMask),
    /// `cur_qp_state` is not the state it is in.
    #[error("the queue pair is in {0}")]
    CurrentState(QpState),
    /// An attribute's value is out of range.
    #[error("value out of range: {0}")]
    Value(AttrMask),
}

/// Checks a change of a QP of type `qp_type` from `from` with the attributes `mask`, which includes
/// [`AttrMask::STATE`] when `to` was given by the caller.
///
/// # Errors
/// The first rule broken.
//= spec/states.md#qps-002
//# A modify without a required attribute, or with one that does not belong there, MUST be refused with EINVAL and
//# change nothing.
pub fn check(qp_type: QpType, from: QpState, to: QpState, mask: AttrMask) -> Result<(), ModifyError> {
    let row = transition(qp_type, from, to).ok_or(ModifyError::NoTransition { from, to })?;
    let given = mask.without(AttrMask::STATE);
    let missing = row.required.without(given);
    if !missing.is_empty() {
        return Err(ModifyError::Missing(missing));
    }
    let unexpected = given.without(row.required.with(row.optional));
    if !unexpected.is_empty() {
        return Err(ModifyError::Unexpected(unexpected));
    }
    Ok(())
}
