//! Opening a device by a duplicate of another context's uverbs file (`ibv_import_device(3)`).
//!
//! The file is really `/dev/null`, so nothing can be kept in it: what a duplicate stands for is known in the process
//! that opened the original, and only there. That is all that could be shared, too: memory regions are addresses of one
//! process. In other processes importing is refused with EOPNOTSUPP, as by a provider that cannot import.

use std::ffi::{CStr, c_int};

use urxe_explain::Verb;
use urxe_ffi::private::Libibverbs;
use urxe_ffi::verbs as v;

use super::open::introduce;
use super::opened::original;
use super::{ptr_verb, registrations};
use crate::kernel::Errno;
use crate::verbs::diagnostics;

/// `named` is the first with this device number, and all of ours have the same: which it is, the original knows.
pub(super) unsafe extern "C" fn import_context(named: *mut v::ibv_device, cmd_fd: c_int) -> *mut v::verbs_context {
    ptr_verb(Verb::ImportDevice, || {
        // SAFETY: libibverbs' own device.
        let library = unsafe { registrations::library(named) }.ok_or(Errno(libc::ENOSYS))?;
        let (original, device) = original(cmd_fd).ok_or_else(diagnostics::not_importable)?;
        // SAFETY: both are devices of a libibverbs, this one's and that of the copy which opened the original.
        let device = unsafe { of_copy(library, named, device) }.ok_or_else(diagnostics::not_importable)?;
        let context = original.import()?;
        // SAFETY: the device of a context that is open during this call; the descriptor is the caller's.
        unsafe { introduce(library, device, cmd_fd, context, None) }
    })
}

/// `device` as the copy `library` of libibverbs knows it: a context and its device are of one copy. `named` is of that copy.
///
/// # Safety
/// `named` and `device` are devices that a libibverbs handed out.
unsafe fn of_copy(
    library: &Libibverbs,
    named: *mut v::ibv_device,
    device: *mut v::ibv_device,
) -> Option<*mut v::ibv_device> {
    // SAFETY: the caller's promise; names are C strings.
    unsafe {
        let name = |device: *mut v::ibv_device| CStr::from_ptr((&raw const (*device).name).cast());
        let of_this_copy = registrations::library(device).is_some_and(|other| other.address() == library.address());
        if of_this_copy { Some(device) } else { Some(named).filter(|&named| name(named) == name(device)) }
    }
}
