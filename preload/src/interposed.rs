//! The functions themselves.
//!
//! libc's names, and the names under which older and fortified programs call the same: `__xstat`, `open64`, `__open_2`.
//! libc's own calls of them are not seen (`scandir` opens its folder by itself), so those that take a path and open it
//! inside are here as well.
//!
//! `open` and its like take their mode as `...` in C. It is passed like a named argument on the machines that we run on
//! (System V ABI of x86-64, AAPCS64), so here it is one.

use core::ffi::{c_char, c_int, c_uint, c_void};
use core::mem::transmute;

use crate::folder::{is_active, is_of_interest, shadow, unshadow, unshadow_text};
use crate::live::brought_up_to_date;
use crate::next::{Next, fail};

/// Functions that replace a path, `fn name(arguments before; path; arguments after) -> result`, in groups: what becomes of
/// the result is up to the function that a group names.
///
/// Followed by functions that do more, whose bodies get `next`, libc's own.
macro_rules! interpose {
    (
        $(path, then $finish:ident {
            $(fn $name:ident($($before:ident: $before_type:ty),*; path; $($after:ident: $after_type:ty),*) -> $result:ty;)*
        })*
        others { $(fn $other:ident($($arg:ident: $arg_type:ty),*) -> $other_result:ty = |$next:ident| $body:block)* }
    ) => {
        #[expect(non_upper_case_globals, reason = "the functions' own names")]
        mod original {
            use super::Next;
            $($(pub(super) static $name: Next = Next::new(super::c_name(concat!(stringify!($name), "\0")));)*)*
            $(pub(super) static $other: Next = Next::new(super::c_name(concat!(stringify!($other), "\0")));)*
        }

        /// Finds all of libc's functions, so that nothing has to be looked up in a signal handler.
        pub fn find_all() {
            for next in [$($(&original::$name,)*)* $(&original::$other,)*] {
                next.address();
            }
        }

        $($(
            #[unsafe(no_mangle)]
            unsafe extern "C" fn $name($($before: $before_type,)* path: *const c_char $(, $after: $after_type)*) -> $result {
                type Function = unsafe extern "C" fn($($before_type,)* *const c_char $(, $after_type)*) -> $result;
                let next = original::$name.address();
                if next.is_null() {
                    return fail(libc::ENOSYS);
                }
                // SAFETY: the function of this name has this type.
                let next = unsafe { transmute::<*mut c_void, Function>(next) };
                // SAFETY: the caller's own call, but for the path.
                let result = unsafe { with_path(path, |path| next($($before,)* path $(, $after)*)) };
                // SAFETY: the caller's path, and what came of it.
                unsafe { $finish(path, result) }
            }
        )*)*

        $(
            #[unsafe(no_mangle)]
            unsafe extern "C" fn $other($($arg: $arg_type),*) -> $other_result {
                type Function = unsafe extern "C" fn($($arg_type),*) -> $other_result;
                let next = original::$other.address();
                if next.is_null() {
                    return fail(libc::ENOSYS);
                }
                // SAFETY: the function of this name has this type.
                let $next = unsafe { transmute::<*mut c_void, Function>(next) };
                $body
            }
        )*
    };
}

/// A name that ends with NUL as a C string.
const fn c_name(name: &'static str) -> &'static core::ffi::CStr {
    match core::ffi::CStr::from_bytes_with_nul(name.as_bytes()) {
        Ok(name) => name,
        Err(_) => panic!("a name without its end"),
    }
}

/// Calls `then` with the path at which the file really is.
///
/// # Safety
/// `path` is null or a C string.
unsafe fn with_path<T>(path: *const c_char, then: impl FnOnce(*const c_char) -> T) -> T {
    // SAFETY: the caller's promise.
    if unsafe { is_of_interest(path) } {
        // SAFETY: a C string, since it is of interest.
        unsafe { with_shadow(path, then) }
    } else {
        then(path)
    }
}

/// Apart, because it needs room on the stack that other calls should not.
///
/// # Safety
/// `path` is a C string.
#[cold]
#[inline(never)]
unsafe fn with_shadow<T>(path: *const c_char, then: impl FnOnce(*const c_char) -> T) -> T {
    // SAFETY: the caller's promise.
    let shadow = unsafe { shadow(path) };
    then(shadow.as_ref().map_or(path, |shadow| shadow.as_ptr()))
}

/// The result of a function that is done with the path.
const unsafe fn as_it_is<T: Copy>(_path: *const c_char, result: T) -> T {
    result
}

/// `NETLINK_RDMA` of `<linux/netlink.h>`.
const NETLINK_RDMA: c_int = 20;

type Buffer = *mut c_void;

interpose! {
    path, then brought_up_to_date {
        fn open(; path; flags: c_int, mode: c_uint) -> c_int;
        fn open64(; path; flags: c_int, mode: c_uint) -> c_int;
        fn __open_2(; path; flags: c_int) -> c_int;
        fn __open64_2(; path; flags: c_int) -> c_int;
        fn openat(dir: c_int; path; flags: c_int, mode: c_uint) -> c_int;
        fn openat64(dir: c_int; path; flags: c_int, mode: c_uint) -> c_int;
        fn __openat_2(dir: c_int; path; flags: c_int) -> c_int;
        fn __openat64_2(dir: c_int; path; flags: c_int) -> c_int;
        fn fopen(; path; mode: *const c_char) -> Buffer;
        fn fopen64(; path; mode: *const c_char) -> Buffer;
        fn freopen(; path; mode: *const c_char, stream: Buffer) -> Buffer;
        fn freopen64(; path; mode: *const c_char, stream: Buffer) -> Buffer;
    }

    path, then as_it_is {
        fn opendir(; path; ) -> Buffer;
        fn scandir(; path; list: Buffer, filter: Buffer, order: Buffer) -> c_int;
        fn scandir64(; path; list: Buffer, filter: Buffer, order: Buffer) -> c_int;
        fn nftw(; path; visit: Buffer, most: c_int, flags: c_int) -> c_int;
        fn nftw64(; path; visit: Buffer, most: c_int, flags: c_int) -> c_int;
        fn chdir(; path; ) -> c_int;
        fn inotify_add_watch(fd: c_int; path; mask: c_uint) -> c_int;

        fn stat(; path; buffer: Buffer) -> c_int;
        fn stat64(; path; buffer: Buffer) -> c_int;
        fn lstat(; path; buffer: Buffer) -> c_int;
        fn lstat64(; path; buffer: Buffer) -> c_int;
        fn fstatat(dir: c_int; path; buffer: Buffer, flags: c_int) -> c_int;
        fn fstatat64(dir: c_int; path; buffer: Buffer, flags: c_int) -> c_int;
        fn __xstat(version: c_int; path; buffer: Buffer) -> c_int;
        fn __xstat64(version: c_int; path; buffer: Buffer) -> c_int;
        fn __lxstat(version: c_int; path; buffer: Buffer) -> c_int;
        fn __lxstat64(version: c_int; path; buffer: Buffer) -> c_int;
        fn __fxstatat(version: c_int, dir: c_int; path; buffer: Buffer, flags: c_int) -> c_int;
        fn __fxstatat64(version: c_int, dir: c_int; path; buffer: Buffer, flags: c_int) -> c_int;
        fn statx(dir: c_int; path; flags: c_int, mask: c_uint, buffer: Buffer) -> c_int;
        fn access(; path; mode: c_int) -> c_int;
        fn eaccess(; path; mode: c_int) -> c_int;
        fn euidaccess(; path; mode: c_int) -> c_int;
        fn faccessat(dir: c_int; path; mode: c_int, flags: c_int) -> c_int;
        fn getxattr(; path; name: *const c_char, value: Buffer, size: usize) -> isize;
        fn lgetxattr(; path; name: *const c_char, value: Buffer, size: usize) -> isize;
        fn listxattr(; path; list: *mut c_char, size: usize) -> isize;
        fn llistxattr(; path; list: *mut c_char, size: usize) -> isize;
    }

    others {
        fn readlink(path: *const c_char, buffer: *mut c_char, size: usize) -> isize = |next| {
            // SAFETY: the caller's own call, but for the path.
            unsafe { with_target(buffer, with_path(path, |path| next(path, buffer, size))) }
        }
        fn __readlink_chk(path: *const c_char, buffer: *mut c_char, size: usize, room: usize) -> isize = |next| {
            // SAFETY: as above.
            unsafe { with_target(buffer, with_path(path, |path| next(path, buffer, size, room))) }
        }
        fn readlinkat(dir: c_int, path: *const c_char, buffer: *mut c_char, size: usize) -> isize = |next| {
            // SAFETY: as above.
            unsafe { with_target(buffer, with_path(path, |path| next(dir, path, buffer, size))) }
        }
        fn __readlinkat_chk(dir: c_int, path: *const c_char, buffer: *mut c_char, size: usize, room: usize) -> isize = |next| {
            // SAFETY: as above.
            unsafe { with_target(buffer, with_path(path, |path| next(dir, path, buffer, size, room))) }
        }
        fn realpath(path: *const c_char, buffer: *mut c_char) -> *mut c_char = |next| {
            // SAFETY: as above.
            unsafe { with_name(with_path(path, |path| next(path, buffer))) }
        }
        fn __realpath_chk(path: *const c_char, buffer: *mut c_char, room: usize) -> *mut c_char = |next| {
            // SAFETY: as above.
            unsafe { with_name(with_path(path, |path| next(path, buffer, room))) }
        }
        fn canonicalize_file_name(path: *const c_char) -> *mut c_char = |next| {
            // SAFETY: as above.
            unsafe { with_name(with_path(path, |path| next(path))) }
        }
        fn getcwd(buffer: *mut c_char, size: usize) -> *mut c_char = |next| {
            // SAFETY: as above.
            unsafe { with_name(next(buffer, size)) }
        }
        fn __getcwd_chk(buffer: *mut c_char, size: usize, room: usize) -> *mut c_char = |next| {
            // SAFETY: as above.
            unsafe { with_name(next(buffer, size, room)) }
        }
        fn glob(pattern: *const c_char, flags: c_int, error: Buffer, found: *mut libc::glob_t) -> c_int = |next| {
            // SAFETY: as above.
            unsafe { with_names(found, with_path(pattern, |pattern| next(pattern, flags, error, found))) }
        }
        fn glob64(pattern: *const c_char, flags: c_int, error: Buffer, found: *mut libc::glob_t) -> c_int = |next| {
            // SAFETY: as above. On 64-bit machines the two structures are one.
            unsafe { with_names(found, with_path(pattern, |pattern| next(pattern, flags, error, found))) }
        }
        fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int = |next| {
            if domain == libc::AF_NETLINK && protocol == NETLINK_RDMA && is_active() {
                crate::devices_are_looked_for();
                return fail(libc::EPROTONOSUPPORT);
            }
            // SAFETY: the caller's own call.
            unsafe { next(domain, kind, protocol) }
        }
    }
}

/// The result of a `readlink`.
///
/// # Safety
/// `buffer` holds `len` bytes if that is not negative.
unsafe fn with_target(buffer: *mut c_char, len: isize) -> isize {
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

/// The result of a `glob`.
///
/// # Safety
/// After success `found` is what `glob` has made it.
unsafe fn with_names(found: *mut libc::glob_t, result: c_int) -> c_int {
    if result == 0 && is_active() {
        // SAFETY: the caller's promise: that many names, each allocated by itself, behind `gl_offs` others.
        unsafe {
            let (count, offset) = ((*found).gl_pathc, (*found).gl_offs);
            // Without GLOB_DOOFFS the offset is 0 (glob.c of glibc sets it).
            for index in 0..count {
                unshadow_text(*(*found).gl_pathv.add(offset + index));
            }
        }
    }
    result
}
