//! Raw packet queue pairs as libibverbs holds them.

use std::cell::UnsafeCell;
use std::sync::Arc;

use urxe_ffi::driver::objects::verbs_qp;
use urxe_ffi::verbs as v;

use super::builder::Builder;
use crate::edge::users::{Use, Users};
use crate::verbs::objects::ProtectionDomain;
use crate::verbs::quota::Counted;
use urxe_runtime::raw::RawQp;

/// An `ibv_qp` of ours, for frames.
#[repr(C)]
pub(super) struct RawQpObject {
    /// libibverbs writes there (state, events counted) while others refer to the rest.
    pub(super) verbs: UnsafeCell<verbs_qp>,
    pub(super) qp: Arc<RawQp>,
    pub(super) builder: Builder,
    pub(super) max_inline: u32,
    /// Flows to it.
    pub(super) users: Users,
    pub(super) domain: Arc<ProtectionDomain>,
    pub(super) used: Use,
    pub(super) _counted: Counted,
}

/// Returns the object behind an `ibv_qp` for frames.
///
/// # Safety
/// [`is_raw`](super::is_raw), and as there.
pub(super) unsafe fn object<'a>(qp: *mut v::ibv_qp) -> &'a RawQpObject {
    // SAFETY: such an `ibv_qp` is the start of a RawQpObject.
    unsafe { &*qp.cast::<RawQpObject>() }
}
