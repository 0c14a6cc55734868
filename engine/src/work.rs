//! Work requests as consumers post them, and the work queue elements they become.

use alloc::boxed::Box;
use core::slice;

use urxe_wire::{Feth, ImmDt, QKey, Qpn, RKey};

use crate::key::Key;
use crate::mw::Bind;
use crate::qp::state::QpState;

/// A scatter/gather element.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Sge {
    /// First address, in terms of the region.
    pub addr: u64,
    /// Bytes.
    pub length: u32,
    /// L_Key of the region.
    pub l_key: u32,
}

impl Sge {
    /// The key, typed.
    #[must_use]
    pub const fn key(&self) -> Key {
        Key(self.l_key)
    }
}

/// A scatter/gather list. One or two elements are held in place, more on the heap.
#[derive(Clone, Debug, Default)]
pub struct SgeList(Store);

#[derive(Clone, Debug)]
enum Store {
    One(Sge),
    Two([Sge; 2]),
    /// More, or none.
    Many(Box<[Sge]>),
}

impl SgeList {
    /// List of one element.
    #[inline]
    #[must_use]
    pub const fn one(element: Sge) -> Self {
        Self(Store::One(element))
    }

    /// List of the given elements.
    #[inline]
    #[must_use]
    pub fn new(elements: &[Sge]) -> Self {
        Self(match *elements {
            [one] => Store::One(one),
            [one, two] => Store::Two([one, two]),
            ref many => Store::Many(many.into()),
        })
    }

    /// The elements.
    #[inline]
    #[must_use]
    pub fn as_slice(&self) -> &[Sge] {
        match &self.0 {
            Store::One(element) => slice::from_ref(element),
            Store::Two(elements) => elements,
            Store::Many(elements) => elements,
        }
    }

    /// Bytes of all elements together.
    #[inline]
    #[must_use]
    pub fn length(&self) -> u64 {
        match &self.0 {
            Store::One(element) => u64::from(element.length),
            Store::Two([one, two]) => u64::from(one.length) + u64::from(two.length),
            Store::Many(elements) => elements.iter().map(|sge| u64::from(sge.length)).sum(),
        }
    }
}

impl Default for Store {
    fn default() -> Self {
        Self::Many(Box::default())
    }
}

/// Place of a send request's bytes.
#[derive(Clone, Debug)]
pub enum Data {
    /// Registered memory.
    Gather(SgeList),
    /// Copied when posted (`IBV_SEND_INLINE`): the caller's buffers are its own again.
    Inline(Box<[u8]>),
}

impl Default for Data {
    fn default() -> Self {
        Self::Gather(SgeList::default())
    }
}

impl Data {
    /// Lets go of what is on the heap.
    #[inline]
    pub(crate) fn clear(&mut self) {
        if matches!(self, Self::Inline(_) | Self::Gather(SgeList(Store::Many(_)))) {
            *self = Self::default();
        }
    }

    /// Bytes.
    #[inline]
    #[must_use]
    pub fn length(&self) -> u64 {
        match self {
            Self::Gather(list) => list.length(),
            Self::Inline(bytes) => bytes.len() as u64,
        }
    }
}

/// Remote memory that an RDMA or atomic operation is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Remote {
    /// Address, in terms of the peer's region.
    pub addr: u64,
    /// The peer's key.
    pub r_key: RKey,
}

/// Operation of a send request (IBA 11.4.1.1).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[expect(missing_docs, reason = "the names are the specification's")]
pub enum SendOp {
    #[default]
    Send,
    SendWithImmediate(ImmDt),
    SendWithInvalidate(RKey),
    Write(Remote),
    WriteWithImmediate(Remote, ImmDt),
    Read(Remote),
    CompareSwap {
        remote: Remote,
        compare: u64,
        swap: u64,
    },
    FetchAdd {
        remote: Remote,
        add: u64,
    },
    /// Eight bytes, all at once (IBA annex A19).
    AtomicWrite(Remote),
    /// FLUSH of `length` bytes (IBA annex A19).
    Flush {
        remote: Remote,
        length: u32,
        how: Feth,
    },
    /// Done here, without the peer (IBA 10.6.7.2.6).
    LocalInvalidate(Key),
    /// Done here, without the peer (IBA 10.6.7.2.4).
    BindWindow(Bind),
}

impl SendOp {
    /// Whether the operation writes into the local buffers: READ and atomics.
    #[must_use]
    pub const fn is_response_bearing(&self) -> bool {
        matches!(self, Self::Read(_) | Self::CompareSwap { .. } | Self::FetchAdd { .. })
    }

    /// Whether the operation takes one of the responder's resources: what is answered by more than an acknowledgement.
    #[must_use]
    pub const fn takes_responder_resource(&self) -> bool {
        self.is_response_bearing() || matches!(self, Self::AtomicWrite(_) | Self::Flush { .. })
    }

    /// Whether the operation sends nothing.
    #[must_use]
    pub const fn is_local(&self) -> bool {
        matches!(self, Self::LocalInvalidate(_) | Self::BindWindow(_))
    }

    /// Whether the operation is about exactly eight bytes.
    #[must_use]
    pub const fn is_eight_bytes(&self) -> bool {
        self.is_atomic() || matches!(self, Self::AtomicWrite(_))
    }

    /// Whether the operation is an atomic.
    #[must_use]
    pub const fn is_atomic(&self) -> bool {
        matches!(self, Self::CompareSwap { .. } | Self::FetchAdd { .. })
    }

    /// Whether the operation is a SEND.
    #[must_use]
    pub const fn is_send(&self) -> bool {
        matches!(self, Self::Send | Self::SendWithImmediate(_) | Self::SendWithInvalidate(_))
    }

    /// Whether the operation consumes a receive WQE of the peer.
    #[must_use]
    pub const fn consumes_recv(&self) -> bool {
        self.is_send() || matches!(self, Self::WriteWithImmediate(..))
    }
}

/// `ibv_send_flags` that matter to the engine.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SendFlags {
    /// Wait for all READs and atomics before (IBA 10.8.3.3).
    pub fence: bool,
    /// Give a completion also when it succeeds.
    pub signaled: bool,
    /// Set SE in the last packet.
    pub solicited: bool,
}

/// Recipient of a send request on a connected service.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Recipient {
    /// The QP's peer.
    #[default]
    Peer,
    /// An XRC SRQ behind the QP's peer (XRC).
    XrcSrq(Qpn),
}

/// A send work request.
#[derive(Clone, Debug, Default)]
//= spec/requester.md#req-019
//= type=implication
//# A work request MUST be copied when it is posted, and never be read from the application's memory again.
pub struct SendWr {
    /// The consumer's number for it.
    pub wr_id: u64,
    /// Operation.
    pub op: SendOp,
    /// Local bytes.
    pub data: Data,
    /// Flags such as signaled, inline and fence.
    pub flags: SendFlags,
    /// Recipient.
    pub to: Recipient,
}

/// Recipient of a UD request (`ibv_send_wr.wr.ud`).
#[derive(Clone, Debug)]
pub struct UdRecipient<R> {
    /// The route of the address handle.
    pub route: R,
    /// The QP there.
    pub qpn: Qpn,
    /// The Q_Key there; with the high bit set, that of the sending QP is meant.
    pub q_key: QKey,
    /// The address handle has a LID and no GRH.
    pub lid_routed: bool,
}

/// A receive work request; as it is, also the queue element.
#[derive(Clone, Debug)]
pub struct RecvWr {
    /// The consumer's number for it.
    pub wr_id: u64,
    /// Buffers for the message.
    pub buffers: SgeList,
}

/// Why a post is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PostError {
    /// The QP's state does not take it (EINVAL).
    #[error("the queue pair is in {0}")]
    State(QpState),
    /// The queue is full (ENOMEM).
    #[error("the queue is full")]
    QueueFull,
    /// More scatter/gather elements than the QP was made for (EINVAL).
    #[error("too many scatter/gather elements")]
    TooManySge,
    /// More inline data than the QP was made for (EINVAL).
    #[error("too much inline data")]
    InlineTooLong,
    /// Longer than 2^31 bytes, or an atomic that is not eight bytes, or a FLUSH with any (EINVAL).
    #[error("the length is not one that the operation takes")]
    Length,
    /// The QP has no receive queue: it has an SRQ, or is of XRC (EINVAL).
    #[error("the queue pair has no receive queue of its own")]
    NoRecvQueue,
    /// The QP's service does not have the operation, or not with inline data, or not for this recipient; on UD, none is
    /// given (EINVAL).
    #[error("the service does not have the operation, or not with these arguments")]
    Operation,
}
