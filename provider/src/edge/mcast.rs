//! Multicast groups of UD queue pairs.

use std::ffi::c_int;

use urxe_engine::QpType;
use urxe_explain::Verb;
use urxe_ffi::verbs as v;
use urxe_net::RouteError;
use urxe_wire::{Gid, Qpn};

use super::context::shared;
use super::{int_verb, qp_object, raw};
use crate::kernel::Errno;
use crate::verbs::context::Context;
use urxe_diag::explain::with_reason;
use urxe_runtime::groups::GroupError;

const EINVAL: Errno = Errno(libc::EINVAL);

/// EINVAL for other services than UD and for what is no multicast address, as in the kernel's `ib_attach_mcast`.
/// The LID means nothing on RoCE. Raw packet queue pairs take the last six bytes of the GID for a MAC address, as mlx4 did.
pub(super) unsafe extern "C" fn attach_mcast(qp: *mut v::ibv_qp, gid: *const v::ibv_gid, _lid: u16) -> c_int {
    int_verb(Verb::AttachMcast, || {
        // SAFETY: the caller's queue pair and GID.
        unsafe {
            if raw::is_raw(qp) {
                return raw::groups::attach(qp, gid);
            }
        }
        // SAFETY: the caller's queue pair and GID.
        let (context, qpn, gid) = unsafe { arguments(qp, gid) }?;
        let device = context.device();
        device.groups().attach(device.net(), gid, qpn).map_err(|error| {
            let (errno, remedy) = match error {
                GroupError::Full => (Errno(libc::ENOMEM), "detach some"),
                GroupError::Group(RouteError::Os(_)) => (Errno(libc::ENETUNREACH), "add a route for the group"),
                GroupError::Group(_) => (EINVAL, "take a multicast address of the port's IP version"),
            };
            with_reason(errno, || (error.to_string(), remedy))
        })
    })
}

pub(super) unsafe extern "C" fn detach_mcast(qp: *mut v::ibv_qp, gid: *const v::ibv_gid, _lid: u16) -> c_int {
    int_verb(Verb::DetachMcast, || {
        // SAFETY: the caller's queue pair and GID.
        unsafe {
            if raw::is_raw(qp) {
                return raw::groups::detach(qp, gid);
            }
        }
        // SAFETY: the caller's queue pair and GID.
        let (context, qpn, gid) = unsafe { arguments(qp, gid) }?;
        if context.device().groups().detach(gid, qpn) { Ok(()) } else { Err(EINVAL) }
    })
}

/// # Safety
/// A queue pair of ours that is not raw, and a GID.
unsafe fn arguments<'a>(qp: *mut v::ibv_qp, gid: *const v::ibv_gid) -> Result<(&'a Context, Qpn, Gid), Errno> {
    // SAFETY: the caller's promise; every bit pattern is sixteen bytes.
    let (context, gid) = unsafe { (shared((*qp).context), Gid::new((*gid).raw)) };
    context.check_alive()?;
    // SAFETY: as above.
    let object = unsafe { qp_object::object(qp) };
    if object.qp.inspect(|engine| engine.config().qp_type) != QpType::Ud {
        return Err(EINVAL);
    }
    Ok((context, object.qp.qpn(), gid))
}
