//! Functions that start a shell inside libc, with the environment of this program: if that has lost the variables, one line says so.
//!
//! A thread may be cancelled in them (pthreads(7)), which unwinds these frames as well.

use core::ffi::{c_char, c_int, c_void};

use super::Buffer;
use crate::environment::warn_if_lost;
use crate::next::{Next, fail};

static SYSTEM: Next = Next::new(c"system");
static POPEN: Next = Next::new(c"popen");

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn system(command: *const c_char) -> c_int {
    type Function = unsafe extern "C-unwind" fn(*const c_char) -> c_int;
    // Without a command nothing is started.
    if !command.is_null() {
        warn_if_lost();
    }
    let next = SYSTEM.address();
    if next.is_null() {
        return fail(libc::ENOSYS);
    }
    // SAFETY: the function of this name has this type.
    let next = unsafe { core::mem::transmute::<*mut c_void, Function>(next) };
    // SAFETY: the caller's own call.
    unsafe { next(command) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn popen(command: *const c_char, mode: *const c_char) -> Buffer {
    type Function = unsafe extern "C-unwind" fn(*const c_char, *const c_char) -> Buffer;
    warn_if_lost();
    let next = POPEN.address();
    if next.is_null() {
        return fail(libc::ENOSYS);
    }
    // SAFETY: the function of this name has this type.
    let next = unsafe { core::mem::transmute::<*mut c_void, Function>(next) };
    // SAFETY: the caller's own call.
    unsafe { next(command, mode) }
}
