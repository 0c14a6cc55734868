//! Process-wide tables that a child of fork(2) never finds locked or half changed.
//!
//! Another thread may be at a table just when one forks. Its lock would be held in the child for ever, so forks wait
//! until nobody is at any table, and nobody goes to one meanwhile but the thread that forks: what the program has to do at
//! a fork (`pthread_atfork(3)`) it may do after we have begun, or before we have ended.

use std::cell::Cell;
use std::sync::{Mutex, PoisonError, RwLock, RwLockWriteGuard};

use super::lock;

/// Read by those who are at a table, written over a fork.
static IN_USE: RwLock<()> = RwLock::new(());

/// Process-wide value under a mutex that no fork interrupts.
pub struct ForkSafeMutex<T>(Mutex<T>);

impl<T> ForkSafeMutex<T> {
    /// Makes a table with this content.
    pub const fn new(content: T) -> Self {
        Self(Mutex::new(content))
    }

    /// Runs `act` on the value; no fork begins meanwhile. Forks wait for `act`, so it is short and takes no lock of this library, not
    /// even by dropping a device: what it takes out it returns, for the caller to drop.
    pub fn with<R>(&self, act: impl FnOnce(&mut T) -> R) -> R {
        without_fork(|| act(&mut lock(&self.0)))
    }
}

thread_local! {
    /// Whether the calling thread is forking and holds [`Kept`].
    static FORKS: Cell<bool> = const { Cell::new(false) };
}

/// Runs `act`, which is as short as for a [`ForkSafeMutex`]; no fork begins meanwhile.
pub fn without_fork<R>(act: impl FnOnce() -> R) -> R {
    let _no_fork = (!FORKS.get()).then(|| IN_USE.read().unwrap_or_else(PoisonError::into_inner));
    act()
}

/// All tables are kept from others than this thread as long as this lives.
pub(super) struct Kept {
    _in_use: RwLockWriteGuard<'static, ()>,
}

impl Drop for Kept {
    fn drop(&mut self) {
        FORKS.set(false);
    }
}

/// Keeps all others from all tables: for the one who forks.
pub(super) fn keep_all() -> Kept {
    let kept = Kept { _in_use: IN_USE.write().unwrap_or_else(PoisonError::into_inner) };
    FORKS.set(true);
    kept
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::thread;
    use std::time::Duration;

    use super::*;

    #[test]
    fn forking_thread_alone_enters_a_table() {
        static TABLE: ForkSafeMutex<u32> = ForkSafeMutex::new(0);
        let (told, tells) = mpsc::channel();
        let (forks, forked) = mpsc::channel::<()>();
        // A test that really forks may hold up this one.
        const PATIENCE: Duration = Duration::from_secs(120);
        let forking = told.clone();
        let thread = thread::spawn(move || {
            let kept = keep_all();
            forking.send(TABLE.with(|count| *count)).unwrap();
            forked.recv().unwrap();
            drop(kept);
        });
        assert_eq!(tells.recv_timeout(PATIENCE), Ok(0), "who forks waits for itself");
        let another = thread::spawn(move || told.send(TABLE.with(|count| *count + 1)).unwrap());
        assert!(tells.recv_timeout(Duration::from_millis(50)).is_err());
        forks.send(()).unwrap();
        assert_eq!(tells.recv_timeout(PATIENCE), Ok(1));
        thread.join().unwrap();
        another.join().unwrap();
    }
}
