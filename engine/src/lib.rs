#![no_std]
#![forbid(unsafe_code)]
//! The RoCE v2 transport as a state machine: no socket, clock, thread, lock, or look at the environment.
//!
//! # How to drive it
//!
//! A [`QueuePair`] is an object of its own; a caller that shares one between threads puts it into a lock. Every
//! call takes an [`Io`]: the time, the application's [`Memory`], the [`Network`] into which packets are
//! written, and the [`Consumer`] that gets completions and events.
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
//! The example `two_queue_pairs` has the smallest surroundings that a queue pair can live in.
//!
//! # Rooms
//!
//! [`qp`] holds the queue pair: [`qp::state`] and [`qp::attr`] the rules of `modify`; `requester` cuts work
//! requests into packets, `completer` takes responses, `responder` takes requests, as in IBA chapter 9, and
//! `answers` keeps what it says to them until that is sent.
//! [`memory`] is regions and keys, [`mw`] memory windows, [`cq`] completion queues, [`counter`] what completion counters
//! count, [`srq`] shared receive queues,
//! [`work`] work requests, [`fault`] the table of what a responder does about each kind of error, [`event`] what a
//! caller may want to know of it all. [`cm`] connects queue pairs. [`quirks`] is what a device may do and devices rarely do.

extern crate alloc;
#[cfg(test)]
extern crate std;

pub mod access;
pub mod cm;
pub mod counter;
pub mod cq;
pub mod event;
pub mod fault;
pub mod host;
pub mod memory;
pub mod mw;
pub mod qp;
pub mod quirks;
pub mod rng;
pub mod srq;
pub mod time;
pub mod work;

pub use access::Access;
pub use counter::{AttachError, CountedOps};
pub use cq::{CompletionQueue, Cqe, Moderation, Pushed, WcOpcode, WcStatus};
pub use event::{AsyncEvent, DropReason, Event};
pub use host::{Consumer, Host, Io, Network};
pub use memory::{Accessor, Ask, Denied, Fault, Key, KeyTable, Memory, Pd, Refusal, Region, RegionKind, Touch};
pub use mw::{Bind, BindError, RegionTable, WindowType};
pub use qp::sge::scatter;
pub use qp::{PostError, Progress, QpCap, QpConfig, QpType, QueuePair, attr, state::QpState};
pub use quirks::Quirks;
#[cfg(feature = "quirks")]
pub use quirks::{CqDelay, QpQuirks, QuirkSet, SrqOrder};
pub use srq::{SharedReceiveQueue, XrcDomain};
pub use time::{Clock, Instant};
pub use work::{Data, Recipient, RecvWr, Remote, SendFlags, SendOp, SendWr, Sge, SgeList, UdRecipient};
