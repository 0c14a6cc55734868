//! Receivers of frames.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use urxe_engine::flow::Headers;
use urxe_engine::flow::rss::Toeplitz;

use super::recv_queue::RecvQueue;
use crate::qp::Qp;

/// Receiver of the frames of a rule.
#[derive(Clone, Debug)]
pub enum Target {
    /// A queue.
    Queue(Arc<RecvQueue>),
    /// Several queues, between which a hash decides.
    Rss(Arc<Rss>),
    /// A UD queue pair, which gets the datagrams in the frames.
    Datagrams(Weak<Qp>),
}

/// Destination of the frames of a rule.
#[derive(Clone, Debug)]
pub struct Destination {
    /// Receiver.
    pub target: Target,
    /// `IBV_FLOW_SPEC_ACTION_COUNT`.
    pub counters: Option<Arc<FlowCounters>>,
}

/// Frames of rules, counted.
#[derive(Debug, Default)]
pub struct FlowCounters {
    packets: AtomicU64,
    bytes: AtomicU64,
}

impl FlowCounters {
    /// Returns how many frames there were.
    pub fn packets(&self) -> u64 {
        self.packets.load(Ordering::Relaxed)
    }

    /// Returns how many bytes they had.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    pub(super) fn count(&self, frame: &[u8]) {
        self.packets.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(frame.len() as u64, Ordering::Relaxed);
    }
}

/// Queues between which a hash decides.
#[derive(Debug)]
pub struct Rss {
    hash: Toeplitz,
    first: Arc<RecvQueue>,
    /// A power of two.
    queues: Vec<Arc<RecvQueue>>,
}

impl Rss {
    /// Makes a receiver of a table of queues. `None` unless their number is a power of two.
    #[must_use]
    pub fn new(hash: Toeplitz, queues: Vec<Arc<RecvQueue>>) -> Option<Self> {
        let first = Arc::clone(queues.first()?);
        queues.len().is_power_of_two().then_some(Self { hash, first, queues })
    }

    /// Returns the queue that a frame is for.
    pub(super) fn queue(&self, headers: &Headers<'_>) -> &Arc<RecvQueue> {
        let last = self.queues.len() - 1;
        let at = if last == 0 { 0 } else { self.hash.hash(headers) as usize & last };
        self.queues.get(at).unwrap_or(&self.first)
    }
}
