#![forbid(unsafe_code)]
//! Two or more urxe engines on a virtual network, in virtual time.
//!
//! A [`Fabric`] holds [`Node`]s and what is between them. A node is a host: an address space, completion
//! queues, a bounded receive buffer, and the engine's queue pairs. Packets are the real bytes, ICRC included, and
//! are checked and parsed again where they arrive. Nothing waits: time jumps to the next arrival or timeout.
//!
//! The fate of packets on their way is up to [`Rule`]s, which may drop, duplicate, delay and damage
//! them; any `FnMut(&Flight) -> Verdict` is a rule, and [`rule`] has seeded random ones. Same seeds, same bytes:
//! [`Fabric::digest`] of two runs is equal.
//!
//! ```
//! use urxe_engine::{Access, Data, Recipient, SendFlags, SendOp, SendWr, Sge, SgeList, WcStatus};
//! use urxe_sim::rule::{Chance, Drops};
//! use urxe_sim::{Connection, Fabric, NodeConfig};
//!
//! let mut fabric = Fabric::new();
//! let (a, b) = (fabric.add_node(NodeConfig::default()), fabric.add_node(NodeConfig::default()));
//! fabric.add_rule(Drops::new(1, Chance::percent(10)));
//! let (qp, _) = fabric.connect(a, b, &Connection::default());
//!
//! let from = fabric.node_mut(a).memory_mut().register_new(10_000, Access::NONE);
//! let to = fabric.node_mut(b).memory_mut().register_new(10_000, Access::LOCAL_WRITE | Access::REMOTE_WRITE);
//! fabric.node_mut(a).memory_mut().poke(from.addr, &[7; 10_000]);
//! let sge = Sge { addr: from.addr, length: 10_000, l_key: from.key.0 };
//! fabric
//!     .post_send(a, qp, SendWr {
//!         wr_id: 1,
//!         op: SendOp::Write(to.remote()),
//!         data: Data::Gather(SgeList::new(&[sge])),
//!         flags: SendFlags { signaled: true, ..SendFlags::default() },
//!         to: Recipient::Peer,
//!     })
//!     .unwrap();
//! fabric.run();
//! let cq = fabric.node(a).send_cq(qp);
//! assert_eq!(fabric.node_mut(a).poll(cq).unwrap().status, WcStatus::Success);
//! assert_eq!(fabric.node(b).memory().peek(to.addr, 10_000), [7; 10_000]);
//! ```
//!
//! [`oracle`] generates traffic from a seed, predicts what memory and completions must be, and compares.
//! [`incast`] is three senders and one link. [`scale`] is hundreds of stacks at once. [`single_qp`] is one queue pair whose peer is the test itself: packets in, packets out.
//!
//! # Enums
//!
//! Enums are exhaustive: a fabric and an oracle handle every [`Step`] and [`Verdict`], and a new one is a breaking change.

mod bottleneck;
pub mod capture;
mod connection;
mod counts;
mod digest;
mod fabric;
pub mod incast;
pub mod memory;
mod node;
pub mod oracle;
pub mod rule;
pub mod scale;
mod schedule;
pub mod single_qp;
mod timeouts;
mod verbs;

pub use bottleneck::Bottleneck;
pub use connection::Connection;
pub use counts::Counts;
pub use fabric::{Fabric, Link, Step};
pub use memory::AddressSpace;
pub use node::{Node, NodeConfig, NodeId, SimQueuePair};
pub use rule::{Flight, Rule, Verdict};
pub use urxe_engine::endpoint::{
    CounterId, CqId, Datagram, Event as NodeEvent, Origin, Outbox, QpSetup, Received, Route, SrqId,
};
pub use verbs::{SimQuirks, Verbs};
