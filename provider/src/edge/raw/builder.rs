//! Posting frames by `ibv_wr_*` (`ibv_wr_post(3)`): what is wrong with a request is said by `wr_complete`, which then posts
//! none of them.

use std::ffi::{c_int, c_void};

use urxe_engine::{Data, PostError, Sge, SgeList};
use urxe_explain::Verb;
use urxe_ffi::driver::QpLayout;
use urxe_ffi::driver::objects::verbs_qp;
use urxe_ffi::verbs as v;

use super::object::object;
use super::post;
use super::requests::{Batch, Request};
use crate::edge::buffers::{buffers, copy};
use crate::edge::context::shared;
use crate::edge::{fast_verb, guarded};
use crate::kernel::Errno;
use urxe_runtime::sanitizer;

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
    qp.wr_start = Some(wr_start);
    qp.wr_complete = Some(wr_complete);
    qp.wr_abort = Some(wr_abort);
    qp.wr_set_sge = Some(wr_set_sge);
    qp.wr_set_sge_list = Some(wr_set_sge_list);
    qp.wr_set_inline_data = Some(wr_set_inline_data);
    qp.wr_set_inline_data_list = Some(wr_set_inline_data_list);
    verbs.mark_ex(layout);
}

/// Lets `act` at the requests being built.
///
/// # Safety
/// `qp` is for frames and was made by `ibv_create_qp_ex`; `wr_start` was called.
unsafe fn build(qp: *mut v::ibv_qp_ex, act: impl FnOnce(&mut Batch)) {
    let _ = guarded(|| {
        // SAFETY: between `wr_start` and `wr_complete` the gate keeps other threads out.
        act(unsafe { &mut *object(qp.cast()).builder.batch.get() });
        Ok(())
    });
}

unsafe extern "C" fn wr_start(qp: *mut v::ibv_qp_ex) {
    let _ = guarded(|| {
        // SAFETY: the caller's queue pair.
        let object = unsafe { object(qp.cast()) };
        object.builder.gate.enter();
        // SAFETY: through the gate.
        let batch = unsafe { &mut *object.builder.batch.get() };
        batch.requests.clear();
        batch.error = None;
        Ok(())
    });
}

unsafe extern "C" fn wr_complete(qp: *mut v::ibv_qp_ex) -> c_int {
    // SAFETY: the caller's queue pair, between `wr_start` and this.
    let object = unsafe { object(qp.cast()) };
    sanitizer::posting();
    let result = fast_verb(Verb::WrComplete, |is_nested| {
        // SAFETY: the caller's queue pair.
        unsafe { shared((*qp).qp_base.context) }.check_alive()?;
        // SAFETY: through the gate.
        let batch = unsafe { &mut *object.builder.batch.get() };
        if let Some(errno) = batch.error {
            return Err(errno);
        }
        if is_nested {
            return Err(Errno(libc::ENOMEM));
        }
        let requests = batch.requests.iter().map(Request::as_send);
        let qp = object.own()?;
        qp.device().with_work(|work| {
            qp.post_send(work, |stage| {
                stage.check(requests.clone())?;
                requests.into_iter().try_for_each(|request| stage.push(&request))
            })
        })?;
        Ok(())
    });
    object.builder.gate.leave();
    result
}

unsafe extern "C" fn wr_abort(qp: *mut v::ibv_qp_ex) {
    let _ = guarded(|| {
        // SAFETY: the caller's queue pair, between `wr_start` and this.
        unsafe { object(qp.cast()) }.builder.gate.leave();
        Ok(())
    });
}

unsafe extern "C" fn wr_send(qp: *mut v::ibv_qp_ex) {
    // SAFETY: the caller's queue pair.
    unsafe { begin(qp, None) };
}

unsafe extern "C" fn wr_send_tso(qp: *mut v::ibv_qp_ex, hdr: *mut c_void, hdr_sz: u16, mss: u16) {
    // SAFETY: the caller's header has that many bytes.
    let header = unsafe { post::header(hdr, hdr_sz) };
    // SAFETY: the caller's queue pair.
    unsafe { begin(qp, Some((header, mss))) };
}

/// Begins a request: `wr_id` and `wr_flags` are those of the queue pair now.
///
/// # Safety
/// As for [`build`].
unsafe fn begin(qp: *mut v::ibv_qp_ex, tso: Option<(Box<[u8]>, u16)>) {
    // SAFETY: the caller's queue pair.
    let (wr_id, wr_flags) = unsafe { ((*qp).wr_id, (*qp).wr_flags) };
    let data = Data::Gather(SgeList::new(&[]));
    // SAFETY: as above.
    unsafe { build(qp, |batch| batch.requests.push(Request { wr_id, wr_flags, data, tso })) };
}

unsafe extern "C" fn wr_set_sge(qp: *mut v::ibv_qp_ex, lkey: u32, addr: u64, length: u32) {
    let sge = Sge { addr, length, l_key: lkey };
    // SAFETY: the caller's queue pair.
    unsafe { build(qp, |batch| batch.set_data(Ok(Data::Gather(SgeList::new(&[sge]))))) };
}

unsafe extern "C" fn wr_set_sge_list(qp: *mut v::ibv_qp_ex, num_sge: usize, sg_list: *const v::ibv_sge) {
    let count = c_int::try_from(num_sge).unwrap_or(c_int::MAX);
    // SAFETY: the caller's list has that many elements.
    let list = unsafe { buffers(sg_list, count) };
    // SAFETY: the caller's queue pair.
    unsafe { build(qp, |batch| batch.set_data(list.map(Data::Gather))) };
}

unsafe extern "C" fn wr_set_inline_data(qp: *mut v::ibv_qp_ex, addr: *mut c_void, length: usize) {
    // SAFETY: the caller's queue pair.
    unsafe { set_inline(qp, &[(addr as u64, length)]) };
}

unsafe extern "C" fn wr_set_inline_data_list(qp: *mut v::ibv_qp_ex, num_buf: usize, buf_list: *const v::ibv_data_buf) {
    let part = |index: usize| {
        // SAFETY: the caller's list has that many elements.
        let part = unsafe { buf_list.add(index).read() };
        (part.addr as u64, part.length)
    };
    let parts: Vec<_> = (0..num_buf).map(part).collect();
    // SAFETY: the caller's queue pair.
    unsafe { set_inline(qp, &parts) };
}

/// # Safety
/// As for [`build`].
unsafe fn set_inline(qp: *mut v::ibv_qp_ex, parts: &[(u64, usize)]) {
    // SAFETY: the caller's queue pair.
    let most = unsafe { object(qp.cast()) }.max_inline;
    let length = parts.iter().fold(0, |sum: u64, &(_, length)| sum.saturating_add(length as u64));
    let data = if length > u64::from(most) {
        Err(Errno::from(PostError::InlineTooLong))
    } else {
        copy(parts.iter().copied()).map(Data::Inline)
    };
    // SAFETY: as above.
    unsafe { build(qp, |batch| batch.set_data(data)) };
}
