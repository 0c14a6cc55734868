#![no_main]
//! The uverbs commands that reach "the kernel": any bytes by write(2), any request by ioctl(2).

use std::any::Any;
use std::cell::RefCell;
use std::os::fd::{OwnedFd, RawFd};
use std::sync::Arc;

use libfuzzer_sys::fuzz_target;
use urxe::kernel::Errno;
use urxe::kernel::uverbs::{Device, GidEntry, GidType, RDMA_VERBS_IOCTL, handle_ioctl, handle_write};
use urxe_fuzz::memory::{BASE, Memory};
use urxe_wire::Gid;

/// Of errno.h.
const EINVAL: i32 = 22;
const EMFILE: i32 = 24;

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
            Ok(GidEntry { gid: Gid::new([7; 16]), index, port, gid_type: GidType::RoceV2, netdev_ifindex: 1 })
        } else {
            Err(Errno(EINVAL))
        }
    }

    fn gid_table(&self) -> Vec<GidEntry> {
        (0..3).filter_map(|index| self.gid(1, index).ok()).collect()
    }

    fn before_close(&self, _: RawFd) -> Option<Arc<dyn Any + Send + Sync>> {
        None
    }
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
