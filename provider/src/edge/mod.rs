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
use crate::observe::explain;

/// What a panic looks like to the application.
const BROKEN: Errno = Errno(libc::EIO);

fn guarded<T>(act: impl FnOnce() -> Result<T, Errno>) -> Result<T, Errno> {
    catch_unwind(AssertUnwindSafe(act)).unwrap_or(Err(BROKEN))
}

/// A verb has failed; the type of its closure names it.
#[cold]
fn failed<F>(errno: Errno) {
    explain::failed(std::any::type_name::<F>(), errno);
    errno.set();
}

/// A verb that returns a pointer, or null with errno.
fn pointer<T, F: FnOnce() -> Result<*mut T, Errno>>(act: F) -> *mut T {
    guarded(act).unwrap_or_else(|errno| {
        failed::<F>(errno);
        std::ptr::null_mut()
    })
}

/// A verb that returns 0 or an errno.
fn number<F: FnOnce() -> Result<(), Errno>>(act: F) -> c_int {
    match guarded(act) {
        Ok(()) => 0,
        Err(errno) => {
            failed::<F>(errno);
            errno.0
        }
    }
}

/// A verb that returns a count, or -1.
fn count<F: FnOnce() -> Result<usize, Errno>>(act: F) -> c_int {
    match guarded(act) {
        Ok(count) => c_int::try_from(count).unwrap_or(c_int::MAX),
        Err(errno) => {
            failed::<F>(errno);
            -1
        }
    }
}
