//! Thread domains and parent domains (`ibv_alloc_td(3)`, `ibv_alloc_parent_domain(3)`).
//!
//! A thread domain promises that one thread uses what is in it: queue pairs of a domain go together to one
//! [shard](crate::verbs::shards). Our locks are there all the same, and cost nothing when nobody contends for them. Allocators are for buffers that a device reads: ours reads none, so they are never
//! called.

use std::ffi::c_int;
use std::sync::Arc;

use urxe_explain::Verb;
use urxe_ffi::driver::newer::IBV_PARENT_DOMAIN_INIT_ATTR_ALLOW_CC_UNPROTECTED_ALLOC;
use urxe_ffi::verbs as v;

use super::context::shared;
use super::{int_verb, mr, ptr_verb};
use crate::kernel::Errno;
use crate::verbs::objects::{ProtectionDomain, ThreadDomain};

const EINVAL: Errno = Errno(libc::EINVAL);

/// An `ibv_td` of ours.
#[repr(C)]
struct TdObject {
    ibv: v::ibv_td,
    domain: Arc<ThreadDomain>,
}

pub(super) unsafe extern "C" fn alloc_td(
    context: *mut v::ibv_context,
    init_attr: *mut v::ibv_td_init_attr,
) -> *mut v::ibv_td {
    ptr_verb(Verb::AllocTd, || {
        // SAFETY: the caller's context and attributes.
        let (device, attr) = unsafe { (shared(context), &*init_attr) };
        device.check_alive()?;
        if attr.comp_mask != 0 {
            return Err(EINVAL);
        }
        let ibv = v::ibv_td { context };
        Ok(Box::into_raw(Box::new(TdObject { ibv, domain: Arc::new(ThreadDomain::new()) })).cast())
    })
}

pub(super) unsafe extern "C" fn dealloc_td(td: *mut v::ibv_td) -> c_int {
    int_verb(Verb::DeallocTd, || {
        // SAFETY: the caller's domain.
        if Arc::strong_count(unsafe { &(*td.cast::<TdObject>()).domain }) > 1 {
            return Err(Errno(libc::EBUSY));
        }
        // SAFETY: made by `alloc_td`, and nothing refers to it.
        drop(unsafe { Box::from_raw(td.cast::<TdObject>()) });
        Ok(())
    })
}

pub(super) unsafe extern "C" fn alloc_parent_domain(
    context: *mut v::ibv_context,
    attr: *mut v::ibv_parent_domain_init_attr,
) -> *mut v::ibv_pd {
    // Whoever allows memory without protection allows what ours never needs: the device is the process.
    const KNOWN: u32 = v::IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS
        | v::IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT
        | IBV_PARENT_DOMAIN_INIT_ATTR_ALLOW_CC_UNPROTECTED_ALLOC;
    ptr_verb(Verb::AllocParentDomain, || {
        // SAFETY: the caller's context and attributes.
        let (device, attr) = unsafe { (shared(context), &*attr) };
        device.check_alive()?;
        let allocators = attr.comp_mask & v::IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS != 0;
        // The man page: both allocators or neither; a protection domain in any case.
        if attr.pd.is_null()
            || attr.comp_mask & !KNOWN != 0
            || (allocators && (attr.alloc.is_none() || attr.free.is_none()))
        {
            return Err(EINVAL);
        }
        // SAFETY: the caller's domains.
        let (parent, thread) = unsafe {
            (Arc::clone(mr::domain(attr.pd)), attr.td.cast::<TdObject>().as_ref().map(|td| Arc::clone(&td.domain)))
        };
        Ok(mr::new_pd(context, ProtectionDomain::within(parent, thread)))
    })
}
