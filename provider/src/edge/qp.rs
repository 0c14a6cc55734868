//! Queue pairs.

use std::ffi::c_int;
use std::sync::Arc;

use urxe_engine::attr::AttrMask;
use urxe_engine::{QpConfig, QpState, QpType};
use urxe_ffi::driver::objects::verbs_qp;
use urxe_ffi::verbs as v;

use super::context::shared;
use super::cq::{self, Use};
use super::{ah, mr, number, pointer, wait};
use crate::kernel::Errno;
use crate::runtime::qp::Qp;
use crate::verbs::objects::{ProtectionDomain, answer_attr, engine_attr, queue_sizes, route};

const EINVAL: Errno = Errno(libc::EINVAL);

/// An `ibv_qp` of ours.
#[repr(C)]
pub(super) struct QpObject {
    verbs: verbs_qp,
    pub(super) qp: Arc<Qp>,
    /// The address vector last given, for `ibv_query_qp`.
    ah_attr: v::ibv_ah_attr,
    sq_sig_all: bool,
    /// Keep domain and completion queues from being destroyed.
    domain: Arc<ProtectionDomain>,
    cqs: Use,
}

/// What is behind an `ibv_qp`.
///
/// # Safety
/// `qp` came from [`create_qp`] and has not been destroyed.
pub(super) unsafe fn object<'a>(qp: *mut v::ibv_qp) -> &'a QpObject {
    // SAFETY: an `ibv_qp` of ours is the start of a QpObject.
    unsafe { &*qp.cast::<QpObject>() }
}

pub(super) unsafe extern "C" fn create_qp(pd: *mut v::ibv_pd, attr: *mut v::ibv_qp_init_attr) -> *mut v::ibv_qp {
    pointer(|| {
        // SAFETY: the caller's domain and attributes.
        let (ibv_context, domain, attr) = unsafe { ((*pd).context, mr::domain(pd), &mut *attr) };
        // SAFETY: as above.
        let context = unsafe { shared(ibv_context) };
        context.check_alive()?;
        let qp_type = match attr.qp_type {
            v::IBV_QPT_RC => QpType::Rc,
            _ => return Err(Errno(libc::EOPNOTSUPP)),
        };
        if attr.send_cq.is_null() || attr.recv_cq.is_null() || !attr.srq.is_null() {
            return Err(EINVAL);
        }
        let cap = queue_sizes(&attr.cap)?;
        // SAFETY: the caller's completion queues.
        let (send_cq, recv_cq) = unsafe { (cq::object(attr.send_cq), cq::object(attr.recv_cq)) };
        let port = context.port();
        let qpn = port.net().alloc_qpn().map_err(|_| Errno(libc::ENOMEM))?;
        let config = QpConfig {
            qpn,
            qp_type,
            pd: domain.id(),
            cap,
            sq_sig_all: attr.sq_sig_all != 0,
            send_cq: Arc::clone(&send_cq.cq),
            recv_cq: Arc::clone(&recv_cq.cq),
            srq: None,
            window: port.window(),
        };
        // The address is known before what is there: events name it.
        let place = Box::<QpObject>::new_uninit();
        let handle = place.as_ptr() as u64;
        let qp = Qp::new(port, config, Arc::clone(context.async_file()), handle);
        let mut verbs = verbs_qp::zeroed();
        let ibv = verbs.public_mut();
        ibv.context = ibv_context;
        ibv.qp_context = attr.qp_context;
        ibv.pd = pd;
        ibv.send_cq = attr.send_cq;
        ibv.recv_cq = attr.recv_cq;
        ibv.handle = qpn.get();
        ibv.qp_num = qpn.get();
        ibv.state = v::IBV_QPS_RESET;
        ibv.qp_type = attr.qp_type;
        attr.cap = public_cap(&cap);
        let object = QpObject {
            verbs,
            qp,
            // SAFETY: all-zero is a value of this plain C struct.
            ah_attr: unsafe { std::mem::zeroed() },
            sq_sig_all: attr.sq_sig_all != 0,
            domain: Arc::clone(domain),
            // SAFETY: `destroy_cq` refuses as long as this lives.
            cqs: unsafe { Use::new(attr.send_cq, attr.recv_cq) },
        };
        Ok(Box::into_raw(Box::write(place, object)).cast())
    })
}

fn public_cap(cap: &urxe_engine::QpCap) -> v::ibv_qp_cap {
    v::ibv_qp_cap {
        max_send_wr: cap.max_send_wr,
        max_recv_wr: cap.max_recv_wr,
        max_send_sge: cap.max_send_sge,
        max_recv_sge: cap.max_recv_sge,
        max_inline_data: cap.max_inline_data,
    }
}

pub(super) unsafe extern "C" fn modify_qp(qp: *mut v::ibv_qp, attr: *mut v::ibv_qp_attr, attr_mask: c_int) -> c_int {
    number(|| {
        // SAFETY: the caller's queue pair and attributes.
        let (context, object, attr) = unsafe { (shared((*qp).context), object(qp), &*attr) };
        context.check_alive()?;
        let mask = AttrMask::from_bits(attr_mask.cast_unsigned());
        let given = engine_attr(attr, mask)?;
        let current = object.qp.inspect(|engine| engine.state());
        let state = |number| QpState::from_u32(number).ok_or(EINVAL);
        if mask.contains(AttrMask::CUR_STATE) && state(attr.cur_qp_state)? != current {
            return Err(EINVAL);
        }
        let to = if mask.contains(AttrMask::STATE) { state(attr.qp_state)? } else { current };
        let way = if mask.contains(AttrMask::AV) {
            let dest_qpn = if mask.contains(AttrMask::DEST_QPN) {
                attr.dest_qp_num
            } else {
                object.qp.inspect(|engine| engine.attr().dest_qpn.get())
            };
            Some(route(context, &ah::address_vector(&attr.ah_attr), dest_qpn)?)
        } else {
            None
        };
        let port = object.qp.port();
        port.with_work(|work| object.qp.drive(work, |engine, io| engine.modify(io, to, mask, &given, way)))
            .map_err(|_| EINVAL)?;
        if to == QpState::Reset {
            object.qp.forget_completions();
        }
        if mask.contains(AttrMask::AV) {
            // SAFETY: the man page leaves modifying one queue pair from two threads to the application.
            unsafe { (*qp.cast::<QpObject>()).ah_attr = attr.ah_attr };
        }
        Ok(())
    })
}

pub(super) unsafe extern "C" fn query_qp(
    qp: *mut v::ibv_qp,
    attr: *mut v::ibv_qp_attr,
    _attr_mask: c_int,
    init_attr: *mut v::ibv_qp_init_attr,
) -> c_int {
    number(|| {
        // SAFETY: the caller's queue pair.
        let (context, object) = unsafe { (shared((*qp).context), object(qp)) };
        context.check_alive()?;
        // SAFETY: all-zero is a value of these plain C structs.
        let (mut answer, mut init) =
            unsafe { (std::mem::zeroed::<v::ibv_qp_attr>(), std::mem::zeroed::<v::ibv_qp_init_attr>()) };
        object.qp.inspect(|engine| {
            answer_attr(&mut answer, engine.state(), &engine.attr());
            answer.sq_draining = u8::from(engine.is_draining());
            answer.cap = public_cap(&engine.config().cap);
        });
        answer.ah_attr = object.ah_attr;
        init.cap = answer.cap;
        init.sq_sig_all = c_int::from(object.sq_sig_all);
        // SAFETY: the caller's queue pair, and room for the answers.
        unsafe {
            init.qp_context = (*qp).qp_context;
            init.send_cq = (*qp).send_cq;
            init.recv_cq = (*qp).recv_cq;
            init.srq = (*qp).srq;
            init.qp_type = (*qp).qp_type;
            attr.write(answer);
            init_attr.write(init);
        }
        Ok(())
    })
}

pub(super) unsafe extern "C" fn destroy_qp(qp: *mut v::ibv_qp) -> c_int {
    number(|| {
        // SAFETY: the caller's queue pair.
        let (context, object) = unsafe { (shared((*qp).context), object(qp)) };
        context.check_alive()?;
        let events = object.qp.retire();
        // SAFETY: the queue pair's own, initialised by being zero; not used any more afterwards.
        let object = unsafe {
            let (mutex, cond) = ((&raw mut (*qp).mutex).cast(), (&raw mut (*qp).cond).cast());
            wait::acknowledged(mutex, cond, &raw const (*qp).events_completed, events);
            Box::from_raw(qp.cast::<QpObject>())
        };
        drop(object.cqs);
        drop(object.domain);
        Ok(())
    })
}
