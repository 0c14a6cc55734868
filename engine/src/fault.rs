//! Error tables: a responder's reaction to each fault of a request, a requester's to each fault of a response.
//!
//! Source: IBA 9.9.3 "Responder side error behavior", tables of fault classes, C9-222 ff.; 9.9.2.1 for the requester. Where
//! the kernel's rxe differs, the row says so.

use urxe_wire::NakCode;

use crate::async_event::AsyncEvent;
use crate::cq::WcStatus;
use crate::mr::Refusal;

/// Fault of a request, or in carrying it out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ResponderFault {
    /// First, Middle, Last and Only packets came in an impossible order.
    OpcodeSequence,
    /// The operation is not one this QP carries out.
    Unsupported,
    /// The payload's length is not what the position demands, or disagrees with the RETH.
    Length,
    /// The XRC domain has no such SRQ, or has it no more.
    NoSuchSrq,
    /// The process that has the SRQ does not answer now: the packet counts as lost, and comes again.
    NoAnswer,
    /// The QP's access flags do not allow the operation.
    QpAccess,
    /// An atomic's address is not a multiple of eight.
    Misaligned,
    /// More READs and atomics at once than responder resources.
    TooManyReads,
    /// The R_Key does not give the access.
    RemoteAccess(Refusal),
    /// The message is longer than the receive WQE's buffers.
    RecvTooShort,
    /// An L_Key of the receive WQE does not give the access.
    RecvProtection(Refusal),
    /// The key of a SEND with invalidate is not one that may be invalidated.
    Invalidate(Refusal),
}

/// The consequences of a fault: for RC, the QP goes to ERR in any case.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Consequence {
    /// NAK for the peer.
    pub nak: NakCode,
    /// Status with which the receive WQE completes, if the message had one.
    pub recv: WcStatus,
    /// The event raised when no receive WQE can carry the news.
    pub event: AsyncEvent,
}

impl ResponderFault {
    /// Whether the consumer's own receive WQE is at fault: only that ends a UC or UD queue pair, which drops all else
    /// (IBA 9.9.3.2).
    #[must_use]
    pub const fn is_local(self) -> bool {
        matches!(self, Self::RecvProtection(_))
    }

    /// A refused access is `otherwise`, unless the refusal says more than that.
    pub(crate) fn refused(refusal: Refusal, otherwise: fn(Refusal) -> Self) -> Self {
        match refusal {
            Refusal::Misaligned => Self::Misaligned,
            //= spec/hosts.md#net-011
            //# An XRC SRQ whose process has ended MUST be refused as one that is not there, and nothing MUST hang.
            Refusal::Vanished => Self::NoSuchSrq,
            Refusal::Silent => Self::NoAnswer,
            _ => otherwise(refusal),
        }
    }

    /// A refused access to what the peer named.
    pub(crate) fn remote(refusal: Refusal) -> Self {
        Self::refused(refusal, Self::RemoteAccess)
    }

    /// The fault's row.
    #[must_use]
    pub const fn consequence(self) -> Consequence {
        match self {
            // Class C: invalid request (C9-222.1.1).
            Self::OpcodeSequence
            | Self::Unsupported
            | Self::Length
            | Self::Misaligned
            | Self::TooManyReads
            | Self::NoSuchSrq
            | Self::NoAnswer => {
                row(NakCode::InvalidRequest, WcStatus::RemoteInvalidRequestError, AsyncEvent::QpRequestError)
            }
            // An operation that the QP does not enable counts as unsupported, as on the kernel's rxe.
            //= spec/responder.md#rsp-008
            //# An operation that the queue pair's access flags do not allow MUST be refused as an invalid request.
            Self::QpAccess => {
                row(NakCode::InvalidRequest, WcStatus::RemoteInvalidRequestError, AsyncEvent::QpRequestError)
            }
            //= spec/responder.md#rsp-024
            //# Memory that is gone MUST be refused as a remote operational error.
            Self::RemoteAccess(Refusal::Unmapped) => {
                row(NakCode::RemoteOperationalError, WcStatus::LocalAccessError, AsyncEvent::QpAccessError)
            }
            //= spec/responder.md#rsp-016
            //# An R_Key that does not give the access MUST be refused as a remote access error, with an affiliated
            //# asynchronous event.
            Self::RemoteAccess(_) => {
                row(NakCode::RemoteAccessError, WcStatus::LocalAccessError, AsyncEvent::QpAccessError)
            }
            // Class D for the WQE, C on the wire. The kernel's rxe says remote operational error.
            //= spec/responder.md#rsp-017
            //# A message longer than the receive WQE MUST fail both: locally with a length error, at the peer as an
            //# invalid request.
            Self::RecvTooShort => row(NakCode::InvalidRequest, WcStatus::LocalLengthError, AsyncEvent::QpFatal),
            // Class J: the kernel's rxe says nothing to the peer, which then waits in vain.
            //= spec/responder.md#rsp-022
            //# A SEND with invalidate MUST invalidate a type 2 window of this queue pair only.
            Self::Invalidate(_) => {
                row(NakCode::RemoteAccessError, WcStatus::RemoteInvalidRequestError, AsyncEvent::QpAccessError)
            }
            Self::RecvProtection(_) => {
                row(NakCode::RemoteOperationalError, WcStatus::LocalProtectionError, AsyncEvent::QpFatal)
            }
        }
    }
}

const fn row(nak: NakCode, recv: WcStatus, event: AsyncEvent) -> Consequence {
    Consequence { nak, recv, event }
}

/// A fault of a response.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ResponseFault {
    /// Data or the result of an atomic together with a NAK: a refusal is an Acknowledge packet of its own.
    Refusal,
    /// The request at its PSN is answered by another kind of response.
    Kind,
    /// First, Middle, Last and Only responses came in an impossible order.
    Position,
    /// The payload's length is not what its PSN demands.
    Length,
    /// The request has no buffers for data.
    NoBuffer,
}

impl ResponseFault {
    /// Status with which the request completes; the queue pair goes to ERR in any case.
    #[must_use]
    pub const fn status(self) -> WcStatus {
        match self {
            // Class B of the requester: bad response. The kernel's rxe takes these for fatal errors (`check_ack`).
            Self::Refusal | Self::Kind | Self::Position | Self::Length | Self::NoBuffer => WcStatus::BadResponseError,
        }
    }
}
