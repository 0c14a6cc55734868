//! Queue pairs as libibverbs holds them.

use std::cell::UnsafeCell;
use std::sync::{Arc, Mutex};

use urxe_ffi::driver::objects::verbs_qp;
use urxe_ffi::verbs as v;

use super::batch::{Builder, SendRequest};
use super::users::{Use, Users};
use crate::verbs::objects::ProtectionDomain;
use crate::verbs::quota::Counted;
use urxe_runtime::qp::Qp;

/// An `ibv_qp` of ours.
#[repr(C)]
pub(super) struct QpObject {
    /// libibverbs writes there (state, events counted) while others refer to the rest.
    pub(super) verbs: UnsafeCell<verbs_qp>,
    pub(super) qp: Arc<Qp>,
    /// The address vectors last given, for `ibv_query_qp`: that of the primary path and that of the alternate one, unless they have
    /// changed places ([`has_swapped_paths`](urxe_engine::QueuePair::has_swapped_paths)).
    pub(super) ah_attrs: Mutex<[v::ibv_ah_attr; 2]>,
    pub(super) sq_sig_all: bool,
    pub(super) builder: Builder<SendRequest>,
    pub(super) max_inline: u32,
    /// Flows to it.
    pub(super) users: Users,
    /// Keep what it uses from being destroyed.
    pub(super) domain: Option<Arc<ProtectionDomain>>,
    pub(super) used: Use,
    pub(super) _counted: Counted,
}

/// Returns the object behind an `ibv_qp` of RoCE.
///
/// # Safety
/// `qp` came from `ibv_create_qp` or its kin, has not been destroyed, and is not [raw](super::raw::is_raw).
pub(super) unsafe fn object<'a>(qp: *mut v::ibv_qp) -> &'a QpObject {
    // SAFETY: such an `ibv_qp` is the start of a QpObject.
    unsafe { &*qp.cast::<QpObject>() }
}
