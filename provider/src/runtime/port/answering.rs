//! Answering what was received, at once or a little later, and going on with what one turn did not finish.

use std::sync::atomic::Ordering;

use urxe_engine::Instant;
use urxe_wire::Qpn;

use super::NetPort;
use super::receiving::{Acks, Token};
use crate::runtime::{clock, habit, lock};

impl NetPort {
    /// Sends the ACKs that have waited long enough, unless somebody receives, who does the same.
    pub(in crate::runtime) fn send_overdue_acks(&self) {
        if let Ok(mut token) = self.token.try_lock() {
            self.answer(&mut token, clock::now(), Acks::MayWait);
        }
    }

    /// Sends all ACKs that wait.
    pub(in crate::runtime) fn send_acks(&self) {
        self.answer(&mut lock(&self.token), clock::now(), Acks::Leave);
    }

    /// Sends the answers of queue pairs that have got packets.
    pub(super) fn answer(&self, token: &mut Token, now: Instant, acks: Acks) {
        let Token { work: Some(work), touched, waits_until, .. } = token else { return };
        if touched.is_empty() {
            return;
        }
        let may_wait = acks == Acks::MayWait && !self.exits.load(Ordering::Relaxed);
        touched.retain(|qp| {
            let waits = may_wait && qp.lets_ack_wait(now);
            if !waits {
                qp.untouch();
                qp.drive(work, |_, _| ());
            }
            waits
        });
        *waits_until = match *waits_until {
            _ if touched.is_empty() => None,
            Some(at) if at > now => Some(at),
            _ => Some(now + habit::patience()),
        };
    }

    /// The queue pair has more to send.
    pub(in crate::runtime) fn finish_later(&self, qpn: Qpn) {
        lock(&self.unfinished).push(qpn);
        self.has_unfinished.store(true, Ordering::Relaxed);
        self.wake();
    }

    pub(in crate::runtime) fn has_unfinished(&self) -> bool {
        self.has_unfinished.load(Ordering::Relaxed)
    }
}
