//! Checks that memory is mapped before it is registered: registration must fail where a card could not pin.

use std::ffi::CString;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::mem::MaybeUninit;

/// Why memory cannot be registered. The kernel's `get_user_pages` says EFAULT to both.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NotUsable {
    /// Part of the range is not mapped, or not readable.
    Unmapped,
    /// Part of the range is read-only, and the requested access needs to write.
    ReadOnly,
}

/// Checks that all of `[start, start + length)` is mapped readable, and writable if `write`.
///
/// Reads `/proc/self/maps`; where that cannot be read, everything passes, and what is wrong shows when it is used.
//= spec/memory.md#mem-010
//# A region MUST NOT be registered over memory that is not mapped, or for writing where it is read only.
pub fn check(start: u64, length: u64, write: bool) -> Result<(), NotUsable> {
    let Ok(file) = File::open("/proc/self/maps") else { return Ok(()) };
    check_in(BufReader::new(file), start, length, write)
}

/// Whether all of `[start, start + length)` is a file's, so that msync(2) makes what is stored there last: a shared mapping
/// of a file that has a name, on a file system that is not itself memory.
pub fn is_persistent(start: u64, length: u64) -> bool {
    let Ok(file) = File::open("/proc/self/maps") else { return false };
    is_persistent_in(BufReader::new(file), start, length, is_on_disk)
}

fn is_persistent_in(maps: impl BufRead, start: u64, length: u64, is_on_disk: impl Fn(&str) -> bool) -> bool {
    let Some(end) = start.checked_add(length) else { return false };
    let mut covered = start;
    for line in maps.lines().map_while(Result::ok) {
        let Some(mapping) = Mapping::parse(&line).filter(|mapping| mapping.end > covered) else { continue };
        if mapping.start > covered || !mapping.file.is_some_and(&is_on_disk) {
            return false;
        }
        covered = mapping.end;
        if covered >= end {
            return true;
        }
    }
    false
}

/// Whether the file system of `path` outlives the machine's end.
fn is_on_disk(path: &str) -> bool {
    const IN_MEMORY: [u64; 3] = [0x0102_1994, 0x8584_58f6, 0x9584_58f6]; // tmpfs, ramfs, hugetlbfs (statfs(2))
    let Ok(path) = CString::new(path) else { return false };
    let mut statfs = MaybeUninit::<libc::statfs>::uninit();
    // SAFETY: a string, and room for the answer.
    if unsafe { libc::statfs(path.as_ptr(), statfs.as_mut_ptr()) } != 0 {
        return false;
    }
    // SAFETY: filled in.
    let statfs = unsafe { statfs.assume_init() };
    u64::try_from(statfs.f_type).is_ok_and(|kind| !IN_MEMORY.contains(&kind))
}

/// Whether all of `[start, start + length)` is private memory of no file, and no code, by the text of `/proc/PID/maps`.
pub fn is_data_in(maps: impl BufRead, start: u64, length: u64) -> bool {
    let Some(end) = start.checked_add(length) else { return false };
    let mut covered = start;
    for line in maps.lines().map_while(Result::ok) {
        let Some(mapping) = Mapping::parse(&line).filter(|mapping| mapping.end > covered) else { continue };
        if mapping.start > covered || !mapping.is_data {
            return false;
        }
        covered = mapping.end;
        if covered >= end {
            return true;
        }
    }
    false
}

fn check_in(maps: impl BufRead, start: u64, length: u64, write: bool) -> Result<(), NotUsable> {
    let end = start.checked_add(length).ok_or(NotUsable::Unmapped)?;
    let mut covered = start;
    for line in maps.lines().map_while(Result::ok) {
        let Some(mapping) = Mapping::parse(&line) else { continue };
        if mapping.end <= covered {
            continue;
        }
        if mapping.start > covered || !mapping.readable {
            return Err(NotUsable::Unmapped);
        }
        if write && !mapping.writable {
            return Err(NotUsable::ReadOnly);
        }
        covered = mapping.end;
        if covered >= end {
            return Ok(());
        }
    }
    Err(NotUsable::Unmapped)
}

/// A line of `/proc/PID/maps` (proc_pid_maps(5)): `start-end perms offset device inode path`, in ascending order.
struct Mapping<'a> {
    start: u64,
    end: u64,
    readable: bool,
    writable: bool,
    /// Private, of no file, not executable.
    is_data: bool,
    /// Of a shared mapping: the file, if it has a name still.
    file: Option<&'a str>,
}

impl<'a> Mapping<'a> {
    fn parse(line: &'a str) -> Option<Self> {
        let (range, rest) = line.split_once(' ')?;
        let (start, end) = range.split_once('-')?;
        let permissions = rest.as_bytes();
        let shared = permissions.get(3) == Some(&b's');
        let inode = rest.split(' ').nth(3);
        let is_data = !shared && permissions.get(2) == Some(&b'-') && inode == Some("0");
        let path = rest.splitn(5, ' ').nth(4).map_or("", str::trim_start);
        let file = (shared && path.starts_with('/') && !path.ends_with(" (deleted)")).then_some(path);
        Some(Self {
            file,
            is_data,
            start: u64::from_str_radix(start, 16).ok()?,
            end: u64::from_str_radix(end, 16).ok()?,
            readable: permissions.first() == Some(&b'r'),
            writable: permissions.get(1) == Some(&b'w'),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAPS: &str = "\
1000-3000 rw-p 00000000 00:00 0
3000-4000 r--p 00000000 00:00 0 [heap]
6000-7000 ---p 00000000 00:00 0
7000-9000 rw-s 00000000 00:01 5 /dev/shm/x y
";

    #[test]
    fn runs_of_mappings() {
        let check = |start, length, write| check_in(MAPS.as_bytes(), start, length, write);
        assert_eq!(check(0x1000, 0x2000, true), Ok(()));
        assert_eq!(check(0x1fff, 0x2001, false), Ok(()));
        assert_eq!(check(0x1fff, 0x2001, true), Err(NotUsable::ReadOnly));
        assert_eq!(check(0x3000, 0x1001, false), Err(NotUsable::Unmapped));
        assert_eq!(check(0xfff, 2, false), Err(NotUsable::Unmapped));
        assert_eq!(check(0x6800, 0x1000, false), Err(NotUsable::Unmapped));
        assert_eq!(check(0x8fff, 1, true), Ok(()));
        assert_eq!(check(0x8fff, 2, true), Err(NotUsable::Unmapped));
        assert_eq!(check(u64::MAX, 2, false), Err(NotUsable::Unmapped));
    }

    #[test]
    fn what_lasts() {
        const FILES: &str = "\
1000-3000 rw-s 00000000 08:01 77                         /data/a b
3000-4000 rw-s 00002000 08:01 77                         /data/a b
4000-5000 rw-p 00000000 08:01 77                         /data/a b
5000-6000 rw-s 00000000 00:01 5                          /memfd:x (deleted)
6000-7000 rw-s 00000000 00:01 5                          /dev/shm/x
7000-8000 rw-p 00000000 00:00 0
";
        let check = |start, length| is_persistent_in(FILES.as_bytes(), start, length, |path| path == "/data/a b");
        assert!(check(0x1000, 0x3000) && check(0x2fff, 2));
        for (start, length) in
            [(0xfff, 2), (0x3fff, 2), (0x4000, 1), (0x5000, 1), (0x6000, 1), (0x7000, 1), (0x9000, 1), (u64::MAX, 2)]
        {
            assert!(!check(start, length), "{start:#x}");
        }
    }

    #[test]
    fn data_is_told_from_code_and_files() {
        const TEXT: &str = "\
1000-2000 rw-p 00000000 00:00 0                          [heap]
2000-3000 ---p 00000000 00:00 0
3000-4000 r-xp 00000000 00:00 0
4000-5000 r--p 00000000 08:01 77                         /lib/a b
5000-6000 rw-s 00000000 00:01 5                          /dev/zero (deleted)
7000-8000 r--p 00000000 00:00 0
";
        let is_data = |start, length| is_data_in(TEXT.as_bytes(), start, length);
        assert!(is_data(0x1000, 0x2000) && is_data(0x7fff, 1));
        for (start, length) in
            [(0xfff, 2), (0x2fff, 2), (0x3000, 1), (0x4000, 1), (0x5000, 1), (0x6fff, 2), (0x7fff, 2), (u64::MAX, 2)]
        {
            assert!(!is_data(start, length), "{start:#x}");
        }
    }

    #[test]
    fn file_systems() {
        assert!(!is_on_disk("/nonesuch"));
        assert!(!is_on_disk("/dev/null"), "/dev is in memory");
    }

    #[test]
    fn this_process() {
        let on_stack = 0u64;
        assert_eq!(check((&raw const on_stack) as u64, 8, true), Ok(()));
        assert_eq!(check(MAPS.as_ptr() as u64, MAPS.len() as u64, true), Err(NotUsable::ReadOnly));
        assert_eq!(check(0x10, 8, false), Err(NotUsable::Unmapped));
    }
}
