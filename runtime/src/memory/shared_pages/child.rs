//! Shared pages and fork(2): the child has copies of its own.

use std::os::fd::AsRawFd;
use std::ptr;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::{Duration, Instant};

use super::{STATE, State, frozen, maps};

/// So long a parent waits for its child, which may be stopped.
const TIMEOUT: Duration = Duration::from_secs(10);

/// A pipe whose writing end closes when the child has its copies, or is no more.
static DONE: [AtomicI32; 2] = [AtomicI32::new(-1), AtomicI32::new(-1)];

/// Prepares the parent before fork(2).
pub(crate) fn before_fork() {
    let is_needed = STATE.with(|state| state.as_ref().is_some_and(|state| !state.extents.is_empty()));
    let mut ends = [-1; 2];
    // SAFETY: room for two descriptors.
    if is_needed && unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) } == 0 {
        DONE.iter().zip(ends).for_each(|(end, fd)| end.store(fd, Ordering::Relaxed));
    }
}

fn close(end: &AtomicI32) {
    let fd = end.swap(-1, Ordering::Relaxed);
    if fd >= 0 {
        // SAFETY: one end of the pipe of `before_fork`.
        unsafe { libc::syscall(libc::SYS_close, fd) };
    }
}

/// Waits, in the parent after fork(2), until a child has its copies.
pub(crate) fn after_fork() {
    let [reads, writes] = &DONE;
    close(writes);
    let fd = reads.load(Ordering::Relaxed);
    if fd >= 0 {
        let until = Instant::now() + TIMEOUT;
        // A signal does not end the wait.
        while is_interrupted(fd, until.saturating_duration_since(Instant::now())) {}
    }
    close(reads);
}

/// Waits until a descriptor is ready. True: a signal has come before, and time is left.
pub(super) fn is_interrupted(fd: i32, time: Duration) -> bool {
    let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    let seconds = libc::time_t::try_from(time.as_secs()).unwrap_or(libc::time_t::MAX);
    let timeout = libc::timespec { tv_sec: seconds, tv_nsec: time.subsec_nanos().into() };
    // SAFETY: one descriptor, and a time.
    let found = unsafe { libc::syscall(libc::SYS_ppoll, &raw mut poll, 1, &raw const timeout, ptr::null::<u8>(), 0) };
    found < 0 && !time.is_zero() && std::io::Error::last_os_error().raw_os_error() == Some(libc::EINTR)
}

/// Makes all shared pages private in the child, and forgets the file. Allocates nothing.
pub(crate) fn in_child() {
    let [reads, writes] = &DONE;
    close(reads);
    STATE.with(|state| {
        let Some(State { file, inode, extents }) = state.take() else { return };
        if let Ok(fd) = file.file() {
            // Wherever the application has moved them. Mappings of peers' files are not there in a child.
            urxe_net::direct::forget_imports();
            maps::visit_shared(0, u64::MAX, inode, &mut |part| {
                if let Some(copy) = frozen::private_copy(part.end - part.start)
                    && copy.fill_from(fd, part.offset).is_some()
                {
                    // Where that fails the child shares memory with its parent, and has no better.
                    let _ = copy.put_at(part.start, part.protection);
                }
            });
            // SAFETY: the child's copy, which nobody uses: the device is dead here.
            unsafe { libc::syscall(libc::SYS_close, fd.as_raw_fd()) };
        }
        std::mem::forget((file, extents));
    });
    close(writes);
}
