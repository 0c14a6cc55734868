//! Memory that can be shared: private pages of no file, and of no stack.

use std::fs::File;
use std::io::{BufRead, BufReader};

use super::maps::{Mapping, all_mappings};
use crate::limits::page;

/// Bytes of the stack on both sides of the caller's frame that are in use while pages are frozen.
const FRAMES: u64 = 256 << 10;

/// Whether all of `[start, start + length)` is private memory of no file that may be read and written, and neither code nor in a mapping
/// that grows as the main thread's stack does, nor where the caller is on its stack.
pub(super) fn is_private(start: u64, length: u64) -> bool {
    let Ok(file) = File::open("/proc/self/maps") else { return false };
    let on_stack = 0_u8;
    let own = (&raw const on_stack) as u64;
    let is_in_use = start < own.saturating_add(FRAMES) && own.saturating_sub(FRAMES) < start.saturating_add(length);
    !is_in_use && is_private_in(BufReader::new(file), start, length, |mapping| grows_down(mapping.start.max(start)))
}

fn is_private_in(maps: impl BufRead, start: u64, length: u64, grows_down: impl Fn(&Mapping<'_>) -> bool) -> bool {
    let is_fit = |mapping: &Mapping<'_>| {
        let is_fit = mapping.is_data && mapping.is_small && mapping.readable && mapping.writable && !mapping.is_stack;
        (is_fit && !grows_down(mapping)).then_some(()).ok_or(())
    };
    all_mappings(maps, start, length, (), is_fit).is_ok()
}

/// Whether the mapping that has the page at `at`, which may be read and written, grows when memory below it is touched
/// (`MAP_GROWSDOWN`): shared pages in its place would not. `/proc/self/maps` does not tell, and smaps looks at all pages of the process.
///
/// mprotect(2) takes `PROT_GROWSDOWN` for such a mapping only, and gives it the protection that it has.
fn grows_down(at: u64) -> bool {
    let (page, protection) = (page(), libc::PROT_READ | libc::PROT_WRITE | libc::PROT_GROWSDOWN);
    let (Ok(at), Ok(length)) = (usize::try_from(at - at % page), usize::try_from(page)) else { return true };
    // SAFETY: changes no protection; see above.
    unsafe { libc::mprotect(std::ptr::without_provenance_mut(at), length, protection) == 0 }
}

#[cfg(test)]
mod tests {
    use std::ptr;

    use super::*;

    #[test]
    fn memory_of_nobody_else() {
        const TEXT: &str = "\
1000-3000 rw-p 00000000 00:00 0                          [heap]
3000-4000 r--p 00000000 00:00 0
4000-5000 rw-s 00000000 00:01 5                          /memfd:urxe-direct (deleted)
5000-6000 rw-p 00000000 08:01 77                         /lib/a b
6000-7000 rw-p 00000000 00:00 0                          [stack]
200000-400000 rw-p 00000000 00:10 9                      /anon_hugepage (deleted)
";
        let is_private = |start, length| is_private_in(TEXT.as_bytes(), start, length, |_| false);
        assert!(is_private(0x1000, 0x2000) && is_private(0x2000, 0x1000));
        for (start, length) in [(0x1000, 0x3000), (0x3000, 1), (0x4000, 1), (0x5000, 1), (0x6000, 1), (0x20_0000, 1)] {
            assert!(!is_private(start, length), "{start:#x}");
        }
    }

    /// A private mapping with flags of its own, and its first address.
    struct Mapped(*mut libc::c_void);

    const LENGTH: usize = 3 * 4096;

    impl Mapped {
        fn new(flags: libc::c_int) -> Self {
            let (protection, flags) =
                (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | flags);
            // SAFETY: a new mapping.
            let start = unsafe { libc::mmap(ptr::null_mut(), LENGTH, protection, flags, -1, 0) };
            assert_ne!(start, libc::MAP_FAILED);
            Self(start)
        }
    }

    impl Drop for Mapped {
        fn drop(&mut self) {
            // SAFETY: a mapping of this test.
            unsafe { libc::munmap(self.0, LENGTH) };
        }
    }

    #[test]
    fn mappings_that_grow() {
        let (grows, stays) = (Mapped::new(libc::MAP_GROWSDOWN), Mapped::new(0));
        for page in 0..LENGTH as u64 / 4096 {
            assert!(grows_down(grows.0 as u64 + page * 4096) && !grows_down(stays.0 as u64 + page * 4096));
        }
        // It is what it was.
        let maps = || BufReader::new(File::open("/proc/self/maps").unwrap());
        let mapping = |start| all_mappings(maps(), start, LENGTH as u64, (), |_| Ok(()));
        assert!(mapping(grows.0 as u64).is_ok_and(|range| range.start == grows.0 as u64));
        assert!(is_private_in(maps(), grows.0 as u64, LENGTH as u64, |_| false));
        assert!(!is_private_in(maps(), grows.0 as u64, LENGTH as u64, |mapping| grows_down(mapping.start)));
    }
}
