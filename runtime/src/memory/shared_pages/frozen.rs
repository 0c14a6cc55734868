//! Pages that nobody writes to while they are copied.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr;
use std::sync::atomic::{AtomicU8, Ordering};

use crate::limits::page;

// <linux/userfaultfd.h>
const USER_MODE_ONLY: libc::c_int = 1;
const API: u64 = 0xAA;
const FEATURE_WP: u64 = 1;
const FEATURE_WP_SHMEM: u64 = 1 << 12;
const FEATURE_WP_UNPOPULATED: u64 = 1 << 13;
const FEATURES_SHARED: u64 = FEATURE_WP | FEATURE_WP_SHMEM;
const UFFDIO_API: u64 = 0xC018_AA3F;
const UFFDIO_REGISTER: u64 = 0xC020_AA00;
const UFFDIO_WRITEPROTECT: u64 = 0xC018_AA06;
const MODE_MISSING: u64 = 1;
const MODE_WP: u64 = 2;
const WRITEPROTECT_WP: u64 = 1;

/// Bits of `/proc/self/pagemap`: the page is in memory, or swapped out.
const THERE: u64 = 3 << 62;

/// Whether pages of a file in memory can be frozen: Linux 5.19.
pub(super) fn can_freeze_shared() -> bool {
    static KNOWN: AtomicU8 = AtomicU8::new(0);
    match KNOWN.load(Ordering::Relaxed) {
        0 => {
            let can = has_features(FEATURES_SHARED);
            if let Some(can) = can {
                KNOWN.store(if can { 1 } else { 2 }, Ordering::Relaxed);
            }
            can == Some(true)
        }
        known => known == 1,
    }
}

/// Whether the kernel has these features, for this process. `None`: it has no descriptors or memory just now, and does not tell.
pub(super) fn has_features(features: u64) -> Option<bool> {
    const NEVER: [Option<i32>; 3] = [Some(libc::EINVAL), Some(libc::ENOSYS), Some(libc::EPERM)];
    let found = [0, USER_MODE_ONLY].map(|flags| userfaultfd(flags, features).map(drop));
    let is_never = |error: &io::Error| NEVER.contains(&error.raw_os_error());
    if found.iter().any(Result::is_ok) {
        Some(true)
    } else {
        found.iter().all(|found| found.as_ref().is_err_and(is_never)).then_some(false)
    }
}

/// A new userfaultfd(2) with these features.
fn userfaultfd(flags: libc::c_int, features: u64) -> io::Result<OwnedFd> {
    // SAFETY: plain numbers.
    let fd = unsafe { libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC | flags) };
    let fd = i32::try_from(fd).ok().filter(|fd| *fd >= 0).ok_or_else(io::Error::last_os_error)?;
    // SAFETY: new, and ours.
    let faults = unsafe { OwnedFd::from_raw_fd(fd) };
    // The structure of this request, of which the last word is the kernel's to fill in.
    let mut api = [API, features, 0];
    // SAFETY: a request and its structure.
    let is_ready = unsafe { libc::syscall(libc::SYS_ioctl, faults.as_raw_fd(), UFFDIO_API, api.as_mut_ptr()) } == 0;
    if is_ready { Ok(faults) } else { Err(io::Error::last_os_error()) }
}

/// Pages whose writers wait until this is dropped.
pub(super) struct Frozen {
    /// Closed, it lets them go on.
    _faults: OwnedFd,
    start: u64,
    length: u64,
}

impl Frozen {
    /// Freezes private pages: also those that are not there yet. `may_fail_calls`: system calls that write there meanwhile may fail
    /// with EFAULT, if they cannot be held up.
    pub(super) fn private(start: u64, length: u64, may_fail_calls: bool) -> Option<Self> {
        let holds_up = || Self::new(start, length, 0, FEATURE_WP | FEATURE_WP_UNPOPULATED, MODE_WP);
        let fails = || Self::new(start, length, USER_MODE_ONLY, FEATURE_WP, MODE_MISSING | MODE_WP);
        holds_up().or_else(|| if may_fail_calls { fails() } else { None })
    }

    /// Freezes pages of a file in memory.
    pub(super) fn shared(start: u64, length: u64) -> Option<Self> {
        let new = |flags| Self::new(start, length, flags, FEATURES_SHARED, MODE_WP);
        new(0).or_else(|| new(USER_MODE_ONLY))
    }

    fn new(start: u64, length: u64, flags: libc::c_int, features: u64, mode: u64) -> Option<Self> {
        let faults = userfaultfd(flags, features).ok()?;
        // The structures of these requests, of which the last word is the kernel's to fill in.
        let mut register = [start, length, mode, 0];
        let mut protect = [start, length, WRITEPROTECT_WP];
        let requests = [(UFFDIO_REGISTER, register.as_mut_ptr()), (UFFDIO_WRITEPROTECT, protect.as_mut_ptr())];
        let all = requests.into_iter().all(|(request, argument)| {
            // SAFETY: a request and its structure.
            unsafe { libc::syscall(libc::SYS_ioctl, faults.as_raw_fd(), request, argument) == 0 }
        });
        all.then_some(Self { _faults: faults, start, length })
    }

    /// Copies what is there of private pages into a file that is all zero at `at`.
    pub(super) fn copy_to_file(&self, file: BorrowedFd<'_>, at: u64) -> Option<()> {
        // SAFETY: a C string.
        let pagemap = unsafe {
            libc::syscall(
                libc::SYS_openat,
                libc::AT_FDCWD,
                c"/proc/self/pagemap".as_ptr(),
                libc::O_RDONLY | libc::O_CLOEXEC,
            )
        };
        let pagemap = i32::try_from(pagemap).ok().filter(|fd| *fd >= 0)?;
        // SAFETY: new, and ours.
        let pagemap = unsafe { OwnedFd::from_raw_fd(pagemap) };
        let (size, mut words) = (page(), [0_u64; 256]);
        let mut next = self.start;
        while next < self.start + self.length {
            let pages = ((self.start + self.length - next) / size).min(words.len() as u64);
            let bytes = usize::try_from(pages * 8).ok()?;
            let offset = i64::try_from(next / size * 8).ok()?;
            // SAFETY: room for as many bytes.
            let read =
                unsafe { libc::syscall(libc::SYS_pread64, pagemap.as_raw_fd(), words.as_mut_ptr(), bytes, offset) };
            if usize::try_from(read) != Ok(bytes) {
                return None;
            }
            let words = words.get(..bytes / 8)?;
            let mut nth = 0;
            for run in words.split(|word| word & THERE == 0).map(|run| run.len() as u64) {
                if run > 0 {
                    let from = next + nth * size;
                    write(file, from, run * size, at + (from - self.start))?;
                }
                nth += run + 1;
            }
            next += pages * size;
        }
        Some(())
    }
}

/// Writes memory of this process to a file, from the address `from`. Pages that have gone meanwhile (`MADV_FREE`) are zero.
fn write(file: BorrowedFd<'_>, mut from: u64, mut length: u64, mut at: u64) -> Option<()> {
    while length > 0 {
        let (bytes, offset) = (usize::try_from(length).ok()?, i64::try_from(at).ok()?);
        // SAFETY: the kernel reads what is there, and says so of what is not.
        let written = unsafe { libc::syscall(libc::SYS_pwrite64, file.as_raw_fd(), from, bytes, offset) };
        let done = match u64::try_from(written) {
            Ok(0) => return None,
            Ok(written) => written,
            Err(_) if io::Error::last_os_error().raw_os_error() == Some(libc::EFAULT) => {
                (page() - from % page()).min(length)
            }
            Err(_) => return None,
        };
        (from, length, at) = (from + done, length - done, at + done);
    }
    Some(())
}

/// Private pages on their way to where shared ones are.
pub(super) struct PrivateCopy {
    start: *mut libc::c_void,
    length: usize,
}

/// New private pages, all zero.
pub(super) fn private_copy(length: u64) -> Option<PrivateCopy> {
    let length = usize::try_from(length).ok()?;
    let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: a new mapping.
    let start = unsafe { libc::mmap(ptr::null_mut(), length, protection, flags, -1, 0) };
    (start != libc::MAP_FAILED).then_some(PrivateCopy { start, length })
}

impl PrivateCopy {
    /// Reads what is in the file from `at` on.
    pub(super) fn fill_from(&self, file: BorrowedFd<'_>, at: u64) -> Option<()> {
        let end = i64::try_from(at + self.length as u64).ok()?;
        let first = i64::try_from(at).ok()?;
        let mut next = first;
        while next < end {
            // SAFETY: plain numbers. Whoever else has the file may move its position: it is not used.
            let data = unsafe { libc::lseek(file.as_raw_fd(), next, libc::SEEK_DATA) };
            if data < 0 {
                let nothing = io::Error::last_os_error().raw_os_error() == Some(libc::ENXIO);
                return nothing.then_some(());
            }
            if data >= end {
                break;
            }
            // SAFETY: as above.
            let hole = unsafe { libc::lseek(file.as_raw_fd(), data, libc::SEEK_HOLE) };
            let until = if hole < data { end } else { hole.min(end) };
            let mut from = data;
            while from < until {
                let (to, bytes) = (usize::try_from(from - first).ok()?, usize::try_from(until - from).ok()?);
                // SAFETY: within the new pages, which nobody else knows.
                let read =
                    unsafe { libc::syscall(libc::SYS_pread64, file.as_raw_fd(), self.start.byte_add(to), bytes, from) };
                if read <= 0 {
                    return None;
                }
                from += read;
            }
            next = until;
        }
        Some(())
    }

    /// Puts the pages in the place of those at `start`, of which they are a copy.
    pub(super) fn put_at(self, start: u64, protection: i32) -> Option<()> {
        let (flags, at) = (libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED, start as *mut libc::c_void);
        // SAFETY: our pages, which take the place of others with the same bytes.
        let moved = unsafe {
            libc::mprotect(self.start, self.length, protection);
            libc::mremap(self.start, self.length, self.length, flags, at)
        };
        if moved == libc::MAP_FAILED {
            return None;
        }
        std::mem::forget(self);
        Some(())
    }
}

impl Drop for PrivateCopy {
    fn drop(&mut self) {
        // SAFETY: our mapping, which has not been moved.
        unsafe { libc::munmap(self.start, self.length) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An older kernel has not all features, and says so before anything is frozen.
    #[test]
    fn features_are_asked_for() {
        assert!(has_features(FEATURE_WP) == Some(true) && can_freeze_shared());
        assert_eq!(has_features(FEATURE_WP | 1 << 60), Some(false));
    }
}
