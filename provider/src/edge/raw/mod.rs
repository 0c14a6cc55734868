//! Raw packet queue pairs, flow steering, work queues and receive side scaling (`IBV_QPT_RAW_PACKET`, `ibv_create_flow(3)`,
//! `ibv_create_wq(3)`).

mod builder;
pub(super) mod counters;
pub(super) mod flow;
pub(super) mod groups;
mod object;
mod post;
pub(super) mod qp;
mod requests;
pub(super) mod rss;
pub(super) mod wq;

use urxe_ffi::verbs as v;

use crate::kernel::Errno;

pub(super) use post::{post_recv, post_send};

/// Makes a queue pair with queues of its own, or one that spreads frames over work queues.
///
/// # Safety
/// The context and the objects that the attributes name are ours and live.
pub(super) unsafe fn create(
    ibv_context: *mut v::ibv_context,
    attr: &mut v::ibv_qp_init_attr_ex,
) -> Result<*mut v::ibv_qp, Errno> {
    let has_table = attr.comp_mask & v::IBV_QP_INIT_ATTR_IND_TABLE != 0;
    // SAFETY: the caller's promise.
    unsafe { if has_table { rss::create_qp(ibv_context, attr) } else { qp::create(ibv_context, attr) } }
}

/// Whether a queue pair is one of these, and not one of RoCE.
///
/// # Safety
/// `qp` came from `ibv_create_qp` or its kin and has not been destroyed.
#[inline]
pub(super) unsafe fn is_raw(qp: *mut v::ibv_qp) -> bool {
    // SAFETY: the caller's promise.
    unsafe { (*qp).qp_type == v::IBV_QPT_RAW_PACKET }
}
