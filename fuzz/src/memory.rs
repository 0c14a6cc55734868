//! An application's memory for command handlers: some bytes, everything else not mapped.

use std::cell::RefCell;

use urxe::kernel::Errno;
use urxe::kernel::memory::UserMemory;

/// First address of the memory.
pub const BASE: u64 = 0x10_0000;

/// Of errno.h.
const EFAULT: i32 = 14;

/// The bytes from [`BASE`] on.
pub struct Memory(pub RefCell<Vec<u8>>);

impl Memory {
    fn at(&self, address: u64, length: usize) -> Result<usize, Errno> {
        let fault = || Errno(EFAULT);
        let offset = usize::try_from(address.checked_sub(BASE).ok_or_else(fault)?).map_err(|_| fault())?;
        let end = offset.checked_add(length).ok_or_else(fault)?;
        if end <= self.0.borrow().len() { Ok(offset) } else { Err(fault()) }
    }
}

impl UserMemory for Memory {
    fn read(&self, address: u64, buf: &mut [u8]) -> Result<(), Errno> {
        let offset = self.at(address, buf.len())?;
        buf.copy_from_slice(&self.0.borrow()[offset..offset + buf.len()]);
        Ok(())
    }

    fn write(&self, address: u64, data: &[u8]) -> Result<(), Errno> {
        let offset = self.at(address, data.len())?;
        self.0.borrow_mut()[offset..offset + data.len()].copy_from_slice(data);
        Ok(())
    }
}
