//! Protection domains and memory regions.

use std::ffi::{c_int, c_void};
use std::sync::Arc;

use urxe_engine::Key;
use urxe_ffi::driver::objects::{IBV_MR_TYPE_MR, verbs_mr};
use urxe_ffi::verbs as v;

use super::context::shared;
use super::{number, pointer};
use crate::kernel::Errno;
use crate::verbs::objects::{ProtectionDomain, Registration};

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
    key: Key,
    /// Keeps the domain from being freed.
    domain: Arc<ProtectionDomain>,
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
    pointer(|| {
        // SAFETY: the caller's context.
        unsafe { shared(context) }.check_alive()?;
        let domain = ProtectionDomain::new();
        let ibv = v::ibv_pd { context, handle: domain.id().0 };
        Ok(Box::into_raw(Box::new(PdObject { ibv, domain })).cast())
    })
}

pub(super) unsafe extern "C" fn dealloc_pd(pd: *mut v::ibv_pd) -> c_int {
    number(|| {
        // SAFETY: the caller's domain.
        if Arc::strong_count(unsafe { domain(pd) }) > 1 {
            return Err(Errno(libc::EBUSY));
        }
        // SAFETY: made by `alloc_pd`, and nothing refers to it.
        drop(unsafe { Box::from_raw(pd.cast::<PdObject>()) });
        Ok(())
    })
}

pub(super) unsafe extern "C" fn reg_mr(
    pd: *mut v::ibv_pd,
    addr: *mut c_void,
    length: usize,
    hca_va: u64,
    access: c_int,
) -> *mut v::ibv_mr {
    pointer(|| {
        // SAFETY: the caller's domain.
        let (context, domain) = unsafe { (shared((*pd).context), domain(pd)) };
        context.check_alive()?;
        let address = addr as u64;
        let asked = Registration { address, length: length as u64, iova: hca_va, access: access.cast_unsigned() };
        let key = asked.register(context, domain.id())?;
        let ibv_mr = v::ibv_mr {
            // SAFETY: as above.
            context: unsafe { (*pd).context },
            pd,
            addr,
            length,
            handle: key.0,
            lkey: key.0,
            rkey: key.0,
        };
        let verbs = verbs_mr { ibv_mr, mr_type: IBV_MR_TYPE_MR, access };
        Ok(Box::into_raw(Box::new(MrObject { verbs, key, domain: Arc::clone(domain) })).cast())
    })
}

pub(super) unsafe extern "C" fn dereg_mr(mr: *mut verbs_mr) -> c_int {
    number(|| {
        // SAFETY: the caller's region, made by `reg_mr`.
        let context = unsafe { shared((*mr).ibv_mr.context) };
        context.check_alive()?;
        // SAFETY: as above.
        let key = unsafe { (*mr.cast::<MrObject>()).key };
        // A memory window may be bound to it (`ibv_dereg_mr(3)`).
        context.port().regions().remove(key).map_err(|_| Errno(libc::EBUSY))?;
        // SAFETY: as above, and not used any more.
        let object = unsafe { Box::from_raw(mr.cast::<MrObject>()) };
        drop(object.domain);
        Ok(())
    })
}
