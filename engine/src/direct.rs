//! Requests that a host carries out without packets: the peer's memory is within its reach.
//!
//! A requester asks its host for each one-sided request of which nothing is sent yet while nothing else is outstanding; a stream
//! of them that has begun by packets stops now and then until that is so. What the host carries out is complete at once. Its PSNs count as sent and acknowledged; the responder learns of them by
//! [`QueuePair::skip_requests`](crate::QueuePair::skip_requests). Everything that the responder would refuse goes by packets,
//! so that errors are the responder's alone.
//!
//! A host that sees the peer's receive queue ([`Memory::reaches_receives`](crate::Memory::reaches_receives)) is asked for SENDs as
//! well: the peer completes the receive WQE by [`QueuePair::complete_direct`](crate::QueuePair::complete_direct).

use urxe_wire::{ImmDt, Psn, Qpn};

use crate::cq::WcStatus;
use crate::mr::Pd;
use crate::work::{Data, SendOp};

/// A WRITE, READ, atomic operation, ATOMIC WRITE, FLUSH or SEND that may be carried out.
#[derive(Clone, Copy, Debug)]
pub struct DirectRequest<'a> {
    /// Protection domain of the local buffers.
    pub pd: Pd,
    /// Peer.
    pub dest_qpn: Qpn,
    /// Operation.
    pub op: &'a SendOp,
    /// Local buffers, or inline data.
    pub data: &'a Data,
    /// Bytes.
    pub length: u32,
    /// The message asks for a solicited event.
    pub solicited: bool,
    /// First PSN that its packets would have.
    pub psn: Psn,
    /// PSNs that its packets would have.
    pub packets: u32,
}

/// A message that the peer's host has put into the buffers of the oldest receive WQE.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DirectMessage {
    /// Bytes.
    pub length: u32,
    /// Immediate data.
    pub imm: Option<ImmDt>,
    /// Set if the message asks for a solicited event.
    pub solicited: bool,
}

/// Outcome of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DirectOutcome {
    /// Carried out.
    Done,
    /// Not carried out, or only in a part that does no harm: it goes by packets.
    ByPackets,
    /// Carried out at the peer; the local buffer for the answer has gone meanwhile.
    Failed(WcStatus),
}

impl SendOp {
    /// Whether the operation is one that a host may carry out at the peer's memory.
    #[must_use]
    pub const fn is_one_sided(&self) -> bool {
        matches!(
            self,
            Self::Write(_)
                | Self::Read(_)
                | Self::CompareSwap { .. }
                | Self::FetchAdd { .. }
                | Self::AtomicWrite(_)
                | Self::Flush { .. }
        )
    }

    /// Whether the operation is one that a host may carry out that reaches the peer's receive buffers, too.
    #[must_use]
    pub const fn is_plain_send(&self) -> bool {
        matches!(self, Self::Send | Self::SendWithImmediate(_))
    }
}
