//! One end of a test's traffic: a port with a QPN, and packets that can be told apart.

use std::sync::Arc;
use std::time::{Duration, Instant};

use urxe_net::{Datagram, Destination, Interface, Port, Receiver, Route, TxBatch};
use urxe_wire::icrc::Check;
use urxe_wire::{Gid, Qpn};

/// Long enough for a loaded machine; nothing waits for it unless a test fails.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

/// Bytes of a BTH, which is all the header these packets have.
pub(crate) const BTH: usize = 12;

pub(crate) struct End {
    pub(crate) port: Port,
    pub(crate) rx: Receiver,
    pub(crate) tx: TxBatch,
    pub(crate) qpn: Qpn,
}

/// A packet that arrived: number, length without ICRC, and what UDP knew.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Arrival {
    pub(crate) number: u32,
    pub(crate) len: usize,
    pub(crate) check: Check,
    pub(crate) source_port: u16,
    pub(crate) tclass: u8,
    pub(crate) hop_limit: u8,
}

impl Arrival {
    fn of(datagram: &Datagram<'_>) -> Self {
        let (body, _) = datagram.payload.split_at(datagram.payload.len() - 4);
        let number = u32::from_be_bytes(body[8..12].try_into().unwrap());
        for (at, byte) in body.iter().enumerate().skip(BTH) {
            assert_eq!(*byte, pattern(number, at), "byte {at} of packet {number}");
        }
        Self {
            number,
            len: body.len(),
            check: datagram.verify(),
            source_port: datagram.headers.peer.port(),
            tclass: datagram.headers.tclass,
            hop_limit: datagram.headers.hop_limit,
        }
    }
}

fn pattern(number: u32, at: usize) -> u8 {
    let [.., low] = (number as usize).wrapping_mul(31).wrapping_add(at).to_be_bytes();
    low
}

/// The bytes of packet `number` (BTH to payload) for `qpn`.
pub(crate) fn fill(packet: &mut [u8], qpn: Qpn, number: u32) {
    packet[..BTH].fill(0);
    packet[5..8].copy_from_slice(&qpn.get().to_be_bytes()[1..]);
    packet[8..12].copy_from_slice(&number.to_be_bytes());
    for (at, byte) in packet.iter_mut().enumerate().skip(BTH) {
        *byte = pattern(number, at);
    }
}

impl End {
    /// A port on `interface`, with one QPN.
    pub(crate) fn on(interface: &str) -> Self {
        Self::of(Port::open(Interface::by_name(interface).unwrap()).unwrap())
    }

    /// An end whose port shares memory.
    pub(crate) fn sharing_on(interface: &str) -> Self {
        Self::of(Port::open_sharing_memory(Interface::by_name(interface).unwrap()).unwrap())
    }

    pub(crate) fn of((port, rx): (Port, Receiver)) -> Self {
        let qpn = port.alloc_qpn().unwrap();
        Self { port, rx, tx: TxBatch::new(), qpn }
    }

    /// The way to a QPN of another port on the same interface, by GID index.
    pub(crate) fn route(&self, gid: usize, to: Qpn) -> Arc<Route> {
        let gid = self.port.interface().gids()[gid];
        self.port.route(&destination(gid, gid, to)).unwrap()
    }

    /// Queues packet `number` of `len` bytes, ICRC excluded.
    pub(crate) fn queue(&mut self, route: &Arc<Route>, to: Qpn, number: u32, len: usize) {
        fill(self.tx.packet(&self.port, route, len), to, number);
        self.tx.commit();
    }

    pub(crate) fn send(&mut self, route: &Arc<Route>, to: Qpn, number: u32, len: usize) {
        self.queue(route, to, number, len);
        self.tx.flush(&self.port);
    }

    /// Receives what is there now.
    pub(crate) fn receive(&mut self) -> Vec<Arrival> {
        let mut arrivals = Vec::new();
        self.rx.woken();
        self.rx.receive(&self.port, 64, &mut |run| {
            let before = arrivals.len();
            arrivals.extend(run.datagrams().map(|datagram| Arrival::of(&datagram)));
            arrivals[before..].iter().any(|arrival| arrival.check != Check::Bad)
        });
        arrivals
    }

    /// Receives until `count` packets are there.
    pub(crate) fn expect(&mut self, count: usize) -> Vec<Arrival> {
        let start = Instant::now();
        let mut arrivals = Vec::new();
        while arrivals.len() < count {
            arrivals.extend(self.receive());
            assert!(start.elapsed() < PATIENCE, "{} of {count} packets: {:?}", arrivals.len(), self.counts());
        }
        arrivals
    }

    /// Receives until `condition` holds.
    pub(crate) fn until(&mut self, what: &str, mut condition: impl FnMut(&mut Self) -> bool) {
        let start = Instant::now();
        while !condition(self) {
            self.receive();
            assert!(start.elapsed() < PATIENCE, "{what}: {:?}", self.counts());
        }
    }

    pub(crate) fn count(&self, name: &str) -> u64 {
        let counters = self.port.counters();
        counters.named().find(|(n, _)| *n == name).unwrap_or_else(|| panic!("no counter {name}")).1
    }

    /// All counters that are not 0.
    pub(crate) fn counts(&self) -> Vec<(&'static str, u64)> {
        self.port.counters().named().filter(|(_, value)| *value > 0).collect()
    }
}

pub(crate) fn destination(local: Gid, remote: Gid, dest_qpn: Qpn) -> Destination {
    Destination { local, remote, dest_qpn, flow_label: 0, tclass: 0, hop_limit: 0 }
}

/// Makes `to` learn the flow of `route`, which begins at `from` and whose address `owner` has.
pub(crate) fn introduce(from: &mut End, owner: Option<&mut End>, to: &mut End, route: &Arc<Route>) {
    from.send(route, to.qpn, 0, 64);
    match owner {
        Some(owner) => owner.until("the owner forwards", |owner| owner.count("forwarded_out") > 0),
        None => from.until("the owner forwards", |from| from.count("forwarded_out") > 0),
    }
    to.until("the flow is learnt", |to| to.count("flows_opened") > 0);
}
