//! A device's presence on the network in this process.

mod links;
mod routes;

use core::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::{BorrowedFd, RawFd};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use urxe_wire::{Gid, Qpn};

use crate::cm_service::{Service, Services};
use crate::counters::Counters;
use crate::direct::{Export, Import, Imports, Seen, SharedQp};
use crate::error::PortError;
use crate::interface::Interface;
use crate::ipc::{Channel, KeptFile, Listener, Notes};
use crate::last_will::{LastWill, OwnLastWills};
use crate::lid_table::LidTable;
use crate::link_monitor::LinkEvent;
use crate::mad_claim::MadClaim;
use crate::mailbox::Mailbox;
use crate::multicast::Groups;
use crate::mutex::lock;
use crate::qpn_registry::{Registry, block_of};
use crate::route::{Route, TxPool};
use crate::shm::PendingAck;
use crate::sys::epoll_key::EpollKey;
use crate::sys::fd::{Budgets, FdSet, descriptor_share};
use crate::sys::udp::{Reported, bind_owner, receive_buffer};

/// The presence of one device on the network in this process: see the [crate documentation](crate).
///
/// Everything here takes `&self` and may be called by any thread. Nothing blocks, except [`Port::open`] for moments
/// while another process takes over an address.
#[derive(Debug)]
pub struct Port {
    interface: RwLock<Arc<Interface>>,
    /// Index of the interface, which stays.
    index: u32,
    link_events: Mutex<Vec<LinkEvent>>,
    /// All interfaces of the device are administratively up, or nobody knows.
    is_up: AtomicBool,
    /// The interface has changed, though it may be in nothing that is an event, or the addresses whose port this process owns.
    has_link_events: AtomicBool,
    /// A packet socket was found ready.
    has_raw_event: AtomicBool,
    fds: Arc<FdSet>,
    registry: Registry,
    routes: Mutex<TxPool>,
    /// Descriptors of all shards together.
    pub(crate) shard_budgets: Budgets,
    groups: Groups,
    services: Arc<Services>,
    last_wills: OwnLastWills,
    counters: Counters,
    lids: LidTable,
    /// Addresses whose port this process owns.
    owned: RwLock<Vec<IpAddr>>,
    receive_buffer: usize,
    pub(crate) shares_memory: bool,
    /// Last ACKs that processes of this host left when they ended.
    left_acks: Mutex<Vec<PendingAck>>,
    has_left_acks: AtomicBool,
    /// [`Reported`], as a number.
    reported: AtomicU8,
    icrcs: AtomicBool,
    imports: Arc<Imports>,
}

impl Port {
    /// The port without its receive side, with at most `limit` blocks of queue pair numbers.
    pub(crate) fn new(
        fds: &Arc<FdSet>,
        interface: Interface,
        limit: usize,
        budgets: &Budgets,
        shared: bool,
    ) -> Result<Self, PortError> {
        let interface = Arc::new(interface);
        Ok(Self {
            receive_buffer: granted_receive_buffer(fds, interface.addresses())?,
            registry: Registry::new(limit, shared),
            shares_memory: shared,
            shard_budgets: Budgets::of(descriptor_share()),
            routes: Mutex::new(TxPool::new(budgets.tx.clone(), &interface, shared)),
            groups: Groups::default(),
            services: Arc::default(),
            last_wills: OwnLastWills::default(),
            index: interface.index(),
            is_up: AtomicBool::new(interface.has_all_up()),
            interface: RwLock::new(interface),
            link_events: Mutex::default(),
            has_link_events: AtomicBool::new(false),
            has_raw_event: AtomicBool::new(false),
            counters: Counters::default(),
            lids: LidTable::default(),
            owned: RwLock::default(),
            left_acks: Mutex::default(),
            has_left_acks: AtomicBool::new(false),
            reported: AtomicU8::default(),
            icrcs: AtomicBool::new(false),
            imports: Arc::default(),
            fds: Arc::clone(fds),
        })
    }

    /// A packet socket was found ready: for input, for output or with an error.
    pub(crate) fn note_raw_event(&self) {
        self.has_raw_event.store(true, Ordering::Release);
    }

    /// Whether a packet socket was found ready since the last [`take_raw_event`](Self::take_raw_event).
    pub fn has_raw_event(&self) -> bool {
        self.has_raw_event.load(Ordering::Relaxed)
    }

    /// Returns whether a packet socket was found ready since the last call.
    pub fn take_raw_event(&self) -> bool {
        self.has_raw_event.load(Ordering::Relaxed) && self.has_raw_event.swap(false, Ordering::Acquire)
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
        core::mem::take(&mut *lock(&self.left_acks))
    }

    pub(crate) fn leave_acks(&self, acks: Vec<PendingAck>) {
        lock(&self.left_acks).extend(acks);
        self.has_left_acks.store(true, Ordering::Relaxed);
    }

    /// LIDs of the port and of its peers.
    pub const fn lids(&self) -> &LidTable {
        &self.lids
    }

    /// A descriptor that is readable (level-triggered) while [`Receiver::receive`](crate::Receiver::receive) has something to do. To be waited on
    /// only while nobody polls; then say [`Receiver::woken`](crate::Receiver::woken).
    pub fn epoll_fd(&self) -> RawFd {
        self.fds.epoll()
    }

    /// Whether anything but raw frames makes [`epoll_fd`](Self::epoll_fd) readable now.
    pub fn is_readable_besides_raw(&self) -> bool {
        self.is_any_readable(|key| key != Some(EpollKey::Raw))
    }

    /// Whether anything but rings of this host's processes makes [`epoll_fd`](Self::epoll_fd) readable now.
    pub fn is_readable_besides_rings(&self) -> bool {
        self.is_any_readable(|key| !matches!(key, Some(EpollKey::RingRx(_))))
    }

    fn is_any_readable(&self, is_meant: impl Fn(Option<EpollKey>) -> bool) -> bool {
        // More than the packet sockets of a device, by XDP one a queue of the interface.
        let mut keys = [0; 64];
        let ready = self.fds.ready(&mut keys);
        keys.iter().take(ready).any(|key| is_meant(EpollKey::unpack(*key)))
    }

    pub(crate) fn groups(&self) -> &Groups {
        &self.groups
    }

    /// Takes a service id on an address; requests that reach other processes come here from now on.
    ///
    /// # Errors
    /// `AddrInUse` if another process has it; what else the system refuses.
    pub fn serve(&self, service_id: u64, gid: Gid) -> io::Result<Service> {
        Service::bind(&self.fds, &self.services, service_id, gid)
    }

    /// Takes unsolicited management datagrams; those that reach other processes come here from now on, until the result is
    /// dropped.
    ///
    /// # Errors
    /// `AddrInUse` if another process has one of the methods; what else the system refuses.
    pub fn claim_mads(&self, claim: &MadClaim) -> io::Result<Vec<Service>> {
        claim.bind(&self.fds, &self.services, self.index)
    }

    /// Index of the interface.
    pub(crate) const fn interface_index(&self) -> u32 {
        self.index
    }

    /// Has a message sent when this process ends without a word. A last will of the same name is replaced.
    pub fn set_last_will(&self, will: LastWill) {
        self.last_wills.set(&self.fds, will);
    }

    /// Names the [keeper](crate::LastWillKeeper) of last wills that no other process of this host and user takes.
    pub fn name_last_will_keeper(&self, name: &str) {
        self.last_wills.name_keeper(name);
    }

    /// Takes a last will back.
    pub fn clear_last_will(&self, name: u32) {
        self.last_wills.clear(name);
    }

    /// Takes the last wills of processes that have ended since the last call, to be sent.
    pub fn take_due_last_wills(&self) -> Vec<LastWill> {
        self.last_wills.take_due()
    }

    /// Listens for channels at the block of `qpn`, which is this port's. The listener is to be waited for by its descriptor
    /// ([`AsRawFd`](std::os::fd::AsRawFd)), and is closed when it is dropped.
    ///
    /// # Errors
    /// `AddrInUse` if there is one already; what else the system refuses.
    pub fn listen(&self, qpn: Qpn) -> io::Result<Listener> {
        Listener::open(&self.fds, block_of(qpn))
    }

    /// Connects to the process that owns `qpn`, without waiting.
    ///
    /// # Errors
    /// `ConnectionRefused` if it does not listen; `PermissionDenied` if another user would answer; `WouldBlock` if too many
    /// connections wait there already; what else the system refuses.
    pub fn connect(&self, qpn: Qpn) -> io::Result<Channel> {
        Channel::connect(&self.fds, block_of(qpn))
    }

    /// Returns a sender and receiver of notes between processes of this host.
    #[must_use]
    pub fn notes(&self) -> Notes {
        Notes::new(&self.fds)
    }

    /// Takes a file into the keeping of the port: a forked child has no part in it.
    ///
    /// # Errors
    /// Any refusal of the system.
    pub fn keep_file(&self, file: BorrowedFd<'_>) -> io::Result<KeptFile> {
        KeptFile::new(&self.fds, file)
    }

    /// A QPN that nobody else on this host has. Numbers come in no guessable order, and one that was freed rests while
    /// others are used.
    ///
    /// # Errors
    /// [`PortError::QpnsExhausted`], or what the system refused.
    pub fn alloc_qpn(&self) -> Result<Qpn, PortError> {
        self.registry.alloc(&self.fds, |fd| EpollKey::Mailbox(fd).pack())
    }

    /// Largest number of QPNs at a time, if the host has as many: each block of them takes descriptors.
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

    /// Counters of the port.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Bytes that each receive socket may hold, in the kernel's accounting: a full GSO run of 64 KiB takes somewhat
    /// more than its payload, a small packet at least some 800 bytes.
    pub fn receive_buffer(&self) -> usize {
        self.receive_buffer
    }

    /// Reports traffic class and hop limit of datagrams, from the next look at all sockets on: for the GRH of UD.
    /// Before that both are 0, because telling them costs a tenth of a small packet's time.
    pub fn report_headers(&self) {
        self.reported.fetch_max(Reported::All as u8, Ordering::Relaxed);
    }

    /// Reports the traffic class of datagrams, from the next look at all sockets on: for congestion marks.
    pub fn report_marks(&self) {
        self.reported.fetch_max(Reported::Class as u8, Ordering::Relaxed);
    }

    /// Header fields that sockets are to tell.
    pub(crate) fn reported(&self) -> Reported {
        match self.reported.load(Ordering::Relaxed) {
            0 => Reported::Nothing,
            1 => Reported::Class,
            _ => Reported::All,
        }
    }

    /// Gives all packets ICRCs from now on, also those that go or come through shared memory: for captures.
    pub fn keep_icrcs(&self) {
        self.icrcs.store(true, Ordering::Relaxed);
    }

    /// Whether [`Port::keep_icrcs`] was called.
    pub(crate) fn keeps_icrcs(&self) -> bool {
        self.icrcs.load(Ordering::Relaxed)
    }

    /// Offers a table of queue pairs and regions to the processes that rings lead to from now on.
    pub fn offer(&self, export: &Export) {
        lock(&self.routes).offer(export.offer());
    }

    /// The table of another device that shows a queue pair, and the queue pair.
    pub fn find_shown(&self, qpn: Qpn, route: &Route) -> Option<(Arc<Import>, Seen<SharedQp>)> {
        self.imports.find(qpn, route.peer_pid())
    }

    pub(crate) fn imports(&self) -> &Arc<Imports> {
        &self.imports
    }

    /// Closes a listener: no more rings come to its block.
    pub(crate) fn close_listener(&self, listener: RawFd) {
        self.registry.close_listener(listener);
    }

    /// The block of a listener.
    pub(crate) fn block_of_listener(&self, listener: RawFd) -> Option<u16> {
        self.registry.block_of_listener(listener)
    }

    /// The connection of a ring to another process has something to say: that the other is gone.
    pub(crate) fn look_at_link(&self, fd: RawFd) {
        lock(&self.routes).look_at_link(&self.fds, fd);
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

    /// Whether this process owns the port of an address: what comes there from strangers comes here first.
    pub fn owns_address(&self, address: IpAddr) -> bool {
        self.owned.read().unwrap_or_else(PoisonError::into_inner).contains(&address)
    }

    pub(crate) fn set_owned(&self, addresses: Vec<IpAddr>) {
        let mut owned = self.owned.write().unwrap_or_else(PoisonError::into_inner);
        if *owned != addresses {
            *owned = addresses;
            self.has_link_events.store(true, Ordering::Release);
        }
    }

    pub(crate) fn last_wills(&self) -> &OwnLastWills {
        &self.last_wills
    }

    /// Whether a datagram to QP1 for this mailbox is for this process.
    pub(crate) fn owns_mailbox(&self, mailbox: Mailbox) -> bool {
        match mailbox {
            Mailbox::Block(block) => self.registry.owns(block),
            Mailbox::Service(..) | Mailbox::Mad(_) => self.services.contains(mailbox),
        }
    }

    /// Whether a process of this host has the block that a QPN is in. One that cannot be asked for counts as there.
    #[must_use]
    pub fn has_owner(&self, qpn: Qpn) -> bool {
        let block = block_of(qpn);
        self.registry.owns(block) || Mailbox::Block(block).is_held().unwrap_or(true)
    }

    /// Whether a packet to `qpn` is delivered here. Packets of QP0, QP1 and of multicast are for whoever gets them.
    pub(crate) fn accepts(&self, qpn: Qpn) -> bool {
        self.owns_qpn(qpn) || matches!(qpn, Qpn::SMI | Qpn::GSI | Qpn::MULTICAST)
    }
}

/// Measures the receive buffer that the system grants, with a socket at an ephemeral port.
fn granted_receive_buffer(fds: &Arc<FdSet>, addresses: &[SocketAddr]) -> Result<usize, PortError> {
    // The first address may come later.
    let address = addresses.first().copied().unwrap_or_else(|| SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)));
    let socket = bind_owner(fds, crate::sys::with_port(address, 0));
    socket.map(|socket| receive_buffer(&socket)).map_err(|e| PortError::os("open a UDP socket", e))
}
