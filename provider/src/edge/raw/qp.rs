//! Making, modifying and destroying raw packet queue pairs.

use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use urxe_engine::attr::AttrMask;
use urxe_engine::{ModifyError, QpState};
use urxe_ffi::driver::objects::verbs_qp;
use urxe_ffi::verbs as v;

use super::builder;
use super::object::{Kind, RawQpObject, object};
use crate::edge::batch::Builder;
use crate::edge::context::{self, shared};
use crate::edge::cq_home::CqHome;
use crate::edge::users::{Use, Users};
use crate::edge::{cq, mr};
use crate::kernel::Errno;
use crate::verbs::diagnostics;
use crate::verbs::objects::queue_sizes;
use urxe_runtime::limits;
use urxe_runtime::raw::{RateLimit, RawQp, RawQpConfig};
use urxe_runtime::sanitizer;
use urxe_wire::Qpn;

const EINVAL: Errno = Errno(libc::EINVAL);

/// Attributes of `ibv_create_qp_ex` that are known.
const INIT_ATTRS: u32 = v::IBV_QP_INIT_ATTR_PD
    | v::IBV_QP_INIT_ATTR_CREATE_FLAGS
    | v::IBV_QP_INIT_ATTR_MAX_TSO_HEADER
    | v::IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;

/// Makes a queue pair.
///
/// # Safety
/// The context and the objects that the attributes name are ours and live.
pub(super) unsafe fn create(
    ibv_context: *mut v::ibv_context,
    attr: &mut v::ibv_qp_init_attr_ex,
) -> Result<*mut v::ibv_qp, Errno> {
    // SAFETY: the caller's context.
    let context = unsafe { shared(ibv_context) };
    let given = |field| attr.comp_mask & field != 0;
    let flags = if given(v::IBV_QP_INIT_ATTR_CREATE_FLAGS) { attr.create_flags } else { 0 };
    if attr.comp_mask & !INIT_ATTRS != 0 || flags & !v::IBV_QP_CREATE_CVLAN_STRIPPING != 0 {
        return Err(diagnostics::wrong(
            Errno(libc::EOPNOTSUPP),
            "comp_mask or create_flags ask for what raw packet queue pairs do not have",
            "set no create_flags but IBV_QP_CREATE_CVLAN_STRIPPING; RSS needs IBV_QP_INIT_ATTR_IND_TABLE",
        ));
    }
    let max_tso_header = if given(v::IBV_QP_INIT_ATTR_MAX_TSO_HEADER) { u32::from(attr.max_tso_header) } else { 0 };
    if max_tso_header > limits::MAX_TSO_HEADER {
        return Err(diagnostics::at_most(EINVAL, "max_tso_header", max_tso_header, limits::MAX_TSO_HEADER));
    }
    let operations = given(v::IBV_QP_INIT_ATTR_SEND_OPS_FLAGS).then_some(attr.send_ops_flags);
    if operations.is_some_and(|asked| asked & !builder::OPERATIONS != 0) {
        return Err(Errno(libc::EOPNOTSUPP));
    }
    if operations.is_some_and(|asked| asked & u64::from(v::IBV_QP_EX_WITH_TSO) != 0) && max_tso_header == 0 {
        return Err(diagnostics::wrong(EINVAL, "IBV_QP_EX_WITH_TSO needs a header", "set max_tso_header"));
    }
    if !attr.srq.is_null() {
        return Err(diagnostics::wrong(
            Errno(libc::EOPNOTSUPP),
            "a raw packet queue pair has a receive queue of its own here",
            "leave srq out",
        ));
    }
    if !given(v::IBV_QP_INIT_ATTR_PD) || attr.pd.is_null() || attr.send_cq.is_null() || attr.recv_cq.is_null() {
        return Err(diagnostics::wrong(EINVAL, "pd, send_cq or recv_cq is missing", "set pd, send_cq and recv_cq"));
    }
    let cap = queue_sizes(&attr.cap, true)?;
    // SAFETY: the caller's objects.
    let (send_cq, recv_cq, domain) =
        unsafe { (cq::object(attr.send_cq), cq::object(attr.recv_cq), Arc::clone(mr::domain(attr.pd))) };
    let counted = context.quotas().qp.take()?;
    CqHome::choose_device(context, &[&send_cq.home, &recv_cq.home]);
    let device = context.device();
    let qpn = device.net().alloc_qpn().map_err(|error| diagnostics::no_qpn(&error))?;
    let config = RawQpConfig {
        qpn,
        pd: domain.id(),
        cap,
        sq_sig_all: attr.sq_sig_all != 0,
        send_cq: Arc::clone(&send_cq.cq),
        recv_cq: Arc::clone(&recv_cq.cq),
        max_tso_header,
        strips_cvlan: flags & v::IBV_QP_CREATE_CVLAN_STRIPPING != 0,
    };
    let qp = RawQp::new(device, config).map_err(|error| {
        device.net().free_qpn(qpn);
        refused(&error)
    })?;
    let mut verbs = verbs_qp::zeroed();
    let ibv = verbs.public_mut();
    ibv.context = ibv_context;
    ibv.qp_context = attr.qp_context;
    ibv.pd = attr.pd;
    ibv.send_cq = attr.send_cq;
    ibv.recv_cq = attr.recv_cq;
    ibv.handle = qpn.get();
    ibv.qp_num = qpn.get();
    ibv.state = v::IBV_QPS_RESET;
    ibv.qp_type = attr.qp_type;
    attr.cap = crate::edge::qp::public_cap(&cap);
    if let Some(operations) = operations {
        // SAFETY: the caller's context.
        builder::install(&mut verbs, unsafe { context::library(ibv_context) }.qp_layout(), operations);
    }
    let object = RawQpObject {
        verbs: UnsafeCell::new(verbs),
        kind: Kind::Own(qp),
        builder: Builder::default(),
        max_inline: cap.max_inline_data,
        groups: Mutex::default(),
        users: Users::default(),
        domain,
        // SAFETY: their `destroy` refuses as long as this lives.
        used: unsafe { Use::of(&[&send_cq.users, &recv_cq.users]) },
        _counted: counted,
    };
    let object = Box::into_raw(Box::new(object));
    sanitizer::written(object as u64, size_of::<RawQpObject>());
    Ok(object.cast())
}

/// Returns the errno of a system that refuses a packet socket.
pub(super) fn refused(error: &io::Error) -> Errno {
    let errno = Errno(error.raw_os_error().unwrap_or(libc::ENOMEM));
    if errno != Errno(libc::EPERM) {
        return errno;
    }
    diagnostics::wrong(
        errno,
        "raw packet queue pairs need CAP_NET_RAW in the network namespace of the interface",
        "run as root, in `unshare -Urn`, with the container's --cap-add=NET_RAW, or, where urxe is installed, after \
         `setcap cap_net_raw+ep PROGRAM`",
    )
}

/// Returns the attributes that a transition must have, of the kernel's `qp_state_table` (verbs.c).
//= spec/states.md#qps-001
//# A queue pair MUST change its state only along the table's transitions.
fn required(from: QpState, to: QpState) -> Option<AttrMask> {
    use QpState::{Err, Init, Reset, Rtr, Rts, Sqd, Sqe};
    match (from, to) {
        (Reset, Err) => None,
        (Reset, Init) => Some(AttrMask::PORT),
        (_, Reset | Err) | (Init, Init | Rtr) | (Rtr | Rts | Sqd | Sqe, Rts) | (Rts | Sqd, Sqd) => Some(AttrMask::NONE),
        _ => None,
    }
}

/// `ibv_modify_qp(3)`.
///
/// # Safety
/// `qp` is for frames.
pub(in crate::edge) unsafe fn modify(qp: *mut v::ibv_qp, attr: &v::ibv_qp_attr, attr_mask: c_int) -> Result<(), Errno> {
    // SAFETY: the caller's queue pair.
    let qp = unsafe { object(qp) }.own()?;
    let mask = AttrMask::from_bits(attr_mask.cast_unsigned());
    let known = AttrMask::BASIC.with(AttrMask::RATE_LIMIT);
    if !known.contains(mask) {
        return Err(diagnostics::unknown_attributes(mask.without(known)));
    }
    let current = qp.state();
    let state = |number| QpState::from_u32(number).ok_or_else(|| diagnostics::value(AttrMask::STATE));
    let to = if mask.contains(AttrMask::STATE) { state(attr.qp_state)? } else { current };
    let refuse = |error| diagnostics::modify_raw(current, to, error);
    let required = required(current, to).ok_or_else(|| refuse(ModifyError::NoTransition { from: current, to }))?;
    if mask.contains(AttrMask::CUR_STATE) && state(attr.cur_qp_state)? != current {
        return Err(refuse(ModifyError::CurrentState(current)));
    }
    if !mask.contains(required) {
        return Err(refuse(ModifyError::Missing(required)));
    }
    let mut unexpected = mask.without(required).without(AttrMask::STATE).without(AttrMask::CUR_STATE);
    // `qp_state_table` of the kernel's core/verbs.c.
    if matches!((current, to), (QpState::Rtr | QpState::Rts, QpState::Rts)) {
        unexpected = unexpected.without(AttrMask::RATE_LIMIT);
    }
    if unexpected != AttrMask::NONE {
        return Err(refuse(ModifyError::Unexpected(unexpected)));
    }
    if mask.contains(AttrMask::PORT) && attr.port_num != 1 {
        return Err(diagnostics::value(AttrMask::PORT));
    }
    let limit = mask.contains(AttrMask::RATE_LIMIT).then(|| limit(attr.rate_limit, 0)).transpose()?;
    qp.device().with_work(|work| {
        if let Some(limit) = limit {
            qp.set_rate_limit(work, limit);
        }
        qp.set_state(work, to);
    });
    Ok(())
}

/// The limit of so many kilobits a second, 0 being none.
fn limit(kilobits: u32, burst: u32) -> Result<Option<RateLimit>, Errno> {
    if kilobits > RateLimit::MOST {
        return Err(diagnostics::value(AttrMask::RATE_LIMIT));
    }
    Ok((kilobits != 0).then_some(RateLimit { kilobits, burst }))
}

/// `ibv_modify_qp_rate_limit(3)`.
///
/// # Safety
/// `qp` is a raw packet queue pair of ours.
pub(in crate::edge) unsafe fn modify_rate_limit(
    qp: *mut v::ibv_qp,
    attr: &v::ibv_qp_rate_limit_attr,
) -> Result<(), Errno> {
    // SAFETY: the caller's queue pair.
    let qp = unsafe { object(qp) }.own()?;
    if attr.comp_mask != 0 {
        return Err(diagnostics::value(AttrMask::RATE_LIMIT));
    }
    let state = qp.state();
    if state != QpState::Rts {
        return Err(diagnostics::modify_raw(state, state, ModifyError::Unexpected(AttrMask::RATE_LIMIT)));
    }
    let limit = limit(attr.rate_limit, attr.max_burst_sz)?;
    qp.device().with_work(|work| qp.set_rate_limit(work, limit));
    Ok(())
}

/// `ibv_query_qp(3)`.
///
/// # Safety
/// `qp` is for frames.
pub(in crate::edge) unsafe fn query(
    qp: *mut v::ibv_qp,
    attr: &mut v::ibv_qp_attr,
    init_attr: &mut v::ibv_qp_init_attr,
) -> Result<(), Errno> {
    // SAFETY: the caller's queue pair.
    let qp = unsafe { object(qp) }.own()?;
    let (state, config) = (qp.state() as u32, qp.config());
    (attr.qp_state, attr.cur_qp_state, attr.port_num) = (state, state, 1);
    attr.rate_limit = qp.rate_limit().map_or(0, |limit| limit.kilobits);
    attr.cap = crate::edge::qp::public_cap(&config.cap);
    init_attr.cap = attr.cap;
    init_attr.sq_sig_all = c_int::from(config.sq_sig_all);
    Ok(())
}

/// `ibv_destroy_qp(3)`.
///
/// # Safety
/// `qp` is for frames, and is not used any more.
pub(in crate::edge) unsafe fn destroy(qp: *mut v::ibv_qp) -> Result<(), Errno> {
    // SAFETY: the caller's queue pair.
    let object = unsafe { object(qp) };
    let is_attached = !object.groups.lock().unwrap_or_else(PoisonError::into_inner).is_empty();
    if object.users.any() || is_attached {
        return Err(diagnostics::wrong(
            Errno(libc::EBUSY),
            "a flow delivers to the queue pair, or it is attached to a group",
            "call ibv_destroy_flow and ibv_detach_mcast first",
        ));
    }
    if let Kind::Own(own) = &object.kind {
        // Completions of a queue pair go with it.
        own.device().with_work(|work| own.set_state(work, QpState::Reset));
    }
    // SAFETY: the caller's queue pair.
    let (context, number) = unsafe { (shared((*qp).context), Qpn::new((*qp).qp_num)) };
    context.device().net().free_qpn(number);
    // SAFETY: from `create`, and not used any more.
    let object = unsafe { Box::from_raw(qp.cast::<RawQpObject>()) };
    drop(object.used);
    drop(object.domain);
    Ok(())
}
