//! Raw packet queue pairs, flow steering, work queues and receive side scaling (`IBV_QPT_RAW_PACKET`, `ibv_create_flow(3)`,
//! `ibv_create_wq(3)`).

mod builder;
pub(super) mod flow;
mod object;
mod post;
pub(super) mod qp;
pub(super) mod rss;
pub(super) mod wq;

use urxe_ffi::verbs as v;

pub(super) use post::{post_recv, post_send};

/// Whether a queue pair is one of these, and not one of RoCE.
///
/// # Safety
/// `qp` came from `ibv_create_qp` or its kin and has not been destroyed.
#[inline]
pub(super) unsafe fn is_raw(qp: *mut v::ibv_qp) -> bool {
    // SAFETY: the caller's promise.
    unsafe { (*qp).qp_type == v::IBV_QPT_RAW_PACKET }
}
