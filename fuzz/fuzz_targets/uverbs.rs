#![no_main]
//! The uverbs commands that reach "the kernel": any bytes by write(2), any request by ioctl(2).

use std::cell::RefCell;
use std::os::fd::{OwnedFd, RawFd};

use libfuzzer_sys::fuzz_target;
use urxe::kernel::Errno;
use urxe::kernel::memory::UserMemory;
use urxe::kernel::uverbs::{Device, GidEntry, GidType, RDMA_VERBS_IOCTL, handle_ioctl, handle_write};

/// The application's memory: addresses count from here, everything else is not mapped.
const BASE: u64 = 0x10_0000;

/// Of errno.h.
const EFAULT: i32 = 14;
const EINVAL: i32 = 22;
const EMFILE: i32 = 24;

struct Memory(RefCell<Vec<u8>>);

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

/// A device that has nothing to give but GIDs.
struct Gids;

impl Device for Gids {
    fn create_comp_channel(&self) -> Result<OwnedFd, Errno> {
        Err(Errno(EMFILE))
    }

    fn alloc_async_fd(&self) -> Result<OwnedFd, Errno> {
        Err(Errno(EMFILE))
    }

    fn gid(&self, port: u32, index: u32) -> Result<GidEntry, Errno> {
        if port == 1 && index < 3 {
            Ok(GidEntry { gid: [7; 16], index, port, gid_type: GidType::RoceV2, netdev_ifindex: 1 })
        } else {
            Err(Errno(EINVAL))
        }
    }

    fn gid_table(&self) -> Vec<GidEntry> {
        (0..3).filter_map(|index| self.gid(1, index).ok()).collect()
    }

    fn before_close(&self, _: RawFd) {}
}

fuzz_target!(|input: (bool, Vec<u8>)| {
    let (by_ioctl, bytes) = input;
    if by_ioctl {
        let memory = Memory(RefCell::new(bytes));
        let _ = handle_ioctl(&Gids, &memory, RDMA_VERBS_IOCTL, BASE);
    } else {
        let memory = Memory(RefCell::new(vec![0; 256]));
        if let Ok(taken) = handle_write(&Gids, &memory, &bytes) {
            assert_eq!(taken, bytes.len());
        }
    }
});
