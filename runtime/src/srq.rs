//! A shared receive queue that several threads and queue pairs may use.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use urxe_engine::{Pd, RecvWr, SharedReceiveQueue, XrcDomain};
use urxe_wire::Qpn;

use super::async_events::AsyncEvents;
use super::cq::Cq;
use super::{lock, quirks};
use crate::event::EventType;
use crate::xrc::client::{Client, RemoteSrq};

/// A shared receive queue.
#[derive(Debug)]
pub struct Srq {
    queue: Mutex<SharedReceiveQueue<quirks::Srq>>,
    pd: Pd,
    number: u32,
    xrc: Option<Xrc>,
    events: AsyncEvents,
}

/// XRC domain, number and CQ of an XRC SRQ.
#[derive(Clone, Debug)]
pub struct Xrc {
    /// Queue pairs of this domain deliver to it.
    pub domain: XrcDomain,
    /// Number of the SRQ.
    pub number: Qpn,
    /// Completion queue of its messages.
    pub cq: Arc<Cq>,
}

impl Srq {
    /// Makes a queue in `pd`. `urxe status` and `rdma resource` show its `number`.
    pub const fn new(
        queue: SharedReceiveQueue<quirks::Srq>,
        pd: Pd,
        number: u32,
        xrc: Option<Xrc>,
        events: AsyncEvents,
    ) -> Self {
        Self { queue: Mutex::new(queue), pd, number, xrc, events }
    }

    /// Number among the device's SRQs in this process.
    pub const fn number(&self) -> u32 {
        self.number
    }

    /// Returns the SRQ's protection domain.
    pub const fn pd(&self) -> Pd {
        self.pd
    }

    /// Returns domain, number and CQ of an XRC SRQ; `None` for a basic SRQ.
    pub const fn xrc(&self) -> Option<&Xrc> {
        self.xrc.as_ref()
    }

    /// Lets `act` at the queue.
    pub fn with<T>(&self, act: impl FnOnce(&mut SharedReceiveQueue<quirks::Srq>) -> T) -> T {
        act(&mut lock(&self.queue))
    }

    /// Takes the oldest WQE, and tells the application when there are too few.
    pub fn take(&self) -> Option<RecvWr> {
        let taken = lock(&self.queue).take()?;
        if taken.limit_reached {
            self.events.raise(EventType::SrqLimitReached);
        }
        Some(taken.wr)
    }

    /// Ends the events of the queue. Returns how many the application has read, each of which it must acknowledge.
    pub fn retire(&self) -> u32 {
        self.events.retire()
    }
}

/// A shared receive queue, as the engine knows it.
#[derive(Clone, Debug)]
pub enum AnySrq {
    /// SRQ of this process.
    Local(Arc<Srq>),
    /// An XRC SRQ of another one.
    Remote(Arc<RemoteSrq>),
}

/// The XRC SRQs that a device can reach.
#[derive(Debug)]
pub struct XrcSrqs {
    here: RwLock<HashMap<(XrcDomain, Qpn), Arc<Srq>>>,
    client: Arc<Client>,
}

impl XrcSrqs {
    /// Table without an SRQ.
    pub(super) fn new(client: Client) -> Self {
        Self { here: RwLock::default(), client: Arc::new(client) }
    }

    /// SRQs of other processes.
    pub const fn client(&self) -> &Arc<Client> {
        &self.client
    }

    /// Lets queue pairs of its domain deliver to it.
    pub(super) fn add(&self, srq: &Arc<Srq>) {
        if let Some(xrc) = srq.xrc() {
            let mut all = self.here.write().unwrap_or_else(PoisonError::into_inner);
            all.insert((xrc.domain, xrc.number), Arc::clone(srq));
        }
    }

    /// Ends that.
    pub(super) fn remove(&self, xrc: &Xrc) {
        self.here.write().unwrap_or_else(PoisonError::into_inner).remove(&(xrc.domain, xrc.number));
    }

    /// The SRQ of that number in this process' part of `domain`.
    pub fn here(&self, domain: XrcDomain, number: Qpn) -> Option<Arc<Srq>> {
        self.here.read().unwrap_or_else(PoisonError::into_inner).get(&(domain, number)).cloned()
    }

    /// The SRQ of that number in `domain`.
    pub(super) fn find(&self, domain: XrcDomain, number: Qpn) -> Option<AnySrq> {
        let here = self.here(domain, number).map(AnySrq::Local);
        here.or_else(|| self.client.find(domain, number).map(AnySrq::Remote))
    }
}
