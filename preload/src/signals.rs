//! Signals of faults, whose handler is the library's: what the program sets for them is given to the library.

use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicPtr, Ordering};

/// sigaction(2) for signals of faults. `None` for others, and while the library handles none.
pub type FaultAction =
    unsafe fn(signal: c_int, new: *const libc::sigaction, old: *mut libc::sigaction) -> Option<c_int>;

static FAULT_ACTION: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());

/// Has the program's calls of sigaction(2) and signal(2) go to `action` first.
pub fn fault_signals_are(action: FaultAction) {
    FAULT_ACTION.store(action as *mut c_void, Ordering::Release);
}

/// The library's answer, if it has one.
///
/// # Safety
/// As for sigaction(2).
pub(crate) unsafe fn fault_action(
    signal: c_int,
    new: *const libc::sigaction,
    old: *mut libc::sigaction,
) -> Option<c_int> {
    if !matches!(signal, libc::SIGSEGV | libc::SIGBUS) {
        return None;
    }
    let action = FAULT_ACTION.load(Ordering::Acquire);
    if action.is_null() {
        return None;
    }
    // SAFETY: only `fault_signals_are` stores here, and what it stores has this type.
    let action = unsafe { core::mem::transmute::<*mut c_void, FaultAction>(action) };
    // SAFETY: the caller's promise.
    unsafe { action(signal, new, old) }
}
