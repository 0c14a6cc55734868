//! Services of queue pairs.

use urxe_wire::Transport;

use crate::work::SendOp;

/// The service a queue pair gives (`enum ibv_qp_type`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[expect(missing_docs, reason = "the names are libibverbs'")]
pub enum QpType {
    Rc,
    Uc,
    Ud,
    XrcSend,
    XrcRecv,
}

impl QpType {
    /// The transport of its packets.
    #[must_use]
    pub const fn transport(self) -> Transport {
        match self {
            Self::Rc => Transport::Rc,
            Self::Uc => Transport::Uc,
            Self::Ud => Transport::Ud,
            Self::XrcSend | Self::XrcRecv => Transport::Xrc,
        }
    }

    /// Whether requests are acknowledged, and sent again when they are lost.
    #[must_use]
    pub const fn is_reliable(self) -> bool {
        !matches!(self, Self::Uc | Self::Ud)
    }

    /// Whether its send queue takes the operation (IBA 9.8 table "services and operations").
    pub(super) const fn carries(self, op: &SendOp) -> bool {
        match self {
            Self::Rc | Self::XrcSend => true,
            Self::Uc => !op.takes_responder_resource() && !matches!(op, SendOp::SendWithInvalidate(_)),
            Self::Ud => matches!(op, SendOp::Send | SendOp::SendWithImmediate(_)),
            Self::XrcRecv => false,
        }
    }
}
