//! Files in memory without a name that processes of one host map: sealed, so that nobody can cut them short.

use core::ffi::CStr;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, fstatfs, ftruncate, memfd_create};

use super::credentials::file_may_have;

/// Without these nobody could rely on the memory staying: a file that is cut short raises SIGBUS.
const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

/// File system of files in memory that are not of huge pages (statfs(2)).
const TMPFS: i64 = 0x0102_1994;

/// Makes a file of so many bytes, all zero, which takes memory where it is written to. Only /proc shows its name.
pub(crate) fn create(name: &CStr, bytes: u64) -> io::Result<OwnedFd> {
    if !usize::try_from(bytes).is_ok_and(file_may_have) {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    let memfd = |flags| memfd_create(name, flags);
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    // Linux before 6.3 knows no NOEXEC_SEAL; later ones may insist on it (`vm.memfd_noexec`).
    let file = memfd(flags | MemfdFlags::NOEXEC_SEAL).or_else(|_| memfd(flags))?;
    ftruncate(&file, bytes)?;
    fcntl_add_seals(&file, SEALS)?;
    Ok(file)
}

/// Checks a file that a peer has made: it is as [`create`] makes one of so many bytes.
//= spec/hosts.md#net-021
//# What another process writes into shared memory MUST do no more than packets can.
pub(crate) fn check(file: BorrowedFd<'_>, bytes: u64) -> io::Result<()> {
    // Fails for what is not memory: no other file has seals.
    let seals = fcntl_get_seals(file)?;
    let is_long = u64::try_from(fstat(file)?.st_size) == Ok(bytes);
    if is_long && is_of_small_pages(file) && seals.contains(SEALS) && !seals.contains(SealFlags::WRITE) {
        Ok(())
    } else {
        Err(io::ErrorKind::InvalidData.into())
    }
}

/// Whether a file is in memory, and of pages that the machine has: an access to a huge page that it has not raises SIGBUS.
fn is_of_small_pages(file: BorrowedFd<'_>) -> bool {
    // The type of the word is another on each machine.
    fstatfs(file).is_ok_and(|found| i128::from(found.f_type) == i128::from(TMPFS))
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    const LENGTH: u64 = 2 << 20;

    fn made_by_peer(flags: MemfdFlags, bytes: u64, seals: SealFlags) -> OwnedFd {
        let file = memfd_create(c"test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING | flags).unwrap();
        ftruncate(&file, bytes).unwrap();
        fcntl_add_seals(&file, seals).unwrap();
        file
    }

    #[test]
    fn a_file_that_may_be_cut_short_is_refused() {
        let is_taken = |bytes, seals| check(made_by_peer(MemfdFlags::empty(), bytes, seals).as_fd(), LENGTH).is_ok();
        assert!(is_taken(LENGTH, SEALS));
        assert!(!is_taken(LENGTH, SealFlags::empty()) && !is_taken(LENGTH, SEALS.difference(SealFlags::SHRINK)));
        assert!(!is_taken(LENGTH - 1, SEALS) && !is_taken(LENGTH, SEALS | SealFlags::WRITE));
        assert!(check(create(c"test", LENGTH).unwrap().as_fd(), LENGTH).is_ok());
    }

    /// An access to a huge page that the machine does not have raises SIGBUS.
    #[test]
    fn a_file_of_huge_pages_is_refused() {
        // A multiple of every size of huge pages; nothing is reserved.
        const LARGE: u64 = 64 << 30;
        let file = made_by_peer(MemfdFlags::HUGETLB, LARGE, SEALS);
        assert!(check(file.as_fd(), LARGE).is_err());
    }
}
