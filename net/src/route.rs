//! The way to one destination, and the pool of transmit sockets routes share.

use core::sync::atomic::{AtomicBool, Ordering};
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;

use urxe_wire::{Qpn, icrc};

use crate::fd::{Fd, FdSet};
use crate::interface::Gid;
use crate::registry::block_of;
use crate::sys::RawAddr;
use crate::udp::{TxOptions, bind_tx, has_gso, send_multicast_through};

/// Where a queue pair or address handle sends to, in verbs terms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Destination {
    /// A GID of the own table.
    pub local: Gid,
    /// The peer's GID.
    pub remote: Gid,
    /// The peer's QPN: packets for one process of the peer's host come from one source port.
    pub dest_qpn: Qpn,
    /// Flow label of the GRH, 20 bits; other than 0 it decides the UDP source port, if no other destination has that.
    pub flow_label: u32,
    /// Traffic class of the GRH.
    pub tclass: u8,
    /// Hop limit of the GRH; 0 stands for 64.
    pub hop_limit: u8,
}

/// A way to one destination; made by [`Port::route`](crate::Port::route) and shared.
#[derive(Debug)]
pub struct Route {
    socket: Arc<TxSocket>,
    remote: SocketAddr,
    name: RawAddr,
    name_len: libc::socklen_t,
    flow: icrc::Flow,
}

impl Route {
    /// Own address and UDP source port.
    pub fn local(&self) -> SocketAddr {
        self.socket.local
    }

    /// The peer's address, UDP port 4791.
    pub fn remote(&self) -> SocketAddr {
        self.remote
    }

    fn new(socket: Arc<TxSocket>, remote: SocketAddr) -> Self {
        let (name, name_len) = RawAddr::new(remote);
        let flow = icrc::Flow::new(socket.local, remote);
        Self { socket, remote, name, name_len, flow }
    }

    pub(crate) fn flow(&self) -> &icrc::Flow {
        &self.flow
    }

    pub(crate) fn name(&self) -> (*const RawAddr, libc::socklen_t) {
        (&raw const self.name, self.name_len)
    }

    pub(crate) fn raw_fd(&self) -> RawFd {
        self.socket.fd.as_raw_fd()
    }

    /// Whether packets of both may share a GSO run.
    pub(crate) fn same_path(&self, other: &Self) -> bool {
        self.same_socket(other) && self.remote == other.remote
    }

    pub(crate) fn same_socket(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.socket, &other.socket)
    }

    pub(crate) fn has_gso(&self) -> bool {
        self.socket.gso.load(Ordering::Relaxed)
    }

    pub(crate) fn give_up_gso(&self) {
        self.socket.gso.store(false, Ordering::Relaxed);
    }

    /// The most payload one GSO run may carry: 65535 less IPv4 and UDP header, or less IPv6 and UDP header.
    pub(crate) fn max_run(&self) -> usize {
        if self.remote.is_ipv4() { 65535 - 20 - 8 } else { 65535 - 40 - 8 }
    }
}

/// What must be equal for two destinations to share a socket without the receiver noticing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Key {
    local: SocketAddr,
    remote: SocketAddr,
    block: u16,
    options: TxOptions,
}

/// A transmit socket: one source port.
#[derive(Debug)]
struct TxSocket {
    fd: Fd,
    local: SocketAddr,
    key: Key,
    /// Whether the kernel takes GSO runs on it.
    gso: AtomicBool,
}

/// The transmit sockets of a port.
#[derive(Debug)]
pub(crate) struct TxPool {
    sockets: Vec<Arc<TxSocket>>,
    limit: usize,
    /// Index of the interface, through which multicast leaves.
    interface: u32,
}

impl TxPool {
    pub(crate) fn new(limit: usize, interface: u32) -> Self {
        Self { sockets: Vec::new(), limit, interface }
    }

    /// A route from `local` to `remote` (both port 4791, the same IP version). It shares a socket with equal
    /// destinations, has a new one while the limit allows, and else shares one with another destination: the peer's
    /// host then has to forward more, and class and hop limit are those of the first.
    pub(crate) fn route(
        &mut self,
        fds: &Arc<FdSet>,
        local: SocketAddr,
        remote: SocketAddr,
        to: &Destination,
    ) -> io::Result<Route> {
        let options = TxOptions { flow_label: to.flow_label & 0xF_FFFF, tclass: to.tclass, hop_limit: to.hop_limit };
        let key = Key { local, remote, block: block_of(to.dest_qpn), options };
        if let Some(socket) = self.sockets.iter().find(|s| s.key == key) {
            return Ok(Route::new(Arc::clone(socket), remote));
        }
        if self.sockets.len() >= self.limit {
            self.sockets.retain(|socket| Arc::strong_count(socket) > 1);
        }
        if self.sockets.len() < self.limit {
            match bind_tx(fds, local, options) {
                Ok((fd, bound)) => {
                    if remote.ip().is_multicast() {
                        send_multicast_through(fd.as_raw_fd(), remote, self.interface, to.hop_limit)?;
                    }
                    let gso = AtomicBool::new(has_gso(&fd));
                    let socket = Arc::new(TxSocket { fd, local: bound, key, gso });
                    self.sockets.push(Arc::clone(&socket));
                    return Ok(Route::new(socket, remote));
                }
                Err(error) => return self.share(key, remote).ok_or(error),
            }
        }
        self.share(key, remote).ok_or_else(|| io::Error::from_raw_os_error(libc::EMFILE))
    }

    /// The most similar socket of the same address.
    fn share(&self, key: Key, remote: SocketAddr) -> Option<Route> {
        let of_address = || self.sockets.iter().filter(|s| s.key.local == key.local);
        let socket = of_address().find(|s| s.key.options == key.options).or_else(|| of_address().next())?;
        Some(Route::new(Arc::clone(socket), remote))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn to(dest_qpn: u32) -> Destination {
        Destination {
            local: [0; 16],
            remote: [0; 16],
            dest_qpn: Qpn::new(dest_qpn),
            flow_label: 0,
            tclass: 0,
            hop_limit: 0,
        }
    }

    fn lo() -> SocketAddr {
        "127.0.0.1:4791".parse().unwrap()
    }

    #[test]
    fn one_source_port_for_each_destination_block() {
        let (fds, mut pool) = (FdSet::new().unwrap(), TxPool::new(8, 1));
        let mut port = |qpn| pool.route(&fds, lo(), lo(), &to(qpn)).unwrap().local().port();
        let first = port(0x0100);
        assert_eq!(port(0x01FF), first);
        assert_ne!(port(0x0200), first);
    }

    #[test]
    fn a_full_pool_drops_idle_sockets_and_then_shares() {
        let (fds, mut pool) = (FdSet::new().unwrap(), TxPool::new(2, 1));
        let kept = pool.route(&fds, lo(), lo(), &to(0x0100)).unwrap();
        drop(pool.route(&fds, lo(), lo(), &to(0x0200)).unwrap());
        let third = pool.route(&fds, lo(), lo(), &to(0x0300)).unwrap();
        assert!(!third.same_socket(&kept), "an idle socket should have made room");
        let fourth = pool.route(&fds, lo(), lo(), &to(0x0400)).unwrap();
        assert!(fourth.same_socket(&kept) || fourth.same_socket(&third));
        assert_eq!(pool.sockets.len(), 2);
    }
}
