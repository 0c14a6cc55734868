//! Devices behind a completion queue: where the queue pairs are that complete there.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use crate::verbs::context::Context;
use crate::verbs::shards::ThreadNumber;
use urxe_runtime::device::Device;

/// Shard that the RC and UC queue pairs of a completion queue belong to; `None` for the device itself.
type Shard = Option<Arc<Device>>;

/// Devices whose progress a completion queue's polls make: the device itself, one of its shards, or both.
#[derive(Default)]
pub(super) struct CqHome {
    /// Unknown before the first queue pair.
    shard: OnceLock<Shard>,
    /// Queue pairs of the device itself complete here, too.
    is_mixed: AtomicBool,
}

fn is_same(a: &Shard, b: &Shard) -> bool {
    match (a, b) {
        (Some(a), Some(b)) => Arc::ptr_eq(a, b),
        (a, b) => a.is_none() && b.is_none(),
    }
}

impl CqHome {
    /// Chooses the device of a queue pair that completes at these queues. One that may be sharded has a `user`, the thread that will use it
    /// as far as is known, and goes where the queue pairs of its queues are, if that is one place.
    pub(super) fn choose(context: &Context, homes: &[&Self], user: Option<ThreadNumber>) -> Arc<Device> {
        let known = homes.iter().find_map(|home| home.shard.get().cloned());
        let wanted = known.unwrap_or_else(|| user.and_then(|user| context.next_shard(user)));
        // Each gets its place, though one of them has another.
        let mut is_one_place = true;
        for home in homes {
            is_one_place &= is_same(home.shard.get_or_init(|| wanted.clone()), &wanted);
        }
        match wanted {
            Some(shard) if user.is_some() && is_one_place => shard,
            _ => {
                Self::mix(homes);
                Arc::clone(context.device())
            }
        }
    }

    /// Has polls of these queues make progress of the device itself, for what is no queue pair of RC or UC.
    pub(super) fn choose_device(context: &Context, homes: &[&Self]) {
        Self::choose(context, homes, None);
    }

    /// Has polls of these queues make progress of the device itself, too.
    pub(super) fn mix(homes: &[&Self]) {
        for home in homes {
            if home.shard.get().is_some_and(Option::is_some) {
                home.is_mixed.store(true, Ordering::Relaxed);
            }
        }
    }

    /// Returns the device where most of the queue pairs are.
    pub(super) fn device<'a>(&'a self, context: &'a Context) -> &'a Arc<Device> {
        match self.shard.get() {
            Some(Some(shard)) => shard,
            _ => context.device(),
        }
    }

    /// Makes progress in the thread of an application that has found the queue empty.
    #[inline]
    pub(super) fn polled(&self, context: &Context, going_to_sleep: bool) {
        self.device(context).polled(going_to_sleep);
        if self.is_mixed.load(Ordering::Relaxed) {
            context.device().polled(going_to_sleep);
        }
    }

    /// Notes that a poll has handed out completions.
    #[inline]
    pub(super) fn completed(&self, context: &Context) {
        self.device(context).completed();
        if self.is_mixed.load(Ordering::Relaxed) {
            context.device().completed();
        }
    }

    /// Notes that the application will wait for an event of the queue.
    pub(super) fn stopped_polling(&self, context: &Context) {
        self.device(context).stopped_polling();
        if self.is_mixed.load(Ordering::Relaxed) {
            context.device().stopped_polling();
        }
    }
}
