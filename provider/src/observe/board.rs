//! Counters for others to see: a file without a name (memfd) called `urxe:DEVICE`, which `urxe status` finds among the
//! open files of a process. So there is no daemon, nothing on disk, and nothing left behind by a program that is killed;
//! who may look is who may look at the process (`ptrace(2)`, PTRACE_MODE_READ).
//!
//! It holds [`MAGIC`], the process id, the number of entries, and from byte 64 on the entries: 40 bytes of name, filled up
//! with zeros, and a number, all in the byte order of the machine. They are brought up to date when a device has
//! nothing to do, so that counting costs no more than it does.

use std::ffi::CString;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::memory::mapping::Mapping;

/// How the file begins.
const MAGIC: &[u8; 16] = b"urxe counters 1\n";
const HEADER: usize = 64;
const NAME: usize = 40;
const ENTRY: usize = NAME + 8;

/// The file of one device.
#[derive(Debug)]
pub(crate) struct Board {
    mapping: Mapping,
    count: usize,
    /// Found by others under `/proc`.
    _file: OwnedFd,
}

impl Board {
    /// A board of the device `name` with these counters. `None` where the system has no room for it: nobody needs it.
    pub(crate) fn new(name: &str, names: &[&str]) -> Option<Self> {
        let label = CString::new(format!("urxe:{name}")).ok()?;
        // SAFETY: a string.
        let fd = unsafe { libc::memfd_create(label.as_ptr(), libc::MFD_CLOEXEC) };
        if fd < 0 {
            return None;
        }
        // SAFETY: new, and ours.
        let file = unsafe { OwnedFd::from_raw_fd(fd) };
        let mut bytes = vec![0; HEADER];
        bytes[..16].copy_from_slice(MAGIC);
        bytes[16..20].copy_from_slice(&std::process::id().to_ne_bytes());
        bytes[20..24].copy_from_slice(&u32::try_from(names.len()).ok()?.to_ne_bytes());
        for name in names {
            let name = name.as_bytes().get(..name.len().min(NAME - 1))?;
            bytes.extend_from_slice(name);
            bytes.resize(bytes.len() + ENTRY - name.len(), 0);
        }
        // SAFETY: that many bytes of ours; a file in memory takes them at once.
        let written = unsafe { libc::write(file.as_raw_fd(), bytes.as_ptr().cast(), bytes.len()) };
        if usize::try_from(written).ok()? != bytes.len() {
            return None;
        }
        let mapping = Mapping::shared(file.as_raw_fd(), 0, bytes.len(), true).ok()?;
        Some(Self { mapping, count: names.len(), _file: file })
    }

    /// Shows these values, in the order of the names.
    pub(crate) fn update(&self, values: impl Iterator<Item = u64>) {
        let first = self.mapping.address() + (HEADER + NAME) as u64;
        for (index, value) in (0..self.count as u64).zip(values) {
            let at = (first + index * ENTRY as u64) as *mut u64;
            // SAFETY: within the mapping, of which nothing else is made; a multiple of eight, as header, name and entry
            // are. Others only read it.
            unsafe { AtomicU64::from_ptr(at) }.store(value, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_board_reads_as_it_was_written() {
        let board = Board::new("urxe9", &["one", "two"]).unwrap();
        board.update([7, u64::MAX].into_iter());
        let bytes = std::fs::read(format!("/proc/self/fd/{}", board._file.as_raw_fd())).unwrap();
        assert_eq!(&bytes[..16], MAGIC);
        assert_eq!(bytes[16..20], std::process::id().to_ne_bytes());
        assert_eq!(bytes.len(), HEADER + 2 * ENTRY);
        assert_eq!(&bytes[HEADER..HEADER + 4], b"one\0");
        assert_eq!(bytes[HEADER + NAME..HEADER + ENTRY], 7_u64.to_ne_bytes());
        assert_eq!(bytes[HEADER + ENTRY + NAME..], u64::MAX.to_ne_bytes());
    }
}
