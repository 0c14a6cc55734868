//! Functions that look at files, or name them.

use core::ffi::{c_char, c_int, c_long, c_uint, c_ulong};

use super::{Buffer, with_path};
use crate::folder::{unshadow, unshadow_text};
use crate::next::fail;
use crate::read_only::{exists, refuses_writing};
use crate::resolve::{CWD, locate, working_directory_changed};

interpose! {
    path, by with_path {
        fn inotify_add_watch(fd: c_int; CWD, path; mask: c_uint) -> c_int;
        fn pathconf(; CWD, path; name: c_int) -> c_long;
        fn getxattr(; CWD, path; name: *const c_char, value: Buffer, size: usize) -> isize;
        fn lgetxattr(; CWD, path; name: *const c_char, value: Buffer, size: usize) -> isize;
        fn listxattr(; CWD, path; list: *mut c_char, size: usize) -> isize;
        fn llistxattr(; CWD, path; list: *mut c_char, size: usize) -> isize;
        fn name_to_handle_at(dir: c_int; dir, path; handle: Buffer, mount: *mut c_int, flags: c_int) -> c_int;
    }

    others {
        fn statfs(path: *const c_char, answer: *mut StatFs) -> c_int = |next| {
            // SAFETY: the caller's own call, but for the path.
            unsafe { with_file_system(path, answer, |path| next(path, answer)) }
        }
        fn statfs64(path: *const c_char, answer: *mut StatFs) -> c_int = |next| {
            // SAFETY: as above.
            unsafe { with_file_system(path, answer, |path| next(path, answer)) }
        }
        fn statvfs(path: *const c_char, answer: *mut libc::statvfs) -> c_int = |next| {
            // SAFETY: as above.
            unsafe { with_file_system(path, answer, |path| next(path, answer)) }
        }
        fn statvfs64(path: *const c_char, answer: *mut libc::statvfs) -> c_int = |next| {
            // SAFETY: as above.
            unsafe { with_file_system(path, answer, |path| next(path, answer)) }
        }
        fn access(path: *const c_char, mode: c_int) -> c_int = |next| {
            // SAFETY: the caller's own call, but for the path.
            unsafe { checked(CWD, path, mode, |path| next(path, mode)) }
        }
        fn eaccess(path: *const c_char, mode: c_int) -> c_int = |next| {
            // SAFETY: as above.
            unsafe { checked(CWD, path, mode, |path| next(path, mode)) }
        }
        fn euidaccess(path: *const c_char, mode: c_int) -> c_int = |next| {
            // SAFETY: as above.
            unsafe { checked(CWD, path, mode, |path| next(path, mode)) }
        }
        fn faccessat(dir: c_int, path: *const c_char, mode: c_int, flags: c_int) -> c_int = |next| {
            // SAFETY: as above.
            unsafe { checked(dir, path, mode, |path| next(dir, path, mode, flags)) }
        }
        fn chdir(path: *const c_char) -> c_int = |next| {
            // SAFETY: as above.
            let (result, shadowed) = unsafe {
                let located = locate(CWD, path);
                (next(located.as_ref().map_or(path, |located| located.as_ptr())), located.is_some_and(|it| it.is_shadowed))
            };
            if result == 0 && shadowed {
                working_directory_changed(None);
            }
            result
        }
        fn fchdir(dir: c_int) -> c_int = |next| {
            // SAFETY: the caller's own call.
            let result = unsafe { next(dir) };
            if result == 0 {
                working_directory_changed(Some(dir));
            }
            result
        }
        fn readlink(path: *const c_char, buffer: *mut c_char, size: usize) -> isize = |next| {
            // SAFETY: the caller's own call, but for the path.
            unsafe { with_target(buffer, with_path(CWD, path, |path| next(path, buffer, size))) }
        }
        fn __readlink_chk(path: *const c_char, buffer: *mut c_char, size: usize, room: usize) -> isize = |next| {
            // SAFETY: as above.
            unsafe { with_target(buffer, with_path(CWD, path, |path| next(path, buffer, size, room))) }
        }
        fn readlinkat(dir: c_int, path: *const c_char, buffer: *mut c_char, size: usize) -> isize = |next| {
            // SAFETY: as above.
            unsafe { with_target(buffer, with_path(dir, path, |path| next(dir, path, buffer, size))) }
        }
        fn __readlinkat_chk(dir: c_int, path: *const c_char, buffer: *mut c_char, size: usize, room: usize) -> isize = |next| {
            // SAFETY: as above.
            unsafe { with_target(buffer, with_path(dir, path, |path| next(dir, path, buffer, size, room))) }
        }
        fn realpath(path: *const c_char, buffer: *mut c_char) -> *mut c_char = |next| {
            // SAFETY: as above.
            unsafe { with_name(with_path(CWD, path, |path| next(path, buffer))) }
        }
        fn __realpath_chk(path: *const c_char, buffer: *mut c_char, room: usize) -> *mut c_char = |next| {
            // SAFETY: as above.
            unsafe { with_name(with_path(CWD, path, |path| next(path, buffer, room))) }
        }
        fn canonicalize_file_name(path: *const c_char) -> *mut c_char = |next| {
            // SAFETY: as above.
            unsafe { with_name(with_path(CWD, path, |path| next(path))) }
        }
        fn getcwd(buffer: *mut c_char, size: usize) -> *mut c_char = |next| {
            // SAFETY: as above.
            unsafe { with_name(next(buffer, size)) }
        }
        fn __getcwd_chk(buffer: *mut c_char, size: usize, room: usize) -> *mut c_char = |next| {
            // SAFETY: as above.
            unsafe { with_name(next(buffer, size, room)) }
        }
        fn getwd(buffer: *mut c_char) -> *mut c_char = |next| {
            // SAFETY: as above.
            unsafe { with_name(next(buffer)) }
        }
        fn __getwd_chk(buffer: *mut c_char, room: usize) -> *mut c_char = |next| {
            // SAFETY: as above.
            unsafe { with_name(next(buffer, room)) }
        }
        fn get_current_dir_name() -> *mut c_char = |next| {
            // SAFETY: as above.
            unsafe { with_name(next()) }
        }
    }
}

/// The result of `access`, of a file system that is read-only.
///
/// # Safety
/// `path` is null or a C string.
pub(super) unsafe fn checked(
    dir: c_int,
    path: *const c_char,
    mode: c_int,
    then: impl FnOnce(*const c_char) -> c_int,
) -> c_int {
    // SAFETY: the caller's promise.
    let Some(located) = (unsafe { locate(dir, path) }) else { return then(path) };
    let result = then(located.as_ptr());
    if result == 0 && mode & libc::W_OK != 0 && refuses_writing(&located) {
        return fail(libc::EROFS);
    }
    result
}

/// `struct statfs` of `<bits/statfs.h>`: words, all of them.
#[repr(transparent)]
pub(super) struct StatFs([c_long; 15]);

/// Answer about a file system.
pub(super) trait FileSystem {
    fn set_read_only(&mut self);
}

impl FileSystem for StatFs {
    fn set_read_only(&mut self) {
        let Self([.., flags, _, _, _, _]) = self;
        *flags |= ST_RDONLY.cast_signed();
    }
}

impl FileSystem for libc::statvfs {
    fn set_read_only(&mut self) {
        self.f_flag |= ST_RDONLY;
    }
}

/// `ST_RDONLY` of `<sys/statvfs.h>`.
const ST_RDONLY: c_ulong = libc::MS_RDONLY;

/// Calls `then` with the mount point of the file system that a file of the folder is shown in, and says that it is read-only.
///
/// # Safety
/// `path` is null or a C string, and `answer` is filled by `then` when that returns 0.
pub(super) unsafe fn with_file_system<F: FileSystem>(
    path: *const c_char,
    answer: *mut F,
    then: impl FnOnce(*const c_char) -> c_int,
) -> c_int {
    // SAFETY: the caller's promise.
    let Some(located) = (unsafe { locate(CWD, path) }) else { return then(path) };
    let result = match located.mount_point() {
        Some(mount_point) if exists(&located) => then(mount_point.as_ptr()),
        _ => then(located.as_ptr()),
    };
    if result == 0 && located.is_shadowed {
        // SAFETY: the caller's promise.
        unsafe { (*answer).set_read_only() };
    }
    result
}

/// The result of a `readlink`.
///
/// # Safety
/// `buffer` holds `len` bytes if that is not negative.
pub(super) unsafe fn with_target(buffer: *mut c_char, len: isize) -> isize {
    match usize::try_from(len) {
        // SAFETY: the caller's promise.
        Ok(len) => unsafe { unshadow(buffer, len) }.cast_signed(),
        Err(_) => len,
    }
}

/// The result of a `realpath`.
///
/// # Safety
/// `name` is null or a C string that belongs to the caller.
unsafe fn with_name(name: *mut c_char) -> *mut c_char {
    // SAFETY: the caller's promise.
    unsafe { unshadow_text(name) };
    name
}
