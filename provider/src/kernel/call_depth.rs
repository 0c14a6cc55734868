//! Calls that are under way in a thread. A signal handler may interrupt one and end the program: the locks of that call stay taken.

use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::atomic::{Ordering, compiler_fence};

thread_local! {
    /// Calls that the thread is inside of. Its signal handlers change it too, each back to what it was.
    static DEPTH: Cell<u32> = const { Cell::new(0) };
}

/// A call that is under way in the calling thread, as long as this lives.
pub(super) struct UnderWay {
    /// Makes it `!Send`: the depth is the thread's.
    _here: PhantomData<*const ()>,
}

impl UnderWay {
    /// Begins a call.
    pub(super) fn begin() -> Self {
        DEPTH.set(DEPTH.get() + 1);
        // Signal handlers of this thread see the depth before any lock is taken.
        compiler_fence(Ordering::SeqCst);
        Self { _here: PhantomData }
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        compiler_fence(Ordering::SeqCst);
        DEPTH.set(DEPTH.get() - 1);
    }
}

/// Whether a call that is answered in the place of a kernel is under way in the calling thread, which a signal handler has interrupted.
pub(crate) fn is_interrupted() -> bool {
    DEPTH.get() > 0
}
