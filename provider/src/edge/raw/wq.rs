//! Work queues of received frames (`ibv_create_wq(3)`).

use std::ffi::c_int;
use std::sync::Arc;

use urxe_explain::Verb;
use urxe_ffi::verbs as v;
use urxe_wire::Qpn;

use super::post;
use crate::edge::context::shared;
use crate::edge::cq_home::CqHome;
use crate::edge::users::{Use, Users};
use crate::edge::{cq, fast_verb, int_verb, mr, ptr_verb};
use crate::kernel::Errno;
use crate::verbs::diagnostics;
use crate::verbs::objects::{ProtectionDomain, queue_sizes};
use crate::verbs::quota::Counted;
use urxe_runtime::raw::{RecvQueue, RecvState};
use urxe_runtime::sanitizer;

const EINVAL: Errno = Errno(libc::EINVAL);
const EOPNOTSUPP: Errno = Errno(libc::EOPNOTSUPP);

/// Flags of work queues (`enum ibv_wq_flags`) that there are. A delayed drop would let one queue hold up the ring of all.
const FLAGS: u32 = v::IBV_WQ_FLAGS_CVLAN_STRIPPING;

/// An `ibv_wq` of ours.
#[repr(C)]
pub(super) struct WqObject {
    ibv: v::ibv_wq,
    pub(super) queue: Arc<RecvQueue>,
    /// Tables with the queue in them.
    pub(super) users: Users,
    domain: Arc<ProtectionDomain>,
    used: Use,
    _counted: Counted,
}

/// Returns the object behind an `ibv_wq`.
///
/// # Safety
/// `wq` came from [`create_wq`] and has not been destroyed.
pub(super) unsafe fn object<'a>(wq: *mut v::ibv_wq) -> &'a WqObject {
    // SAFETY: an `ibv_wq` of ours is the start of a WqObject.
    unsafe { &*wq.cast::<WqObject>() }
}

pub(in crate::edge) unsafe extern "C" fn create_wq(
    ibv_context: *mut v::ibv_context,
    attr: *mut v::ibv_wq_init_attr,
) -> *mut v::ibv_wq {
    ptr_verb(Verb::CreateWq, || {
        // SAFETY: the caller's context and attributes.
        let (context, attr) = unsafe { (shared(ibv_context), &mut *attr) };
        context.check_alive()?;
        if attr.wq_type != v::IBV_WQT_RQ || attr.pd.is_null() || attr.cq.is_null() {
            return Err(diagnostics::wrong(
                EINVAL,
                "wq_type is not IBV_WQT_RQ, or pd or cq is missing",
                "set all three",
            ));
        }
        let flags = if attr.comp_mask & v::IBV_WQ_INIT_ATTR_FLAGS != 0 { attr.create_flags } else { 0 };
        if attr.comp_mask & !v::IBV_WQ_INIT_ATTR_FLAGS != 0 || flags & !FLAGS != 0 {
            return Err(diagnostics::wrong(
                EOPNOTSUPP,
                "comp_mask or create_flags ask for what work queues do not have",
                "set no create_flags but IBV_WQ_FLAGS_CVLAN_STRIPPING",
            ));
        }
        let cap = v::ibv_qp_cap {
            max_send_wr: 0,
            max_recv_wr: attr.max_wr,
            max_send_sge: 0,
            max_recv_sge: attr.max_sge,
            max_inline_data: 0,
        };
        let cap = queue_sizes(&cap, true)?;
        // SAFETY: the caller's objects.
        let (cq, domain) = unsafe { (cq::object(attr.cq), Arc::clone(mr::domain(attr.pd))) };
        let counted = context.quotas().qp.take()?;
        CqHome::choose_device(context, &[&cq.home]);
        let number = context.device().net().alloc_qpn().map_err(|error| diagnostics::no_qpn(&error))?;
        let queue = RecvQueue::new(number, domain.id(), Arc::clone(&cq.cq), cap.max_recv_wr, cap.max_recv_sge);
        let queue = Arc::new(queue);
        queue.set_strips_cvlan(flags & v::IBV_WQ_FLAGS_CVLAN_STRIPPING != 0);
        // Requests may be posted before the queue is ready.
        context.device().with_work(|work| queue.set_state(work, RecvState::Armed));
        (attr.max_wr, attr.max_sge) = (cap.max_recv_wr, cap.max_recv_sge);
        // SAFETY: all-zero is a queue that libibverbs then fills in.
        let mut ibv = unsafe { std::mem::zeroed::<v::ibv_wq>() };
        ibv.context = ibv_context;
        ibv.wq_context = attr.wq_context;
        (ibv.pd, ibv.cq) = (attr.pd, attr.cq);
        (ibv.wq_num, ibv.handle) = (number.get(), number.get());
        (ibv.state, ibv.wq_type) = (v::IBV_WQS_RESET, attr.wq_type);
        ibv.post_recv = Some(post_wq_recv);
        // SAFETY: `destroy_cq` refuses as long as this lives.
        let used = unsafe { Use::of(&[&cq.users]) };
        let object = WqObject { ibv, queue, users: Users::default(), domain, used, _counted: counted };
        Ok(Box::into_raw(Box::new(object)).cast())
    })
}

pub(in crate::edge) unsafe extern "C" fn modify_wq(wq: *mut v::ibv_wq, attr: *mut v::ibv_wq_attr) -> c_int {
    int_verb(Verb::ModifyWq, || {
        // SAFETY: the caller's queue and attributes.
        let (context, object, attr) = unsafe { (shared((*wq).context), object(wq), &*attr) };
        context.check_alive()?;
        let current = match object.queue.state() {
            RecvState::Reset | RecvState::Armed => v::IBV_WQS_RESET,
            RecvState::Ready => v::IBV_WQS_RDY,
            RecvState::Error => v::IBV_WQS_ERR,
        };
        let given = |field| attr.attr_mask & field != 0;
        if attr.attr_mask & !(v::IBV_WQ_ATTR_STATE | v::IBV_WQ_ATTR_CURR_STATE | v::IBV_WQ_ATTR_FLAGS) != 0
            || (given(v::IBV_WQ_ATTR_CURR_STATE) && attr.curr_wq_state != current)
        {
            return Err(EINVAL);
        }
        if given(v::IBV_WQ_ATTR_FLAGS) && attr.flags_mask & !FLAGS != 0 {
            return Err(EOPNOTSUPP);
        }
        let set_flags = || {
            if given(v::IBV_WQ_ATTR_FLAGS) && attr.flags_mask & v::IBV_WQ_FLAGS_CVLAN_STRIPPING != 0 {
                object.queue.set_strips_cvlan(attr.flags & v::IBV_WQ_FLAGS_CVLAN_STRIPPING != 0);
            }
        };
        if !given(v::IBV_WQ_ATTR_STATE) {
            set_flags();
            return Ok(());
        }
        // As the kernel's ib_uverbs_ex_modify_wq and the drivers behind it.
        let to = match (current, attr.wq_state) {
            (_, v::IBV_WQS_RESET) => RecvState::Reset,
            (v::IBV_WQS_RESET | v::IBV_WQS_RDY, v::IBV_WQS_RDY) => RecvState::Ready,
            (v::IBV_WQS_RDY | v::IBV_WQS_ERR, v::IBV_WQS_ERR) => RecvState::Error,
            _ => {
                return Err(diagnostics::wrong(
                    EINVAL,
                    "there is no such transition of a work queue",
                    "go from RESET to RDY; to ERR from RDY; to RESET from any state",
                ));
            }
        };
        set_flags();
        context.device().with_work(|work| {
            object.queue.set_state(work, to);
            if to == RecvState::Reset {
                object.queue.cq().forget(object.queue.number());
                object.queue.set_state(work, RecvState::Armed);
            }
            context.device().tell(work);
        });
        // SAFETY: the caller's queue; libibverbs does not keep its state.
        unsafe { (*wq).state = attr.wq_state };
        Ok(())
    })
}

pub(in crate::edge) unsafe extern "C" fn destroy_wq(wq: *mut v::ibv_wq) -> c_int {
    int_verb(Verb::DestroyWq, || {
        // SAFETY: the caller's queue.
        let (context, object) = unsafe { (shared((*wq).context), object(wq)) };
        context.check_own()?;
        if object.users.any() {
            return Err(diagnostics::wrong(
                Errno(libc::EBUSY),
                "an indirection table has the work queue in it",
                "call ibv_destroy_rwq_ind_table first",
            ));
        }
        context.device().with_work(|work| object.queue.set_state(work, RecvState::Reset));
        object.queue.cq().forget(object.queue.number());
        context.device().net().free_qpn(Qpn::new(object.queue.number().get()));
        // SAFETY: from `create_wq`, and not used any more.
        let object = unsafe { Box::from_raw(wq.cast::<WqObject>()) };
        drop(object.used);
        drop(object.domain);
        Ok(())
    })
}

unsafe extern "C" fn post_wq_recv(
    wq: *mut v::ibv_wq,
    first: *mut v::ibv_recv_wr,
    bad_wr: *mut *mut v::ibv_recv_wr,
) -> c_int {
    sanitizer::posting();
    fast_verb(Verb::PostWqRecv, |is_nested| {
        // SAFETY: the caller's queue.
        let (context, object) = unsafe { (shared((*wq).context), object(wq)) };
        context.check_alive()?;
        if is_nested {
            // SAFETY: the caller's pointer.
            unsafe { bad_wr.write(first) };
            return Err(Errno(libc::ENOMEM));
        }
        // SAFETY: the caller's list and pointer.
        unsafe { post::post_to(context.device(), &object.queue, first, bad_wr) }
    })
}
