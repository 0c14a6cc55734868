//! Lists of work requests: each is written as the engine takes it, and posted.

use std::sync::Arc;

use urxe_engine::{
    Access, Bind, Data, Io, Key, PostError, QpType, Recipient, RecvWr, Remote, SendFlags, SendOp, SendWr, SgeList,
    UdRecipient,
};
use urxe_ffi::verbs as v;
use urxe_net::Route;
use urxe_wire::{ImmDt, Qpn, RKey};

use super::ah;
use super::batch::SendRequest;
use super::buffers::{buffers, element, inline};
use crate::kernel::Errno;
use crate::verbs::context::Context;
use crate::verbs::diagnostics;
use urxe_diag::{self, Observer, RecvQueue, explain};
use urxe_runtime::device::Device;
use urxe_runtime::host::DeviceHost;
use urxe_runtime::qp::Qp;
use urxe_runtime::srq::Srq;

/// Posts a list of send requests.
///
/// # Safety
/// As for `ibv_post_send(3)`.
#[inline]
pub(super) unsafe fn send(
    context: &Context,
    qp: &Qp,
    max_inline: u32,
    first: *mut v::ibv_send_wr,
    bad_wr: *mut *mut v::ibv_send_wr,
) -> Result<(), Errno> {
    let strict = context.observer().filter(|observer| observer.is_strict());
    qp.device().with_work(|work| {
        qp.post_send(work, |engine, io| {
            let list = List { context, max_inline, first, bad_wr };
            // SAFETY: the caller's promise.
            let posted = unsafe {
                match strict {
                    None => list.post(engine, io),
                    Some(observer) => list.post_strictly(engine, io, observer),
                }
            };
            posted.map_err(|errno| explained(engine, errno))
        })
    })
}

/// The errno of a send request that was refused; a queue that never empties is a reason of its own.
#[cold]
fn explained(engine: &Engine, errno: Errno) -> Errno {
    match errno {
        // Looks at each request of the queue.
        Errno(libc::ENOMEM) if explain::is_wanted() && engine.is_stuck() => {
            diagnostics::stuck(errno, engine.config().cap.max_send_wr)
        }
        _ => errno,
    }
}

/// Arguments of `ibv_post_send(3)`.
struct List<'a> {
    context: &'a Context,
    max_inline: u32,
    first: *mut v::ibv_send_wr,
    bad_wr: *mut *mut v::ibv_send_wr,
}

/// Queue pair of a device.
type Engine = urxe_engine::QueuePair<DeviceHost>;

impl List<'_> {
    /// Writes each request into its place in the send queue.
    ///
    /// # Safety
    /// As for `ibv_post_send(3)`.
    #[inline]
    unsafe fn post(&self, engine: &mut Engine, io: &mut Io<'_, DeviceHost>) -> Result<(), Errno> {
        let qp_type = engine.config().qp_type;
        // A list for one peer needs no recipients: they would be moved with each request.
        if qp_type == QpType::Ud {
            // SAFETY: the caller's promise.
            return unsafe { self.post_datagrams(engine, io) };
        }
        let post = |wr: &_| {
            engine.post_send_with(io, |place| {
                // SAFETY: a request of the caller's list.
                unsafe { write_request(wr, qp_type, self.max_inline, place) }.map(|()| None)
            })
        };
        // SAFETY: a list of requests, ended by null, and the caller's pointer.
        unsafe { each(self.first, |wr| wr.next, self.bad_wr, post) }
    }

    /// Writes each request on UD into its place in the send queue.
    ///
    /// # Safety
    /// As for `ibv_post_send(3)`.
    unsafe fn post_datagrams(&self, engine: &mut Engine, io: &mut Io<'_, DeviceHost>) -> Result<(), Errno> {
        let post = |wr: &_| {
            // SAFETY: a request of the caller's list.
            engine.post_send_with(io, |place| unsafe { self.write(wr, QpType::Ud, place) })
        };
        // SAFETY: a list of requests, ended by null, and the caller's pointer.
        unsafe { each(self.first, |wr| wr.next, self.bad_wr, post) }
    }

    /// Posts each request, and shows it to strict mode before.
    ///
    /// # Safety
    /// As for `ibv_post_send(3)`.
    unsafe fn post_strictly(
        &self,
        engine: &mut Engine,
        io: &mut Io<'_, DeviceHost>,
        observer: &Observer,
    ) -> Result<(), Errno> {
        let qp_type = engine.config().qp_type;
        // SAFETY: a list of requests, ended by null.
        let count = unsafe { count(self.first, |wr| wr.next) };
        observer.posting_list(engine.config().qpn, "send", count, engine.config().cap.max_send_wr);
        let post = |wr: &_| {
            let mut request = SendWr::default();
            // SAFETY: a request of the caller's list.
            let to = unsafe { self.write(wr, qp_type, &mut request) }?;
            observer.posting_send(diagnostics::sender(engine), &request);
            let posted = engine.post_send(io, request, to).map_err(Errno::from);
            match posted {
                Ok(()) => observer.posted_send(engine.config().qpn, engine.is_stuck()),
                Err(_) => observer.refused_send(engine.config().qpn, 1),
            }
            posted
        };
        // SAFETY: as above, and the caller's pointer.
        unsafe { each(self.first, |wr| wr.next, self.bad_wr, post) }
    }

    /// Writes a request as the engine has it. Returns the recipient of one on UD.
    ///
    /// # Safety
    /// `wr` has the fields that its opcode and flags say.
    #[inline(always)]
    unsafe fn write(
        &self,
        wr: &v::ibv_send_wr,
        qp_type: QpType,
        place: &mut SendWr,
    ) -> Result<Option<UdRecipient<Arc<Route>>>, Errno> {
        // SAFETY: the caller's promise.
        unsafe { write_request(wr, qp_type, self.max_inline, place) }?;
        // SAFETY: requests on UD say where to.
        (qp_type == QpType::Ud).then(|| unsafe { recipient(self.context, wr) }).transpose()
    }
}

/// Posts a list of receive requests.
///
/// # Safety
/// As for `ibv_post_recv(3)`.
#[inline]
pub(super) unsafe fn recv(qp: &Qp, first: *mut v::ibv_recv_wr, bad_wr: *mut *mut v::ibv_recv_wr) -> Result<(), Errno> {
    let strict = urxe_diag::of(qp.device()).filter(|observer| observer.is_strict());
    let post = |engine: &mut urxe_engine::QueuePair<_>, io: &mut Io<'_, _>| {
        let next = |wr: &v::ibv_recv_wr| wr.next;
        if let Some(observer) = strict {
            // SAFETY: a list of requests, ended by null.
            let count = unsafe { count(first, next) };
            observer.posting_list(engine.config().qpn, "receive", count, engine.config().cap.max_recv_wr);
        }
        let post = |wr: &v::ibv_recv_wr| {
            if wr.num_sge == 1 && strict.is_none() {
                // Most are so, and are written once, as send requests are.
                // SAFETY: a request with one element.
                let buffers = SgeList::one(unsafe { element(wr.sg_list, 0) });
                return engine.post_recv(io, RecvWr { wr_id: wr.wr_id, buffers }).map_err(Errno::from);
            }
            // SAFETY: a request with that many elements.
            let buffers = unsafe { buffers(wr.sg_list, wr.num_sge) }?;
            let request = RecvWr { wr_id: wr.wr_id, buffers };
            if let Some(observer) = strict {
                let config = engine.config();
                observer.posting_recv(config.qpn, config.qp_type, engine.state(), &request);
            }
            let posted = engine.post_recv(io, request).map_err(Errno::from);
            if let (Err(_), Some(observer)) = (&posted, strict) {
                observer.refused_recv(RecvQueue::Own(engine.config().qpn));
            }
            posted
        };
        // SAFETY: a list of requests, ended by null, and the caller's pointer.
        unsafe { each(first, next, bad_wr, post) }
    };
    qp.device().with_work(|work| qp.post_recv(work, post))
}

/// Posts a list of receive requests to a queue that strict mode knows by `number`.
///
/// # Safety
/// As for `ibv_post_srq_recv(3)`.
pub(super) unsafe fn recv_shared(
    device: &Device,
    srq: &Srq,
    number: u64,
    first: *mut v::ibv_recv_wr,
    bad_wr: *mut *mut v::ibv_recv_wr,
) -> Result<(), Errno> {
    let place = RecvQueue::Shared(number);
    let strict = urxe_diag::of(device).filter(|observer| observer.is_strict());
    let next = |wr: &v::ibv_recv_wr| wr.next;
    if let Some(observer) = strict {
        // SAFETY: a list of requests, ended by null.
        let count = unsafe { count(first, next) };
        observer.posting_list(Qpn::default(), "shared receive", count, srq.with(|queue| queue.max_wr()));
    }
    let post = |wr: &v::ibv_recv_wr| {
        // SAFETY: a request with that many elements.
        let buffers = unsafe { buffers(wr.sg_list, wr.num_sge) }?;
        let request = RecvWr { wr_id: wr.wr_id, buffers };
        if let Some(observer) = strict {
            observer.posting_buffers(place, &request);
        }
        let posted = srq.with(|queue| queue.post(request)).map_err(Errno::from);
        if let (Err(_), Some(observer)) = (&posted, strict) {
            observer.refused_recv(place);
        }
        posted
    };
    // SAFETY: a list of requests, ended by null, and the caller's pointer.
    unsafe { each(first, next, bad_wr, post) }
}

/// Posts all of the requests or none.
pub(super) fn send_batch(qp: &Qp, requests: &mut Vec<SendRequest>) -> Result<(), Errno> {
    let device = qp.device();
    let strict = urxe_diag::of(device).filter(|observer| observer.is_strict());
    let post = |engine: &mut Engine, io: &mut Io<'_, _>| {
        let posted = match strict {
            None => engine.post_send_all(io, requests),
            Some(observer) => {
                let (sender, count) = (diagnostics::sender(engine), requests.len());
                observer.posting_list(sender.qpn, "send", count, engine.config().cap.max_send_wr);
                for (request, _) in &*requests {
                    observer.posting_send(sender, request);
                }
                let posted = engine.post_send_all(io, requests);
                if posted.is_err() {
                    observer.refused_send(sender.qpn, count);
                }
                observer.posted_send(sender.qpn, engine.is_stuck());
                posted
            }
        };
        posted.map_err(|error| explained(engine, error.into()))
    };
    device.with_work(|work| qp.post_send(work, post))
}

/// Lets `post` at each request of a list, whose `next` says what comes after one, until one is refused: `bad` is to say which.
///
/// # Safety
/// `first` is null, or begins a list that ends with null; `bad` can be written to.
#[inline]
pub(super) unsafe fn each<W>(
    first: *mut W,
    next: impl Fn(&W) -> *mut W,
    bad: *mut *mut W,
    mut post: impl FnMut(&W) -> Result<(), Errno>,
) -> Result<(), Errno> {
    let mut at = first;
    // SAFETY: the caller's promise.
    while let Some(wr) = unsafe { at.as_ref() } {
        // SAFETY: as above.
        post(wr).inspect_err(|_| unsafe { bad.write(at) })?;
        at = next(wr);
    }
    Ok(())
}

/// Length of a list of requests, whose `next` gives the one after a request.
///
/// # Safety
/// `first` is null, or begins a list that ends with null.
pub(super) unsafe fn count<W>(first: *mut W, next: impl Fn(&W) -> *mut W) -> usize {
    // SAFETY: the caller's promise.
    std::iter::successors(unsafe { first.as_ref() }, |wr| unsafe { next(wr).as_ref() }).count()
}

/// To whom a request on UD goes.
///
/// # Safety
/// `wr.wr.ud` is what the caller filled in.
unsafe fn recipient(context: &Context, wr: &v::ibv_send_wr) -> Result<UdRecipient<Arc<Route>>, Errno> {
    // SAFETY: the caller's promise.
    let ud = unsafe { wr.wr.ud };
    // SAFETY: null, or an address handle that is not destroyed.
    unsafe { ah::recipient(context, ud.ah, ud.remote_qpn, ud.remote_qkey) }
}

/// Converts the arguments of a memory-window bind.
///
/// # Safety
/// The window and the region are ours and live; the region may be null.
pub(super) unsafe fn bind(mw: *mut v::ibv_mw, rkey: u32, info: &v::ibv_mw_bind_info) -> Bind {
    Bind {
        // SAFETY: the caller's promise.
        window: Key(unsafe { (*mw).rkey }),
        new_key: Key(rkey),
        // SAFETY: as above.
        region: Key(if info.mr.is_null() { 0 } else { unsafe { (*info.mr).lkey } }),
        access: Access::from_bits(info.mw_access_flags),
        addr: info.addr,
        length: info.length,
    }
}

/// Writes a send request as the engine takes it. Inlined into the loop over a list: the call would cost half as much as
/// what it does.
///
/// # Safety
/// The members of its unions are those that its opcode and the queue pair's type say.
#[inline(always)]
unsafe fn write_request(
    wr: &v::ibv_send_wr,
    qp_type: QpType,
    max_inline: u32,
    place: &mut SendWr,
) -> Result<(), Errno> {
    let SendWr { wr_id, op, data, flags, to } = place;
    *wr_id = wr.wr_id;
    // SAFETY: plain numbers, whichever member was written last.
    let (rdma, atomic, imm) = unsafe { (&wr.wr.rdma, &wr.wr.atomic, wr.__bindgen_anon_1.imm_data) };
    let imm = ImmDt(imm.to_ne_bytes());
    let remote = || Remote { addr: rdma.remote_addr, r_key: RKey(rdma.rkey) };
    let atomic_remote = || Remote { addr: atomic.remote_addr, r_key: RKey(atomic.rkey) };
    *op = match wr.opcode {
        v::IBV_WR_SEND => SendOp::Send,
        v::IBV_WR_SEND_WITH_IMM => SendOp::SendWithImmediate(imm),
        v::IBV_WR_RDMA_WRITE => SendOp::Write(remote()),
        v::IBV_WR_RDMA_WRITE_WITH_IMM => SendOp::WriteWithImmediate(remote(), imm),
        v::IBV_WR_RDMA_READ => SendOp::Read(remote()),
        v::IBV_WR_ATOMIC_CMP_AND_SWP => {
            SendOp::CompareSwap { remote: atomic_remote(), compare: atomic.compare_add, swap: atomic.swap }
        }
        v::IBV_WR_ATOMIC_FETCH_AND_ADD => SendOp::FetchAdd { remote: atomic_remote(), add: atomic.compare_add },
        v::IBV_WR_ATOMIC_WRITE => SendOp::AtomicWrite(remote()),
        // SAFETY: a plain number, whichever member was written last.
        v::IBV_WR_SEND_WITH_INV => SendOp::SendWithInvalidate(RKey(unsafe { wr.__bindgen_anon_1.invalidate_rkey })),
        // SAFETY: as above.
        v::IBV_WR_LOCAL_INV => SendOp::LocalInvalidate(Key(unsafe { wr.__bindgen_anon_1.invalidate_rkey })),
        v::IBV_WR_BIND_MW => {
            // SAFETY: the member of this opcode.
            let asked = unsafe { wr.__bindgen_anon_2.bind_mw };
            // SAFETY: the caller's window and region.
            SendOp::BindWindow(unsafe { bind(asked.mw, asked.rkey, &asked.bind_info) })
        }
        _ => return Err(Errno::from(PostError::Operation)),
    };
    let flag = |flag| wr.send_flags & flag != 0;
    *flags = SendFlags {
        fence: flag(v::IBV_SEND_FENCE),
        signaled: flag(v::IBV_SEND_SIGNALED),
        solicited: flag(v::IBV_SEND_SOLICITED),
    };
    if wr.num_sge == 1 && !flag(v::IBV_SEND_INLINE) {
        // Most are so, and are written once: a list that was moved would be read in other pieces than it is written, for which a
        // processor waits until all that was stored before has left it.
        // SAFETY: a list of that length.
        *data = Data::Gather(SgeList::one(unsafe { element(wr.sg_list, 0) }));
    } else {
        // SAFETY: as above.
        let list = unsafe { buffers(wr.sg_list, wr.num_sge) }?;
        *data = if flag(v::IBV_SEND_INLINE) {
            if op.is_response_bearing() {
                return Err(Errno::from(PostError::Operation));
            }
            inline(&list, max_inline)?
        } else {
            Data::Gather(list)
        };
    }
    *to = match qp_type {
        // SAFETY: a plain number, whatever was written.
        QpType::XrcSend => Recipient::XrcSrq(Qpn::new(unsafe { wr.qp_type.xrc.remote_srqn })),
        QpType::Rc | QpType::Uc | QpType::Ud | QpType::XrcRecv => Recipient::Peer,
    };
    Ok(())
}
