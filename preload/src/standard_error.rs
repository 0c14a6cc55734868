//! Warnings go where standard error led when the program began, or nowhere.
//!
//! Descriptor 2 may be something else by now: a daemon that has closed its descriptors gets the number for a file or a
//! connection of its own. Nothing is written to sockets at all (a server that inetd(8) starts has its client there), nor
//! where a write would wait or end the program by a signal.

use core::ffi::{CStr, c_int};
use core::sync::atomic::{AtomicU64, Ordering};

use crate::next::with_errno_kept;
use crate::status::status_of;

/// Device and inode of the file that standard error was; inode 0 if there was none.
static DEVICE: AtomicU64 = AtomicU64::new(0);
static INODE: AtomicU64 = AtomicU64::new(0);

/// Keeps which file standard error is. To be called before the program can have changed it.
pub(crate) fn remember() {
    if let Some(status) = with_errno_kept(status) {
        DEVICE.store(status.st_dev, Ordering::Relaxed);
        INODE.store(status.st_ino, Ordering::Relaxed);
    }
}

fn status() -> Option<libc::stat> {
    status_of(libc::STDERR_FILENO)
}

/// Writes a line, if standard error is what it was.
pub(crate) fn write(line: &CStr) {
    with_errno_kept(|| {
        let is_same = |status: &libc::stat| {
            (status.st_dev, status.st_ino) == (DEVICE.load(Ordering::Relaxed), INODE.load(Ordering::Relaxed))
        };
        let Some(status) = status().filter(is_same) else { return };
        let takes_it = match status.st_mode & libc::S_IFMT {
            libc::S_IFCHR | libc::S_IFIFO => can_be_written(),
            libc::S_IFREG => files_may_grow(),
            _ => false,
        };
        if takes_it {
            // SAFETY: a descriptor, and as many bytes as there are.
            unsafe { libc::write(libc::STDERR_FILENO, line.as_ptr().cast(), line.to_bytes().len()) };
        }
    });
}

/// Whether a write would neither wait nor find that nobody reads (SIGPIPE).
fn can_be_written() -> bool {
    let mut polled = libc::pollfd { fd: libc::STDERR_FILENO, events: libc::POLLOUT, revents: 0 };
    // SAFETY: one entry.
    unsafe { libc::poll(&raw mut polled, 1, 0) == 1 && polled.revents == libc::POLLOUT }
}

/// Whether a write cannot reach the limit of a file's size (SIGXFSZ, setrlimit(2)).
fn files_may_grow() -> bool {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: room for the answer.
    let result: c_int = unsafe { libc::getrlimit(libc::RLIMIT_FSIZE, &raw mut limit) };
    result == 0 && limit.rlim_cur == libc::RLIM_INFINITY
}
