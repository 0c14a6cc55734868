//! The file that has a process's shared pages.

use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex};

use rustix::fs::{FallocateFlags, fallocate, fstat};

use super::copies::Copies;
use super::mapping::{FILE, WHOLE_TABLE};
use crate::ipc::credentials::file_may_have;
use crate::ipc::sealed_file;
use crate::mutex::lock;
use crate::sys::identity::Identity;

/// Alignment of its parts: pages of any machine, and what a huge page takes on most.
const GRAIN: u64 = 64 << 10;
/// The file's name, which only /proc shows.
const NAME: &core::ffi::CStr = c"urxe-direct";

/// A sparse, sealed file in memory, whose parts are given out.
#[derive(Debug)]
pub struct SharedFile {
    file: ManuallyDrop<OwnedFd>,
    identity: Identity,
    parts: Mutex<Parts>,
    /// Copies of peers that were not over when their memory was hidden.
    pub(super) copies: Copies,
}

/// Parts of a file that are not in use: offsets and bytes.
#[derive(Debug)]
struct Parts {
    free: Vec<(u64, u64)>,
    /// Given back while a peer was stopped in the middle of a copy, which may be from or to any of them.
    withheld: Vec<(u64, u64)>,
    /// Tables of devices that were closed. They never become anything else, and keep their versions: what a requester has seen of
    /// an earlier device is not what a later one shows.
    tables: Vec<u64>,
}

/// Shared file that is handed over with a ring, and where the table is.
#[derive(Clone, Debug)]
pub(crate) struct Offer {
    pub(crate) file: Arc<SharedFile>,
    pub(crate) at: u64,
}

impl SharedFile {
    /// Bytes of the file, of which only those take memory that were written to.
    pub const SIZE: u64 = FILE;

    /// A new file.
    ///
    /// # Errors
    /// The error of the system call; `Unsupported` where commits are limited: the application's own pages, for which memory was committed when it
    /// mapped them, would become pages for which there may be none.
    pub fn create() -> io::Result<Self> {
        if sealed_file::are_commits_limited() {
            return Err(io::ErrorKind::Unsupported.into());
        }
        let file = sealed_file::create(NAME, Self::SIZE)?;
        let parts = Mutex::new(Parts { free: vec![(0, Self::SIZE)], withheld: Vec::new(), tables: Vec::new() });
        Ok(Self {
            identity: Identity::of(file.as_raw_fd())?,
            file: ManuallyDrop::new(file),
            parts,
            copies: Copies::default(),
        })
    }

    /// The file, unless the application has closed it: then its number may be another's.
    ///
    /// # Errors
    /// EBADF if it was closed.
    pub fn file(&self) -> io::Result<BorrowedFd<'_>> {
        if self.identity.is_under(self.file.as_raw_fd()) {
            Ok(self.file.as_fd())
        } else {
            Err(io::Error::from_raw_os_error(libc::EBADF))
        }
    }

    /// Inode of the file, as /proc shows it.
    #[must_use]
    pub fn inode(&self) -> u64 {
        self.file().and_then(|file| Ok(fstat(file)?.st_ino)).unwrap_or(0)
    }

    /// Takes a part of so many bytes, all zero. `None`: there is no such room.
    pub fn take(&self, bytes: u64) -> Option<u64> {
        let need = bytes.checked_next_multiple_of(GRAIN).filter(|need| *need > 0)?;
        let mut parts = lock(&self.parts);
        if !parts.withheld.is_empty() && self.copies.are_over() {
            for (at, bytes) in std::mem::take(&mut parts.withheld) {
                // Once more: a peer may have written there since.
                if self.empty(at, bytes) {
                    parts.add(at, bytes);
                }
            }
        }
        let (at, length) = parts.free.iter_mut().find(|(_, length)| *length >= need)?;
        let taken = *at;
        (*at, *length) = (*at + need, *length - need);
        Some(taken)
    }

    /// Whether `[0, end)` of the file may be written to: the limit may be another than when the file was made.
    #[must_use]
    pub fn may_be_written(&self, end: u64) -> bool {
        usize::try_from(end).is_ok_and(file_may_have)
    }

    /// Gives a part back: its memory goes, and nobody may be at it but a peer that was stopped in the middle of a copy and whose
    /// memory was hidden. As long as there is one, the part is not used again.
    pub fn give_back(&self, at: u64, bytes: u64) {
        let Some(bytes) = bytes.checked_next_multiple_of(GRAIN) else { return };
        // Where it cannot be emptied it is not used again.
        if !self.empty(at, bytes) {
            return;
        }
        let is_over = self.copies.are_over();
        let mut parts = lock(&self.parts);
        if is_over {
            parts.add(at, bytes);
        } else {
            parts.withheld.push((at, bytes));
        }
    }

    fn empty(&self, at: u64, bytes: u64) -> bool {
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        self.file().is_ok_and(|file| fallocate(file, punch, at, bytes).is_ok())
    }

    /// Takes a table: new, or one in which all is hidden.
    pub(super) fn take_table(&self) -> Option<u64> {
        let known = lock(&self.parts).tables.pop();
        known.or_else(|| self.take(WHOLE_TABLE))
    }

    /// Gives back a table, in which all is hidden.
    pub(super) fn give_table_back(&self, at: u64) {
        lock(&self.parts).tables.push(at);
    }
}

impl Parts {
    fn add(&mut self, at: u64, bytes: u64) {
        let free = &mut self.free;
        free.push((at, bytes));
        free.sort_unstable();
        free.dedup_by(|(at, bytes), (start, length)| {
            let follows = *start + *length == *at;
            *length += if follows { *bytes } else { 0 };
            follows
        });
        free.retain(|(_, length)| *length > 0);
    }
}

impl Drop for SharedFile {
    fn drop(&mut self) {
        // Else the number is somebody else's: to be left open.
        if self.identity.is_under(self.file.as_raw_fd()) {
            // SAFETY: not used any more.
            unsafe { ManuallyDrop::drop(&mut self.file) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_do_not_overlap_and_come_back() {
        let file = SharedFile::create().unwrap();
        let parts: Vec<_> =
            [1, 4096, 1 << 20, GRAIN].into_iter().map(|bytes| (file.take(bytes).unwrap(), bytes)).collect();
        for (nth, (at, bytes)) in parts.iter().enumerate() {
            assert!(at.is_multiple_of(GRAIN));
            assert!(parts[..nth].iter().all(|(other, length)| other + length <= *at || at + bytes <= *other));
        }
        assert_eq!(file.take(SharedFile::SIZE), None);
        assert_eq!(file.take(0), None);
        for (at, bytes) in parts {
            file.give_back(at, bytes);
        }
        assert!(file.take(SharedFile::SIZE).is_some(), "all of it is there again");
    }

    /// A table is never anything else, and what was shown in it before has other versions than what is shown later.
    #[test]
    fn tables_stay_tables() {
        let file = SharedFile::create().unwrap();
        let table = file.take_table().unwrap();
        rustix::io::pwrite(&*file.file, &[1], table).unwrap();
        file.give_table_back(table);
        assert_ne!(file.take(WHOLE_TABLE), Some(table));
        assert_eq!(file.take_table(), Some(table));
        let mut byte = [0];
        rustix::io::pread(&*file.file, &mut byte, table).unwrap();
        assert_eq!(byte, [1], "its versions begin anew");
    }
}
