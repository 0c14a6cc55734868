//! Functions that open files, and the socket that asks for RDMA devices.

use core::ffi::{c_char, c_int, c_uint};

use super::{Buffer, with_path};
use crate::live::brought_up_to_date;
use crate::nodes;
use crate::pointer::is_plausible;
use crate::read_only::{self, mode_flags};
use crate::resolve::CWD;

/// Opens what `then` opens, at the path where the file really is.
///
/// # Safety
/// `path` is null or a C string.
pub(super) unsafe fn opened(
    dir: c_int,
    path: *const c_char,
    flags: c_int,
    then: impl FnOnce(*const c_char, c_int) -> c_int,
) -> c_int {
    // SAFETY: the caller's path.
    if let Some(fd) = unsafe { nodes::opened(dir, path, flags) } {
        return fd;
    }
    // SAFETY: the caller's path, and what came of it.
    unsafe { brought_up_to_date(path, read_only::open(dir, path, flags, then)) }
}

/// As [`opened`], for a `FILE`.
///
/// # Safety
/// Both are null or C strings.
unsafe fn stream(path: *const c_char, mode: *const c_char, then: impl FnOnce(*const c_char) -> Buffer) -> Buffer {
    if !is_plausible(path) || !is_plausible(mode) {
        return then(path);
    }
    // SAFETY: C strings, and what came of them.
    unsafe { brought_up_to_date(path, read_only::open(CWD, path, mode_flags(mode), |path, _| then(path))) }
}

interpose! {
    opening(opened) {
        fn open(; CWD, path; flags, mode: c_uint) -> c_int;
        fn open64(; CWD, path; flags, mode: c_uint) -> c_int;
        fn __open_2(; CWD, path; flags) -> c_int;
        fn __open64_2(; CWD, path; flags) -> c_int;
        fn openat(dir: c_int; dir, path; flags, mode: c_uint) -> c_int;
        fn openat64(dir: c_int; dir, path; flags, mode: c_uint) -> c_int;
        fn __openat_2(dir: c_int; dir, path; flags) -> c_int;
        fn __openat64_2(dir: c_int; dir, path; flags) -> c_int;
    }

    path, by with_path {
        fn posix_spawn_file_actions_addchdir_np(actions: Buffer; CWD, path; ) -> c_int;
    }

    others {
        fn creat(path: *const c_char, mode: c_uint) -> c_int = |_next| {
            // SAFETY: the caller's own call: creat(2) is open(2) with these flags.
            unsafe { open(path, libc::O_CREAT | libc::O_WRONLY | libc::O_TRUNC, mode) }
        }
        fn creat64(path: *const c_char, mode: c_uint) -> c_int = |_next| {
            // SAFETY: as above.
            unsafe { open64(path, libc::O_CREAT | libc::O_WRONLY | libc::O_TRUNC, mode) }
        }
        fn fopen(path: *const c_char, mode: *const c_char) -> Buffer = |next| {
            // SAFETY: the caller's own call, but for the path.
            unsafe { stream(path, mode, |path| next(path, mode)) }
        }
        fn fopen64(path: *const c_char, mode: *const c_char) -> Buffer = |next| {
            // SAFETY: as above.
            unsafe { stream(path, mode, |path| next(path, mode)) }
        }
        fn freopen(path: *const c_char, mode: *const c_char, file: Buffer) -> Buffer = |next| {
            // SAFETY: as above.
            unsafe { stream(path, mode, |path| next(path, mode, file)) }
        }
        fn freopen64(path: *const c_char, mode: *const c_char, file: Buffer) -> Buffer = |next| {
            // SAFETY: as above.
            unsafe { stream(path, mode, |path| next(path, mode, file)) }
        }
        fn posix_spawn_file_actions_addopen(
            actions: Buffer, fd: c_int, path: *const c_char, flags: c_int, mode: c_uint
        ) -> c_int = |next| {
            // libc opens it in the child, by itself.
            // SAFETY: as above.
            let (result, errno) = unsafe {
                let result = read_only::open(CWD, path, flags, |path, flags| next(actions, fd, path, flags, mode));
                (result, *libc::__errno_location())
            };
            // It is the error number that this function returns.
            if result < 0 { errno } else { result }
        }
    }
}
