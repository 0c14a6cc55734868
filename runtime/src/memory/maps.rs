//! Checks that memory is mapped before it is registered: registration must fail where a card could not pin.

use std::ffi::CString;
use std::fmt;
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

impl fmt::Display for NotUsable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unmapped => "part of the memory is not mapped, or not readable",
            Self::ReadOnly => "part of the memory is read-only",
        })
    }
}

impl std::error::Error for NotUsable {}

/// Checks that all of `[start, start + length)` is mapped readable, and writable if `write`.
///
/// Reads `/proc/self/maps`; where that cannot be read, everything passes, and what is wrong shows when it is used.
///
/// # Errors
/// [`NotUsable`] of the first part that does not fit.
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
pub(super) fn all_mappings<E>(
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

/// Part of a shared mapping of a known file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct SharedPart {
    pub(super) start: u64,
    pub(super) end: u64,
    /// Offset of the first byte in the file.
    pub(super) offset: u64,
    /// `PROT_READ`, `PROT_WRITE`.
    pub(super) protection: i32,
}

/// Whether all of `[start, start + length)` is a shared mapping of the file with this inode, from `offset` on.
pub(super) fn is_shared(start: u64, length: u64, inode: u64, offset: u64) -> bool {
    let mut covered = start;
    visit_shared(start, length, inode, &mut |part| {
        if part.start == covered && part.offset == offset + (part.start - start) {
            covered = part.end;
        }
    });
    covered == start + length
}

/// Shared mappings of `[from, to)` of the file with this inode, but for those that begin where `is_left_out` says.
pub(super) fn parts_of_file(inode: u64, from: u64, to: u64, is_left_out: &dyn Fn(u64) -> bool) -> Vec<SharedPart> {
    let mut parts = Vec::new();
    visit_shared(0, u64::MAX, inode, &mut |part| {
        if !is_left_out(part.start) {
            parts.extend(part.of_file(from, to));
        }
    });
    parts
}

/// Lets `visit` see the parts of `[start, start + length)` that are shared mappings of the file with this inode. Allocates nothing,
/// and changes of the mappings by `visit` may be seen or not.
pub(super) fn visit_shared(start: u64, length: u64, inode: u64, visit: &mut dyn FnMut(SharedPart)) {
    let end = start.saturating_add(length);
    let path = c"/proc/self/maps".as_ptr();
    // By number: open(2) is a cancellation point.
    // SAFETY: a C string.
    let fd = unsafe { libc::syscall(libc::SYS_openat, libc::AT_FDCWD, path, libc::O_RDONLY | libc::O_CLOEXEC) };
    if fd < 0 {
        return;
    }
    // Longer than any line: a path has 4096 bytes at most, each of which may be shown as four.
    let (mut buffer, mut filled) = ([0_u8; 32 << 10], 0);
    while let Some(room) = buffer.get_mut(filled..).filter(|room| !room.is_empty()) {
        // SAFETY: room for as many bytes.
        let read = unsafe { libc::syscall(libc::SYS_read, fd, room.as_mut_ptr(), room.len()) };
        let Some(read) = usize::try_from(read).ok().filter(|read| *read > 0) else { break };
        filled += read;
        let mut taken = 0;
        while let Some(length) = buffer[taken..filled].iter().position(|byte| *byte == b'\n') {
            let part = SharedPart::parse(&buffer[taken..taken + length], inode);
            taken += length + 1;
            if let Some(part) = part.and_then(|part| part.within(start, end)) {
                visit(part);
            }
        }
        buffer.copy_within(taken..filled, 0);
        filled -= taken;
    }
    // SAFETY: the descriptor from above.
    unsafe { libc::syscall(libc::SYS_close, fd) };
}

impl SharedPart {
    /// From a line, if it is a shared mapping of the file with this inode.
    fn parse(line: &[u8], inode: u64) -> Option<Self> {
        let mut fields = line.splitn(6, |byte| *byte == b' ').map(|field| str::from_utf8(field).unwrap_or_default());
        let (start, end) = fields.next()?.split_once('-')?;
        let permissions = fields.next()?.as_bytes();
        let offset = u64::from_str_radix(fields.next()?, 16).ok()?;
        // Files in memory are on a device that has no other files but such.
        let is_this =
            fields.nth(1)?.parse() == Ok(inode) && fields.next()?.trim_start().starts_with("/memfd:urxe-direct");
        let has = |nth, what| permissions.get(nth) == Some(&what);
        let protection =
            if has(0, b'r') { libc::PROT_READ } else { 0 } | if has(1, b'w') { libc::PROT_WRITE } else { 0 };
        (is_this && has(3, b's')).then_some(Self {
            start: u64::from_str_radix(start, 16).ok()?,
            end: u64::from_str_radix(end, 16).ok()?,
            offset,
            protection,
        })
    }

    /// Returns the part of it in `[start, end)`.
    fn within(self, start: u64, end: u64) -> Option<Self> {
        let (from, to) = (self.start.max(start), self.end.min(end));
        (from < to).then(|| Self { start: from, end: to, offset: self.offset + (from - self.start), ..self })
    }

    /// Returns the part of it that maps `[from, to)` of the file.
    fn of_file(self, from: u64, to: u64) -> Option<Self> {
        let address = |offset: u64| self.start.saturating_add(offset.saturating_sub(self.offset));
        self.within(address(from), address(to))
    }
}

/// Path of anonymous memory of huge pages (`HUGETLB_ANON_FILE` of the kernel's include/linux/hugetlb.h): it is of no file that
/// anybody can open, though it has an inode.
const ANONYMOUS_HUGE_PAGES: &[u8] = b"/anon_hugepage (deleted)";

/// A line of `/proc/PID/maps` (proc_pid_maps(5)): `start-end perms offset device inode path`, in ascending order. The path is any
/// bytes.
pub(super) struct Mapping<'a> {
    pub(super) start: u64,
    end: u64,
    pub(super) readable: bool,
    pub(super) writable: bool,
    /// Private, of no file, not executable.
    pub(super) is_data: bool,
    /// Not of huge pages that are reserved for it.
    pub(super) is_small: bool,
    /// The main thread's stack.
    pub(super) is_stack: bool,
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
            is_small: path != ANONYMOUS_HUGE_PAGES,
            is_stack: path == b"[stack]",
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
    fn persistent_mappings() {
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
    fn parts_of_the_shared_file() {
        let part = |line: &str| SharedPart::parse(line.as_bytes(), 5);
        let line = "4000-6000 r--s 00030000 00:01 5                          /memfd:urxe-direct (deleted)";
        let whole = SharedPart { start: 0x4000, end: 0x6000, offset: 0x3_0000, protection: libc::PROT_READ };
        assert_eq!(part(line), Some(whole));
        assert_eq!(whole.within(0x5000, 0x9000), Some(SharedPart { start: 0x5000, offset: 0x3_1000, ..whole }));
        assert_eq!(whole.within(0x6000, 0x9000), None);
        assert_eq!(whole.of_file(0x2_0000, 0x4_0000), Some(whole));
        assert_eq!(whole.of_file(0x3_1000, 0x4_0000), Some(SharedPart { start: 0x5000, offset: 0x3_1000, ..whole }));
        assert_eq!(whole.of_file(0, 0x3_1000), Some(SharedPart { end: 0x5000, ..whole }));
        assert_eq!((whole.of_file(0, 0x3_0000), whole.of_file(0x3_2000, 0x4_0000)), (None, None));
        for line in [
            "4000-6000 r--p 00030000 00:01 5                          /memfd:urxe-direct (deleted)",
            "4000-6000 r--s 00030000 00:01 6                          /memfd:urxe-direct (deleted)",
            "4000-6000 r--s 00030000 08:01 5                          /data/x",
            "4000-6000 rw-p 00000000 00:00 0",
        ] {
            assert_eq!(part(line), None, "{line}");
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
