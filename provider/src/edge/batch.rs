//! Requests of a queue pair between `wr_start` and `wr_complete`, and the calls of `ibv_wr_*` that are the same for every kind
//! of queue pair (`ibv_wr_post(3)`): around the batch, and for the data of a request.
//!
//! A mistake is kept until `wr_complete`, which then posts none of the requests.

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_void};
use std::sync::Arc;

use urxe_engine::{Data, PostError, SendWr, Sge, SgeList, UdRecipient};
use urxe_explain::Verb;
use urxe_ffi::verbs as v;
use urxe_net::Route;
use urxe_runtime::sanitizer;

use super::buffers::{buffers, copy};
use super::context::shared;
use super::poll_session_lock::PollSessionLock;
use super::{fast_verb, guarded};
use crate::kernel::Errno;

/// A request of RoCE, and on UD its recipient.
pub(super) type SendRequest = (SendWr, Option<UdRecipient<Arc<Route>>>);

/// Requests between `wr_start` and `wr_complete`.
#[derive(Debug)]
pub(super) struct Builder<R> {
    /// Held from `wr_start` to `wr_complete` or `wr_abort`.
    session_lock: PollSessionLock,
    batch: UnsafeCell<Batch<R>>,
}

impl<R> Default for Builder<R> {
    fn default() -> Self {
        let batch = UnsafeCell::new(Batch { requests: Vec::new(), error: None, max_inline: 0 });
        Self { session_lock: PollSessionLock::default(), batch }
    }
}

/// Requests being built, and what is wrong with them.
#[derive(Debug)]
pub(super) struct Batch<R> {
    pub(super) requests: Vec<R>,
    /// The first thing that was wrong.
    error: Option<Errno>,
    max_inline: u32,
}

/// A request being built.
pub(super) trait Request {
    fn set_data(&mut self, data: Data);

    /// Whether its data may be the application's bytes, copied.
    fn takes_inline(&self) -> bool;
}

impl Request for SendRequest {
    fn set_data(&mut self, data: Data) {
        self.0.data = data;
    }

    fn takes_inline(&self) -> bool {
        !self.0.op.is_response_bearing()
    }
}

/// An object behind an `ibv_qp_ex`.
///
/// # Safety
/// The object starts with a `verbs_qp`.
pub(super) unsafe trait Building {
    type Request: Request;

    fn builder(&self) -> &Builder<Self::Request>;
    fn max_inline(&self) -> u32;
}

impl<R: Request> Batch<R> {
    /// Changes the request that was begun last.
    pub(super) fn set(&mut self, change: impl FnOnce(&mut R)) {
        match self.requests.last_mut() {
            Some(request) => change(request),
            None => self.fail(Errno(libc::EINVAL)),
        }
    }

    pub(super) fn set_data(&mut self, data: Result<Data, Errno>) {
        match data {
            Ok(data) => self.set(|request| request.set_data(data)),
            Err(errno) => self.fail(errno),
        }
    }

    pub(super) fn fail(&mut self, errno: Errno) {
        self.error.get_or_insert(errno);
    }

    fn set_inline(&mut self, parts: &[(u64, usize)]) {
        // Together they may be longer than a number says.
        let length = parts.iter().fold(0, |sum: u64, &(_, length)| sum.saturating_add(length as u64));
        let takes = self.requests.last().is_none_or(R::takes_inline);
        let data = if !takes {
            Err(Errno::from(PostError::Operation))
        } else if length > u64::from(self.max_inline) {
            Err(Errno::from(PostError::InlineTooLong))
        } else {
            copy(parts.iter().copied()).map(Data::Inline)
        };
        self.set_data(data);
    }
}

/// Fills in all but the builders of requests and `wr_complete`.
pub(super) fn install<O: Building>(qp: &mut v::ibv_qp_ex) {
    qp.wr_start = Some(wr_start::<O>);
    qp.wr_abort = Some(wr_abort::<O>);
    qp.wr_set_sge = Some(wr_set_sge::<O>);
    qp.wr_set_sge_list = Some(wr_set_sge_list::<O>);
    qp.wr_set_inline_data = Some(wr_set_inline_data::<O>);
    qp.wr_set_inline_data_list = Some(wr_set_inline_data_list::<O>);
}

/// Returns the object behind a queue pair.
///
/// # Safety
/// `qp` is the start of an `O` that lives.
unsafe fn object<'a, O: Building>(qp: *mut v::ibv_qp_ex) -> &'a O {
    // SAFETY: the caller's promise.
    unsafe { &*qp.cast::<O>() }
}

/// Lets `act` at the requests being built.
///
/// # Safety
/// `qp` is the start of an `O` and was made by `ibv_create_qp_ex`; `wr_start` was called.
pub(super) unsafe fn build<O: Building>(qp: *mut v::ibv_qp_ex, act: impl FnOnce(&mut Batch<O::Request>)) {
    let _ = guarded(|| {
        // SAFETY: between `wr_start` and `wr_complete` the session lock keeps other threads out.
        act(unsafe { &mut *object::<O>(qp).builder().batch.get() });
        Ok(())
    });
}

/// Ends the batch: has `post` post its requests, unless one of them is wrong. `post` is told whether the thread is inside
/// another call.
///
/// # Safety
/// As for [`build`].
pub(super) unsafe fn complete<O: Building>(
    qp: *mut v::ibv_qp_ex,
    post: impl FnOnce(&O, &mut Vec<O::Request>, bool) -> Result<(), Errno>,
) -> c_int {
    // SAFETY: the caller's promise.
    let object = unsafe { object::<O>(qp) };
    sanitizer::posting();
    let result = fast_verb(Verb::WrComplete, |is_nested| {
        // SAFETY: the caller's queue pair.
        unsafe { shared((*qp).qp_base.context) }.check_alive()?;
        // SAFETY: the session lock is held.
        let batch = unsafe { &mut *object.builder().batch.get() };
        match batch.error {
            Some(errno) => Err(errno),
            None => post(object, &mut batch.requests, is_nested),
        }
    });
    object.builder().session_lock.leave();
    result
}

unsafe extern "C" fn wr_start<O: Building>(qp: *mut v::ibv_qp_ex) {
    let _ = guarded(|| {
        // SAFETY: the caller's queue pair.
        let object = unsafe { object::<O>(qp) };
        object.builder().session_lock.enter();
        // SAFETY: the session lock is held.
        let batch = unsafe { &mut *object.builder().batch.get() };
        batch.requests.clear();
        batch.error = None;
        batch.max_inline = object.max_inline();
        Ok(())
    });
}

unsafe extern "C" fn wr_abort<O: Building>(qp: *mut v::ibv_qp_ex) {
    let _ = guarded(|| {
        // SAFETY: the caller's queue pair, between `wr_start` and this.
        unsafe { object::<O>(qp) }.builder().session_lock.leave();
        Ok(())
    });
}

unsafe extern "C" fn wr_set_sge<O: Building>(qp: *mut v::ibv_qp_ex, lkey: u32, addr: u64, length: u32) {
    let sge = Sge { addr, length, l_key: lkey };
    // SAFETY: the caller's queue pair.
    unsafe { build::<O>(qp, |batch| batch.set_data(Ok(Data::Gather(SgeList::new(&[sge]))))) };
}

unsafe extern "C" fn wr_set_sge_list<O: Building>(qp: *mut v::ibv_qp_ex, num_sge: usize, sg_list: *const v::ibv_sge) {
    let count = c_int::try_from(num_sge).unwrap_or(c_int::MAX);
    // SAFETY: the caller's list has that many elements.
    let list = unsafe { buffers(sg_list, count) };
    // SAFETY: the caller's queue pair.
    unsafe { build::<O>(qp, |batch| batch.set_data(list.map(Data::Gather))) };
}

unsafe extern "C" fn wr_set_inline_data<O: Building>(qp: *mut v::ibv_qp_ex, addr: *mut c_void, length: usize) {
    // SAFETY: the caller's queue pair.
    unsafe { build::<O>(qp, |batch| batch.set_inline(&[(addr as u64, length)])) };
}

unsafe extern "C" fn wr_set_inline_data_list<O: Building>(
    qp: *mut v::ibv_qp_ex,
    num_buf: usize,
    buf_list: *const v::ibv_data_buf,
) {
    let part = |index: usize| {
        // SAFETY: `index` is below `num_buf`, and the caller's list has that many elements (ibv_wr_post(3)).
        let part = unsafe { buf_list.add(index).read() };
        (part.addr as u64, part.length)
    };
    // In there: a list of which there cannot be so much is a panic, which must not unwind into C.
    let set = |batch: &mut Batch<O::Request>| batch.set_inline(&(0..num_buf).map(part).collect::<Vec<_>>());
    // SAFETY: the caller's queue pair, between `wr_start` and `wr_complete`.
    unsafe { build::<O>(qp, set) };
}
