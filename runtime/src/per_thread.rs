//! Values of a thread that are dropped when it ends, kept by keys of `pthread_key_create(3)`.
//!
//! A `thread_local!` with a destructor takes the dynamic loader's lock when a thread first uses it (glibc's `__cxa_thread_atexit_impl`).
//! Constructors and destructors of libraries run under that lock, and may call verbs. A thread that waited for it with a lock of a
//! queue pair held would wait for ever. Keys take no lock.

use std::ffi::c_void;
use std::fmt;
use std::marker::PhantomData;
use std::sync::OnceLock;

/// A value of each thread. This library stays loaded for as long as threads have one.
pub struct PerThread<T> {
    /// `None` where the process has no more keys.
    key: OnceLock<Option<libc::pthread_key_t>>,
    _values: PhantomData<fn() -> T>,
}

impl<T> fmt::Debug for PerThread<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PerThread").field("key", &self.key).finish()
    }
}

impl<T: Default + 'static> Default for PerThread<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T: Default + 'static> PerThread<T> {
    /// Values that threads do not have yet.
    #[must_use]
    pub const fn new() -> Self {
        Self { key: OnceLock::new(), _values: PhantomData }
    }

    /// Lets `act` at the calling thread's value, which is the default one at first, also in destructors that run as the thread
    /// ends. Returns `None`, without calling `act`, where the process has no more keys (`PTHREAD_KEYS_MAX`).
    pub fn with<R>(&'static self, act: impl FnOnce(&T) -> R) -> Option<R> {
        let key = (*self.key.get_or_init(new_key::<T>))?;
        // SAFETY: a key of this process.
        let mut value = unsafe { libc::pthread_getspecific(key) }.cast::<T>();
        if value.is_null() {
            value = Box::into_raw(Box::<T>::default());
            // SAFETY: as above; `drop_value` frees what is stored there.
            if unsafe { libc::pthread_setspecific(key, value.cast()) } != 0 {
                // SAFETY: made above, and stored nowhere.
                drop(unsafe { Box::from_raw(value) });
                return None;
            }
        }
        // SAFETY: of this thread, which frees it when it ends.
        Some(act(unsafe { &*value }))
    }
}

fn new_key<T>() -> Option<libc::pthread_key_t> {
    let mut key = 0;
    // SAFETY: room for a key; the destructor is for what `with` stores.
    (unsafe { libc::pthread_key_create(&raw mut key, Some(drop_value::<T>)) } == 0).then_some(key)
}

unsafe extern "C" fn drop_value<T>(value: *mut c_void) {
    // SAFETY: the C library hands out, once, what `with` has stored.
    drop(unsafe { Box::from_raw(value.cast::<T>()) });
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    static DROPPED: AtomicU32 = AtomicU32::new(0);

    #[derive(Default)]
    struct Counted(Cell<u32>);

    impl Drop for Counted {
        fn drop(&mut self) {
            DROPPED.fetch_add(self.0.get(), Ordering::Relaxed);
        }
    }

    #[test]
    fn each_thread_has_its_value_until_it_ends() {
        static VALUES: PerThread<Counted> = PerThread::new();
        let add = |number| VALUES.with(|value| value.0.replace(value.0.get() + number));
        assert_eq!(add(1), Some(0));
        std::thread::spawn(move || assert_eq!([add(20), add(300)], [Some(0), Some(20)])).join().unwrap();
        assert_eq!(add(4000), Some(1));
        assert_eq!(DROPPED.load(Ordering::Relaxed), 320);
    }
}
