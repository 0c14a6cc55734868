//! Address handles.

use std::ffi::c_int;
use std::sync::Arc;

use urxe_engine::UdRecipient;
use urxe_explain::Verb;
use urxe_ffi::verbs as v;
use urxe_net::Route;
use urxe_wire::{Gid, Lid, QKey, Qpn};

use super::context::shared;
use super::{int_verb, mr, ptr_verb};
use crate::kernel::Errno;
use crate::verbs::address_vector::AddressVector;
use crate::verbs::ah::AddressHandle;
use crate::verbs::context::Context;
use crate::verbs::diagnostics;
use crate::verbs::objects::ProtectionDomain;
use crate::verbs::quota::Counted;

/// An `ibv_ah` of ours.
#[repr(C)]
pub(super) struct AhObject {
    ibv: v::ibv_ah,
    handle: Arc<AddressHandle>,
    /// The domain, which is kept from being freed. None for a copy.
    _owned: Option<(Arc<ProtectionDomain>, Counted)>,
}

impl AhObject {
    /// Copies an address handle for a request that is put aside: the handle may be destroyed once the request is posted.
    /// Neither allocates nor takes a lock.
    ///
    /// # Safety
    /// `ah` came from [`create_ah`] and has not been destroyed.
    pub(super) unsafe fn copy(ah: *mut v::ibv_ah) -> Self {
        // SAFETY: the caller's promise.
        let Self { ibv, handle, .. } = unsafe { &*ah.cast::<Self>() };
        Self { ibv: *ibv, handle: Arc::clone(handle), _owned: None }
    }
}

/// Recipient of a request that names this address handle, queue pair and Q_Key.
///
/// # Safety
/// `ah` is null (which is refused), a [copy](AhObject::copy), or came from [`create_ah`] and has not been destroyed.
pub(super) unsafe fn recipient(
    context: &Context,
    ah: *mut v::ibv_ah,
    qpn: u32,
    q_key: u32,
) -> Result<UdRecipient<Arc<Route>>, Errno> {
    // SAFETY: the caller's promise.
    let object = unsafe { ah.cast::<AhObject>().as_ref() }.ok_or_else(|| {
        diagnostics::wrong(
            Errno(libc::EINVAL),
            "wr.ud.ah is null",
            "on UD every send needs an address handle (ibv_create_ah)",
        )
    })?;
    let qpn = Qpn::new(qpn);
    let lid_routed = object.handle.is_lid_routed();
    Ok(UdRecipient { route: object.handle.route(context, qpn)?, qpn, q_key: QKey(q_key), lid_routed })
}

/// Converts an `ibv_ah_attr`.
pub(super) fn address_vector(attr: &v::ibv_ah_attr) -> AddressVector {
    AddressVector {
        // SAFETY: every bit pattern is sixteen bytes.
        dgid: Gid::new(unsafe { attr.grh.dgid.raw }),
        sgid_index: u32::from(attr.grh.sgid_index),
        flow_label: attr.grh.flow_label,
        traffic_class: attr.grh.traffic_class,
        hop_limit: attr.grh.hop_limit,
        is_global: attr.is_global != 0,
        dlid: Lid(attr.dlid),
    }
}

pub(super) unsafe extern "C" fn create_ah(pd: *mut v::ibv_pd, attr: *mut v::ibv_ah_attr) -> *mut v::ibv_ah {
    ptr_verb(Verb::CreateAh, || {
        // SAFETY: the caller's domain and attributes.
        let (context, domain, attr) = unsafe { (shared((*pd).context), mr::domain(pd), &*attr) };
        context.check_alive()?;
        if attr.port_num != 1 {
            return Err(diagnostics::wrong(Errno(libc::EINVAL), "port_num is not 1", "the device has port 1 only"));
        }
        let counted = context.quotas().ah.take()?;
        let handle = Arc::new(AddressHandle::new(context, address_vector(attr))?);
        // SAFETY: as above.
        let ibv = v::ibv_ah { context: unsafe { (*pd).context }, pd, handle: 0 };
        Ok(Box::into_raw(Box::new(AhObject { ibv, handle, _owned: Some((Arc::clone(domain), counted)) })).cast())
    })
}

pub(super) unsafe extern "C" fn destroy_ah(ah: *mut v::ibv_ah) -> c_int {
    int_verb(Verb::DestroyAh, || {
        // SAFETY: made by `create_ah`, and not used any more.
        let object = unsafe { Box::from_raw(ah.cast::<AhObject>()) };
        drop(object);
        Ok(())
    })
}
