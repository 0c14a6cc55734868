//! Posting requests that are carried out at the peer's memory at once, and completing those of the peer.
//!
//! A [turn](super::Qp::turn_of) costs more than a store: it looks for packets, answers, timers and much else. Where there is none of
//! this before and afterwards, requests are carried out while they are posted, and the call ends.

use std::sync::MutexGuard;

use urxe_engine::{Io, QueuePair};

use super::turn::Act;
use super::{Inner, Qp};
use crate::clock::LazyInstant;
use crate::direct::CompletesDirect;
use crate::host::{DeviceHost, TxContext};
use crate::{lock, try_lock};

impl Inner {
    /// Whether a call that posts could do so, since the peer's memory is within reach and nothing waits here.
    #[inline]
    fn goes_straight(&mut self) -> bool {
        self.sides.as_ref().is_some_and(|sides| sides.has_peer())
            && self.engine.goes_straight()
            && self.delayed_ack.is_idle()
            && self.unacknowledged.is_empty()
    }
}

impl Qp {
    /// Posts receive requests, by calls of the engine in `post`, and sends what comes of it, which is mostly nothing.
    #[inline]
    pub fn post_recv<T>(
        &self,
        work: &mut TxContext,
        post: impl FnOnce(&mut QueuePair<DeviceHost>, &mut Io<'_, DeviceHost>) -> T,
    ) -> T {
        let mut inner = lock(&self.inner);
        let clock = LazyInstant::default();
        if !self.inbox.is_empty() {
            return self.turn_of(inner, work, Act::Aside, &clock, post);
        }
        let Inner { engine, sides, counters, unacknowledged, delayed_ack, .. } = &mut *inner;
        work.notifications.queue_behind(unacknowledged);
        let mut io =
            Io { clock: &clock, memory: &work.memory, network: &mut work.sender, consumer: &mut work.notifications };
        let result = post(engine, &mut io);
        work.notifications.give_unacknowledged(unacknowledged);
        let has_nothing = !engine.has_output() || (delayed_ack.waits() && engine.owes_only_ack());
        if !has_nothing || engine.kept_until().is_some() || work.notifications.is_broken() {
            self.turn_of(inner, work, Act::Aside, &clock, |_, _| ());
            return result;
        }
        if let (Some(sides), Some(reach)) = (sides, self.device.direct()) {
            sides.update(reach, engine);
        }
        work.notifications.count(counters);
        drop(inner);
        self.device.deliver_notifications(work);
        result
    }

    /// Posts send requests, by calls of the engine in `post`, and sends what comes of it.
    #[inline]
    pub fn post_send<T>(
        &self,
        work: &mut TxContext,
        post: impl FnOnce(&mut QueuePair<DeviceHost>, &mut Io<'_, DeviceHost>) -> T,
    ) -> T {
        let mut inner = lock(&self.inner);
        let clock = LazyInstant::default();
        if inner.goes_straight() && self.inbox.is_empty() {
            return self.post_straight(inner, work, &clock, post);
        }
        // Called at one place, so that the turn becomes a part of the caller.
        self.turn_of(inner, work, Act::Send, &clock, post)
    }

    /// Posts send requests that are carried out at the peer's memory meanwhile.
    // Apart: the turn of a queue pair without such a peer needs none of this.
    #[inline(never)]
    fn post_straight<T>(
        &self,
        mut inner: MutexGuard<'_, Inner>,
        work: &mut TxContext,
        clock: &LazyInstant,
        post: impl FnOnce(&mut QueuePair<DeviceHost>, &mut Io<'_, DeviceHost>) -> T,
    ) -> T {
        let Inner { engine, sides, counters, .. } = &mut *inner;
        work.memory.set_peer(sides.as_mut().and_then(|sides| sides.lend_peer()));
        let turn = work.memory.turn();
        let mut io = Io { clock, memory: &work.memory, network: &mut work.sender, consumer: &mut work.notifications };
        let result = post(engine, &mut io);
        engine.end_posting();
        drop(turn);
        let peer = work.memory.take_peer();
        if let Some(sides) = sides {
            sides.give_peer(peer);
        }
        work.notifications.count(counters);
        if engine.has_output() || work.notifications.is_broken() {
            self.turn_of(inner, work, Act::Send, clock, |_, _| ());
        } else {
            drop(inner);
            self.device.deliver_notifications(work);
        }
        result
    }
}

impl CompletesDirect for Qp {
    fn complete_direct(&self) {
        self.device.found_directly();
        self.device.with_work(|work| {
            let Some(mut inner) = try_lock(&self.inner) else { return };
            let clock = LazyInstant::default();
            let Inner { engine, sides, counters, unacknowledged, .. } = &mut *inner;
            let (Some(sides), Some(reach)) = (sides, self.device.direct()) else { return };
            work.notifications.queue_behind(unacknowledged);
            let mut io = Io {
                clock: &clock,
                memory: &work.memory,
                network: &mut work.sender,
                consumer: &mut work.notifications,
            };
            sides.complete(engine, &mut io);
            work.notifications.give_unacknowledged(unacknowledged);
            if work.notifications.is_broken() {
                self.turn_of(inner, work, Act::Other, &clock, |_, _| ());
                return;
            }
            sides.update(reach, engine);
            work.notifications.count(counters);
            drop(inner);
            self.device.deliver_notifications(work);
        });
    }
}
