//! The kernel's side of the uverbs ABI, as far as libibverbs calls the kernel without asking a provider first.
//!
//! | verb | command | here |
//! |---|---|---|
//! | `ibv_create_comp_channel` | write `CREATE_COMP_CHANNEL`, or the same inside ioctl `INVOKE_WRITE` | [`Device::create_comp_channel`] |
//! | `ibv_query_gid`, `_ex`, `ibv_query_gid_type` | ioctl `QUERY_GID_ENTRY` (else sysfs) | [`Device::gid`] |
//! | `ibv_query_gid_table` | ioctl `QUERY_GID_TABLE` (else sysfs) | [`Device::gid_table`] |
//! | `ibv_import_device`, and `ibv_open_device` without `async_fd` | ioctl `ASYNC_EVENT_ALLOC` | [`Device::alloc_async_fd`] |
//! | everything else that reaches the kernel | | refused as an older kernel would |
//!
//! An older kernel says ENOTTY when it has no uverbs ioctl at all, which makes libibverbs use write(2) for everything
//! from then on; EPROTONOSUPPORT when it lacks the one method, which makes it fall back for this one; and EOPNOTSUPP to
//! a write command that it does not have (libibverbs' `cmd_fallback.c`; the kernel's `uverbs_main.c`,
//! `uverbs_ioctl.c`, `uverbs_uapi.c`).

use std::any::Any;
use std::os::fd::{OwnedFd, RawFd};
use std::sync::Arc;

use urxe_wire::Gid;

use super::Errno;

mod ioctl;
mod write;

pub use ioctl::{RDMA_VERBS_IOCTL, handle_ioctl};
pub use write::handle_write;

#[cfg(test)]
mod tests;

/// Type of a GID: `IB_UVERBS_GID_TYPE_*`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GidType {
    /// InfiniBand.
    Ib,
    /// RoCE v1, by Ethertype.
    RoceV1,
    /// RoCE v2, over UDP.
    RoceV2,
}

/// A row of the GID table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GidEntry {
    /// The GID, in network byte order.
    pub gid: Gid,
    /// Index in the port's GID table.
    pub index: u32,
    /// The port, from 1.
    pub port: u32,
    /// InfiniBand, or the RoCE version.
    pub gid_type: GidType,
    /// The network interface's index; 0 for none.
    pub netdev_ifindex: u32,
}

/// Device behind an open uverbs file, as the command handlers need it.
pub trait Device: Send + Sync {
    /// A new completion channel: the end that the application polls, and from which libibverbs reads
    /// `ib_uverbs_comp_event_desc`s. It belongs to the application, which closes it (see [`Self::before_close`]).
    fn create_comp_channel(&self) -> Result<OwnedFd, Errno>;

    /// The end from which libibverbs reads `ib_uverbs_async_event_desc`s. libibverbs closes it with the context.
    fn alloc_async_fd(&self) -> Result<OwnedFd, Errno>;

    /// One row. EINVAL beyond the port's table, ENODATA where the row is empty.
    fn gid(&self, port: u32, index: u32) -> Result<GidEntry, Errno>;

    /// Every row that is not empty, of every port, in order.
    fn gid_table(&self) -> Vec<GidEntry>;

    /// libibverbs is about to close `fd`, which may be any descriptor of the process: if it is a completion channel's,
    /// the channel is gone, and what is returned goes when `fd` is closed.
    fn before_close(&self, fd: RawFd) -> Option<Arc<dyn Any + Send + Sync>>;
}
