//! Multicast groups that this process listens to, each on a socket of its own.
//!
//! A unicast datagram goes to one socket; of a multicast one the kernel gives each socket a copy that is bound to the
//! group and port and has joined (`__udp4_lib_mcast_deliver`). So processes need not know of each other here: nothing
//! is forwarded, and no flow is learnt.
//!
//! On `lo`, IPv4 groups work although the interface lacks the MULTICAST flag; IPv6 ones do not, because it has no
//! route for them. `Membership::join` finds that out before anybody waits for a message that cannot come.

use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::{AsRawFd, RawFd};
use std::sync::{Arc, Mutex, Weak};

use socket2::{InterfaceIndexOrAddress, Socket};

use crate::mutex::lock;
use crate::sys::epoll_key::EpollKey;
use crate::sys::fd::{Fd, FdSet};
use crate::sys::set_option;
use crate::sys::udp::{Reported, receive_socket, report_headers, send_multicast_through};

/// Membership of a group; dropping it leaves the group.
#[derive(Debug)]
pub struct Membership {
    fd: Fd,
    group: SocketAddr,
}

impl Membership {
    /// Joins `group` on the interface with this index.
    fn join(fds: &Arc<FdSet>, group: SocketAddr, interface: u32) -> io::Result<Self> {
        check_route(group, interface)?;
        let socket = receive_socket(group)?;
        let fd = socket.as_raw_fd();
        // Else groups joined by anybody on any interface would be heard (ip(7), IP_MULTICAST_ALL).
        match group.ip() {
            IpAddr::V4(ip) => {
                set_option(fd, libc::IPPROTO_IP, libc::IP_MULTICAST_ALL, 0)?;
                socket.join_multicast_v4_n(&ip, &InterfaceIndexOrAddress::Index(interface))?;
            }
            IpAddr::V6(ip) => {
                set_option(fd, libc::IPPROTO_IPV6, libc::IPV6_MULTICAST_ALL, 0)?;
                socket.join_multicast_v6(&ip, interface)?;
            }
        }
        report_headers(fd, group, Reported::All);
        Ok(Self { fd: fds.adopt(socket)?, group })
    }

    /// The group, UDP port 4791.
    pub fn group(&self) -> SocketAddr {
        self.group
    }

    pub(crate) fn raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
}

/// Fails as sending to the group would.
fn check_route(group: SocketAddr, interface: u32) -> io::Result<()> {
    let unspecified: IpAddr = match group.ip() {
        IpAddr::V4(_) => std::net::Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => std::net::Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = Socket::from(UdpSocket::bind((unspecified, 0))?);
    send_multicast_through(socket.as_raw_fd(), group, interface, 0)?;
    socket.connect(&group.into())
}

/// The memberships of a port, by slot.
#[derive(Debug, Default)]
pub(crate) struct Groups(Mutex<Vec<Weak<Membership>>>);

impl Groups {
    /// Joins a group and has its socket watched.
    pub(crate) fn join(&self, fds: &Arc<FdSet>, group: SocketAddr, interface: u32) -> io::Result<Arc<Membership>> {
        let membership = Arc::new(Membership::join(fds, group, interface)?);
        let mut slots = lock(&self.0);
        let slot = match slots.iter().position(|slot| slot.strong_count() == 0) {
            Some(slot) => slot,
            None => {
                slots.push(Weak::new());
                slots.len() - 1
            }
        };
        if let Some(place) = slots.get_mut(slot) {
            *place = Arc::downgrade(&membership);
        }
        fds.watch(membership.raw_fd(), EpollKey::Group(slot).pack())?;
        Ok(membership)
    }

    pub(crate) fn get(&self, slot: usize) -> Option<Arc<Membership>> {
        lock(&self.0).get(slot)?.upgrade()
    }
}
