//! A queue pair that several threads may use.

mod direct;
mod handles;
mod inside;
mod last_ack;
mod receive;
mod turn;
mod unread;

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Mutex, Weak};

use urxe_engine::endpoint::TimerSlot;
use urxe_engine::{AttachError, CountedOps, QpConfig, QpType, QueuePair};
use urxe_wire::Qpn;

use super::async_events::AsyncEvents;
use super::counter::CompletionCounter;
use super::cq::Cq;
use super::device::Device;
use super::host::{DeviceHost, Unacknowledged};
use super::lock;
use super::progress::delayed_ack::DelayedAck;
use crate::counters::QpCounters;
use crate::direct::Sides;
use crate::xrc::rx_queue;
use crate::xrc::target::Target;
use inside::Inbox;
use last_ack::LastAck;
use unread::UnreadByPeer;

/// A queue pair.
pub struct Qp {
    qpn: Qpn,
    inner: Mutex<Inner>,
    device: Arc<Device>,
    /// Packets of queue pairs of this process.
    inbox: Inbox,
    pub(super) timer: TimerSlot,
    /// Looks in a row that found the timer due and another thread at work.
    busy_looks: AtomicU8,
    /// Whether the queue pair is in the receive token's `dirty` list. Changed only by the holder of the receive token.
    dirty: AtomicBool,
    /// No packet reaches it any more.
    retired: AtomicBool,
    /// `None`: no XRC target.
    xrc_target: Option<Target>,
    /// Events of each `ibv_qp` by which the application knows it: one, or several of an XRC target (`ibv_open_qp(3)`).
    listeners: Mutex<Vec<Arc<AsyncEvents>>>,
}

struct Inner {
    engine: QueuePair<DeviceHost>,
    delayed_ack: DelayedAck,
    /// A completion queue has a channel: the application may sleep until an event, and ACKs are not delayed.
    sleeps: bool,
    counters: QpCounters,
    /// Completions that the application sees when the ACK of their messages has left.
    unacknowledged: Vec<Unacknowledged>,
    last_ack: LastAck,
    unread: Option<UnreadByPeer>,
    /// Sides of direct requests: shown to the peer, and of the peer; `None` on a device without them.
    sides: Option<Box<Sides>>,
    /// The queue pair of this process that got packets last.
    neighbor: Weak<Qp>,
}

impl fmt::Debug for Qp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Qp").field("qpn", &self.qpn).finish_non_exhaustive()
    }
}

impl Qp {
    /// Makes a queue pair and lets packets reach it. `events` are those of its `ibv_qp`.
    pub fn new(device: &Arc<Device>, config: QpConfig<DeviceHost>, events: AsyncEvents) -> Arc<Self> {
        let xrc_target = (config.qp_type == QpType::XrcRecv).then(Target::default);
        if config.xrcd.is_some_and(|domain| device.xrc_srqs().client().is_shared(domain)) {
            rx_queue::start(device);
        }
        let is_connected = matches!(config.qp_type, QpType::Rc | QpType::Uc);
        let sleeps = [&config.send_cq, &config.recv_cq].into_iter().flatten().any(|cq| cq.has_channel());
        if sleeps {
            device.policy.may_sleep();
        }
        let qp = Arc::new_cyclic(|qp| Self {
            qpn: config.qpn,
            inner: Mutex::new(Inner {
                sleeps,
                engine: QueuePair::new(config),
                delayed_ack: DelayedAck::default(),
                unacknowledged: Vec::new(),
                last_ack: LastAck::default(),
                unread: None,
                sides: (device.gives_direct_access() && is_connected)
                    .then(|| Box::new(Sides::new(Weak::<Self>::clone(qp)))),
                neighbor: Weak::new(),
                counters: QpCounters::default(),
            }),
            device: Arc::clone(device),
            inbox: Inbox::default(),
            timer: TimerSlot::default(),
            busy_looks: AtomicU8::new(0),
            dirty: AtomicBool::new(false),
            retired: AtomicBool::new(false),
            xrc_target,
            listeners: Mutex::new(vec![Arc::new(events)]),
        });
        device.add_qp(Arc::clone(&qp));
        qp
    }

    /// Returns the queue pair's number.
    pub const fn qpn(&self) -> Qpn {
        self.qpn
    }

    /// Returns the state of an XRC target for whoever receives; `None` if the queue pair is not one.
    pub(crate) const fn xrc_target(&self) -> Option<&Target> {
        self.xrc_target.as_ref()
    }

    /// The device it is on.
    pub const fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// Looks at the engine without driving it.
    pub fn inspect<T>(&self, look: impl FnOnce(&QueuePair<DeviceHost>) -> T) -> T {
        let Inner { engine, sides, .. } = &mut *lock(&self.inner);
        if let (Some(sides), Some(reach)) = (sides, self.device.direct()) {
            sides.absorb(reach, engine);
        }
        look(engine)
    }

    /// Has a completion counter count operations from now on.
    ///
    /// # Errors
    /// [`AttachError`]; nothing is attached then.
    pub fn attach_counter(&self, ops: CountedOps, counter: Arc<CompletionCounter>) -> Result<(), AttachError> {
        lock(&self.inner).engine.attach_counter(ops, counter)
    }

    /// Returns the queue pair's counters by name.
    pub fn counters(&self) -> Vec<(&'static str, u64)> {
        let mut inner = lock(&self.inner);
        inner.counters.count_out_of_order(self.device.counters());
        inner.counters.named().collect()
    }

    /// Whether its completions go to `cq`.
    pub(super) fn uses(&self, cq: &Arc<Cq>) -> bool {
        self.inspect(|engine| {
            let config = engine.config();
            [&config.send_cq, &config.recv_cq].into_iter().flatten().any(|mine| Arc::ptr_eq(mine, cq))
        })
    }

    /// Marks the queue pair as one that has got packets and not been answered for. Returns whether it was not marked
    /// before.
    pub(super) fn mark_dirty(&self) -> bool {
        let before = self.dirty.load(Ordering::Relaxed);
        self.dirty.store(true, Ordering::Relaxed);
        !before
    }

    /// Clears the mark of [`mark_dirty`](Self::mark_dirty).
    pub(super) fn clear_dirty(&self) {
        self.dirty.store(false, Ordering::Relaxed);
    }

    /// Whether the queue pair is retired: packets to its number are not for it any more.
    pub fn is_retired(&self) -> bool {
        self.retired.load(Ordering::Relaxed)
    }
}
