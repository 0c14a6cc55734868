//! A lock that is taken in one call of the application and left in another.

use std::mem;
use std::sync::{Condvar, Mutex};

use urxe_runtime::lock;

/// One thread is inside at a time.
#[derive(Debug, Default)]
pub(super) struct PollSessionLock {
    occupied: Mutex<bool>,
    left: Condvar,
}

impl PollSessionLock {
    /// Waits until nobody is inside, and enters.
    pub(super) fn enter(&self) {
        let mut occupied = lock(&self.occupied);
        while *occupied {
            occupied = self.left.wait(occupied).unwrap_or_else(std::sync::PoisonError::into_inner);
        }
        *occupied = true;
    }

    /// Enters if nobody is inside, without waiting.
    pub(super) fn try_enter(&self) -> bool {
        self.occupied.try_lock().is_ok_and(|mut occupied| !mem::replace(&mut *occupied, true))
    }

    /// Lets the next one in.
    pub(super) fn leave(&self) {
        *lock(&self.occupied) = false;
        self.left.notify_one();
    }
}
