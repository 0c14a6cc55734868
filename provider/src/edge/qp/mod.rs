//! Queue pairs.

mod create;

use std::ffi::c_int;
use std::mem::offset_of;
use std::ptr;

use urxe_engine::attr::AttrMask;
use urxe_engine::congestion;
use urxe_engine::{Io, Paths, QpState, QpType, QueuePair};
use urxe_explain::Verb;
use urxe_ffi::verbs as v;

use super::context::shared;
use super::qp_object::{QpObject, object};
use super::{ah, int_verb, raw, wait};
use crate::kernel::Errno;
use crate::verbs::address_vector::AddressVector;
use crate::verbs::ah::{check_link, route};
use crate::verbs::context::Context;
use crate::verbs::diagnostics;
use crate::verbs::objects::{answer_attr, engine_attr};
use urxe_runtime::lock;
use urxe_runtime::sanitizer;

pub(super) use create::{create_qp, create_qp_ex, open_qp, public_cap};

/// Attributes of the other side, which programs give to both ends of XRC as to an RC queue pair; as in the kernel's
/// `modify_qp_mask` (uverbs_cmd.c).
const fn unused_attributes(qp_type: QpType) -> AttrMask {
    match qp_type {
        QpType::XrcSend => AttrMask::MAX_DEST_RD_ATOMIC.with(AttrMask::MIN_RNR_TIMER),
        QpType::XrcRecv => AttrMask::MAX_QP_RD_ATOMIC.with(AttrMask::RETRY_CNT).with(AttrMask::RNR_RETRY),
        QpType::Rc | QpType::Uc | QpType::Ud => AttrMask::NONE,
    }
}

/// Rates are kept of raw packet queue pairs only: those of RoCE go by congestion control.
pub(super) unsafe extern "C" fn modify_qp_rate_limit(
    qp: *mut v::ibv_qp,
    attr: *mut v::ibv_qp_rate_limit_attr,
) -> c_int {
    int_verb(Verb::ModifyQpRateLimit, || {
        // SAFETY: the caller's queue pair and attributes.
        let (context, attr) = unsafe { (shared((*qp).context), &*attr) };
        context.check_alive()?;
        // SAFETY: the caller's queue pair.
        if !unsafe { raw::is_raw(qp) } {
            return Err(diagnostics::wrong(
                Errno(libc::EOPNOTSUPP),
                "only raw packet queue pairs have a limit on their rate (packet_pacing_caps.supported_qpts)",
                "limit the interface (tc qdisc), or have DCQCN find the rate: urxe run --cc dcqcn",
            ));
        }
        // SAFETY: as above.
        unsafe { raw::qp::modify_rate_limit(qp, attr) }
    })
}

pub(super) unsafe extern "C" fn modify_qp(qp: *mut v::ibv_qp, attr: *mut v::ibv_qp_attr, attr_mask: c_int) -> c_int {
    int_verb(Verb::ModifyQp, || {
        // SAFETY: the caller's queue pair and attributes.
        let (context, attr) = unsafe { (shared((*qp).context), &*attr) };
        context.check_alive()?;
        // SAFETY: the caller's queue pair.
        if unsafe { raw::is_raw(qp) } {
            // SAFETY: as above.
            return unsafe { raw::qp::modify(qp, attr, attr_mask) };
        }
        // SAFETY: as above, and not raw.
        let object = unsafe { object(qp) };
        let qp_type = object.qp.inspect(|engine| engine.config().qp_type);
        let mask = AttrMask::from_bits(attr_mask.cast_unsigned());
        //= spec/states.md#qps-011
        //# A modify with an attribute that the device does not know MUST be refused with EOPNOTSUPP and change nothing.
        if !AttrMask::BASIC.contains(mask) {
            return Err(diagnostics::unknown_attributes(mask.without(AttrMask::BASIC)));
        }
        let mask = mask.without(unused_attributes(qp_type));
        let given = engine_attr(attr, mask)?;
        let current = object.qp.inspect(|engine| engine.state());
        let state = |number| QpState::from_u32(number).ok_or_else(|| diagnostics::value(AttrMask::STATE));
        if mask.contains(AttrMask::CUR_STATE) && state(attr.cur_qp_state)? != current {
            let error = urxe_engine::ModifyError::CurrentState(current);
            return Err(diagnostics::modify(qp_type, current, state(attr.cur_qp_state)?, error));
        }
        let to = if mask.contains(AttrMask::STATE) { state(attr.qp_state)? } else { current };
        let dest_qpn = if mask.contains(AttrMask::DEST_QPN) {
            attr.dest_qp_num
        } else {
            object.qp.inspect(|engine| engine.attr().dest_qpn.get())
        };
        let device = object.qp.device();
        let way = |bit, vector: &v::ibv_ah_attr, stays_inside| {
            let spread = object.qp.inspect(|engine| engine.config().paths());
            let vector = connection_vector(context, object, vector);
            mask.contains(bit).then(|| route(context, device, &vector, dest_qpn, stays_inside, spread)).transpose()
        };
        // Whoever reaches the peer's memory needs no packets, nor what else the process shares.
        let stays_inside = matches!(qp_type, QpType::Rc | QpType::Uc) && !context.device().gives_direct_access();
        if mask.contains(AttrMask::AV) {
            check_link(context)?;
        }
        let primary = way(AttrMask::AV, &attr.ah_attr, stays_inside)?;
        let alternate = way(AttrMask::ALT_PATH, &attr.alt_ah_attr, false)?;
        let address = primary.as_ref().map(|way| way.remote().ip());
        let paths = Paths { primary, alternate };
        let change = |engine: &mut QueuePair<_>, io: &mut Io<'_, _>| {
            let has_swapped = engine.has_swapped_paths();
            engine.modify(io, to, mask, &given, paths).map(|()| has_swapped)
        };
        let has_swapped = device
            .with_work(|work| object.qp.modify(work, change))
            .map_err(|error| diagnostics::modify(qp_type, current, to, error))?;
        if let Some(observer) = context.observer() {
            let peer = object.qp.inspect(|engine| diagnostics::peer(engine, address));
            observer.connected(device.net(), object.qp.qpn(), peer);
        }
        if to == QpState::Reset {
            object.qp.forget_completions();
        }
        let [first, second] = &mut *lock(&object.ah_attrs);
        let (primary, alternate) = if has_swapped { (second, first) } else { (first, second) };
        if mask.contains(AttrMask::AV) {
            *primary = attr.ah_attr;
        }
        if mask.contains(AttrMask::ALT_PATH) {
            *alternate = attr.alt_ah_attr;
        }
        Ok(())
    })
}

/// Bytes of `ibv_qp_attr` that a query answers whatever queue pair it is about.
const LENGTH: usize = offset_of!(v::ibv_qp_attr, rate_limit);

pub(super) unsafe extern "C" fn query_qp(
    qp: *mut v::ibv_qp,
    attr: *mut v::ibv_qp_attr,
    attr_mask: c_int,
    init_attr: *mut v::ibv_qp_init_attr,
) -> c_int {
    int_verb(Verb::QueryQp, || {
        // SAFETY: the caller's queue pair.
        let context = unsafe { shared((*qp).context) };
        context.check_alive()?;
        // SAFETY: all-zero is a value of these plain C structs.
        let (mut answer, mut init) =
            unsafe { (std::mem::zeroed::<v::ibv_qp_attr>(), std::mem::zeroed::<v::ibv_qp_init_attr>()) };
        // SAFETY: the caller's queue pair.
        if unsafe { raw::is_raw(qp) } {
            // SAFETY: as above.
            unsafe { raw::qp::query(qp, &mut answer, &mut init) }?;
        } else {
            // SAFETY: as above, and not raw.
            let object = unsafe { object(qp) };
            let has_swapped = object.qp.inspect(|engine| {
                answer_attr(&mut answer, engine.state(), &engine.attr());
                answer.sq_draining = u8::from(engine.is_draining());
                answer.cap = public_cap(&engine.config().cap);
                engine.has_swapped_paths()
            });
            let [first, second] = *lock(&object.ah_attrs);
            (answer.ah_attr, answer.alt_ah_attr) = if has_swapped { (second, first) } else { (first, second) };
            init.cap = answer.cap;
            init.sq_sig_all = c_int::from(object.sq_sig_all);
        }
        // SAFETY: the caller's queue pair, and room for the answers.
        unsafe {
            init.qp_context = (*qp).qp_context;
            init.send_cq = (*qp).send_cq;
            init.recv_cq = (*qp).recv_cq;
            init.srq = (*qp).srq;
            init.qp_type = (*qp).qp_type;
            // Programs of before rdma-core 13 have a shorter structure, without the last field.
            ptr::copy_nonoverlapping((&raw const answer).cast::<u8>(), attr.cast::<u8>(), LENGTH);
            // Who has a limit, or asks for it, knows the field.
            if answer.rate_limit > 0 || attr_mask.cast_unsigned() & v::IBV_QP_RATE_LIMIT != 0 {
                (&raw mut (*attr).rate_limit).write(answer.rate_limit);
            }
            init_attr.write(init);
        }
        sanitizer::written(attr as u64, LENGTH);
        sanitizer::written(init_attr as u64, size_of::<v::ibv_qp_init_attr>());
        Ok(())
    })
}

pub(super) unsafe extern "C" fn destroy_qp(qp: *mut v::ibv_qp) -> c_int {
    int_verb(Verb::DestroyQp, || {
        // SAFETY: the caller's queue pair.
        let context = unsafe { shared((*qp).context) };
        context.check_own()?;
        // SAFETY: the caller's queue pair.
        if unsafe { raw::is_raw(qp) } {
            // SAFETY: as above.
            return unsafe { raw::qp::destroy(qp) };
        }
        // SAFETY: as above, and not raw.
        let object = unsafe { object(qp) };
        // As the kernel's `uverbs_free_qp`: what was attached must be detached first.
        if object.users.any() || context.device().groups().holds(object.qp.qpn()) {
            return Err(Errno(libc::EBUSY));
        }
        // What is left to be said goes to no number that the application has closed.
        object.qp.device().has_lost_descriptors();
        let events = object.qp.close(qp as u64);
        // SAFETY: the queue pair's own, initialised by being zero; not used any more afterwards.
        let object = unsafe {
            let (mutex, cond) = ((&raw mut (*qp).mutex).cast(), (&raw mut (*qp).cond).cast());
            let complain = |missing| context.complain(Verb::DestroyQp, "ibv_ack_async_event", missing);
            wait::acknowledged(mutex, cond, &raw const (*qp).events_completed, events, complain);
            Box::from_raw(qp.cast::<QpObject>())
        };
        drop(object.used);
        drop(object.domain);
        Ok(())
    })
}

/// The address vector of a queue pair. Packets of a connection are ECN-capable where ECN is on, unless its traffic class says
/// otherwise.
//= spec/congestion.md#ecn-001
//# A packet of a connection MUST leave as ECT(0) where ECN is on, unless its address vector's traffic class says otherwise.
fn connection_vector(context: &Context, object: &QpObject, attr: &v::ibv_ah_attr) -> AddressVector {
    let vector = ah::address_vector(attr);
    let marks = context.congestion().ecn && object.qp.inspect(|engine| engine.config().qp_type) != QpType::Ud;
    let traffic_class = if marks { congestion::capable(vector.traffic_class) } else { vector.traffic_class };
    AddressVector { traffic_class, ..vector }
}
