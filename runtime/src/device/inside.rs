//! Turns of queue pairs that got packets of others of this process.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use urxe_engine::QueuePair;

use super::{Device, TxContext};
use crate::qp::Qp;

/// Turns that a thread gives before it leaves the rest to whoever receives: a call of the application ends, however long the
/// message.
const TURNS: usize = 64;

impl Device {
    /// Gives queue pairs their turns, and those that they answer. No lock but the receive token is held.
    pub(crate) fn deliver_inside(&self, work: &mut TxContext) {
        if work.inside.is_delivering {
            // Somebody further up does.
            return;
        }
        work.inside.is_delivering = true;
        let mut left = TURNS;
        while let Some(qp) = work.inside.due.take() {
            if left == 0 {
                self.finish_later(qp.qpn());
                continue;
            }
            left -= 1;
            qp.turn(work);
        }
        work.inside.is_delivering = false;
    }

    /// Lets `act` give many queue pairs a turn, and then once those that got packets of them: not as many for each.
    pub(super) fn deliver_at_end<T>(&self, work: &mut TxContext, act: impl FnOnce(&mut TxContext) -> T) -> T {
        let is_nested = std::mem::replace(&mut work.inside.is_delivering, true);
        let result = act(work);
        work.inside.is_delivering = is_nested;
        if !work.inside.due.is_empty() {
            self.deliver_inside(work);
        }
        result
    }

    /// Gives a queue pair, and the one of this process that it sends to, turns until nothing waits in their inboxes. False if there
    /// was too much.
    pub(super) fn catch_up_inside(&self, qp: &Arc<Qp>) -> bool {
        let peer = self.qp(qp.inspect(QueuePair::dest_qpn));
        let both = || peer.iter().chain([qp]);
        (0..TURNS).any(|_| {
            for qp in both().filter(|qp| qp.has_inside()) {
                self.with_work(|work| qp.drive(work, |_, _| ()));
            }
            !both().any(|qp| qp.has_inside())
        })
    }

    /// Counts packets for a queue pair that does not exist.
    #[cold]
    pub(crate) fn count_unknown(&self, packets: u16) {
        self.counters.unknown_qp.fetch_add(packets.into(), Ordering::Relaxed);
    }
}
