//! What the whole process knows of its devices, such that a child of fork(2) finds it whole.
//!
//! Another thread may be at a table just when one forks. Its lock would be held in the child for ever, so forks wait
//! until nobody is at any table, and nobody goes to one meanwhile.

use std::sync::{Mutex, PoisonError, RwLock, RwLockWriteGuard};

use super::lock;

/// Read by those who are at a table, written over a fork.
static IN_USE: RwLock<()> = RwLock::new(());

/// Something of the whole process.
pub(crate) struct Table<T>(Mutex<T>);

impl<T> Table<T> {
    pub(crate) const fn new(content: T) -> Self {
        Self(Mutex::new(content))
    }

    /// Forks wait for this, so it is short, and takes no lock of ours, not even by dropping a device: what is taken out
    /// is returned, for the caller to drop.
    pub(crate) fn with<R>(&self, act: impl FnOnce(&mut T) -> R) -> R {
        whole(|| act(&mut lock(&self.0)))
    }
}

/// No fork comes in between. To be short, as for a [`Table`].
pub(crate) fn whole<R>(act: impl FnOnce() -> R) -> R {
    let _no_fork = IN_USE.read().unwrap_or_else(PoisonError::into_inner);
    act()
}

/// Keeps everybody from all tables until the result is dropped: for the one who forks.
pub(super) fn keep_all() -> RwLockWriteGuard<'static, ()> {
    IN_USE.write().unwrap_or_else(PoisonError::into_inner)
}
