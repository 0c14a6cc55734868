//! Packets that a script holds back: for a time, or until others have overtaken them.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use urxe_engine::Instant;
use urxe_net::Route;
use urxe_runtime::interceptor::HeldPacket;
use urxe_runtime::{clock, lock};

/// A packet to be overtaken by others is not held back for longer than this when there are none.
const NO_OTHERS: Duration = Duration::from_millis(10);

/// Time in nanoseconds that never comes.
const NEVER: u64 = u64::MAX;

/// A packet and its direction.
#[derive(Debug)]
pub(super) enum Delayed {
    Sent(Arc<Route>, Vec<u8>),
    Received(HeldPacket),
}

impl Delayed {
    const fn is_sent(&self) -> bool {
        matches!(self, Self::Sent(..))
    }
}

#[derive(Debug)]
struct Entry {
    due: Instant,
    /// So many others go first.
    behind: Option<u32>,
    packet: Delayed,
}

/// Packets that are held back, and when the first of them is due.
#[derive(Debug)]
pub(super) struct DelayQueue {
    entries: Mutex<Vec<Entry>>,
    /// In nanoseconds.
    due: AtomicU64,
}

impl DelayQueue {
    pub(super) fn new() -> Self {
        Self { entries: Mutex::default(), due: AtomicU64::new(NEVER) }
    }

    /// Has a packet follow in the very burst that is being received.
    pub(super) fn hold_briefly(&self, packet: Delayed) {
        self.push(Instant::from_nanos(0), None, packet);
    }

    /// Holds a packet back for a time.
    pub(super) fn hold_for(&self, time: Duration, packet: Delayed) {
        self.push(clock::now() + time, None, packet);
    }

    /// Holds a packet back until so many others of its direction have gone by.
    pub(super) fn hold_behind(&self, others: u32, packet: Delayed) {
        self.push(clock::now() + NO_OTHERS, Some(others), packet);
    }

    fn push(&self, due: Instant, behind: Option<u32>, packet: Delayed) {
        let mut entries = lock(&self.entries);
        entries.push(Entry { due, behind, packet });
        self.note_first(&entries);
    }

    fn note_first(&self, entries: &[Entry]) {
        let first = entries.iter().map(|entry| entry.due.as_nanos()).min();
        self.due.store(first.unwrap_or(NEVER), Ordering::SeqCst);
    }

    fn take(&self, is_ready: impl Fn(&Entry) -> bool) -> Vec<Delayed> {
        let mut entries = lock(&self.entries);
        let mut taken: Vec<Entry> = entries.extract_if(.., |entry| is_ready(entry)).collect();
        self.note_first(&entries);
        taken.sort_by_key(|entry| entry.due);
        taken.into_iter().map(|entry| entry.packet).collect()
    }

    /// Counts a packet that has gone by, and takes those that have been overtaken often enough.
    pub(super) fn take_overtaken(&self, sent: bool) -> Vec<Delayed> {
        for entry in lock(&self.entries).iter_mut().filter(|entry| entry.packet.is_sent() == sent) {
            if let Some(behind) = &mut entry.behind {
                *behind = behind.saturating_sub(1);
            }
        }
        self.take(|entry| entry.behind == Some(0) && entry.packet.is_sent() == sent)
    }

    /// Takes the packets of a direction that are due.
    pub(super) fn take_due(&self, now: Instant, sent: bool) -> Vec<Delayed> {
        if self.due.load(Ordering::SeqCst) > now.as_nanos() {
            return Vec::new();
        }
        self.take(|entry| entry.packet.is_sent() == sent && entry.due <= now)
    }

    /// Returns when the first packet is due.
    pub(super) fn deadline(&self) -> Option<Instant> {
        let due = self.due.load(Ordering::SeqCst);
        (due != NEVER).then(|| Instant::from_nanos(due))
    }
}
