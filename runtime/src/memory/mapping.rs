//! Memory that we map ourselves: device memory, dma-bufs.

use std::io;
use std::os::fd::RawFd;

use crate::limits::page;

/// A mapping, undone when this is dropped.
#[derive(Debug)]
pub struct Mapping {
    address: u64,
    length: usize,
}

impl Mapping {
    /// Maps zeros, private to this process.
    ///
    /// # Errors
    /// `EINVAL` for no bytes at all, `ENOMEM`, and what else mmap(2) refuses.
    pub fn anonymous(length: usize) -> io::Result<Self> {
        Self::map(length, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0)
    }

    /// Maps the file of `fd`, from `offset` on, which is a multiple of the page size.
    ///
    /// # Errors
    /// `EACCES` if the file is not open for that, `EINVAL` for an offset inside of a page or no bytes at all, `ENODEV` if it cannot be
    /// mapped, `ENOMEM`, and what else mmap(2) refuses.
    pub fn shared(fd: RawFd, offset: i64, length: usize, write: bool) -> io::Result<Self> {
        let protection = if write { libc::PROT_READ | libc::PROT_WRITE } else { libc::PROT_READ };
        Self::map(length, protection, libc::MAP_SHARED, fd, offset)
    }

    fn map(length: usize, protection: i32, flags: i32, fd: RawFd, offset: i64) -> io::Result<Self> {
        // SAFETY: a new mapping, where the kernel finds room for it.
        let address = unsafe { libc::mmap(std::ptr::null_mut(), length, protection, flags, fd, offset) };
        if address == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Self { address: address as u64, length })
    }

    /// Returns the first address of the mapping.
    pub const fn address(&self) -> u64 {
        self.address
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: our mapping; who used it as memory of a region has removed the region.
        unsafe { libc::munmap(self.address as *mut libc::c_void, self.length) };
    }
}

/// Writes the pages of `[address, address + length)` to their file, and waits for that (msync(2)).
///
/// # Errors
/// `ENOMEM` if part of it is not mapped, `EIO` if the file cannot be written.
pub fn persist(address: u64, length: u64) -> io::Result<()> {
    let start = address - address % page();
    let length = usize::try_from(address - start + length).map_err(|_| io::ErrorKind::InvalidInput)?;
    // By number, as it is done for packets: msync(2) is a cancellation point (`urxe_net::cancellation`).
    // SAFETY: it changes nothing in memory, and what is not mapped is an error.
    if unsafe { libc::syscall(libc::SYS_msync, start, length, libc::MS_SYNC) } == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Faults the pages of `[address, address + length)` in (`advice` is `MADV_POPULATE_READ` or `_WRITE`). Kernels before 5.14 cannot: the
/// first access faults each page in there.
///
/// # Errors
/// `ENOMEM` if part of it is not mapped, `EFAULT` where an access would raise SIGBUS, and what else madvise(2) refuses but `EINVAL`.
pub fn populate(address: u64, length: u64, advice: i32) -> io::Result<()> {
    let start = address - address % page();
    let length = usize::try_from(address - start + length).map_err(|_| io::ErrorKind::InvalidInput)?;
    // SAFETY: it reads or writes nothing, and what is not mapped is an error.
    if unsafe { libc::madvise(start as *mut libc::c_void, length, advice) } == 0 {
        return Ok(());
    }
    let error = io::Error::last_os_error();
    if error.raw_os_error() == Some(libc::EINVAL) { Ok(()) } else { Err(error) }
}
