//! libibverbs for tests: the C API with owners, `Result`s and readable values, and nothing decided for the caller.
//!
//! | module | what |
//! |---|---|
//! | [`context`] | devices, their attributes, asynchronous events |
//! | [`memory`] | pages that may be unmapped under a region; PDs and MRs |
//! | [`domain`] | thread domains and their parent domains |
//! | [`cq`] | completion queues and channels |
//! | [`srq`] | shared receive queues, XRC domains |
//! | [`wr`] | work requests |
//! | [`qp`] | queue pairs: states and posting |
//! | [`pair`] | two connected queue pairs of one process |
//! | [`many`] | many of one process that share a completion queue |
//! | [`datagram`] | UD queue pairs, address handles |
//! | [`child`] | forked processes |
//! | [`scale`] | many processes, connected with each other |
//! | [`loss`] | a network that loses packets |
//! | [`window`] | memory windows |
//! | [`mistake`] | wrong use and its consequences, as tables |
//!
//! Every object is destroyed by its owner's drop, which panics when libibverbs refuses: a test that leaves something
//! busy fails. Objects hold what they were made from, so the order of drops is right by itself.
//!
//! Safe enough for tests, not for programs: a work request may name any address, as it may in C.

pub mod child;
pub mod context;
pub mod cq;
pub mod datagram;
pub mod domain;
mod handle;
pub mod loss;
pub mod many;
pub mod memory;
pub mod mistake;
pub mod pair;
pub mod qp;
pub mod scale;
pub mod srq;
pub mod window;
pub mod wr;

pub use context::{AsyncEvent, Context, DeviceList};
pub use cq::{Channel, Cq, Status, Wc};
pub use domain::ThreadDomain;
pub use handle::{Errno, Handle};
pub use many::Many;
pub use memory::{Mr, Pages, Pd};
pub use pair::{End, Options, Pair};
pub use qp::{Change, PostError, Qp};
pub use srq::{Srq, Xrcd};
pub use window::Window;
pub use wr::{Op, RecvWr, Remote, SendList, SendWr};

use std::os::fd::RawFd;
use std::time::Duration;

// `urxe_ffi::functions` declares what is in here.
#[link(name = "ibverbs")]
unsafe extern "C" {}

/// Longer than anything that is going to happen takes, on a machine that has twenty other things to do: a guard against
/// hanging, not a measure.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// Whether `fd` becomes readable within `timeout`.
pub fn is_readable(fd: RawFd, timeout: Duration) -> bool {
    let mut polled = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    let timeout = i32::try_from(timeout.as_millis()).unwrap_or(i32::MAX);
    // SAFETY: one entry.
    unsafe { libc::poll(&raw mut polled, 1, timeout) == 1 && polled.revents & libc::POLLIN != 0 }
}
