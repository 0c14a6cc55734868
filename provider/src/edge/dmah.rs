//! DMA handles (`ibv_alloc_dmah(3)`), and `ibv_reg_mr_ex(3)`, which takes them.
//!
//! A handle holds hints for a PCIe device: which processor will look at what it writes, and in which memory that is. The
//! device being the process, there is nothing to be hinted at. What makes no sense is refused as the kernel refuses it
//! (`uverbs_std_types_dmah.c`).

use std::ffi::c_int;

use urxe_explain::Verb;
use urxe_ffi::driver::newer::{
    IBV_DMAH_INIT_ATTR_MASK_CPU_ID, IBV_DMAH_INIT_ATTR_MASK_PH, IBV_DMAH_INIT_ATTR_MASK_TPH_MEM_TYPE,
    IBV_REG_MR_MASK_ADDR, IBV_REG_MR_MASK_DMAH, IBV_REG_MR_MASK_FD, IBV_REG_MR_MASK_FD_OFFSET, IBV_REG_MR_MASK_IOVA,
    ibv_dmah, ibv_dmah_init_attr, ibv_mr_init_attr,
};
use urxe_ffi::verbs as v;

use super::context::shared;
use super::users::{Use, Users};
use super::{dmabuf, int_verb, mr, ptr_verb};
use crate::kernel::Errno;

const EINVAL: Errno = Errno(libc::EINVAL);

/// Processing hints have two bits (PCIe 6.2.1, table 2-15).
const MOST_PH: u8 = 3;

/// Volatile and persistent memory.
const MOST_MEM_TYPE: u8 = 1;

/// An `ibv_dmah` of ours.
#[repr(C)]
struct DmahObject {
    ibv: ibv_dmah,
    /// Regions that were registered with it.
    users: Users,
}

pub(super) unsafe extern "C" fn alloc_dmah(
    context: *mut v::ibv_context,
    attr: *mut ibv_dmah_init_attr,
) -> *mut ibv_dmah {
    const KNOWN: u32 =
        IBV_DMAH_INIT_ATTR_MASK_CPU_ID | IBV_DMAH_INIT_ATTR_MASK_PH | IBV_DMAH_INIT_ATTR_MASK_TPH_MEM_TYPE;
    ptr_verb(Verb::AllocDmah, || {
        // SAFETY: the caller's context and attributes.
        let (device, attr) = unsafe { (shared(context), &*attr) };
        device.check_alive()?;
        let given = |field| attr.comp_mask & field != 0;
        if given(!KNOWN) {
            return Err(Errno(libc::EOPNOTSUPP));
        }
        if given(IBV_DMAH_INIT_ATTR_MASK_CPU_ID) && !may_run_on(attr.cpu_id) {
            return Err(Errno(libc::EPERM));
        }
        if (given(IBV_DMAH_INIT_ATTR_MASK_PH) && attr.ph > MOST_PH)
            || (given(IBV_DMAH_INIT_ATTR_MASK_TPH_MEM_TYPE) && attr.tph_mem_type > MOST_MEM_TYPE)
        {
            return Err(EINVAL);
        }
        let object = DmahObject { ibv: ibv_dmah { context }, users: Users::default() };
        Ok(Box::into_raw(Box::new(object)).cast())
    })
}

/// Whether the calling thread may run on a processor.
fn may_run_on(cpu: u32) -> bool {
    // SAFETY: all-zero is an empty set.
    let mut set = unsafe { std::mem::zeroed::<libc::cpu_set_t>() };
    // SAFETY: room for a set.
    let known = unsafe { libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &raw mut set) } == 0;
    let limit = usize::try_from(libc::CPU_SETSIZE).unwrap_or_default();
    let cpu = usize::try_from(cpu).ok().filter(|cpu| *cpu < limit);
    // SAFETY: a number that a set has.
    known && cpu.is_some_and(|cpu| unsafe { libc::CPU_ISSET(cpu, &set) })
}

pub(super) unsafe extern "C" fn dealloc_dmah(dmah: *mut ibv_dmah) -> c_int {
    int_verb(Verb::DeallocDmah, || {
        // SAFETY: the caller's handle.
        if unsafe { (*dmah.cast::<DmahObject>()).users.any() } {
            return Err(Errno(libc::EBUSY));
        }
        // SAFETY: made by `alloc_dmah`, and nothing refers to it.
        drop(unsafe { Box::from_raw(dmah.cast::<DmahObject>()) });
        Ok(())
    })
}

/// Memory of this process or of a dma-buf, by what `comp_mask` names. A buffer of `ibv_alloc_buf` libibverbs has turned into
/// one of the two.
pub(super) unsafe extern "C" fn reg_mr_ex(pd: *mut v::ibv_pd, attr: *mut ibv_mr_init_attr) -> *mut v::ibv_mr {
    const KNOWN: u64 = IBV_REG_MR_MASK_IOVA
        | IBV_REG_MR_MASK_ADDR
        | IBV_REG_MR_MASK_FD
        | IBV_REG_MR_MASK_FD_OFFSET
        | IBV_REG_MR_MASK_DMAH;
    // SAFETY: the caller's attributes.
    let attr = unsafe { &*attr };
    let given = |field| attr.comp_mask & field != 0;
    let memory = |errno: c_int| -> *mut v::ibv_mr { ptr_verb(Verb::RegMrEx, || Err(Errno(errno))) };
    if given(!KNOWN) {
        return memory(libc::EOPNOTSUPP);
    }
    let on_demand = attr.access.cast_unsigned() & v::IBV_ACCESS_ON_DEMAND != 0;
    // Pages that come and go have no handle (`ib_uverbs_reg_mr`).
    if given(IBV_REG_MR_MASK_DMAH) && (attr.dmah.is_null() || on_demand) {
        return memory(libc::EINVAL);
    }
    let mr = if given(IBV_REG_MR_MASK_FD) {
        if given(IBV_REG_MR_MASK_ADDR) || !given(IBV_REG_MR_MASK_FD_OFFSET) || !given(IBV_REG_MR_MASK_IOVA) {
            return memory(libc::EINVAL);
        }
        // SAFETY: the caller's domain.
        unsafe { dmabuf::reg_dmabuf_mr(pd, attr.fd_offset, attr.length, attr.iova, attr.fd, attr.access) }
    } else {
        if !given(IBV_REG_MR_MASK_ADDR) || given(IBV_REG_MR_MASK_FD_OFFSET) {
            return memory(libc::EINVAL);
        }
        let iova = if given(IBV_REG_MR_MASK_IOVA) { attr.iova } else { attr.addr as u64 };
        // SAFETY: the caller's domain.
        unsafe { mr::reg_mr(pd, attr.addr, attr.length, iova, attr.access) }
    };
    if given(IBV_REG_MR_MASK_DMAH) && !mr.is_null() {
        // SAFETY: the caller's handle, which is not freed as long as a region uses it; a region that is new.
        unsafe { mr::keep(mr, Use::of(&[&(*attr.dmah.cast::<DmahObject>()).users])) };
    }
    mr
}
