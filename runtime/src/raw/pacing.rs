//! The timer of frames that wait for their time, of raw packet queue pairs with a rate limit.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};

use urxe_engine::Instant;

use super::qp::RawQp;
use crate::device::{Device, TxContext};
use crate::lock;

/// Queue pairs of a device whose frames wait for their time, in the order of these times.
#[derive(Debug, Default)]
pub(super) struct Paced(VecDeque<(Instant, Weak<RawQp>)>);

impl Paced {
    /// Has a queue pair wait until `at`. Returns the earliest time of all.
    fn add(&mut self, qp: &Arc<RawQp>, at: Instant) -> Option<Instant> {
        self.0.retain(|(_, other)| !std::ptr::eq(other.as_ptr(), Arc::as_ptr(qp)) && other.strong_count() > 0);
        let place = self.0.partition_point(|(other, _)| *other <= at);
        self.0.insert(place, (at, Arc::downgrade(qp)));
        self.next()
    }

    fn next(&self) -> Option<Instant> {
        self.0.front().map(|(at, _)| *at)
    }

    fn expired(&mut self, now: Instant) -> Vec<Arc<RawQp>> {
        let due = self.0.partition_point(|(at, _)| *at <= now);
        self.0.drain(..due).filter_map(|(_, qp)| qp.upgrade()).collect()
    }
}

impl Device {
    /// Has the frames of a queue pair leave at a time.
    pub(super) fn pace_raw(&self, qp: &Arc<RawQp>, at: Instant) {
        let mut paced = lock(&self.raw().paced);
        let next = paced.add(qp, at);
        // Within the lock: another queue pair's time must not be put in the place of an earlier one.
        self.set_raw_timer(next);
    }

    /// Sends frames whose time has come.
    pub(crate) fn send_paced(&self, work: &mut TxContext, now: Instant) {
        let due = {
            let mut paced = lock(&self.raw().paced);
            let due = paced.expired(now);
            self.set_raw_timer(paced.next());
            due
        };
        for qp in due {
            qp.go_on(work);
        }
    }
}
