//! XRC domains that processes share (`ibv_open_xrcd(3)`, IBA annex A14): messages that arrive at a queue pair of one
//! process for an SRQ of another.
//!
//! The process that owns an SRQ alone has its WQEs, its completion queue and its memory. The process whose queue pair
//! gets the message asks it for each step, over a connection of its own ([`urxe_net::ipc`]):
//!
//! ```text
//!   who has the queue pair                            who has the SRQ (a thread of its own)
//!   Join + the domain's file  ───────────────────▶    same file, same interface? else it hangs up
//!   Find the SRQ              ◀──────────────────▶    is it in the domain
//!   Take a WQE                ◀──────────────────▶    a number, and how many bytes it has room for
//!   Scatter a packet's bytes  ◀──────────────────▶    to the WQE's buffers, as its owner checks them
//!   Access (WRITE, READ, …)   ◀──────────────────▶    to memory of the SRQ's protection domain, likewise
//!   Complete                  ───────────────────▶    the owner's completion queue, events and all
//! ```
//!
//! - `message`: requests and answers; `target`: state of a queue pair that takes such messages;
//! - [`client`]: the process that has the queue pair;
//! - `rx_queue`: its thread that takes the packets, and asks;
//! - `listeners`, `server`: the process that has the SRQ.
//!
//! # Nothing waits for ever
//!
//! The thread that asks (`rx_queue`) holds its queue pair's engine, and waits a quarter of a second at most. No other queue
//! pair waits with it, but those whose messages are for other processes too. The thread that answers
//! takes what a receiving thread takes last (the table of regions, an SRQ, a completion queue), never a receive token or
//! a queue pair's engine, and asks nobody. So two processes that are each other's target wait for threads that wait for
//! nothing but short locks of their own.
//!
//! An owner that is stopped is not asked again until it has answered what it was asked before. Meanwhile it has no WQEs
//! (RNR NAK), and packets that need something else of it count as lost: their requester repeats them. When a process
//! ends, its connections do, and the WQEs that it had taken go back to where they were.
//!
//! Devices whose [interceptor](crate::interceptor) touches packets ask where they receive: what it sees happens in the order of
//! packets.

pub mod client;
pub(crate) mod listeners;
mod message;
pub(crate) mod rx_queue;
pub(crate) mod server;
pub(crate) mod target;

use crate::device::Device;
pub use message::Inode;

/// Ends the threads of a device: nobody is answered any more, and no packet for an SRQ of another process taken.
pub fn close(device: &Device) {
    rx_queue::close(device);
    server::close(device);
}
