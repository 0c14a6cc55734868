//! Device memory (`ibv_alloc_dm(3)`): the device being the process, plain memory of it, as a file that can be exported.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::kernel::Errno;
use urxe_net::identity::CheckedFd;
use urxe_net::ipc::commit;
use urxe_net::ipc::credentials::file_may_have;
use urxe_runtime::limits;
use urxe_runtime::memory::mapping::Mapping;

/// Bytes in use in this process.
static IN_USE: AtomicU64 = AtomicU64::new(0);

/// Counts against what there is.
#[derive(Debug)]
struct Share(u64);

impl Share {
    fn take(length: u64) -> Option<Self> {
        let taken = IN_USE.fetch_update(Ordering::AcqRel, Ordering::Acquire, |used| {
            used.checked_add(length).filter(|used| *used <= limits::MAX_DM)
        });
        taken.is_ok().then(|| Self(length))
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        IN_USE.fetch_sub(self.0, Ordering::AcqRel);
    }
}

/// A piece of it; every `ibv_dm` that stands for it holds it.
#[derive(Debug)]
pub(crate) struct DeviceMemory {
    length: u64,
    /// Regions keep it mapped, too.
    mapping: Arc<Mapping>,
    /// The memory as a file, unless the system gave none.
    file: Option<CheckedFd>,
    _share: Share,
}

impl DeviceMemory {
    /// # Errors
    /// ENOMEM.
    pub(crate) fn new(length: usize) -> Result<Arc<Self>, Errno> {
        let share = Share::take(length as u64).ok_or(Errno(libc::ENOMEM))?;
        let (mapping, file) = match as_file(length) {
            Ok((mapping, file)) => (mapping, Some(file.into())),
            // No descriptors are left, files may not be so long, or system calls are filtered: it cannot be exported.
            Err(_) => (Mapping::anonymous(length).map_err(|_| Errno(libc::ENOMEM))?, None),
        };
        Ok(Arc::new(Self { length: length as u64, mapping: Arc::new(mapping), file, _share: share }))
    }

    /// A descriptor of the memory, which stays as long as that is open.
    ///
    /// # Errors
    /// EOPNOTSUPP if it is no file; EBADF if the program has closed that; EMFILE.
    pub(crate) fn export(&self) -> Result<OwnedFd, Errno> {
        let file = self.file.as_ref().ok_or(Errno(libc::EOPNOTSUPP))?;
        if !file.is_ours() {
            return Err(Errno(libc::EBADF));
        }
        // SAFETY: a descriptor of ours, open for as long as this lives.
        let file = unsafe { BorrowedFd::borrow_raw(file.as_raw_fd()) };
        file.try_clone_to_owned().map_err(|_| Errno::last())
    }

    /// The address of `[offset, offset + length)`.
    ///
    /// # Errors
    /// EINVAL for what is not in it.
    pub(crate) fn part(&self, offset: u64, length: u64) -> Result<u64, Errno> {
        let end = offset.checked_add(length).filter(|end| *end <= self.length);
        end.map(|_| self.mapping.address() + offset).ok_or(Errno(libc::EINVAL))
    }

    /// Mapping, for a region of it.
    pub(crate) const fn mapping(&self) -> &Arc<Mapping> {
        &self.mapping
    }

    /// Whether there are regions of the device memory.
    pub(crate) fn is_registered(&self) -> bool {
        Arc::strong_count(&self.mapping) > 1
    }
}

/// Memory of a file that nobody can make shorter.
fn as_file(length: usize) -> io::Result<(Mapping, OwnedFd)> {
    let bytes = (length as u64).next_multiple_of(limits::page());
    if !usize::try_from(bytes).is_ok_and(file_may_have) {
        return Err(io::Error::from_raw_os_error(libc::EFBIG));
    }
    let bytes = i64::try_from(bytes).map_err(|_| io::ErrorKind::OutOfMemory)?;
    // SAFETY: a C string.
    let file = unsafe { libc::memfd_create(c"urxe-dm".as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING) };
    if file < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: new, and ours.
    let file = unsafe { OwnedFd::from_raw_fd(file) };
    let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
    // SAFETY: a descriptor of ours.
    let is_sealed = unsafe {
        libc::ftruncate(file.as_raw_fd(), bytes) == 0 && libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seals) == 0
    };
    if !is_sealed {
        return Err(io::Error::last_os_error());
    }
    commit(file.as_fd(), bytes.cast_unsigned())?;
    Ok((Mapping::shared(file.as_raw_fd(), 0, length, true)?, file))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// In a child: a limit is the whole process's own. It shares the descriptors of this process, as other tests close theirs
    /// meanwhile.
    #[test]
    fn a_limit_to_files_is_kept() {
        // SAFETY: a fork but for the descriptors, which both have. The child makes system calls only, and ends by one.
        let child = unsafe { libc::syscall(libc::SYS_clone, libc::CLONE_FILES | libc::SIGCHLD, 0, 0, 0, 0) };
        let child = libc::pid_t::try_from(child).unwrap();
        if child == 0 {
            let limit = libc::rlimit { rlim_cur: 4096, rlim_max: 4096 };
            // SAFETY: a limit.
            unsafe { libc::setrlimit(libc::RLIMIT_FSIZE, &raw const limit) };
            let refused = as_file(4097).is_err();
            // SAFETY: ends the child.
            unsafe { libc::_exit(if refused { 7 } else { 8 }) };
        }
        let mut status = 0;
        // SAFETY: our child.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 7, "status {status:#x}");
    }

    #[test]
    fn exported_memory_is_the_same_and_stays() {
        let memory = DeviceMemory::new(100).unwrap();
        let file = memory.export().unwrap();
        let other = Mapping::shared(file.as_raw_fd(), 0, 100, true).unwrap();
        let at = |address: u64| address as *mut u8;
        // SAFETY: two mappings of a hundred bytes.
        unsafe {
            at(memory.part(99, 1).unwrap()).write(7);
            assert_eq!(at(other.address() + 99).read(), 7);
        }
        drop(memory);
        // SAFETY: as above; the file holds the memory.
        assert_eq!(unsafe { at(other.address() + 99).read() }, 7);
        // SAFETY: a descriptor of this test.
        assert_ne!(unsafe { libc::ftruncate(file.as_raw_fd(), 0) }, 0, "nobody takes it away from under a region");
    }
}
