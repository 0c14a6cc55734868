//! Hooks in librdmacm's PLT slots for `write`, `fstat` and `close`.
//!
//! librdmacm opens `/dev/infiniband/rdma_cm`, which has the device number of `/dev/null` here, and looks whether that is a character
//! device. Then the descriptor is replaced by an event channel's: programs poll it before they send the first command
//! (UCX does), and `/dev/null` cannot be. Where it does not look (`fstat` is of glibc 2.33), the first command does the
//! same. librdmacm writes to sockets of its own as well: those pass.

use std::ffi::{c_int, c_void};
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use urxe_net::cancellation::{self, CancelGuard};

use super::{Channel, Command, close_channel, handle_write, open_channel, wait};
use crate::kernel::Errno;
use crate::kernel::hook::{answer, aside, call_close, call_write, divert};
use crate::kernel::library::{HookedLibrary, OpenFiles};
use crate::kernel::memory::OwnMemory;

type Fstat = unsafe extern "C" fn(fd: c_int, stat: *mut libc::stat) -> c_int;

/// Every librdmacm of the process.
static LIBRARY: HookedLibrary = HookedLibrary::new(c"rdma_create_event_channel", |object| {
    // Without `write` it could not talk to a kernel either.
    let _ = divert(object, c"write", &WRITE, libc::write as *const () as usize, write_hook as *const () as usize);
    let _ = divert(object, c"fstat", &FSTAT, libc::fstat as *const () as usize, fstat_hook as *const () as usize);
    let _ = divert(object, c"close", &CLOSE, libc::close as *const () as usize, close_hook as *const () as usize);
});

static WRITE: AtomicUsize = AtomicUsize::new(0);
static FSTAT: AtomicUsize = AtomicUsize::new(0);
static CLOSE: AtomicUsize = AtomicUsize::new(0);

/// Event channels of librdmacm's.
static OPEN: OpenFiles<Channel> = OpenFiles::new(|channel| close_channel(&channel));

/// Diverts the calls of every librdmacm that is loaded.
pub(crate) fn install_if_loaded() {
    LIBRARY.install_if_loaded();
}

/// Whether the descriptor is `/dev/null`, which is what librdmacm has opened.
fn is_null_device(fd: RawFd) -> bool {
    let mut stat = std::mem::MaybeUninit::<libc::stat>::uninit();
    // SAFETY: room for the answer, which is there if the call succeeds.
    unsafe {
        libc::fstat(fd, stat.as_mut_ptr()) == 0 && {
            let stat = stat.assume_init();
            stat.st_mode & libc::S_IFMT == libc::S_IFCHR && stat.st_rdev == libc::makedev(1, 3)
        }
    }
}

/// Puts an event channel in the place of `/dev/null`.
fn open(fd: RawFd) -> Result<Arc<Channel>, Errno> {
    let (channel, application) = open_channel()?;
    // SAFETY: descriptors that are open. The flags are the application's.
    unsafe {
        let flags = libc::fcntl(fd, libc::F_GETFL);
        libc::fcntl(application.as_raw_fd(), libc::F_SETFL, flags & libc::O_NONBLOCK);
        if libc::dup3(application.as_raw_fd(), fd, libc::O_CLOEXEC) < 0 {
            return Err(Errno::last());
        }
    }
    OPEN.insert(fd, Arc::clone(&channel));
    Ok(channel)
}

/// Threads that wait for events get cancelled (`pthread_cancel(3)`), as they may be within write(2). So this frame has
/// nothing to drop when it waits, and cannot be cancelled otherwise.
unsafe extern "C-unwind" fn write_hook(fd: c_int, buf: *const c_void, count: usize) -> isize {
    let bytes = if buf.is_null() {
        &[][..]
    } else {
        // SAFETY: the caller's buffer.
        unsafe { std::slice::from_raw_parts(buf.cast::<u8>(), count) }
    };
    let cancellable = cancellation::disable();
    let mut has_slept = false;
    let result = loop {
        let place = match command(fd, bytes) {
            Outcome::Returns(result) => break Some(result),
            Outcome::Waits(place) => place,
            Outcome::NotOurs if !has_slept && wait::is_late(bytes) => wait::Place::Nowhere,
            Outcome::NotOurs => break None,
        };
        cancellation::restore(cancellable);
        // SAFETY: nothing here needs to be dropped.
        let is_there = unsafe { wait::wait(place) };
        cancellation::disable();
        aside(wait::release);
        has_slept = place == wait::Place::Nowhere;
        if !is_there && !has_slept {
            break Some(-1);
        }
    };
    cancellation::restore(cancellable);
    // SAFETY: the caller's own call.
    result.unwrap_or_else(|| unsafe { call_write(&WRITE, fd, buf, count) })
}

/// Result of a hooked write.
enum Outcome {
    /// A command, which returns this.
    Returns(isize),
    /// A command for an event that is not there yet.
    Waits(wait::Place),
    /// A write to another file, for the C library.
    NotOurs,
}

fn command(fd: RawFd, bytes: &[u8]) -> Outcome {
    let known = aside(|| OPEN.find(fd));
    let ours = known.is_some() || (Command::parse(bytes).is_some() && aside(|| is_null_device(fd)));
    if !ours {
        return Outcome::NotOurs;
    }
    let mut place = None;
    let result = answer(-1, || {
        let channel = match known {
            Some(known) => known.file()?,
            None => open(fd)?,
        };
        // SAFETY: the command is librdmacm's.
        let memory = unsafe { OwnMemory::new() };
        let taken = handle_write(&channel, &memory, bytes).inspect_err(|errno| {
            if *errno == Errno(libc::EAGAIN) && wait::is_for_an_event(bytes) {
                place = Some(wait::hold(channel));
            }
        })?;
        isize::try_from(taken).map_err(|_| Errno(libc::EINVAL))
    });
    place.map_or(Outcome::Returns(result), Outcome::Waits)
}

unsafe extern "C" fn fstat_hook(fd: c_int, stat: *mut libc::stat) -> c_int {
    // SAFETY: the address that was in the slot, or libc's: of this type.
    let fstat = unsafe { std::mem::transmute::<usize, Fstat>(FSTAT.load(Ordering::Acquire)) };
    // SAFETY: the caller's own call.
    let result = unsafe { fstat(fd, stat) };
    let _guard = CancelGuard::new();
    aside(|| {
        if result == 0 && is_null_device(fd) {
            // Without a channel it stays `/dev/null`, and the first command says why.
            let _ = std::panic::catch_unwind(|| open(fd));
        }
    });
    result
}

unsafe extern "C-unwind" fn close_hook(fd: c_int) -> c_int {
    let guard = CancelGuard::new();
    let gone = aside(|| {
        let gone = OPEN.find(fd)?;
        wait::closing();
        OPEN.take(&gone)
    });
    let Some(gone) = gone else {
        drop(guard);
        // SAFETY: the caller's own call.
        return unsafe { call_close(&CLOSE, fd) };
    };
    // At once, as a kernel does: ending the channel takes longer.
    // SAFETY: the caller's own call.
    let result = unsafe { call_close(&CLOSE, fd) };
    aside(|| OPEN.end(gone));
    result
}

#[cfg(test)]
mod tests {
    use std::os::fd::IntoRawFd;

    use super::*;

    /// Held by each test that closes a file: its number is then the next file's, which may be another test's.
    static ALONE: std::sync::Mutex<()> = std::sync::Mutex::new(());

    /// Opens the file, as where librdmacm's calls are diverted.
    fn opened() -> RawFd {
        CLOSE.store(libc::close as *const () as usize, Ordering::Release);
        FSTAT.store(libc::fstat as *const () as usize, Ordering::Release);
        std::fs::File::open("/dev/null").unwrap().into_raw_fd()
    }

    #[test]
    fn another_file_under_the_number_is_not_answered_for() {
        let _alone = ALONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let fd = opened();
        open(fd).unwrap();
        assert!(OPEN.find(fd).is_some());
        // SAFETY: no pointers; the numbers are this test's.
        unsafe {
            let other = libc::eventfd(0, libc::EFD_CLOEXEC);
            assert_eq!(libc::dup2(other, fd), fd);
            libc::close(other);
        }
        assert!(OPEN.find(fd).is_none());
        // SAFETY: as above.
        assert_eq!(unsafe { close_hook(fd) }, 0);
    }

    /// A thread that is to be cancelled is, but not while a channel is made or ended.
    #[test]
    fn channels_are_made_and_ended_whole() {
        let _alone = ALONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let fd = opened();
        let done = std::thread::spawn(move || {
            let mut stat = std::mem::MaybeUninit::uninit();
            // SAFETY: this thread; room for the answer.
            let results = unsafe {
                libc::pthread_cancel(libc::pthread_self());
                (fstat_hook(fd, stat.as_mut_ptr()), OPEN.find(fd).is_some(), close_hook(fd))
            };
            cancellation::disable();
            results
        });
        assert_eq!(done.join().unwrap(), (0, true, 0));
        assert!(OPEN.find(fd).is_none());
    }
}
