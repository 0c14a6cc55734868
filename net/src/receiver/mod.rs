//! The receive side of a port: which sockets to look at, and when.
//!
//! | file | holds |
//! |---|---|
//! | `seats` | addresses that come and go, and who owns the port there |
//! | `sources` | datagrams out of sockets |
//! | `rings` | runs out of shared memory |
//! | `sort` | whose a packet is |
//! | `cm_router` | whose a message of connection management is |

mod cm_router;
mod rings;
mod seats;
mod sort;
mod sources;

use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::sync::Arc;

use crate::cancellation::Shield;
use crate::change::Watch;
use crate::datagram::{Headers, Run};
use crate::deadline::{Deadlines, Task};
use crate::error::PortError;
use crate::fd::FdSet;
use crate::flow::{FlowTable, PeerCache};
use crate::forward::Forwarder;
use crate::owner::Seat;
use crate::pending_requests::PendingRequests;
use crate::port::{Port, descriptor_share};
use crate::shm::Inbox;
use crate::token::Token;
use crate::udp::report_headers;
use crate::will::Testators;
use seats::{TROUBLE, watch_seat};

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
    seats: Vec<Seat>,
    /// Tells of changes, where the system lets it.
    watch: Option<Watch>,
    flows: FlowTable,
    peers: PeerCache,
    forwarder: Forwarder,
    pending: PendingRequests,
    testators: Testators,
    inbox: Inbox,
    deadlines: Deadlines,
    buffer: Box<[u8]>,
    /// The UDP sockets that delivered last, the latest first.
    hot: [Option<Token>; 2],
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
    /// The sockets say class and hop limit.
    headers: bool,
    /// The last call looked everywhere, and nothing was there.
    is_done: bool,
}

/// What one call of `receive` may still do and has done.
struct Call<'a> {
    port: &'a Port,
    left: usize,
    delivered: usize,
    /// Some of what was delivered was accepted.
    accepted: bool,
    deliver: &'a mut Deliver<'a>,
}

/// Takes packets for this process, and returns whether a queue pair has accepted one of them: its ICRC is right, it is from
/// the queue pair's peer, and it was expected. Only then does the receiver learn the flow.
pub type Deliver<'a> = dyn FnMut(Run<'_>) -> bool + 'a;

/// What is known of a datagram besides its bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Meta {
    /// Index of the local address.
    pub(crate) index: usize,
    pub(crate) headers: Headers,
    pub(crate) segment: usize,
    pub(crate) first: u16,
    /// ICRCs are left out ([`Datagram::flow`](crate::Datagram::flow)).
    pub(crate) whole: bool,
}

impl Receiver {
    pub(crate) fn open(fds: &Arc<FdSet>, addresses: &[SocketAddr]) -> Result<Self, PortError> {
        let deadlines = Deadlines::open(fds).map_err(|e| PortError::os("create a timer", e))?;
        let mut receiver = Self {
            fds: Arc::clone(fds),
            addresses: addresses.iter().copied().map(Some).collect(),
            seats: Vec::with_capacity(addresses.len()),
            watch: Watch::open(fds).ok(),
            flows: FlowTable::new(descriptor_share()),
            peers: PeerCache::new(),
            forwarder: Forwarder::new(),
            pending: PendingRequests::default(),
            testators: Testators::default(),
            inbox: Inbox::new(descriptor_share()),
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
            headers: false,
            is_done: false,
        };
        for (index, address) in addresses.iter().enumerate() {
            let seat = Seat::take_patiently(fds, *address)?;
            watch_seat(fds, index, &seat).map_err(|e| PortError::os("watch a socket", e))?;
            if seat.is_to_be_retried() {
                receiver.deadlines.set(Task::TakeSeats, TROUBLE);
            }
            receiver.seats.push(seat);
        }
        Ok(receiver)
    }

    /// To be called after [`Port::epoll_fd`] was found readable: the next `receive` looks at all sockets.
    pub fn woken(&mut self) {
        self.misses = MISSES;
    }

    /// Whether the last call looked at all sockets and rings, and nothing was there: not even what is somebody else's.
    pub fn is_done(&self) -> bool {
        self.is_done
    }

    pub(crate) fn receive(&mut self, port: &Port, budget: usize, deliver: &mut Deliver<'_>) -> usize {
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
                let Some(token) = self.hot[at] else { break };
                self.drain(token, &mut call);
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
        let _shield = Shield::new();
        if call.port.reports_headers() && !self.headers {
            self.headers = true;
            self.report_headers();
        }
        if self.hits >= HITS && !core::mem::take(&mut self.second) {
            self.hot[1] = None;
        }
        self.hits = 0;
        self.misses = 0;
        self.scattered = self.scattered.saturating_sub(1);
        let mut fruitful = 0;
        let mut tokens = [0; EVENTS];
        let ready = self.fds.ready(&mut tokens);
        for token in tokens.iter().take(ready).copied().filter_map(Token::unpack) {
            match token {
                Token::Owner(_) | Token::Flow(_) | Token::Mailbox(_) | Token::Group(_) => {
                    let before = call.delivered;
                    self.drain(token, call);
                    if call.delivered > before {
                        fruitful += 1;
                        // What comes through a mailbox comes directly soon.
                        if self.hot[0] != Some(token) && !matches!(token, Token::Mailbox(_)) {
                            self.hot = [Some(token), self.hot[0]];
                        }
                    }
                }
                Token::Listener(seat) => self.accept(seat, call.port),
                Token::Follower(seat, fd) => {
                    if !self.testators.hear(fd) {
                        self.dismiss(seat, fd, call.port);
                        self.begin_wills(call.port);
                    }
                }
                Token::Leader(seat) => self.hear_owner(seat, call.port),
                Token::PendingRequests => self.look_for_listeners(call),
                Token::Backlog(fd) => self.send_backlog(fd, call.port),
                Token::Timer => self.do_what_is_due(call.port),
                Token::Change => self.follow(call.port),
                Token::Door(door) => self.open_door(door, call.port),
                Token::Ring(fd) => self.attend_ring(fd, call.port),
                Token::Link(fd) => call.port.look_at_link(fd),
            }
        }
        self.receive_rings(call);
        if fruitful > self.hot.len() {
            self.scattered = SCATTERED;
        }
    }

    /// Does what was put off until now.
    fn do_what_is_due(&mut self, port: &Port) {
        for task in self.deadlines.take_due() {
            match task {
                Task::TakeSeats => self.take_seats(port),
                Task::ExecuteWills => self.execute_wills(port),
                Task::DropBacklog => self.drop_backlog(port),
                Task::CloseIdleFlows => self.close_idle_flows(port),
            }
        }
    }

    /// Asks the sockets there are; later ones are asked when they are opened.
    fn report_headers(&self) {
        let owners = self.seats.iter().zip(&self.addresses).filter_map(|(seat, address)| match seat {
            Seat::Owner { udp, .. } => Some((udp.as_raw_fd(), (*address)?)),
            _ => None,
        });
        let flows = self.flows.iter().filter_map(|flow| Some((flow.raw_fd(), self.address(flow.local)?)));
        for (fd, address) in owners.chain(flows) {
            report_headers(fd, address);
        }
    }

    fn address(&self, index: usize) -> Option<SocketAddr> {
        *self.addresses.get(index)?
    }

    /// Receives from one socket: one datagram, and more if more are likely to be there.
    fn drain(&mut self, token: Token, call: &mut Call<'_>) {
        let mut found = 0;
        while call.left > 0 && call.delivered < BURST {
            let several = match token {
                Token::Owner(seat) => self.receive_owner(seat, call),
                Token::Flow(slot) => self.receive_flow(slot, call),
                Token::Mailbox(fd) => self.receive_mailbox(fd, call),
                Token::Group(slot) => self.receive_group(slot, call),
                _ => None,
            };
            let Some(several) = several else { break };
            call.left -= 1;
            found += 1;
            self.probe = self.probe.wrapping_add(1);
            if !(self.eager || several || self.probe.is_multiple_of(PROBE)) {
                return;
            }
        }
        self.eager = found > 1;
    }
}
