//! Waits for an event as a thread does in the kernel: the wait can be cancelled (`pthread_cancel(3)`), and outlasts a
//! close(2) of the channel.

use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};

use urxe_ffi::ucma;
use urxe_runtime::per_thread::PerThread;

use super::{Channel, Command};

/// How long a thread sleeps that asks for an event of a channel which another thread has just closed.
static LATE: libc::timespec = libc::timespec { tv_sec: 3, tv_nsec: 0 };

// Where a thread may be cancelled it unwinds.
unsafe extern "C-unwind" {
    #[link_name = "recv"]
    fn cancellable_recv(fd: c_int, buf: *mut c_void, len: usize, flags: c_int) -> isize;
    #[link_name = "nanosleep"]
    fn cancellable_nanosleep(time: *const libc::timespec, left: *mut libc::timespec) -> c_int;
}

/// Channel that a thread waits for, kept open meanwhile. Dropped with the thread, should it be cancelled.
static HELD: PerThread<Cell<Option<Arc<Channel>>>> = PerThread::new();

/// The thread that closed a channel last.
static CLOSER: AtomicI32 = AtomicI32::new(0);

/// Place at which a thread waits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Place {
    /// Socket of a channel, or only for a look.
    Channel(RawFd, bool),
    /// No place: for a moment, and in vain.
    Nowhere,
}

/// Whether the command asks for an event, for which it may have to wait.
pub(super) fn is_for_an_event(bytes: &[u8]) -> bool {
    Command::parse(bytes).is_some_and(|command| command.number == ucma::RDMA_USER_CM_CMD_GET_EVENT)
}

/// Keeps the channel while this thread waits there, until [`release`].
pub(super) fn hold(channel: Arc<Channel>) -> Place {
    let (socket, looks_only) = channel.waiting();
    let place = Place::Channel(socket, looks_only);
    HELD.with(|held| held.set(Some(channel)));
    place
}

/// Releases the channel kept by [`hold`].
pub(super) fn release() {
    drop(HELD.with(Cell::take));
}

/// Waits: whether there may be an event. If not, errno says why, as a read of the file would.
///
/// # Safety
/// The thread may be cancelled here: the caller's frame, and its callers' up to C, have nothing to drop.
pub(super) unsafe fn wait(place: Place) -> bool {
    match place {
        Place::Channel(fd, looks_only) => {
            let mut byte = 0_u8;
            let flags = libc::MSG_PEEK | if looks_only { libc::MSG_DONTWAIT } else { 0 };
            // SAFETY: room for one byte.
            unsafe { cancellable_recv(fd, (&raw mut byte).cast(), 1, flags) == 1 }
        }
        Place::Nowhere => {
            // SAFETY: a time; what is left of it is not asked for.
            unsafe { cancellable_nanosleep(&raw const LATE, std::ptr::null_mut()) };
            false
        }
    }
}

/// Whether a command that nobody's channel takes is of a thread that asks for an event while another closes its channel: had
/// it been a moment earlier, it would wait in the kernel for ever. Programs end with a thread in this place (rping), and
/// ending takes longer with us in the process; so it does not hear of it at once. The descriptor tells nothing: it is read
/// from the channel that the other thread has freed.
pub(super) fn is_late(bytes: &[u8]) -> bool {
    let closer = CLOSER.load(Ordering::Acquire);
    // SAFETY: no pointers involved.
    closer != 0 && closer != unsafe { libc::gettid() } && is_for_an_event(bytes)
}

/// Records that this thread is about to close a channel. To be called before the channel is gone: another thread that
/// misses the channel reads this record.
pub(super) fn closing() {
    // SAFETY: no pointers involved.
    CLOSER.store(unsafe { libc::gettid() }, Ordering::Release);
}
