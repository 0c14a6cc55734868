//! Flow sockets opened for known senders, and their ICRC pseudo headers.

use std::net::SocketAddr;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use urxe_wire::icrc;

use crate::sys::fd::{Budget, Fd, FdSet, Permit};
use crate::sys::udp::connect_flow;

/// How long a flow must have been silent before a new one may take its place.
const REPLACEABLE: Duration = Duration::from_secs(1);

/// Time for which a flow must have been silent before it is closed though nobody wants its place. It is found out once in so long,
/// so it may be twice that. What comes later is forwarded again at first.
pub(crate) const IDLE: Duration = Duration::from_secs(30);

/// Datagrams for other processes, one after the other, after which a flow is given up: its sender's port serves another
/// process now.
const MAX_MISDIRECTED: u32 = 16;

/// A socket for what one sender sends to one local address.
#[derive(Debug)]
pub(crate) struct FlowSocket {
    fd: Fd,
    /// Index of the local address.
    pub(crate) local: usize,
    pub(crate) peer: SocketAddr,
    /// Whether the flow has received since the last look at idle flows.
    active: bool,
    /// At that look, or when it was opened.
    looked: Instant,
    misdirected: u32,
    _permit: Permit,
}

/// The flow sockets of a port, by slot.
#[derive(Debug)]
pub(crate) struct FlowTable {
    slots: Vec<Option<FlowSocket>>,
    budget: Budget,
}

impl FlowTable {
    pub(crate) const fn new(budget: Budget) -> Self {
        Self { slots: Vec::new(), budget }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &FlowSocket> {
        self.slots.iter().flatten()
    }

    pub(crate) fn get(&self, slot: usize) -> Option<&FlowSocket> {
        self.slots.get(slot)?.as_ref()
    }

    /// Opens a flow socket unless there is one, or all are busy. Returns its slot and descriptor when it is new, and
    /// how many idle ones were closed for it.
    pub(crate) fn learn(
        &mut self,
        fds: &Arc<FdSet>,
        index: usize,
        local: SocketAddr,
        peer: SocketAddr,
        now: Instant,
    ) -> (Option<(usize, RawFd)>, usize) {
        // A socket connected to port 0 would take what all ports of the peer send.
        if peer.port() == 0 {
            return (None, 0);
        }
        if self.slots.iter().flatten().any(|flow| flow.local == index && flow.peer == peer) {
            return (None, 0);
        }
        let mut closed = 0;
        let permit = self.budget.take().or_else(|| {
            closed = self.close_idle(now, REPLACEABLE);
            self.budget.take()
        });
        let Some(permit) = permit else { return (None, closed) };
        let slot = self.slots.iter().position(Option::is_none).unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() - 1
        });
        // Without a descriptor or memory, forwarding goes on.
        let Ok(fd) = connect_flow(fds, local, peer) else { return (None, closed) };
        let raw = fd.as_raw_fd();
        if let Some(place) = self.slots.get_mut(slot) {
            *place = Some(FlowSocket {
                fd,
                local: index,
                peer,
                active: false,
                looked: now,
                misdirected: 0,
                _permit: permit,
            });
        }
        (Some((slot, raw)), closed)
    }

    /// Closes the flows that have been silent for so long. Returns how many.
    pub(crate) fn close_idle(&mut self, now: Instant, silent: Duration) -> usize {
        let mut closed = 0;
        for place in &mut self.slots {
            match place {
                Some(flow) if flow.active => (flow.active, flow.looked) = (false, now),
                Some(flow) if now.duration_since(flow.looked) >= silent => {
                    *place = None;
                    closed += 1;
                }
                Some(_) | None => {}
            }
        }
        closed
    }

    /// Closes the flow in a slot.
    pub(crate) fn close(&mut self, slot: usize) {
        if let Some(place) = self.slots.get_mut(slot) {
            *place = None;
        }
    }

    /// Closes the flows to a local address. Returns how many.
    pub(crate) fn close_local(&mut self, index: usize) -> usize {
        let of_address = self.slots.iter_mut().filter(|place| place.as_ref().is_some_and(|flow| flow.local == index));
        of_address.map(Option::take).count()
    }

    /// Notes that a datagram came through a flow, and whether it was for this process. `true`: the flow was closed
    /// because others' datagrams keep coming.
    pub(crate) fn note(&mut self, slot: usize, ours: bool) -> bool {
        let Some(place) = self.slots.get_mut(slot) else { return false };
        let Some(flow) = place else { return false };
        flow.active = true;
        flow.misdirected = if ours { 0 } else { flow.misdirected + 1 };
        if flow.misdirected < MAX_MISDIRECTED {
            return false;
        }
        *place = None;
        true
    }
}

impl FlowSocket {
    pub(crate) fn raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
}

/// Entries of a [`PeerCache`]; a power of two.
const CACHED: usize = 64;

/// The ICRC pseudo headers of recent senders, direct-mapped: bounded whatever a stranger sends.
#[derive(Debug)]
pub(crate) struct PeerCache {
    entries: Box<[Option<Entry>]>,
}

#[derive(Clone, Debug)]
struct Entry {
    local: usize,
    peer: SocketAddr,
    flow: icrc::Flow,
}

impl PeerCache {
    pub(crate) fn new() -> Self {
        Self { entries: vec![None; CACHED].into_boxed_slice() }
    }

    /// Another local address has an index now.
    pub(crate) fn clear(&mut self) {
        self.entries.fill(None);
    }

    /// The flow from `peer` to the local address `local`, which has this index.
    pub(crate) fn flow(&mut self, index: usize, local: SocketAddr, peer: SocketAddr) -> &icrc::Flow {
        let host = match peer {
            SocketAddr::V4(a) => a.ip().to_bits(),
            SocketAddr::V6(a) => {
                let [.., a, b, c, d] = a.ip().octets();
                u32::from_be_bytes([a, b, c, d])
            }
        };
        let mixed = (host ^ u32::from(peer.port())).wrapping_mul(0x9E37_79B1);
        let slot = ((mixed >> 16) as usize + index) % CACHED;
        let entry = &mut self.entries[slot];
        let fresh = !matches!(entry, Some(e) if e.local == index && e.peer == peer);
        if fresh {
            *entry = None;
        }
        &entry.get_or_insert_with(|| Entry { local: index, peer, flow: icrc::Flow::new(peer, local) }).flow
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An address of these tests' own, so that they meet nobody.
    fn local() -> SocketAddr {
        "127.99.2.1:4791".parse().unwrap()
    }

    fn peer(port: u16) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], port))
    }

    #[test]
    fn a_flow_is_opened_once() {
        let (fds, mut table) = (FdSet::new().unwrap(), FlowTable::new(Budget::new(4)));
        let (new, _) = table.learn(&fds, 0, local(), peer(50000), Instant::now());
        let (slot, raw) = new.unwrap();
        assert_eq!(table.get(slot).unwrap().raw_fd(), raw);
        assert!(table.learn(&fds, 0, local(), peer(50000), Instant::now()).0.is_none());
        assert!(table.learn(&fds, 0, local(), peer(50001), Instant::now()).0.is_some());
    }

    #[test]
    fn busy_flows_keep_their_place_and_idle_ones_make_room() {
        let (fds, mut table) = (FdSet::new().unwrap(), FlowTable::new(Budget::new(2)));
        let start = Instant::now();
        let learn = |table: &mut FlowTable, port, at| table.learn(&fds, 0, local(), peer(port), at);
        let (kept, _) = learn(&mut table, 50010, start);
        let (kept, _) = kept.unwrap();
        learn(&mut table, 50011, start);
        // Too soon.
        assert_eq!(learn(&mut table, 50012, start), (None, 0));
        table.note(kept, true);
        let (new, closed) = learn(&mut table, 50012, start + REPLACEABLE);
        assert!(new.is_some());
        assert_eq!(closed, 1);
        assert_eq!(table.get(kept).unwrap().peer, peer(50010));
    }

    #[test]
    fn tables_of_one_budget_take_what_others_leave() {
        let (fds, budget) = (FdSet::new().unwrap(), Budget::new(3));
        let [mut few, mut many] = [(); 2].map(|()| FlowTable::new(budget.clone()));
        let start = Instant::now();
        let is_new = |table: &mut FlowTable, port| table.learn(&fds, 0, local(), peer(port), start).0.is_some();
        assert!(is_new(&mut few, 50040));
        assert!(is_new(&mut many, 50041) && is_new(&mut many, 50042) && !is_new(&mut many, 50043));
        assert!(!is_new(&mut few, 50044));
        drop(few);
        assert!(is_new(&mut many, 50043));
    }

    #[test]
    fn idle_flows_are_closed_in_the_end() {
        let (fds, mut table) = (FdSet::new().unwrap(), FlowTable::new(Budget::new(4)));
        let start = Instant::now();
        let mut learn = |port| table.learn(&fds, 0, local(), peer(port), start).0.unwrap().0;
        let (busy, _idle) = (learn(50030), learn(50031));
        assert_eq!(table.close_idle(start + IDLE / 2, IDLE), 0);
        table.note(busy, true);
        assert_eq!(table.close_idle(start + IDLE, IDLE), 1);
        assert_eq!(table.get(busy).unwrap().peer, peer(50030));
        assert_eq!(table.close_idle(start + 2 * IDLE, IDLE), 1);
        assert_eq!(table.iter().count(), 0);
    }

    #[test]
    fn a_sender_without_a_port_is_not_learnt() {
        let (fds, mut table) = (FdSet::new().unwrap(), FlowTable::new(Budget::new(4)));
        assert_eq!(table.learn(&fds, 0, local(), peer(0), Instant::now()), (None, 0));
        assert_eq!(table.iter().count(), 0);
    }

    #[test]
    fn a_flow_that_serves_others_is_given_up() {
        let (fds, mut table) = (FdSet::new().unwrap(), FlowTable::new(Budget::new(2)));
        let (slot, _) = table.learn(&fds, 0, local(), peer(50020), Instant::now()).0.unwrap();
        for _ in 0..MAX_MISDIRECTED - 1 {
            assert!(!table.note(slot, false));
        }
        assert!(!table.note(slot, true), "one of ours starts the count again");
        for _ in 0..MAX_MISDIRECTED - 1 {
            assert!(!table.note(slot, false));
        }
        assert!(table.note(slot, false));
        assert!(table.get(slot).is_none());
    }

    #[test]
    fn cached_flows_are_those_of_their_peer() {
        let mut cache = PeerCache::new();
        let packet = [7u8; 32];
        for round in 0..2 {
            for port in 49152..49152 + 256 {
                let expected = icrc::compute(&icrc::Flow::new(peer(port), local()), 0, &packet);
                let flow = cache.flow(0, local(), peer(port));
                assert_eq!(icrc::compute(flow, 0, &packet), expected, "round {round}, port {port}");
            }
        }
    }
}
