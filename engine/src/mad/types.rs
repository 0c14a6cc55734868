//! Addresses, messages and refusals of a [`MadPort`](super::MadPort).

use alloc::vec::Vec;
use core::time::Duration;

use urxe_wire::mad::{MAD_LEN, Mad};
use urxe_wire::{Gid, Qpn};

/// Name of an agent: the upper half of the transaction ids of its requests.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct AgentId(pub u32);

impl AgentId {
    /// The agent that a response with this transaction id is for.
    #[must_use]
    pub const fn of(transaction_id: u64) -> Self {
        Self((transaction_id >> 32) as u32)
    }
}

/// Unsolicited datagrams that an agent takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Claim {
    /// Management class.
    pub class: u8,
    /// Version of the class.
    pub version: u8,
    /// Vendor, of a class that names one ([`is_vendor_with_oui`](urxe_wire::mad::is_vendor_with_oui)).
    pub oui: [u8; 3],
    /// A bit for each method, without the response bit. None: responses only.
    pub methods: u128,
}

/// The two ends of a datagram, and what its GRH says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Address {
    /// GID of this end.
    pub local: Gid,
    /// GID of the peer.
    pub remote: Gid,
    /// Queue pair of the peer: QP1, mostly.
    pub qpn: Qpn,
    /// Flow label, 20 bits.
    pub flow_label: u32,
    /// Traffic class.
    pub traffic_class: u8,
    /// Hop limit.
    pub hop_limit: u8,
}

/// A message to send.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Outgoing<C> {
    /// Address of the receiver.
    pub to: Address,
    /// Headers and data. More than a datagram's bytes are sent in segments.
    pub message: Vec<u8>,
    /// Time to wait for a response, after each attempt; `None` if none is expected.
    pub timeout: Option<Duration>,
    /// Attempts after the first.
    pub retries: u32,
    /// Value that comes back when nobody responds.
    pub context: C,
}

/// A datagram to send.
#[derive(Clone, Debug)]
pub struct Transmit {
    /// Address of the receiver.
    pub to: Address,
    /// The payload.
    pub payload: [u8; MAD_LEN],
}

/// Message or outcome for an agent.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Delivery<C> {
    /// A message has arrived.
    Received {
        /// Address of the sender.
        from: Address,
        /// The first datagram, and the data of those after it.
        message: Vec<u8>,
    },
    /// A message found no answer in time.
    TimedOut {
        /// The message's [context](Outgoing::context).
        context: C,
        /// Header that the message was sent with.
        header: [u8; Mad::LEN],
    },
}

/// Why an agent cannot be registered (`ib_register_mad_agent` of the kernel's mad.c; all are EINVAL there).
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum RegisterError {
    /// Another agent takes one of the methods.
    #[error("another agent has one of the methods of this class, version and vendor")]
    InUse,
    /// The class is reserved or unknown.
    #[error("no agent can have this class")]
    Class,
    /// No version is so large.
    #[error("the version of the class is out of range")]
    Version,
    /// A vendor class without a vendor.
    #[error("a vendor class from 0x30 to 0x4f needs an OUI")]
    Vendor,
    /// RMPP for a class that has none.
    #[error("the class has no RMPP header")]
    Rmpp,
}

/// Why a message cannot be sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum SendError {
    /// No agent has this number.
    #[error("there is no such agent")]
    NoAgent,
    /// Shorter than the headers of its class, or longer than a datagram without RMPP.
    #[error("the message is shorter than its headers, or longer than a datagram and not of RMPP")]
    Length,
    /// A request with this transaction id waits for its response.
    #[error("a message with this transaction id waits for its response")]
    Duplicate,
    /// Too many bytes wait for responses.
    #[error("too many messages wait for responses")]
    Memory,
}

/// Why a datagram was of no use.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Refusal {
    /// The header is of another base version.
    #[error("the header is of another base version")]
    Malformed,
    /// No agent takes it.
    #[error("no agent takes the datagram")]
    NoAgent,
    /// A response to nothing that waits for one.
    #[error("no request waits for this response")]
    NoRequest,
    /// A violation of the rules of RMPP, or a demand for more memory than there is.
    #[error("the segment breaks the rules of RMPP, or its message needs too much memory")]
    Rmpp,
}
