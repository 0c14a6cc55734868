//! Captures of RoCE v2 packets as pcapng files (draft-ietf-opsawg-pcapng).
//!
//! | item | use |
//! |---|---|
//! | [`Writer`] | blocks of a file, in a buffer that the caller writes where it wants |
//! | [`Addresses`] | the Ethernet, IP and UDP headers that a UDP socket does not see |
//! | `read`, `packets` (feature `read`) | RoCE v2 packets of a pcapng file or of a pcap file, as tcpdump writes them; super-packets split |
#![forbid(unsafe_code)]

mod frame;
#[cfg(feature = "read")]
mod reader;
#[cfg(feature = "read")]
mod segments;
mod writer;

pub use frame::Addresses;
#[cfg(feature = "read")]
pub use reader::{Capture, Captured, ReadError, packets, read, read_whole};
pub use writer::{Direction, Writer};

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
