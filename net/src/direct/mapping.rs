//! Mapped parts of a shared file.

use core::ops::Deref;
use core::ptr::NonNull;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use super::receives::ReceiveWords;
use super::words::{QpWords, RegionWords};
use super::{QPS, RECEIVERS, REGIONS};
use crate::mutex::lock;

/// Bytes of a table without the receive WQEs of its queue pairs.
pub(super) const TABLE: u64 = (QPS * size_of::<QpWords>() + REGIONS * size_of::<RegionWords>()) as u64;
/// Offset of the receive WQEs behind a table: they are opened when they are needed.
pub(super) const RECEIVES: u64 = TABLE.next_multiple_of(UNIT);
/// Bytes of a table with all.
pub(super) const WHOLE_TABLE: u64 = RECEIVES + (RECEIVERS * size_of::<ReceiveWords>()) as u64;

/// Bytes of a shared file.
pub(super) const FILE: u64 = 1 << 36;
/// Units in which a file of another process is opened to accesses.
const UNIT: u64 = 2 << 20;
/// Runs of open units in all files of other processes together: each is a mapping, of which a process has 65530 by default.
const MOST_RUNS: usize = 8192;
static RUNS: AtomicUsize = AtomicUsize::new(0);

/// Addresses of the mapped files of other processes, each of [`FILE`] bytes; 0 where there is none. A process may be
/// its own peer, and has its own file mapped then.
static IMPORTS: [AtomicU64; 1024] = [const { AtomicU64::new(0) }; 1024];

/// Whether an address is in the mapping of a file that came from a peer, which may be this process.
#[must_use]
pub fn is_import(address: u64) -> bool {
    let is_in = |start: u64| start != 0 && (start..start + FILE).contains(&address);
    IMPORTS.iter().any(|start| is_in(start.load(Ordering::Acquire)))
}

/// Forgets the mapped files of other processes: a child of fork(2) has none of them.
pub fn forget_imports() {
    IMPORTS.iter().for_each(|start| start.store(0, Ordering::Release));
    RUNS.store(0, Ordering::Relaxed);
}

/// A part of a shared file, mapped for reading and writing.
#[derive(Debug)]
pub(super) struct Mapping {
    start: NonNull<u8>,
    length: usize,
    /// Of a file of another process: parts that may be accessed.
    open: Mutex<Open>,
}

/// Parts of a mapping that may be accessed: offsets, in ascending order, that do not touch one another.
#[derive(Debug, Default)]
struct Open {
    runs: Vec<(u64, u64)>,
    /// Runs that stay open.
    tables: Vec<(u64, u64)>,
}

// SAFETY: the memory is the same for all threads, and shared with other processes anyway. References are made to atomics only.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps a part of a file of this process.
    pub(super) fn new(file: BorrowedFd<'_>, at: u64, length: u64) -> io::Result<Self> {
        Self::map(Some(file), at, length, libc::PROT_READ | libc::PROT_WRITE)
    }

    /// Maps a file of another process, which was checked. Nothing of it may be accessed before it is [opened](Self::open), and so
    /// nothing of it is brought into memory by mlockall(2).
    pub(super) fn closed(file: BorrowedFd<'_>) -> io::Result<Self> {
        let mapping = Self::map(None, 0, FILE, libc::PROT_NONE)?;
        let address = mapping.address();
        let is_noted =
            |start: &AtomicU64| start.compare_exchange(0, address, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        if !IMPORTS.iter().any(is_noted) {
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        // Known before it is one of the file.
        mapping.map_file(file)?;
        // Under MCL_FUTURE pages would come with the first access to any of them.
        // SAFETY: the new mapping.
        unsafe { libc::munlock(mapping.start.as_ptr().cast(), mapping.length) };
        Ok(mapping)
    }

    /// Maps a part of a file, or of no file.
    fn map(file: Option<BorrowedFd<'_>>, at: u64, length: u64, protection: libc::c_int) -> io::Result<Self> {
        let too_large = |_| io::Error::from(io::ErrorKind::OutOfMemory);
        let (offset, length) = (i64::try_from(at).map_err(too_large)?, usize::try_from(length).map_err(too_large)?);
        let kind = if file.is_some() { libc::MAP_SHARED } else { libc::MAP_PRIVATE | libc::MAP_ANONYMOUS };
        let (flags, fd) = (kind | libc::MAP_NORESERVE, file.map_or(-1, |file| file.as_raw_fd()));
        // SAFETY: a new mapping, of a file that cannot become shorter than it.
        let start = unsafe { libc::mmap(core::ptr::null_mut(), length, protection, flags, fd, offset) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        let mapping = Self { start, length, open: Mutex::default() };
        mapping.keep_to_this_process();
        Ok(mapping)
    }

    /// Maps all of a file in the place of a mapping of no file.
    fn map_file(&self, file: BorrowedFd<'_>) -> io::Result<()> {
        let (start, flags) = (self.start.as_ptr().cast(), libc::MAP_SHARED | libc::MAP_NORESERVE | libc::MAP_FIXED);
        // SAFETY: takes the place of a mapping that is ours and that nobody accesses.
        let mapped = unsafe { libc::mmap(start, self.length, libc::PROT_NONE, flags, file.as_raw_fd(), 0) };
        if mapped == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        self.keep_to_this_process();
        Ok(())
    }

    /// A child of fork(2) has no part in it, and nobody wants it in a core file.
    fn keep_to_this_process(&self) {
        let start = self.start.as_ptr().cast();
        // SAFETY: the mapping.
        unsafe {
            libc::madvise(start, self.length, libc::MADV_DONTFORK);
            libc::madvise(start, self.length, libc::MADV_DONTDUMP);
        }
    }

    /// Opens a table of a file of another process, for good.
    pub(super) fn open_table(&self, at: u64) -> io::Result<()> {
        self.open_for_good(at, TABLE)
    }

    fn open_for_good(&self, at: u64, length: u64) -> io::Result<()> {
        let Some(run) = self.units(at, length) else { return Err(io::ErrorKind::InvalidData.into()) };
        let mut open = lock(&self.open);
        if !self.protect(run, libc::PROT_READ | libc::PROT_WRITE) {
            return Err(io::Error::last_os_error());
        }
        insert(&mut open.tables, run);
        open.change(|runs| insert(runs, run));
        Ok(())
    }

    /// Opens the receive WQEs of the queue pair at `place` of the table at `at` in a file of another process, for good.
    pub(super) fn open_receives(&self, at: u64, place: usize) -> io::Result<()> {
        let (start, size) = receives_at(at, place).ok_or(io::ErrorKind::InvalidData)?;
        self.open_for_good(start, size)
    }

    /// The receive WQEs of the queue pair at `place` of the table at `at`. In a file of another process they are
    /// [open](Self::open_receives).
    pub(super) fn receives(self: &Arc<Self>, at: u64, place: usize) -> Option<Placed<ReceiveWords>> {
        let (at, size) = receives_at(at, place)?;
        if !at.is_multiple_of(64) || at.checked_add(size)? > self.len() {
            return None;
        }
        // SAFETY: within the mapping, aligned, and open as long as it is there. Any bytes are a value, and whoever else accesses them does
        // so by atomics, or breaks only what it is told.
        let words = unsafe { self.start.add(usize::try_from(at).ok()?) }.cast();
        Some(Placed { words, _mapping: Arc::clone(self) })
    }

    /// Opens a part of a file of another process to accesses. It may be closed again when others are opened: an access faults then.
    /// False: it is not open.
    pub(super) fn open(&self, at: u64, length: u64) -> bool {
        let Some(run) = self.units(at, length) else { return false };
        let mut open = lock(&self.open);
        if open.runs.iter().any(|(start, end)| *start <= run.0 && run.1 <= *end) {
            return true;
        }
        if RUNS.load(Ordering::Relaxed) >= MOST_RUNS {
            self.close_all(&mut open);
        }
        let is_open = RUNS.load(Ordering::Relaxed) < MOST_RUNS && self.protect(run, libc::PROT_READ | libc::PROT_WRITE);
        if is_open {
            open.change(|runs| insert(runs, run));
        }
        is_open
    }

    /// Closes all but tables.
    fn close_all(&self, open: &mut Open) {
        for (from, end) in open.runs.clone() {
            let mut closed = from;
            for table in open.tables.iter().filter(|table| from <= table.0 && table.1 <= end) {
                self.protect((closed, table.0), libc::PROT_NONE);
                closed = table.1;
            }
            self.protect((closed, end), libc::PROT_NONE);
        }
        let tables = open.tables.clone();
        open.change(|runs| *runs = tables);
    }

    /// The units that have so many bytes.
    fn units(&self, at: u64, length: u64) -> Option<(u64, u64)> {
        let end = at.checked_add(length)?.checked_next_multiple_of(UNIT)?;
        (end <= self.len()).then_some((at - at % UNIT, end))
    }

    fn protect(&self, (start, end): (u64, u64), protection: libc::c_int) -> bool {
        let (Ok(at), Ok(length)) = (usize::try_from(start), usize::try_from(end.saturating_sub(start))) else {
            return false;
        };
        // SAFETY: a part of the mapping. Whoever accesses it is ready for a fault, but for tables, which stay open.
        length == 0 || unsafe { libc::mprotect(self.start.as_ptr().add(at).cast(), length, protection) == 0 }
    }

    /// First address of the mapping.
    pub(super) fn address(&self) -> u64 {
        self.start.as_ptr() as u64
    }

    /// Bytes of the mapping.
    pub(super) const fn len(&self) -> u64 {
        self.length as u64
    }

    /// The queue pairs and regions of the table at `at`.
    pub(super) fn table(&self, at: u64) -> (&[QpWords; QPS], &[RegionWords; REGIONS]) {
        assert!(at.is_multiple_of(128) && at.checked_add(TABLE).is_some_and(|end| end <= self.len()));
        let at = usize::try_from(at).unwrap_or(usize::MAX);
        // SAFETY: within the mapping, as asserted, which lives as long as `self`, and aligned. Any bytes are a value, and whoever
        // else accesses them does so by atomics, or breaks only what it is told.
        unsafe {
            let qps = self.start.add(at);
            (qps.cast().as_ref(), qps.add(size_of::<[QpWords; QPS]>()).cast().as_ref())
        }
    }
}

/// A queue pair's or region's words in a mapping, which is there for as long.
#[derive(Debug)]
pub(super) struct Placed<T> {
    words: NonNull<T>,
    _mapping: Arc<Mapping>,
}

// SAFETY: a reference to words that any thread, and another process, may access by atomics, and to the mapping that has them.
unsafe impl<T: Sync> Send for Placed<T> {}
// SAFETY: as above.
unsafe impl<T: Sync> Sync for Placed<T> {}

impl<T> Placed<T> {
    /// Words that `find` finds in the table at `at`.
    pub(super) fn new(
        mapping: &Arc<Mapping>,
        at: u64,
        find: impl for<'a> FnOnce(&'a [QpWords; QPS], &'a [RegionWords; REGIONS]) -> Option<&'a T>,
    ) -> Option<Self> {
        let (qps, regions) = mapping.table(at);
        Some(Self { words: NonNull::from(find(qps, regions)?), _mapping: Arc::clone(mapping) })
    }
}

impl<T> Deref for Placed<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: was a reference to a part of the mapping, which is there as long as this.
        unsafe { self.words.as_ref() }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and nothing borrowed from `self` is left.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.length) };
        // Tables of this process are not there; what is mapped there since is noted in a slot of its own.
        let is_forgotten =
            |start: &AtomicU64| start.compare_exchange(self.address(), 0, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        let _ = IMPORTS.iter().any(is_forgotten);
        self.open.get_mut().unwrap_or_else(PoisonError::into_inner).change(Vec::clear);
    }
}

impl Open {
    fn change(&mut self, change: impl FnOnce(&mut Vec<(u64, u64)>)) {
        let before = self.runs.len();
        change(&mut self.runs);
        RUNS.fetch_add(self.runs.len().wrapping_sub(before), Ordering::Relaxed);
    }
}

/// Where the receive WQEs of the queue pair at `place` of the table at `at` are, and how many bytes.
fn receives_at(at: u64, place: usize) -> Option<(u64, u64)> {
    let size = size_of::<ReceiveWords>() as u64;
    Some((at.checked_add(RECEIVES + (place % RECEIVERS) as u64 * size)?, size))
}

/// Adds a run to runs that do not touch one another.
fn insert(runs: &mut Vec<(u64, u64)>, (mut start, mut end): (u64, u64)) {
    runs.retain(|run| {
        let touches = run.0 <= end && start <= run.1;
        if touches {
            (start, end) = (start.min(run.0), end.max(run.1));
        }
        !touches
    });
    let at = runs.partition_point(|run| run.0 < start);
    runs.insert(at, (start, end));
}

#[cfg(test)]
mod tests {
    use super::super::file::SharedFile;
    use super::*;

    #[test]
    fn runs_that_touch_are_one() {
        let mut runs = Vec::new();
        for (run, all) in [
            ((4, 6), vec![(4, 6)]),
            ((0, 2), vec![(0, 2), (4, 6)]),
            ((8, 9), vec![(0, 2), (4, 6), (8, 9)]),
            ((5, 8), vec![(0, 2), (4, 9)]),
            ((2, 4), vec![(0, 9)]),
        ] {
            insert(&mut runs, run);
            assert_eq!(runs, all);
        }
    }

    fn bytes_of(file: &SharedFile) -> u64 {
        u64::try_from(rustix::fs::fstat(file.file().unwrap()).unwrap().st_blocks).unwrap() * 512
    }

    /// Locks pages of a mapping in memory, as mlockall(2) does with all that there are.
    fn lock(mapping: &Mapping, at: u64, length: usize) {
        // SAFETY: within the mapping.
        unsafe { libc::mlock(mapping.start.as_ptr().add(usize::try_from(at).unwrap()).cast(), length) };
    }

    #[test]
    fn locking_all_memory_brings_in_what_is_open_only() {
        const LENGTH: usize = 1 << 20;
        let file = SharedFile::create().unwrap();
        let mapping = Mapping::closed(file.file().unwrap()).unwrap();
        mapping.open_table(UNIT).unwrap();
        lock(&mapping, 8 * UNIT, LENGTH);
        assert_eq!(bytes_of(&file), 0, "memory that nobody uses was brought in");
        assert!(mapping.open(8 * UNIT + 100, 8));
        lock(&mapping, 8 * UNIT, LENGTH);
        assert_eq!(bytes_of(&file), LENGTH as u64);
        assert!(!mapping.open(FILE - 8, 16) && !mapping.open(u64::MAX, 1));
    }

    /// A closed part can be opened again; tables stay open.
    #[test]
    fn all_but_tables_is_closed() {
        let file = SharedFile::create().unwrap();
        let mapping = Mapping::closed(file.file().unwrap()).unwrap();
        mapping.open_table(4 * UNIT).unwrap();
        assert!(mapping.open(0, 9 * UNIT) && mapping.open(20 * UNIT, 1));
        let mut open = mapping.open.lock().unwrap();
        mapping.close_all(&mut open);
        assert_eq!(open.runs, open.tables);
        drop(open);
        assert!(mapping.table(4 * UNIT).0[0].read().is_none());
        lock(&mapping, 0, 1 << 20);
        assert_eq!(bytes_of(&file), 4096, "but for the table");
        assert!(mapping.open(0, 1));
    }
}
