//! Being a kernel for libibverbs.
//!
//! Some verbs never reach a provider: libibverbs turns them into uverbs commands and hands these to the kernel, by
//! write(2) and ioctl(2) on the file that it opened under `/dev/infiniband`. There is no such kernel here, and the file
//! has the device number of `/dev/null`. So libibverbs' own calls of these functions are diverted:
//!
//! ```text
//! libibverbs ──write/ioctl/close──▶ hook ──▶ is the descriptor attached to a device of ours?
//!                                              yes ▶ uverbs::{write, ioctl} ──▶ trait Device (the provider)
//!                                              no  ▶ libc, as if we were not there
//! ```
//!
//! - [`plt`] finds and replaces the slots through which one loaded object calls libc: nobody else's calls change;
//! - [`hook`] is what stands in the slots, and knows which descriptor is whose;
//! - `library` is what hooks of librdmacm and libibumad share: the copies that are loaded, and their open files;
//! - [`uverbs`] is the kernel's side of the uverbs ABI, on byte buffers;
//! - [`event_file`] is what libibverbs reads events from;
//! - `netlink` answers for `NETLINK_RDMA` below `urxe run`;
//! - [`memory`] is how it reaches the caller's memory;
//! - `call_depth` knows whether a thread is inside one of these calls, or a verb.

pub(crate) mod call_depth;
pub mod errno;
pub mod event_file;
pub mod hook;
mod library;
pub mod memory;
pub(crate) mod netlink;
pub mod plt;
pub mod ucma;
pub mod umad;
pub mod uverbs;

pub use errno::Errno;
