//! The functions that ours stand in front of.

use core::ffi::{CStr, c_void};
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

    /// Its address; null if this libc has no such function, and then nothing can have been linked with it either.
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

/// What a function returns that is not there.
pub(crate) trait Missing {
    const MISSING: Self;
}

impl Missing for i32 {
    const MISSING: Self = -1;
}

impl Missing for isize {
    const MISSING: Self = -1;
}

impl<T> Missing for *mut T {
    const MISSING: Self = core::ptr::null_mut();
}

/// Sets errno, and returns what says so.
pub(crate) fn fail<T: Missing>(errno: i32) -> T {
    // SAFETY: the calling thread's errno.
    unsafe { *libc::__errno_location() = errno };
    T::MISSING
}
