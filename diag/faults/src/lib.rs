#![forbid(unsafe_code)]
//! Faults on demand: what a network or a card might do to a program, by a script and a seed.
//!
//! A [`Script`] is parsed from text ([`spec`] has the grammar), and asked about every packet ([`Script::packet`]), every
//! verb ([`Script::verb`]) and every completion ([`Script::completion`]). Nothing here does I/O or looks at a clock.
//!
//! The same seed gives the same faults: whether a rule strikes is decided by its place in the script and by how many
//! things it has matched before, whatever other rules do. So a run repeats as far as its packets do. Steps, which follow one
//! another, end after a number of packets, or by the time that [`Script::at`] is told.
//!
//! ```
//! use std::net::Ipv4Addr;
//! use urxe_faults::{Direction, Qp, Script, Sight, Verdict};
//! use urxe_wire::{Opcode, Operation, Qpn, Transport};
//!
//! let mut script: Script = "drop,opcode=SEND,dir=tx,nth=2".parse().unwrap();
//! let sight = Sight {
//!     direction: Direction::Sent,
//!     opcode: Opcode::new(Transport::Rc, Operation::SendOnly).unwrap(),
//!     qp: Qp { qpn: Qpn::new(17), made: None },
//!     peer: Ipv4Addr::LOCALHOST.into(),
//!     len: 64,
//! };
//! assert_eq!([0; 3].map(|_| script.packet(&sight)), [Verdict::Pass, Verdict::Drop, Verdict::Pass]);
//! ```
//!
//! # Enums
//!
//! [`Verdict`], [`Occurrence`] and [`Direction`] are exhaustive, and a new variant is a breaking change: a verdict that is not
//! carried out would be a fault that does not happen. Errors ([`Invalid`], [`Unread`], [`NotADictionary`]) are structs.

mod chance;
mod mutate;
mod rule;
mod script;
mod sequence;
mod sight;
pub mod spec;

pub use mutate::{Dictionary, Mutation, NotADictionary};
pub use rule::{Announcement, Occurrence, Refused, RuleCounter};
pub use script::{MutationId, Script, Unread, Verdict};
pub use sight::{Direction, Qp, Sight};
pub use spec::Invalid;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
