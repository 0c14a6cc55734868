//! Status reports of devices, and the trust between asker and device.
//!
//! Each device of each process has a socket in the abstract unix namespace, and gives whoever connects (and is of the
//! same user, or root) one JSON object: its process, queue pairs, regions and counters. Nothing is written anywhere, and
//! nobody wakes up, until somebody asks. A name alone proves nothing: who asks believes this user and root, and if it is
//! root, other users as far as their own processes go.
//!
//! This crate is the asking side ([`ask_all`]), which both the command `urxe` and the library under `urxe run` have; what
//! a device counts ([`Counters`]), what closed devices had counted ([`FinalCounters`]), [`resources`]: which objects it has,
//! [`sysfs`]: which files below `/sys/class/infiniband` show which counters, [`link`]: which follow the interface, and
//! [`port`]. The answering side is `provider/src/status`.
#![forbid(unsafe_code)]

mod ask;
mod counters;
mod final_counters;
pub mod link;
pub mod port;
pub mod resources;
pub mod sysfs;

pub use ask::{Answers, Report, ask_all, counters, is_true, text};
pub use counters::{Counters, names};
pub use final_counters::FinalCounters;

/// Prefix of the sockets' names: process id and a random number follow.
pub const NAMES: &str = "urxe/1/status/";

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
