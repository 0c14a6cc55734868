//! Client requests of valgrind (`<valgrind/valgrind.h>`, `<valgrind/helgrind.h>`): instructions without effect that valgrind
//! recognizes. Tools ignore requests that are another's.

use std::ffi::c_void;

/// `VG_USERREQ__RUNNING_ON_VALGRIND`
const RUNNING_ON_VALGRIND: u64 = 0x1001;
/// `_VG_USERREQ__HG_USERSO_SEND_PRE`, of helgrind and DRD: `ANNOTATE_HAPPENS_BEFORE`.
const HAPPENS_BEFORE: u64 = 0x4847_0121;
/// `_VG_USERREQ__HG_USERSO_RECV_POST`: `ANNOTATE_HAPPENS_AFTER`.
const HAPPENS_AFTER: u64 = 0x4847_0122;

/// Whether valgrind runs this process.
pub(super) fn is_running() -> bool {
    request(RUNNING_ON_VALGRIND, std::ptr::null_mut()) != 0
}

/// Orders all that this thread has done before what follows a later [`happens_after`] of `address` in any thread.
pub(super) fn happens_before(address: *mut u8) {
    request(HAPPENS_BEFORE, address.cast());
}

/// Orders what follows in this thread after each earlier [`happens_before`] of `address`.
pub(super) fn happens_after(address: *mut u8) {
    request(HAPPENS_AFTER, address.cast());
}

/// Makes a request with one argument; 0 without valgrind.
fn request(number: u64, argument: *mut c_void) -> u64 {
    let words = [number, argument as u64, 0, 0, 0, 0];
    let mut result = 0_u64;
    // SAFETY: rotates a register by 64 bits in all and exchanges another with itself. valgrind reads `words`.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        core::arch::asm!(
            "rol rdi, 3",
            "rol rdi, 13",
            "rol rdi, 61",
            "rol rdi, 51",
            "xchg rbx, rbx",
            in("rax") words.as_ptr(),
            inout("rdx") result,
            inout("rdi") 0_u64 => _,
            options(nostack),
        );
    }
    // SAFETY: as above.
    #[cfg(target_arch = "aarch64")]
    unsafe {
        core::arch::asm!(
            "ror x12, x12, #3",
            "ror x12, x12, #13",
            "ror x12, x12, #51",
            "ror x12, x12, #61",
            "orr x10, x10, x10",
            in("x4") words.as_ptr(),
            inout("x3") result,
            inout("x12") 0_u64 => _,
            options(nostack),
        );
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_without_valgrind_do_nothing() {
        assert!(!is_running(), "the tests run under valgrind");
        happens_before(std::ptr::null_mut());
        happens_after(std::ptr::null_mut());
    }
}
