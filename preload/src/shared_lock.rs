//! A shared lock on a file of the folder, held for as long as this process runs this program.
//!
//! The reaper of `urxe run` removes the folder when nobody holds the lock any more. The lock belongs to an open file
//! description (`F_OFD_SETLK`, fcntl_locking(2)), and the only reference to that description is a mapping of the file
//! that nobody can read or write. So there is no descriptor that the program could see, count or close; a forked child
//! inherits the mapping and with it the lock; execve(2) drops it, and the next program takes the lock anew. A program that
//! writes its title over its environment, or becomes another user, keeps it.

use core::ffi::{c_int, c_long};

use crate::folder::folder;
use crate::text::Path;

/// One page, of whatever size.
const LENGTH: usize = 1;

/// Takes the lock on the folder's file `name`. Where that fails the reaper still finds this process by its environment.
pub fn hold_folder(name: &str) {
    // SAFETY: the calling thread's errno.
    let errno = unsafe { *libc::__errno_location() };
    if let Some(folder) = folder()
        && let Some(mut path) = Path::new()
        && path.push_all(folder)
        && path.push_component(name.as_bytes())
    {
        lock(&path);
    }
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = errno };
}

/// System calls by their numbers: libc's functions of these names are ours.
fn lock(path: &Path) {
    let flags = libc::O_RDONLY | libc::O_CLOEXEC | libc::O_NOFOLLOW | libc::O_NONBLOCK;
    // SAFETY: a C string.
    let fd = unsafe { libc::syscall(libc::SYS_openat, libc::AT_FDCWD, path.as_ptr(), flags, 0) };
    let Ok(fd) = c_int::try_from(fd) else { return };
    if fd < 0 {
        return;
    }
    // SAFETY: all-zero is a valid `flock`: from the start to the end of the file, by no process in particular.
    let mut range: libc::flock = unsafe { core::mem::zeroed() };
    #[expect(clippy::cast_possible_truncation, reason = "0, 1 and 2")]
    {
        range.l_type = libc::F_RDLCK as libc::c_short;
        range.l_whence = libc::SEEK_SET as libc::c_short;
    }
    // SAFETY: a descriptor of ours. Closing it leaves the mapping's reference, on which nobody counts but the kernel.
    unsafe {
        if libc::syscall(libc::SYS_fcntl, fd, libc::F_OFD_SETLK, &raw const range) == 0 {
            let (no_address, no_offset): (c_long, c_long) = (0, 0);
            libc::syscall(libc::SYS_mmap, no_address, LENGTH, libc::PROT_NONE, libc::MAP_PRIVATE, fd, no_offset);
        }
        libc::syscall(libc::SYS_close, fd);
    }
}
