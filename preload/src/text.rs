//! C strings, without allocation and without `std`.

use core::ffi::c_char;

/// Room for a path, NUL included: `PATH_MAX` of `<linux/limits.h>`.
pub(crate) const PATH_MAX: usize = 4096;

/// The byte at `index`.
///
/// # Safety
/// `text` is a C string of at least `index` bytes.
pub(crate) unsafe fn at(text: *const c_char, index: usize) -> u8 {
    // SAFETY: the caller's promise: a byte of it, or its NUL.
    unsafe { *text.add(index).cast::<u8>() }
}

/// A path being put together. Always NUL-terminated.
pub(crate) struct Path {
    bytes: [u8; PATH_MAX],
    len: usize,
}

impl Path {
    pub(crate) const fn new() -> Self {
        Self { bytes: [0; PATH_MAX], len: 0 }
    }

    /// Appends one byte. False if there is no room.
    pub(crate) fn push(&mut self, byte: u8) -> bool {
        // The last byte stays NUL.
        if self.len + 1 >= PATH_MAX {
            return false;
        }
        if let Some(to) = self.bytes.get_mut(self.len) {
            *to = byte;
        }
        self.len += 1;
        true
    }

    pub(crate) fn push_all(&mut self, bytes: &[u8]) -> bool {
        bytes.iter().all(|&byte| self.push(byte))
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or_default()
    }

    pub(crate) const fn as_ptr(&self) -> *const c_char {
        self.bytes.as_ptr().cast()
    }

    /// Appends an absolute path, without empty and `.` components. `..` stays: what it means is the file system's to say.
    ///
    /// # Safety
    /// `path` is a C string.
    pub(crate) unsafe fn push_path(&mut self, path: *const c_char) -> bool {
        let mut index = 0;
        loop {
            // SAFETY: everything before `index` is not NUL.
            while unsafe { at(path, index) } == b'/' {
                index += 1;
            }
            let start = index;
            // SAFETY: as above.
            while !matches!(unsafe { at(path, index) }, b'/' | 0) {
                index += 1;
            }
            // SAFETY: between the two lie bytes of the string.
            let component = unsafe { core::slice::from_raw_parts(path.add(start).cast::<u8>(), index - start) };
            let means_something = !matches!(component, b"" | b".");
            if means_something && !(self.push(b'/') && self.push_all(component)) {
                return false;
            }
            // SAFETY: as above.
            if unsafe { at(path, index) } == 0 {
                return true;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Path;

    fn tidy(path: &core::ffi::CStr) -> Path {
        let mut tidied = Path::new();
        // SAFETY: a C string.
        assert!(unsafe { tidied.push_path(path.as_ptr()) });
        tidied
    }

    #[test]
    fn paths_are_tidied() {
        assert_eq!(tidy(c"/sys/class").as_bytes(), b"/sys/class");
        assert_eq!(tidy(c"//sys///class/./infiniband/").as_bytes(), b"/sys/class/infiniband");
        assert_eq!(tidy(c"/a/../.b/c.").as_bytes(), b"/a/../.b/c.");
        assert_eq!(tidy(c"/").as_bytes(), b"");
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let mut path = Path::new();
        assert!(path.push_all(&[b'x'; super::PATH_MAX - 1]));
        assert!(!path.push(b'x'));
        assert_eq!(path.as_bytes().len(), super::PATH_MAX - 1);
    }
}
