//! Counters: what is in such a file is made when it is opened.
//!
//! The file in the folder is opened as any other is. If it is one of the counters, a file in memory that holds the counter's
//! value takes the place of its descriptor, whoever holds that: a number, or a `FILE`. As with the kernel's own files,
//! a value is as old as the call of open(2); other than there, reading it again from the start shows the same. Finding it
//! out takes what everything else in here does without, memory and some time: in signal handlers counters are not opened.
//!
//! stat(2) of the path and fstat(2) of the descriptor say the same ([`crate::status`]): cp(1) compares them.

use core::ffi::{c_char, c_int, c_void};
use core::sync::atomic::{AtomicPtr, Ordering};

use crate::folder::{folder, is_active, is_below, is_of_interest};
use crate::next::with_errno_kept;
use crate::pointer::is_plausible;
use crate::resolve::path_of;
use crate::status;
use crate::text::at;

/// Source of live counters.
#[derive(Debug, Clone, Copy)]
pub struct Live {
    /// Whether a counter's file has this name. Asked for every relative path that is opened.
    pub is_name: fn(&[u8]) -> bool,
    /// Opens a file that holds what the counter at this path is now, if it is one. The caller closes it.
    pub open: fn(&[u8]) -> Option<c_int>,
}

static LIVE: AtomicPtr<Live> = AtomicPtr::new(core::ptr::null_mut());

/// Sets the functions that are asked for counters.
pub fn counters_are(live: &'static Live) {
    LIVE.store(core::ptr::from_ref(live).cast_mut(), Ordering::Release);
}

/// Return type of a function that opens files.
pub(crate) trait Opened: Copy {
    /// Descriptor; negative if there is none.
    ///
    /// # Safety
    /// It is what such a function has returned just now.
    unsafe fn descriptor(self) -> c_int;
}

impl Opened for c_int {
    unsafe fn descriptor(self) -> c_int {
        self
    }
}

/// A `FILE`.
impl Opened for *mut c_void {
    unsafe fn descriptor(self) -> c_int {
        // SAFETY: the caller's promise.
        if self.is_null() { -1 } else { unsafe { libc::fileno(self.cast()) } }
    }
}

/// `file`, which is what opening `path` has returned.
///
/// # Safety
/// `path` is what the function was called with, and `file` what it returned.
pub(crate) unsafe fn brought_up_to_date<F: Opened>(path: *const c_char, file: F) -> F {
    // SAFETY: the caller's promise.
    let fd = unsafe { file.descriptor() };
    // SAFETY: as above.
    if fd >= 0 && is_active() && unsafe { may_be_counter(path) } {
        with_errno_kept(|| replace(fd));
    }
    file
}

/// Whether the path is worth a closer look: all that other files pay.
///
/// # Safety
/// `path` is null, or a C string if a program can have memory there.
pub(crate) unsafe fn may_be_counter(path: *const c_char) -> bool {
    // SAFETY: the caller's promise; null is of no interest.
    unsafe {
        is_plausible(path)
            && (is_of_interest(path) || at(path, 0) != b'/')
            && live().is_some_and(|live| (live.is_name)(name(path)))
    }
}

fn live() -> Option<&'static Live> {
    // SAFETY: null, or what `counters_are` has stored.
    unsafe { LIVE.load(Ordering::Acquire).as_ref() }
}

/// Last component of a path.
///
/// # Safety
/// `path` is a C string that stays.
pub(crate) unsafe fn name<'a>(path: *const c_char) -> &'a [u8] {
    // SAFETY: the caller's promise.
    let bytes = unsafe { core::ffi::CStr::from_ptr(path) }.to_bytes();
    bytes.rsplit(|byte| *byte == b'/').next().unwrap_or_default()
}

/// Puts the counter that `fd` is a file of in its place, if it is of one.
#[cold]
#[inline(never)]
fn replace(fd: c_int) {
    let (Some(folder), Some(live), Some(path)) = (folder(), live(), path_of(fd)) else { return };
    let path = path.as_bytes();
    let Some(new) = is_below(path, folder).then(|| (live.open)(path)).flatten() else { return };
    // SAFETY: descriptors. If it fails, the program reads the file of the folder.
    unsafe {
        let close_on_exec = libc::fcntl(fd, libc::F_GETFD) & libc::FD_CLOEXEC != 0;
        status::stands_for(new, fd);
        libc::dup3(new, fd, if close_on_exec { libc::O_CLOEXEC } else { 0 });
        libc::close(new);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resolve::prefix_of;
    use std::os::fd::AsRawFd;

    #[test]
    fn the_path_of_a_descriptor() {
        let file = std::fs::File::open("/dev/null").unwrap();
        assert_eq!(path_of(file.as_raw_fd()).unwrap().as_bytes(), b"/dev/null");
        assert_eq!(prefix_of(file.as_raw_fd()).unwrap().as_bytes(), b"/dev/null");
        assert!(path_of(987_654_321).is_none() && prefix_of(987_654_321).is_none());
    }

    #[test]
    fn the_last_of_a_path() {
        // SAFETY: C strings.
        unsafe {
            assert_eq!(name(c"/a/b_c".as_ptr()), b"b_c");
            assert_eq!(name(c"b_c".as_ptr()), b"b_c");
            assert_eq!(name(c"".as_ptr()), b"");
        }
    }
}
