//! The memory of whoever calls the kernel: commands hold addresses of more input, and of where answers go.

use super::Errno;

/// `copy_from_user` and `copy_to_user`.
pub trait UserMemory {
    /// Fills `buf` from `address` on. EFAULT where there is no memory.
    fn read(&self, address: u64, buf: &mut [u8]) -> Result<(), Errno>;

    /// Stores `data` from `address` on. EFAULT where there is no memory.
    fn write(&self, address: u64, data: &[u8]) -> Result<(), Errno>;
}

/// Memory of this process. Addresses are trusted, not checked.
#[derive(Clone, Copy, Debug)]
pub struct OwnMemory(());

impl OwnMemory {
    /// # Safety
    /// The addresses in the commands that are handled with it are those of libibverbs' own buffers, with the lengths
    /// that the commands say, and not used by anyone else meanwhile.
    pub const unsafe fn new() -> Self {
        Self(())
    }

    fn pointer(address: u64, len: usize) -> Result<*mut u8, Errno> {
        let address = usize::try_from(address).map_err(|_| Errno(libc::EFAULT))?;
        if address == 0 || address.checked_add(len).is_none() {
            return Err(Errno(libc::EFAULT));
        }
        Ok(address as *mut u8)
    }
}

impl UserMemory for OwnMemory {
    fn read(&self, address: u64, buf: &mut [u8]) -> Result<(), Errno> {
        if buf.is_empty() {
            return Ok(());
        }
        let from = Self::pointer(address, buf.len())?;
        // SAFETY: the promise given to `new`.
        unsafe { from.copy_to_nonoverlapping(buf.as_mut_ptr(), buf.len()) };
        Ok(())
    }

    fn write(&self, address: u64, data: &[u8]) -> Result<(), Errno> {
        if data.is_empty() {
            return Ok(());
        }
        let to = Self::pointer(address, data.len())?;
        // SAFETY: the promise given to `new`.
        unsafe { to.copy_from_nonoverlapping(data.as_ptr(), data.len()) };
        Ok(())
    }
}

/// A run of native-endian integers, read from the front.
#[derive(Clone, Copy)]
pub(super) struct Fields<'a>(pub(super) &'a [u8]);

impl Fields<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*head)
    }

    pub(super) fn u16(&mut self) -> Option<u16> {
        self.take().map(u16::from_ne_bytes)
    }

    pub(super) fn u32(&mut self) -> Option<u32> {
        self.take().map(u32::from_ne_bytes)
    }

    pub(super) fn u64(&mut self) -> Option<u64> {
        self.take().map(u64::from_ne_bytes)
    }
}
