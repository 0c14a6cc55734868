//! What libibverbs calls: pointers in, pointers and errno out, nothing in between.
//!
//! Every entry runs inside [`pointer`], [`number`] or [`count`]: a panic never unwinds into C, errno is what the man
//! page says, and an object inherited over a fork is refused.

pub(crate) mod ah;
mod builder;
pub(crate) mod context;
pub(crate) mod cq;
mod cq_ex;
mod dm;
mod dmabuf;
mod domain;
mod gate;
mod import;
pub(crate) mod mcast;
mod misc;
pub(crate) mod mr;
mod mw;
pub(crate) mod post;
pub(crate) mod qp;
pub(crate) mod register;
pub(crate) mod srq;
mod users;
mod wait;
pub(crate) mod xrcd;

use std::ffi::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::kernel::Errno;

/// What a panic looks like to the application.
const BROKEN: Errno = Errno(libc::EIO);

fn guarded<T>(act: impl FnOnce() -> Result<T, Errno>) -> Result<T, Errno> {
    catch_unwind(AssertUnwindSafe(act)).unwrap_or(Err(BROKEN))
}

/// A verb that returns a pointer, or null with errno.
fn pointer<T>(act: impl FnOnce() -> Result<*mut T, Errno>) -> *mut T {
    guarded(act).unwrap_or_else(|errno| {
        errno.set();
        std::ptr::null_mut()
    })
}

/// A verb that returns 0 or an errno.
fn number(act: impl FnOnce() -> Result<(), Errno>) -> c_int {
    match guarded(act) {
        Ok(()) => 0,
        Err(errno) => {
            errno.set();
            errno.0
        }
    }
}

/// A verb that returns a count, or -1.
fn count(act: impl FnOnce() -> Result<usize, Errno>) -> c_int {
    match guarded(act) {
        Ok(count) => c_int::try_from(count).unwrap_or(c_int::MAX),
        Err(errno) => {
            errno.set();
            -1
        }
    }
}
