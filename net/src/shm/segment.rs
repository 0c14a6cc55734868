//! The memory that two processes share: a page of words, then the ring.
//!
//! Whoever is at the other end may write to all of it at any time. So no reference is ever made to the bytes of
//! records: they are copied in and out by pointer, and only atomics are shared by reference.

use core::ptr::NonNull;
use core::sync::atomic::{AtomicU32, AtomicU64};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use crate::ipc::sealed_file;

use super::pending_acks::{self, PendingAcks};
use super::ring::{HEADER, SIZE, Storage};

/// Where the receiver's position is, on a cache line of its own.
const HEAD: usize = 0;
/// Where the doorbell is, on another.
const DOORBELL: usize = 128;
/// Offset of the ACKs that wait.
const ACKS: usize = 2048;
/// Where the ring begins.
const RECORDS: usize = 4096;
const _: () = assert!(ACKS + pending_acks::COUNT * 8 <= RECORDS);
/// Bytes of it all.
const TOTAL: usize = RECORDS + SIZE;

/// Shared memory of one ring, mapped.
#[derive(Debug)]
pub(super) struct Segment(NonNull<u8>);

// SAFETY: the memory is the same for all threads, and everything in it is shared with another process anyway: what
// is accessed concurrently is atomic, or copied under the protocol of `ring`.
unsafe impl Send for Segment {}
// SAFETY: as above.
unsafe impl Sync for Segment {}

impl Segment {
    /// New memory, all zero, and its descriptor for the peer.
    pub(super) fn create() -> io::Result<(Self, OwnedFd)> {
        let file = sealed_file::create(c"urxe-ring", TOTAL as u64)?;
        sealed_file::commit(file.as_fd(), TOTAL as u64)?;
        Ok((Self::map(file.as_fd())?, file))
    }

    /// Memory that a peer has made, if it is as [`Segment::create`] makes it.
    pub(super) fn open(file: BorrowedFd<'_>) -> io::Result<Self> {
        sealed_file::check(file, TOTAL as u64)?;
        // Its maker need not have done so.
        sealed_file::commit(file, TOTAL as u64)?;
        Self::map(file)
    }

    fn map(file: BorrowedFd<'_>) -> io::Result<Self> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping, of a file that cannot become shorter than it.
        let start =
            unsafe { libc::mmap(core::ptr::null_mut(), TOTAL, protection, libc::MAP_SHARED, file.as_raw_fd(), 0) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        NonNull::new(start.cast()).map(Self).ok_or_else(|| io::ErrorKind::OutOfMemory.into())
    }

    /// A pointer to `len` bytes at `at`, all of which are in the mapping.
    fn at(&self, at: usize, len: usize) -> NonNull<u8> {
        assert!(at <= TOTAL && len <= TOTAL - at);
        // SAFETY: within the mapping, as asserted.
        unsafe { self.0.add(at) }
    }

    fn word(&self, at: usize) -> &AtomicU64 {
        debug_assert!(at.is_multiple_of(8));
        // SAFETY: eight bytes in the mapping, which lives as long as `self`. They are aligned: mappings are to pages and
        // `at` to eight. Any bytes are a value, and whoever else accesses them does so by atomics, or breaks only what
        // it is told.
        unsafe { self.at(at, 8).cast().as_ref() }
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and nothing borrowed from `self` is left.
        unsafe { libc::munmap(self.0.as_ptr().cast(), TOTAL) };
    }
}

/// The words for ACKs in the memory of a ring, for whoever writes no records.
#[derive(Debug)]
pub(super) struct AckWords(NonNull<u8>);

// SAFETY: as for `Segment`: atomics only.
unsafe impl Send for AckWords {}
// SAFETY: as above.
unsafe impl Sync for AckWords {}

impl AckWords {
    /// ACK words of a segment.
    ///
    /// # Safety
    /// The segment outlives the result.
    pub(super) unsafe fn of(segment: &Segment) -> Self {
        Self(segment.at(ACKS, pending_acks::COUNT * 8))
    }
}

impl PendingAcks for AckWords {
    #[inline]
    fn word(&self, of: usize) -> &AtomicU64 {
        // SAFETY: `of` is cut to one of the words, which are aligned (`ACKS` and mappings are) and in a mapping that outlives
        // `self`. Any bytes are a value, and both ends access them by atomics, or break only what they are told.
        unsafe { self.0.cast::<AtomicU64>().add(of % pending_acks::COUNT).as_ref() }
    }
}

impl PendingAcks for Segment {
    fn word(&self, of: usize) -> &AtomicU64 {
        Self::word(self, ACKS + of % pending_acks::COUNT * 8)
    }
}

impl Storage for Segment {
    fn head(&self) -> &AtomicU64 {
        self.word(HEAD)
    }

    fn doorbell(&self) -> &AtomicU32 {
        // SAFETY: as for `word`; four bytes.
        unsafe { self.at(DOORBELL, 4).cast().as_ref() }
    }

    fn header(&self, offset: usize) -> (&AtomicU64, &AtomicU64) {
        (self.word(RECORDS + offset), self.word(RECORDS + offset + HEADER / 2))
    }

    fn write(&self, offset: usize, bytes: &[u8]) {
        let to = self.at(RECORDS + offset, bytes.len());
        // SAFETY: `at` has seen that the range is in the mapping; `bytes` is private memory, so they do not overlap. The
        // peer does not look before the stamp says so, or gets what it deserves.
        unsafe { to.as_ptr().copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
    }

    fn read(&self, offset: usize, bytes: &mut [u8]) {
        let from = self.at(RECORDS + offset, bytes.len());
        // SAFETY: as for `write`. A peer that writes meanwhile spoils the bytes copied, nothing else.
        unsafe { from.as_ptr().copy_to_nonoverlapping(bytes.as_mut_ptr(), bytes.len()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// In a child: a limit is the whole process' own. It has no descriptors of its own: sockets that other tests close at the
    /// same time would stay open in there, and their peers see no end.
    #[test]
    fn a_process_that_may_not_have_long_files_has_none_and_lives() {
        // SAFETY: a fork but for the descriptors, which both have. The child makes system calls only, and ends by one.
        let child = unsafe { libc::syscall(libc::SYS_clone, libc::CLONE_FILES | libc::SIGCHLD, 0, 0, 0, 0) };
        let child = libc::pid_t::try_from(child).unwrap();
        if child == 0 {
            let limit = libc::rlimit { rlim_cur: 4096, rlim_max: 4096 };
            // SAFETY: a limit.
            unsafe { libc::setrlimit(libc::RLIMIT_FSIZE, &raw const limit) };
            let refused = Segment::create().is_err();
            // SAFETY: ends the child.
            unsafe { libc::_exit(if refused { 7 } else { 8 }) };
        }
        let mut status = 0;
        // SAFETY: our child.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 7, "status {status:#x}");
    }
}
