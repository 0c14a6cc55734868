//! A lock that nobody waits for: whoever finds it taken does something else.
//!
//! A `Mutex` must look for waiters when it is unlocked, by an atomic exchange. Here unlocking is a store.

use std::cell::UnsafeCell;
use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, Ordering};

/// A value that one thread at a time uses.
#[derive(Default)]
pub(crate) struct TryLock<T> {
    is_taken: AtomicBool,
    value: UnsafeCell<T>,
}

// SAFETY: the value is used by one thread at a time, whoever has taken the lock.
unsafe impl<T: Send> Sync for TryLock<T> {}

impl<T> TryLock<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self { is_taken: AtomicBool::new(false), value: UnsafeCell::new(value) }
    }

    /// Takes the lock, unless another thread has it.
    #[inline]
    pub(crate) fn try_lock(&self) -> Option<TryLockGuard<'_, T>> {
        let is_free = !self.is_taken.swap(true, Ordering::Acquire);
        is_free.then(|| TryLockGuard { lock: self, _value: PhantomData })
    }
}

impl<T> fmt::Debug for TryLock<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TryLock").field("is_taken", &self.is_taken).finish_non_exhaustive()
    }
}

/// The lock, taken until this is dropped.
#[derive(Debug)]
pub(crate) struct TryLockGuard<'a, T> {
    lock: &'a TryLock<T>,
    _value: PhantomData<&'a mut T>,
}

impl<T> Deref for TryLockGuard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: the lock is taken, by this.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T> DerefMut for TryLockGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as above.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T> Drop for TryLockGuard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        self.lock.is_taken.store(false, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_thread_at_a_time_has_the_value() {
        let value = TryLock::new(0);
        let taken = value.try_lock();
        assert!(taken.is_some() && value.try_lock().is_none());
        drop(taken);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..1000 {
                        let mut value = loop {
                            match value.try_lock() {
                                Some(value) => break value,
                                None => std::thread::yield_now(),
                            }
                        };
                        *value += 1;
                    }
                });
            }
        });
        assert_eq!(value.try_lock().map(|value| *value), Some(4000));
    }
}
