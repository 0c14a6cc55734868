//! Bad pointers of the program: calls that get one fail with EFAULT, as the kernel has them fail, and do not end in SIGSEGV here.
//!
//! Every path costs a comparison, which tells null, small numbers (an error number, say) and addresses of the kernel (-1). What a
//! program seldom hands over is asked of the kernel besides. A path at an address that the program could have and has not
//! mapped ends in SIGSEGV, as in the functions of libc that look at a path themselves.

use crate::next::{system_call, with_errno_kept};

/// The first page, which nothing is ever mapped at (`vm.mmap_min_addr`), and distance in which [`is_readable`] asks.
const PAGE: usize = 4096;

/// Whether a program can have memory there.
#[inline]
pub(crate) fn is_plausible<T>(pointer: *const T) -> bool {
    let address = pointer as usize;
    // With page tables of five levels, programs on x86-64 have 56 bits. aarch64 ignores the eight bits above, which may be tags.
    let is_kernel = if cfg!(target_arch = "x86_64") { address >> 56 != 0 } else { address >> 55 & 1 != 0 };
    address >= PAGE && !is_kernel
}

/// Whether `length` bytes can be read there now, as far as a look at each page tells.
pub(crate) fn is_readable<T>(pointer: *const T, length: usize) -> bool {
    let address = pointer as usize;
    if length == 0 {
        return true;
    }
    let Some(last) = address.checked_add(length - 1) else { return false };
    is_plausible(pointer)
        && with_errno_kept(|| {
            let mut pages = (address / PAGE..=last / PAGE).map(|page| (page * PAGE).max(address));
            pages.all(has_word)
        })
}

/// Whether the aligned eight bytes around an address can be read.
fn has_word(address: usize) -> bool {
    /// No way to change a signal mask: the kernel reads the mask, and then refuses.
    const NOTHING: usize = !0;
    const SIZE: usize = size_of::<u64>();
    // SAFETY: the kernel reads eight bytes if it can.
    unsafe {
        system_call(libc::SYS_rt_sigprocmask, [NOTHING, address / SIZE * SIZE, 0, SIZE]);
        *libc::__errno_location() != libc::EFAULT
    }
}

#[cfg(test)]
mod tests {
    use core::ptr;

    use super::*;

    #[test]
    fn high_addresses() {
        // mmap(2) gives these to programs that ask, where page tables have five levels.
        assert!(is_plausible(ptr::without_provenance::<u8>(1 << 47)));
        assert!(!is_plausible(ptr::without_provenance::<u8>(0xffff << 48)), "the kernel's");
    }

    #[test]
    fn memory_that_is_there_and_memory_that_is_not() {
        let local = 7_u64;
        assert!(is_plausible(&raw const local) && is_readable(&raw const local, 8));
        for address in [0, 22, PAGE - 1, usize::MAX, isize::MAX.cast_unsigned() + 1] {
            let bad = ptr::without_provenance::<u8>(address);
            assert!(!is_plausible(bad) && !is_readable(bad, 1) && is_readable(bad, 0), "{address:#x}");
        }
        // SAFETY: a mapping of our own, of which the second page goes.
        let pages = unsafe {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            let pages = libc::mmap(ptr::null_mut(), 2 * PAGE, libc::PROT_READ, flags, -1, 0);
            assert_ne!(pages, libc::MAP_FAILED);
            libc::mprotect(pages.byte_add(PAGE), PAGE, libc::PROT_NONE);
            pages.cast::<u8>().cast_const()
        };
        assert!(is_readable(pages, PAGE) && !is_readable(pages, PAGE + 1) && !is_readable(pages.wrapping_add(PAGE), 1));
        assert!(!is_readable(pages, usize::MAX));
        // SAFETY: as above.
        unsafe { libc::munmap(pages.cast_mut().cast(), 2 * PAGE) };
    }
}
