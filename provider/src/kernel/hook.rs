//! Hooks in libibverbs' PLT slots for `write`, `ioctl` and `close`, and the descriptors that they answer for.
//!
//! A hook answers for a descriptor that is [attached](attach) to a device; every other call goes on to where it went
//! before, and finds errno as it was. No call on a descriptor of ours is a cancellation point (`pthread_cancel(3)`): what is
//! locked or allocated on the way is there after it.

use std::any::Any;
use std::ffi::{c_int, c_ulong, c_void};
use std::os::fd::RawFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::Errno;
use super::call_depth::UnderWay;
use super::memory::OwnMemory;
use super::plt::{Object, PltError};
use super::uverbs::{self, Device};
use urxe_net::cancellation::CancelGuard;
use urxe_runtime::fork_safe_mutex::{ForkSafeMutex, without_fork};
use urxe_runtime::sanitizer;

type Write = unsafe extern "C-unwind" fn(fd: c_int, buf: *const c_void, count: usize) -> isize;
type Ioctl = unsafe extern "C-unwind" fn(fd: c_int, request: c_ulong, ...) -> c_int;
type Close = unsafe extern "C-unwind" fn(fd: c_int) -> c_int;

/// Open uverbs files. A handful at most: one for each open context.
static ATTACHED: ForkSafeMutex<Vec<Attached>> = ForkSafeMutex::new(Vec::new());

type Attached = (RawFd, Arc<dyn Device>);

/// Where the calls went before; 0 until it is known.
static WRITE: AtomicUsize = AtomicUsize::new(0);
static IOCTL: AtomicUsize = AtomicUsize::new(0);
static CLOSE: AtomicUsize = AtomicUsize::new(0);

/// Makes the device answer for the uverbs file `fd`, from now on.
pub fn attach(fd: RawFd, device: Arc<dyn Device>) {
    let replaced = ATTACHED.with(|attached| {
        let replaced = take(attached, fd);
        attached.push((fd, device));
        replaced
    });
    drop(replaced);
}

/// Ends it. The number may belong to something else as soon as the file is closed, so: before that. (libibverbs' own
/// `close` of it does so too.)
pub fn detach(fd: RawFd) {
    drop(ATTACHED.with(|attached| take(attached, fd)));
}

fn take(attached: &mut Vec<Attached>, fd: RawFd) -> Option<Attached> {
    let at = attached.iter().position(|&(other, _)| other == fd)?;
    Some(attached.swap_remove(at))
}

fn device_of(fd: RawFd) -> Option<Arc<dyn Device>> {
    ATTACHED.with(|attached| attached.iter().find(|&&(other, _)| other == fd).map(|(_, device)| Arc::clone(device)))
}

/// Diverts the calls of the object that `address` belongs to: libibverbs. Again does no harm.
///
/// Which of `write` and `ioctl` a libibverbs uses depends on how it was built; one of them is enough.
pub fn install(address: *const c_void) -> Result<(), PltError> {
    let object = Object::containing(address)?;
    let write = divert(&object, c"write", &WRITE, libc::write as *const () as usize, write_hook as *const () as usize);
    let ioctl = divert(&object, c"ioctl", &IOCTL, libc::ioctl as *const () as usize, ioctl_hook as *const () as usize);
    match (write, ioctl) {
        (Err(PltError::NoSlot(_)), Err(PltError::NoSlot(_))) => return Err(PltError::NoSlot(c"write")),
        (Err(PltError::NoSlot(_)), other) | (other, Err(PltError::NoSlot(_))) => other?,
        (write, ioctl) => write.and(ioctl)?,
    }
    divert(&object, c"close", &CLOSE, libc::close as *const () as usize, close_hook as *const () as usize)
}

pub(super) fn divert(
    object: &Object,
    name: &'static std::ffi::CStr,
    original: &AtomicUsize,
    libc: usize,
    hook: usize,
) -> Result<(), PltError> {
    let slot = object.slot(name)?;
    let target = slot.target().unwrap_or(libc);
    if target == hook {
        return Ok(());
    }
    // Before the hook can be called. Several objects share it: they all go to the same libc.
    let _ = original.compare_exchange(0, target, Ordering::AcqRel, Ordering::Acquire);
    // SAFETY: the hooks have the signatures of what they replace (ioctl's third argument is a pointer wherever it is
    // used here, and passed like a named one on the machines that `plt` knows), and are never unloaded: libibverbs does
    // not dlclose providers.
    without_fork(|| unsafe { slot.replace(hook) })
}

/// Calls what stood in a slot for `write`.
///
/// # Safety
/// `original` was filled in by [`divert`]; the rest is write(2)'s.
pub(super) unsafe fn call_write(original: &AtomicUsize, fd: c_int, buf: *const c_void, count: usize) -> isize {
    // SAFETY: the address that was in the slot, or libc's: of this type.
    let write = unsafe { std::mem::transmute::<usize, Write>(original.load(Ordering::Acquire)) };
    // SAFETY: the caller's own call.
    unsafe { write(fd, buf, count) }
}

/// Calls what stood in a slot for `close`.
///
/// # Safety
/// `original` was filled in by [`divert`]; the rest is close(2)'s.
pub(super) unsafe fn call_close(original: &AtomicUsize, fd: c_int) -> c_int {
    // SAFETY: the address that was in the slot, or libc's: of this type.
    let close = unsafe { std::mem::transmute::<usize, Close>(original.load(Ordering::Acquire)) };
    // SAFETY: the caller's own call.
    unsafe { close(fd) }
}

/// Runs something of ours on the way to a call that is not: errno is afterwards what it was.
pub(super) fn aside<T>(work: impl FnOnce() -> T) -> T {
    let errno = Errno::last();
    let _under_way = UnderWay::begin();
    let _unchecked = sanitizer::Unchecked::begin();
    let result = work();
    errno.set();
    result
}

/// Runs a handler as a system call: never unwinds into C, and reports by errno.
pub(super) fn answer<T>(failure: T, handler: impl FnOnce() -> Result<T, Errno>) -> T {
    let _under_way = UnderWay::begin();
    let _unchecked = sanitizer::Unchecked::begin();
    let result = catch_unwind(AssertUnwindSafe(handler)).unwrap_or(Err(Errno(libc::EIO)));
    result.unwrap_or_else(|errno| {
        errno.set();
        failure
    })
}

unsafe extern "C-unwind" fn write_hook(fd: c_int, buf: *const c_void, count: usize) -> isize {
    let guard = CancelGuard::new();
    let Some(device) = aside(|| device_of(fd)) else {
        drop(guard);
        // SAFETY: the caller's own call.
        return unsafe { call_write(&WRITE, fd, buf, count) };
    };
    answer(-1, || {
        if buf.is_null() {
            return Err(Errno(libc::EFAULT));
        }
        // SAFETY: libibverbs passes a command of this length, on its stack.
        let command = unsafe { std::slice::from_raw_parts(buf.cast::<u8>(), count) }.to_vec();
        // SAFETY: the command is libibverbs'.
        let memory = unsafe { OwnMemory::new() };
        let taken = uverbs::handle_write(&*device, &memory, &command)?;
        isize::try_from(taken).map_err(|_| Errno(libc::EINVAL))
    })
}

unsafe extern "C-unwind" fn ioctl_hook(fd: c_int, request: c_ulong, argument: *mut c_void) -> c_int {
    let guard = CancelGuard::new();
    let Some(device) = aside(|| device_of(fd)) else {
        drop(guard);
        // SAFETY: the address that was in the slot, or libc's: of this type.
        let ioctl = unsafe { std::mem::transmute::<usize, Ioctl>(IOCTL.load(Ordering::Acquire)) };
        // SAFETY: the caller's own call.
        return unsafe { ioctl(fd, request, argument) };
    };
    answer(-1, || {
        // SAFETY: the command is libibverbs'.
        let memory = unsafe { OwnMemory::new() };
        uverbs::handle_ioctl(&*device, &memory, request, argument as u64).map(|()| 0)
    })
}

unsafe extern "C-unwind" fn close_hook(fd: c_int) -> c_int {
    let guard = CancelGuard::new();
    let gone = aside(|| {
        // A panic in there has nobody to go to: the descriptor is closed all the same.
        catch_unwind(AssertUnwindSafe(|| tell_before_close(fd))).unwrap_or_default()
    });
    if gone.is_empty() {
        drop((gone, guard));
        // SAFETY: the caller's own call.
        return unsafe { call_close(&CLOSE, fd) };
    }
    // SAFETY: the caller's own call.
    let result = unsafe { call_close(&CLOSE, fd) };
    aside(|| drop(gone));
    result
}

/// Returns what goes after the descriptor.
fn tell_before_close(fd: RawFd) -> Vec<Arc<dyn Any + Send + Sync>> {
    // A copy, because the devices are asked away from the table: they may open or close contexts.
    let all = ATTACHED.with(|attached| attached.clone());
    let mut gone = Vec::new();
    for (file, device) in all {
        if file == fd {
            detach(fd);
        } else {
            gone.extend(device.before_close(fd));
        }
    }
    gone
}

#[cfg(test)]
mod tests;
