//! Rings that an AF_XDP socket shares with the kernel (Linux, `Documentation/networking/af_xdp.rst`).

use core::marker::PhantomData;
use core::mem::size_of;
use core::ptr::{self, NonNull};
use core::sync::atomic::{AtomicU32, Ordering};
use std::io;
use std::os::fd::RawFd;

/// Memory of our own.
#[derive(Debug)]
pub(super) struct Mapping {
    start: NonNull<u8>,
    length: usize,
}

// SAFETY: the mapping belongs to nobody else, and the kernel does not care who accesses it.
unsafe impl Send for Mapping {}
// SAFETY: as above; who accesses which part is up to the rings.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Memory of nothing else, which is there.
    pub(super) fn anonymous(length: usize) -> io::Result<Self> {
        Self::new(length, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0)
    }

    fn new(length: usize, flags: libc::c_int, fd: RawFd, offset: i64) -> io::Result<Self> {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping.
        let start = unsafe { libc::mmap(ptr::null_mut(), length, access, flags | libc::MAP_POPULATE, fd, offset) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: our mapping. A forked child has no device, and would keep the socket.
        unsafe { libc::madvise(start, length, libc::MADV_DONTFORK) };
        Ok(Self { start: NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?, length })
    }

    /// Returns a pointer to so many bytes at `at`; `None` unless they are inside.
    pub(super) fn at(&self, at: usize, length: usize) -> Option<NonNull<u8>> {
        // SAFETY: inside of the mapping.
        (at.checked_add(length)? <= self.length).then(|| unsafe { self.start.add(at) })
    }

    pub(super) fn address(&self) -> u64 {
        self.start.as_ptr() as u64
    }

    pub(super) const fn length(&self) -> usize {
        self.length
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: our mapping, which nobody refers to any more.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.length) };
    }
}

/// A ring of one producer and one consumer, one of which is the kernel.
#[derive(Debug)]
pub(super) struct Ring<T> {
    memory: Mapping,
    /// Where the counters of both sides are, and the entries.
    producer: usize,
    consumer: usize,
    entries_at: usize,
    entries: u32,
    /// Where this side goes on. The kernel sees it when it is [shown](Self::show).
    next: u32,
    /// Where the other side was when it was last looked at.
    other: u32,
    is_producer: bool,
    of: PhantomData<T>,
}

impl<T: Copy> Ring<T> {
    /// Maps the ring of a socket with so many entries, a power of two, which lies at `page` of the socket.
    pub(super) fn map(
        fd: RawFd,
        page: libc::off_t,
        offsets: libc::xdp_ring_offset,
        entries: u32,
        is_producer: bool,
    ) -> io::Result<Self> {
        let at = |offset: u64| usize::try_from(offset).map_err(|_| io::ErrorKind::InvalidData);
        let (producer, consumer, entries_at) = (at(offsets.producer)?, at(offsets.consumer)?, at(offsets.desc)?);
        let length = entries_at.max(producer).max(consumer) + entries as usize * size_of::<T>();
        let memory = Mapping::new(length, libc::MAP_SHARED, fd, page)?;
        let of = PhantomData;
        Ok(Self { memory, producer, consumer, entries_at, entries, next: 0, other: 0, is_producer, of })
    }

    fn word(&self, at: usize) -> &AtomicU32 {
        // SAFETY: inside of the mapping, which is longer, and aligned, as the kernel says; both sides access it as one word.
        unsafe { AtomicU32::from_ptr(self.memory.start.add(at).cast().as_ptr()) }
    }

    fn entry(&self, number: u32) -> NonNull<T> {
        let at = (number & (self.entries - 1)) as usize * size_of::<T>();
        // SAFETY: inside of the mapping, which has room for so many.
        unsafe { self.memory.start.add(self.entries_at + at).cast() }
    }

    /// Returns how many entries this side may write, or read.
    pub(super) fn available(&mut self) -> u32 {
        let known = self.between();
        if known > 0 {
            return known;
        }
        let at = if self.is_producer { self.consumer } else { self.producer };
        self.other = self.word(at).load(Ordering::Acquire);
        self.between()
    }

    const fn between(&self) -> u32 {
        let ahead =
            if self.is_producer { self.next.wrapping_sub(self.other) } else { self.other.wrapping_sub(self.next) };
        if self.is_producer { self.entries.wrapping_sub(ahead) } else { ahead }
    }

    /// Whether there is something to read.
    pub(super) fn has_more(&self) -> bool {
        self.word(self.producer).load(Ordering::Relaxed) != self.next
    }

    /// Reads the next entry. One has to be [available](Self::available).
    pub(super) fn read(&mut self) -> T {
        // SAFETY: an entry that is this side's until it is shown.
        let entry = unsafe { self.entry(self.next).read() };
        self.next = self.next.wrapping_add(1);
        entry
    }

    /// Writes the next entry. One has to be [available](Self::available).
    pub(super) fn write(&mut self, entry: T) {
        // SAFETY: as for `read`.
        unsafe { self.entry(self.next).write(entry) };
        self.next = self.next.wrapping_add(1);
    }

    /// Shows the other side how far this one is.
    pub(super) fn show(&self) {
        let at = if self.is_producer { self.producer } else { self.consumer };
        self.word(at).store(self.next, Ordering::Release);
    }
}
