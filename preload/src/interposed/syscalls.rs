//! System calls by number: syscall(2) of libc's, which programs use for calls that their libc has no name for.

use core::ffi::{c_char, c_int, c_long, c_void};

use super::changes::{attributes, creation, removal};
use super::lookups::{StatFs, checked, with_file_system, with_target};
use super::opens::opened;
use super::sockets::socket;
use super::status::{descriptor, looked_at};
use super::with_path;
use crate::folder::{is_active, unshadow};
use crate::next::{fail, system_call_of_six};
use crate::pointer::is_readable;
use crate::read_only::{change_two, open_flags};
use crate::resolve::{CWD, locate, working_directory_changed};

/// `fchmodat2(2)`, of Linux 6.6.
const FCHMODAT2: c_long = 452;

/// `struct open_how` of `<linux/openat2.h>`.
#[repr(C)]
#[derive(Clone, Copy)]
struct OpenHow {
    flags: u64,
    mode: u64,
    resolve: u64,
}

/// `RESOLVE_BENEATH` and `RESOLVE_IN_ROOT`: an absolute path means something else then.
const BELOW_DIR: u64 = 0x08 | 0x10;

type Arguments = [usize; 6];

#[unsafe(no_mangle)]
unsafe extern "C" fn syscall(
    number: c_long,
    first: usize,
    second: usize,
    third: usize,
    fourth: usize,
    fifth: usize,
    sixth: usize,
) -> c_long {
    let arguments = [first, second, third, fourth, fifth, sixth];
    // SAFETY: the caller's own call, but for paths.
    unsafe {
        if is_active()
            && let Some(result) = with_paths(number, arguments)
        {
            return result;
        }
        system_call_of_six(number, arguments)
    }
}

const fn as_path(argument: usize) -> *const c_char {
    argument as *const c_char
}

#[expect(clippy::cast_possible_truncation, clippy::cast_possible_wrap, reason = "the kernel looks at 32 bits as well")]
const fn as_int(argument: usize) -> c_int {
    argument as c_int
}

#[expect(clippy::cast_possible_truncation, reason = "of these calls, no result has more bits")]
const fn as_status(result: c_long) -> c_int {
    result as c_int
}

/// The arguments with another path at `index`.
fn with(mut arguments: Arguments, index: usize, path: *const c_char) -> Arguments {
    if let Some(argument) = arguments.get_mut(index) {
        *argument = path as usize;
    }
    arguments
}

/// # Safety
/// As the system call demands.
unsafe fn call(number: c_long, arguments: Arguments) -> c_int {
    // SAFETY: the caller's promise.
    as_status(unsafe { system_call_of_six(number, arguments) })
}

/// The result of a system call that takes a path; `None` if it takes none.
///
/// # Safety
/// As the system call demands.
unsafe fn with_paths(number: c_long, arguments: Arguments) -> Option<c_long> {
    let [a, b, c, d, fifth, ..] = arguments;
    // SAFETY: the caller's own call, but for the path, in all of these.
    unsafe {
        let at = |index: usize| move |path: *const c_char| call(number, with(arguments, index, path));
        Some(match number {
            libc::SYS_openat => c_long::from(opened(as_int(a), as_path(b), as_int(c), |path, flags| {
                call(number, [a, path as usize, flags.cast_unsigned() as usize, d, 0, 0])
            })),
            libc::SYS_openat2 => c_long::from(open_as(as_int(a), as_path(b), arguments)),
            libc::SYS_name_to_handle_at => c_long::from(with_path(as_int(a), as_path(b), at(1))),
            libc::SYS_newfstatat => {
                c_long::from(looked_at(as_int(a), as_path(b), as_int(d), c as *mut libc::stat, at(1)))
            }
            libc::SYS_statx => {
                c_long::from(looked_at(as_int(a), as_path(b), as_int(c), fifth as *mut libc::statx, at(1)))
            }
            libc::SYS_fstat => c_long::from(descriptor(call(number, arguments), b as *mut libc::stat)),
            libc::SYS_inotify_add_watch => c_long::from(with_path(CWD, as_path(b), at(1))),
            libc::SYS_getxattr | libc::SYS_lgetxattr | libc::SYS_listxattr | libc::SYS_llistxattr => {
                c_long::from(with_path(CWD, as_path(a), at(0)))
            }
            libc::SYS_statfs => c_long::from(with_file_system(as_path(a), b as *mut StatFs, at(0))),
            libc::SYS_faccessat | libc::SYS_faccessat2 => {
                c_long::from(checked(as_int(a), as_path(b), as_int(c), at(1)))
            }
            libc::SYS_readlinkat => target(c, with_path(as_int(a), as_path(b), at(1))),
            libc::SYS_getcwd => directory(a, call(number, arguments)),
            libc::SYS_chdir => c_long::from(super::lookups::chdir(as_path(a))),
            libc::SYS_fchdir => {
                let result = call(number, arguments);
                if result == 0 {
                    working_directory_changed(Some(as_int(a)));
                }
                c_long::from(result)
            }
            libc::SYS_execve => c_long::from(super::programs::execve(as_path(a), b as *const _, c as *const _)),
            libc::SYS_execveat => {
                let give = |variables: *const *const c_char| call(number, [a, b, c, variables as usize, fifth, 0]);
                c_long::from(crate::environment::given_back(d as *const _, give))
            }
            libc::SYS_socket => c_long::from(socket(as_int(a), as_int(b), as_int(c))),

            libc::SYS_fchmodat | FCHMODAT2 | libc::SYS_fchownat | libc::SYS_utimensat => {
                c_long::from(attributes(as_int(a), as_path(b), at(1)))
            }
            libc::SYS_truncate
            | libc::SYS_setxattr
            | libc::SYS_lsetxattr
            | libc::SYS_removexattr
            | libc::SYS_lremovexattr => c_long::from(attributes(CWD, as_path(a), at(0))),
            libc::SYS_mkdirat | libc::SYS_mknodat => c_long::from(creation(as_int(a), as_path(b), at(1))),
            libc::SYS_symlinkat => c_long::from(creation(as_int(b), as_path(c), at(2))),
            libc::SYS_unlinkat => c_long::from(removal(as_int(a), as_path(b), at(1))),
            libc::SYS_renameat2 | libc::SYS_linkat => c_long::from(both(number, arguments, 1, 3)),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_renameat => c_long::from(both(number, arguments, 1, 3)),
            #[cfg(target_arch = "x86_64")]
            _ => c_long::from(legacy(number, arguments)?),
            #[cfg(not(target_arch = "x86_64"))]
            _ => return None,
        })
    }
}

/// Calls that newer machines do not have.
///
/// # Safety
/// As the system call demands.
#[cfg(target_arch = "x86_64")]
unsafe fn legacy(number: c_long, arguments: Arguments) -> Option<c_int> {
    let [a, b, c, ..] = arguments;
    let at = |index: usize| {
        move |path: *const c_char| {
            // SAFETY: the caller's own call, but for the path.
            unsafe { call(number, with(arguments, index, path)) }
        }
    };
    // SAFETY: as above.
    unsafe {
        Some(match number {
            libc::SYS_open => opened(CWD, as_path(a), as_int(b), |path, flags| {
                call(number, [path as usize, flags.cast_unsigned() as usize, c, 0, 0, 0])
            }),
            libc::SYS_creat => super::opens::creat(as_path(a), as_int(b).cast_unsigned()),
            libc::SYS_stat | libc::SYS_lstat => looked_at(CWD, as_path(a), 0, b as *mut libc::stat, at(0)),
            libc::SYS_access => checked(CWD, as_path(a), as_int(b), at(0)),
            libc::SYS_readlink => as_status(target(b, with_path(CWD, as_path(a), at(0)))),
            libc::SYS_chmod | libc::SYS_chown | libc::SYS_lchown | libc::SYS_utime | libc::SYS_utimes => {
                attributes(CWD, as_path(a), at(0))
            }
            libc::SYS_futimesat => attributes(as_int(a), as_path(b), at(1)),
            libc::SYS_mkdir | libc::SYS_mknod => creation(CWD, as_path(a), at(0)),
            libc::SYS_symlink => creation(CWD, as_path(b), at(1)),
            libc::SYS_unlink | libc::SYS_rmdir => removal(CWD, as_path(a), at(0)),
            libc::SYS_rename | libc::SYS_link => change_two((CWD, as_path(a)), (CWD, as_path(b)), |from, to| {
                call(number, [from as usize, to as usize, 0, 0, 0, 0])
            }),
            _ => return None,
        })
    }
}

/// The result of renameat(2) and its like, whose paths are at these places, each behind its directory.
///
/// # Safety
/// As the system call demands.
unsafe fn both(number: c_long, arguments: Arguments, from: usize, to: usize) -> c_int {
    let at = |index: usize| {
        let argument = |index: usize| arguments.get(index).copied().unwrap_or_default();
        (as_int(argument(index - 1)), as_path(argument(index)))
    };
    // SAFETY: the caller's own call, but for the paths.
    unsafe { change_two(at(from), at(to), |old, new| call(number, with(with(arguments, from, old), to, new))) }
}

/// The result of openat2(2).
///
/// # Safety
/// As the system call demands.
unsafe fn open_as(dir: c_int, path: *const c_char, arguments: Arguments) -> c_int {
    let [_, _, how, size, ..] = arguments;
    // SAFETY: the caller's own call; a structure of another size is left alone.
    unsafe {
        let is_known = size == size_of::<OpenHow>() && is_readable(how as *const OpenHow, size);
        let located = is_known.then(|| locate(dir, path)).flatten();
        let Some(located) = located else { return call(libc::SYS_openat2, arguments) };
        let mut how = *(how as *const OpenHow);
        if how.resolve & BELOW_DIR != 0 && path.cast::<u8>().read() == b'/' {
            return call(libc::SYS_openat2, arguments);
        }
        #[expect(clippy::cast_possible_truncation, reason = "no flag has more bits")]
        let flags = how.flags as u32;
        let flags = match open_flags(&located, flags.cast_signed()) {
            Ok(flags) => flags,
            Err(errno) => return fail(errno),
        };
        how.flags = u64::from(flags.cast_unsigned());
        if how.flags & u64::from(libc::O_CREAT.cast_unsigned()) == 0 {
            how.mode = 0;
        }
        if located.is_shadowed {
            how.resolve = 0;
        }
        let [dir, ..] = arguments;
        let fd = call(libc::SYS_openat2, [dir, located.as_ptr() as usize, (&raw const how) as usize, size, 0, 0]);
        crate::live::brought_up_to_date(path, fd)
    }
}

/// The result of readlink(2).
///
/// # Safety
/// `buffer` holds `len` bytes if that is not negative.
unsafe fn target(buffer: usize, len: c_int) -> c_long {
    // SAFETY: the caller's promise.
    unsafe { with_target((buffer as *mut c_void).cast(), len as isize) as c_long }
}

/// The result of getcwd(2), whose length counts the NUL.
///
/// # Safety
/// `buffer` holds `len` bytes if that is positive.
unsafe fn directory(buffer: usize, len: c_int) -> c_long {
    match usize::try_from(len) {
        Ok(len @ 1..) => {
            // SAFETY: the caller's promise. What follows the shorter path is zero.
            let shown = unsafe { unshadow((buffer as *mut c_void).cast(), len - 1) };
            c_long::try_from(shown + 1).unwrap_or(c_long::from(fail::<c_int>(libc::ERANGE)))
        }
        _ => c_long::from(len),
    }
}
