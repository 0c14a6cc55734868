//! Files in memory without a name that processes of one host map: sealed, so that nobody can cut them short.

use core::ffi::CStr;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::OnceLock;

use rustix::fs::{
    FallocateFlags, MemfdFlags, SealFlags, fallocate, fcntl_add_seals, fcntl_get_seals, fstat, fstatfs, ftruncate,
    memfd_create,
};
use rustix::io::Errno;

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

/// Whether the kernel refuses memory beyond its commit limit (`vm.overcommit_memory=2` of proc(5)). An access to a page of a file in memory that
/// it refuses raises SIGBUS. Elsewhere it ends a process when memory runs out (the OOM killer), as for all memory.
///
/// The first call asks: a port does when it is opened, for a program may forbid itself to open files afterwards (seccomp(2)).
pub(crate) fn are_commits_limited() -> bool {
    static ARE: OnceLock<bool> = OnceLock::new();
    *ARE.get_or_init(|| std::fs::read("/proc/sys/vm/overcommit_memory").is_ok_and(|mode| mode.starts_with(b"2")))
}

/// Takes the memory of a file now, where an access might find that there is none.
///
/// # Errors
/// ENOSPC if the kernel refuses it.
pub fn commit(file: BorrowedFd<'_>, bytes: u64) -> io::Result<()> {
    if are_commits_limited() { allocate(file, bytes) } else { Ok(()) }
}

fn allocate(file: BorrowedFd<'_>, bytes: u64) -> io::Result<()> {
    /// Bytes of a call: a signal undoes what a call has done, and some programs get very many.
    const PART: u64 = 64 << 10;
    let mut at = 0;
    while at < bytes {
        let part = PART.min(bytes - at);
        match fallocate(file, FallocateFlags::empty(), at, part) {
            Ok(()) => at += part,
            Err(Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
    }
    Ok(())
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

    #[test]
    fn all_memory_of_a_file_is_taken() {
        let file = create(c"test", LENGTH + 4096).unwrap();
        let blocks = || u64::try_from(fstat(&file).unwrap().st_blocks).unwrap() * 512;
        assert_eq!(blocks(), 0);
        commit(file.as_fd(), LENGTH + 4096).unwrap();
        assert_eq!(blocks() > 0, are_commits_limited());
        allocate(file.as_fd(), LENGTH + 4096).unwrap();
        assert_eq!(blocks(), LENGTH + 4096);
        assert!(allocate(file.as_fd(), LENGTH + 8192).is_err(), "the file is not so long");
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
