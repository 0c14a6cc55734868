#![no_std]
#![forbid(unsafe_code)]
//! The RoCE v2 transport as a state machine: no socket, clock, thread, lock, or look at the environment.
//!
//! # Two endpoints
//!
//! An [`Endpoint`] holds queue pairs, completion queues and timers. Datagrams go in and come out, and the caller says what
//! time it is:
//!
//! ```
//! use std::net::IpAddr;
//!
//! use urxe_engine::endpoint::{HeapMemory, Route, connected_attr};
//! use urxe_engine::{
//!     Access, Data, Endpoint, Instant, Memory, Pd, QpSetup, QpType, SendOp, SendWr, WcStatus,
//! };
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let (pd, now) = (Pd(1), Instant::default());
//! let [mut a, mut b] = [1, 2].map(|host| Endpoint::new(IpAddr::from([192, 0, 2, host]), HeapMemory::new(1), host.into()));
//! let (cq_a, cq_b) = (a.create_cq(16), b.create_cq(16));
//! let qp_a = a.create_qp(&QpSetup { sq_sig_all: true, ..QpSetup::new(QpType::Rc, pd, cq_a, cq_a) });
//! let qp_b = b.create_qp(&QpSetup::new(QpType::Rc, pd, cq_b, cq_b));
//! let [to_a, to_b] = [a.address(), b.address()].map(|to| Some(Route { to, source_port: 0xC000 }));
//! a.connect(now, qp_a, &connected_attr(qp_b), to_b)?;
//! b.connect(now, qp_b, &connected_attr(qp_a), to_a)?;
//!
//! // An RDMA WRITE of five bytes.
//! let from = a.memory_mut().register(pd, Access::NONE, 4096).expect("room for a region");
//! let to = b.memory_mut().register(pd, Access::LOCAL_WRITE | Access::REMOTE_WRITE, 4096).expect("room for a region");
//! a.memory().write(from.addr, b"hello")?;
//! let data = Data::Gather(from.sge(0, 5));
//! a.post_send(now, qp_a, SendWr { op: SendOp::Write(to.remote(0)), data, ..SendWr::default() }, None)?;
//!
//! // The network: no packet is lost here, so that no timer is needed.
//! while let Some(request) = a.poll_transmit(now) {
//!     b.handle_datagram(now, &request);
//!     while let Some(response) = b.poll_transmit(now) {
//!         a.handle_datagram(now, &response);
//!     }
//! }
//! assert_eq!(a.poll_cq(cq_a).map(|cqe| cqe.status), Some(WcStatus::Success));
//! let mut bytes = [0; 5];
//! b.memory().read(to.addr, &mut bytes)?;
//! assert_eq!(&bytes, b"hello");
//! # Ok(())
//! # }
//! ```
//!
//! The example `two_queue_pairs` adds a SEND, a READ, and a packet that is lost.
//!
//! # Queue pairs of one's own
//!
//! A program with threads, sockets and application memory implements [`Host`] and drives each [`QueuePair`] itself, in a
//! lock of its own. Every call takes an [`Io`]: the time, the application's [`Memory`], the [`Network`] into which packets
//! are written, and the [`Consumer`] that gets completions and events.
//!
//! | | |
//! |---|---|
//! | commands | [`QueuePair::modify`], [`post_send`](QueuePair::post_send), [`post_recv`](QueuePair::post_recv) |
//! | input | [`QueuePair::handle_packet`], [`handle_timeout`](QueuePair::handle_timeout) |
//! | output | [`QueuePair::transmit`], then [`poll_timeout`](QueuePair::poll_timeout) |
//!
//! After any command or input, and after a batch of them, call `transmit` until it returns
//! [`Progress::Idle`] or the network has no more room, and then ask for the next timeout. Packets leave only in
//! `transmit`, which is what lets a caller handle a whole burst of packets and answer it with one ACK. Timers of what
//! left start only when the timeout is asked for, so that a caller may look at its [`Clock`] after it has sent.
//!
//! The same calls with the same arguments give the same packets, completions and events, byte for byte.
//!
//! # Modules
//!
//! | | |
//! |---|---|
//! | [`endpoint`] | [`Endpoint`], and the parts of one for programs with threads: QPN table, timer queue |
//! | [`qp`] | the queue pair: [`qp::state`] and [`qp::attr`] have states and attributes, [`qp::migration`] alternate paths; the rules of `modify` and the send and receive halves are private |
//! | [`cq`], [`srq`], [`counter`] | completion queues, shared receive queues, completion counters |
//! | [`Region`], [`KeyTable`], [`memory`], [`mw`], [`access`] | regions, keys, access to memory, memory windows, access rights |
//! | [`work`], [`direct`] | work requests; those that a host carries out without packets |
//! | [`cm`] | communication management: how queue pairs get connected |
//! | [`mad`] | management datagrams: agents, transactions, RMPP, performance counters |
//! | [`subnet`] | an InfiniBand subnet on an Ethernet: subnet management, and the built-in manager and administration |
//! | [`fault`], [`event`] | the table of what a responder does about each error; events for counters, traces and people |
//! | [`flow`] | flow steering of Ethernet frames |
//! | [`host`], [`time`] | the traits that a host implements |
//! | [`selective`] | what is kept of packets that come out of order |
//! | [`quirks`] | what a device may do and devices rarely do (feature `quirks`) |
//!
//! # Enums
//!
//! Events, faults, statuses and errors are tables: a counter, an errno and a text belong to each row, and whoever matches
//! one shall learn of a new row from the compiler. So they are exhaustive, and a new variant is a breaking change; only what
//! a caller may well ignore is `#[non_exhaustive]` ([`endpoint::Event`], [`srq::ModifySrqError`], which is EINVAL whatever the
//! reason, and the quirks of the feature `quirks`). [`congestion::Algorithm`] is exhaustive, as whoever offers a choice of
//! algorithms has a name for each.
//!
//! # Features
//!
//! `std` (default): see `urxe-wire`. `quirks`: [`quirks`] picked by a seed. Without `std` the crate needs `alloc` and
//! 64-bit atomics.

extern crate alloc;
#[cfg(test)]
extern crate std;

pub mod access;
mod async_event;
pub mod cm;
pub mod congestion;
pub mod counter;
pub mod cq;
pub mod direct;
pub mod endpoint;
pub mod event;
pub mod fault;
pub mod flow;
pub mod host;
mod key;
pub mod mad;
pub mod memory;
mod moderation;
mod mr;
pub mod mw;
pub mod qp;
pub mod quirks;
pub mod rng;
pub mod selective;
pub mod srq;
pub mod subnet;
pub mod time;
pub mod work;

pub use access::Access;
pub use async_event::AsyncEvent;
pub use counter::{AttachError, CountedOps};
pub use cq::{CompletionQueue, Cqe, FrameCompletion, Pushed, WcOpcode, WcStatus};
pub use direct::{DirectMessage, DirectOutcome, DirectRequest};
pub use endpoint::{Endpoint, QpSetup};
pub use event::{DropReason, Event};
pub use host::{Consumer, Host, Io, Network};
pub use key::{Key, KeyTable, TableFull};
pub use memory::{AccessDenied, AccessRequest, Fault, Invalidation, Memory, MemoryOp};
pub use moderation::Moderation;
pub use mr::{Accessor, Pd, Refusal, Region, RegionKind};
pub use mw::{Bind, BindError, RegionTable, WindowType};
pub use qp::attr::MigrationState;
pub use qp::migration::Paths;
pub use qp::sge::{copy_payload, scatter};
pub use qp::{AckTimer, ModifyError, Progress, QpCap, QpConfig, QpType, QueuePair, attr, state::QpState};
pub use quirks::Quirks;
#[cfg(feature = "quirks")]
pub use quirks::{CqDelay, QpQuirks, QuirkSet, SrqOrder};
pub use selective::{KeptMemory, SelectiveRepeat};
pub use srq::{SharedReceiveQueue, XrcDomain};
pub use time::{Clock, Instant};
pub use work::{Data, PostError, Recipient, RecvWr, Remote, SendFlags, SendOp, SendWr, Sge, SgeList, UdRecipient};
