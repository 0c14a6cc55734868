//! Queue pairs whose packets found no room on the way to another process of this host.
//!
//! A process that sends through shared memory fills it faster than a receiver without a processor empties it. What does
//! not fit is not sent yet, and so is not lost. The queue pair tries again with every look at the sockets, which is when
//! its peer's answers come; and some time later if nobody looks.

use urxe_engine::Instant;
use urxe_wire::Qpn;

use super::clock;
use super::progress::sleep_deadline::Deadline;
use super::progress::tuning::TUNING;
use super::run_queue::RunQueue;

/// Queue pairs blocked by a full ring, and when to retry them.
#[derive(Debug)]
pub(super) struct Backpressure {
    queue_pairs: RunQueue,
    /// When to try again at the latest.
    look_at: Deadline,
}

impl Default for Backpressure {
    fn default() -> Self {
        Self { queue_pairs: RunQueue::default(), look_at: Deadline::never() }
    }
}

impl Backpressure {
    /// Whether queue pairs are blocked.
    pub(super) fn any(&self) -> bool {
        self.look_at.is_set()
    }

    /// Latest time to try again.
    pub(super) fn next_look(&self) -> Option<Instant> {
        self.look_at.get()
    }

    /// Whether the retry time has come.
    pub(super) fn is_over(&self, now: Instant) -> bool {
        self.look_at.is_over(now)
    }

    /// A queue pair could not send all that it wanted to. Returns when to look again.
    pub(super) fn add(&self, qpn: Qpn) -> Instant {
        let at = clock::now() + TUNING.full_ring_retry;
        self.queue_pairs.add(qpn);
        self.look_at.set(Some(at));
        at
    }

    /// Takes those that wait.
    pub(super) fn take(&self) -> Vec<Qpn> {
        // Before they are taken: who comes in between is taken as well, or sets it again.
        self.look_at.set(None);
        self.queue_pairs.take()
    }
}
