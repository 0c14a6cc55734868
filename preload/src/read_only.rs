//! The folder is shown as a read-only file system: what would change it fails as it does on one.
//!
//! The device files in it lead to `/dev/null`, and a program that may be root must not change that by chmod(2) of
//! `/dev/infiniband/uverbs0`; nor may a change miss the folder and reach the machine's own device.

use core::ffi::{CStr, c_char, c_int};
use core::mem::MaybeUninit;

use crate::next::{Missing, fail, system_call, with_errno_kept};
use crate::resolve::{CWD, Located, locate, locate_always};

/// The kind of the file at `path`, links followed or not (`S_IFMT` of inode(7)), or why there is none.
fn kind(path: &Located, follow: bool) -> Result<libc::mode_t, c_int> {
    let mut stat = MaybeUninit::<libc::stat>::uninit();
    let flags = if follow { 0 } else { libc::AT_SYMLINK_NOFOLLOW };
    // SAFETY: a C string, and room for the answer: the kernel's structure is libc's on 64-bit machines.
    unsafe {
        let arguments = [CWD as usize, path.as_ptr() as usize, stat.as_mut_ptr() as usize, flags as usize];
        if system_call(libc::SYS_newfstatat, arguments) == 0 {
            Ok(stat.assume_init().st_mode & libc::S_IFMT)
        } else {
            Err(*libc::__errno_location())
        }
    }
}

/// Whether the file is there.
pub(crate) fn exists(path: &Located) -> bool {
    with_errno_kept(|| kind(path, true)).is_ok()
}

/// The flags by which libc may open a file of the folder, or why it may not.
pub(crate) fn open_flags(path: &Located, flags: c_int) -> Result<c_int, c_int> {
    let creates = flags & libc::O_CREAT != 0;
    let writes = flags & libc::O_ACCMODE != libc::O_RDONLY || flags & libc::O_TRUNC != 0;
    if !path.is_shadowed || !(creates || writes) || flags & libc::O_PATH != 0 {
        return Ok(flags);
    }
    if flags & libc::O_TMPFILE == libc::O_TMPFILE {
        return Err(libc::EROFS);
    }
    match with_errno_kept(|| kind(path, true)) {
        Err(libc::ENOENT) if creates => Err(libc::EROFS),
        Ok(_) if creates && flags & libc::O_EXCL != 0 => Err(libc::EEXIST),
        Ok(libc::S_IFREG) if writes => Err(libc::EROFS),
        Ok(libc::S_IFREG | libc::S_IFCHR) => Ok(flags & !(libc::O_CREAT | libc::O_TRUNC)),
        _ => Ok(flags),
    }
}

/// The flags of open(2) for a mode of fopen(3).
///
/// # Safety
/// `mode` is a C string.
pub(crate) unsafe fn mode_flags(mode: *const c_char) -> c_int {
    // SAFETY: the caller's promise.
    let mode = unsafe { CStr::from_ptr(mode) }.to_bytes();
    let first = match mode.first() {
        Some(b'w') => libc::O_WRONLY | libc::O_CREAT | libc::O_TRUNC,
        Some(b'a') => libc::O_WRONLY | libc::O_CREAT,
        _ if mode.contains(&b'+') => libc::O_RDWR,
        _ => libc::O_RDONLY,
    };
    first | if mode.contains(&b'x') { libc::O_EXCL } else { 0 }
}

/// Whether writing to the file is refused, as access(2) says it: devices can be written to.
pub(crate) fn refuses_writing(path: &Located) -> bool {
    path.is_shadowed && with_errno_kept(|| kind(path, true)).is_ok_and(|kind| kind != libc::S_IFCHR)
}

/// Change that a call is about to make to a name.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Change {
    /// Changes the file, which must be there.
    Attributes,
    /// Makes one, which must not be there.
    Creation,
    /// Takes the name away: refused without a look whether it is there.
    Removal,
}

/// Calls `then` with the path at which the file really is, if that is not one of the folder's.
///
/// # Safety
/// `path` is null or a C string.
pub(crate) unsafe fn change<R: Missing>(
    what: Change,
    dir: c_int,
    path: *const c_char,
    then: impl FnOnce(*const c_char) -> R,
) -> R {
    // SAFETY: the caller's promise.
    match unsafe { locate_always(dir, path) } {
        Some(located) if located.is_shadowed => fail(refusal(what, &located)),
        Some(located) => then(located.as_ptr()),
        None => then(path),
    }
}

fn refusal(what: Change, path: &Located) -> c_int {
    match (what, with_errno_kept(|| kind(path, false))) {
        (Change::Creation, Ok(_)) => libc::EEXIST,
        (Change::Attributes, Err(errno)) => errno,
        _ => libc::EROFS,
    }
}

/// As [`change`], for the two names of rename(2) and link(2).
///
/// # Safety
/// Both are null or C strings.
pub(crate) unsafe fn change_two<R: Missing>(
    (from_dir, from): (c_int, *const c_char),
    (to_dir, to): (c_int, *const c_char),
    then: impl FnOnce(*const c_char, *const c_char) -> R,
) -> R {
    // SAFETY: the caller's promise.
    let (old, new) = unsafe { (locate_always(from_dir, from), locate_always(to_dir, to)) };
    let is_shadowed = |path: &Option<Located>| path.as_ref().is_some_and(|path| path.is_shadowed);
    match (is_shadowed(&old), is_shadowed(&new)) {
        (true, true) => fail(libc::EROFS),
        (true, false) | (false, true) => fail(libc::EXDEV),
        (false, false) => then(old.as_ref().map_or(from, Located::as_ptr), new.as_ref().map_or(to, Located::as_ptr)),
    }
}

/// Calls `then` with the path at which the file really is, and the flags by which that may be opened.
///
/// # Safety
/// `path` is null or a C string.
pub(crate) unsafe fn open<R: Missing>(
    dir: c_int,
    path: *const c_char,
    flags: c_int,
    then: impl FnOnce(*const c_char, c_int) -> R,
) -> R {
    // SAFETY: the caller's promise.
    match unsafe { locate(dir, path) } {
        Some(located) => match open_flags(&located, flags) {
            Ok(flags) => then(located.as_ptr(), flags),
            Err(errno) => fail(errno),
        },
        None => then(path, flags),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_of_fopen_as_open_knows_them() {
        for (mode, flags) in [
            (c"r", libc::O_RDONLY),
            (c"rb", libc::O_RDONLY),
            (c"r+", libc::O_RDWR),
            (c"we", libc::O_WRONLY | libc::O_CREAT | libc::O_TRUNC),
            (c"w+x", libc::O_WRONLY | libc::O_CREAT | libc::O_TRUNC | libc::O_EXCL),
            (c"a", libc::O_WRONLY | libc::O_CREAT),
        ] {
            // SAFETY: a C string.
            assert_eq!(unsafe { mode_flags(mode.as_ptr()) }, flags, "{mode:?}");
        }
    }
}
