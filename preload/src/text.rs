//! C strings, without `std`, malloc(3), and large frames: threads may have stacks of 16 KiB (`PTHREAD_STACK_MIN`), and
//! signal handlers smaller ones.

use core::ffi::c_char;

use crate::buffer::{Buffer, PATH_MAX};

/// The byte at `index`.
///
/// # Safety
/// `text` is a C string of at least `index` bytes.
pub(crate) unsafe fn at(text: *const c_char, index: usize) -> u8 {
    // SAFETY: the caller's promise: a byte of it, or its NUL.
    unsafe { *text.add(index).cast::<u8>() }
}

/// A text being put together. Always NUL-terminated: bytes behind it are zero.
pub(crate) struct Text<B> {
    bytes: B,
    len: usize,
}

/// A path of any length.
pub(crate) type Path = Text<Buffer>;

/// Room for the folder's path, and for what follows it in the paths that are told apart here.
const PREFIX_MAX: usize = 384;

/// A path, or the beginning of a long one, on the stack.
pub(crate) type Prefix = Text<[u8; PREFIX_MAX]>;

impl Path {
    /// An empty path; `None` if there is no memory.
    pub(crate) fn new() -> Option<Self> {
        Some(Self { bytes: Buffer::new()?, len: 0 })
    }

    /// Puts bytes in front. False if there is no room.
    pub(crate) fn insert_prefix(&mut self, prefix: &[u8]) -> bool {
        let (old, new) = (self.len, self.len + prefix.len());
        // The last byte stays NUL.
        if new >= PATH_MAX {
            return false;
        }
        let bytes = self.bytes.as_mut();
        bytes.copy_within(..old, prefix.len());
        for (to, from) in bytes.iter_mut().zip(prefix) {
            *to = *from;
        }
        self.len = new;
        true
    }
}

impl Prefix {
    pub(crate) const fn new() -> Self {
        Self { bytes: [0; PREFIX_MAX], len: 0 }
    }
}

impl<B: AsRef<[u8]> + AsMut<[u8]>> Text<B> {
    /// Appends one byte. False if there is no room.
    pub(crate) fn push(&mut self, byte: u8) -> bool {
        // The last byte stays NUL.
        let bytes = self.bytes.as_mut();
        if self.len + 1 >= bytes.len() {
            return false;
        }
        if let Some(to) = bytes.get_mut(self.len) {
            *to = byte;
        }
        self.len += 1;
        true
    }

    pub(crate) fn push_all(&mut self, bytes: &[u8]) -> bool {
        bytes.iter().all(|&byte| self.push(byte))
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        self.bytes.as_ref().get(..self.len).unwrap_or_default()
    }

    pub(crate) fn as_ptr(&self) -> *const c_char {
        self.bytes.as_ref().as_ptr().cast()
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
        if let Some(rest) = self.bytes.as_mut().get_mut(len..self.len) {
            rest.fill(0);
            self.len = len;
        }
    }

    /// Removes the first `len` bytes.
    pub(crate) fn remove_prefix(&mut self, len: usize) {
        if len <= self.len {
            self.bytes.as_mut().copy_within(len..self.len, 0);
            self.truncate(self.len - len);
        }
    }

    pub(crate) const fn len(&self) -> usize {
        self.len
    }

    /// Has `fill` write into the buffer, all but its last byte, and say how many bytes it wrote: `None` if it left them as
    /// they were.
    pub(crate) fn fill(&mut self, fill: impl FnOnce(*mut u8, usize) -> Option<usize>) -> Option<()> {
        let bytes = self.bytes.as_mut();
        let room = bytes.len() - 1;
        self.len = fill(bytes.as_mut_ptr(), room)?.min(room);
        if let Some(rest) = bytes.get_mut(self.len..) {
            rest.fill(0);
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::{Path, Prefix};

    #[test]
    fn components_come_and_go() {
        let mut path = Path::new().unwrap();
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
        assert!(path.insert_prefix(b"/dev/shm/x"));
        assert_eq!(path.as_bytes(), b"/dev/shm/x/sys");
    }

    #[test]
    fn text_longer_than_its_buffer_is_refused() {
        let mut path = Path::new().unwrap();
        assert!(path.push_all(&[b'x'; crate::buffer::PATH_MAX - 1]));
        assert!(!path.push(b'x') && !path.insert_prefix(b"x"));
        let mut prefix = Prefix::new();
        assert!(!prefix.push_all(path.as_bytes()));
        assert_eq!(prefix.as_bytes().len(), super::PREFIX_MAX - 1);
        assert_eq!(path.as_bytes().len(), crate::buffer::PATH_MAX - 1);
    }
}
