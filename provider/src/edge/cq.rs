//! Completion queues.

use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use urxe_engine::{Cqe, FrameCompletion, Instant, Moderation, WcStatus};
use urxe_explain::Verb;
use urxe_ffi::verbs as v;
use urxe_wire::grh;

use super::context::shared;
use super::cq_home::CqHome;
use super::poll_session_lock::PollSessionLock;
use super::users::Users;
use super::vendor_error::vendor_error;
use super::{count_verb, fast_verb, garbage, guarded, int_verb, mr, ptr_verb, reentrant, wait};
use crate::kernel::Errno;
use crate::verbs::diagnostics;
use crate::verbs::objects::ProtectionDomain;
use crate::verbs::quota::Counted;
use urxe_diag::quirks;
use urxe_runtime::cq::Cq;
use urxe_runtime::event::EventSink;
use urxe_runtime::{limits, sanitizer};

/// An `ibv_cq` of ours.
#[repr(C)]
pub(super) struct CqObject {
    /// `ibv_cq` is a prefix. libibverbs writes there (events counted) while others refer to the rest.
    ibv: UnsafeCell<v::ibv_cq_ex>,
    pub(super) cq: Arc<Cq>,
    /// Count of queue pairs and XRC SRQs that complete here.
    pub(super) users: Users,
    pub(super) poll: Poll,
    pub(super) home: CqHome,
    /// The parent domain it was made with, kept from being freed.
    parent_domain: Option<Arc<ProtectionDomain>>,
    _counted: Counted,
}

/// State of an extended poll, from `ibv_start_poll` to `ibv_end_poll`.
pub(super) struct Poll {
    /// Held meanwhile, unless the application promises to use one thread.
    pub(super) session_lock: Option<PollSessionLock>,
    pub(super) current: UnsafeCell<Current>,
}

/// The completion that `read_*` are about.
pub(super) struct Current {
    pub(super) wc: v::ibv_wc,
    pub(super) at: Instant,
    pub(super) frame: FrameCompletion,
}

impl Poll {
    pub(super) fn new(single_threaded: bool) -> Self {
        // SAFETY: all-zero is a value of this plain C struct.
        let wc = unsafe { std::mem::zeroed() };
        let current = UnsafeCell::new(Current { wc, at: Instant::from_nanos(0), frame: FrameCompletion::default() });
        Self { session_lock: (!single_threaded).then(PollSessionLock::default), current }
    }
}

/// Returns the object behind an `ibv_cq`.
///
/// # Safety
/// `cq` came from [`create_cq`] and has not been destroyed.
pub(super) unsafe fn object<'a>(cq: *mut v::ibv_cq) -> &'a CqObject {
    // SAFETY: an `ibv_cq` of ours is the start of a CqObject.
    unsafe { &*cq.cast::<CqObject>() }
}

pub(super) unsafe extern "C" fn create_cq(
    context: *mut v::ibv_context,
    cqe: c_int,
    channel: *mut v::ibv_comp_channel,
    comp_vector: c_int,
) -> *mut v::ibv_cq {
    // SAFETY: the caller's context and channel.
    ptr_verb(Verb::CreateCq, || unsafe {
        create(context, cqe, channel, comp_vector, std::ptr::null_mut(), Poll::new(false))
    })
}

/// # Safety
/// The context is ours and open, the channel and the domain are null or ours.
pub(super) unsafe fn create(
    context: *mut v::ibv_context,
    cqe: c_int,
    channel: *mut v::ibv_comp_channel,
    comp_vector: c_int,
    parent_domain: *mut v::ibv_pd,
    poll: Poll,
) -> Result<*mut v::ibv_cq, Errno> {
    // SAFETY: the caller's promise.
    let (context, channel) = unsafe { (shared(context), channel.as_ref()) };
    context.check_alive()?;
    let capacity = capacity(cqe)?;
    if !(0..limits::COMP_VECTORS).contains(&comp_vector) {
        let most = limits::COMP_VECTORS - 1;
        return Err(diagnostics::at_most(Errno(libc::EINVAL), "comp_vector", comp_vector, most));
    }
    let events = match channel {
        Some(channel) => Some(context.channel(channel.fd).ok_or(Errno(libc::EINVAL))? as Arc<dyn EventSink>),
        None => None,
    };
    let counted = context.quotas().cq.take()?;
    // SAFETY: as above.
    let parent_domain = (!parent_domain.is_null()).then(|| unsafe { Arc::clone(mr::domain(parent_domain)) });
    let cq = Arc::new(Cq::new(quirks::completion_queue(capacity as usize), events, context.async_sink()));
    // SAFETY: all-zero is a queue that libibverbs then fills in.
    let mut ibv = unsafe { std::mem::zeroed::<v::ibv_cq_ex>() };
    ibv.cqe = cqe;
    let (ibv, users, ctxn) = (UnsafeCell::new(ibv), Users::default(), context.number());
    let (seen, count) = (Arc::downgrade(&cq), users.count());
    let counted = counted.tracked(|cqn| {
        move || {
            let (cqe, users) = (seen.upgrade()?.capacity() as u64, count.load(Ordering::Acquire) as u64);
            Some(vec![("cqn", cqn.into()), ("cqe", cqe), ("users", users), ("ctxn", ctxn.into())])
        }
    });
    let object =
        CqObject { ibv, cq: Arc::clone(&cq), users, poll, home: CqHome::default(), parent_domain, _counted: counted };
    let object = Box::into_raw(Box::new(object));
    cq.set_handle(object as u64);
    Ok(object.cast())
}

/// The size of a queue, if there may be such.
fn capacity(cqe: c_int) -> Result<u32, Errno> {
    let known = u32::try_from(cqe).ok().filter(|cqe| (1..=limits::MAX_CQE).contains(cqe));
    known.ok_or_else(|| match cqe {
        ..=0 => diagnostics::wrong(Errno(libc::EINVAL), "cqe is not positive", "ask for at least one element"),
        _ => diagnostics::at_most(Errno(libc::EINVAL), "cqe", cqe, limits::MAX_CQE),
    })
}

pub(super) unsafe extern "C" fn destroy_cq(cq: *mut v::ibv_cq) -> c_int {
    int_verb(Verb::DestroyCq, || {
        // SAFETY: the caller's queue.
        let (context, object) = unsafe { (shared((*cq).context), object(cq)) };
        context.check_own()?;
        if object.users.any() {
            return Err(Errno(libc::EBUSY));
        }
        let (events, async_events) = object.cq.retire();
        // SAFETY: the queue's own, which libibverbs initialised.
        unsafe {
            let (mutex, cond) = ((&raw mut (*cq).mutex).cast(), (&raw mut (*cq).cond).cast());
            let complain = |missing| context.complain(Verb::DestroyCq, "ibv_ack_cq_events", missing);
            wait::acknowledged(mutex, cond, &raw const (*cq).comp_events_completed, events, complain);
            let complain = |missing| context.complain(Verb::DestroyCq, "ibv_ack_async_event", missing);
            wait::acknowledged(mutex, cond, &raw const (*cq).async_events_completed, async_events, complain);
            if let Some(observer) = context.observer() {
                observer.forget_cq(Arc::as_ptr(&object.cq) as u64);
            }
            drop(Box::from_raw(cq.cast::<CqObject>()).parent_domain);
        }
        Ok(())
    })
}

pub(super) unsafe extern "C" fn resize_cq(cq: *mut v::ibv_cq, cqe: c_int) -> c_int {
    int_verb(Verb::ResizeCq, || {
        // SAFETY: the caller's queue.
        let (context, object) = unsafe { (shared((*cq).context), object(cq)) };
        context.check_alive()?;
        let capacity = capacity(cqe)?;
        object.cq.resize(capacity as usize).map_err(|_| {
            diagnostics::wrong(
                Errno(libc::EINVAL),
                "the queue holds more completions than the new size",
                "poll them first",
            )
        })?;
        // SAFETY: as above.
        unsafe { (*cq).cqe = cqe };
        Ok(())
    })
}

/// Neither a count without a period nor the reverse moderates anything: who gets too few completions, or none, would
/// wait for ever.
pub(super) unsafe extern "C" fn modify_cq(cq: *mut v::ibv_cq, attr: *mut v::ibv_modify_cq_attr) -> c_int {
    int_verb(Verb::ModifyCq, || {
        // SAFETY: the caller's queue and attributes.
        let (context, object, attr) = unsafe { (shared((*cq).context), object(cq), &*attr) };
        context.check_alive()?;
        if attr.attr_mask & !v::IBV_CQ_ATTR_MODERATE != 0 {
            return Err(Errno(libc::EINVAL));
        }
        if attr.attr_mask & v::IBV_CQ_ATTR_MODERATE != 0 {
            let v::ibv_moderate_cq { cq_count: count, cq_period } = attr.moderate;
            let period = Duration::from_micros(cq_period.into());
            object.cq.moderate((count > 1 && cq_period > 0).then_some(Moderation { count, period }));
        }
        Ok(())
    })
}

pub(super) unsafe extern "C" fn poll_cq(cq: *mut v::ibv_cq, num_entries: c_int, wc: *mut v::ibv_wc) -> c_int {
    let count = count_verb(Verb::PollCq, |is_nested| {
        // SAFETY: the caller's queue.
        let (context, object) = unsafe { (shared((*cq).context), object(cq)) };
        context.check_alive()?;
        let most = usize::try_from(num_entries).map_err(|_| Errno(libc::EINVAL))?;
        let mut at = wc;
        let mut each = |cqe: &Cqe| {
            // SAFETY: the caller has room for `num_entries`, and `poll` gives no more.
            unsafe {
                at.write(work_completion(cqe));
                at = at.add(1);
            }
        };
        if is_nested {
            return Ok(object.cq.try_poll(most, &mut each));
        }
        let mut taken = object.cq.poll(most, &mut each);
        if taken == 0 && most > 0 {
            if object.cq.has_overrun() {
                return Err(diagnostics::wrong(
                    Errno(libc::EIO),
                    "the queue has overrun: a completion is lost",
                    "make the CQ as large as all queues that complete there together",
                ));
            }
            object.home.polled(context, object.cq.is_armed());
            taken = object.cq.poll(most, &mut each);
        }
        if taken > 0 {
            object.home.completed(context);
        }
        Ok(taken)
    });
    if let Ok(count @ 1..) = usize::try_from(count) {
        sanitizer::written(wc as u64, count * size_of::<v::ibv_wc>());
        sanitizer::completed();
    }
    count
}

pub(super) unsafe extern "C" fn req_notify_cq(cq: *mut v::ibv_cq, solicited_only: c_int) -> c_int {
    fast_verb(Verb::ReqNotifyCq, |is_nested| {
        // SAFETY: the caller's queue.
        let (context, object) = unsafe { (shared((*cq).context), object(cq)) };
        context.check_alive()?;
        if is_nested {
            return reentrant::req_notify(object.home.device(context), &object.cq, solicited_only != 0);
        }
        object.cq.arm(solicited_only != 0);
        object.home.stopped_polling(context);
        Ok(())
    })
}

/// libibverbs has read a completion event.
pub(super) unsafe extern "C" fn cq_event(cq: *mut v::ibv_cq) {
    let _ = guarded(|| {
        // SAFETY: the caller's queue.
        let (context, object) = unsafe { (shared((*cq).context), object(cq)) };
        context.check_own()?;
        object.cq.event_read();
        Ok(())
    });
}

/// Which network header a datagram had, in `sl`, which RoCE leaves free. IBA A17.4.5.1 wants it told, verbs.h has no field
/// for it, and mlx5 puts it there: bit 3 for UDP, below it 1 for IPv6 or 2 for IPv4. UCX finds the destination by it
/// (`uct_ud_iface_check_grh`), on any device.
///
/// On InfiniBand it is the service level, which is 0.
const fn service_level(kind: grh::Kind) -> u8 {
    match kind {
        grh::Kind::Ipv6 => 0b1001,
        grh::Kind::Ipv4 => 0b1010,
        grh::Kind::Grh => 0,
    }
}

/// A completion as `ibv_poll_cq` gives it.
// A part of the caller, who would copy what it returns.
#[inline(always)]
pub(super) fn work_completion(cqe: &Cqe) -> v::ibv_wc {
    if cqe.status != WcStatus::Success {
        return failure(cqe);
    }
    let mut wc = outcome(cqe);
    wc.byte_len = cqe.byte_len;
    (wc.src_qp, wc.slid) = (cqe.src_qp.get(), cqe.slid.0);
    wc.wc_flags = u32::from(cqe.frame.csum_ok) << v::IBV_WC_IP_CSUM_OK_SHIFT;
    if let Some(kind) = cqe.grh {
        wc.wc_flags |= v::IBV_WC_GRH;
        wc.sl = service_level(kind);
    }
    if let Some(imm) = cqe.imm {
        wc.wc_flags |= v::IBV_WC_WITH_IMM;
        wc.__bindgen_anon_1.imm_data = u32::from_ne_bytes(imm.0);
    }
    if let Some(r_key) = cqe.invalidated {
        wc.wc_flags |= v::IBV_WC_WITH_INV;
        wc.__bindgen_anon_1.invalidated_rkey = r_key.0;
    }
    wc
}

/// A completion with an error.
#[cold]
#[inline(never)]
fn failure(cqe: &Cqe) -> v::ibv_wc {
    let mut wc = outcome(cqe);
    wc.vendor_err = vendor_error(cqe);
    if let Some(rng) = quirks::garbage() {
        garbage::fill(&mut wc, rng);
    }
    wc
}

/// Fields that all completions have, with an error or without.
#[inline(always)]
fn outcome(cqe: &Cqe) -> v::ibv_wc {
    // SAFETY: all-zero is a value of this plain C struct.
    let mut wc = unsafe { std::mem::zeroed::<v::ibv_wc>() };
    wc.wr_id = cqe.wr_id;
    wc.status = cqe.status as u32;
    wc.qp_num = cqe.qpn.get();
    wc.opcode = cqe.opcode as u32;
    wc
}
