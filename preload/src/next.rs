//! The functions that ours stand in front of.

use core::ffi::{CStr, c_long, c_void};
use core::sync::atomic::{AtomicPtr, Ordering};

/// A function of this name, in whatever comes after us: libc, or another preloaded library.
pub(crate) struct Next {
    name: &'static CStr,
    address: AtomicPtr<c_void>,
}

impl Next {
    pub(crate) const fn new(name: &'static CStr) -> Self {
        Self { name, address: AtomicPtr::new(core::ptr::null_mut()) }
    }

    /// Address of the function; null if this libc has none, and then nothing can have been linked with it either.
    ///
    /// dlsym(3) may not be called in a signal handler: [`super::find_next_functions`] calls it for all of them early on.
    pub(crate) fn address(&self) -> *mut c_void {
        let address = self.address.load(Ordering::Relaxed);
        if address.is_null() { self.find() } else { address }
    }

    #[cold]
    fn find(&self) -> *mut c_void {
        // SAFETY: a name.
        let address = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
        self.address.store(address, Ordering::Relaxed);
        address
    }
}

static SYSCALL: Next = Next::new(c"syscall");

/// Finds libc's function, so that it is there in a signal handler.
pub(crate) fn find_system_call() {
    SYSCALL.address();
}

/// The system call `number`, by libc's own function: the one of this name that others see is ours.
///
/// # Safety
/// As the system call demands.
pub(crate) unsafe fn system_call(number: c_long, arguments: [usize; 4]) -> c_long {
    let [first, second, third, fourth] = arguments;
    // SAFETY: the caller's promise.
    unsafe { system_call_of_six(number, [first, second, third, fourth, 0, 0]) }
}

/// As [`system_call`], with as many arguments as there can be.
///
/// # Safety
/// As the system call demands.
pub(crate) unsafe fn system_call_of_six(number: c_long, arguments: [usize; 6]) -> c_long {
    let address = SYSCALL.address();
    if address.is_null() {
        return fail(libc::ENOSYS);
    }
    let [first, second, third, fourth, fifth, sixth] = arguments;
    // SAFETY: the function of this name has this type.
    let next = unsafe { core::mem::transmute::<*mut c_void, unsafe extern "C" fn(c_long, ...) -> c_long>(address) };
    // SAFETY: the caller's promise.
    unsafe { next(number, first, second, third, fourth, fifth, sixth) }
}

/// Runs `act`, and leaves errno as it was.
pub(crate) fn with_errno_kept<T>(act: impl FnOnce() -> T) -> T {
    // SAFETY: the calling thread's errno.
    let errno = unsafe { *libc::__errno_location() };
    let result = act();
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = errno };
    result
}

/// Return value of a function that this libc lacks.
pub(crate) trait Missing {
    const MISSING: Self;
}

impl Missing for i32 {
    const MISSING: Self = -1;
}

impl Missing for isize {
    const MISSING: Self = -1;
}

impl Missing for () {
    const MISSING: Self = ();
}

impl<T> Missing for *mut T {
    const MISSING: Self = core::ptr::null_mut();
}

impl Missing for i64 {
    const MISSING: Self = -1;
}

/// Sets errno, and returns what says so.
pub(crate) fn fail<T: Missing>(errno: i32) -> T {
    // SAFETY: the calling thread's errno.
    unsafe { *libc::__errno_location() = errno };
    T::MISSING
}
