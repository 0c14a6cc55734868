//! Descriptors of a port and the epoll instance that watches them, known all together so that a forked child can close
//! its copies without taking a lock.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::io;
use std::os::fd::{AsRawFd, IntoRawFd, OwnedFd, RawFd};
use std::sync::Arc;

use crate::sys::{close, epoll_add, epoll_create, epoll_ready, epoll_remove};

/// Highest descriptor number that is kept track of; the usual hard limits are far below or, where they are not, nobody
/// gets there.
const MAX_FD: usize = 1 << 16;

/// The set of open descriptors of one port, as a bitmap by number: readable after `fork` whatever lock was held.
#[derive(Debug)]
pub(crate) struct FdSet {
    epoll: RawFd,
    bits: Box<[AtomicU64]>,
    /// Every [`Fd`] is closed already, and the number may be somebody else's by now.
    abandoned: AtomicBool,
}

impl FdSet {
    pub(crate) fn new() -> io::Result<Arc<Self>> {
        let bits = (0..MAX_FD / 64).map(|_| AtomicU64::new(0)).collect();
        let epoll = epoll_create()?.into_raw_fd();
        Ok(Arc::new(Self { epoll, bits, abandoned: AtomicBool::new(false) }))
    }

    /// The epoll instance.
    pub(crate) fn epoll(&self) -> RawFd {
        self.epoll
    }

    /// Watches a descriptor of the set for input and hang-up, under `token`, until it is closed.
    pub(crate) fn watch(&self, fd: RawFd, token: u64) -> io::Result<()> {
        epoll_add(self.epoll, fd, libc::EPOLLIN | libc::EPOLLRDHUP, token)
    }

    /// Watches a descriptor of the set for room to write, likewise.
    pub(crate) fn watch_output(&self, fd: RawFd, token: u64) -> io::Result<()> {
        epoll_add(self.epoll, fd, libc::EPOLLOUT, token)
    }

    /// Stops watching a descriptor.
    pub(crate) fn unwatch(&self, fd: RawFd) {
        epoll_remove(self.epoll, fd);
    }

    /// The tokens of up to `N` watched descriptors that are ready now.
    pub(crate) fn ready<const N: usize>(&self, tokens: &mut [u64; N]) -> usize {
        epoll_ready(self.epoll, tokens)
    }

    /// Takes a descriptor into the set. A fork between its creation and this call leaves it open in the child until
    /// the child's `exec` (all are close-on-exec).
    pub(crate) fn adopt(self: &Arc<Self>, fd: impl Into<OwnedFd>) -> io::Result<Fd> {
        let fd = fd.into();
        let number = usize::try_from(fd.as_raw_fd()).unwrap_or(usize::MAX);
        let Some(word) = self.bits.get(number / 64) else {
            return Err(io::Error::from_raw_os_error(libc::EMFILE));
        };
        word.fetch_or(1 << (number % 64), Ordering::Relaxed);
        Ok(Fd { raw: fd.into_raw_fd(), set: Arc::clone(self) })
    }

    /// Closes all, now and for good, though they are still referred to: in the child of a fork, or when a device is closed
    /// whose objects were not destroyed. Takes no lock, allocates nothing.
    pub(crate) fn abandon(&self) {
        if self.abandoned.swap(true, Ordering::Relaxed) {
            return;
        }
        // SAFETY: the set owns its epoll instance, and `abandoned` keeps `drop` from closing it again.
        unsafe { libc::close(self.epoll) };
        for (base, word) in self.bits.iter().enumerate() {
            let mut bits = word.swap(0, Ordering::Relaxed);
            while bits != 0 {
                let number = base * 64 + bits.trailing_zeros() as usize;
                bits &= bits - 1;
                if let Ok(raw) = RawFd::try_from(number) {
                    // SAFETY: the bit says that an `Fd` of this set owns the number, and `abandoned` keeps that `Fd`
                    // from closing it again.
                    unsafe { libc::close(raw) };
                }
            }
        }
    }
}

impl Drop for FdSet {
    fn drop(&mut self) {
        if !self.abandoned.load(Ordering::Relaxed) {
            // SAFETY: the set owns its epoll instance and is going away.
            unsafe { libc::close(self.epoll) };
        }
    }
}

/// An owned descriptor of a port.
#[derive(Debug)]
pub(crate) struct Fd {
    raw: RawFd,
    set: Arc<FdSet>,
}

impl AsRawFd for Fd {
    fn as_raw_fd(&self) -> RawFd {
        self.raw
    }
}

impl Drop for Fd {
    fn drop(&mut self) {
        if self.set.abandoned.load(Ordering::Relaxed) {
            return;
        }
        // A copy in a forked process would keep a merely closed descriptor in the epoll instance, ready for ever.
        epoll_remove(self.set.epoll, self.raw);
        // `adopt` accepted the number, so it is in range.
        let number = self.raw.unsigned_abs() as usize;
        let bit = 1 << (number % 64);
        let Some(word) = self.set.bits.get(number / 64) else { return };
        // Unless all have just been closed.
        if word.fetch_and(!bit, Ordering::Relaxed) & bit != 0 {
            // SAFETY: `self` owns the descriptor and is going away.
            unsafe { close(self.raw) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_open(raw: RawFd) -> bool {
        // SAFETY: F_GETFD reads a flag; a number that is not open gives EBADF.
        unsafe { libc::fcntl(raw, libc::F_GETFD) >= 0 }
    }

    /// A number far above what parallel tests use, so that nobody reuses it between close and check.
    fn high_fd(number: RawFd) -> OwnedFd {
        use std::os::fd::FromRawFd;
        let file = std::fs::File::open("/dev/null").unwrap();
        // SAFETY: duplicates an open descriptor to a new number >= `number`, which the result then owns.
        unsafe { OwnedFd::from_raw_fd(libc::fcntl(file.as_raw_fd(), libc::F_DUPFD_CLOEXEC, number)) }
    }

    #[test]
    fn drop_closes() {
        let set = FdSet::new().unwrap();
        let fd = set.adopt(high_fd(700)).unwrap();
        let raw = fd.as_raw_fd();
        assert!(is_open(raw));
        drop(fd);
        assert!(!is_open(raw));
    }

    #[test]
    fn abandon_closes_once() {
        let set = FdSet::new().unwrap();
        let fd = set.adopt(high_fd(800)).unwrap();
        let raw = fd.as_raw_fd();
        set.abandon();
        assert!(!is_open(raw));
        let other = high_fd(raw);
        assert_eq!(other.as_raw_fd(), raw);
        drop(fd);
        assert!(is_open(raw), "an abandoned descriptor closed somebody else's");
    }
}
