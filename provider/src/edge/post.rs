//! Posting work requests to a queue pair (`ibv_post_send(3)`, `ibv_post_recv(3)`).

use std::ffi::c_int;

use urxe_explain::Verb;
use urxe_ffi::verbs as v;

use super::context::shared;
use super::work_requests::{recv, send};
use super::{fast_verb, qp_object, raw, reentrant};
use urxe_runtime::sanitizer;

pub(super) unsafe extern "C" fn post_send(
    qp: *mut v::ibv_qp,
    first: *mut v::ibv_send_wr,
    bad_wr: *mut *mut v::ibv_send_wr,
) -> c_int {
    sanitizer::posting();
    fast_verb(Verb::PostSend, |is_nested| {
        // SAFETY: the caller's queue pair.
        let (context, object) = unsafe { (shared((*qp).context), qp_object::object(qp)) };
        context.check_alive()?;
        // SAFETY: the caller's queue pair.
        let is_raw = unsafe { raw::is_raw(qp) };
        // One branch for both: neither is of the data path of RoCE.
        if is_nested | is_raw {
            // SAFETY: the caller's queue pair, list and pointer.
            return unsafe {
                if is_raw {
                    raw::post_send(qp, is_nested, first, bad_wr)
                } else {
                    reentrant::post_send(qp, object, first, bad_wr)
                }
            };
        }
        // SAFETY: as above.
        unsafe { send(context, &object.qp, object.max_inline, first, bad_wr) }
    })
}

pub(super) unsafe extern "C" fn post_recv(
    qp: *mut v::ibv_qp,
    first: *mut v::ibv_recv_wr,
    bad_wr: *mut *mut v::ibv_recv_wr,
) -> c_int {
    sanitizer::posting();
    fast_verb(Verb::PostRecv, |is_nested| {
        // SAFETY: the caller's queue pair.
        let (context, object) = unsafe { (shared((*qp).context), qp_object::object(qp)) };
        context.check_alive()?;
        // SAFETY: the caller's queue pair.
        let is_raw = unsafe { raw::is_raw(qp) };
        // SAFETY: the caller's queue pair, list and pointer.
        unsafe {
            if is_nested | is_raw {
                return if is_raw {
                    raw::post_recv(qp, is_nested, first, bad_wr)
                } else {
                    reentrant::post_recv(&object.qp, first, bad_wr)
                };
            }
            recv(&object.qp, first, bad_wr)
        }
    })
}
