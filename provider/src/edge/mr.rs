//! Protection domains and memory regions.

use std::ffi::{c_int, c_void};
use std::sync::Arc;

use urxe_engine::mw::TableError;
use urxe_engine::{Access, Accessor, Key, Refusal, Region, RegionKind};
use urxe_explain::Verb;
use urxe_ffi::driver::objects::{IBV_MR_TYPE_IMPORTED_MR, IBV_MR_TYPE_MR, IBV_MR_TYPE_NULL_MR};
use urxe_ffi::driver::objects::{ibv_mr_type, verbs_mr};
use urxe_ffi::driver::ops::ibv_advise_mr_advice;
use urxe_ffi::verbs as v;

use super::context::shared;
use super::users::Use;
use super::{int_verb, ptr_verb};
use crate::kernel::Errno;
use crate::verbs::diagnostics;
use crate::verbs::handles::Registered;
use crate::verbs::objects::{ProtectionDomain, Registration};
use urxe_runtime::limits;
use urxe_runtime::memory::mapping::{self, Mapping};

/// `enum ib_uverbs_advise_mr_advice`, `enum ib_uverbs_advise_mr_flag`; the header makes them macros.
const PREFETCH: ibv_advise_mr_advice = 0;
const PREFETCH_WRITE: ibv_advise_mr_advice = 1;
const PREFETCH_NO_FAULT: ibv_advise_mr_advice = 2;
const FLAG_FLUSH: u32 = 1;

/// An `ibv_pd` of ours.
#[repr(C)]
struct PdObject {
    ibv: v::ibv_pd,
    domain: Arc<ProtectionDomain>,
}

/// An `ibv_mr` of ours.
#[repr(C)]
struct MrObject {
    verbs: verbs_mr,
    /// Key in the context's table of handles.
    key: Key,
    /// Keeps the DMA handle that it was registered with.
    dmah: Option<Use>,
}

/// Has a region keep something from being freed.
///
/// # Safety
/// `mr` came from [`register`] just now.
pub(super) unsafe fn keep(mr: *mut v::ibv_mr, dmah: Use) {
    // SAFETY: the caller's promise.
    unsafe { (*mr.cast::<MrObject>()).dmah = Some(dmah) };
}

/// The domain behind an `ibv_pd`.
///
/// # Safety
/// `pd` came from [`alloc_pd`] and has not been freed.
pub(super) unsafe fn domain<'a>(pd: *mut v::ibv_pd) -> &'a Arc<ProtectionDomain> {
    // SAFETY: an `ibv_pd` of ours is the start of a PdObject.
    unsafe { &(*pd.cast::<PdObject>()).domain }
}

pub(super) unsafe extern "C" fn alloc_pd(context: *mut v::ibv_context) -> *mut v::ibv_pd {
    ptr_verb(Verb::AllocPd, || {
        // SAFETY: the caller's context.
        let device = unsafe { shared(context) };
        device.check_alive()?;
        let domain = ProtectionDomain::new(device.quotas().pd.take()?, device.number());
        device.handles().add_domain(&domain);
        Ok(new_pd(context, domain))
    })
}

/// An `ibv_pd` for a domain.
pub(super) fn new_pd(context: *mut v::ibv_context, domain: Arc<ProtectionDomain>) -> *mut v::ibv_pd {
    let ibv = v::ibv_pd { context, handle: domain.id().0 };
    domain.named();
    Box::into_raw(Box::new(PdObject { ibv, domain })).cast()
}

pub(super) unsafe extern "C" fn dealloc_pd(pd: *mut v::ibv_pd) -> c_int {
    int_verb(Verb::DeallocPd, || {
        // SAFETY: the caller's domain.
        let (context, domain) = unsafe { (shared((*pd).context), domain(pd)) };
        if domain.is_used() {
            return Err(Errno(libc::EBUSY));
        }
        // In a child of fork(2) nobody can import it, and a lock might be held for ever.
        if !domain.is_parent() && context.check_own().is_ok() {
            context.handles().remove_domain(domain.id().0);
        }
        // SAFETY: made by `new_pd`, and nothing refers to it.
        unsafe { forget_pd(pd) };
        Ok(())
    })
}

pub(super) unsafe extern "C" fn import_pd(context: *mut v::ibv_context, pd_handle: u32) -> *mut v::ibv_pd {
    ptr_verb(Verb::ImportPd, || {
        // SAFETY: the caller's context.
        let device = unsafe { shared(context) };
        device.check_alive()?;
        Ok(new_pd(context, device.handles().domain(pd_handle)?))
    })
}

/// The domain stays; what was made by this name of it keeps it from being freed by another.
pub(super) unsafe extern "C" fn unimport_pd(pd: *mut v::ibv_pd) {
    let _ = int_verb(Verb::UnimportPd, || {
        // SAFETY: made by `import_pd`, and not used any more.
        unsafe { forget_pd(pd) };
        Ok(())
    });
}

/// # Safety
/// `pd` came from [`new_pd`], and is not used any more.
unsafe fn forget_pd(pd: *mut v::ibv_pd) {
    // SAFETY: the caller's promise.
    let object = unsafe { Box::from_raw(pd.cast::<PdObject>()) };
    object.domain.unnamed();
}

pub(super) unsafe extern "C" fn reg_mr(
    pd: *mut v::ibv_pd,
    addr: *mut c_void,
    length: usize,
    hca_va: u64,
    access: c_int,
) -> *mut v::ibv_mr {
    ptr_verb(Verb::RegMr, || {
        let address = addr as u64;
        let page = limits::page();
        // As the kernel's `ib_umem_get`: EINVAL where no page is touched. Anywhere else a region of no bytes is one.
        if length == 0 && address.is_multiple_of(page) {
            return Err(diagnostics::wrong(Errno(libc::EINVAL), "length is 0", "register at least one byte"));
        }
        //= spec/memory.md#mem-014
        //# The iova of a region MUST have the same offset in a page as its address.
        if address % page != hca_va % page {
            return Err(diagnostics::iova(address, hca_va));
        }
        let asked = Registration { address, length: length as u64, iova: hca_va, access: access.cast_unsigned() };
        // SAFETY: the caller's domain.
        unsafe { register(pd, &asked, addr, IBV_MR_TYPE_MR, None) }
    })
}

/// Registers memory; `addr` is what the application sees.
///
/// # Safety
/// `pd` is ours and live.
pub(super) unsafe fn register(
    pd: *mut v::ibv_pd,
    asked: &Registration,
    addr: *mut c_void,
    mr_type: ibv_mr_type,
    backing: Option<Arc<Mapping>>,
) -> Result<*mut v::ibv_mr, Errno> {
    // SAFETY: the caller's promise.
    let (ibv_context, domain) = unsafe { ((*pd).context, domain(pd)) };
    // SAFETY: as above.
    let context = unsafe { shared(ibv_context) };
    context.check_alive()?;
    let key = asked.register(context.device().regions(), domain.id())?;
    let length = usize::try_from(asked.length).unwrap_or(usize::MAX);
    let ibv_mr = v::ibv_mr { context: ibv_context, pd, addr, length, handle: key.0, lkey: key.0, rkey: key.0 };
    let verbs = verbs_mr { ibv_mr, mr_type, access: asked.access.cast_signed() };
    let registered = Registered { asked: *asked, domain: Arc::clone(domain), backing, r_key: key.0 };
    context.handles().set_region(key, registered);
    Ok(Box::into_raw(Box::new(MrObject { verbs, key, dmah: None })).cast())
}

/// A region that reads as zeros and swallows what is written (`ibv_alloc_null_mr(3)`); peers cannot use it. As on mlx5, where
/// it is no object of the kernel's, it does not keep its domain from being freed: perftest never deregisters it.
pub(super) unsafe extern "C" fn alloc_null_mr(pd: *mut v::ibv_pd) -> *mut v::ibv_mr {
    ptr_verb(Verb::AllocNullMr, || {
        // SAFETY: the caller's domain.
        let (ibv_context, domain) = unsafe { ((*pd).context, domain(pd)) };
        // SAFETY: as above.
        let context = unsafe { shared(ibv_context) };
        context.check_alive()?;
        let (pd_id, access) = (domain.id(), Access::LOCAL_WRITE);
        let make = |key| Region { key, pd: pd_id, access, iova: 0, length: u64::MAX, host: 0, kind: RegionKind::Null };
        let key = context.device().regions().insert(make).map_err(|_| Errno(libc::ENOMEM))?;
        let ibv_mr = v::ibv_mr {
            context: ibv_context,
            pd,
            addr: std::ptr::null_mut(),
            length: usize::MAX,
            handle: key.0,
            lkey: key.0,
            rkey: 0,
        };
        let verbs = verbs_mr { ibv_mr, mr_type: IBV_MR_TYPE_NULL_MR, access: access.bits().cast_signed() };
        Ok(Box::into_raw(Box::new(MrObject { verbs, key, dmah: None })).cast())
    })
}

/// Changes a region under its key (`ibv_rereg_mr(3)`). libibverbs has checked the flags, and changes the public
/// fields afterwards.
pub(super) unsafe extern "C" fn rereg_mr(
    vmr: *mut verbs_mr,
    flags: c_int,
    pd: *mut v::ibv_pd,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> c_int {
    int_verb(Verb::ReregMr, || {
        // SAFETY: the caller's region, which nobody else may be changing.
        let (context, object) = unsafe { (shared((*vmr).ibv_mr.context), &mut *vmr.cast::<MrObject>()) };
        context.check_alive()?;
        let mut registered = context.handles().region(object.key.0)?;
        // Of memory that is ours, the mapping would have to change.
        if registered.backing.is_some() {
            return Err(Errno(libc::EOPNOTSUPP));
        }
        let changes = |flag: u32| flags.cast_unsigned() & flag != 0;
        let asked = &mut registered.asked;
        if changes(v::IBV_REREG_MR_CHANGE_TRANSLATION) {
            (asked.address, asked.iova, asked.length) = (addr as u64, addr as u64, length as u64);
        }
        if changes(v::IBV_REREG_MR_CHANGE_ACCESS) {
            asked.access = access.cast_unsigned();
        }
        if changes(v::IBV_REREG_MR_CHANGE_PD) {
            if pd.is_null() {
                return Err(Errno(libc::EINVAL));
            }
            // SAFETY: the caller's domain.
            registered.domain = Arc::clone(unsafe { domain(pd) });
        }
        let region = Region { key: object.key, ..registered.asked.region(registered.domain.id())? };
        context.device().regions().replace(region).map_err(|_| Errno(libc::EBUSY))?;
        object.verbs.access = registered.asked.access.cast_signed();
        context.handles().set_region(object.key, registered);
        Ok(())
    })
}

/// Prefetches pages of on-demand regions (`ibv_advise_mr(3)`). Pages come by themselves when they are accessed, so
/// only the caller who wants to wait for them (`IBV_ADVISE_MR_FLAG_FLUSH`) needs anything done.
//= spec/memory.md#mem-011
//# Advice on memory MUST change nothing in it, nor happen after the call has returned.
pub(super) unsafe extern "C" fn advise_mr(
    pd: *mut v::ibv_pd,
    advice: ibv_advise_mr_advice,
    flags: u32,
    sg_list: *mut v::ibv_sge,
    num_sges: u32,
) -> c_int {
    int_verb(Verb::AdviseMr, || {
        // SAFETY: the caller's domain.
        let (context, domain) = unsafe { (shared((*pd).context), domain(pd)) };
        context.check_alive()?;
        let (populate, needed) = match advice {
            PREFETCH => (Some(libc::MADV_POPULATE_READ), Access::NONE),
            PREFETCH_WRITE => (Some(libc::MADV_POPULATE_WRITE), Access::LOCAL_WRITE),
            PREFETCH_NO_FAULT => (None, Access::NONE),
            _ => return Err(Errno(libc::EOPNOTSUPP)),
        };
        if flags & !FLAG_FLUSH != 0 || num_sges == 0 {
            return Err(Errno(libc::EINVAL));
        }
        for index in 0..num_sges as usize {
            // SAFETY: the caller's list has that many elements.
            let sge = unsafe { sg_list.add(index).read() };
            let region = context.device().regions().region(Key(sge.lkey)).ok_or(Errno(libc::ENOENT))?;
            let by = Accessor::Local(domain.id());
            let at = region.check(by, needed, sge.addr, u64::from(sge.length)).map_err(|refusal| match refusal {
                Refusal::NoSuchKey => Errno(libc::ENOENT),
                Refusal::OtherPd | Refusal::Access => Errno(libc::EPERM),
                Refusal::OutOfBounds
                | Refusal::Unmapped
                | Refusal::Misaligned
                | Refusal::Vanished
                | Refusal::Silent => Errno(libc::EFAULT),
            })?;
            if let (Some(populate), true) = (populate, flags & FLAG_FLUSH != 0) {
                mapping::populate(at, u64::from(sge.length), populate).map_err(|_| Errno(libc::EFAULT))?;
            }
        }
        Ok(())
    })
}

pub(super) unsafe extern "C" fn dereg_mr(mr: *mut verbs_mr) -> c_int {
    int_verb(Verb::DeregMr, || {
        // SAFETY: the caller's region, made by `reg_mr`.
        let context = unsafe { shared((*mr).ibv_mr.context) };
        context.check_own()?;
        // SAFETY: as above.
        let key = unsafe { (*mr.cast::<MrObject>()).key };
        let device = context.device();
        if let Some(observer) = context.observer() {
            observer.deregistering(key);
        }
        // A memory window may be bound to it (`ibv_dereg_mr(3)`).
        device.regions().remove(key).map_err(|error| match error {
            TableError::Bound => Errno(libc::EBUSY),
            TableError::NoSuchKey => Errno(libc::EINVAL),
        })?;
        if let (Some(observer), Ok(Registered { asked, .. })) = (context.observer(), context.handles().region(key.0)) {
            observer.deregistered(key, asked.iova, asked.length);
        }
        context.handles().remove_region(key);
        // SAFETY: as above, and not used any more.
        drop(unsafe { Box::from_raw(mr.cast::<MrObject>()) });
        Ok(())
    })
}

/// `ibv_import_mr(3)`: another `ibv_mr` of a region. Its `addr` is null, as only the original knows the address.
pub(super) unsafe extern "C" fn import_mr(pd: *mut v::ibv_pd, mr_handle: u32) -> *mut v::ibv_mr {
    ptr_verb(Verb::ImportMr, || {
        // SAFETY: the caller's domain.
        let (ibv_context, domain) = unsafe { ((*pd).context, domain(pd)) };
        // SAFETY: as above.
        let context = unsafe { shared(ibv_context) };
        context.check_alive()?;
        let region = context.handles().region(mr_handle)?;
        if region.domain.id() != domain.id() {
            return Err(Errno(libc::EINVAL));
        }
        let ibv_mr = v::ibv_mr {
            context: ibv_context,
            pd,
            addr: std::ptr::null_mut(),
            length: usize::try_from(region.asked.length).unwrap_or(usize::MAX),
            handle: mr_handle,
            lkey: mr_handle,
            rkey: region.r_key,
        };
        let verbs = verbs_mr { ibv_mr, mr_type: IBV_MR_TYPE_IMPORTED_MR, access: region.asked.access.cast_signed() };
        Ok(Box::into_raw(Box::new(MrObject { verbs, key: Key(mr_handle), dmah: None })).cast())
    })
}

/// The region stays.
pub(super) unsafe extern "C" fn unimport_mr(mr: *mut v::ibv_mr) {
    let _ = int_verb(Verb::UnimportMr, || {
        // SAFETY: made by `import_mr`, and not used any more.
        drop(unsafe { Box::from_raw(mr.cast::<MrObject>()) });
        Ok(())
    });
}
