//! stat(2), under all of its names.

use core::ffi::{c_char, c_int, c_uint};

use super::with_path;
use crate::live::may_be_counter;
use crate::next::with_errno_kept;
use crate::pointer::is_plausible;
use crate::resolve::{CWD, locate_always};
use crate::status::Status;

/// Has `then` look at the file where it really is, and says of counters what sysfs would.
///
/// # Safety
/// `path` is null or a C string, and `status` is filled by `then` when that returns 0.
pub(super) unsafe fn looked_at<S: Status>(
    dir: c_int,
    path: *const c_char,
    flags: c_int,
    status: *mut S,
    then: impl FnOnce(*const c_char) -> c_int,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        if flags & libc::AT_EMPTY_PATH != 0 && (path.is_null() || (is_plausible(path) && *path == 0)) {
            return descriptor(then(path), status);
        }
        let result = with_path(dir, path, then);
        if result == 0
            && may_be_counter(path)
            && with_errno_kept(|| locate_always(dir, path)).is_some_and(|at| at.is_shadowed)
        {
            (*status).is_of_counter();
        }
        result
    }
}

/// The result of an `fstat`.
///
/// # Safety
/// `status` is filled if `result` is 0.
pub(super) unsafe fn descriptor<S: Status>(result: c_int, status: *mut S) -> c_int {
    if result == 0 {
        // SAFETY: the caller's promise.
        unsafe { (*status).is_of_descriptor() };
    }
    result
}

interpose! {
    others {
        fn stat(path: *const c_char, status: *mut libc::stat) -> c_int = |next| {
            // SAFETY: the caller's own call, but for the path.
            unsafe { looked_at(CWD, path, 0, status, |path| next(path, status)) }
        }
        fn stat64(path: *const c_char, status: *mut libc::stat) -> c_int = |next| {
            // SAFETY: as above.
            unsafe { looked_at(CWD, path, 0, status, |path| next(path, status)) }
        }
        fn lstat(path: *const c_char, status: *mut libc::stat) -> c_int = |next| {
            // SAFETY: as above.
            unsafe { looked_at(CWD, path, 0, status, |path| next(path, status)) }
        }
        fn lstat64(path: *const c_char, status: *mut libc::stat) -> c_int = |next| {
            // SAFETY: as above.
            unsafe { looked_at(CWD, path, 0, status, |path| next(path, status)) }
        }
        fn fstatat(dir: c_int, path: *const c_char, status: *mut libc::stat, flags: c_int) -> c_int = |next| {
            // SAFETY: as above.
            unsafe { looked_at(dir, path, flags, status, |path| next(dir, path, status, flags)) }
        }
        fn fstatat64(dir: c_int, path: *const c_char, status: *mut libc::stat, flags: c_int) -> c_int = |next| {
            // SAFETY: as above.
            unsafe { looked_at(dir, path, flags, status, |path| next(dir, path, status, flags)) }
        }
        fn __xstat(version: c_int, path: *const c_char, status: *mut libc::stat) -> c_int = |next| {
            // SAFETY: as above.
            unsafe { looked_at(CWD, path, 0, status, |path| next(version, path, status)) }
        }
        fn __xstat64(version: c_int, path: *const c_char, status: *mut libc::stat) -> c_int = |next| {
            // SAFETY: as above.
            unsafe { looked_at(CWD, path, 0, status, |path| next(version, path, status)) }
        }
        fn __lxstat(version: c_int, path: *const c_char, status: *mut libc::stat) -> c_int = |next| {
            // SAFETY: as above.
            unsafe { looked_at(CWD, path, 0, status, |path| next(version, path, status)) }
        }
        fn __lxstat64(version: c_int, path: *const c_char, status: *mut libc::stat) -> c_int = |next| {
            // SAFETY: as above.
            unsafe { looked_at(CWD, path, 0, status, |path| next(version, path, status)) }
        }
        fn __fxstatat(
            version: c_int, dir: c_int, path: *const c_char, status: *mut libc::stat, flags: c_int
        ) -> c_int = |next| {
            // SAFETY: as above.
            unsafe { looked_at(dir, path, flags, status, |path| next(version, dir, path, status, flags)) }
        }
        fn __fxstatat64(
            version: c_int, dir: c_int, path: *const c_char, status: *mut libc::stat, flags: c_int
        ) -> c_int = |next| {
            // SAFETY: as above.
            unsafe { looked_at(dir, path, flags, status, |path| next(version, dir, path, status, flags)) }
        }
        fn statx(
            dir: c_int, path: *const c_char, flags: c_int, mask: c_uint, status: *mut libc::statx
        ) -> c_int = |next| {
            // SAFETY: as above.
            unsafe { looked_at(dir, path, flags, status, |path| next(dir, path, flags, mask, status)) }
        }
        fn fstat(fd: c_int, status: *mut libc::stat) -> c_int = |next| {
            // SAFETY: the caller's own call.
            unsafe { descriptor(next(fd, status), status) }
        }
        fn fstat64(fd: c_int, status: *mut libc::stat) -> c_int = |next| {
            // SAFETY: the caller's own call.
            unsafe { descriptor(next(fd, status), status) }
        }
        fn __fxstat(version: c_int, fd: c_int, status: *mut libc::stat) -> c_int = |next| {
            // SAFETY: the caller's own call.
            unsafe { descriptor(next(version, fd, status), status) }
        }
        fn __fxstat64(version: c_int, fd: c_int, status: *mut libc::stat) -> c_int = |next| {
            // SAFETY: the caller's own call.
            unsafe { descriptor(next(version, fd, status), status) }
        }
    }
}
