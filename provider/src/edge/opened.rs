//! Open uverbs files of this process, by which a duplicate is told from any other file.

use std::ffi::c_int;
use std::os::fd::RawFd;
use std::sync::{Arc, Weak};

use urxe_ffi::verbs as v;

use crate::verbs::context::Context;
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
pub(super) fn original(cmd_fd: RawFd) -> Option<(Arc<Context>, *mut v::ibv_device)> {
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
