//! UDP port 4791 for any number of processes: the only room of urxe that has sockets.
//!
//! A [`Port`] is the presence of one device on the network in this process. It
//!
//! * receives RoCE v2 packets addressed to the QPNs it owns ([`Port::receive`]),
//! * sends packets that a [`TxBatch`] collects into GSO runs along a [`Route`],
//! * hands out QPNs nobody else on this host has ([`Port::alloc_qpn`]).
//!
//! # One address, many processes
//!
//! Every process of a network namespace shares `address:4791`. The *port owner* holds the unconnected socket. Each
//! sender uses one source port for each destination process, so a packet that reaches the owner for another process
//! is forwarded (a unix datagram to the *mailbox* of the QPN's block). Once a queue pair of the receiver has accepted one,
//! the receiver opens a *flow socket*: bound to the same `address:4791`, connected to the sender, and therefore preferred
//! by the kernel. When the owner goes, another process takes its name and its socket. Names are abstract unix addresses: they belong to the
//! network namespace, are unique, need no privilege, and vanish with the process.
//!
//! A process may leave word with a neighbour of what is to be said when it is killed: [`Will`].
//!
//! # Processes of one host
//!
//! A port [opened for it](Port::open_sharing_memory) sends to other such ports of the same host and user through shared
//! memory: rings of the same runs of packets, made when a route is. Everything else goes by UDP.
//!
//! # Changes
//!
//! Addresses that come and go while the port is open, and links that go down, are followed by whoever receives: a
//! netlink socket among the others becomes readable. [`Port::take_changes`] says what has happened.
//!
//! # Threads
//!
//! This crate starts none and decides nothing about who polls. [`Port`] is `Sync`; what only one thread may touch at a
//! time is in [`Receiver`] (receive side) and [`TxBatch`] (send side).

pub mod batch;
pub mod cancellation;
pub mod change;
pub mod counters;
pub mod datagram;
pub mod door;
pub mod error;
pub mod identity;
pub mod interface;
pub mod local;
pub mod multicast;
pub mod port;
pub mod receiver;
pub mod registry;
pub mod route;
pub mod service;
pub mod will;

mod deadline;
mod elsewhere;
mod fd;
mod flow;
mod forward;
mod lid;
mod owner;
mod peer;
mod pending_requests;
mod random;
mod shm;
mod sys;
mod token;
mod udp;

pub use batch::{Sealed, TxBatch};
pub use change::Change;
pub use counters::Counters;
pub use datagram::{Datagram, Headers, Run};
pub use door::{Door, KeptFile, Line};
pub use elsewhere::LOOPBACK_PORT;
pub use error::{PortError, RouteError};
pub use interface::Interface;
pub use multicast::Membership;
pub use port::{Port, descriptor_share};
pub use receiver::{Deliver, Receiver};
pub use route::{Destination, Route};
pub use service::Service;
pub use shm::PendingAck;
pub use will::Will;

/// The UDP destination port of RoCE v2 (IBA annex A17, IANA "roce").
pub const ROCE_V2_PORT: u16 = 4791;

/// Bytes of the ICRC, which ends every packet (IBA 7.8.1).
pub(crate) const ICRC_LEN: usize = 4;

/// The shortest packet: a BTH and its ICRC.
pub(crate) const MIN_PACKET: usize = 12 + ICRC_LEN;
