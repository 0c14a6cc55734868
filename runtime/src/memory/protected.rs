//! Registered memory that the application has protected since (mprotect(2)).
//!
//! A card has the pages of a region pinned (`ib_umem_get` of the kernel's umem.c, pin_user_pages(2)) and reaches them by their
//! physical addresses: page protection is for the processor alone. So where a copy faults, and the region is not of
//! `IBV_ACCESS_ON_DEMAND` (whose pages a card takes from the page tables), it is done once more through `/proc/self/mem`,
//! which looks at what a mapping may be used for and not at what it is used for now (`FOLL_FORCE`). Memory that is
//! unmapped, or behind the end of its file, is refused there too; so is a write to a shared mapping that cannot be written
//! at present, as the kernel forces only private ones. Where the file cannot be opened, the copy fails as it did.
//!
//! Read-only code and pages of files are not written: a program that unmaps registered memory may find a library at its address
//! next, whose code a peer would change. A card would write to the pages that were there before. What can be written without
//! all this is (the copy does not fault), whatever is mapped there; so is what is mapped between the look and the write, and
//! other private memory of no file. The look costs time in proportion to the mappings below the address, once in a turn of a
//! queue pair.

use std::cell::Cell;
use std::ffi::CStr;
use std::io::{self, BufReader};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::{Mutex, PoisonError};

use urxe_engine::Fault;
use urxe_net::cancellation::CancelGuard;

use super::maps;
use crate::sanitizer;

const MEMORY: &CStr = c"/proc/self/mem";
const MAPS: &CStr = c"/proc/self/maps";

/// Longest part of `/proc/self/maps` that is read at once: what the kernel prepares for one read.
const MAPS_PART: usize = 4096;

/// Addresses that were found to be data, from and to, for as long as nothing else is expected there: for one turn of a queue pair.
#[derive(Debug)]
pub(super) struct KnownData(Cell<(u64, u64)>);

impl KnownData {
    pub(super) const fn new() -> Self {
        Self(Cell::new((0, 0)))
    }

    /// Forgets what was found.
    pub(super) fn forget(&self) {
        self.0.set((0, 0));
    }

    /// Whether `[start, start + length)` is data. Looks into `/proc/self/maps` unless it is known.
    fn has(&self, start: u64, length: usize) -> Result<bool, Fault> {
        let end = start.checked_add(length as u64).ok_or(Fault)?;
        let (known_start, known_end) = self.0.get();
        if known_start <= start && end <= known_end {
            return Ok(true);
        }
        let maps = Maps { file: OwnFile::open(MAPS, libc::O_RDONLY)?, offset: 0 };
        let data = maps::data_in(BufReader::with_capacity(MAPS_PART, maps), start, length as u64);
        self.0.set(data.as_ref().map_or((0, 0), |data| (data.start, data.end)));
        Ok(data.is_some())
    }
}

/// A file of proc(5) about this process. Closing it is a cancellation point (pthreads(7)): whoever opens it has a [`CancelGuard`].
struct OwnFile(OwnedFd);

impl OwnFile {
    /// Opened for each use: a program may close all descriptors, and a forked child has another memory.
    fn open(path: &CStr, flags: libc::c_int) -> Result<Self, Fault> {
        let flags = flags | libc::O_CLOEXEC;
        // By number: open(2) is a cancellation point, and may be interposed.
        // SAFETY: a C string.
        let fd = unsafe { libc::syscall(libc::SYS_openat, libc::AT_FDCWD, path.as_ptr(), flags) };
        let fd = i32::try_from(fd).ok().filter(|fd| *fd >= 0).ok_or(Fault)?;
        // SAFETY: new, and ours.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// Reads from `offset` on. Returns how many bytes that were.
    fn read_at(&self, offset: u64, to: &mut [u8]) -> Result<usize, Fault> {
        let (fd, offset) = (self.0.as_raw_fd(), offset.cast_signed());
        // SAFETY: room for as many bytes.
        let read = unsafe { libc::syscall(libc::SYS_pread64, fd, to.as_mut_ptr(), to.len(), offset) };
        usize::try_from(read).map_err(|_| Fault)
    }
}

/// Text of `/proc/self/maps`.
struct Maps {
    file: OwnFile,
    offset: u64,
}

impl io::Read for Maps {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        let read = self.file.read_at(self.offset, to).map_err(|Fault| io::ErrorKind::Other)?;
        self.offset += read as u64;
        Ok(read)
    }
}

/// The bytes of this process, as a debugger sees them.
struct OwnMemory(OwnFile);

impl OwnMemory {
    fn open(flags: libc::c_int) -> Result<Self, Fault> {
        OwnFile::open(MEMORY, flags).map(Self)
    }

    /// Opens the memory to change `[to, to + length)`, if that is data.
    fn open_to_write(to: u64, length: usize, known: &KnownData) -> Result<Self, Fault> {
        if known.has(to, length)? { Self::open(libc::O_RDWR) } else { Err(Fault) }
    }

    fn read(&self, mut from: u64, mut to: &mut [u8]) -> Result<(), Fault> {
        while !to.is_empty() {
            let read = self.0.read_at(from, to)?;
            if read == 0 {
                return Err(Fault);
            }
            to = to.get_mut(read..).ok_or(Fault)?;
            from += read as u64;
        }
        Ok(())
    }

    /// # Safety
    /// As for [`store`].
    unsafe fn write(&self, mut to: u64, mut from: &[u8]) -> Result<(), Fault> {
        while !from.is_empty() {
            let (fd, offset) = (self.0.0.as_raw_fd(), to.cast_signed());
            // SAFETY: as many bytes; the caller answers for where they go.
            let written = unsafe { libc::syscall(libc::SYS_pwrite64, fd, from.as_ptr(), from.len(), offset) };
            let written = usize::try_from(written).ok().filter(|written| *written > 0).ok_or(Fault)?;
            from = from.get(written..).ok_or(Fault)?;
            to += written as u64;
        }
        Ok(())
    }
}

/// Copies from application memory at `from`.
#[cold]
pub(super) fn load(from: u64, to: &mut [u8]) -> Result<(), Fault> {
    let _guard = CancelGuard::new();
    OwnMemory::open(libc::O_RDONLY)?.read(from, to)?;
    sanitizer::read();
    Ok(())
}

/// Copies to application memory at `to`, if that is data; the last eight bytes become visible last.
///
/// # Safety
/// `[to, to + from.len())` is memory that the application registered for writing.
#[cold]
pub(super) unsafe fn store(to: u64, from: &[u8], known: &KnownData) -> Result<(), Fault> {
    let _guard = CancelGuard::new();
    let memory = OwnMemory::open_to_write(to, from.len(), known)?;
    let (before, last) = from.split_at(from.len().saturating_sub(8));
    // SAFETY: the caller's promise.
    unsafe {
        memory.write(to, before)?;
        memory.write(to + before.len() as u64, last)?;
    }
    sanitizer::written(to, from.len());
    Ok(())
}

/// One thread of ours changes such memory at a time. The application's cannot: it is protected.
static ATOMIC: Mutex<()> = Mutex::new(());

/// Replaces the eight aligned bytes at `at` by what `change` makes of them, and returns what they were.
///
/// # Safety
/// As for [`store`].
#[cold]
pub(super) unsafe fn update(at: u64, change: impl FnOnce(u64) -> u64, known: &KnownData) -> Result<u64, Fault> {
    let _guard = CancelGuard::new();
    let memory = OwnMemory::open_to_write(at, size_of::<u64>(), known)?;
    let _alone = ATOMIC.lock().unwrap_or_else(PoisonError::into_inner);
    let mut bytes = [0; 8];
    memory.read(at, &mut bytes)?;
    let original = u64::from_ne_bytes(bytes);
    // SAFETY: the caller's promise.
    unsafe { memory.write(at, &change(original).to_ne_bytes()) }?;
    sanitizer::written(at, bytes.len());
    Ok(original)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    const SIZE: usize = 4096;

    /// A page of zeros that nobody may touch. It lies far below where the kernel puts mappings: once unmapped it stays so, and is
    /// no other test's.
    fn page(kind: libc::c_int) -> u64 {
        static NEXT: AtomicUsize = AtomicUsize::new(0x2000_0000);
        let at = std::ptr::with_exposed_provenance_mut(NEXT.fetch_add(1 << 16, Ordering::Relaxed));
        let flags = kind | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
        // SAFETY: a fresh mapping.
        assert_eq!(unsafe { libc::mmap(at, SIZE, libc::PROT_NONE, flags, -1, 0) }, at);
        at as u64
    }

    fn unmap(page: u64) {
        // SAFETY: a mapping of these tests.
        unsafe { libc::munmap(std::ptr::with_exposed_provenance_mut(usize::try_from(page).unwrap()), SIZE) };
    }

    //= spec/memory.md#mem-015
    //= type=test
    //# Memory that was protected while registered MUST be accessed all the same, unless it was registered on demand.
    #[test]
    fn private_memory_is_reached_whatever_protects_it() {
        let page = page(libc::MAP_PRIVATE);
        let data: Vec<u8> = (0..100).collect();
        let (mut back, known) = (vec![0; 100], KnownData::new());
        // SAFETY: a page of this test.
        unsafe {
            store(page + 11, &data, &known).unwrap();
            assert_eq!(update(page, |zero| zero + 7, &known), Ok(0));
            assert_eq!(update(page, |seven| seven + 1, &known), Ok(7));
            store(page + 3000, &[], &known).unwrap();
        }
        load(page + 11, &mut back).unwrap();
        assert_eq!(back, data);
        unmap(page);
        assert_eq!(load(page + 11, &mut back), Err(Fault));
        // SAFETY: nothing is there.
        unsafe {
            assert_eq!(store(page, &data, &known), Err(Fault), "what is known is written, and not there");
            known.forget();
            assert_eq!(store(page, &data, &known), Err(Fault));
            assert_eq!(update(page, |same| same, &known), Err(Fault));
        }
    }

    /// The thread that does the copy has a receive token and a queue pair's lock.
    #[test]
    fn a_thread_that_is_to_be_cancelled_copies_all_the_same() {
        let page = page(libc::MAP_PRIVATE);
        let copied = std::thread::spawn(move || {
            let (mut back, known) = ([0; 8], KnownData::new());
            // SAFETY: this thread, which is cancelled at the next cancellation point; a page of this test.
            let cancelled = unsafe { libc::pthread_cancel(libc::pthread_self()) };
            // SAFETY: likewise.
            let changed =
                unsafe { (store(page, &7_u64.to_ne_bytes(), &known), update(page, |seven| seven + 1, &known)) };
            let loaded = load(page, &mut back);
            // Whoever waits for this thread waits for its end, and so would be cancelled.
            urxe_net::cancellation::disable();
            (cancelled, changed, loaded, u64::from_ne_bytes(back))
        });
        assert_eq!(copied.join().unwrap(), (0, (Ok(()), Ok(7)), Ok(()), 8));
        unmap(page);
    }

    /// A library may lie where registered memory was.
    #[test]
    fn code_and_files_are_not_written() {
        let code = page(libc::MAP_PRIVATE);
        let at = std::ptr::with_exposed_provenance_mut(usize::try_from(code).unwrap());
        let flags = libc::MAP_PRIVATE | libc::MAP_FIXED;
        let refused = || {
            let known = KnownData::new();
            // SAFETY: a page of this test.
            let written = unsafe { (store(code, &[1; 16], &known), update(code, |old| old + 1, &known)) };
            assert_eq!(written, (Err(Fault), Err(Fault)));
        };
        // SAFETY: a page of this test.
        assert_eq!(unsafe { libc::mprotect(at, SIZE, libc::PROT_READ | libc::PROT_EXEC) }, 0);
        refused();
        let file = std::fs::File::open(std::env::current_exe().unwrap()).unwrap();
        for protection in [libc::PROT_NONE, libc::PROT_READ] {
            // SAFETY: replaces the page of this test.
            assert_eq!(unsafe { libc::mmap(at, SIZE, protection, flags, file.as_raw_fd(), 0) }, at);
            refused();
        }
        unmap(code);
    }

    #[test]
    fn shared_memory_can_be_read_only() {
        let page = page(libc::MAP_SHARED);
        assert_eq!(load(page, &mut [1; 8]), Ok(()));
        // SAFETY: a page of this test.
        assert_eq!(unsafe { store(page, &[1; 8], &KnownData::new()) }, Err(Fault));
        unmap(page);
    }
}
