//! The receive side of a port: which sockets to look at, and when.
//!
//! | file | holds |
//! |---|---|
//! | `udp_rx` | datagrams out of sockets |
//! | `shm_rx` | batches out of shared memory |
//! | `demux` | for which process a packet is |
//! | `cm_router` | for which process a message of connection management is |
//! | `pending_requests` | requests for services that nobody listens for yet, and what became of the latest |
//! | `forward` | datagrams for other processes |
//! | `flow` | sockets of known senders |
//! | `addresses` | addresses that come and go, and the election at each |
//! | `deadline` | tasks that are done later |

mod addresses;
mod cm_router;
mod deadline;
mod demux;
mod flow;
mod forward;
mod mad_router;
mod pending_requests;
mod shm_rx;
mod udp_rx;

use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::sync::Arc;

use urxe_wire::{Aeth, Bth, ICRC_LEN};

use crate::datagram::{Headers, RxBatch};
use crate::election::Role;
use crate::error::PortError;
use crate::last_will::LastWillStore;
use crate::link_monitor::RtnetlinkSocket;
use crate::port::Port;
use crate::shm::{Inbox, Purpose};
use crate::sys::cancellation::CancelGuard;
use crate::sys::epoll_key::EpollKey;
use crate::sys::fd::{Budgets, FdSet};
use crate::sys::udp::{Reported, report_headers};
use addresses::{TROUBLE, watch_role};
use deadline::{Backoff, Deadlines, Task};
use flow::{FlowTable, PeerCache};
use forward::Forwarder;
use pending_requests::PendingRequests;

/// A datagram longer than any the kernel delivers.
const BUFFER: usize = 1 << 16;

/// Fruitless looks at the hot sockets before all are looked at. A packet on a quiet socket waits for so many calls,
/// some microseconds. Fewer made a ping-pong slower by an eighth: epoll_wait and the sender's wake-up fight for the
/// same cache lines.
const MISSES: u32 = 32;
/// Fruitful looks at the hot sockets before all are looked at.
const HITS: u32 = 128;
/// Calls that go straight to epoll after it found more ready sockets than there are hot ones.
const SCATTERED: u32 = 64;
/// While single datagrams come, the look for a second one is made only once in so many.
const PROBE: u32 = 8;
/// Length of an ACK. A datagram of a request and an ACK, from a program that waits for the answer, is the last for now.
const ACK: usize = Bth::LEN + Aeth::LEN + ICRC_LEN;
/// Packets after which a call ends, whatever its budget: their sender waits for the answer, to prepare the next while
/// these are worked on.
const BURST: usize = 48;
/// Sockets one epoll_wait names.
const EVENTS: usize = 32;

/// The state of a port's receive side. One thread at a time has it.
#[derive(Debug)]
pub struct Receiver {
    fds: Arc<FdSet>,
    /// Local addresses. What comes takes the place of what went; the others keep their index.
    addresses: Vec<Option<SocketAddr>>,
    /// By index of the local address.
    roles: Vec<Role>,
    /// Stands for election: the port is not a shard.
    takes_part: bool,
    /// Tells of changes, where the system lets it.
    watch: Option<RtnetlinkSocket>,
    /// Time until the interface, which could not be read, is read again.
    reread: Backoff,
    flows: FlowTable,
    peers: PeerCache,
    forwarder: Forwarder,
    pending: PendingRequests,
    last_wills: LastWillStore,
    inbox: Inbox,
    deadlines: Deadlines,
    buffer: Box<[u8]>,
    /// The UDP sockets that delivered last, the latest first.
    hot: [Option<EpollKey>; 2],
    /// The second of them has delivered since all sockets were looked at.
    second: bool,
    hits: u32,
    misses: u32,
    scattered: u32,
    /// Several datagrams were found at once lately.
    eager: bool,
    probe: u32,
    /// Looks at the rings in a row that left something there.
    backlog: u32,
    /// Header fields that the sockets tell.
    reported: Reported,
    /// The last call looked everywhere, and nothing was there.
    is_done: bool,
}

/// Budget and results of one call of `receive`.
struct Call<'a> {
    port: &'a Port,
    left: usize,
    delivered: usize,
    /// Set when a packet that was delivered has been accepted.
    accepted: bool,
    deliver: &'a mut Deliver<'a>,
}

/// Takes packets for this process, and returns whether a queue pair has accepted one of them: its ICRC is right, it is from
/// the queue pair's peer, and it was expected. Only then does the receiver learn the flow.
pub type Deliver<'a> = dyn FnMut(RxBatch<'_>) -> bool + 'a;

/// Addresses and layout of a datagram.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Meta {
    /// Index of the local address.
    pub(crate) index: usize,
    pub(crate) headers: Headers,
    pub(crate) segment: usize,
    pub(crate) first: u16,
    /// ICRCs are left out ([`Datagram::flow`](crate::Datagram::flow)).
    pub(crate) icrc_elided: bool,
}

impl Receiver {
    pub(crate) fn open(
        fds: &Arc<FdSet>,
        addresses: &[SocketAddr],
        shared: bool,
        budgets: &Budgets,
    ) -> Result<Self, PortError> {
        let mut receiver = Self::open_shard(fds, addresses, shared, budgets)?;
        receiver.takes_part = true;
        for (index, address) in addresses.iter().enumerate() {
            let role = Role::elect_patiently(fds, *address)?;
            watch_role(fds, index, &role).map_err(|e| PortError::os("watch a socket", e))?;
            if role.is_to_be_retried() {
                receiver.deadlines.set(Task::RetryElection, TROUBLE);
            }
            receiver.roles[index] = role;
        }
        Ok(receiver)
    }

    /// Opens the receive side of a port that takes no part in elections.
    pub(crate) fn open_shard(
        fds: &Arc<FdSet>,
        addresses: &[SocketAddr],
        shared: bool,
        budgets: &Budgets,
    ) -> Result<Self, PortError> {
        let deadlines = Deadlines::open(fds).map_err(|e| PortError::os("create a timer", e))?;
        Ok(Self {
            fds: Arc::clone(fds),
            addresses: addresses.iter().copied().map(Some).collect(),
            roles: addresses.iter().map(|_| Role::Bystander).collect(),
            takes_part: false,
            watch: RtnetlinkSocket::open(fds).ok(),
            reread: Backoff::new(),
            flows: FlowTable::new(budgets.flows.clone()),
            peers: PeerCache::new(),
            forwarder: Forwarder::new(),
            pending: PendingRequests::default(),
            last_wills: LastWillStore::default(),
            inbox: Inbox::new(budgets.rings.clone(), Purpose::of(shared)),
            deadlines,
            buffer: vec![0; BUFFER].into_boxed_slice(),
            hot: [None; 2],
            second: false,
            hits: 0,
            misses: 0,
            scattered: 0,
            eager: false,
            probe: 0,
            backlog: 0,
            reported: Reported::Nothing,
            is_done: false,
        })
    }

    /// Maps the shared files of other processes' devices from now on ([`Port::find_shown`]).
    pub fn import(&mut self, port: &Port) {
        self.inbox.import_into(port.imports());
    }

    /// Notes that [`Port::epoll_fd`] was found readable: the next `receive` looks at all sockets.
    pub fn woken(&mut self) {
        self.misses = MISSES;
    }

    /// Whether the last call looked at all sockets and rings, and nothing was there: not even what is somebody else's.
    pub fn is_done(&self) -> bool {
        self.is_done
    }

    /// Receives without blocking: about `budget` datagrams at most (a GRO run counts once), handing the RoCE packets
    /// for this process to `deliver`, which says whether one was [accepted](Deliver). Returns how many packets that were; 0
    /// says that nothing for this process was found now.
    ///
    /// Looks first where packets came from last, at all sockets every few calls, and may return before all are empty, so that a
    /// reply is not held back by looking for more: whoever wants everything calls until 0, and until
    /// [`Receiver::is_done`] where the sockets may hold other processes' packets as well.
    #[inline]
    pub fn receive(&mut self, port: &Port, budget: usize, deliver: &mut Deliver<'_>) -> usize {
        let mut call = Call { port, left: budget, delivered: 0, accepted: false, deliver };
        self.is_done = false;
        // Asked first: most looks are in vain.
        if self.hits < HITS && !self.inbox.is_empty() {
            self.receive_rings(&mut call);
            if call.delivered > 0 {
                self.hits += 1;
                self.misses = 0;
                return call.delivered;
            }
        }
        if self.hits < HITS && self.misses < MISSES && self.scattered == 0 {
            for at in 0..self.hot.len() {
                let Some(key) = self.hot[at] else { break };
                self.receive_from(key, &mut call);
                if call.delivered > 0 {
                    self.hot.swap(0, at);
                    self.second |= at > 0;
                    self.hits += 1;
                    self.misses = 0;
                    return call.delivered;
                }
            }
            self.misses += 1;
            if self.misses < MISSES {
                return 0;
            }
        }
        self.look_at_all(&mut call);
        self.is_done = call.left == budget && call.delivered == 0;
        call.delivered
    }

    /// By itself, as all that is seldom here: a look in vain, of which there are many, is short then.
    #[inline(never)]
    fn look_at_all(&mut self, call: &mut Call<'_>) {
        let _guard = CancelGuard::new();
        if self.fds.is_lost() {
            // What is under the numbers may be the application's.
            self.hot = [None; 2];
            return;
        }
        if call.port.reported() > self.reported {
            self.reported = call.port.reported();
            self.report_headers();
        }
        if self.hits >= HITS && !core::mem::take(&mut self.second) {
            self.hot[1] = None;
        }
        self.hits = 0;
        self.misses = 0;
        self.scattered = self.scattered.saturating_sub(1);
        let mut fruitful = 0;
        let mut keys = [0; EVENTS];
        let ready = self.fds.ready(&mut keys);
        for key in keys.iter().take(ready).copied().filter_map(EpollKey::unpack) {
            match key {
                EpollKey::LeaderSocket(_) | EpollKey::Flow(_) | EpollKey::Mailbox(_) | EpollKey::Group(_) => {
                    let before = call.delivered;
                    self.receive_from(key, call);
                    if call.delivered > before {
                        fruitful += 1;
                        // What comes through a mailbox comes directly soon.
                        if self.hot[0] != Some(key) && !matches!(key, EpollKey::Mailbox(_)) {
                            self.hot = [Some(key), self.hot[0]];
                        }
                    }
                }
                EpollKey::ElectionListener(role) => self.accept(role, call.port),
                EpollKey::FollowerLink(role, fd) => {
                    if !self.last_wills.hear(fd) {
                        self.dismiss(role, fd, call.port);
                        self.begin_last_wills(call.port);
                    }
                }
                EpollKey::LeaderLink(role) => self.hear_owner(role, call.port),
                EpollKey::PendingRequests => self.look_for_listeners(call),
                EpollKey::Backlog(fd) => self.send_backlog(fd, call.port),
                EpollKey::Timer => self.do_what_is_due(call.port),
                EpollKey::Rtnetlink => self.follow(call.port),
                EpollKey::RingListener(listener) => self.accept_rings(listener, call.port),
                EpollKey::RingRx(fd) => self.attend_ring(fd, call.port),
                EpollKey::RingTx(fd) => call.port.look_at_link(fd),
                // Whoever receives looks into the ring.
                EpollKey::Raw => call.port.note_raw_event(),
            }
        }
        self.receive_rings(call);
        if fruitful > self.hot.len() {
            self.scattered = SCATTERED;
        }
    }

    /// Carries out work that was put off until now.
    fn do_what_is_due(&mut self, port: &Port) {
        for task in self.deadlines.take_due() {
            match task {
                Task::RetryElection => self.retry_elections(port),
                Task::SendLastWills => self.send_last_wills(port),
                Task::DropBacklog => self.drop_backlog(port),
                Task::CloseIdleFlows => self.close_idle_flows(port),
                // Without a watch, the interface is gone, or its changes are not followed.
                Task::RereadInterface if self.watch.is_none() => {}
                Task::RereadInterface => self.follow(port),
            }
        }
    }

    /// Asks the sockets there are; later ones are asked when they are opened.
    fn report_headers(&self) {
        let owners = self.roles.iter().zip(&self.addresses).filter_map(|(role, address)| match role {
            Role::Leader { udp, .. } => Some((udp.as_raw_fd(), (*address)?)),
            _ => None,
        });
        let flows = self.flows.iter().filter_map(|flow| Some((flow.raw_fd(), self.address(flow.local)?)));
        for (fd, address) in owners.chain(flows) {
            report_headers(fd, address, self.reported);
        }
    }

    fn address(&self, index: usize) -> Option<SocketAddr> {
        *self.addresses.get(index)?
    }
}
