//! Captures of RoCE v2 packets as pcapng files (draft-ietf-opsawg-pcapng).
//!
//! | item | use |
//! |---|---|
//! | [`Writer`] | blocks of a file, in a buffer that the caller writes where it wants |
//! | [`Addresses`] | the Ethernet, IP and UDP headers that a UDP socket does not see |
//! | `read`, `packets` (feature `read`) | RoCE v2 packets of a pcapng file or of a pcap file, as tcpdump writes them; super-packets split |
//!
//! ```
//! use urxe_pcapng::{Addresses, Direction, Writer};
//!
//! let mut writer = Writer::new("example", 0);
//! writer.interface("urxe0", "a device");
//! let addresses = Addresses::new("10.0.0.1:49152".parse().unwrap(), "10.0.0.2:4791".parse().unwrap(), 0);
//! let packet = [0; 16];
//! let before = writer.bytes().len();
//! writer.packet(0, Direction::Received, 1_000, &addresses, &packet, &[]);
//! assert!(writer.bytes().len() > before + packet.len());
//! ```
//!
//! # Enums
//!
//! [`Direction`] is exhaustive: `epb_flags` has no other. `ReadError` is `#[non_exhaustive]`.
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
