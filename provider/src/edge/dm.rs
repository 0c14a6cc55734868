//! Device memory (`ibv_alloc_dm(3)`): the device being the process, plain memory of it.

use std::ffi::{c_int, c_uint, c_void};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use urxe_ffi::driver::objects::{IBV_MR_TYPE_MR, verbs_dm};
use urxe_ffi::verbs as v;

use super::mr;
use super::{number, pointer};
use crate::kernel::Errno;
use crate::limits;
use crate::memory::guard;
use crate::memory::mapping::Mapping;
use crate::verbs::objects::Registration;

const EINVAL: Errno = Errno(libc::EINVAL);
/// What offsets and lengths are multiples of, as on the devices that have such memory.
const GRANULE: u64 = 4;

/// Bytes in use in this process.
static IN_USE: AtomicU64 = AtomicU64::new(0);

/// Counts against what there is.
#[derive(Debug)]
struct Share(u64);

impl Share {
    fn take(length: u64) -> Option<Self> {
        let taken = IN_USE.fetch_update(Ordering::AcqRel, Ordering::Acquire, |used| {
            used.checked_add(length).filter(|used| *used <= limits::MAX_DM)
        });
        taken.is_ok().then(|| Self(length))
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        IN_USE.fetch_sub(self.0, Ordering::AcqRel);
    }
}

/// An `ibv_dm` of ours.
#[repr(C)]
struct DmObject {
    verbs: verbs_dm,
    length: u64,
    /// Regions keep it mapped, too.
    mapping: Arc<Mapping>,
    share: Share,
}

/// What is behind an `ibv_dm`.
///
/// # Safety
/// `dm` came from [`alloc_dm`] and has not been freed.
unsafe fn object<'a>(dm: *mut v::ibv_dm) -> &'a DmObject {
    // SAFETY: an `ibv_dm` of ours is the start of a DmObject.
    unsafe { &*dm.cast::<DmObject>() }
}

impl DmObject {
    /// The address of `[offset, offset + length)`.
    fn part(&self, offset: u64, length: u64) -> Result<u64, Errno> {
        let end = offset.checked_add(length).ok_or(EINVAL)?;
        if end > self.length {
            return Err(EINVAL);
        }
        Ok(self.mapping.address() + offset)
    }
}

/// Needs nothing of the device, so it works on a context inherited over a fork.
pub(super) unsafe extern "C" fn alloc_dm(
    context: *mut v::ibv_context,
    attr: *mut v::ibv_alloc_dm_attr,
) -> *mut v::ibv_dm {
    pointer(|| {
        // SAFETY: the caller's attributes.
        let attr = unsafe { &*attr };
        if attr.comp_mask != 0 || attr.length == 0 || attr.log_align_req > limits::PAGE.trailing_zeros() {
            return Err(EINVAL);
        }
        let length = attr.length as u64;
        let share = Share::take(length).ok_or(Errno(libc::ENOMEM))?;
        let mapping = Mapping::anonymous(attr.length).map_err(|_| Errno(libc::ENOMEM))?;
        guard::install();
        let dm = v::ibv_dm {
            context,
            memcpy_to_dm: Some(memcpy_to_dm),
            memcpy_from_dm: Some(memcpy_from_dm),
            comp_mask: 0,
            handle: 0,
        };
        let verbs = verbs_dm { dm, handle: 0 };
        Ok(Box::into_raw(Box::new(DmObject { verbs, length, mapping: Arc::new(mapping), share })).cast())
    })
}

pub(super) unsafe extern "C" fn free_dm(dm: *mut v::ibv_dm) -> c_int {
    number(|| {
        // SAFETY: the caller's memory.
        if Arc::strong_count(unsafe { &object(dm).mapping }) > 1 {
            return Err(Errno(libc::EBUSY));
        }
        // SAFETY: made by `alloc_dm`, and nothing refers to it.
        let object = unsafe { Box::from_raw(dm.cast::<DmObject>()) };
        drop((object.verbs, object.share));
        Ok(())
    })
}

fn aligned(offset: u64, length: usize) -> Result<(), Errno> {
    let fits = offset.is_multiple_of(GRANULE) && (length as u64).is_multiple_of(GRANULE);
    if fits { Ok(()) } else { Err(EINVAL) }
}

/// The application's bytes are copied by way of ours: neither side is trusted to be there.
fn copy(from: u64, to: u64, length: usize) -> Result<(), Errno> {
    let mut chunk = [0; 4096];
    let mut done = 0;
    while done < length {
        let part = chunk.get_mut(..(length - done).min(4096)).unwrap_or_default();
        guard::load(from + done as u64, part).map_err(|_| Errno(libc::EFAULT))?;
        // SAFETY: either the application's buffer, or ours and of that length.
        unsafe { guard::store(to + done as u64, part) }.map_err(|_| Errno(libc::EFAULT))?;
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
    number(|| {
        aligned(dm_offset, length)?;
        // SAFETY: the caller's memory.
        let to = unsafe { object(dm) }.part(dm_offset, length as u64)?;
        copy(host_addr as u64, to, length)
    })
}

unsafe extern "C" fn memcpy_from_dm(
    host_addr: *mut c_void,
    dm: *mut v::ibv_dm,
    dm_offset: u64,
    length: usize,
) -> c_int {
    number(|| {
        aligned(dm_offset, length)?;
        // SAFETY: the caller's memory.
        let from = unsafe { object(dm) }.part(dm_offset, length as u64)?;
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
    pointer(|| {
        // SAFETY: the caller's memory.
        let object = unsafe { object(dm) };
        let address = object.part(dm_offset, length as u64)?;
        if access & v::IBV_ACCESS_ZERO_BASED == 0 {
            return Err(EINVAL);
        }
        let asked = Registration { address, length: length as u64, iova: 0, access };
        let backing = Some(Arc::clone(&object.mapping));
        // SAFETY: the caller's domain.
        unsafe { mr::register(pd, &asked, std::ptr::null_mut(), IBV_MR_TYPE_MR, backing) }
    })
}
