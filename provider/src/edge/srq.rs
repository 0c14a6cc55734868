//! Shared receive queues.

use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::sync::Arc;

use urxe_explain::Verb;
use urxe_ffi::driver::objects::verbs_srq;
use urxe_ffi::verbs as v;

use super::context::shared;
use super::cq_home::CqHome;
use super::users::{Use, Users};
use super::work_requests::recv_shared;
use super::{cq, fast_verb, int_verb, mr, ptr_verb, reentrant, wait, xrcd};
use crate::kernel::Errno;
use crate::verbs::diagnostics;
use crate::verbs::objects::ProtectionDomain;
use crate::verbs::quota::Counted;
use urxe_diag::{self, RecvQueue, quirks};
use urxe_runtime::async_events::AsyncEvents;
use urxe_runtime::srq::{Srq, Xrc};
use urxe_runtime::{limits, sanitizer};

const EINVAL: Errno = Errno(libc::EINVAL);

/// `enum ib_srq_type` of the kernel, as `rdma resource show srq` reads it.
const BASIC: u64 = 0;
const XRC: u64 = 1;

/// An `ibv_srq` of ours.
#[repr(C)]
pub(super) struct SrqObject {
    /// libibverbs writes there (events counted) while others refer to the rest.
    verbs: UnsafeCell<verbs_srq>,
    pub(super) srq: Arc<Srq>,
    /// Queue pairs that receive from it.
    pub(super) users: Users,
    /// Keep domains and completion queue from being destroyed.
    domain: Arc<ProtectionDomain>,
    used: Use,
    _counted: Counted,
}

/// Returns the object behind an `ibv_srq`.
///
/// # Safety
/// `srq` came from [`create_srq`] or [`create_srq_ex`] and has not been destroyed.
pub(super) unsafe fn object<'a>(srq: *mut v::ibv_srq) -> &'a SrqObject {
    // SAFETY: an `ibv_srq` of ours is the start of an SrqObject.
    unsafe { &*srq.cast::<SrqObject>() }
}

pub(super) unsafe extern "C" fn create_srq(pd: *mut v::ibv_pd, attr: *mut v::ibv_srq_init_attr) -> *mut v::ibv_srq {
    ptr_verb(Verb::CreateSrq, || {
        // SAFETY: the caller's attributes.
        let attr = unsafe { &mut *attr };
        // SAFETY: the caller's domain.
        unsafe { create(pd, &mut attr.attr, attr.srq_context, None) }
    })
}

pub(super) unsafe extern "C" fn create_srq_ex(
    _context: *mut v::ibv_context,
    attr: *mut v::ibv_srq_init_attr_ex,
) -> *mut v::ibv_srq {
    ptr_verb(Verb::CreateSrqEx, || {
        // SAFETY: the caller's attributes.
        let attr = unsafe { &mut *attr };
        let given = |field| attr.comp_mask & field != 0;
        // As libibverbs' ibv_cmd_create_srq_ex.
        if attr.comp_mask >= v::IBV_SRQ_INIT_ATTR_RESERVED {
            return Err(Errno(libc::EOPNOTSUPP));
        }
        if !given(v::IBV_SRQ_INIT_ATTR_PD) || attr.pd.is_null() {
            return Err(EINVAL);
        }
        let srq_type = if given(v::IBV_SRQ_INIT_ATTR_TYPE) { attr.srq_type } else { v::IBV_SRQT_BASIC };
        let xrc = match srq_type {
            v::IBV_SRQT_BASIC => None,
            v::IBV_SRQT_XRC
                if given(v::IBV_SRQ_INIT_ATTR_XRCD)
                    && given(v::IBV_SRQ_INIT_ATTR_CQ)
                    && !attr.xrcd.is_null()
                    && !attr.cq.is_null() =>
            {
                Some((attr.xrcd, attr.cq))
            }
            v::IBV_SRQT_XRC => return Err(EINVAL),
            // Tag matching, and what may come.
            _ => return Err(Errno(libc::EOPNOTSUPP)),
        };
        // SAFETY: the caller's domains and completion queue.
        unsafe { create(attr.pd, &mut attr.attr, attr.srq_context, xrc) }
    })
}

/// # Safety
/// Objects of ours that live.
unsafe fn create(
    pd: *mut v::ibv_pd,
    attr: &mut v::ibv_srq_attr,
    srq_context: *mut std::ffi::c_void,
    xrc: Option<(*mut v::ibv_xrcd, *mut v::ibv_cq)>,
) -> Result<*mut v::ibv_srq, Errno> {
    // SAFETY: the caller's promise.
    let (context, domain) = unsafe { (shared((*pd).context), mr::domain(pd)) };
    context.check_alive()?;
    // No requests at all is refused, as by the kernel's rxe (`rxe_srq_chk_init`).
    if attr.max_wr == 0 {
        return Err(diagnostics::wrong(EINVAL, "attr.max_wr is 0", "ask for at least one work request"));
    }
    if attr.max_wr > limits::MAX_SRQ_WR {
        return Err(diagnostics::at_most(EINVAL, "attr.max_wr", attr.max_wr, limits::MAX_SRQ_WR));
    }
    if attr.max_sge > limits::MAX_SGE {
        return Err(diagnostics::at_most(EINVAL, "attr.max_sge", attr.max_sge, limits::MAX_SGE));
    }
    let counted = context.quotas().srq.take()?;
    attr.max_sge = attr.max_sge.max(1);
    let device = context.device();
    // SAFETY: as above.
    let xrc = xrc.map(|(xrcd, cq)| unsafe { (xrcd::object(xrcd), cq::object(cq), xrcd, cq) });
    let delivery = match xrc {
        Some((xrcd, cq, ..)) => {
            CqHome::choose_device(context, &[&cq.home]);
            let number = device.net().alloc_qpn().map_err(|error| diagnostics::no_qpn(&error))?;
            Some(Xrc { domain: xrcd.xrcd.id(), number, cq: Arc::clone(&cq.cq) })
        }
        None => None,
    };
    // SAFETY: all-zero is an SRQ with mutex and condition variable initialised.
    let mut verbs = unsafe { std::mem::zeroed::<verbs_srq>() };
    verbs.srq_type = v::IBV_SRQT_BASIC;
    // SAFETY: as above.
    verbs.srq.context = unsafe { (*pd).context };
    verbs.srq.srq_context = srq_context;
    verbs.srq.pd = pd;
    if let (Some(delivery), Some((.., xrcd, cq))) = (&delivery, xrc) {
        verbs.srq_type = v::IBV_SRQT_XRC;
        verbs.xrcd = xrcd.cast();
        verbs.cq = cq;
        verbs.srq_num = delivery.number.get();
        verbs.srq.handle = verbs.srq_num;
    }
    let used: Vec<&Users> = xrc.iter().flat_map(|(xrcd, cq, ..)| [&xrcd.users, &cq.users]).collect();
    let (mut number, kind) = (0, if delivery.is_some() { XRC } else { BASIC });
    let counted = counted.tracked(|srqn| {
        // An XRC SRQ has a number that peers know.
        number = delivery.as_ref().map_or(srqn, |xrc| xrc.number.get());
        let (number, pdn) = (number.into(), domain.id().0.into());
        move || Some(vec![("srqn", number), ("type", kind), ("pdn", pdn)])
    });
    // The address is known before what is there: events name it.
    let place = Box::<SrqObject>::new_uninit();
    let events = AsyncEvents::new(context.async_sink(), place.as_ptr() as u64);
    let queue = quirks::shared_receive_queue(attr.max_wr, attr.max_sge);
    let srq = Arc::new(Srq::new(queue, domain.id(), number, delivery, events));
    if let Err(error) = device.add_srq(&srq) {
        if let Some(xrc) = srq.xrc() {
            device.net().free_qpn(xrc.number);
        }
        return Err(Errno(error.raw_os_error().unwrap_or(libc::ENOMEM)));
    }
    let object = SrqObject {
        verbs: UnsafeCell::new(verbs),
        srq,
        users: Users::default(),
        domain: Arc::clone(domain),
        // SAFETY: `close_xrcd` and `destroy_cq` refuse as long as this lives.
        used: unsafe { Use::of(&used) },
        _counted: counted,
    };
    Ok(Box::into_raw(Box::write(place, object)).cast())
}

pub(super) unsafe extern "C" fn modify_srq(
    srq: *mut v::ibv_srq,
    attr: *mut v::ibv_srq_attr,
    attr_mask: c_int,
) -> c_int {
    int_verb(Verb::ModifySrq, || {
        // SAFETY: the caller's queue and attributes.
        let (context, object, attr) = unsafe { (shared((*srq).context), object(srq), &*attr) };
        context.check_alive()?;
        let mask = attr_mask.cast_unsigned();
        let given = |bit, value| (mask & bit != 0).then_some(value);
        let max_wr = given(v::IBV_SRQ_MAX_WR, attr.max_wr);
        let limit = given(v::IBV_SRQ_LIMIT, attr.srq_limit);
        if mask & !(v::IBV_SRQ_MAX_WR | v::IBV_SRQ_LIMIT) != 0
            || max_wr.is_some_and(|max_wr| !(1..=limits::MAX_SRQ_WR).contains(&max_wr))
        {
            return Err(EINVAL);
        }
        object.srq.with(|queue| queue.modify(max_wr, limit)).map_err(|_| EINVAL)
    })
}

pub(super) unsafe extern "C" fn query_srq(srq: *mut v::ibv_srq, attr: *mut v::ibv_srq_attr) -> c_int {
    int_verb(Verb::QuerySrq, || {
        // SAFETY: the caller's queue.
        let (context, object) = unsafe { (shared((*srq).context), object(srq)) };
        context.check_alive()?;
        let answer = object.srq.with(|queue| v::ibv_srq_attr {
            max_wr: queue.max_wr(),
            max_sge: queue.max_sge(),
            srq_limit: queue.limit(),
        });
        // SAFETY: the caller's structure.
        unsafe { attr.write(answer) };
        sanitizer::written(attr as u64, size_of::<v::ibv_srq_attr>());
        Ok(())
    })
}

/// Only an XRC SRQ has a number (`ibv_get_srq_num(3)`).
pub(super) unsafe extern "C" fn get_srq_num(srq: *mut v::ibv_srq, srq_num: *mut u32) -> c_int {
    int_verb(Verb::GetSrqNum, || {
        // SAFETY: the caller's queue.
        let (context, object) = unsafe { (shared((*srq).context), object(srq)) };
        context.check_alive()?;
        let xrc = object.srq.xrc().ok_or(EINVAL)?;
        // SAFETY: the caller's number.
        unsafe { srq_num.write(xrc.number.get()) };
        Ok(())
    })
}

pub(super) unsafe extern "C" fn destroy_srq(srq: *mut v::ibv_srq) -> c_int {
    int_verb(Verb::DestroySrq, || {
        // SAFETY: the caller's queue.
        let (context, object) = unsafe { (shared((*srq).context), object(srq)) };
        context.check_own()?;
        if object.users.any() {
            return Err(Errno(libc::EBUSY));
        }
        let device = context.device();
        device.remove_srq(&object.srq);
        if let Some(observer) = context.observer() {
            observer.forget_recvs(RecvQueue::Shared(srq as u64));
        }
        let events = object.srq.retire();
        // SAFETY: the queue's own, which libibverbs initialised, or which were so by being zero; not used any more
        // afterwards.
        let object = unsafe {
            let (mutex, cond) = ((&raw mut (*srq).mutex).cast(), (&raw mut (*srq).cond).cast());
            let complain = |missing| context.complain(Verb::DestroySrq, "ibv_ack_async_event", missing);
            wait::acknowledged(mutex, cond, &raw const (*srq).events_completed, events, complain);
            Box::from_raw(srq.cast::<SrqObject>())
        };
        drop(object.used);
        drop(object.domain);
        Ok(())
    })
}

pub(super) unsafe extern "C" fn post_srq_recv(
    srq: *mut v::ibv_srq,
    first: *mut v::ibv_recv_wr,
    bad_wr: *mut *mut v::ibv_recv_wr,
) -> c_int {
    sanitizer::posting();
    fast_verb(Verb::PostSrqRecv, |is_nested| {
        // SAFETY: the caller's queue.
        let (context, object) = unsafe { (shared((*srq).context), object(srq)) };
        context.check_alive()?;
        let (device, number) = (context.device(), srq as u64);
        // SAFETY: the caller's list and pointer.
        unsafe {
            if is_nested {
                reentrant::post_srq_recv(device, &object.srq, number, first, bad_wr)
            } else {
                recv_shared(device, &object.srq, number, first, bad_wr)
            }
        }
    })
}
