//! UDP port 4791 for any number of processes: the only crate of urxe that has sockets.
//!
//! A [`Port`] is the presence of one device on the network in this process. It has
//!
//! * a receive side ([`Receiver::receive`]): RoCE v2 packets addressed to the QPNs that it owns,
//! * a send side: packets that a [`TxBatch`] collects into GSO runs along a [`Route`],
//! * QPNs that nobody else on this host has ([`Port::alloc_qpn`]).
//!
//! ```no_run
//! use urxe_net::{Destination, Interface, Port, TxBatch};
//! use urxe_wire::Qpn;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let (port, mut receiver) = Port::open(Interface::by_name("lo")?)?;
//! let (qpn, gid) = (port.alloc_qpn()?, port.interface().gids()[1]);
//! let to = Destination { local: gid, remote: gid, dest_qpn: qpn, flow_label: 0, tclass: 0, hop_limit: 0 };
//! let route = port.route(&to)?;
//! let mut batch = TxBatch::new();
//! let packet = batch.packet(&port, &route, 12);
//! packet.fill(0);
//! packet[5..8].copy_from_slice(&qpn.get().to_be_bytes()[1..]);
//! batch.commit();
//! batch.flush(&port);
//! receiver.receive(&port, 4, &mut |batch| {
//!     assert_eq!(batch.dest_qpn(), qpn);
//!     true
//! });
//! # Ok(())
//! # }
//! ```
//!
//! # One address, many processes
//!
//! Every process of a network namespace shares `address:4791`. The *port owner*, which the processes elect (`election`),
//! holds the unconnected socket. Each sender uses one source port for each destination process, so a packet that reaches the
//! owner for another process is forwarded: a unix datagram to the *mailbox* of the QPN's block (`qpn_registry`). Once a queue
//! pair of the receiver has accepted one, the receiver opens a *flow socket*: bound to the same `address:4791`, connected to the
//! sender, and therefore preferred by the kernel. When the owner goes, another process takes its name and its socket. Names
//! are abstract unix addresses: they belong to the network namespace, are unique, need no privilege, and vanish with the
//! process.
//!
//! A process may leave messages with a neighbour, which sends them when the process is killed: [`LastWill`].
//!
//! # Processes of one host
//!
//! A port [opened for it](Port::open_sharing_memory) sends to other such ports of the same host and user through shared
//! memory: rings of the same batches of packets, made when a route is. Everything else goes by UDP.
//!
//! # Changes of the interface
//!
//! Addresses that come and go while the port is open, and links that go down, are followed by whoever receives: an rtnetlink
//! socket among the others becomes readable. [`Port::take_link_events`] returns what has happened.
//!
//! # Enums
//!
//! Errors of ports and routes are `#[non_exhaustive]` ([`PortError`], [`RouteError`]): an operating system has more ways to
//! refuse, and most callers print the text. The others are exhaustive, and a new variant is a breaking change: each
//! [`BadPacket`] has its counter and each [`LinkEvent`] its consequence, and whoever matches one shall learn of another from
//! the compiler.
//!
//! # Threads
//!
//! The crate starts none, and its caller decides which thread polls. [`Port`] is `Sync`; what only one thread may touch at a
//! time is in [`Receiver`] (receive side) and [`TxBatch`] (send side).

pub mod cm_service;
pub mod counters;
pub mod datagram;
pub mod direct;
pub mod error;
pub mod interface;
pub mod ipc;
pub mod issm;
pub mod last_will;
pub mod last_will_keeper;
pub mod lid_table;
pub mod link_monitor;
pub mod mad_claim;
mod mailbox;
mod members;
pub mod multicast;
pub mod mutex;
pub mod port;
pub mod qpn_registry;
pub mod raw;
pub mod raw_peer;
pub mod route;
pub mod rx;
pub mod tx;
pub mod udp_sockets;

mod election;
mod infiniband_gid;
mod lid;
mod open;
mod rxe_conflict;
mod shm;
mod sys;

pub use cm_service::Service;
pub use counters::Counters;
pub use datagram::{BadPacket, Datagram, Headers, RxBatch};
pub use error::{PortError, RouteError};
pub use interface::Interface;
pub use ipc::{Channel, KeptFile, Listener, Notes};
pub use last_will::LastWill;
pub use last_will_keeper::LastWillKeeper;
pub use lid_table::{LidTable, PortLids};
pub use link_monitor::LinkEvent;
pub use mad_claim::MadClaim;
pub use multicast::Membership;
pub use port::Port;
pub use raw_peer::RawPeer;
pub use route::{Destination, Route};
pub use rx::{Deliver, Receiver};
pub use shm::{PendingAck, is_own_address};
pub use sys::cancellation;
pub use sys::fd::descriptor_share;
pub use sys::identity;
pub use sys::random::{make_predictable, random_u32};
pub use tx::batch::{CommittedPacket, TxBatch};
pub use tx::inside::InsideRun;
pub use udp_sockets::UdpSockets;

/// The shortest packet: a BTH and its ICRC.
pub(crate) const MIN_PACKET: usize = urxe_wire::Bth::LEN + urxe_wire::ICRC_LEN;
