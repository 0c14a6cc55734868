//! Queue pairs that wait for another turn.
//!
//! Each waits once, whatever arrives for it meanwhile: else what is left to do would be done as often as packets came, before
//! anybody looks at the sockets again.

use std::collections::HashSet;
use std::sync::Mutex;

use urxe_wire::Qpn;

use super::lock;

/// Numbers of the queue pairs that wait, first come first served, each once.
#[derive(Debug, Default)]
pub(super) struct RunQueue(Mutex<(Vec<Qpn>, HashSet<Qpn>)>);

impl RunQueue {
    /// The queue pair waits, if it does not already.
    pub(super) fn add(&self, qpn: Qpn) {
        let (order, there) = &mut *lock(&self.0);
        if there.insert(qpn) {
            order.push(qpn);
        }
    }

    /// Takes all queue pairs: it is their turn.
    pub(super) fn take(&self) -> Vec<Qpn> {
        let (order, there) = &mut *lock(&self.0);
        there.clear();
        std::mem::take(order)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiting_queue_pair_gets_one_turn() {
        let waiting = RunQueue::default();
        for number in [7, 3, 7, 7, 5, 3] {
            waiting.add(Qpn::new(number));
        }
        assert_eq!(waiting.take(), [7, 3, 5].map(Qpn::new));
        waiting.add(Qpn::new(3));
        assert_eq!(waiting.take(), [Qpn::new(3)], "and may wait again");
        assert!(waiting.take().is_empty());
    }
}
