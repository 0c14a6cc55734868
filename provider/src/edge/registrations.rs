//! The copies of libibverbs that know the provider.

use std::ptr;

use urxe_ffi::driver::device::{verbs_device, verbs_device_ops};
use urxe_ffi::private::Libibverbs;
use urxe_ffi::verbs::ibv_device;

use urxe_runtime::fork_safe_mutex::ForkSafeMutex;

/// A copy of libibverbs that the provider is registered with. `ops` comes first: every device of the copy points to it.
#[repr(C)]
pub(super) struct Registration {
    pub(super) ops: verbs_device_ops,
    pub(super) library: Libibverbs,
}

/// The copies in this process: one as a rule, and one more for each bundle (a Python wheel, say) that brings its own.
pub(super) static REGISTRATIONS: ForkSafeMutex<Vec<&'static Registration>> = ForkSafeMutex::new(Vec::new());

/// The copy of libibverbs that a device is of.
///
/// # Safety
/// `device` is one that a libibverbs handed out.
pub(super) unsafe fn library(device: *mut ibv_device) -> Option<&'static Libibverbs> {
    // SAFETY: the caller's promise; libibverbs has stored the address of the ops that it was given.
    let ops = unsafe { (*device.cast::<verbs_device>()).ops };
    REGISTRATIONS.with(|all| all.iter().find(|one| ptr::eq(&raw const one.ops, ops)).map(|one| &one.library))
}
