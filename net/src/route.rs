//! The way to one destination, and the pool of transmit sockets routes share.

use core::sync::atomic::{AtomicBool, Ordering};
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::{Arc, Mutex, Weak};

use urxe_wire::{Gid, Qpn, icrc};

use crate::counters::{Counters, add};
use crate::direct::Offer;
use crate::interface::Interface;
use crate::mutex::lock;
use crate::qpn_registry::block_of;
use crate::shm::{Link, PendingAck, Purpose, is_own_address};
use crate::sys::RawAddr;
use crate::sys::fd::{Budget, Fd, FdSet, Permit};
use crate::sys::udp::{DEFAULT_HOP_LIMIT, TxOptions, bind_tx, has_gso, send_multicast_through};
use crate::udp_sockets::UdpSockets;

/// Destination of a queue pair or address handle, in verbs terms.
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
    /// The way through shared memory, if there is one.
    link: Option<Arc<Link>>,
    /// Packets stay in this process.
    inside: bool,
    /// Ways to the same destination from other source ports.
    others: Box<[Arc<Self>]>,
}

impl Route {
    /// The way over another path to the same destination, from another source port, if there are several: `path` counts from 1.
    pub fn on_path(self: &Arc<Self>, path: u8) -> Arc<Self> {
        let other = self.others.get(usize::from(path).wrapping_sub(1) % self.others.len().max(1));
        Arc::clone(other.unwrap_or(self))
    }

    /// Adds ways from other source ports.
    pub(crate) fn with_others(self, others: Vec<Arc<Self>>) -> Self {
        Self { others: others.into_boxed_slice(), ..self }
    }

    /// Own address and UDP source port.
    pub fn local(&self) -> SocketAddr {
        self.socket.local
    }

    /// The peer's address, UDP port 4791.
    pub fn remote(&self) -> SocketAddr {
        self.remote
    }

    fn new(socket: Arc<TxSocket>, remote: SocketAddr, link: Option<Arc<Link>>) -> Self {
        let (name, name_len) = RawAddr::new(remote);
        let flow = icrc::Flow::new(socket.local, remote);
        Self { socket, remote, name, name_len, flow, link, inside: false, others: Box::default() }
    }

    /// A way on which packets stay in this process: whoever flushes them takes them to their queue pairs
    /// ([`TxBatch::take_inside`](crate::TxBatch::take_inside)).
    fn within(socket: Arc<TxSocket>, remote: SocketAddr) -> Self {
        Self { inside: true, ..Self::new(socket, remote, None) }
    }

    /// Whether packets stay in this process.
    #[inline]
    pub const fn is_inside(&self) -> bool {
        self.inside
    }

    /// Traffic class and hop limit of packets.
    pub(crate) fn class_and_hops(&self) -> (u8, u8) {
        let TxOptions { tclass, hop_limit, .. } = self.socket.key.options;
        (tclass, if hop_limit == 0 { DEFAULT_HOP_LIMIT } else { hop_limit })
    }

    /// Whether packets go through shared memory now.
    pub fn is_shared(&self) -> bool {
        self.link().is_some()
    }

    /// Whether the shared memory has room for packets. Those sent without room may be lost, and a ring is soon emptied: ask again.
    /// True by UDP, which does not tell.
    #[inline]
    pub fn has_room(&self) -> bool {
        self.link().is_none_or(Link::has_room)
    }

    /// Whether packets may be lost. Shared memory loses none until its receiver has left it full for too long.
    pub fn may_lose(&self) -> bool {
        !self.inside && self.link().is_none_or(Link::has_lost)
    }

    /// Position in shared memory that the peer's process has yet to read to, if it has: `since`, or the end of what has been sent.
    /// `None` by UDP, which does not say.
    pub fn unread(&self, since: Option<u64>) -> Option<u64> {
        self.link()?.unread(since)
    }

    /// Whether what has been sent by UDP lies in a socket of the peer's process, which has not read it. False for a peer whose sockets
    /// cannot be seen, as on another host. `sockets` is called where they have to be looked at.
    pub fn is_unread_in_socket<'a>(&self, sockets: impl FnOnce() -> &'a UdpSockets) -> bool {
        if self.inside || self.link().is_some() || !is_own_address(self.remote) {
            return false;
        }
        let sockets = sockets();
        self.others.iter().map(AsRef::as_ref).chain([self]).any(|way| sockets.is_unread(way.local(), self.remote))
    }

    /// Leaves the last ACK of a queue pair where its peer's process finds it if this one ends before it has sent the ACK, by
    /// whatever way. False if there is no such place: the peer is on another host, or another user's. It stays until
    /// [`Route::take_back_ack`], and a later one takes its place.
    #[inline]
    pub fn leave_ack(&self, ack: PendingAck) -> bool {
        if self.inside {
            // Its peer ends with it.
            return true;
        }
        let link = self.link.as_ref().filter(|link| link.is_alive());
        link.inspect(|link| link.leave_ack(ack)).is_some()
    }

    /// Asks the system whether the process at the other end of the shared memory has ended. False without shared memory.
    pub fn is_peer_gone(&self) -> bool {
        self.link.as_ref().is_some_and(|link| link.is_gone())
    }

    /// The process at the other end of the shared memory, if there is one and it can be seen from here.
    pub(crate) fn peer_pid(&self) -> Option<u32> {
        self.link.as_ref().and_then(|link| link.peer_pid())
    }

    /// Takes back the ACK that the queue pair `from` has left for its peer `to`. What others have left stays.
    pub fn take_back_ack(&self, from: Qpn, to: Qpn) {
        if let Some(link) = &self.link {
            link.take_back_ack(from, to);
        }
    }

    #[inline]
    pub(crate) fn link(&self) -> Option<&Link> {
        self.link.as_deref().filter(|link| link.carries_packets() && link.is_alive())
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

    /// Whether no interface that is administratively up has the own address, as far as is known.
    pub(crate) fn is_down(&self) -> bool {
        self.socket.is_down.load(Ordering::Relaxed)
    }

    /// Whether packets of both may share a GSO run.
    pub(crate) fn same_path(&self, other: &Self) -> bool {
        let link = |route: &Self| route.link.as_ref().map(Arc::as_ptr);
        self.same_socket(other)
            && self.remote == other.remote
            && self.inside == other.inside
            && link(self) == link(other)
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

/// Key of a transmit socket: destinations with equal keys share it without the receiver noticing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Key {
    local: SocketAddr,
    remote: SocketAddr,
    block: u16,
    options: TxOptions,
    /// Path, where there are several.
    path: u8,
}

/// A transmit socket: one source port.
#[derive(Debug)]
struct TxSocket {
    fd: Fd,
    local: SocketAddr,
    key: Key,
    /// Whether the kernel takes GSO runs on it.
    gso: AtomicBool,
    /// Answer of [`Route::is_down`].
    is_down: AtomicBool,
    link: Mutex<SharedWay>,
    /// The rings that there may be, the best first.
    purposes: &'static [Purpose],
    _permit: Option<Permit>,
}

/// The way to a destination through shared memory.
#[derive(Debug)]
enum SharedWay {
    /// No way through shared memory: another host, another user, or nobody there who would.
    None,
    /// Link that may exist: it is looked for with the next packet.
    Unknown,
    /// Link that exists while somebody has a route.
    Known(Weak<Link>),
}

impl TxSocket {
    /// The way through shared memory, which is made if need be.
    fn link(&self, fds: &Arc<FdSet>, counters: &Counters, offer: Option<&Offer>) -> Option<Arc<Link>> {
        let mut way = lock(&self.link);
        match &*way {
            SharedWay::None => return None,
            SharedWay::Known(link) => match link.upgrade() {
                Some(link) => return Some(link),
                None => *way = SharedWay::Unknown,
            },
            SharedWay::Unknown => {}
        }
        let Key { remote, block, options, .. } = self.key;
        let hops = if options.hop_limit == 0 { DEFAULT_HOP_LIMIT } else { options.hop_limit };
        let open = |purpose| Link::open(fds, purpose, block, self.local, remote, options.tclass, hops, offer).ok();
        let Some(link) = self.purposes.iter().copied().find_map(open).map(Arc::new) else {
            *way = SharedWay::None;
            return None;
        };
        *way = SharedWay::Known(Arc::downgrade(&link));
        if link.carries_packets() {
            add(&counters.rings_opened, 1);
        }
        Some(link)
    }
}

/// The transmit sockets of a port.
#[derive(Debug)]
pub(crate) struct TxPool {
    sockets: Vec<Arc<TxSocket>>,
    budget: Budget,
    /// Interface as it was read last. Multicast leaves through it.
    interface: Arc<Interface>,
    /// Processes of this host may be sent to through shared memory.
    shared: bool,
    /// The shared file that goes with rings.
    offer: Option<Offer>,
}

impl TxPool {
    pub(crate) fn new(budget: Budget, interface: &Arc<Interface>, shared: bool) -> Self {
        Self { sockets: Vec::new(), budget, interface: Arc::clone(interface), shared, offer: None }
    }

    /// Learns which addresses are up now.
    pub(crate) fn follow(&mut self, interface: &Arc<Interface>) {
        self.interface = Arc::clone(interface);
        for socket in &self.sockets {
            socket.is_down.store(!interface.is_up_at(socket.local.ip()), Ordering::Relaxed);
        }
    }

    /// A route from `local` to `remote` (both port 4791, the same IP version). It shares a socket with equal
    /// destinations, has a new one while the budget allows, and else shares one with another destination: the peer's
    /// host then has to forward more, and class and hop limit are those of the first.
    pub(crate) fn route(
        &mut self,
        fds: &Arc<FdSet>,
        counters: &Counters,
        [local, remote]: [SocketAddr; 2],
        to: &Destination,
        inside: bool,
        path: u8,
    ) -> io::Result<Route> {
        let make = |socket: &Arc<TxSocket>| {
            if inside {
                return Route::within(Arc::clone(socket), remote);
            }
            Route::new(Arc::clone(socket), remote, socket.link(fds, counters, self.offer.as_ref()))
        };
        // The label's port is one.
        let flow_label = if path == 0 { to.flow_label & 0xF_FFFF } else { 0 };
        let options = TxOptions { flow_label, tclass: to.tclass, hop_limit: to.hop_limit };
        let block = block_of(to.dest_qpn);
        // To QP1 from one socket, whatever the destination: no host learns where that is from, and a process that has many
        // connections sends to many hosts.
        let is_gsi = block == 0 && !remote.ip().is_multicast();
        let key = Key { local, remote: if is_gsi { local } else { remote }, block, options, path };
        if let Some(socket) = self.sockets.iter().find(|s| s.key == key) {
            return Ok(make(socket));
        }
        let permit = self.budget.take().or_else(|| {
            self.sockets.retain(|socket| Arc::strong_count(socket) > 1);
            self.budget.take()
        });
        // One that there is none to share with is had beyond the budget: other shards may have taken it all.
        if permit.is_some() || self.sockets.iter().all(|socket| socket.key.local != key.local) {
            match bind_tx(fds, local, options) {
                Ok((fd, bound)) => {
                    if remote.ip().is_multicast() {
                        send_multicast_through(fd.as_raw_fd(), remote, self.interface.index(), to.hop_limit)?;
                    }
                    let gso = AtomicBool::new(has_gso(&fd));
                    let is_down = AtomicBool::new(!self.interface.is_up_at(bound.ip()));
                    let may_share = key.block != 0 && is_own_address(remote);
                    let purposes: &[_] =
                        if self.shared { &[Purpose::Packets, Purpose::Acks] } else { &[Purpose::Acks] };
                    let link = Mutex::new(if may_share { SharedWay::Unknown } else { SharedWay::None });
                    let socket =
                        Arc::new(TxSocket { fd, local: bound, key, gso, is_down, link, purposes, _permit: permit });
                    self.sockets.push(Arc::clone(&socket));
                    return Ok(make(&socket));
                }
                Err(error) => return self.share(key, remote).ok_or(error),
            }
        }
        self.share(key, remote).ok_or_else(|| io::Error::from_raw_os_error(libc::EMFILE))
    }

    /// Has a shared file go with rings.
    pub(crate) fn offer(&mut self, offer: Offer) {
        self.offer = Some(offer);
    }

    /// The most similar socket of the same address.
    fn share(&self, key: Key, remote: SocketAddr) -> Option<Route> {
        let of_address = || self.sockets.iter().filter(|s| s.key.local == key.local);
        let socket = of_address().find(|s| s.key.options == key.options).or_else(|| of_address().next())?;
        // A ring is for one block, and this may be another.
        Some(Route::new(Arc::clone(socket), remote, None))
    }

    /// Looks what has become of the ring with this connection.
    pub(crate) fn look_at_link(&self, fds: &FdSet, fd: RawFd) {
        let links = self.sockets.iter().filter_map(|socket| match &*lock(&socket.link) {
            SharedWay::Known(link) => link.upgrade(),
            SharedWay::None | SharedWay::Unknown => None,
        });
        for link in links.filter(|link| link.raw_fd() == fd) {
            link.look(fds);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn to(dest_qpn: u32) -> Destination {
        Destination {
            local: Gid::UNSPECIFIED,
            remote: Gid::UNSPECIFIED,
            dest_qpn: Qpn::new(dest_qpn),
            flow_label: 0,
            tclass: 0,
            hop_limit: 0,
        }
    }

    fn lo() -> SocketAddr {
        "127.0.0.1:4791".parse().unwrap()
    }

    fn pool(limit: usize, shared: bool) -> TxPool {
        TxPool::new(Budget::new(limit), &Arc::new(Interface::by_name("lo").unwrap()), shared)
    }

    #[test]
    fn every_pool_of_a_budget_that_is_used_up_has_a_socket() {
        let (fds, budget) = (FdSet::new().unwrap(), Budget::new(1));
        let interface = Arc::new(Interface::by_name("lo").unwrap());
        let mut pools = [(); 3].map(|()| TxPool::new(budget.clone(), &interface, false));
        let mut routes = Vec::new();
        for pool in &mut pools {
            for block in 1..4 {
                routes.push(pool.route(&fds, &Counters::default(), [lo(), lo()], &to(block << 8), false, 0).unwrap());
            }
            assert_eq!(pool.sockets.len(), 1);
        }
    }

    #[test]
    fn one_source_port_for_each_destination_block() {
        let (fds, mut pool) = (FdSet::new().unwrap(), pool(8, false));
        let mut port =
            |qpn| pool.route(&fds, &Counters::default(), [lo(), lo()], &to(qpn), false, 0).unwrap().local().port();
        let first = port(0x0100);
        assert_eq!(port(0x01FF), first);
        assert_ne!(port(0x0200), first);
    }

    #[test]
    fn one_source_port_for_management_datagrams_to_all_hosts() {
        let (fds, mut pool) = (FdSet::new().unwrap(), pool(8, true));
        let routes: Vec<_> = (1..=100)
            .map(|last| {
                let remote = SocketAddr::from(([192, 0, 2, last], 4791));
                pool.route(&fds, &Counters::default(), [lo(), remote], &to(1), false, 0).unwrap()
            })
            .collect();
        assert_eq!(pool.sockets.len(), 1);
        assert!(routes.iter().all(|route| route.same_socket(&routes[0])));
        assert!(!routes[0].same_path(&routes[1]), "each goes its own way all the same");
    }

    #[test]
    fn a_full_pool_drops_idle_sockets_and_then_shares() {
        let (fds, mut pool) = (FdSet::new().unwrap(), pool(2, false));
        let kept = pool.route(&fds, &Counters::default(), [lo(), lo()], &to(0x0100), false, 0).unwrap();
        drop(pool.route(&fds, &Counters::default(), [lo(), lo()], &to(0x0200), false, 0).unwrap());
        let third = pool.route(&fds, &Counters::default(), [lo(), lo()], &to(0x0300), false, 0).unwrap();
        assert!(!third.same_socket(&kept), "an idle socket should have made room");
        let fourth = pool.route(&fds, &Counters::default(), [lo(), lo()], &to(0x0400), false, 0).unwrap();
        assert!(fourth.same_socket(&kept) || fourth.same_socket(&third));
        assert_eq!(pool.sockets.len(), 2);
    }
}
