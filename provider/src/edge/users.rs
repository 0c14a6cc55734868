//! Objects that other objects use cannot be destroyed: EBUSY.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Number of objects that use this one.
#[derive(Debug, Default)]
pub(super) struct Users(Arc<AtomicUsize>);

impl Users {
    /// Whether another object uses this one.
    pub(super) fn any(&self) -> bool {
        self.0.load(Ordering::Acquire) > 0
    }

    /// The count itself, for those who look from outside.
    pub(super) fn count(&self) -> Arc<AtomicUsize> {
        Arc::clone(&self.0)
    }
}

/// Counts one object's use of others.
#[derive(Debug)]
pub(super) struct Use(Vec<*const Users>);

impl Use {
    /// # Safety
    /// The objects used outlive the value that is returned (their `destroy` asks [`Users::any`]).
    pub(super) unsafe fn of(used: &[&Users]) -> Self {
        for users in used {
            users.0.fetch_add(1, Ordering::AcqRel);
        }
        Self(used.iter().map(|users| std::ptr::from_ref(*users)).collect())
    }
}

impl Drop for Use {
    fn drop(&mut self) {
        for users in &self.0 {
            // SAFETY: the promise given to `of`.
            unsafe { (**users).0.fetch_sub(1, Ordering::AcqRel) };
        }
    }
}
