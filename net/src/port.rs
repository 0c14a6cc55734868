//! A device's presence on the network in this process.

use core::sync::atomic::{AtomicBool, Ordering};
use std::io;
use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use urxe_wire::{Gid, Qpn};

use crate::change::Change;
use crate::counters::Counters;
use crate::error::{PortError, RouteError};
use crate::fd::FdSet;
use crate::interface::Interface;
use crate::multicast::{Groups, Membership};
use crate::receiver::{Deliver, Receiver};
use crate::registry::{Registry, block_of};
use crate::route::{Destination, Route, TxPool};
use crate::service::{Mailbox, Services};
use crate::shm::PendingAck;
use crate::token::Token;
use crate::udp::{bind_owner, receive_buffer};
use crate::will::Wills;

/// The presence of one device on the network in this process: see the [crate documentation](crate).
///
/// Everything here takes `&self` and may be called by any thread. Nothing blocks, except [`Port::open`] for moments
/// while another process takes over an address.
#[derive(Debug)]
pub struct Port {
    interface: RwLock<Arc<Interface>>,
    /// Index of the interface, which stays.
    index: u32,
    changes: Mutex<Vec<Change>>,
    has_changed: AtomicBool,
    fds: Arc<FdSet>,
    registry: Registry,
    routes: Mutex<TxPool>,
    groups: Groups,
    services: Arc<Services>,
    wills: Wills,
    counters: Counters,
    receive_buffer: usize,
    /// Last ACKs that processes of this host left when they ended.
    left_acks: Mutex<Vec<PendingAck>>,
    has_left_acks: AtomicBool,
    headers: AtomicBool,
    icrcs: AtomicBool,
}

impl Port {
    /// Opens the port on all addresses of `interface`, together with the state of its receive side, of which there is
    /// one. Its names and sockets are given up when both are dropped.
    ///
    /// # Errors
    /// [`PortError::PortTaken`] when a program that is not urxe holds UDP port 4791 of an address; otherwise what the
    /// system refused.
    pub fn open(interface: Interface) -> Result<(Self, Receiver), PortError> {
        Self::open_with(interface, false)
    }

    /// The same, for a port that exchanges packets with processes of this host and user through shared memory, if they
    /// have opened theirs likewise. With all others it is UDP.
    ///
    /// # Errors
    /// As [`Port::open`].
    pub fn open_sharing_memory(interface: Interface) -> Result<(Self, Receiver), PortError> {
        Self::open_with(interface, true)
    }

    fn open_with(interface: Interface, shared: bool) -> Result<(Self, Receiver), PortError> {
        let fds = FdSet::new().map_err(|e| PortError::os("create an epoll instance", e))?;
        let mut receiver = Receiver::open(&fds, interface.addresses())?;
        let limit = descriptor_share();
        let port = Self {
            receive_buffer: granted_receive_buffer(&fds, interface.addresses())?,
            registry: Registry::new(limit, shared),
            routes: Mutex::new(TxPool::new(limit, interface.index(), shared)),
            groups: Groups::default(),
            services: Arc::default(),
            wills: Wills::default(),
            index: interface.index(),
            interface: RwLock::new(Arc::new(interface)),
            changes: Mutex::default(),
            has_changed: AtomicBool::new(false),
            counters: Counters::default(),
            left_acks: Mutex::default(),
            has_left_acks: AtomicBool::new(false),
            headers: AtomicBool::new(false),
            icrcs: AtomicBool::new(false),
            fds,
        };
        // What happened since the interface was read, nobody has told.
        receiver.follow(&port);
        receiver.appoint_heirs(&port);
        Ok((port, receiver))
    }

    /// The interface as it is now: [`Port::receive`] follows its changes.
    pub fn interface(&self) -> Arc<Interface> {
        Arc::clone(&self.interface.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Whether there is anything for [`take_changes`](Self::take_changes) or [`take_due_wills`](Self::take_due_wills):
    /// asked with every receiving, nearly always for nothing.
    #[inline]
    pub fn has_news(&self) -> bool {
        self.has_changed.load(Ordering::Relaxed) || self.wills.are_due()
    }

    /// What has changed since the last call.
    pub fn take_changes(&self) -> Vec<Change> {
        if !self.has_changed.swap(false, Ordering::Acquire) {
            return Vec::new();
        }
        core::mem::take(&mut *self.changes.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Whether there is anything for [`take_left_acks`](Self::take_left_acks).
    #[inline]
    pub fn has_left_acks(&self) -> bool {
        self.has_left_acks.load(Ordering::Relaxed)
    }

    /// Takes the last ACKs that processes have left at their end since the last call. What they have sent themselves comes before: take
    /// these when nothing else is there.
    pub fn take_left_acks(&self) -> Vec<PendingAck> {
        self.has_left_acks.store(false, Ordering::Relaxed);
        core::mem::take(&mut *self.left_acks.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn leave_acks(&self, acks: Vec<PendingAck>) {
        self.left_acks.lock().unwrap_or_else(PoisonError::into_inner).extend(acks);
        self.has_left_acks.store(true, Ordering::Relaxed);
    }

    pub(crate) fn interface_is(&self, now: Interface) {
        let mut interface = self.interface.write().unwrap_or_else(PoisonError::into_inner);
        if **interface != now {
            self.note(Change::between(&interface, &now));
            *interface = Arc::new(now);
        }
    }

    pub(crate) fn interface_is_gone(&self) {
        let gone = Arc::new(self.interface().removed());
        *self.interface.write().unwrap_or_else(PoisonError::into_inner) = gone;
        self.note(vec![Change::Gone]);
    }

    fn note(&self, changes: Vec<Change>) {
        if !changes.is_empty() {
            self.changes.lock().unwrap_or_else(PoisonError::into_inner).extend(changes);
            self.has_changed.store(true, Ordering::Release);
        }
    }

    /// A descriptor that is readable (level-triggered) while [`Port::receive`] has something to do. To be waited on
    /// only while nobody polls; then say [`Receiver::woken`].
    pub fn epoll_fd(&self) -> RawFd {
        self.fds.epoll()
    }

    /// Receives without blocking: about `budget` datagrams at most (a GRO run counts once), handing the RoCE packets
    /// for this process to `deliver`, which says whether one was [accepted](Deliver). Returns how many packets that were; 0
    /// says that nothing for it was found now.
    ///
    /// It looks first where packets came from last, at all sockets every few calls, and may return before all are
    /// empty, so that a reply is not held back by looking for more: whoever wants everything calls until 0, and until
    /// [`Receiver::is_done`] where the sockets may hold other processes' packets as well.
    #[inline]
    pub fn receive(&self, receiver: &mut Receiver, budget: usize, deliver: &mut Deliver<'_>) -> usize {
        receiver.receive(self, budget, deliver)
    }

    /// A way to `to`, for as many packets as one likes. Looks for a socket to share or opens one.
    ///
    /// # Errors
    /// When the GIDs do not fit this port or each other, or the system refuses the first socket of an address.
    pub fn route(&self, to: &Destination) -> Result<Arc<Route>, RouteError> {
        let (local, remote) = self.resolve_pair(&to.local, &to.remote)?;
        let mut routes = self.routes.lock().unwrap_or_else(PoisonError::into_inner);
        let route = routes.route(&self.fds, &self.counters, local, remote, to);
        route.map(Arc::new).map_err(|e| RouteError::Os(PortError::os("open a UDP socket to send from", e)))
    }

    /// Joins a multicast group: until the result is dropped, [`Port::receive`] delivers what is sent to it, whose
    /// [`Headers::local`](crate::Headers::local) is the group. An IPv4 group's GID is its mapped address.
    ///
    /// # Errors
    /// [`RouteError::RemoteGidUnusable`] if the GID is no multicast address; otherwise what the system refuses, such as
    /// an IPv6 group on an interface that has no route to any.
    pub fn join_multicast(&self, group: &Gid) -> Result<Arc<Membership>, RouteError> {
        let group = self.interface().resolve(group).filter(|group| group.ip().is_multicast());
        let group = group.ok_or(RouteError::RemoteGidUnusable)?;
        let joined = self.groups.join(&self.fds, group, self.index);
        joined.map_err(|e| RouteError::Os(PortError::os("join a multicast group", e)))
    }

    pub(crate) fn groups(&self) -> &Groups {
        &self.groups
    }

    /// The addresses of a source and a destination GID. A default GID that is not assigned stands for any address of
    /// the interface, so it takes the IP version of the other.
    fn resolve_pair(&self, local: &Gid, remote: &Gid) -> Result<(SocketAddr, SocketAddr), RouteError> {
        let interface = self.interface();
        if interface.gid_index(local).is_none() {
            return Err(RouteError::LocalGidUnknown);
        }
        let from = interface.resolve(local).ok_or(RouteError::LocalGidUnknown)?;
        let to = interface.resolve(remote).ok_or(RouteError::RemoteGidUnusable)?;
        if from.is_ipv4() == to.is_ipv4() {
            return Ok((from, to));
        }
        let like = |other: SocketAddr| interface.addresses().iter().copied().find(|a| a.is_ipv4() == other.is_ipv4());
        let pair = if interface.is_placeholder(local) {
            like(to).map(|from| (from, to))
        } else if interface.is_placeholder(remote) {
            like(from).map(|to| (from, to))
        } else {
            None
        };
        pair.ok_or(RouteError::FamilyMismatch)
    }

    /// A QPN that nobody else on this host has. Numbers come in no guessable order, and one that was freed rests while
    /// others are used.
    ///
    /// # Errors
    /// [`PortError::QpnsExhausted`], or what the system refused.
    pub fn alloc_qpn(&self) -> Result<Qpn, PortError> {
        self.registry.alloc(&self.fds, |fd| Token::Mailbox(fd).pack())
    }

    /// How many QPNs there may be at a time, if the host has as many: each block of them takes descriptors.
    pub fn most_qpns(&self) -> usize {
        self.registry.most()
    }

    /// Gives back a QPN from [`Port::alloc_qpn`].
    pub fn free_qpn(&self, qpn: Qpn) {
        self.registry.free(qpn);
    }

    /// Whether packets to `qpn` are for this process: its block is ours. Takes no lock.
    pub fn owns_qpn(&self, qpn: Qpn) -> bool {
        self.registry.owns(block_of(qpn))
    }

    /// What the port has done.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Bytes that each receive socket may hold, in the kernel's accounting: a full GSO run of 64 KiB takes somewhat
    /// more than its payload, a small packet at least some 800 bytes.
    pub fn receive_buffer(&self) -> usize {
        self.receive_buffer
    }

    /// From the next look at all sockets on, datagrams carry their traffic class and hop limit: for the GRH of UD, or
    /// to see congestion marks. Before that both are 0, because telling them costs a tenth of a small packet's time.
    pub fn report_headers(&self) {
        self.headers.store(true, Ordering::Relaxed);
    }

    /// Whether [`Port::report_headers`] was called.
    pub(crate) fn reports_headers(&self) -> bool {
        self.headers.load(Ordering::Relaxed)
    }

    /// From now on all packets have ICRCs, those that go or come through shared memory too: for who looks at them.
    pub fn keep_icrcs(&self) {
        self.icrcs.store(true, Ordering::Relaxed);
    }

    /// Whether [`Port::keep_icrcs`] was called.
    pub(crate) fn keeps_icrcs(&self) -> bool {
        self.icrcs.load(Ordering::Relaxed)
    }

    /// Takes no more rings at this door.
    pub(crate) fn close_door(&self, door: RawFd) {
        self.registry.close_door(door);
    }

    /// The block whose door this is.
    pub(crate) fn block_of_door(&self, door: RawFd) -> Option<u16> {
        self.registry.block_of_door(door)
    }

    /// The connection of a ring to another process has something to say: that the other is gone.
    pub(crate) fn look_at_link(&self, fd: RawFd) {
        self.routes.lock().unwrap_or_else(PoisonError::into_inner).look_at_link(&self.fds, fd);
    }

    /// Gives up all names and sockets now, whoever still refers to the port, or to a [`Route`]. Nobody may be receiving or
    /// sending. The port is dead afterwards; dropping it and its receiver is harmless.
    ///
    /// In the child of a fork these are the child's copies: names and sockets then go when the parent does. Takes no lock
    /// and allocates nothing.
    pub fn close(&self) {
        self.fds.abandon();
    }

    /// Whether the application has closed the port's descriptors: their numbers may be its own by now.
    #[must_use]
    pub fn has_lost_descriptors(&self) -> bool {
        self.fds.is_lost()
    }

    pub(crate) fn fds(&self) -> &Arc<FdSet> {
        &self.fds
    }

    pub(crate) fn services(&self) -> &Arc<Services> {
        &self.services
    }

    pub(crate) fn wills(&self) -> &Wills {
        &self.wills
    }

    /// Whether a datagram to QP1 for this mailbox is for this process.
    pub(crate) fn owns_mailbox(&self, mailbox: Mailbox) -> bool {
        match mailbox {
            Mailbox::Block(block) => self.registry.owns(block),
            Mailbox::Service(..) => self.services.contains(mailbox),
        }
    }

    /// Whether a packet to `qpn` is delivered here. Packets of the GSI and of multicast are for whoever gets them.
    pub(crate) fn accepts(&self, qpn: Qpn) -> bool {
        self.owns_qpn(qpn) || qpn == Qpn::GSI || qpn == Qpn::MULTICAST
    }
}

/// How many descriptors each of the growing kinds (transmit sockets, flow sockets, mailboxes, lines) may take: the process
/// belongs to somebody else.
#[must_use]
pub fn descriptor_share() -> usize {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is writable.
    if unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) } != 0 {
        return 64;
    }
    usize::try_from(limit.rlim_cur / 8).unwrap_or(usize::MAX).clamp(8, 256)
}

/// What the system grants a receive socket; found out with one on a port of no meaning.
fn granted_receive_buffer(fds: &Arc<FdSet>, addresses: &[SocketAddr]) -> Result<usize, PortError> {
    let granted = |address: &SocketAddr| -> io::Result<usize> {
        Ok(receive_buffer(&bind_owner(fds, crate::sys::with_port(*address, 0))?))
    };
    addresses.first().map_or(Ok(0), granted).map_err(|e| PortError::os("open a UDP socket", e))
}
