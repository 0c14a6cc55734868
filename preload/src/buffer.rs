//! Memory for a path, without malloc(3), which a signal handler may not call, and off the stack, which may be small.
//!
//! A few buffers are part of the library. When they are taken, the system maps another. A buffer of the library that is
//! never given back (the thread was canceled, or this is a fork(2) of a process in which another thread held it) costs a
//! system call here and there, and nothing else.

use core::cell::UnsafeCell;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicBool, Ordering};

use crate::next::{system_call, system_call_of_six};

/// Room for a path, NUL included: `PATH_MAX` of `<linux/limits.h>`.
pub(crate) const PATH_MAX: usize = 4096;

type Bytes = [u8; PATH_MAX];

/// Buffer of the library.
struct Slot {
    is_taken: AtomicBool,
    bytes: UnsafeCell<Bytes>,
}

// SAFETY: only who has set `is_taken` reads and writes `bytes`.
unsafe impl Sync for Slot {}

static SLOTS: [Slot; 8] =
    [const { Slot { is_taken: AtomicBool::new(false), bytes: UnsafeCell::new([0; PATH_MAX]) } }; 8];

/// Room for the longest path, all zero at first.
pub(crate) struct Buffer {
    bytes: NonNull<Bytes>,
    /// The library's, or else a mapping.
    slot: Option<&'static Slot>,
}

impl Buffer {
    /// `None` if there is no memory.
    pub(crate) fn new() -> Option<Self> {
        let is_free =
            |slot: &&Slot| slot.is_taken.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).is_ok();
        let Some(slot) = SLOTS.iter().find(is_free) else { return Self::map() };
        let mut buffer = Self { bytes: NonNull::new(slot.bytes.get())?, slot: Some(slot) };
        buffer.as_mut().fill(0);
        Some(buffer)
    }

    /// By the system call: libc's function of this name may be some other library's.
    #[cold]
    fn map() -> Option<Self> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let arguments = [0, PATH_MAX, protection as usize, flags as usize, usize::MAX, 0];
        // SAFETY: a mapping of its own.
        let address = unsafe { system_call_of_six(libc::SYS_mmap, arguments) };
        let address = usize::try_from(address).ok()?;
        Some(Self { bytes: NonNull::new(address as *mut Bytes)?, slot: None })
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if let Some(slot) = self.slot {
            slot.is_taken.store(false, Ordering::Release);
        } else {
            // Nothing else fails here, so errno stays.
            // SAFETY: the mapping of `map`.
            unsafe { system_call(libc::SYS_munmap, [self.bytes.as_ptr() as usize, PATH_MAX, 0, 0]) };
        }
    }
}

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: this buffer's alone, and initialized.
        unsafe { self.bytes.as_ref() }
    }
}

impl AsMut<[u8]> for Buffer {
    fn as_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above.
        unsafe { self.bytes.as_mut() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_buffers_than_the_library_has() {
        for _ in 0..2 {
            let mut buffers: Vec<_> = (0..3 * SLOTS.len()).map(|_| Buffer::new().unwrap()).collect();
            assert!(buffers.iter().any(|buffer| buffer.slot.is_none()));
            for (index, buffer) in buffers.iter_mut().enumerate() {
                assert!(buffer.as_ref().iter().all(|byte| *byte == 0));
                buffer.as_mut().fill(u8::try_from(index).unwrap() + 1);
            }
            for (index, buffer) in buffers.iter().enumerate() {
                assert!(buffer.as_ref().iter().all(|byte| usize::from(*byte) == index + 1));
            }
        }
    }
}
