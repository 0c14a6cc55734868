//! Changes of interfaces by rtnetlink(7): addresses come and go, links go down and up.

use std::io;
use std::os::fd::AsRawFd;
use std::sync::Arc;

use rustix::io::Errno;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, bind, recv, socket_with};

use crate::interface::Interface;
use crate::sys::borrow;
use crate::sys::epoll_key::EpollKey;
use crate::sys::fd::{Fd, FdSet};

/// Change of the interface since the port was opened, or since the last change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkEvent {
    /// The GID table.
    Gids,
    /// Addresses that packets can come from: of several interfaces, one is down or up.
    Paths,
    /// The interface is running again.
    Up,
    /// The interface is down, or has no carrier.
    Down,
    /// The interface exists no more.
    Gone,
}

impl LinkEvent {
    /// Differences. GIDs go before the port does, and come after it.
    pub(crate) fn between(before: &Interface, now: &Interface) -> Vec<Self> {
        let gids = (before.gids() != now.gids()).then_some(Self::Gids);
        let down = (before.is_running() && !now.is_running()).then_some(Self::Down);
        let up = (!before.is_running() && now.is_running()).then_some(Self::Up);
        let paths = (!before.usable().eq(now.usable())).then_some(Self::Paths);
        [up, gids, paths, down].into_iter().flatten().collect()
    }
}

/// A socket that is readable when anything about interfaces has changed in this network namespace (rtnetlink(7)).
#[derive(Debug)]
pub(crate) struct RtnetlinkSocket(Fd);

impl RtnetlinkSocket {
    /// Opens the socket and has it watched.
    pub(crate) fn open(fds: &Arc<FdSet>) -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        // NETLINK_ROUTE is 0, which is no protocol to rustix.
        let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, None)?;
        let groups = libc::RTMGRP_LINK | libc::RTMGRP_IPV4_IFADDR | libc::RTMGRP_IPV6_IFADDR;
        bind(&socket, &SocketAddrNetlink::new(0, groups.cast_unsigned()))?;
        let socket = fds.adopt(socket)?;
        fds.watch(socket.as_raw_fd(), EpollKey::Rtnetlink.pack())?;
        Ok(Self(socket))
    }

    /// Throws away what has been told: the interface is asked instead.
    pub(crate) fn clear(&self) {
        // ENOBUFS says that more was told than fits, and is over by having been told itself. Of a longer message the rest is lost.
        while matches!(recv(borrow(self.0.as_raw_fd()), &mut [0; 16], RecvFlags::DONTWAIT), Ok(_) | Err(Errno::NOBUFS))
        {
        }
    }
}
