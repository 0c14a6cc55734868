//! Opening a device by a duplicate of another context's uverbs file (`ibv_import_device(3)`).
//!
//! The file is really `/dev/null`, so nothing can be kept in it: what a duplicate stands for is known in the process
//! that opened the original, and only there. That is all that could be shared, too: memory regions are addresses of one
//! process. In other processes importing is refused with EOPNOTSUPP, as by a provider that cannot import.

use std::ffi::{CStr, c_int};
use std::os::fd::RawFd;
use std::sync::{Arc, Weak};

use urxe_explain::Verb;
use urxe_ffi::private::Libibverbs;
use urxe_ffi::verbs as v;

use super::{context, ptr_verb, register};
use crate::kernel::Errno;
use crate::verbs::context::Context;
use crate::verbs::diagnostics;
use urxe_runtime::fork_safe_mutex::ForkSafeMutex;

/// An open uverbs file.
struct Opened {
    cmd_fd: RawFd,
    context: Weak<Context>,
    /// The `ibv_device`, which the context keeps.
    device: usize,
}

static OPENED: ForkSafeMutex<Vec<Opened>> = ForkSafeMutex::new(Vec::new());

/// Remembers an open uverbs file.
pub(super) fn remember(cmd_fd: RawFd, context: &Arc<Context>, device: *mut v::ibv_device) {
    let new = Opened { cmd_fd, context: Arc::downgrade(context), device: device.expose_provenance() };
    OPENED.with(|opened| {
        opened.retain(|other| other.cmd_fd != cmd_fd);
        opened.push(new);
    });
}

/// Forgets it, before it is closed.
pub(super) fn forget(cmd_fd: RawFd) {
    OPENED.with(|opened| opened.retain(|opened| opened.cmd_fd != cmd_fd));
}

/// The context and device whose uverbs file `cmd_fd` is a duplicate of.
fn original(cmd_fd: RawFd) -> Option<(Arc<Context>, *mut v::ibv_device)> {
    // Flags are tried at the table: not by two threads at once.
    let (context, device) = OPENED.with(|opened| {
        let original = opened.iter().find(|opened| opened.cmd_fd != cmd_fd && is_duplicate(opened.cmd_fd, cmd_fd))?;
        Some((Weak::clone(&original.context), original.device))
    })?;
    let context = context.upgrade().filter(|context| context.check_alive().is_ok())?;
    Some((context, std::ptr::with_exposed_provenance_mut(device)))
}

/// Whether two descriptors share an open file description (open(2)): a status flag set by one then shows in the other.
/// O_APPEND, which means nothing to this file. (kcmp(2) would tell, but containers forbid it.)
fn is_duplicate(one: RawFd, other: RawFd) -> bool {
    // SAFETY: fcntl(2) without pointers, on descriptors that may be anything.
    let flags = |fd: RawFd| unsafe { libc::fcntl(fd, libc::F_GETFL) };
    // SAFETY: as above.
    let set = |fd: RawFd, flags: c_int| unsafe { libc::fcntl(fd, libc::F_SETFL, flags) } == 0;
    let before = flags(one);
    if before < 0 || flags(other) != before || !set(one, before ^ libc::O_APPEND) {
        return false;
    }
    let shows = flags(other) == before ^ libc::O_APPEND;
    set(one, before) && shows && flags(other) == before
}

/// `named` is the first with this device number, and all of ours have the same: which it is, the original knows.
pub(super) unsafe extern "C" fn import_context(named: *mut v::ibv_device, cmd_fd: c_int) -> *mut v::verbs_context {
    ptr_verb(Verb::ImportDevice, || {
        // SAFETY: libibverbs' own device.
        let library = unsafe { register::library(named) }.ok_or(Errno(libc::ENOSYS))?;
        let (original, device) = original(cmd_fd).ok_or_else(diagnostics::not_importable)?;
        // SAFETY: both are devices of a libibverbs, this one's and that of the copy which opened the original.
        let device = unsafe { of_copy(library, named, device) }.ok_or_else(diagnostics::not_importable)?;
        let context = original.import()?;
        // SAFETY: the device of a context that is open during this call; the descriptor is the caller's.
        unsafe { context::introduce(library, device, cmd_fd, context, None) }
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
        let of_this_copy = register::library(device).is_some_and(|other| other.address() == library.address());
        if of_this_copy { Some(device) } else { Some(named).filter(|&named| name(named) == name(device)) }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::AsRawFd;

    use super::is_duplicate;

    #[test]
    fn duplicates_are_told_from_others() {
        let open = || File::options().read(true).write(true).open("/dev/null").unwrap();
        let (file, other) = (open(), open());
        let duplicate = file.try_clone().unwrap();
        assert!(is_duplicate(file.as_raw_fd(), duplicate.as_raw_fd()));
        assert!(!is_duplicate(file.as_raw_fd(), other.as_raw_fd()));
        assert!(!is_duplicate(file.as_raw_fd(), -1) && !is_duplicate(-1, file.as_raw_fd()));
    }
}
