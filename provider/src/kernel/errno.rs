//! errno, as a value.

use std::fmt;

/// A number of `libc::E*`: how a system call says why it failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Errno(pub i32);

impl Errno {
    /// Returns the calling thread's `errno`.
    pub fn last() -> Self {
        Self(std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO))
    }

    /// Sets the calling thread's `errno`.
    pub fn set(self) {
        // SAFETY: the address of this thread's errno.
        unsafe { *libc::__errno_location() = self.0 };
    }
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        std::io::Error::from_raw_os_error(self.0).fmt(f)
    }
}

impl From<Errno> for i32 {
    fn from(errno: Errno) -> Self {
        errno.0
    }
}

impl std::error::Error for Errno {}
