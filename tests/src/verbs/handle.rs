//! Owners of libibverbs' objects.

use std::ffi::c_int;
use std::fmt;
use std::sync::atomic::{AtomicPtr, Ordering};

/// An errno value, as verbs return it or leave it in `errno`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Errno(pub c_int);

impl Errno {
    /// Reads the calling thread's `errno`.
    pub fn last() -> Self {
        Self(std::io::Error::last_os_error().raw_os_error().unwrap_or(0))
    }

    /// The result of a verb that returns 0 or an errno value.
    pub fn check(returned: c_int) -> Result<(), Self> {
        if returned == 0 { Ok(()) } else { Err(Self(returned)) }
    }
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", std::io::Error::from_raw_os_error(self.0))
    }
}

impl fmt::Debug for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Errno({self})")
    }
}

impl std::error::Error for Errno {}

/// An object that libibverbs made, and the verb that destroys it.
pub struct Handle<T> {
    raw: AtomicPtr<T>,
    destroy: unsafe extern "C" fn(*mut T) -> c_int,
}

impl<T> Handle<T> {
    /// Takes what a create verb returned: a pointer, or null with `errno` set.
    ///
    /// # Safety
    /// `raw` is null or an object that `destroy` destroys, and that nobody else will.
    pub unsafe fn new(raw: *mut T, destroy: unsafe extern "C" fn(*mut T) -> c_int) -> Result<Self, Errno> {
        if raw.is_null() { Err(Errno::last()) } else { Ok(Self { raw: AtomicPtr::new(raw), destroy }) }
    }

    /// The object, for verbs.
    ///
    /// # Panics
    /// If it has been destroyed.
    pub fn raw(&self) -> *mut T {
        let raw = self.raw.load(Ordering::Acquire);
        assert!(!raw.is_null(), "used after it was destroyed");
        raw
    }

    /// Destroys the object now. On an error it is still there.
    pub fn destroy(&self) -> Result<(), Errno> {
        // SAFETY: the object is there, and after a success it is not found here again.
        Errno::check(unsafe { (self.destroy)(self.raw()) })?;
        self.raw.store(std::ptr::null_mut(), Ordering::Release);
        Ok(())
    }
}

impl<T> Drop for Handle<T> {
    fn drop(&mut self) {
        if self.raw.get_mut().is_null() {
            return;
        }
        let result = self.destroy();
        if !std::thread::panicking()
            && let Err(error) = result
        {
            panic!("{} cannot be destroyed: {error}", std::any::type_name::<T>());
        }
    }
}
