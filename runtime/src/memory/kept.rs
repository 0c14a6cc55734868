//! Regions that a thread's context keeps cached from one turn to the next.
//!
//! To look a region up costs a lock and a reference count, as much as a short copy. A context that is lent by a lock keeps a copy of
//! the last region instead, with the *generation* of the table, which changes when a region is taken out. Who has the context locked
//! uses the copy if the generation is still the table's.
//!
//! Deregistration takes the region out of the table, changes the generation, and then looks for contexts that keep the region's key.
//! It waits until it has had the lock of each of these: whoever uses the copy has ended its turn then, and whoever locks the context
//! afterwards sees the new generation. A context stores the key that it begins to keep before it looks into the table, whose lock
//! orders the two: either the region is not found, or the key is seen. `loom/` has the model.
//!
//! Windows are not kept: a queue pair's engine closes them, for which others may wait with their contexts locked.

#[cfg(not(loom))]
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
#[cfg(loom)]
use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Generation of a table of regions.
#[derive(Debug)]
pub(crate) struct Generation(AtomicU64);

/// Key of the region that one context keeps; 0 is none's.
#[derive(Debug)]
pub(crate) struct Kept(AtomicU32);

impl Generation {
    pub(crate) fn first() -> Self {
        Self(AtomicU64::new(0))
    }

    /// A region has been taken out of the table, which is locked.
    pub(crate) fn advance(&self) {
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    }

    /// The generation, to who has locked the table, or a context that keeps a region.
    #[inline]
    pub(crate) fn now(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl Kept {
    pub(crate) fn none() -> Self {
        Self(AtomicU32::new(0))
    }

    /// The context, which is locked, keeps the region with this key from now on, which is to be looked for next; or none, with 0.
    pub(crate) fn set(&self, key: u32) {
        self.0.store(key, Ordering::Release);
    }

    /// Whether the context keeps the region that had this key, for who has taken that out of the table.
    pub(crate) fn is(&self, key: u32) -> bool {
        self.0.load(Ordering::Acquire) == key
    }
}
