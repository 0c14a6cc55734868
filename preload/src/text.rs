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

    /// Appends a slash and one component.
    pub(crate) fn push_component(&mut self, component: &[u8]) -> bool {
        self.push(b'/') && self.push_all(component)
    }

    /// Removes the last component and its slash.
    pub(crate) fn pop_component(&mut self) {
        let start = self.as_bytes().iter().rposition(|byte| *byte == b'/').unwrap_or(0);
        self.truncate(start);
    }

    /// Keeps the first `len` bytes.
    pub(crate) fn truncate(&mut self, len: usize) {
        if let Some(rest) = self.bytes.get_mut(len..self.len) {
            rest.fill(0);
            self.len = len;
        }
    }

    /// Removes the first `len` bytes.
    pub(crate) fn remove_prefix(&mut self, len: usize) {
        if len <= self.len {
            self.bytes.copy_within(len..self.len, 0);
            self.truncate(self.len - len);
        }
    }

    pub(crate) const fn len(&self) -> usize {
        self.len
    }

    /// Has `fill` write into the buffer, all but its last byte, and say how many bytes it wrote.
    pub(crate) fn fill(&mut self, fill: impl FnOnce(*mut u8, usize) -> Option<usize>) -> Option<()> {
        self.bytes = [0; PATH_MAX];
        let len = fill(self.bytes.as_mut_ptr(), PATH_MAX - 1)?;
        self.len = len.min(PATH_MAX - 1);
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::Path;

    #[test]
    fn components_come_and_go() {
        let mut path = Path::new();
        assert!(path.push_component(b"sys") && path.push_component(b"class"));
        assert_eq!(path.as_bytes(), b"/sys/class");
        path.pop_component();
        assert_eq!(path.as_bytes(), b"/sys");
        path.pop_component();
        path.pop_component();
        assert_eq!((path.as_bytes(), path.len()), (&b""[..], 0));
        assert!(path.push_all(b"/dev/shm/x/sys"));
        path.remove_prefix(10);
        assert_eq!(path.as_bytes(), b"/sys");
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let mut path = Path::new();
        assert!(path.push_all(&[b'x'; super::PATH_MAX - 1]));
        assert!(!path.push(b'x'));
        assert_eq!(path.as_bytes().len(), super::PATH_MAX - 1);
    }
}
