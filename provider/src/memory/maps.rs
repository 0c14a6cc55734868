//! What is mapped in this process: registration must fail where a card could not pin.

use std::fs::File;
use std::io::{BufRead, BufReader};

/// Why memory cannot be registered. The kernel's `get_user_pages` says EFAULT to both.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum NotUsable {
    /// A part of it is not mapped, or not readable.
    Unmapped,
    /// A part of it cannot be written, and the access asked for needs that.
    ReadOnly,
}

/// Checks that all of `[start, start + length)` is mapped readable, and writable if `write`.
///
/// Reads `/proc/self/maps`; where that cannot be read, everything passes, and what is wrong shows when it is used.
//= spec/memory.md#mem-010
//# A region MUST NOT be registered over memory that is not mapped, or for writing where it is read only.
pub(crate) fn check(start: u64, length: u64, write: bool) -> Result<(), NotUsable> {
    let Ok(file) = File::open("/proc/self/maps") else { return Ok(()) };
    check_in(BufReader::new(file), start, length, write)
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

/// A line of `/proc/PID/maps` (proc_pid_maps(5)): `start-end perms …`, in ascending order.
struct Mapping {
    start: u64,
    end: u64,
    readable: bool,
    writable: bool,
}

impl Mapping {
    fn parse(line: &str) -> Option<Self> {
        let (range, rest) = line.split_once(' ')?;
        let (start, end) = range.split_once('-')?;
        let permissions = rest.as_bytes();
        Some(Self {
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
    fn this_process() {
        let on_stack = 0u64;
        assert_eq!(check((&raw const on_stack) as u64, 8, true), Ok(()));
        assert_eq!(check(MAPS.as_ptr() as u64, MAPS.len() as u64, true), Err(NotUsable::ReadOnly));
        assert_eq!(check(0x10, 8, false), Err(NotUsable::Unmapped));
    }
}
