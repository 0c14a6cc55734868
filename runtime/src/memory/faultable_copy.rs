//! Copies that survive memory being gone.
//!
//! An application may unmap memory that it has registered. A card has such memory pinned; here an access would be a
//! SIGSEGV (or SIGBUS, behind the end of a truncated file). So application memory is touched by a few assembly
//! routines only, and by nothing else in this library. The signal handler looks where the program was: inside one of
//! them, it makes the routine return "fault"; anywhere else, it does what would have been done without it.
//!
//! The alternative that needs no handler, process_vm_readv(2) on oneself, costs a system call a packet.

mod handler;
mod wanted;
#[cfg(target_arch = "x86_64")]
mod words;

use urxe_engine::Fault;

use crate::sanitizer;

pub use handler::{Sigaction, admit, before_default_actions, call_sigaction_by, set_wanted};

// Every routine takes addresses and returns 0, or 1 after a fault. They stand between `urxe_guard_begin` and
// `urxe_guard_end`; `urxe_guard_fault` is where the handler makes them go on.
//
// The symbols are hidden rather than local: the handler may be in another object file.
//
// `store` writes the last (up to eight) bytes by themselves, once and last, as programs spin on them (x86 makes stores
// visible in order, except within one string operation; aarch64 needs the barrier). On x86 `load` is the same routine.
// Moves that overlap copy what is not a multiple of their size; a string operation is the quickest for what is long, and
// slow to begin: of bytes, or where the processor is emulated of words ([`words`]).
#[cfg(target_arch = "x86_64")]
core::arch::global_asm!(
    ".pushsection .text.urxe_guard,\"ax\",@progbits",
    ".p2align 4",
    ".globl urxe_guard_begin, urxe_guard_end, urxe_guard_fault, urxe_guard_load, urxe_guard_store",
    ".hidden urxe_guard_begin, urxe_guard_end, urxe_guard_fault, urxe_guard_load, urxe_guard_store",
    ".globl urxe_guard_swap, urxe_guard_add",
    ".hidden urxe_guard_swap, urxe_guard_add",
    "urxe_guard_begin:",
    // load(rdi: to, rsi: from, rdx: length)
    "urxe_guard_load:",
    // store(rdi: to, rsi: from, rdx: length)
    "urxe_guard_store:",
    "sub rdx, 8",
    "jb 2f",
    // The last eight bytes are rax, and go to r8.
    "mov rax, [rsi + rdx]",
    "lea r8, [rdi + rdx]",
    "jz 7f",
    "cmp rdx, 16",
    "ja 5f",
    "cmp rdx, 8",
    "jb 3f",
    // Before them, 8 to 16.
    "mov rcx, [rsi]",
    "mov r9, [rsi + rdx - 8]",
    "mov [rdi], rcx",
    "mov [rdi + rdx - 8], r9",
    "jmp 7f",
    // Less than eight, alone or before the last eight.
    "2: xor r8d, r8d",
    "add rdx, 8",
    "3: test edx, 4",
    "jz 4f",
    "mov ecx, [rsi]",
    "mov [rdi], ecx",
    "add rsi, 4",
    "add rdi, 4",
    "4: test edx, 2",
    "jz 4f",
    "movzx ecx, word ptr [rsi]",
    "mov [rdi], cx",
    "add rsi, 2",
    "add rdi, 2",
    "4: test edx, 1",
    "jz 4f",
    "movzx ecx, byte ptr [rsi]",
    "mov [rdi], cl",
    "4: test r8, r8",
    "jz 8f",
    "7: mov [r8], rax",
    "8: xor eax, eax",
    "ret",
    // Before the last eight, 17 to 256.
    "5: cmp rdx, 256",
    "ja 6f",
    "lea rcx, [rdx - 16]",
    "xor r9d, r9d",
    "4: movups xmm0, [rsi + r9]",
    "movups [rdi + r9], xmm0",
    "add r9, 16",
    "cmp r9, rcx",
    "jb 4b",
    "movups xmm0, [rsi + rcx]",
    "movups [rdi + rcx], xmm0",
    "jmp 7b",
    // And more.
    "6: mov rcx, rdx",
    "cmp byte ptr [rip + {by_words}], 0",
    "jne 4f",
    "rep movsb",
    "jmp 7b",
    "4: shr rcx, 3",
    "rep movsq",
    "and edx, 7",
    "jmp 3b",
    // swap(rdi: at, rsi: compare, rdx: swap, rcx: original out)
    "urxe_guard_swap:",
    "mov rax, rsi",
    "lock cmpxchg [rdi], rdx",
    "mov [rcx], rax",
    "xor eax, eax",
    "ret",
    // add(rdi: at, rsi: add, rdx: original out)
    "urxe_guard_add:",
    "lock xadd [rdi], rsi",
    "mov [rdx], rsi",
    "xor eax, eax",
    "ret",
    "urxe_guard_end:",
    "urxe_guard_fault:",
    "mov eax, 1",
    "ret",
    ".popsection",
    by_words = sym words::QUICKER,
);

// See above.
#[cfg(target_arch = "aarch64")]
core::arch::global_asm!(
    ".pushsection .text.urxe_guard,\"ax\",@progbits",
    ".p2align 4",
    ".globl urxe_guard_begin, urxe_guard_end, urxe_guard_fault, urxe_guard_load, urxe_guard_store",
    ".hidden urxe_guard_begin, urxe_guard_end, urxe_guard_fault, urxe_guard_load, urxe_guard_store",
    ".globl urxe_guard_swap, urxe_guard_add",
    ".hidden urxe_guard_swap, urxe_guard_add",
    "urxe_guard_begin:",
    // load(x0: to, x1: from, x2: length) and the head of store
    "urxe_guard_load:",
    "1: subs x2, x2, #8",
    "b.lo 2f",
    "ldr x3, [x1], #8",
    "str x3, [x0], #8",
    "b 1b",
    "2: adds x2, x2, #8",
    "b.eq 4f",
    "3: ldrb w3, [x1], #1",
    "strb w3, [x0], #1",
    "subs x2, x2, #1",
    "b.ne 3b",
    "4: mov w0, #0",
    "ret",
    // store(x0: to, x1: from, x2: length)
    "urxe_guard_store:",
    "cbz x2, 4f",
    "mov x4, #8",
    "cmp x2, #8",
    "b.hs 1f",
    "mov x4, #1",
    "1: sub x2, x2, x4",
    "5: subs x2, x2, #8",
    "b.lo 6f",
    "ldr x3, [x1], #8",
    "str x3, [x0], #8",
    "b 5b",
    "6: adds x2, x2, #8",
    "b.eq 8f",
    "7: ldrb w3, [x1], #1",
    "strb w3, [x0], #1",
    "subs x2, x2, #1",
    "b.ne 7b",
    "8: dmb ishst",
    "cmp x4, #8",
    "b.ne 9f",
    "ldr x3, [x1]",
    "str x3, [x0]",
    "b 4f",
    "9: ldrb w3, [x1]",
    "strb w3, [x0]",
    "4: mov w0, #0",
    "ret",
    // swap(x0: at, x1: compare, x2: swap, x3: original out)
    "urxe_guard_swap:",
    "1: ldaxr x4, [x0]",
    "cmp x4, x1",
    "b.ne 2f",
    "stlxr w5, x2, [x0]",
    "cbnz w5, 1b",
    "b 3f",
    "2: clrex",
    "3: str x4, [x3]",
    "mov w0, #0",
    "ret",
    // add(x0: at, x1: add, x2: original out)
    "urxe_guard_add:",
    "1: ldaxr x3, [x0]",
    "add x4, x3, x1",
    "stlxr w5, x4, [x0]",
    "cbnz w5, 1b",
    "str x3, [x2]",
    "mov w0, #0",
    "ret",
    "urxe_guard_end:",
    "urxe_guard_fault:",
    "mov w0, #1",
    "ret",
    ".popsection",
);

unsafe extern "C" {
    fn urxe_guard_begin();
    fn urxe_guard_end();
    fn urxe_guard_fault();
    fn urxe_guard_load(to: *mut u8, from: u64, length: usize) -> u32;
    fn urxe_guard_store(to: u64, from: *const u8, length: usize) -> u32;
    fn urxe_guard_swap(at: u64, compare: u64, swap: u64, original: *mut u64) -> u32;
    fn urxe_guard_add(at: u64, add: u64, original: *mut u64) -> u32;
}

fn check(faulted: u32) -> Result<(), Fault> {
    if faulted == 0 { Ok(()) } else { Err(Fault) }
}

/// Copies from application memory at `from`. As before all that follows, the thread has been through [`admit`].
///
/// # Errors
/// [`Fault`] if part of it is not mapped; `to` may have been written in part.
//= spec/memory.md#mem-008
//# Memory that was unmapped while registered MUST fail the work request, not the process.
pub fn load(from: u64, to: &mut [u8]) -> Result<(), Fault> {
    sanitizer::reading(from, to.len());
    // SAFETY: `to` is ours; `from` may be anything, since the handler is there.
    check(unsafe { urxe_guard_load(to.as_mut_ptr(), from, to.len()) })?;
    sanitizer::read();
    Ok(())
}

/// Copies to application memory at `to`; the last byte becomes visible last.
///
/// # Errors
/// [`Fault`] if part of it is not mapped or not writable; a part may have been written.
///
/// # Safety
/// `[to, to + from.len())` is memory that the application registered for writing.
pub unsafe fn store(to: u64, from: &[u8]) -> Result<(), Fault> {
    sanitizer::writing(to, from.len());
    // SAFETY: `from` is ours; the caller answers for `to` being the application's to write, the handler for its being
    // there.
    check(unsafe { urxe_guard_store(to, from.as_ptr(), from.len()) })?;
    sanitizer::written(to, from.len());
    Ok(())
}

/// Copies application memory to application memory, which may be another process's that is mapped here; the last byte becomes
/// visible last. For processes that no sanitizer watches.
///
/// # Errors
/// [`Fault`] if part of either is not mapped, or part of `[to, to + length)` not writable; a part may have been written.
///
/// # Safety
/// `[to, to + length)` is memory that an application registered for writing.
pub unsafe fn copy(to: u64, from: u64, length: u64) -> Result<(), Fault> {
    let length = usize::try_from(length).map_err(|_| Fault)?;
    // SAFETY: the caller answers for `to` being there for writing, the handler for both being there.
    check(unsafe { urxe_guard_store(to, from as *const u8, length) })
}

/// Compare and swap on the eight aligned bytes at `at`.
///
/// # Errors
/// [`Fault`] if they are not mapped or not writable.
///
/// # Safety
/// As for [`store`].
//= spec/memory.md#mem-009
//# CMP_SWP and FETCH_ADD MUST be atomic to the processor's own atomics.
pub unsafe fn compare_swap(at: u64, compare: u64, swap: u64) -> Result<u64, Fault> {
    let mut original = 0;
    sanitizer::writing(at, size_of::<u64>());
    // SAFETY: as for `store`.
    check(unsafe { urxe_guard_swap(at, compare, swap, &raw mut original) })?;
    sanitizer::written(at, size_of::<u64>());
    Ok(original)
}

/// Fetch and add on the eight aligned bytes at `at`.
///
/// # Errors
/// [`Fault`] if they are not mapped or not writable.
///
/// # Safety
/// As for [`store`].
pub unsafe fn fetch_add(at: u64, add: u64) -> Result<u64, Fault> {
    let mut original = 0;
    sanitizer::writing(at, size_of::<u64>());
    // SAFETY: as for `store`.
    check(unsafe { urxe_guard_add(at, add, &raw mut original) })?;
    sanitizer::written(at, size_of::<u64>());
    Ok(original)
}

#[cfg(test)]
mod tests {
    use std::ptr;
    #[cfg(target_arch = "x86_64")]
    use std::sync::atomic::Ordering;

    use super::*;

    /// A page of memory with nothing behind it.
    struct Page(*mut libc::c_void);

    const SIZE: usize = 4096;

    impl Page {
        fn new() -> Self {
            // SAFETY: a fresh mapping of two pages, of which the second stays out of reach. Were it unmapped, another test could get it.
            unsafe {
                let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
                let at = libc::mmap(ptr::null_mut(), 2 * SIZE, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0);
                assert_ne!(at, libc::MAP_FAILED);
                assert_eq!(libc::mprotect(at.add(SIZE), SIZE, libc::PROT_NONE), 0);
                Self(at)
            }
        }

        fn address(&self) -> u64 {
            self.0 as u64
        }
    }

    impl Drop for Page {
        fn drop(&mut self) {
            // SAFETY: our mapping.
            unsafe { libc::munmap(self.0, 2 * SIZE) };
        }
    }

    #[test]
    fn copies_of_every_small_length() {
        admit();
        let page = Page::new();
        let data: Vec<u8> = (0..300).map(|index| (index % 251) as u8).collect();
        for length in 0..=data.len() {
            #[cfg(target_arch = "x86_64")]
            words::QUICKER.store(length % 2 == 0, Ordering::Relaxed);
            for skew in 0..9 {
                // SAFETY: within our page.
                unsafe { store(page.address(), &[0xff; 400]) }.unwrap();
                // SAFETY: likewise.
                unsafe { store(page.address() + 8 + skew, &data[..length]) }.unwrap();
                let mut back = vec![0xff; 400];
                load(page.address() + 8 + skew, &mut back[8..8 + length]).unwrap();
                let untouched = |bytes: &[u8]| bytes.iter().all(|byte| *byte == 0xff);
                assert_eq!(back[8..8 + length], data[..length]);
                assert!(untouched(&back[..8]) && untouched(&back[8 + length..]), "load of {length} bytes");
                load(page.address(), &mut back).unwrap();
                let at = 8 + usize::try_from(skew).unwrap();
                assert_eq!(back[at..at + length], data[..length]);
                assert!(untouched(&back[..at]) && untouched(&back[at + length..]), "store of {length} bytes");
            }
        }
    }

    //= spec/memory.md#mem-008
    //= type=test
    //# Memory that was unmapped while registered MUST fail the work request, not the process.
    #[test]
    fn memory_that_is_not_there_is_a_fault() {
        admit();
        let page = Page::new();
        let end = page.address() + SIZE as u64;
        for length in [1, 2, 4, 8, 9, 100, 4096] {
            let mut buffer = vec![0; length];
            assert_eq!(load(end - length as u64, &mut buffer), Ok(()));
            assert_eq!(load(end - length as u64 + 1, &mut buffer), Err(Fault));
            // SAFETY: what is not our page is not mapped.
            assert_eq!(unsafe { store(end - length as u64 + 1, &buffer) }, Err(Fault));
        }
        // SAFETY: not mapped.
        unsafe {
            assert_eq!(fetch_add(end, 1), Err(Fault));
            assert_eq!(compare_swap(end, 0, 1), Err(Fault));
        }
        assert_eq!(load(0x10, &mut [0; 8]), Err(Fault));
        assert_eq!(load(u64::MAX - 3, &mut [0; 8]), Err(Fault), "not a canonical address");
    }

    #[test]
    fn read_only_memory_cannot_be_stored_to() {
        admit();
        let page = Page::new();
        // SAFETY: our page.
        unsafe {
            assert_eq!(libc::mprotect(page.0, SIZE, libc::PROT_READ), 0);
            assert_eq!(store(page.address(), &[1; 16]), Err(Fault));
        }
        assert_eq!(load(page.address(), &mut [0; 16]), Ok(()));
    }

    //= spec/memory.md#mem-009
    //= type=test
    //# CMP_SWP and FETCH_ADD MUST be atomic to the processor's own atomics.
    #[test]
    fn atomics() {
        admit();
        let page = Page::new();
        // SAFETY: our page.
        unsafe {
            assert_eq!(fetch_add(page.address(), 5), Ok(0));
            assert_eq!(compare_swap(page.address(), 4, 9), Ok(5));
            assert_eq!(compare_swap(page.address(), 5, 9), Ok(5));
            assert_eq!(fetch_add(page.address(), u64::MAX), Ok(9));
            assert_eq!(fetch_add(page.address(), 0), Ok(8));
        }
    }
}
