//! Answering what was received, at once or a little later, and going on with what one turn did not finish.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use urxe_engine::Instant;
use urxe_wire::Qpn;

use super::rx::Token;
use super::{Device, TxContext};
use crate::clock::LazyInstant;
use crate::progress::delayed_ack::AckMode;
use crate::qp::Qp;
use crate::{lock, try_lock};

impl Device {
    /// Sends the ACKs that have waited long enough, unless somebody receives, who does the same.
    pub(crate) fn send_overdue_acks(&self) {
        if let Some(mut token) = try_lock(&self.token) {
            let acks = if self.policy.is_contended() { AckMode::Delay } else { AckMode::DelayTimed };
            self.answer(&mut token, &LazyInstant::default(), acks);
        }
    }

    /// Whether ACKs wait.
    pub(crate) fn do_acks_wait(&self) -> bool {
        lock(&self.token).waits_until.is_some()
    }

    /// Sends all ACKs that wait.
    pub(crate) fn send_acks(&self) {
        self.answer(&mut lock(&self.token), &LazyInstant::default(), AckMode::Immediate);
    }

    /// Sends the answers of queue pairs that have got packets.
    pub(super) fn answer(&self, token: &mut Token, clock: &LazyInstant, acks: AckMode) {
        let Token { work: Some(work), dirty, waits_until, .. } = token else { return };
        if dirty.is_empty() {
            return;
        }
        let acks = if self.exits.load(Ordering::Relaxed) { AckMode::Immediate } else { acks };
        self.deliver_at_end(work, |work| {
            let mut waits = |qp: &Arc<Qp>| {
                let waits = qp.answer(work, clock, acks);
                if !waits {
                    qp.clear_dirty();
                }
                waits
            };
            if let [qp] = &dirty[..] {
                // Mostly. `retain` would cost as much as the question.
                if !waits(qp) {
                    dirty.clear();
                }
            } else {
                dirty.retain(waits);
            }
        });
        *waits_until = match (*waits_until, clock.taken()) {
            _ if dirty.is_empty() => None,
            // They are measured at the next look.
            (_, None) => Some(Instant::default()),
            (Some(at), Some(now)) if at > now => Some(at),
            (_, Some(now)) => Some(now + self.policy.delayed_ack_period()),
        };
    }

    /// Goes on with what did not get all sent.
    #[cold]
    pub(super) fn go_on(&self, token: &mut Token) {
        let Some(work) = &mut token.work else { return };
        self.deliver_at_end(work, |work| {
            if self.has_unfinished.swap(false, Ordering::Relaxed) {
                self.give_turns(work, self.unfinished.take());
            }
            self.retry_blocked(work);
        });
    }

    /// Gives each of these queue pairs a turn.
    fn give_turns(&self, work: &mut TxContext, queue_pairs: Vec<Qpn>) {
        self.deliver_at_end(work, |work| {
            for qp in queue_pairs.into_iter().filter_map(|qpn| self.qp(qpn)).filter(|qp| !self.xrc_rx.resume(qp)) {
                qp.drive(work, |_, _| ());
            }
        });
    }

    /// The queue pair could not send all that it wanted to.
    pub(crate) fn wait_for_room(&self, qpn: Qpn) {
        self.wake_for(self.backpressure.add(qpn));
    }

    /// Lets those that wait for room try again.
    pub(super) fn retry_blocked(&self, work: &mut TxContext) {
        if !self.backpressure.any() {
            return;
        }
        self.give_turns(work, self.backpressure.take());
    }

    /// The queue pair has more to send.
    pub(crate) fn finish_later(&self, qpn: Qpn) {
        self.unfinished.add(qpn);
        self.has_unfinished.store(true, Ordering::Relaxed);
        self.wake();
    }

    pub(crate) fn has_unfinished(&self) -> bool {
        self.has_unfinished.load(Ordering::Relaxed)
    }
}
