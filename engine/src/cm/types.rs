//! Messages and events of a [`Cm`](super::Cm).

use alloc::boxed::Box;

use urxe_wire::Gid;
use urxe_wire::cm::{CommId, Rej, Rep, Req, SidrRep, SidrReq};
use urxe_wire::mad::MAD_LEN;

/// Two ports that exchange messages.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Ends {
    /// The GID of this end.
    pub local: Gid,
    /// The GID of the peer.
    pub remote: Gid,
}

/// A datagram to the peer's QP1.
#[derive(Clone, Debug)]
pub struct Transmit {
    /// Ends between which it travels.
    pub ends: Ends,
    /// The payload.
    pub payload: [u8; MAD_LEN],
}

/// Decision of the caller about a new request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// Told to the listener, who will answer under this name. A name in use is as [`Ignore`](Self::Ignore).
    Take(CommId),
    /// Refused: there is no listener.
    Refuse,
    /// Ignored, so that it comes again: no listener can take it now.
    Ignore,
}

/// Why a connection has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Disconnect {
    /// The peer wants to.
    Asked,
    /// The peer agrees.
    Agreed,
    /// The peer does not answer.
    Unanswered,
}

/// Event of a connection.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// A peer asks for a connection, which `handle` was told to take.
    Request(Box<Req>),
    /// A peer looks for a service, which `handle` was told to take.
    ServiceRequest(Box<SidrReq>),
    /// The peer has accepted: to be followed by `establish` or `reject`.
    Reply(Box<Rep>),
    /// The peer is ready to use the connection.
    Established(Box<[u8; 224]>),
    /// The peer has answered about a service.
    ServiceReply(Box<SidrRep>),
    /// The peer has rejected.
    Rejected(Box<Rej>),
    /// The peer does not answer.
    Unreachable,
    /// The connection has ended; with the peer's private data.
    Disconnected(Disconnect, Box<[u8; 224]>),
    /// No packet of the connection is under way any more.
    TimeWaitExit,
    /// The name is free again: the last event.
    Gone,
}

/// A command does not fit the connection's state, or there is no such connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the connection's state does not allow the command, or there is no such connection")]
pub struct WrongState;
