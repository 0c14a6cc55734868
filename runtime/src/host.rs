//! The engine's surroundings: sockets below, the application above.

mod notifications;
mod sender;

use std::net::IpAddr;
use std::sync::Arc;

use urxe_engine::Host;
use urxe_engine::congestion::Marks;
use urxe_net::Headers;
use urxe_wire::{Qpn, grh};

use super::clock::LazyInstant;
use super::due::Due;
use super::quirks;
use crate::counters::InsideTraffic;
use crate::memory::region_cache::RegionCache;
pub use notifications::PendingNotifications;
pub(super) use notifications::Unacknowledged;
pub use sender::Sender;

/// The engine's [`Host`].
#[derive(Debug)]
pub struct DeviceHost;

impl Host for DeviceHost {
    type Memory = RegionCache;
    type Network = Sender;
    type Consumer = PendingNotifications;
    type Clock = LazyInstant;
    type Quirks = quirks::Qp;
}

/// Transmit batch, memory access and pending notifications: all that a queue pair needs to send and to complete.
#[derive(Debug)]
pub struct TxContext {
    pub(super) sender: Sender,
    pub(super) memory: RegionCache,
    pub(super) notifications: PendingNotifications,
    pub(super) inside: Inside,
}

/// Queue pairs as a thread's context knows them.
pub(super) trait Turn: std::fmt::Debug + Send + Sync {
    /// Number.
    fn qpn(&self) -> Qpn;

    /// Sends answers and requests, and receives packets of this process.
    fn turn(&self, work: &mut TxContext);
}

/// State of a context for packets that stay in the process.
#[derive(Debug, Default)]
pub(super) struct Inside {
    /// Queue pairs whose turn is next: they have got packets, or may send more.
    pub(super) due: Due<dyn Turn>,
    /// Set while a call further up gives those their turns.
    pub(super) is_delivering: bool,
    /// Packets that stayed in the process. Written by who has the context.
    pub(super) traffic: Arc<InsideTraffic>,
}

/// Addresses between which a packet travelled.
#[derive(Clone, Copy, Debug)]
pub struct Origin {
    pub(super) local: IpAddr,
    pub(super) peer: IpAddr,
    fields: grh::Fields,
}

impl From<&Headers> for Origin {
    fn from(headers: &Headers) -> Self {
        let fields = grh::Fields { tclass: headers.tclass, hop_limit: headers.hop_limit };
        Self { local: headers.local.ip(), peer: headers.peer.ip(), fields }
    }
}

impl Origin {
    /// Marks in the IP header.
    pub(super) const fn marks(&self) -> Marks {
        Marks::of_class(self.fields.tclass)
    }
}
