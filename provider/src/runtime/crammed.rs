//! Queue pairs whose packets found no room on the way to another process of this host.
//!
//! A process that sends through shared memory fills it faster than a receiver without a processor empties it. What does
//! not fit is not sent yet, and so is not lost. The queue pair tries again with every look at the sockets, which is when
//! its peer's answers come; and some time later if nobody looks.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use urxe_engine::Instant;
use urxe_wire::Qpn;

use super::port::{NetPort, Work};
use super::{clock, lock};

/// Between two attempts if nobody looks.
const LATER: Duration = Duration::from_micros(100);

/// Them.
#[derive(Debug)]
pub(super) struct Crammed {
    queue_pairs: Mutex<Vec<Qpn>>,
    /// When to try again at the latest, in nanoseconds; `u64::MAX` if there are none.
    look_at: AtomicU64,
}

impl Default for Crammed {
    fn default() -> Self {
        Self { queue_pairs: Mutex::default(), look_at: AtomicU64::new(u64::MAX) }
    }
}

impl Crammed {
    /// When to try again at the latest.
    pub(super) fn next_look(&self) -> Option<Instant> {
        let at = self.look_at.load(Ordering::SeqCst);
        (at != u64::MAX).then(|| Instant::from_nanos(at))
    }
}

impl NetPort {
    /// The queue pair could not send all that it wanted to.
    pub(super) fn wait_for_room(&self, qpn: Qpn) {
        let at = clock::now() + LATER;
        {
            let mut waiting = lock(&self.crammed.queue_pairs);
            if !waiting.contains(&qpn) {
                waiting.push(qpn);
            }
            self.crammed.look_at.store(at.as_nanos(), Ordering::SeqCst);
        }
        if self.sleeps_until.load(Ordering::SeqCst) > at.as_nanos() {
            self.wake();
        }
    }

    /// Lets those that wait try again.
    pub(super) fn squeeze_in(&self, work: &mut Work) {
        if self.crammed.look_at.load(Ordering::Relaxed) == u64::MAX {
            return;
        }
        let waiting = {
            let mut waiting = lock(&self.crammed.queue_pairs);
            self.crammed.look_at.store(u64::MAX, Ordering::SeqCst);
            std::mem::take(&mut *waiting)
        };
        for qp in waiting.into_iter().filter_map(|qpn| self.qp(qpn)) {
            qp.drive(work, |_, _| ());
        }
    }
}
