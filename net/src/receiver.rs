//! The receive side of a port: which sockets to look at, and whose a packet is.

use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;

use urxe_wire::{Qpn, icrc};

use crate::ICRC_LEN;
use crate::change::Watch;
use crate::counters::add_alone;
use crate::datagram::{Datagram, dest_qpn, group_of};
use crate::early::EarlyRequests;
use crate::error::PortError;
use crate::fd::{Fd, FdSet};
use crate::flow::{FlowTable, PeerCache};
use crate::forward::{Forwarded, Forwarder, HEADER_LEN, Header};
use crate::interface::{find_local, gid_of};
use crate::owner::Seat;
use crate::port::{Port, descriptor_share};
use crate::registry::block_of;
use crate::service::Mailbox;
use crate::shm::{Damaged, Envelope, Inbox, Visits};
use crate::sys::{recv_parts, recv_udp, scope_id, timer_arm, timer_create};
use crate::token::Token;
use crate::udp::report_headers;
use crate::will::Testators;

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
/// Looks at the rings that left something there, in a row, before more than one run is taken at a time. An answer to
/// each is what a request that comes with others behind it expects, and what costs least while there are few.
const BACKLOG: u32 = 4;
/// Sockets one epoll_wait names.
const EVENTS: usize = 32;

/// Until the next attempt at a vacant seat, milliseconds: somebody is just taking it.
const RACE: u16 = 2;
/// The same after an error, such as a foreign program that has the port now.
const TROUBLE: u16 = 500;

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
    early: EarlyRequests,
    testators: Testators,
    inbox: Inbox,
    timer: Fd,
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
}

/// What one call of `receive` may still do and has done.
struct Call<'a> {
    port: &'a Port,
    left: usize,
    delivered: usize,
    deliver: &'a mut dyn FnMut(Datagram<'_>),
}

/// What is known of a datagram besides its bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Meta {
    /// Index of the local address.
    pub(crate) index: usize,
    pub(crate) local: SocketAddr,
    pub(crate) peer: SocketAddr,
    pub(crate) tclass: u8,
    pub(crate) hop_limit: u8,
    pub(crate) segment: usize,
    pub(crate) first: u16,
    /// ICRCs are left out ([`Datagram::whole`]).
    pub(crate) whole: bool,
}

/// What to do with a packet for another process.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stray {
    /// Forward it. `learn`: it came through the unconnected socket.
    Forward { learn: bool },
    /// Drop it: it was forwarded before.
    Drop,
}

impl Receiver {
    pub(crate) fn open(fds: &Arc<FdSet>, addresses: &[SocketAddr]) -> Result<Self, PortError> {
        let timer = timer_create().and_then(|timer| {
            let timer = fds.adopt(timer)?;
            fds.watch(timer.as_raw_fd(), Token::Timer.pack())?;
            Ok(timer)
        });
        let mut receiver = Self {
            fds: Arc::clone(fds),
            addresses: addresses.iter().copied().map(Some).collect(),
            seats: Vec::with_capacity(addresses.len()),
            watch: Watch::open(fds).ok(),
            flows: FlowTable::new(descriptor_share()),
            peers: PeerCache::new(),
            forwarder: Forwarder::new(),
            early: EarlyRequests::default(),
            testators: Testators::default(),
            inbox: Inbox::new(descriptor_share()),
            timer: timer.map_err(|e| PortError::os("create a timer", e))?,
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
        };
        for (index, address) in addresses.iter().enumerate() {
            let seat = Seat::take_patiently(fds, *address)?;
            watch_seat(fds, index, &seat).map_err(|e| PortError::os("watch a socket", e))?;
            receiver.seats.push(seat);
        }
        Ok(receiver)
    }

    /// To be called after [`Port::epoll_fd`] was found readable: the next `receive` looks at all sockets.
    pub fn woken(&mut self) {
        self.misses = MISSES;
    }

    pub(crate) fn receive(&mut self, port: &Port, budget: usize, deliver: &mut dyn FnMut(Datagram<'_>)) -> usize {
        let mut call = Call { port, left: budget, delivered: 0, deliver };
        if self.inbox.has_rings() && self.hits < HITS {
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
        call.delivered
    }

    fn look_at_all(&mut self, call: &mut Call<'_>) {
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
                    }
                }
                Token::Leader(seat) => {
                    let owner = self.seats.get(seat).and_then(Seat::heir);
                    if owner.is_none_or(|owner| !self.testators.hear(owner)) {
                        self.vacate(seat, call.port);
                        self.take_seat(seat, call.port);
                    }
                }
                Token::Early => self.look_for_listeners(call),
                Token::Timer => {
                    timer_arm(self.timer.as_raw_fd(), 0);
                    for seat in 0..self.seats.len() {
                        if matches!(self.seats.get(seat), Some(Seat::Vacant)) {
                            self.take_seat(seat, call.port);
                        }
                    }
                }
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
        let Self { testators, seats, addresses, .. } = self;
        testators.execute(call.port, |gid| {
            let is_owned = |(seat, address): (&Seat, &Option<SocketAddr>)| {
                !matches!(seat, Seat::Vacant) && address.is_some_and(|address| gid_of(address.ip()) == gid)
            };
            seats.iter().zip(addresses.iter()).any(is_owned)
        });
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

    /// Looks what has become of the interface, and takes seats at its new addresses.
    pub(crate) fn follow(&mut self, port: &Port) {
        if let Some(watch) = &self.watch {
            watch.clear();
        }
        let now = match port.interface().reread() {
            Ok(now) => now,
            Err(PortError::NoSuchInterface { .. }) => {
                self.watch = None;
                return port.interface_is_gone();
            }
            // Asked again at the next change.
            Err(_) => return,
        };
        for index in 0..self.addresses.len() {
            if self.address(index).is_some_and(|address| !now.addresses().contains(&address)) {
                self.vacate(index, port);
                self.addresses[index] = None;
                add_alone(&port.counters().flows_closed, self.flows.close_local(index));
                self.inbox.close_local(index);
            }
        }
        for address in now.addresses() {
            if !self.addresses.contains(&Some(*address)) {
                let free = self.addresses.iter().position(Option::is_none);
                let index = free.unwrap_or_else(|| {
                    self.addresses.push(None);
                    self.seats.push(Seat::Vacant);
                    self.seats.len() - 1
                });
                self.addresses[index] = Some(*address);
                self.peers.clear();
            }
        }
        // An IPv6 address can be used some time after it came, which is a change as well.
        for index in 0..self.seats.len() {
            if matches!(self.seats.get(index), Some(Seat::Vacant)) {
                self.take_seat(index, port);
            }
        }
        port.interface_is(now);
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

    /// `None`: nothing there. `Some(true)`: it was a run of packets.
    fn receive_owner(&mut self, seat: usize, call: &mut Call<'_>) -> Option<bool> {
        let Some(Seat::Owner { udp, .. }) = self.seats.get(seat) else { return None };
        let (several, _) = self.receive_udp(udp.as_raw_fd(), seat, true, call)?;
        Some(several)
    }

    fn receive_flow(&mut self, slot: usize, call: &mut Call<'_>) -> Option<bool> {
        let flow = self.flows.get(slot)?;
        let (several, ours) = self.receive_udp(flow.raw_fd(), flow.local, false, call)?;
        if self.flows.note(slot, ours) {
            add_alone(&call.port.counters().flows_closed, 1);
        }
        Some(several)
    }

    /// Returns whether it was a run of packets, and whether it was for this process.
    fn receive_udp(&mut self, fd: RawFd, index: usize, learn: bool, call: &mut Call<'_>) -> Option<(bool, bool)> {
        let local = self.address(index)?;
        // An error is that of an earlier packet and cleared by having been told: nothing was received.
        let received = recv_udp(fd, &mut self.buffer).ok().flatten()?;
        add_alone(&call.port.counters().rx_datagrams, 1);
        let meta = Meta {
            index,
            local,
            peer: received.peer,
            tclass: received.tclass,
            hop_limit: received.hop_limit,
            segment: received.segment,
            first: 0,
            whole: false,
        };
        let ours = self.sort(meta, received.len, Stray::Forward { learn }, call);
        Some((received.len > received.segment, ours))
    }

    //= spec/hosts.md#net-005
    //# A forwarded packet MUST NOT be forwarded again.
    fn receive_mailbox(&mut self, fd: RawFd, call: &mut Call<'_>) -> Option<bool> {
        let mut header = [0; HEADER_LEN];
        let len = recv_parts(fd, [header.as_mut_slice(), &mut self.buffer]).ok().flatten()?;
        let counters = call.port.counters();
        let Some((header, len, index, local)) = len.checked_sub(HEADER_LEN).and_then(|len| {
            let header = Header::parse(&header)?;
            let index = find_local(&self.addresses, header.local.0, header.local.1)?;
            Some((header, len, index, self.address(index)?))
        }) else {
            add_alone(&counters.drop_mailbox_bad, 1);
            return Some(false);
        };
        add_alone(&counters.rx_datagrams, 1);
        add_alone(&counters.forwarded_in, 1);
        let meta = Meta {
            index,
            local,
            peer: header.peer,
            tclass: header.tclass,
            hop_limit: header.hop_limit,
            segment: header.segment.into(),
            first: header.first,
            whole: false,
        };
        let ours = self.sort(meta, len, Stray::Drop, call);
        if ours && header.learn {
            self.learn(index, local, header.peer, call.port);
        }
        Some(len > usize::from(header.segment))
    }

    /// Takes a run out of the rings; several if there have been more than one for some time: as many packets as a budget of
    /// datagrams may be, since these cost no system call.
    fn receive_rings(&mut self, call: &mut Call<'_>) {
        let most = call.delivered + if self.backlog >= BACKLOG { BURST } else { 1 };
        while call.delivered < most {
            let counters = call.port.counters();
            let (envelope, run) = match self.inbox.take(&mut self.buffer) {
                None => {
                    self.backlog = 0;
                    return;
                }
                Some(Ok(found)) => found,
                Some(Err(Damaged)) => {
                    add_alone(&counters.drop_ring_bad, 1);
                    continue;
                }
            };
            add_alone(&counters.rx_datagrams, 1);
            add_alone(&counters.rx_ring_runs, 1);
            let Some(local) = self.address(envelope.index) else { continue };
            let Envelope { index, peer, tclass, hop_limit } = envelope;
            let whole = !run.sealed && !call.port.keeps_icrcs();
            if !run.sealed && !whole {
                let flow = self.peers.flow(index, local, peer);
                for (id, packet) in (0..).zip(self.buffer[..run.len].chunks_mut(run.segment)) {
                    if let Some((body, trailer)) = packet.split_last_chunk_mut::<ICRC_LEN>() {
                        *trailer = icrc::compute(flow, id, body).to_le_bytes();
                    }
                }
            }
            let meta = Meta { index, local, peer, tclass, hop_limit, segment: run.segment, first: 0, whole };
            self.sort(meta, run.len, Stray::Drop, call);
        }
        self.backlog = if self.inbox.is_empty() { 0 } else { self.backlog.saturating_add(1) };
        // Another one's turn.
        self.inbox.next();
    }

    /// Another process offers a ring.
    fn open_door(&mut self, door: RawFd, port: &Port) {
        let Self { inbox, addresses, fds, .. } = self;
        match inbox.admit(fds, door, |local| find_local(addresses, local.ip(), scope_id(local))) {
            Ok(visits) => count_visits(port, visits),
            // No descriptor to spare: who waits there goes by UDP, and whoever comes.
            Err(_) => port.close_door(door),
        }
    }

    fn attend_ring(&mut self, fd: RawFd, port: &Port) {
        let Self { inbox, addresses, .. } = self;
        let visits = inbox.attend(fd, |local| find_local(addresses, local.ip(), scope_id(local)));
        count_visits(port, visits);
    }

    /// Has the descriptor readable when anything comes through shared memory from now on. False: something has come
    /// meanwhile, receive it and ask again. To be called by whoever is about to wait for [`Port::epoll_fd`], and by nobody
    /// else: until then, senders do not bother to wake anybody.
    pub fn prepare_to_wait(&self) -> bool {
        self.inbox.arm()
    }

    /// What came to a multicast group.
    fn receive_group(&mut self, slot: usize, call: &mut Call<'_>) -> Option<bool> {
        let membership = call.port.groups().get(slot)?;
        let received = recv_udp(membership.raw_fd(), &mut self.buffer).ok().flatten()?;
        let counters = call.port.counters();
        add_alone(&counters.rx_datagrams, 1);
        let flow = icrc::Flow::new(received.peer, membership.group());
        let payload = self.buffer.get(..received.len).unwrap_or_default();
        for (index, packet) in (0..).zip(payload.chunks(received.segment.max(1))) {
            if dest_qpn(packet) != Some(Qpn::MULTICAST) {
                add_alone(&counters.drop_unknown_qpn, 1);
                continue;
            }
            (call.deliver)(Datagram {
                local: membership.group(),
                peer: received.peer,
                tclass: received.tclass,
                hop_limit: received.hop_limit,
                expected_id: index,
                flow: &flow,
                whole: false,
                payload: packet,
            });
            add_alone(&counters.rx_packets, 1);
            add_alone(&counters.rx_bytes, packet.len());
            call.delivered += 1;
        }
        Some(received.len > received.segment)
    }

    /// Opens a flow socket, so that the next datagrams come directly.
    //= spec/hosts.md#net-001
    //# Processes of one host MUST share UDP 4791 of an address without privileges.
    fn learn(&mut self, index: usize, local: SocketAddr, peer: SocketAddr, port: &Port) {
        // The owner gets everything that no flow socket takes; a forwarded datagram is from before it became the owner.
        if matches!(self.seats.get(index), Some(Seat::Owner { .. })) {
            return;
        }
        let (new, closed) = self.flows.learn(&self.fds, index, local, peer);
        add_alone(&port.counters().flows_closed, closed);
        if let Some((slot, fd)) = new {
            add_alone(&port.counters().flows_opened, 1);
            if self.headers {
                report_headers(fd, local);
            }
            if self.fds.watch(fd, Token::Flow(slot).pack()).is_err() {
                // Unwatched it might never be read; without it, forwarding goes on.
                self.flows.close(slot);
            }
        }
    }

    /// Delivers, forwards or drops each packet of the datagram in the buffer. Returns whether any was ours.
    //= spec/packets.md#pkt-014
    //# Datagrams that are no RoCE v2 packets MUST do no harm.
    fn sort(&mut self, meta: Meta, len: usize, stray: Stray, call: &mut Call<'_>) -> bool {
        let Some(payload) = self.buffer.get(..len) else { return false };
        let flow = self.peers.flow(meta.index, meta.local, meta.peer);
        let counters = call.port.counters();
        let (mut packets, mut bytes, mut at) = (0, 0, 0);
        // The kernel's runs have at most 128 packets, a mailbox's datagram at most 65 536 bytes.
        let mut index = meta.first;
        while let Some(packet) = payload.get(at..len.min(at + meta.segment)).filter(|packet| !packet.is_empty()) {
            if stray != Stray::Drop
                && dest_qpn(packet) == Some(Qpn::GSI)
                && let Some(mailbox) = Mailbox::of_gsi(packet, gid_of(meta.local.ip()))
                && !call.port.owns_mailbox(mailbox)
            {
                let outcome = forward(&mut self.forwarder, call.port, meta, index, false, mailbox, packet);
                let counter = match outcome {
                    Forwarded::Sent => Some(&counters.forwarded_out),
                    Forwarded::Unknown
                        if matches!(mailbox, Mailbox::Service(..))
                            && self.early.keep(call.port.fds(), mailbox, meta, index, packet) =>
                    {
                        Some(&counters.early_requests)
                    }
                    // It is told so from here.
                    Forwarded::Unknown => None,
                    // The sender will try again.
                    Forwarded::Full => Some(&counters.drop_forward_full),
                    Forwarded::Refused => Some(&counters.drop_forward_refused),
                };
                if let Some(counter) = counter {
                    add_alone(counter, 1);
                    at += packet.len();
                    index = index.wrapping_add(1);
                    continue;
                }
            }
            match dest_qpn(packet) {
                Some(qpn) if call.port.accepts(qpn) => {
                    (call.deliver)(Datagram {
                        local: meta.local,
                        peer: meta.peer,
                        tclass: meta.tclass,
                        hop_limit: meta.hop_limit,
                        expected_id: index,
                        flow,
                        whole: meta.whole,
                        payload: packet,
                    });
                    packets += 1;
                    bytes += packet.len();
                    at += packet.len();
                    index = index.wrapping_add(1);
                }
                Some(qpn) => {
                    let block = block_of(qpn);
                    let rest = payload.get(at..).unwrap_or_default();
                    let (group, count) = group_of(rest, meta.segment, block);
                    match stray {
                        Stray::Forward { learn } => {
                            let outcome = forward(
                                &mut self.forwarder,
                                call.port,
                                meta,
                                index,
                                learn,
                                Mailbox::Block(block),
                                group,
                            );
                            let counter = match outcome {
                                Forwarded::Sent => &counters.forwarded_out,
                                Forwarded::Unknown => &counters.drop_unknown_qpn,
                                Forwarded::Full => &counters.drop_forward_full,
                                Forwarded::Refused => &counters.drop_forward_refused,
                            };
                            let packets = if outcome == Forwarded::Unknown { usize::from(count) } else { 1 };
                            add_alone(counter, packets);
                        }
                        Stray::Drop => add_alone(&counters.drop_mailbox_bad, 1),
                    }
                    at += group.len();
                    index = index.wrapping_add(count);
                }
                None => {
                    add_alone(&counters.drop_short, 1);
                    at += packet.len();
                    index = index.wrapping_add(1);
                }
            }
        }
        if len == 0 {
            add_alone(&counters.drop_short, 1);
        }
        if packets > 0 {
            add_alone(&counters.rx_packets, packets);
            add_alone(&counters.rx_bytes, bytes);
            call.delivered += packets;
        }
        packets > 0
    }

    /// Passes requests on whose service somebody has by now; delivers, to be refused, those that nobody will have.
    fn look_for_listeners(&mut self, call: &mut Call<'_>) {
        let counters = call.port.counters();
        let Self { early, forwarder, .. } = self;
        let refused = early.look(|early| {
            let outcome = forward(forwarder, call.port, early.meta, early.index, false, early.to, &early.packet);
            let counter = match outcome {
                Forwarded::Unknown => return false,
                Forwarded::Sent => &counters.forwarded_out,
                // The sender will try again.
                Forwarded::Full => &counters.drop_forward_full,
                Forwarded::Refused => &counters.drop_forward_refused,
            };
            add_alone(counter, 1);
            true
        });
        for early in refused {
            let Meta { index, local, peer, tclass, hop_limit, .. } = early.meta;
            let flow = self.peers.flow(index, local, peer);
            let (payload, expected_id) = (&*early.packet, early.index);
            let whole = false;
            (call.deliver)(Datagram { local, peer, tclass, hop_limit, expected_id, flow, whole, payload });
            add_alone(&counters.rx_packets, 1);
            add_alone(&counters.rx_bytes, payload.len());
            call.delivered += 1;
        }
    }

    /// Says who has the wills of each address' connections.
    pub(crate) fn appoint_heirs(&self, port: &Port) {
        for index in 0..self.seats.len() {
            self.appoint_heir(index, port);
        }
    }

    fn appoint_heir(&self, index: usize, port: &Port) {
        if let (Some(address), Some(seat)) = (self.address(index), self.seats.get(index)) {
            port.wills().appoint(gid_of(address.ip()), seat.heir());
        }
    }

    /// To be called before a descriptor is closed that may be an heir.
    fn dismiss_heir(&self, index: usize, port: &Port) {
        if let Some(address) = self.address(index) {
            port.wills().appoint(gid_of(address.ip()), None);
        }
    }

    fn accept(&mut self, index: usize, port: &Port) {
        let Some(seat) = self.seats.get_mut(index) else { return };
        let token = |fd| Token::Follower(index, fd).pack();
        if seat.accept(&self.fds, descriptor_share(), token).is_err()
            && let Seat::Owner { listener, .. } = seat
        {
            // No descriptor to spare: who waits in the backlog stays connected and learns all the same when this process
            // goes. Looked at again when a follower has gone.
            self.fds.unwatch(listener.as_raw_fd());
        }
        self.appoint_heir(index, port);
    }

    fn dismiss(&mut self, index: usize, fd: RawFd, port: &Port) {
        if self.seats.get(index).and_then(Seat::heir) == Some(fd) {
            self.dismiss_heir(index, port);
        }
        let Some(seat) = self.seats.get_mut(index) else { return };
        seat.dismiss(fd);
        if let Seat::Owner { listener, .. } = seat {
            // Fails when it is watched already, which is the usual case.
            let _ = self.fds.watch(listener.as_raw_fd(), Token::Listener(index).pack());
        }
        self.appoint_heir(index, port);
    }

    fn vacate(&mut self, index: usize, port: &Port) {
        self.dismiss_heir(index, port);
        if let Some(seat) = self.seats.get_mut(index) {
            seat.neighbours().for_each(|fd| self.testators.forget(fd));
            *seat = Seat::Vacant;
        }
    }

    /// Tries to fill a vacant seat, or to try again later.
    //= spec/hosts.md#net-002
    //# When the owner of the port ends, however it ends, another process MUST take over and the others go on.
    fn take_seat(&mut self, index: usize, port: &Port) {
        let Some(address) = self.address(index) else { return };
        let Some(place) = self.seats.get_mut(index) else { return };
        let retry = match Seat::take(&self.fds, address) {
            Ok(Seat::Vacant) => RACE,
            Ok(seat) => {
                if watch_seat(&self.fds, index, &seat).is_ok() {
                    if let Seat::Owner { udp, .. } = &seat {
                        add_alone(&port.counters().takeovers, 1);
                        if self.headers {
                            report_headers(udp.as_raw_fd(), address);
                        }
                    }
                    *place = seat;
                    self.appoint_heir(index, port);
                    self.testators.has_owner();
                    return;
                }
                TROUBLE
            }
            // Not usable (yet): tried again when something has changed.
            Err(PortError::Os { source, .. }) if source.kind() == ErrorKind::AddrNotAvailable => return,
            Err(_) => TROUBLE,
        };
        timer_arm(self.timer.as_raw_fd(), retry);
    }
}

fn count_visits(port: &Port, visits: Visits) {
    let counters = port.counters();
    add_alone(&counters.rings_accepted, visits.accepted);
    add_alone(&counters.rings_refused, visits.refused);
    add_alone(&counters.rings_closed, visits.closed);
}

fn watch_seat(fds: &FdSet, index: usize, seat: &Seat) -> std::io::Result<()> {
    match seat {
        Seat::Vacant => Ok(()),
        Seat::Follower { owner } => fds.watch(owner.as_raw_fd(), Token::Leader(index).pack()),
        Seat::Owner { listener, udp, .. } => {
            fds.watch(listener.as_raw_fd(), Token::Listener(index).pack())?;
            fds.watch(udp.as_raw_fd(), Token::Owner(index).pack())
        }
    }
}

fn forward(
    forwarder: &mut Forwarder,
    port: &Port,
    meta: Meta,
    first: u16,
    learn: bool,
    to: Mailbox,
    packets: &[u8],
) -> Forwarded {
    // QP0 does not exist on RoCE, and a block 0 mailbox neither.
    if to == Mailbox::Block(0) {
        return Forwarded::Unknown;
    }
    let local: (IpAddr, u32) = (meta.local.ip(), scope_id(meta.local));
    let segment = u16::try_from(meta.segment).unwrap_or(u16::MAX);
    let header =
        Header { local, peer: meta.peer, tclass: meta.tclass, hop_limit: meta.hop_limit, segment, first, learn };
    forwarder.forward(port.fds(), to, &header, packets)
}
