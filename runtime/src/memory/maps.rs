//! Checks that memory is mapped before it is registered: registration must fail where a card could not pin.

use std::ffi::CString;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::mem::MaybeUninit;
use std::ops::Range;

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

fn is_persistent_in(maps: impl BufRead, start: u64, length: u64, is_on_disk: impl Fn(&[u8]) -> bool) -> bool {
    let lasts = |mapping: &Mapping<'_>| mapping.file.is_some_and(&is_on_disk).then_some(()).ok_or(());
    all_mappings(maps, start, length, (), lasts).is_ok()
}

/// Whether the file system of `path` outlives the machine's end.
fn is_on_disk(path: &[u8]) -> bool {
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

/// Returns the mappings that have all of `[start, start + length)`, from the start of the first to the end of the last, if they are
/// private memory of no file, and no code. `maps` is the text of `/proc/PID/maps`; it is read that far.
pub fn data_in(maps: impl BufRead, start: u64, length: u64) -> Option<Range<u64>> {
    all_mappings(maps, start, length, (), |mapping| mapping.is_data.then_some(()).ok_or(())).ok()
}

fn check_in(maps: impl BufRead, start: u64, length: u64, write: bool) -> Result<(), NotUsable> {
    let check = |mapping: &Mapping<'_>| match mapping {
        Mapping { readable: false, .. } => Err(NotUsable::Unmapped),
        Mapping { writable: false, .. } if write => Err(NotUsable::ReadOnly),
        _ => Ok(()),
    };
    all_mappings(maps, start, length, NotUsable::Unmapped, check).map(drop)
}

/// Lets `check` see the mappings that have `[start, start + length)`, in ascending order. Returns the range of all of them, or the
/// first error: `unmapped` where there is none.
fn all_mappings<E>(
    maps: impl BufRead,
    start: u64,
    length: u64,
    unmapped: E,
    check: impl Fn(&Mapping<'_>) -> Result<(), E>,
) -> Result<Range<u64>, E> {
    let Some(end) = start.checked_add(length) else { return Err(unmapped) };
    let (mut from, mut covered) = (None, start);
    for line in maps.split(b'\n').map_while(Result::ok) {
        let Some(mapping) = Mapping::parse(&line).filter(|mapping| mapping.end > covered) else { continue };
        if mapping.start > covered {
            return Err(unmapped);
        }
        check(&mapping)?;
        covered = mapping.end;
        let from = *from.get_or_insert(mapping.start);
        if covered >= end {
            return Ok(from..covered);
        }
    }
    Err(unmapped)
}

/// Path of anonymous memory of huge pages (`HUGETLB_ANON_FILE` of the kernel's include/linux/hugetlb.h): it is of no file that
/// anybody can open, though it has an inode.
const ANONYMOUS_HUGE_PAGES: &[u8] = b"/anon_hugepage (deleted)";

/// A line of `/proc/PID/maps` (proc_pid_maps(5)): `start-end perms offset device inode path`, in ascending order. The path is any
/// bytes.
struct Mapping<'a> {
    start: u64,
    end: u64,
    readable: bool,
    writable: bool,
    /// Private, of no file, not executable.
    is_data: bool,
    /// Of a shared mapping: the file, if it has a name still.
    file: Option<&'a [u8]>,
}

impl<'a> Mapping<'a> {
    fn parse(line: &'a [u8]) -> Option<Self> {
        let mut fields = line.splitn(6, |byte| *byte == b' ');
        let (start, end) = str::from_utf8(fields.next()?).ok()?.split_once('-')?;
        let permissions = fields.next()?;
        let inode = fields.nth(2);
        let path = fields.next().unwrap_or_default().trim_ascii_start();
        let shared = permissions.get(3) == Some(&b's');
        let is_anonymous = inode == Some(b"0") || path == ANONYMOUS_HUGE_PAGES;
        let is_data = !shared && permissions.get(2) == Some(&b'-') && is_anonymous;
        let file = (shared && path.starts_with(b"/") && !path.ends_with(b" (deleted)")).then_some(path);
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
        let check = |start, length| is_persistent_in(FILES.as_bytes(), start, length, |path| path == b"/data/a b");
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
200000-400000 ---p 00000000 00:10 9                      /anon_hugepage (deleted)
400000-600000 r-xp 00000000 00:10 9                      /anon_hugepage (deleted)
";
        let is_data = |start, length| data_in(TEXT.as_bytes(), start, length).is_some();
        assert_eq!(data_in(TEXT.as_bytes(), 0x1800, 0x1000), Some(0x1000..0x3000));
        assert!(is_data(0x20_0000, 0x20_0000) && !is_data(0x40_0000, 1), "huge pages have an inode");
        assert!(is_data(0x1000, 0x2000) && is_data(0x7fff, 1));
        for (start, length) in
            [(0xfff, 2), (0x2fff, 2), (0x3000, 1), (0x4000, 1), (0x5000, 1), (0x6fff, 2), (0x7fff, 2), (u64::MAX, 2)]
        {
            assert!(!is_data(start, length), "{start:#x}");
        }
    }

    #[test]
    fn paths_are_any_bytes() {
        const TEXT: &[u8] = b"1000-2000 rw-s 00000000 08:01 7    /data/\xff\n2000-3000 rw-p 00000000 00:00 0 \n";
        assert_eq!(check_in(TEXT, 0x1000, 0x2000, true), Ok(()));
        assert_eq!(data_in(TEXT, 0x2000, 1), Some(0x2000..0x3000));
        assert!(is_persistent_in(TEXT, 0x1000, 0x1000, |path| path == b"/data/\xff"));
    }

    #[test]
    fn file_systems() {
        assert!(!is_on_disk(b"/nonesuch"));
        assert!(!is_on_disk(b"/dev/null"), "/dev is in memory");
    }

    #[test]
    fn this_process() {
        let on_stack = 0u64;
        assert_eq!(check((&raw const on_stack) as u64, 8, true), Ok(()));
        assert_eq!(check(MAPS.as_ptr() as u64, MAPS.len() as u64, true), Err(NotUsable::ReadOnly));
        assert_eq!(check(0x10, 8, false), Err(NotUsable::Unmapped));
    }
}
