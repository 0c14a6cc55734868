//! Interfaces change: addresses come and go, links go down and up.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::Arc;

use crate::interface::Interface;
use crate::sys::epoll_key::EpollKey;
use crate::sys::fd::{Fd, FdSet};
use crate::sys::{family, socklen};

/// Change of the interface since the port was opened, or since the last change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkEvent {
    /// The GID table.
    Gids,
    /// The interface is running again.
    Up,
    /// The interface is down, or has no carrier.
    Down,
    /// There is no such interface any more.
    Gone,
}

impl LinkEvent {
    /// Differences. GIDs go before the port does, and come after it.
    pub(crate) fn between(before: &Interface, now: &Interface) -> Vec<Self> {
        let gids = (before.gids() != now.gids()).then_some(Self::Gids);
        let down = (before.is_running() && !now.is_running()).then_some(Self::Down);
        let up = (!before.is_running() && now.is_running()).then_some(Self::Up);
        [up, gids, down].into_iter().flatten().collect()
    }
}

/// A socket that is readable when anything about interfaces has changed in this network namespace (rtnetlink(7)).
#[derive(Debug)]
pub(crate) struct RtnetlinkSocket(Fd);

impl RtnetlinkSocket {
    /// Opens the socket and has it watched.
    pub(crate) fn open(fds: &Arc<FdSet>) -> io::Result<Self> {
        let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        // SAFETY: no pointers.
        let raw = unsafe { libc::socket(libc::AF_NETLINK, kind, libc::NETLINK_ROUTE) };
        if raw < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: new, and nobody else's.
        let socket = fds.adopt(unsafe { OwnedFd::from_raw_fd(raw) })?;
        // SAFETY: all-zero is a value of this plain C struct.
        let mut address: libc::sockaddr_nl = unsafe { core::mem::zeroed() };
        address.nl_family = family(libc::AF_NETLINK);
        address.nl_groups = (libc::RTMGRP_LINK | libc::RTMGRP_IPV4_IFADDR | libc::RTMGRP_IPV6_IFADDR).cast_unsigned();
        let length = socklen::<libc::sockaddr_nl>();
        // SAFETY: a socket address of this length.
        if unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), length) } != 0 {
            return Err(io::Error::last_os_error());
        }
        fds.watch(socket.as_raw_fd(), EpollKey::Rtnetlink.pack())?;
        Ok(Self(socket))
    }

    /// Throws away what has been told: the interface is asked instead.
    pub(crate) fn clear(&self) {
        let mut start = [0_u8; 16];
        loop {
            // SAFETY: a buffer of this length; of what is longer the rest is lost.
            let received =
                unsafe { libc::recv(self.0.as_raw_fd(), start.as_mut_ptr().cast(), start.len(), libc::MSG_DONTWAIT) };
            // ENOBUFS says that more was told than fits, and is over by having been told itself.
            if received < 0 && io::Error::last_os_error().raw_os_error() != Some(libc::ENOBUFS) {
                return;
            }
        }
    }
}
