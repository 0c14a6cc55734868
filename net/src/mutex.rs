//! Mutexes, and how often threads find them taken.

use core::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

/// Locks that a thread found taken, of all devices of the process.
static CONTENDED: AtomicU64 = AtomicU64::new(0);

/// Returns how often a thread has found a lock taken since the program began.
pub fn contended_locks() -> u64 {
    CONTENDED.load(Ordering::Relaxed)
}

/// Locks, whatever a panicking thread left behind: a panic has made the device fatal already.
#[inline]
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    match mutex.try_lock() {
        Ok(guard) => guard,
        Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
        Err(TryLockError::WouldBlock) => wait_for(mutex),
    }
}

/// Locks what another thread has locked, and counts that.
#[cold]
#[inline(never)]
fn wait_for<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    CONTENDED.fetch_add(1, Ordering::Relaxed);
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Locks as [`lock`] does, unless another thread has the lock. Counts if so.
#[inline]
pub fn try_lock<T>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    match mutex.try_lock() {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => found_taken(),
    }
}

/// Counts a lock that a thread has found taken and does not wait for.
#[cold]
pub fn found_taken<T>() -> Option<T> {
    CONTENDED.fetch_add(1, Ordering::Relaxed);
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locks_that_are_taken_are_counted() {
        let mutex = Mutex::new(1);
        let before = contended_locks();
        let taken = lock(&mutex);
        assert!(try_lock(&mutex).is_none() && contended_locks() > before);
        let before = contended_locks();
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| *lock(&mutex));
            while contended_locks() == before {
                std::thread::yield_now();
            }
            drop(taken);
            assert_eq!(waits.join().unwrap(), 1);
        });
        assert_eq!(try_lock(&mutex).map(|value| *value), Some(1));
    }
}
