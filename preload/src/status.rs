//! Results of stat(2) for counters: equal for the path and an open descriptor.
//!
//! A descriptor of a counter is one of a file in memory ([`crate::live`]), and the path leads to a file of the folder: cp(1)
//! and install(1) would take them for two files and refuse, and tail(1) would say that the file has been truncated. As of
//! every attribute in sysfs the size is said to be a page (`sysfs_add_file_mode_ns` of fs/sysfs/file.c), however long the text.

use core::ffi::c_int;
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering, fence};

use crate::next::system_call;

/// Size of an attribute in sysfs, in bytes.
const SIZE: u16 = 4096;

const WORDS: usize = size_of::<libc::stat>() / size_of::<u64>();

/// A file in memory that stands for a file of the folder.
struct StandIn {
    /// Inode of the file in memory; 0 if there is none, or it is being written.
    inode: AtomicU64,
    /// `struct stat` of the file that it stands for.
    status: [AtomicU64; WORDS],
}

/// The latest ones.
static STAND_INS: [StandIn; 64] =
    [const { StandIn { inode: AtomicU64::new(0), status: [const { AtomicU64::new(0) }; WORDS] } }; 64];
/// How many there have been: nearly all that other calls of fstat(2) pay.
static COUNT: AtomicUsize = AtomicUsize::new(0);
/// Device number of the file system that files in memory lie in.
static DEVICE: AtomicU64 = AtomicU64::new(0);

/// Has fstat(2) say of `copy`, a file in memory, what it says of `file` now.
pub(crate) fn stands_for(copy: c_int, file: c_int) {
    let (Some(copy), Some(mut status)) = (status_of(copy), status_of(file)) else { return };
    status.st_size = SIZE.into();
    // SAFETY: both are 8-byte aligned plain numbers of the same size, without anything between them that is not set: the kernel
    // has filled it.
    let words = unsafe { core::mem::transmute::<libc::stat, [u64; WORDS]>(status) };
    let Some(slot) = STAND_INS.get(COUNT.fetch_add(1, Ordering::Relaxed) % STAND_INS.len()) else { return };
    slot.inode.store(0, Ordering::Relaxed);
    fence(Ordering::Release);
    for (to, from) in slot.status.iter().zip(words) {
        to.store(from, Ordering::Relaxed);
    }
    DEVICE.store(copy.st_dev, Ordering::Relaxed);
    slot.inode.store(copy.st_ino, Ordering::Release);
}

pub(crate) fn status_of(fd: c_int) -> Option<libc::stat> {
    let mut status = MaybeUninit::<libc::stat>::zeroed();
    // SAFETY: room for the answer: the kernel's structure is libc's on 64-bit machines.
    unsafe {
        let result = system_call(libc::SYS_fstat, [fd as usize, status.as_mut_ptr() as usize, 0, 0]);
        (result == 0).then(|| status.assume_init())
    }
}

/// Attributes of the file that this one stands for.
fn represented(device: u64, inode: u64) -> Option<libc::stat> {
    if COUNT.load(Ordering::Relaxed) == 0 || device != DEVICE.load(Ordering::Relaxed) || inode == 0 {
        return None;
    }
    let slot = STAND_INS.iter().find(|slot| slot.inode.load(Ordering::Acquire) == inode)?;
    let mut words = [0; WORDS];
    for (to, from) in words.iter_mut().zip(&slot.status) {
        *to = from.load(Ordering::Relaxed);
    }
    fence(Ordering::Acquire);
    // SAFETY: what `stands_for` made of one.
    (slot.inode.load(Ordering::Relaxed) == inode)
        .then(|| unsafe { core::mem::transmute::<[u64; WORDS], libc::stat>(words) })
}

/// `struct stat` or `struct statx`.
pub(crate) trait Status {
    /// Says of a counter's path what sysfs would.
    fn is_of_counter(&mut self);
    /// Says of a stand-in what is said of the file that it stands for.
    fn is_of_descriptor(&mut self);
}

impl Status for libc::stat {
    fn is_of_counter(&mut self) {
        if self.st_mode & libc::S_IFMT == libc::S_IFREG {
            self.st_size = SIZE.into();
        }
    }

    fn is_of_descriptor(&mut self) {
        if let Some(represented) = represented(self.st_dev, self.st_ino) {
            *self = represented;
        }
    }
}

impl Status for libc::statx {
    fn is_of_counter(&mut self) {
        if libc::mode_t::from(self.stx_mode) & libc::S_IFMT == libc::S_IFREG {
            self.stx_size = SIZE.into();
        }
    }

    fn is_of_descriptor(&mut self) {
        let Some(file) = represented(libc::makedev(self.stx_dev_major, self.stx_dev_minor), self.stx_ino) else {
            return;
        };
        (self.stx_dev_major, self.stx_dev_minor) = (libc::major(file.st_dev), libc::minor(file.st_dev));
        self.stx_ino = file.st_ino;
        #[expect(clippy::cast_possible_truncation, reason = "no mode has more bits")]
        {
            self.stx_mode = file.st_mode as u16;
        }
        #[expect(clippy::cast_possible_truncation, reason = "a file of the folder has one link")]
        {
            self.stx_nlink = file.st_nlink as u32;
        }
        (self.stx_uid, self.stx_gid) = (file.st_uid, file.st_gid);
        self.stx_size = file.st_size.cast_unsigned();
        self.stx_blocks = file.st_blocks.cast_unsigned();
        for (to, seconds, nanoseconds) in [
            (&mut self.stx_atime, file.st_atime, file.st_atime_nsec),
            (&mut self.stx_mtime, file.st_mtime, file.st_mtime_nsec),
            (&mut self.stx_ctime, file.st_ctime, file.st_ctime_nsec),
        ] {
            to.tv_sec = seconds;
            to.tv_nsec = u32::try_from(nanoseconds).unwrap_or(0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn a_stand_in_is_told_as_the_file() {
        let (file, copy) = (tempfile(), tempfile());
        let mut of_copy = status_of(copy.as_raw_fd()).unwrap();
        of_copy.is_of_descriptor();
        assert_eq!(of_copy.st_ino, copy.metadata().unwrap().ino(), "it stands for nothing");
        stands_for(copy.as_raw_fd(), file.as_raw_fd());
        of_copy.is_of_descriptor();
        let of_file = file.metadata().unwrap();
        assert_eq!((of_copy.st_ino, of_copy.st_dev, of_copy.st_size), (of_file.ino(), of_file.dev(), 4096));
    }

    fn tempfile() -> File {
        // SAFETY: a C string; the descriptor is new.
        unsafe { std::os::fd::FromRawFd::from_raw_fd(libc::memfd_create(c"file".as_ptr(), libc::MFD_CLOEXEC)) }
    }
}
