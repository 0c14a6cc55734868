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
        let (context, is_raw) = unsafe { (shared((*qp).context), raw::is_raw(qp)) };
        context.check_alive()?;
        // One branch for both: neither is of the data path of RoCE.
        if is_nested | is_raw {
            // SAFETY: the caller's queue pair, list and pointer.
            return unsafe {
                if is_raw {
                    raw::post_send(qp, is_nested, first, bad_wr)
                } else {
                    reentrant::post_send(qp, qp_object::object(qp), first, bad_wr)
                }
            };
        }
        // SAFETY: as above, and not raw.
        unsafe {
            let object = qp_object::object(qp);
            send(context, &object.qp, object.max_inline, first, bad_wr)
        }
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
        let (context, is_raw) = unsafe { (shared((*qp).context), raw::is_raw(qp)) };
        context.check_alive()?;
        // SAFETY: the caller's queue pair, list and pointer; a queue pair of RoCE where it is not raw.
        unsafe {
            if is_nested | is_raw {
                return if is_raw {
                    raw::post_recv(qp, is_nested, first, bad_wr)
                } else {
                    reentrant::post_recv(&qp_object::object(qp).qp, first, bad_wr)
                };
            }
            recv(&qp_object::object(qp).qp, first, bad_wr)
        }
    })
}
