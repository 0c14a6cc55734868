//! XRC domains.

use std::ffi::c_int;
use std::sync::Arc;

use urxe_explain::Verb;
use urxe_ffi::driver::objects::verbs_xrcd;
use urxe_ffi::verbs as v;

use super::context::shared;
use super::users::Users;
use super::{int_verb, ptr_verb};
use crate::kernel::Errno;
use crate::verbs::xrcd::Xrcd;

/// An `ibv_xrcd` of ours.
#[repr(C)]
pub(super) struct XrcdObject {
    verbs: verbs_xrcd,
    pub(super) xrcd: Arc<Xrcd>,
    /// SRQs and queue pairs in it.
    pub(super) users: Users,
}

/// Returns the object behind an `ibv_xrcd`.
///
/// # Safety
/// `xrcd` came from [`open_xrcd`] and has not been closed.
pub(super) unsafe fn object<'a>(xrcd: *mut v::ibv_xrcd) -> &'a XrcdObject {
    // SAFETY: an `ibv_xrcd` of ours is the start of an XrcdObject.
    unsafe { &*xrcd.cast::<XrcdObject>() }
}

pub(super) unsafe extern "C" fn open_xrcd(
    context: *mut v::ibv_context,
    attr: *mut v::ibv_xrcd_init_attr,
) -> *mut v::ibv_xrcd {
    ptr_verb(Verb::OpenXrcd, || {
        const FIELDS: u32 = v::IBV_XRCD_INIT_ATTR_FD | v::IBV_XRCD_INIT_ATTR_OFLAGS;
        // SAFETY: the caller's context and attributes.
        let (device, attr) = unsafe { (shared(context), &*attr) };
        device.check_alive()?;
        // As libibverbs' ibv_cmd_open_xrcd.
        if attr.comp_mask & !FIELDS != 0 {
            return Err(Errno(libc::EOPNOTSUPP));
        }
        if attr.comp_mask != FIELDS {
            return Err(Errno(libc::EINVAL));
        }
        let xrcd = device.xrc_domains().open(attr.fd, attr.oflags)?;
        let verbs = verbs_xrcd { xrcd: v::ibv_xrcd { context }, comp_mask: 0, handle: xrcd.id().0 };
        Ok(Box::into_raw(Box::new(XrcdObject { verbs, xrcd, users: Users::default() })).cast())
    })
}

pub(super) unsafe extern "C" fn close_xrcd(xrcd: *mut v::ibv_xrcd) -> c_int {
    int_verb(Verb::CloseXrcd, || {
        // SAFETY: the caller's domain.
        let (context, object) = unsafe { (shared((*xrcd).context), object(xrcd)) };
        context.check_own()?;
        if object.users.any() {
            return Err(Errno(libc::EBUSY));
        }
        // SAFETY: made by `open_xrcd`, and nothing refers to it.
        drop(unsafe { Box::from_raw(xrcd.cast::<XrcdObject>()) });
        Ok(())
    })
}
