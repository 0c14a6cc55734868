//! Keeping a thread of the application from being cancelled (pthread_cancel(3)) while it does something for us: it would
//! leave locks taken, and where it is unwound through Rust into C the process ends.

use core::ffi::c_int;
use core::marker::PhantomData;

/// `PTHREAD_CANCEL_DISABLE` of pthread.h.
const DISABLE: c_int = 1;

unsafe extern "C" {
    fn pthread_setcancelstate(state: c_int, old: *mut c_int) -> c_int;
}

/// Whether a thread could be cancelled before [`disable`].
#[derive(Clone, Copy, Debug)]
pub struct State(c_int);

/// Disables cancellation of the calling thread, until [`restore`].
pub fn disable() -> State {
    set(DISABLE)
}

/// Restores the state before [`disable`].
pub fn restore(before: State) {
    set(before.0);
}

fn set(state: c_int) -> State {
    let mut old = 0;
    // SAFETY: room for the old state. It cannot fail with a state of pthread.h, which `DISABLE` and old ones are.
    unsafe { pthread_setcancelstate(state, &raw mut old) };
    State(old)
}

/// Guard: while it lives, the calling thread cannot be cancelled.
///
/// A guard takes two locked instructions (glibc 2.36: 30 ns), too many for each packet. Packets go by calls that are no
/// cancellation points (`sys.rs`).
#[derive(Debug)]
#[must_use]
pub struct CancelGuard {
    before: State,
    /// Makes the guard `!Send`: the state is the thread's.
    _here: PhantomData<*const ()>,
}

impl CancelGuard {
    /// Disables cancellation of the calling thread.
    pub fn new() -> Self {
        Self { before: disable(), _here: PhantomData }
    }
}

impl Default for CancelGuard {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for CancelGuard {
    fn drop(&mut self) {
        restore(self.before);
    }
}
