//! Functions that change what the file system holds: the folder refuses them.

use core::ffi::{c_char, c_int, c_long, c_uint};

use super::Buffer;
use crate::next::Missing;
use crate::read_only::{Change, change, change_two};
use crate::resolve::CWD;

macro_rules! by_kind {
    ($($name:ident = $kind:ident;)*) => { $(
        /// Lets a call through whose file is not the folder's.
        ///
        /// # Safety
        /// `path` is null or a C string.
        pub(super) unsafe fn $name<R: Missing>(dir: c_int, path: *const c_char, then: impl FnOnce(*const c_char) -> R) -> R {
            // SAFETY: the caller's promise.
            unsafe { change(Change::$kind, dir, path, then) }
        }
    )* };
}

by_kind! {
    attributes = Attributes;
    creation = Creation;
    removal = Removal;
}

interpose! {
    path, by attributes {
        fn chmod(; CWD, path; mode: c_uint) -> c_int;
        fn lchmod(; CWD, path; mode: c_uint) -> c_int;
        fn fchmodat(dir: c_int; dir, path; mode: c_uint, flags: c_int) -> c_int;
        fn chown(; CWD, path; user: c_uint, group: c_uint) -> c_int;
        fn lchown(; CWD, path; user: c_uint, group: c_uint) -> c_int;
        fn fchownat(dir: c_int; dir, path; user: c_uint, group: c_uint, flags: c_int) -> c_int;
        fn truncate(; CWD, path; size: c_long) -> c_int;
        fn truncate64(; CWD, path; size: c_long) -> c_int;
        fn utime(; CWD, path; times: Buffer) -> c_int;
        fn utimes(; CWD, path; times: Buffer) -> c_int;
        fn lutimes(; CWD, path; times: Buffer) -> c_int;
        fn futimesat(dir: c_int; dir, path; times: Buffer) -> c_int;
        fn utimensat(dir: c_int; dir, path; times: Buffer, flags: c_int) -> c_int;
        fn setxattr(; CWD, path; name: *const c_char, value: Buffer, size: usize, flags: c_int) -> c_int;
        fn lsetxattr(; CWD, path; name: *const c_char, value: Buffer, size: usize, flags: c_int) -> c_int;
        fn removexattr(; CWD, path; name: *const c_char) -> c_int;
        fn lremovexattr(; CWD, path; name: *const c_char) -> c_int;
    }

    path, by creation {
        fn mkdir(; CWD, path; mode: c_uint) -> c_int;
        fn mkdirat(dir: c_int; dir, path; mode: c_uint) -> c_int;
        fn mkfifo(; CWD, path; mode: c_uint) -> c_int;
        fn mkfifoat(dir: c_int; dir, path; mode: c_uint) -> c_int;
        fn mknod(; CWD, path; mode: c_uint, device: u64) -> c_int;
        fn mknodat(dir: c_int; dir, path; mode: c_uint, device: u64) -> c_int;
        fn __xmknod(version: c_int; CWD, path; mode: c_uint, device: Buffer) -> c_int;
        fn __xmknodat(version: c_int, dir: c_int; dir, path; mode: c_uint, device: Buffer) -> c_int;
        fn symlink(target: *const c_char; CWD, path; ) -> c_int;
        fn symlinkat(target: *const c_char, dir: c_int; dir, path; ) -> c_int;
    }

    path, by removal {
        fn unlink(; CWD, path; ) -> c_int;
        fn unlinkat(dir: c_int; dir, path; flags: c_int) -> c_int;
        fn rmdir(; CWD, path; ) -> c_int;
        fn remove(; CWD, path; ) -> c_int;
    }

    others {
        fn rename(from: *const c_char, to: *const c_char) -> c_int = |next| {
            // SAFETY: the caller's own call, but for the paths.
            unsafe { change_two((CWD, from), (CWD, to), |from, to| next(from, to)) }
        }
        fn renameat(from_dir: c_int, from: *const c_char, to_dir: c_int, to: *const c_char) -> c_int = |next| {
            // SAFETY: as above.
            unsafe { change_two((from_dir, from), (to_dir, to), |from, to| next(from_dir, from, to_dir, to)) }
        }
        fn renameat2(from_dir: c_int, from: *const c_char, to_dir: c_int, to: *const c_char, flags: c_uint) -> c_int = |next| {
            // SAFETY: as above.
            unsafe { change_two((from_dir, from), (to_dir, to), |from, to| next(from_dir, from, to_dir, to, flags)) }
        }
        fn link(from: *const c_char, to: *const c_char) -> c_int = |next| {
            // SAFETY: as above.
            unsafe { change_two((CWD, from), (CWD, to), |from, to| next(from, to)) }
        }
        fn linkat(from_dir: c_int, from: *const c_char, to_dir: c_int, to: *const c_char, flags: c_int) -> c_int = |next| {
            // SAFETY: as above.
            unsafe { change_two((from_dir, from), (to_dir, to), |from, to| next(from_dir, from, to_dir, to, flags)) }
        }
    }
}
