//! Choice between copying by words and by bytes.
//!
//! A processor that is told to copy bytes copies lines of its cache; told to copy words it does so only where both ends lie
//! alike in a line. QEMU's emulated one goes from one byte or word to the next, in the same time for either. It says who it
//! is, so nothing needs to be measured.

use std::arch::x86_64::__cpuid;
use std::sync::atomic::{AtomicBool, Ordering};

/// The leaf of CPUID with a hypervisor's name, and the name of QEMU without one below it.
const NAME_LEAF: u32 = 0x4000_0000;
const QEMU: &[u8; 12] = b"TCGTCGTCGTCG";

/// Whether copies by words are quicker, as [`choose`] has found.
pub(super) static QUICKER: AtomicBool = AtomicBool::new(false);

/// Asks the processor.
pub(super) fn choose() {
    // SAFETY: every processor of this architecture has CPUID; one without the leaf answers with another.
    #[allow(unused_unsafe, reason = "newer compilers know that")]
    let answer = unsafe { __cpuid(NAME_LEAF) };
    let name = [answer.ebx, answer.ecx, answer.edx].map(u32::to_le_bytes);
    QUICKER.store(name.as_flattened() == QEMU, Ordering::Relaxed);
}
