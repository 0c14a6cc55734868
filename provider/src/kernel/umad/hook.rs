//! Hooks in libibumad's PLT slots for `ioctl`, `read`, `write` and `close`, and the files of `/dev/infiniband` that the
//! preloaded library opens: `umadN` and `issmN`.
//!
//! A program gets a socket, which poll(2) knows what to do with. Only libibumad's own calls on it are answered: a program
//! that calls read(2) itself reads a byte of the socket.

use std::ffi::{c_int, c_ulong, c_void};
use std::os::fd::{AsRawFd, IntoRawFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use urxe_net::cancellation::{self, CancelGuard};

use super::{File, issm};
use crate::kernel::Errno;
use crate::kernel::call_depth::UnderWay;
use crate::kernel::hook::{answer, aside, call_close, call_write, divert};
use crate::kernel::library::{HookedLibrary, OpenFiles};
use crate::kernel::memory::OwnMemory;
use urxe_runtime::fork;

type Ioctl = unsafe extern "C-unwind" fn(fd: c_int, request: c_ulong, ...) -> c_int;
type Read = unsafe extern "C-unwind" fn(fd: c_int, buf: *mut c_void, count: usize) -> isize;

/// Every libibumad of the process.
static LIBRARY: HookedLibrary = HookedLibrary::new(c"umad_open_port", |object| {
    // Without any of them it could not talk to a kernel either.
    let _ = divert(object, c"ioctl", &IOCTL, libc::ioctl as *const () as usize, ioctl_hook as *const () as usize);
    let _ = divert(object, c"read", &READ, libc::read as *const () as usize, read_hook as *const () as usize);
    let _ = divert(object, c"write", &WRITE, libc::write as *const () as usize, write_hook as *const () as usize);
    let _ = divert(object, c"close", &CLOSE, libc::close as *const () as usize, close_hook as *const () as usize);
});

static IOCTL: AtomicUsize = AtomicUsize::new(0);
static READ: AtomicUsize = AtomicUsize::new(0);
static WRITE: AtomicUsize = AtomicUsize::new(0);
static CLOSE: AtomicUsize = AtomicUsize::new(0);

/// Open `umadN`.
static OPEN: OpenFiles<File> = OpenFiles::new(|file| file.close());

/// Callbacks by which the preloaded library opens the files.
pub(crate) static NODES: urxe_preload::Nodes = urxe_preload::Nodes { is_name: |name| kind(name).is_some(), open };

/// Kinds of files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Umad(usize),
    Issm(usize),
}

fn kind(name: &[u8]) -> Option<Kind> {
    let number = |prefix: &str| std::str::from_utf8(name).ok()?.strip_prefix(prefix)?.parse().ok();
    number("umad").map(Kind::Umad).or_else(|| number("issm").map(Kind::Issm))
}

/// Opens the file of this name: a descriptor, or a negative error number. A thread that waits for `issmN` in here cannot be
/// cancelled: the preloaded library's frames lie below.
fn open(name: &[u8], flags: c_int) -> c_int {
    let _guard = CancelGuard::new();
    let _under_way = UnderWay::begin();
    let opened = std::panic::catch_unwind(|| {
        fork::notice();
        LIBRARY.install_if_loaded();
        match kind(name).ok_or(Errno(libc::ENOENT))? {
            Kind::Issm(index) => Ok(issm::open(index, flags)?.into_raw_fd()),
            Kind::Umad(index) => {
                let (file, fd) = File::open(index, flags)?;
                OPEN.insert(fd.as_raw_fd(), Arc::new(file));
                Ok(fd.into_raw_fd())
            }
        }
    });
    opened.unwrap_or(Err(Errno(libc::EIO))).unwrap_or_else(|Errno(errno)| -errno)
}

unsafe extern "C-unwind" fn ioctl_hook(fd: c_int, request: c_ulong, argument: *mut c_void) -> c_int {
    let guard = CancelGuard::new();
    let Some(open) = aside(|| OPEN.find(fd)) else {
        drop(guard);
        // SAFETY: the address that was in the slot, or libc's: of this type.
        let ioctl = unsafe { std::mem::transmute::<usize, Ioctl>(IOCTL.load(Ordering::Acquire)) };
        // SAFETY: the caller's own call.
        return unsafe { ioctl(fd, request, argument) };
    };
    answer(-1, || {
        // SAFETY: the request is libibumad's.
        let memory = unsafe { OwnMemory::new() };
        let request = u32::try_from(request & 0xFFFF_FFFF).map_err(|_| Errno(libc::ENOTTY))?;
        open.file()?.ioctl(&memory, request, argument as u64).map(|()| 0)
    })
}

unsafe extern "C-unwind" fn write_hook(fd: c_int, buf: *const c_void, count: usize) -> isize {
    let guard = CancelGuard::new();
    let Some(open) = aside(|| OPEN.find(fd)) else {
        drop(guard);
        // SAFETY: the caller's own call.
        return unsafe { call_write(&WRITE, fd, buf, count) };
    };
    answer(-1, || {
        if buf.is_null() {
            return Err(Errno(libc::EFAULT));
        }
        // SAFETY: libibumad passes a message of this length.
        let bytes = unsafe { std::slice::from_raw_parts(buf.cast::<u8>(), count) };
        isize::try_from(open.file()?.write(bytes)?).map_err(|_| Errno(libc::EINVAL))
    })
}

/// Threads that wait in read(2) get cancelled (`pthread_cancel(3)`): this frame has nothing to drop when it waits.
unsafe extern "C-unwind" fn read_hook(fd: c_int, buf: *mut c_void, count: usize) -> isize {
    let cancellable = cancellation::disable();
    let result = loop {
        let Some(taken) = read(fd, buf, count) else { break None };
        // SAFETY: a descriptor.
        let flags = if taken == Err(Errno(libc::EAGAIN)) { unsafe { libc::fcntl(fd, libc::F_GETFL) } } else { 0 };
        match taken {
            Err(Errno(libc::EAGAIN)) if flags >= 0 && flags & libc::O_NONBLOCK == 0 => {}
            taken => break Some(answer(-1, || taken)),
        }
        cancellation::restore(cancellable);
        let mut polled = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        // SAFETY: one entry; nothing here needs to be dropped.
        let is_there = unsafe { libc::poll(&raw mut polled, 1, -1) };
        cancellation::disable();
        if is_there < 0 {
            break Some(-1);
        }
    };
    cancellation::restore(cancellable);
    result.unwrap_or_else(|| {
        // SAFETY: the address that was in the slot, or libc's: of this type.
        let read = unsafe { std::mem::transmute::<usize, Read>(READ.load(Ordering::Acquire)) };
        // SAFETY: the caller's own call.
        unsafe { read(fd, buf, count) }
    })
}

/// Reads from a file of ours; `None` if it is another's.
fn read(fd: RawFd, buf: *mut c_void, count: usize) -> Option<Result<isize, Errno>> {
    let open = aside(|| OPEN.find(fd))?;
    let _under_way = UnderWay::begin();
    let read = || {
        if buf.is_null() {
            return Err(Errno(libc::EFAULT));
        }
        // SAFETY: libibumad passes room for this many bytes, and the caller's memory is written to by nobody else.
        let to = unsafe { std::slice::from_raw_parts_mut(buf.cast::<u8>(), count) };
        isize::try_from(open.file()?.read(to)?).map_err(|_| Errno(libc::EINVAL))
    };
    Some(std::panic::catch_unwind(std::panic::AssertUnwindSafe(read)).unwrap_or(Err(Errno(libc::EIO))))
}

unsafe extern "C-unwind" fn close_hook(fd: c_int) -> c_int {
    let guard = CancelGuard::new();
    let Some(gone) = aside(|| OPEN.take(&OPEN.find(fd)?)) else {
        drop(guard);
        // SAFETY: the caller's own call.
        return unsafe { call_close(&CLOSE, fd) };
    };
    // SAFETY: the caller's own call.
    let result = unsafe { call_close(&CLOSE, fd) };
    aside(|| OPEN.end(gone));
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Held by each test that closes a file: its number is then the next file's, which may be another test's.
    static ALONE: std::sync::Mutex<()> = std::sync::Mutex::new(());

    /// Opens a file of the first device, as where libibumad's calls are diverted.
    fn opened() -> RawFd {
        CLOSE.store(libc::close as *const () as usize, Ordering::Release);
        let (file, fd) = File::open(0, libc::O_CLOEXEC).unwrap();
        let fd = fd.into_raw_fd();
        OPEN.insert(fd, Arc::new(file));
        fd
    }

    #[test]
    fn another_file_under_the_number_is_not_answered_for() {
        let _alone = ALONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let fd = opened();
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

    /// A thread that is to be cancelled is, but not within a call on a file of ours.
    #[test]
    fn calls_are_no_cancellation_points() {
        let _alone = ALONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let fd = opened();
        let done = std::thread::spawn(move || {
            // SAFETY: this thread; buffers of this length.
            let results = unsafe {
                libc::pthread_cancel(libc::pthread_self());
                let bytes = [0_u8; 400];
                let written = write_hook(fd, bytes.as_ptr().cast(), bytes.len());
                (written, ioctl_hook(fd, 0, std::ptr::null_mut()), close_hook(fd))
            };
            cancellation::disable();
            results
        });
        assert_eq!(done.join().unwrap(), (-1, -1, 0));
        assert!(OPEN.find(fd).is_none());
    }

    #[test]
    fn names_of_files() {
        assert_eq!(kind(b"umad0"), Some(Kind::Umad(0)));
        assert_eq!(kind(b"issm12"), Some(Kind::Issm(12)));
        for other in [&b"umad"[..], b"umadx", b"uverbs0", b"issm-1", b""] {
            assert_eq!(kind(other), None);
        }
    }
}
