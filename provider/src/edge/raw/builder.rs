//! Posting frames by `ibv_wr_*` (`ibv_wr_post(3)`): a builder for each operation. The rest is in [`batch`].

use std::ffi::{c_int, c_void};

use urxe_engine::{Data, SgeList};
use urxe_ffi::driver::QpLayout;
use urxe_ffi::driver::objects::verbs_qp;
use urxe_ffi::verbs as v;

use super::object::RawQpObject;
use super::post;
use super::requests::{Request, Segmentation};
use crate::edge::batch;
use crate::kernel::Errno;

/// Operations of `enum ibv_qp_create_send_ops_flags` that raw packet queue pairs have.
pub(super) const OPERATIONS: u64 = (v::IBV_QP_EX_WITH_SEND | v::IBV_QP_EX_WITH_TSO) as u64;

/// Fills in the builders that `operations` asks for.
pub(super) fn install(verbs: &mut verbs_qp, layout: QpLayout, operations: u64) {
    let qp = &mut verbs.qp_ex;
    if operations & u64::from(v::IBV_QP_EX_WITH_SEND) != 0 {
        qp.wr_send = Some(wr_send);
    }
    if operations & u64::from(v::IBV_QP_EX_WITH_TSO) != 0 {
        qp.wr_send_tso = Some(wr_send_tso);
    }
    batch::install::<RawQpObject>(qp);
    qp.wr_complete = Some(wr_complete);
    verbs.mark_ex(layout);
}

unsafe extern "C" fn wr_complete(qp: *mut v::ibv_qp_ex) -> c_int {
    let post = |object: &RawQpObject, requests: &mut Vec<Request>, is_nested| {
        if is_nested {
            return Err(Errno(libc::ENOMEM));
        }
        let requests = requests.iter().map(Request::as_send);
        let qp = object.own()?;
        qp.device().with_work(|work| {
            qp.post_send(work, |stage| {
                stage.check(requests.clone())?;
                requests.into_iter().try_for_each(|request| stage.push(&request))
            })
        })?;
        Ok(())
    };
    // SAFETY: the caller's queue pair, between `wr_start` and this.
    unsafe { batch::complete(qp, post) }
}

unsafe extern "C" fn wr_send(qp: *mut v::ibv_qp_ex) {
    // SAFETY: the caller's queue pair.
    unsafe { begin(qp, Ok(None)) };
}

unsafe extern "C" fn wr_send_tso(qp: *mut v::ibv_qp_ex, hdr: *mut c_void, hdr_sz: u16, mss: u16) {
    let header = post::header(hdr as u64, hdr_sz);
    // SAFETY: the caller's queue pair.
    unsafe { begin(qp, header.map(|header| Some((header, mss)))) };
}

/// Begins a request: `wr_id` and `wr_flags` are those of the queue pair now.
///
/// # Safety
/// As for [`batch::build`].
unsafe fn begin(qp: *mut v::ibv_qp_ex, tso: Result<Option<Segmentation>, Errno>) {
    // SAFETY: the caller's queue pair.
    let (wr_id, wr_flags) = unsafe { ((*qp).wr_id, (*qp).wr_flags) };
    let data = Data::Gather(SgeList::new(&[]));
    let act = |batch: &mut batch::Batch<Request>| match tso {
        Ok(tso) => batch.requests.push(Request { wr_id, wr_flags, data, tso }),
        Err(errno) => batch.fail(errno),
    };
    // SAFETY: as above.
    unsafe { batch::build::<RawQpObject>(qp, act) };
}
