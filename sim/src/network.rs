//! A node's network interface: what the engine sends becomes whole datagrams, ICRC included.

use std::net::{IpAddr, SocketAddr};

use urxe_engine::Network;
use urxe_wire::{ROCE_PORT, grh, icrc};

/// The way to a peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Route {
    /// The peer's address.
    pub to: IpAddr,
    /// The UDP source port that its packets are sent from.
    pub source_port: u16,
}

/// Where a packet came from, and to which address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Origin(pub IpAddr, pub IpAddr);

/// A UDP datagram on its way.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Datagram {
    /// Source.
    pub from: SocketAddr,
    /// Destination.
    pub to: SocketAddr,
    /// From the BTH to the ICRC.
    pub bytes: Vec<u8>,
}

impl Datagram {
    /// Whether the ICRC is right. Senders here use identification 0 and set DF, so nothing else will do.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        icrc::verify(&icrc::Flow::new(self.from, self.to), 0, &self.bytes) == icrc::Check::Exact
    }

    /// Puts the right ICRC at the end of `bytes`, which go from the BTH to the padding.
    #[must_use]
    pub fn sealed(from: SocketAddr, to: SocketAddr, mut bytes: Vec<u8>) -> Self {
        let icrc = icrc::compute(&icrc::Flow::new(from, to), 0, &bytes);
        bytes.extend_from_slice(&icrc.to_le_bytes());
        Self { from, to, bytes }
    }
}

/// Collects what the engine sends.
#[derive(Debug)]
pub struct Nic {
    address: IpAddr,
    open: Option<Datagram>,
    sent: Vec<Datagram>,
    room: usize,
    lossless: bool,
}

impl Nic {
    /// An interface with this address and room for nothing.
    #[must_use]
    pub const fn new(address: IpAddr) -> Self {
        Self { address, open: None, sent: Vec::new(), room: 0, lossless: false }
    }

    /// Its address.
    #[must_use]
    pub const fn address(&self) -> IpAddr {
        self.address
    }

    /// Makes room for `packets`.
    pub const fn set_room(&mut self, packets: usize) {
        self.room = packets;
    }

    /// Promises the engine that nothing is lost from now on.
    pub const fn promise_no_loss(&mut self) {
        self.lossless = true;
    }

    /// Takes what was sent since the last call.
    pub fn take_sent(&mut self) -> Vec<Datagram> {
        std::mem::take(&mut self.sent)
    }
}

impl Network for Nic {
    type Route = Route;
    type Origin = Origin;

    fn is_from(route: &Route, origin: &Origin) -> bool {
        route.to == origin.0
    }

    fn network_header(origin: &Origin, len: usize) -> [u8; 40] {
        let fields = grh::Fields { tclass: 0, hop_limit: 64 };
        grh::network_header(origin.0, origin.1, fields, len)
    }

    fn packet(&mut self, route: &Route, len: usize) -> Option<&mut [u8]> {
        if self.room == 0 {
            return None;
        }
        // What the engine forgets to write is found by whoever parses or compares it.
        let bytes = vec![0xA5; len];
        let from = SocketAddr::new(self.address, route.source_port);
        let datagram = self.open.insert(Datagram { from, to: SocketAddr::new(route.to, ROCE_PORT), bytes });
        Some(&mut datagram.bytes)
    }

    fn may_lose(&self, _route: &Route) -> bool {
        !self.lossless
    }

    fn commit(&mut self) {
        let Datagram { from, to, bytes } = self.open.take().expect("the engine commits what it asked room for");
        self.room -= 1;
        self.sent.push(Datagram::sealed(from, to, bytes));
    }
}
