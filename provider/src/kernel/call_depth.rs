//! Calls of this library that are under way in a thread: verbs, and calls that are answered in the place of a kernel.
//!
//! A signal handler may interrupt one, and then finds its locks taken. If the handler ends the program they stay so. Verbs that it calls
//! wait for none of them: `edge` puts them aside, and has them done at the end of the outermost call, whichever kind that is.

use std::marker::PhantomData;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering, compiler_fence};

/// State of a thread. Its signal handlers change it too, the counts each back to what they were.
struct Thread {
    /// Calls that the thread is inside of.
    depth: AtomicU32,
    /// Calls among them that are answered in the place of a kernel.
    kernel_calls: AtomicU32,
    /// Calls that are aside: [`NEW`], [`BLOCKED`].
    behind: AtomicU32,
}

/// Calls are aside that nobody has tried yet.
const NEW: u32 = 1;
/// Calls are aside that found no room.
const BLOCKED: u32 = 2;

thread_local! {
    static THREAD: Thread = const {
        Thread { depth: AtomicU32::new(0), kernel_calls: AtomicU32::new(0), behind: AtomicU32::new(0) }
    };
}

static CATCH_UP: OnceLock<fn() -> bool> = OnceLock::new();

/// Sets the function that does what is aside in the calling thread, and returns whether some of it stays there until the end of another
/// call. Only the first call of a process counts.
pub(crate) fn set_catch_up(catch_up: fn() -> bool) {
    let _ = CATCH_UP.set(catch_up);
}

/// Notes that a call is aside in the calling thread.
pub(crate) fn set_behind() {
    THREAD.with(|thread| thread.behind.fetch_or(NEW, Ordering::Relaxed));
}

/// Runs a verb, and tells it whether a signal handler called it, inside another call. Calls that signal handlers have put aside meanwhile
/// are done before it returns.
#[inline]
pub(crate) fn inside<T>(verb: impl FnOnce(bool) -> T) -> T {
    // Not within `with`, which would not be inlined: a poll in vain is as short as that call.
    let thread = THREAD.with(ptr::from_ref);
    // SAFETY: of this thread, which lives as long as it does.
    let thread = unsafe { &*thread };
    let depth = thread.enter();
    let result = verb(depth > 0);
    thread.leave(depth);
    result
}

/// A call that is answered in the place of a kernel, under way in the calling thread as long as this lives. Calls that signal handlers have
/// put aside meanwhile are done when it is dropped.
pub(crate) struct UnderWay {
    /// Calls that the thread was inside of before.
    depth: u32,
    /// Makes it `!Send`: the depth is the thread's.
    _here: PhantomData<*const ()>,
}

impl UnderWay {
    /// Begins a call.
    pub(crate) fn begin() -> Self {
        THREAD.with(|thread| {
            // First, as that does what is aside: verbs.
            let depth = thread.enter();
            thread.kernel_calls.fetch_add(1, Ordering::Relaxed);
            Self { depth, _here: PhantomData }
        })
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        THREAD.with(|thread| {
            // Before what is aside is done: that is verbs.
            compiler_fence(Ordering::SeqCst);
            thread.kernel_calls.fetch_sub(1, Ordering::Relaxed);
            thread.leave(self.depth);
        });
    }
}

/// Whether a call is under way in the calling thread, which a signal handler has interrupted.
pub(crate) fn is_interrupted() -> bool {
    THREAD.with(|thread| thread.depth.load(Ordering::Relaxed) > 0)
}

/// Whether a call that is answered in the place of a kernel is under way in the calling thread, which a signal handler has interrupted.
pub(crate) fn is_kernel_call_interrupted() -> bool {
    THREAD.with(|thread| thread.kernel_calls.load(Ordering::Relaxed) > 0)
}

impl Thread {
    /// Begins a call, and returns how many the thread was inside of before. What is aside comes first: a signal handler that interrupts
    /// the end of a call is inside none, and its requests do not overtake those that wait for that end.
    #[inline]
    fn enter(&self) -> u32 {
        let depth = self.depth.load(Ordering::Relaxed);
        self.depth.store(depth + 1, Ordering::Relaxed);
        // Signal handlers of this thread see the depth before any lock is taken.
        compiler_fence(Ordering::SeqCst);
        if depth == 0 && self.behind.load(Ordering::Relaxed) != 0 {
            self.catch_up();
        }
        depth
    }

    /// Ends the call for which [`enter`](Self::enter) returned this depth.
    #[inline]
    fn leave(&self, depth: u32) {
        compiler_fence(Ordering::SeqCst);
        self.depth.store(depth, Ordering::Relaxed);
        compiler_fence(Ordering::SeqCst);
        if depth == 0 && self.behind.load(Ordering::Relaxed) != 0 {
            self.end_behind();
        }
    }

    /// Ends the outermost call once more, after what is aside.
    #[cold]
    fn end_behind(&self) {
        loop {
            self.depth.store(1, Ordering::Relaxed);
            compiler_fence(Ordering::SeqCst);
            self.catch_up();
            compiler_fence(Ordering::SeqCst);
            self.depth.store(0, Ordering::Relaxed);
            compiler_fence(Ordering::SeqCst);
            // Again for what came while the depth was not 0 yet.
            if self.behind.load(Ordering::Relaxed) & NEW == 0 {
                break;
            }
        }
    }

    /// Has everything done that is aside, as in a verb: the depth is 1.
    #[cold]
    fn catch_up(&self) {
        let Some(catch_up) = CATCH_UP.get() else { return self.behind.store(0, Ordering::Relaxed) };
        loop {
            self.behind.store(0, Ordering::Relaxed);
            compiler_fence(Ordering::SeqCst);
            let is_left = catch_up();
            compiler_fence(Ordering::SeqCst);
            let come = self.behind.fetch_or(if is_left { BLOCKED } else { 0 }, Ordering::Relaxed);
            if come & NEW == 0 {
                break;
            }
        }
    }
}
