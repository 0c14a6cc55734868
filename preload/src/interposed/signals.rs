//! Functions that set what a signal does. For SIGSEGV and SIGBUS the library keeps its handler, and calls the program's for faults
//! that are the program's own ([`crate::fault_signals_are`]).
//!
//! `sigaction` and the functions that libc makes of it are interposed. A program that makes the system call itself takes the handler away.

use core::ffi::{c_int, c_void};
use core::mem::MaybeUninit;

use crate::next::fail;
use crate::signals::fault_action;

type Handler = *mut c_void;

interpose! {
    others {
        fn sigaction(signal: c_int, new: *const libc::sigaction, old: *mut libc::sigaction) -> c_int = |next| {
            // SAFETY: the caller's own call.
            unsafe { fault_action(signal, new, old).unwrap_or_else(|| next(signal, new, old)) }
        }
        fn __sigaction(signal: c_int, new: *const libc::sigaction, old: *mut libc::sigaction) -> c_int = |next| {
            // SAFETY: the caller's own call.
            unsafe { fault_action(signal, new, old).unwrap_or_else(|| next(signal, new, old)) }
        }
        fn signal(number: c_int, handler: Handler) -> Handler = |next| {
            // SAFETY: the caller's own call.
            unsafe { simply(number, handler, libc::SA_RESTART).unwrap_or_else(|| next(number, handler)) }
        }
        fn bsd_signal(number: c_int, handler: Handler) -> Handler = |next| {
            // SAFETY: the caller's own call.
            unsafe { simply(number, handler, libc::SA_RESTART).unwrap_or_else(|| next(number, handler)) }
        }
        fn ssignal(number: c_int, handler: Handler) -> Handler = |next| {
            // SAFETY: the caller's own call.
            unsafe { simply(number, handler, libc::SA_RESTART).unwrap_or_else(|| next(number, handler)) }
        }
        fn sysv_signal(number: c_int, handler: Handler) -> Handler = |next| {
            // SAFETY: the caller's own call.
            unsafe { simply(number, handler, SYSV).unwrap_or_else(|| next(number, handler)) }
        }
        fn __sysv_signal(number: c_int, handler: Handler) -> Handler = |next| {
            // SAFETY: the caller's own call.
            unsafe { simply(number, handler, SYSV).unwrap_or_else(|| next(number, handler)) }
        }
    }
}

/// Flags of a handler of System V.
const SYSV: c_int = libc::SA_RESETHAND | libc::SA_NODEFER;

/// signal(2) by way of sigaction(2); `None` for signals that are none of faults.
///
/// # Safety
/// As for signal(2).
unsafe fn simply(signal: c_int, handler: Handler, flags: c_int) -> Option<Handler> {
    // SAFETY: all-zero is a value of this plain C struct.
    let mut new: libc::sigaction = unsafe { MaybeUninit::zeroed().assume_init() };
    let mut old = new;
    (new.sa_sigaction, new.sa_flags) = (handler as usize, flags);
    // SAFETY: the caller's promise.
    let result = unsafe { fault_action(signal, &raw const new, &raw mut old) }?;
    Some(if result == 0 { old.sa_sigaction as Handler } else { libc::SIG_ERR as Handler })
}

/// libc's sigaction(2): that of this name in the library is the one that programs call.
///
/// # Safety
/// As for sigaction(2).
pub unsafe fn next_sigaction(signal: c_int, new: *const libc::sigaction, old: *mut libc::sigaction) -> c_int {
    let address = original::sigaction.address();
    if address.is_null() {
        return fail(libc::ENOSYS);
    }
    type Function = unsafe extern "C" fn(c_int, *const libc::sigaction, *mut libc::sigaction) -> c_int;
    // SAFETY: the function of this name has this type.
    let next = unsafe { core::mem::transmute::<*mut c_void, Function>(address) };
    // SAFETY: the caller's promise.
    unsafe { next(signal, new, old) }
}
