//! The way between two processes of one host: runs of packets through shared memory instead of UDP.
//!
//! A sender makes a *ring* for each destination block of QPNs, in sealed memory that has no name, and hands it to the
//! block's owner over a unix socket ([`handshake`]). It is one-way; the peer makes its own for what it sends. Packets, their
//! order and their fate are those of UDP; only their ICRC may be left out, because memory does not damage them.
//!
//! | file | holds |
//! |---|---|
//! | [`segment`] | the mapped memory: the only `unsafe` that touches what another process writes |
//! | [`ring`] | runs in and out of it, and who has to be woken: safe, and over any [`ring::Storage`] |
//! | [`handshake`] | how a ring is handed over, and what must be true of it |
//! | [`link`] | the sender's end |
//! | [`inbox`] | the receiver's ends |
//! | [`pending_acks`] | the last ACK of each queue pair, for the receiver of a ring whose sender has ended |
//!
//! # Who may send what
//!
//! Rings are made for, and taken from, processes of the same user in the same network namespace. A ring carries packets
//! from one address to one address, which its receiver has checked to be an own one of its own and one of this host's.
//! Everything that is read from a ring is copied before it is looked at, and what no sender would have written ends it:
//! whoever holds the other end can do no more than send packets, as with a UDP socket.
//!
//! # The connection
//!
//! The socket a ring came over stays open as long as the ring is in use. A byte on it wakes a receiver that sleeps, and
//! its end tells each side that the other is gone, however it went.
//!
//! # When the other end is gone
//!
//! The sender goes on by UDP, as if there had never been a ring; what was in there is lost, as in a socket's buffer. The
//! receiver takes what is left, and then the last ACK of each queue pair, which may not have been sent ([`pending_acks`]).
//!
//! If packets go by UDP, processes of one host have rings for that alone: nothing is ever put into them.

mod handshake;
mod inbox;
mod link;
mod pending_acks;
mod ring;
mod segment;

pub use handshake::is_own_address;
pub(crate) use handshake::{Purpose, listen};
pub(crate) use inbox::{Envelope, Inbox, Visits};
pub(crate) use link::{BATCH, Link};
pub use pending_acks::PendingAck;
pub(crate) use ring::{Damaged, RingRecord};
