//! Device memory (`ibv_alloc_dm(3)`).

use std::ffi::{c_int, c_uint, c_void};
use std::os::fd::IntoRawFd;
use std::sync::Arc;

use urxe_explain::Verb;
use urxe_ffi::driver::objects::{IBV_MR_TYPE_MR, verbs_dm};
use urxe_ffi::verbs as v;

use super::context::shared;
use super::mr;
use super::{count_verb, int_verb, ptr_verb};
use crate::kernel::Errno;
use crate::verbs::dm::DeviceMemory;
use crate::verbs::objects::Registration;
use urxe_net::cancellation::CancelGuard;
use urxe_runtime::limits;
use urxe_runtime::memory::faultable_copy;

const EINVAL: Errno = Errno(libc::EINVAL);
/// Divisor of offsets and lengths, as on the devices that have such memory.
const GRANULE: u64 = 4;

/// An `ibv_dm` of ours.
#[repr(C)]
struct DmObject {
    verbs: verbs_dm,
    memory: Arc<DeviceMemory>,
}

/// Returns the object behind an `ibv_dm`.
///
/// # Safety
/// `dm` came from [`alloc_dm`] and has not been freed.
unsafe fn object<'a>(dm: *mut v::ibv_dm) -> &'a DmObject {
    // SAFETY: an `ibv_dm` of ours is the start of a DmObject.
    unsafe { &*dm.cast::<DmObject>() }
}

/// An `ibv_dm` for device memory.
fn new_dm(context: *mut v::ibv_context, handle: u32, memory: Arc<DeviceMemory>) -> *mut v::ibv_dm {
    let dm = v::ibv_dm {
        context,
        memcpy_to_dm: Some(memcpy_to_dm),
        memcpy_from_dm: Some(memcpy_from_dm),
        comp_mask: 0,
        handle,
    };
    Box::into_raw(Box::new(DmObject { verbs: verbs_dm { dm, handle }, memory })).cast()
}

/// Needs nothing of the device, so it works on a context inherited over a fork.
pub(super) unsafe extern "C" fn alloc_dm(
    context: *mut v::ibv_context,
    attr: *mut v::ibv_alloc_dm_attr,
) -> *mut v::ibv_dm {
    ptr_verb(Verb::AllocDm, || {
        // SAFETY: the caller's attributes.
        let attr = unsafe { &*attr };
        if attr.comp_mask != 0 || attr.length == 0 || attr.log_align_req > limits::page().trailing_zeros() {
            return Err(EINVAL);
        }
        let memory = DeviceMemory::new(attr.length)?;
        faultable_copy::admit();
        // SAFETY: the caller's context.
        let device = unsafe { shared(context) };
        // In a child of fork(2) nobody can import it, and a lock might be held for ever.
        let handle = if device.check_alive().is_ok() { device.handles().add_memory(&memory) } else { 0 };
        Ok(new_dm(context, handle, memory))
    })
}

pub(super) unsafe extern "C" fn import_dm(context: *mut v::ibv_context, dm_handle: u32) -> *mut v::ibv_dm {
    ptr_verb(Verb::ImportDm, || {
        // SAFETY: the caller's context.
        let device = unsafe { shared(context) };
        device.check_alive()?;
        Ok(new_dm(context, dm_handle, device.handles().memory(dm_handle)?))
    })
}

/// The memory stays as long as another `ibv_dm` stands for it.
pub(super) unsafe extern "C" fn unimport_dm(dm: *mut v::ibv_dm) {
    let _ = int_verb(Verb::UnimportDm, || {
        // SAFETY: made by `import_dm`, and not used any more.
        drop(unsafe { Box::from_raw(dm.cast::<DmObject>()) });
        Ok(())
    });
}

pub(super) unsafe extern "C" fn free_dm(dm: *mut v::ibv_dm) -> c_int {
    int_verb(Verb::FreeDm, || {
        // SAFETY: the caller's memory.
        let (context, object) = unsafe { (shared((*dm).context), object(dm)) };
        if object.memory.is_registered() {
            return Err(Errno(libc::EBUSY));
        }
        if context.check_own().is_ok() {
            context.handles().remove_memory(object.verbs.handle);
        }
        // SAFETY: made by `alloc_dm`, and nothing refers to it.
        drop(unsafe { Box::from_raw(dm.cast::<DmObject>()) });
        Ok(())
    })
}

/// Exports the memory as a file that mmap(2) and `ibv_reg_dmabuf_mr` of any process of urxe take, as they take a dma-buf.
pub(super) unsafe extern "C" fn dm_export_dmabuf_fd(dm: *mut v::ibv_dm) -> c_int {
    let _guard = CancelGuard::new();
    count_verb(Verb::DmExportDmabufFd, |_| {
        // SAFETY: the caller's memory.
        let file = unsafe { object(dm) }.memory.export()?;
        usize::try_from(file.into_raw_fd()).map_err(|_| Errno(libc::EBADF))
    })
}

fn aligned(offset: u64, length: usize) -> Result<(), Errno> {
    let fits = offset.is_multiple_of(GRANULE) && (length as u64).is_multiple_of(GRANULE);
    if fits { Ok(()) } else { Err(EINVAL) }
}

/// The application's bytes are copied by way of ours: neither side is trusted to be there.
fn copy(from: u64, to: u64, length: usize) -> Result<(), Errno> {
    faultable_copy::admit();
    let mut chunk = [0; 4096];
    let mut done = 0;
    while done < length {
        let part = chunk.get_mut(..(length - done).min(4096)).unwrap_or_default();
        faultable_copy::load(from + done as u64, part).map_err(|_| Errno(libc::EFAULT))?;
        // SAFETY: either the application's buffer, or ours and of that length.
        unsafe { faultable_copy::store(to + done as u64, part) }.map_err(|_| Errno(libc::EFAULT))?;
        done += part.len();
    }
    Ok(())
}

unsafe extern "C" fn memcpy_to_dm(
    dm: *mut v::ibv_dm,
    dm_offset: u64,
    host_addr: *const c_void,
    length: usize,
) -> c_int {
    int_verb(Verb::MemcpyToDm, || {
        aligned(dm_offset, length)?;
        // SAFETY: the caller's memory.
        let to = unsafe { object(dm) }.memory.part(dm_offset, length as u64)?;
        copy(host_addr as u64, to, length)
    })
}

unsafe extern "C" fn memcpy_from_dm(
    host_addr: *mut c_void,
    dm: *mut v::ibv_dm,
    dm_offset: u64,
    length: usize,
) -> c_int {
    int_verb(Verb::MemcpyFromDm, || {
        aligned(dm_offset, length)?;
        // SAFETY: the caller's memory.
        let from = unsafe { object(dm) }.memory.part(dm_offset, length as u64)?;
        copy(from, host_addr as u64, length)
    })
}

/// Addresses count from the start of the region (`ibv_reg_dm_mr(3)`: IBV_ACCESS_ZERO_BASED is a must).
pub(super) unsafe extern "C" fn reg_dm_mr(
    pd: *mut v::ibv_pd,
    dm: *mut v::ibv_dm,
    dm_offset: u64,
    length: usize,
    access: c_uint,
) -> *mut v::ibv_mr {
    ptr_verb(Verb::RegDmMr, || {
        // SAFETY: the caller's memory.
        let object = unsafe { object(dm) };
        let address = object.memory.part(dm_offset, length as u64)?;
        if access & v::IBV_ACCESS_ZERO_BASED == 0 {
            return Err(EINVAL);
        }
        let asked = Registration { address, length: length as u64, iova: 0, access };
        let backing = Some(Arc::clone(object.memory.mapping()));
        // SAFETY: the caller's domain.
        unsafe { mr::register(pd, &asked, std::ptr::null_mut(), IBV_MR_TYPE_MR, backing) }
    })
}
