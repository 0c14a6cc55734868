//! Identity of open files: tells whether a descriptor number still refers to the file that was opened.
//!
//! An application may close every descriptor of its process, ours among them (daemon(7) does so by the book), and use the
//! numbers again. The file that a number refers to then is the application's: it must not be closed, written to or waited for.

use std::fs::File;
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::sync::atomic::{AtomicI32, Ordering};

/// Identity of the open file under a descriptor number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Identity {
    device: u64,
    inode: u64,
    /// Number that the open file was marked with, where all files of its kind share one inode: eventfds, timers and epoll
    /// instances (`anon_inode:`). Nobody is told of such files by SIGIO, so the signal of fcntl(2) is free to say which one it is.
    mark: Option<libc::c_int>,
}

/// Number of marks. They are signals that no program asks for in the place of SIGIO: those before it. A file that the application has opened
/// bears none, and two files of this library bear different ones, unless so many were marked in between.
const MARKS: libc::c_int = 28;

impl Identity {
    /// Reads the identity of the open file under `fd`. Marks the file where its inode does not tell it from others.
    ///
    /// # Errors
    /// Errors of fstat(2).
    pub fn of(fd: RawFd) -> io::Result<Self> {
        let (device, inode, is_anonymous) = inode(fd)?;
        let mark = if is_anonymous { mark(fd) } else { None };
        Ok(Self { device, inode, mark })
    }

    /// Whether `fd` still refers to this open file.
    #[must_use]
    pub fn is_under(&self, fd: RawFd) -> bool {
        match self.mark {
            Some(mark) => marked(fd) == Some(mark),
            None => inode(fd).is_ok_and(|(device, inode, _)| (device, inode) == (self.device, self.inode)),
        }
    }
}

/// Device and inode of an open file, and whether the inode has no type: many open files share it then.
fn inode(fd: RawFd) -> io::Result<(u64, u64, bool)> {
    // SAFETY: borrowed for fstat(2), which fails if nothing is open there, and never closed here.
    let file = ManuallyDrop::new(unsafe { File::from_raw_fd(fd) });
    let metadata = file.metadata()?;
    let kind = metadata.file_type();
    let has_type = kind.is_file()
        || kind.is_dir()
        || kind.is_socket()
        || kind.is_fifo()
        || kind.is_char_device()
        || kind.is_block_device();
    Ok((metadata.dev(), metadata.ino(), !has_type))
}

const F_SETSIG: libc::c_int = 10;
const F_GETSIG: libc::c_int = 11;

/// Marks an open file, unless it is marked. `None` where fcntl(2) may not: then nothing can be told.
fn mark(fd: RawFd) -> Option<libc::c_int> {
    static NEXT: AtomicI32 = AtomicI32::new(0);
    // A duplicate of a file that is known by its mark already.
    if let known @ Some(_) = marked(fd) {
        return known;
    }
    let mark = NEXT.fetch_add(1, Ordering::Relaxed).rem_euclid(MARKS) + 1;
    // SAFETY: plain numbers.
    (unsafe { libc::fcntl(fd, F_SETSIG, mark) } == 0).then_some(mark)
}

/// Mark of an open file.
fn marked(fd: RawFd) -> Option<libc::c_int> {
    // SAFETY: plain numbers.
    let found = unsafe { libc::fcntl(fd, F_GETSIG) };
    (1..=MARKS).contains(&found).then_some(found)
}

/// A descriptor that is closed only if it still is what it was.
#[derive(Debug)]
pub struct CheckedFd {
    raw: RawFd,
    identity: Option<Identity>,
}

impl CheckedFd {
    /// Whether the number still refers to the file that was opened, as far as that can be told.
    #[must_use]
    pub fn is_ours(&self) -> bool {
        self.identity.is_none_or(|identity| identity.is_under(self.raw))
    }

    /// Returns the descriptor, if the number still refers to the file that was opened.
    #[must_use]
    pub fn into_owned(self) -> Option<OwnedFd> {
        let checked = ManuallyDrop::new(self);
        // SAFETY: owned, and given up without being closed.
        checked.is_ours().then(|| unsafe { OwnedFd::from_raw_fd(checked.raw) })
    }

    /// Identity of the open file; none if it could not be found out.
    #[must_use]
    pub fn identity(&self) -> Option<Identity> {
        self.identity
    }
}

impl From<OwnedFd> for CheckedFd {
    fn from(fd: OwnedFd) -> Self {
        Self { identity: Identity::of(fd.as_raw_fd()).ok(), raw: fd.into_raw_fd() }
    }
}

impl AsRawFd for CheckedFd {
    fn as_raw_fd(&self) -> RawFd {
        self.raw
    }
}

impl Drop for CheckedFd {
    fn drop(&mut self) {
        if self.is_ours() {
            // SAFETY: owned, and not used any more.
            unsafe { crate::sys::close(self.raw) };
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use super::*;
    use crate::sys::{epoll_create, timer_create};

    /// Puts another open file under the number of a checked one, which must not be closed then.
    fn is_left_alone(ours: OwnedFd, other: &impl AsRawFd) {
        let raw = ours.as_raw_fd();
        let given_back = CheckedFd::from(ours).into_owned().expect("it is ours");
        assert_eq!(given_back.as_raw_fd(), raw);
        let checked = CheckedFd::from(given_back);
        assert!(checked.is_ours());
        // SAFETY: replaces what is under a number that nobody but `checked` knows.
        assert_eq!(unsafe { libc::dup3(other.as_raw_fd(), raw, libc::O_CLOEXEC) }, raw);
        assert!(!checked.is_ours());
        let again = CheckedFd { raw, identity: checked.identity };
        assert!(again.into_owned().is_none());
        drop(checked);
        // SAFETY: a look at a flag, and the end of a number that nobody else knows.
        assert_eq!(unsafe { (libc::fcntl(raw, libc::F_GETFD), libc::close(raw)) }, (libc::FD_CLOEXEC, 0));
    }

    #[test]
    fn another_file_under_the_number_is_left_alone() {
        let socket = || OwnedFd::from(UdpSocket::bind("127.0.0.1:0").unwrap());
        is_left_alone(socket(), &socket());
        is_left_alone(timer_create().unwrap(), &timer_create().unwrap());
        is_left_alone(epoll_create().unwrap(), &timer_create().unwrap());
        is_left_alone(socket(), &epoll_create().unwrap());
        is_left_alone(epoll_create().unwrap(), &socket());
    }

    /// A device that is opened when the application has closed the descriptors of an earlier one may get their numbers.
    #[test]
    fn another_file_of_this_library_under_the_number_is_left_alone() {
        is_left_alone(epoll_create().unwrap(), &CheckedFd::from(epoll_create().unwrap()));
        is_left_alone(timer_create().unwrap(), &CheckedFd::from(epoll_create().unwrap()));
    }

    #[test]
    fn a_duplicate_is_the_same_file() {
        let timer = timer_create().unwrap();
        let identity = Identity::of(timer.as_raw_fd()).unwrap();
        let duplicate = timer.try_clone().unwrap();
        assert!(identity.is_under(duplicate.as_raw_fd()));
        assert_eq!(Identity::of(duplicate.as_raw_fd()).unwrap(), identity);
        assert!(identity.is_under(timer.as_raw_fd()));
    }
}
