//! Hooks in libibumad's PLT slots for `ioctl`, `read`, `write` and `close`, and the files of `/dev/infiniband` that the
//! preloaded library opens: `umadN` and `issmN`.
//!
//! A program gets an eventfd, which poll(2) knows what to do with. Only libibumad's own calls on it are answered: a program
//! that calls read(2) itself reads the eventfd.

use std::ffi::{c_int, c_ulong, c_void};
use std::os::fd::{AsRawFd, IntoRawFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use urxe_net::cancellation::{self, CancelGuard};
use urxe_net::identity::Identity;

use super::{File, issm};
use crate::kernel::Errno;
use crate::kernel::hook::{answer, aside, call_close, call_write, divert};
use crate::kernel::memory::OwnMemory;
use crate::kernel::plt::{Exporter, Object, exporters, loads};
use urxe_runtime::fork::{self, Generation};
use urxe_runtime::fork_safe_mutex::{ForkSafeMutex, without_fork};

type Ioctl = unsafe extern "C" fn(fd: c_int, request: c_ulong, ...) -> c_int;
type Read = unsafe extern "C" fn(fd: c_int, buf: *mut c_void, count: usize) -> isize;

/// Addresses in the copies whose calls are diverted.
static INSTALLED: ForkSafeMutex<Vec<usize>> = ForkSafeMutex::new(Vec::new());
/// [`loads`] when copies were looked for last.
static LOADS: AtomicU64 = AtomicU64::new(0);

static IOCTL: AtomicUsize = AtomicUsize::new(0);
static READ: AtomicUsize = AtomicUsize::new(0);
static WRITE: AtomicUsize = AtomicUsize::new(0);
static CLOSE: AtomicUsize = AtomicUsize::new(0);

/// An open `umadN`.
#[derive(Clone)]
struct Open {
    fd: RawFd,
    /// Identity of what is under the number: programs close it behind libibumad's back (`closefrom(3)`, dup2(2)).
    identity: Option<Identity>,
    generation: Generation,
    file: Arc<File>,
}

static OPEN: ForkSafeMutex<Vec<Open>> = ForkSafeMutex::new(Vec::new());

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
    let opened = std::panic::catch_unwind(|| {
        fork::notice();
        install_if_loaded();
        match kind(name).ok_or(Errno(libc::ENOENT))? {
            Kind::Issm(index) => Ok(issm::open(index, flags)?.into_raw_fd()),
            Kind::Umad(index) => {
                let (file, fd) = File::open(index, flags)?;
                let open = Open::new(fd.as_raw_fd(), file);
                let replaced = OPEN.with(|all| {
                    let replaced = take(all, open.fd);
                    all.push(open);
                    replaced
                });
                end(replaced);
                Ok(fd.into_raw_fd())
            }
        }
    });
    opened.unwrap_or(Err(Errno(libc::EIO))).unwrap_or_else(|Errno(errno)| -errno)
}

/// Diverts the calls of every libibumad that is loaded.
fn install_if_loaded() {
    let loads = without_fork(loads);
    if LOADS.load(Ordering::Acquire) == loads {
        return;
    }
    for copy in without_fork(|| exporters(&[c"umad_open_port"])) {
        if !INSTALLED.with(|installed| installed.contains(&copy.function)) {
            install(&copy);
        }
    }
    LOADS.store(loads, Ordering::Release);
}

fn install(copy: &Exporter) {
    // The reference is kept: our hooks are in there for good.
    // SAFETY: the loader's name of the copy, with a slash, so that it reads no cache; nothing is loaded.
    if unsafe { libc::dlopen(copy.path.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) }.is_null() {
        return;
    }
    if let Ok(object) = without_fork(|| Object::containing(copy.function as *const c_void)) {
        // Without any of them it could not talk to a kernel either.
        let _ = divert(&object, c"ioctl", &IOCTL, libc::ioctl as *const () as usize, ioctl_hook as *const () as usize);
        let _ = divert(&object, c"read", &READ, libc::read as *const () as usize, read_hook as *const () as usize);
        let _ = divert(&object, c"write", &WRITE, libc::write as *const () as usize, write_hook as *const () as usize);
        let _ = divert(&object, c"close", &CLOSE, libc::close as *const () as usize, close_hook as *const () as usize);
        INSTALLED.with(|installed| installed.push(copy.function));
    }
}

/// The file that is open under a number. Forgets one that the program has closed some other way.
fn find(fd: RawFd) -> Option<Open> {
    let found = OPEN.with(|all| all.iter().find(|open| open.fd == fd).cloned())?;
    if found.is_there() {
        return Some(found);
    }
    end(forget(&found));
    None
}

/// Takes out this file, unless another one has come under its number since.
fn forget(gone: &Open) -> Option<Open> {
    OPEN.with(|all| {
        let at = all.iter().position(|open| Arc::ptr_eq(&open.file, &gone.file))?;
        Some(all.swap_remove(at))
    })
}

fn take(all: &mut Vec<Open>, fd: RawFd) -> Option<Open> {
    let at = all.iter().position(|open| open.fd == fd)?;
    Some(all.swap_remove(at))
}

/// Ends a file that is closed, unless it is the parent's.
fn end(gone: Option<Open>) {
    if let Some(gone) = gone.filter(|gone| gone.generation == Generation::now()) {
        gone.file.close();
    }
}

impl Open {
    fn new(fd: RawFd, file: File) -> Self {
        let identity = Identity::of(fd).ok();
        Self { fd, identity, generation: Generation::now(), file: Arc::new(file) }
    }

    /// Whether the file still is under its number, as far as that can be told.
    fn is_there(&self) -> bool {
        let is_own = self.generation == Generation::now();
        self.identity.is_none_or(|identity| {
            // In a child the parent may be gone, and its mark with it.
            if is_own { identity.is_under(self.fd) } else { identity.may_be_under(self.fd) }
        })
    }

    /// The file; EIO in a child that inherited it.
    fn file(self) -> Result<Arc<File>, Errno> {
        if self.generation == Generation::now() { Ok(self.file) } else { Err(Errno(libc::EIO)) }
    }
}

unsafe extern "C" fn ioctl_hook(fd: c_int, request: c_ulong, argument: *mut c_void) -> c_int {
    let guard = CancelGuard::new();
    let Some(open) = aside(|| find(fd)) else {
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
    let Some(open) = aside(|| find(fd)) else {
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
    let open = aside(|| find(fd))?;
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
    let Some(gone) = aside(|| forget(&find(fd)?)) else {
        drop(guard);
        // SAFETY: the caller's own call.
        return unsafe { call_close(&CLOSE, fd) };
    };
    // SAFETY: the caller's own call.
    let result = unsafe { call_close(&CLOSE, fd) };
    aside(|| {
        let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| end(Some(gone))));
    });
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Opens a file of the first device, as where libibumad's calls are diverted.
    fn opened() -> RawFd {
        CLOSE.store(libc::close as *const () as usize, Ordering::Release);
        let (file, fd) = File::open(0, libc::O_CLOEXEC).unwrap();
        let fd = fd.into_raw_fd();
        OPEN.with(|all| all.push(Open::new(fd, file)));
        fd
    }

    #[test]
    fn another_file_under_the_number_is_not_answered_for() {
        let fd = opened();
        assert!(find(fd).is_some());
        // SAFETY: no pointers; the numbers are this test's.
        unsafe {
            let other = libc::eventfd(0, libc::EFD_CLOEXEC);
            assert_eq!(libc::dup2(other, fd), fd);
            libc::close(other);
        }
        assert!(find(fd).is_none());
        assert!(!OPEN.with(|all| all.iter().any(|open| open.fd == fd)), "it is forgotten");
        // SAFETY: as above.
        assert_eq!(unsafe { close_hook(fd) }, 0);
    }

    /// A thread that is to be cancelled is, but not within a call on a file of ours.
    #[test]
    fn calls_are_no_cancellation_points() {
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
        assert!(find(fd).is_none());
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
