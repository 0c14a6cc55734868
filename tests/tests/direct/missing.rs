//! A page of a requester's own memory that comes late (userfaultfd(2)): a copy stops there until then.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use anyhow::{Context as _, Result, ensure};
use urxe_ffi::verbs as v;
use urxe_tests::verbs::memory::{PAGE, Pages};

// <linux/userfaultfd.h>
const USER_MODE_ONLY: libc::c_int = 1;
const API: u64 = 0xAA;
const UFFDIO_API: u64 = 0xC018_AA3F;
const UFFDIO_REGISTER: u64 = 0xC020_AA00;
const UFFDIO_ZEROPAGE: u64 = 0xC020_AA04;
const MODE_MISSING: u64 = 1;
/// Bytes of `struct uffd_msg`.
const MESSAGE: usize = 32;

/// Rights of memory that peers do not reach, so that its pages stay private, and can be missing.
pub(crate) const PRIVATE: u32 = v::IBV_ACCESS_LOCAL_WRITE | v::IBV_ACCESS_ON_DEMAND;

/// A page that is not there: whoever touches it waits.
pub(crate) struct Missing {
    faults: OwnedFd,
    start: u64,
}

impl Missing {
    pub(crate) fn new(pages: &Pages, offset: usize) -> Result<Self> {
        // SAFETY: plain numbers.
        let fd = unsafe { libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC | USER_MODE_ONLY) };
        let fd = i32::try_from(fd).ok().filter(|fd| *fd >= 0);
        let fd = fd.ok_or_else(std::io::Error::last_os_error).context("userfaultfd")?;
        // SAFETY: new, and ours.
        let missing = Self { faults: unsafe { OwnedFd::from_raw_fd(fd) }, start: pages.addr() + offset as u64 };
        let page = std::ptr::with_exposed_provenance_mut(usize::try_from(missing.start)?);
        // SAFETY: a page of the test's, whose bytes nobody needs.
        ensure!(unsafe { libc::madvise(page, PAGE, libc::MADV_DONTNEED) } == 0);
        missing.ask(UFFDIO_API, &mut [API, 0, 0]).context("API")?;
        missing.ask(UFFDIO_REGISTER, &mut [missing.start, PAGE as u64, MODE_MISSING, 0]).context("REGISTER")?;
        Ok(missing)
    }

    fn ask(&self, request: u64, argument: &mut [u64]) -> Result<()> {
        // SAFETY: a request and its structure.
        let answer = unsafe { libc::syscall(libc::SYS_ioctl, self.faults.as_raw_fd(), request, argument.as_mut_ptr()) };
        ensure!(answer == 0, std::io::Error::last_os_error());
        Ok(())
    }

    /// Waits until somebody waits for it.
    pub(crate) fn is_touched(&self) -> Result<()> {
        let mut message = [0_u64; MESSAGE / 8];
        // SAFETY: room for a message.
        let read = unsafe { libc::read(self.faults.as_raw_fd(), message.as_mut_ptr().cast(), MESSAGE) };
        ensure!(usize::try_from(read) == Ok(MESSAGE), std::io::Error::last_os_error());
        Ok(())
    }

    /// Lets it come, all zero.
    pub(crate) fn come(&self) -> Result<()> {
        self.ask(UFFDIO_ZEROPAGE, &mut [self.start, PAGE as u64, 0, 0])
    }
}

/// Lets the page come whatever becomes of the test: its thread would wait for ever.
impl Drop for Missing {
    fn drop(&mut self) {
        let _ = self.come();
    }
}
