//! Address handles.

use std::ffi::c_int;
use std::sync::Arc;

use urxe_ffi::verbs as v;

use super::context::shared;
use super::{mr, number, pointer};
use crate::verbs::objects::{AddressVector, ProtectionDomain, route};

/// An `ibv_ah` of ours.
#[repr(C)]
struct AhObject {
    ibv: v::ibv_ah,
    /// Keeps the domain from being freed.
    domain: Arc<ProtectionDomain>,
}

/// What an `ibv_ah_attr` says.
pub(super) fn address_vector(attr: &v::ibv_ah_attr) -> AddressVector {
    AddressVector {
        // SAFETY: every bit pattern is sixteen bytes.
        dgid: unsafe { attr.grh.dgid.raw },
        sgid_index: u32::from(attr.grh.sgid_index),
        flow_label: attr.grh.flow_label,
        traffic_class: attr.grh.traffic_class,
        hop_limit: attr.grh.hop_limit,
        is_global: attr.is_global != 0,
    }
}

pub(super) unsafe extern "C" fn create_ah(pd: *mut v::ibv_pd, attr: *mut v::ibv_ah_attr) -> *mut v::ibv_ah {
    pointer(|| {
        // SAFETY: the caller's domain and attributes.
        let (context, domain, attr) = unsafe { (shared((*pd).context), mr::domain(pd), &*attr) };
        context.check_alive()?;
        // Whether there is a way is found out now, as the man page says; to which QP will be said by each request.
        route(context, &address_vector(attr), 0)?;
        // SAFETY: as above.
        let ibv = v::ibv_ah { context: unsafe { (*pd).context }, pd, handle: 0 };
        Ok(Box::into_raw(Box::new(AhObject { ibv, domain: Arc::clone(domain) })).cast())
    })
}

pub(super) unsafe extern "C" fn destroy_ah(ah: *mut v::ibv_ah) -> c_int {
    number(|| {
        // SAFETY: made by `create_ah`, and not used any more.
        let object = unsafe { Box::from_raw(ah.cast::<AhObject>()) };
        drop(object.domain);
        Ok(())
    })
}
