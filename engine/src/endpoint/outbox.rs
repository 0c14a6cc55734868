//! UDP datagrams with whole RoCE v2 packets in them.

use alloc::collections::VecDeque;
use alloc::vec;
use alloc::vec::Vec;
use core::net::{IpAddr, SocketAddr};

use urxe_wire::{ROCE_PORT, grh, icrc};

use crate::host::Network;

/// A way to a peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Route {
    /// The peer's address; the port is 4791.
    pub to: IpAddr,
    /// The UDP source port of packets on this route.
    pub source_port: u16,
}

/// The addresses of a packet that arrived.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Origin {
    /// Source.
    pub from: IpAddr,
    /// Destination.
    pub to: IpAddr,
    /// The packet has met congestion ([`Datagram::is_marked`]).
    pub is_marked: bool,
}

/// A UDP datagram.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Datagram {
    /// Source.
    pub from: SocketAddr,
    /// Destination.
    pub to: SocketAddr,
    /// The bytes from the BTH to the ICRC.
    pub bytes: Vec<u8>,
    /// The packet has met congestion: CE in its IP header (RFC 3168).
    pub is_marked: bool,
}

impl Datagram {
    /// Appends the ICRC to `bytes`, which go from the BTH to the padding. It is that of a packet with identification 0
    /// and DF, as Linux sends from an unconnected UDP socket with `IP_PMTUDISC_DO`.
    #[must_use]
    pub fn with_icrc(from: SocketAddr, to: SocketAddr, mut bytes: Vec<u8>) -> Self {
        let icrc = icrc::compute(&icrc::Flow::new(from, to), 0, &bytes);
        bytes.extend_from_slice(&icrc.to_le_bytes());
        Self { from, to, bytes, is_marked: false }
    }

    /// Whether the ICRC is that of a packet with identification 0 and DF.
    #[must_use]
    pub fn has_right_icrc(&self) -> bool {
        icrc::verify(&icrc::Flow::new(self.from, self.to), 0, &self.bytes) == icrc::Check::Exact
    }

    /// The addresses without ports.
    #[must_use]
    pub const fn origin(&self) -> Origin {
        Origin { from: self.from.ip(), to: self.to.ip(), is_marked: self.is_marked }
    }
}

/// A [`Network`] that collects packets as UDP datagrams.
#[derive(Debug)]
pub struct Outbox {
    address: IpAddr,
    open: Option<Datagram>,
    sent: VecDeque<Datagram>,
    room: usize,
    lossless: bool,
}

impl Outbox {
    /// An outbox whose datagrams come from `address`, with room for any number of them.
    #[must_use]
    pub const fn new(address: IpAddr) -> Self {
        Self { address, open: None, sent: VecDeque::new(), room: usize::MAX, lossless: false }
    }

    /// The source address.
    #[must_use]
    pub const fn address(&self) -> IpAddr {
        self.address
    }

    /// Allows `packets` more packets.
    pub const fn set_room(&mut self, packets: usize) {
        self.room = packets;
    }

    /// Tells the engine that the network loses nothing from now on ([`Network::may_lose`]).
    pub const fn promise_no_loss(&mut self) {
        self.lossless = true;
    }

    /// Takes the oldest datagram.
    pub fn pop(&mut self) -> Option<Datagram> {
        self.sent.pop_front()
    }

    /// Takes all datagrams, oldest first.
    pub fn take_sent(&mut self) -> Vec<Datagram> {
        self.sent.drain(..).collect()
    }
}

impl Network for Outbox {
    type Route = Route;
    type Origin = Origin;

    fn is_from(route: &Route, origin: &Origin) -> bool {
        route.to == origin.from
    }

    fn shares_end(&self, route: &Route, origin: &Origin) -> bool {
        route.to == origin.from || self.address == origin.to
    }

    fn on_path(route: &Route, path: u8) -> Route {
        const STEP: u16 = 0x111;
        /// Bits of a source port that are the same on all paths.
        const RANGE: u16 = 0xC000;
        let port = route.source_port.wrapping_add(STEP * u16::from(path));
        Route { source_port: route.source_port & RANGE | port & !RANGE, ..*route }
    }

    fn network_header(&self, origin: &Origin, len: usize) -> [u8; 40] {
        grh::network_header(origin.from, origin.to, grh::Fields { tclass: 0, hop_limit: 64 }, len)
    }

    fn packet(&mut self, route: &Route, len: usize) -> Option<&mut [u8]> {
        if self.room == 0 {
            return None;
        }
        let from = SocketAddr::new(self.address, route.source_port);
        // A byte that the engine forgets to write is found by whoever parses or compares it.
        let bytes = vec![0xA5; len];
        Some(
            &mut self
                .open
                .insert(Datagram { from, to: SocketAddr::new(route.to, ROCE_PORT), bytes, is_marked: false })
                .bytes,
        )
    }

    fn commit(&mut self) {
        if let Some(Datagram { from, to, bytes, .. }) = self.open.take() {
            self.room -= 1;
            self.sent.push_back(Datagram::with_icrc(from, to, bytes));
        }
    }

    fn may_lose(&self, _route: &Route) -> bool {
        !self.lossless
    }
}
