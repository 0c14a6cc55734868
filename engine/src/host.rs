//! Traits that a host implements: memory, network, consumer, clock.

use crate::async_event::AsyncEvent;
use crate::cq::Cqe;
use crate::event::Event;
use crate::memory::Memory;
use crate::mr::Pd;
use crate::quirks::Quirks;
use crate::srq::XrcDomain;
use crate::time::{Clock, Instant};
use crate::work::RecvWr;
use urxe_wire::{Lid, Qpn};

/// The surroundings' types, under one name.
pub trait Host {
    /// Registered memory.
    type Memory: Memory;
    /// Network that takes packets.
    type Network: Network;
    /// Consumer of completions and events.
    type Consumer: Consumer;
    /// The source of the time.
    type Clock: Clock;
    /// Choices that the specification leaves to a queue pair; `()` chooses as ordinary devices do.
    type Quirks: Quirks;
}

/// Takes packets.
pub trait Network {
    /// A way to a peer: addresses, UDP source port, traffic class.
    type Route;
    /// Origin of a packet.
    type Origin;

    /// The way over another path to the same peer, from another UDP source port: `path` counts from 1. `route` itself is
    /// path 0.
    fn on_path(route: &Self::Route, path: u8) -> Self::Route;

    /// Whether packets of `origin` may claim to come from the peer behind `route` (the same addresses).
    fn is_from(route: &Self::Route, origin: &Self::Origin) -> bool;

    /// Whether packets of `origin` have an address in common with those of `route`: they come from the peer, or to where it sends.
    fn shares_end(&self, route: &Self::Route, origin: &Self::Origin) -> bool;

    /// The bytes before the payload in the receive buffer of a UD QP, when the packet from `origin` has `len` bytes
    /// from the BTH to the padding: the IPv6 header, or 20 unused bytes and the IPv4 header (IBA annex A17.4.5.3); of a port
    /// of InfiniBand the GRH.
    fn network_header(&self, origin: &Self::Origin, len: usize) -> [u8; 40];

    /// The LID that packets from `origin` come from, if ports have LIDs.
    fn source_lid(&self, _origin: &Self::Origin) -> Lid {
        Lid::NONE
    }

    /// Room for one packet of `len` bytes, from the BTH to the padding; the ICRC is the network's to add.
    /// The engine writes every byte of it. `None` if there is no room now.
    fn packet(&mut self, route: &Self::Route, len: usize) -> Option<&mut [u8]>;

    /// Room for a congestion notification packet of `len` bytes, whose IP header is to have this DSCP.
    fn notification(&mut self, route: &Self::Route, len: usize, _dscp: u8) -> Option<&mut [u8]> {
        self.packet(route, len)
    }

    /// Sends the packet last handed out. One that is never committed is forgotten.
    fn commit(&mut self);

    /// Whether packets on `route`, or their answers, may be lost. Where none is, silence only means that the peer is
    /// busy: a requester waits for its answer, and sends nothing again before the ACK timeout.
    fn may_lose(&self, _route: &Self::Route) -> bool {
        true
    }
}

/// The verbs consumer's side: who posted the work requests.
pub trait Consumer {
    /// A completion queue.
    type Cq;
    /// A shared receive queue.
    type Srq;
    /// A completion counter.
    type Counter;

    /// Whether the queue wants to know when its completions were made ([`Cqe::at`]).
    fn wants_time(&self, _cq: &Self::Cq) -> bool {
        true
    }

    /// Adds a completion to a queue.
    fn complete(&mut self, cq: &Self::Cq, cqe: Cqe);

    /// Adds the completion of a message that was received, whose acknowledgement has not left yet
    /// ([`QueuePair::owes_answer`](crate::QueuePair::owes_answer)). A consumer that may end at any moment sees it after the
    /// acknowledgement.
    fn complete_received(&mut self, cq: &Self::Cq, cqe: Cqe) {
        self.complete(cq, cqe);
    }

    /// Counts an operation that ended, well or not. It comes before the completion of the operation.
    fn count(&mut self, counter: &Self::Counter, succeeded: bool);

    /// Takes a receive WQE from a shared receive queue; of an SRQ elsewhere, also none if nobody answers there.
    fn take_recv(&mut self, srq: &Self::Srq) -> Option<RecvWr>;

    /// The protection domain of a shared receive queue.
    fn srq_pd(&self, srq: &Self::Srq) -> Pd;

    /// The XRC SRQ of `domain` that has this number.
    fn xrc_srq(&self, domain: XrcDomain, number: Qpn) -> Option<Self::Srq>;

    /// Adds a completion to the queue that belongs to an XRC SRQ.
    fn complete_xrc(&mut self, srq: &Self::Srq, cqe: Cqe);

    /// Raises an affiliated asynchronous event.
    fn async_event(&mut self, qpn: Qpn, event: AsyncEvent);

    /// Tells of an event that a person debugging wants to know. Costs nothing unless it is implemented.
    fn trace(&mut self, _qpn: Qpn, _event: Event) {}
}

/// Clock, memory, network and consumer of one call.
#[derive(Debug)]
pub struct Io<'a, H: Host> {
    /// Tells the time of this call.
    pub clock: &'a H::Clock,
    /// Registered memory.
    pub memory: &'a H::Memory,
    /// Network that takes packets.
    pub network: &'a mut H::Network,
    /// Consumer of completions and events.
    pub consumer: &'a mut H::Consumer,
}

impl<H: Host> Io<'_, H> {
    /// The time of this call.
    pub(crate) fn now(&self) -> Instant {
        self.clock.now()
    }

    /// Time of a completion of `cq`, if it wants that.
    pub(crate) fn time_for(&self, cq: Option<&<H::Consumer as Consumer>::Cq>) -> Instant {
        match cq {
            Some(cq) if self.consumer.wants_time(cq) => self.now(),
            Some(_) | None => Instant::default(),
        }
    }
}
