//! Ends of the process that exit(3), and with it on_exit(3), does not see.

use core::ffi::c_void;
use core::sync::atomic::{AtomicPtr, Ordering};

static BEFORE_FAILURE: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());

/// Has `act` called when the program is about to end by abort(3), a failed assert(3), a signal of a crash that it raises, or
/// `_exit` and its like with a status other than 0.
///
/// The caller may be a signal handler, or a child that shares its parent's memory (vfork(2)): `act` is async-signal-safe, and
/// does nothing there that the parent would notice.
pub fn before_failures(act: fn()) {
    BEFORE_FAILURE.store(act as *mut c_void, Ordering::Release);
}

/// Calls what is to be done before the program fails.
pub(crate) fn about_to_fail() {
    let act = BEFORE_FAILURE.load(Ordering::Acquire);
    if !act.is_null() {
        // SAFETY: only `before_failures` stores here, and what it stores has this type.
        let act = unsafe { core::mem::transmute::<*mut c_void, fn()>(act) };
        act();
    }
}
