#![no_std]
#![forbid(unsafe_code)]
//! RoCE v2 packets: what is in a UDP 4791 datagram, byte for byte.
//!
//! One header a file. Every header is a plain struct that can only hold what is legal, with `parse` from and
//! `emit` to an array of `LEN` bytes; [`Packet`] is the checked view of a whole datagram. The [opcode table](opcode) says which headers an opcode carries, how long its payload may be,
//! and what it does to the receive queue; parser, emitter, requester and responder read the same row.
//!
//! Packets print as one line, in Wireshark's words:
//!
//! ```
//! use urxe_wire::Packet;
//! let datagram = [0x11, 0, 0xFF, 0xFF, 0, 0, 0, 0x12, 0, 0x12, 0x34, 0x56, 0x1F, 0, 0, 7, 0, 0, 0, 0];
//! let packet = Packet::parse(&datagram).unwrap();
//! assert_eq!(packet.to_string(), "RC Acknowledge QP=0x000012 PSN=1193046 Ack Credits=31 MSN=7");
//! ```
//!
//! Nothing here does I/O or allocates, and nothing that is received makes it panic.
//!
//! [`cm`] are the messages that connect queue pairs: the payload of datagrams to QP1.
//!
//! # Enums
//!
//! Operations, headers, syndromes, messages and attributes are tables of the specification, and whoever matches one shall
//! learn of a new row from the compiler: they are exhaustive, and a new variant is a breaking change. Why bytes are no packet
//! or message is `#[non_exhaustive]` ([`Malformed`], [`cm::MalformedCm`]): such bytes are dropped whatever the reason, and
//! another check must not break those that print it.
//!
//! Sources: InfiniBand Architecture Specification volume 1, chapter 9 (transport layer) and annex A17
//! (RoCE v2); `include/rdma/ib_pack.h` for the opcode numbers.

#[cfg(test)]
extern crate std;

pub mod aeth;
pub mod atomic_ack_eth;
pub mod atomic_eth;
pub mod bth;
pub mod checksum;
pub mod cm;
pub mod deth;
pub mod feth;
pub mod gid;
mod gid_layout;
pub mod grh;
mod guid;
pub mod icrc;
pub mod id;
pub mod ieth;
pub mod imm_dt;
pub mod lid;
mod lid_scheme;
mod link_layer;
pub mod mad;
mod malformed;
pub mod mgid;
pub mod mtu;
mod numbered;
pub mod opcode;
pub mod packet;
mod pretty;
pub mod psn;
pub mod reth;
pub mod selective;
pub mod syndrome;
pub mod xrceth;

#[cfg(test)]
mod testing;

pub use aeth::Aeth;
pub use atomic_ack_eth::AtomicAckEth;
pub use atomic_eth::AtomicEth;
pub use bth::Bth;
pub use deth::Deth;
pub use feth::{Feth, FlushLevel};
pub use gid::Gid;
pub use gid_layout::GidLayout;
pub use guid::Guid;
pub use id::{Msn, PKey, QKey, Qpn, RKey};
pub use ieth::Ieth;
pub use imm_dt::ImmDt;
pub use lid::Lid;
pub use lid_scheme::LidScheme;
pub use link_layer::LinkLayer;
pub use malformed::Malformed;
pub use mtu::Mtu;
pub use opcode::{Opcode, OpcodeInfo, Operation, Transport};
pub use packet::{Ext, Header, Packet};
pub use psn::Psn;
pub use reth::Reth;
pub use selective::{Bitmap, SelectiveAck, SelectiveOffer};
pub use syndrome::{Credits, NakCode, RnrTimer, Syndrome};
pub use xrceth::XrcEth;

/// The UDP destination port of RoCE v2 (IANA; IBA annex A17.3.1.2).
pub const ROCE_PORT: u16 = 4791;

/// The UDP port that urxe's processes use on `lo` where the kernel's rxe holds [`ROCE_PORT`] of all addresses: not assigned by
/// IANA, and below those that Linux hands out (`net.ipv4.ip_local_port_range`).
pub const LOOPBACK_PORT: u16 = 14791;

/// Bytes of the invariant CRC at the end of every packet.
pub const ICRC_LEN: usize = 4;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
