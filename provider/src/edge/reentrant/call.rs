//! Calls that were put aside, and what they do later.

use std::ptr;
use std::sync::Arc;

use urxe_diag::explain;
use urxe_explain::Verb;
use urxe_ffi::verbs as v;
use urxe_runtime::cq::Cq;
use urxe_runtime::device::Device;
use urxe_runtime::qp::Qp;
use urxe_runtime::srq::Srq;

use super::copies;
use crate::edge::batch::SendRequest;
use crate::edge::{context, work_requests};
use crate::kernel::Errno;

/// The queue has no room for more requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Full;

/// A call that was put aside.
pub(super) enum Call {
    /// `ibv_post_send`.
    Send { context: *mut v::ibv_context, qp: Arc<Qp>, max_inline: u32, list: SendList },
    /// `ibv_wr_complete`.
    SendBatch { qp: Arc<Qp>, requests: Vec<SendRequest> },
    /// `ibv_post_recv`.
    Recv { qp: Arc<Qp>, first: *mut v::ibv_recv_wr },
    /// `ibv_post_srq_recv`; `number` is the address by which strict mode knows the queue.
    SharedRecv { device: Arc<Device>, srq: Arc<Srq>, number: u64, first: *mut v::ibv_recv_wr },
    /// `ibv_req_notify_cq`.
    Arm { device: Arc<Device>, cq: Arc<Cq>, solicited_only: bool },
    #[cfg(test)]
    Panic,
}

/// Copies of send requests, with what they name.
pub(super) struct SendList {
    pub(super) first: *mut v::ibv_send_wr,
    /// The first that is not posted yet.
    pub(super) rest: *mut v::ibv_send_wr,
    pub(super) is_datagram: bool,
}

impl Drop for SendList {
    fn drop(&mut self) {
        // SAFETY: made by `copies::copy`, in the memory of the call that this belongs to.
        unsafe { copies::free(self.first, self.is_datagram) };
    }
}

impl Call {
    /// Tells queues apart.
    pub(super) fn queue(&self) -> *const () {
        match self {
            Self::Send { qp, .. } | Self::SendBatch { qp, .. } => Arc::as_ptr(qp).cast(),
            // A receive queue, told apart from the send queue beside it.
            Self::Recv { qp, .. } => Arc::as_ptr(qp).cast::<u8>().wrapping_add(1).cast(),
            Self::SharedRecv { srq, .. } => Arc::as_ptr(srq).cast(),
            Self::Arm { cq, .. } => Arc::as_ptr(cq).cast(),
            #[cfg(test)]
            Self::Panic => ptr::null(),
        }
    }

    /// Carries out the call of the handler. Requests that are posted are taken out.
    ///
    /// # Safety
    /// The lists of requests are copies in the call's own memory, as is what they name.
    pub(super) unsafe fn run(&mut self) -> Result<(), Full> {
        let (verb, posted) = match self {
            Self::Send { qp, .. } | Self::SendBatch { qp, .. } | Self::Recv { qp, .. } if qp.is_retired() => {
                return Ok(());
            }
            Self::Send { context, qp, max_inline, list } => {
                let mut bad = ptr::null_mut();
                // SAFETY: the caller's promise; the context of a queue pair lives as long as that.
                let posted =
                    unsafe { work_requests::send(context::shared(*context), qp, *max_inline, list.rest, &raw mut bad) };
                if posted.is_err() {
                    list.rest = bad;
                }
                (Verb::PostSend, posted)
            }
            Self::SendBatch { qp, requests } => (Verb::WrComplete, work_requests::send_batch(qp, requests)),
            Self::Recv { qp, first } => {
                let mut bad = ptr::null_mut();
                // SAFETY: the caller's promise.
                let posted = unsafe { work_requests::recv(qp, *first, &raw mut bad) };
                if posted.is_err() {
                    *first = bad;
                }
                (Verb::PostRecv, posted)
            }
            Self::SharedRecv { device, srq, number, first } => {
                let mut bad = ptr::null_mut();
                // SAFETY: the caller's promise.
                let posted = unsafe { work_requests::recv_shared(device, srq, *number, *first, &raw mut bad) };
                if posted.is_err() {
                    *first = bad;
                }
                (Verb::PostSrqRecv, posted)
            }
            Self::Arm { device, cq, solicited_only } => {
                cq.arm_late(*solicited_only);
                device.stopped_polling();
                return Ok(());
            }
            #[cfg(test)]
            Self::Panic => panic!("on purpose"),
        };
        match posted {
            Ok(()) => Ok(()),
            Err(Errno(libc::ENOMEM)) => Err(Full),
            Err(errno) => {
                explain::failed(verb, errno.0);
                Ok(())
            }
        }
    }
}
