//! Creating and opening queue pairs.

use std::cell::UnsafeCell;
use std::ptr;
use std::sync::{Arc, Mutex};

use urxe_engine::{Pd, QpCap, QpConfig, QpType};
use urxe_explain::Verb;
use urxe_ffi::driver::objects::verbs_qp;
use urxe_ffi::verbs as v;
use urxe_wire::Qpn;

use crate::edge::batch::Builder;
use crate::edge::context::shared;
use crate::edge::cq_home::CqHome;
use crate::edge::qp_object::QpObject;
use crate::edge::users::{Use, Users};
use crate::edge::{builder, context, cq, mr, ptr_verb, raw, srq, xrcd};
use crate::kernel::Errno;
use crate::verbs::context::Context;
use crate::verbs::diagnostics;
use crate::verbs::objects::queue_sizes;
use crate::verbs::query;
use crate::verbs::shards::ThreadNumber;
use urxe_diag::quirks;
use urxe_runtime::async_events::AsyncEvents;
use urxe_runtime::device::Device;
use urxe_runtime::qp::Qp;
use urxe_runtime::sanitizer;
use urxe_runtime::srq::AnySrq;

const EINVAL: Errno = Errno(libc::EINVAL);

/// Attributes of `ibv_create_qp_ex` that are known; flags to create by are known as far as there are none.
const INIT_ATTRS: u32 = v::IBV_QP_INIT_ATTR_PD
    | v::IBV_QP_INIT_ATTR_XRCD
    | v::IBV_QP_INIT_ATTR_CREATE_FLAGS
    | v::IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;

pub(in crate::edge) unsafe extern "C" fn create_qp(
    pd: *mut v::ibv_pd,
    attr: *mut v::ibv_qp_init_attr,
) -> *mut v::ibv_qp {
    ptr_verb(Verb::CreateQp, || {
        // SAFETY: the caller's attributes; all-zero is a value of the extended ones, which begin with the same.
        let (attr, mut extended) = unsafe { (&mut *attr, std::mem::zeroed::<v::ibv_qp_init_attr_ex>()) };
        extended.qp_context = attr.qp_context;
        extended.send_cq = attr.send_cq;
        extended.recv_cq = attr.recv_cq;
        extended.srq = attr.srq;
        extended.cap = attr.cap;
        extended.qp_type = attr.qp_type;
        extended.sq_sig_all = attr.sq_sig_all;
        extended.comp_mask = v::IBV_QP_INIT_ATTR_PD;
        extended.pd = pd;
        // SAFETY: the caller's domain and queues.
        let qp = unsafe { create((*pd).context, &mut extended) }?;
        attr.cap = extended.cap;
        Ok(qp)
    })
}

pub(in crate::edge) unsafe extern "C" fn create_qp_ex(
    context: *mut v::ibv_context,
    attr: *mut v::ibv_qp_init_attr_ex,
) -> *mut v::ibv_qp {
    // SAFETY: the caller's context, attributes, domains and queues.
    ptr_verb(Verb::CreateQpEx, || unsafe { create(context, &mut *attr) })
}

/// # Safety
/// The objects that the attributes name are ours and live, those that a queue pair of this type does not use may be
/// anything.
unsafe fn create(ibv_context: *mut v::ibv_context, attr: &mut v::ibv_qp_init_attr_ex) -> Result<*mut v::ibv_qp, Errno> {
    // SAFETY: the caller's context.
    let context = unsafe { shared(ibv_context) };
    context.check_alive()?;
    if attr.qp_type == v::IBV_QPT_RAW_PACKET {
        // SAFETY: the caller's promise.
        return unsafe { raw::create(ibv_context, attr) };
    }
    let (qp_type, operations) = kind(attr)?;
    let (sends, receives) = (qp_type != QpType::XrcRecv, !matches!(qp_type, QpType::XrcSend | QpType::XrcRecv));
    let (named_pd, xrcd) = forget_unused(attr, sends, receives)?;
    let cap = if sends { queue_sizes(&attr.cap, receives && attr.srq.is_null())? } else { NO_CAP };
    // SAFETY: the caller's objects.
    let cq_of = |cq: *mut v::ibv_cq| (!cq.is_null()).then(|| unsafe { cq::object(cq) });
    let (send_cq, recv_cq) = (cq_of(attr.send_cq), cq_of(attr.recv_cq));
    // SAFETY: as above.
    let (domain, srq, xrcd) = unsafe {
        (
            (!attr.pd.is_null()).then(|| Arc::clone(mr::domain(attr.pd))),
            (!attr.srq.is_null()).then(|| srq::object(attr.srq)),
            (!xrcd.is_null()).then(|| xrcd::object(xrcd)),
        )
    };
    // A queue of XRC belongs to no queue pair.
    if srq.is_some_and(|srq| srq.srq.xrc().is_some()) {
        return Err(diagnostics::wrong(
            EINVAL,
            "srq is of XRC, which belongs to no queue pair",
            "make the SRQ with IBV_SRQT_BASIC",
        ));
    }
    let counted = context.quotas().qp.take()?;
    let homes: Vec<&CqHome> = send_cq.iter().chain(&recv_cq).map(|cq| &cq.home).collect();
    let user = || domain.as_ref().and_then(|domain| domain.thread()).unwrap_or_else(ThreadNumber::current);
    let (device, qpn) = place(context, qp_type, user, &homes)?;
    let device = &device;
    let config = QpConfig {
        qpn,
        qp_type,
        pd: domain.as_ref().map_or(NO_PD, |domain| domain.id()),
        cap,
        sq_sig_all: attr.sq_sig_all != 0,
        send_cq: send_cq.map(|cq| Arc::clone(&cq.cq)),
        recv_cq: recv_cq.map(|cq| Arc::clone(&cq.cq)),
        srq: srq.map(|srq| AnySrq::Local(Arc::clone(&srq.srq))),
        xrcd: xrcd.map(|xrcd| xrcd.xrcd.id()),
        window: device.window(),
        congestion: context.congestion(),
        ack_timer: crate::device::ack_timer(),
        selective: context.selective_repeat(),
        port_mtu: query::active_mtu(&context.interface()),
        quirks: quirks::queue_pair(),
        counters: Vec::new(),
    };
    // The address is known before what is there: events name it.
    let place = Box::<QpObject>::new_uninit();
    let events = AsyncEvents::new(context.async_sink(), place.as_ptr() as u64);
    let qp = Qp::new(device, config, events);
    if let Some(observer) = context.observer() {
        observer.check_sizes(device, &qp);
    }
    let mut verbs = verbs_qp::zeroed();
    let ibv = verbs.public_mut();
    ibv.context = ibv_context;
    ibv.qp_context = attr.qp_context;
    ibv.pd = named_pd;
    ibv.send_cq = attr.send_cq;
    ibv.recv_cq = attr.recv_cq;
    ibv.srq = attr.srq;
    ibv.handle = qpn.get();
    ibv.qp_num = qpn.get();
    ibv.state = v::IBV_QPS_RESET;
    ibv.qp_type = attr.qp_type;
    attr.cap = public_cap(&cap);
    if let Some(operations) = operations {
        // SAFETY: the caller's context.
        let library = unsafe { context::library(ibv_context) };
        builder::install(&mut verbs, library.qp_layout(), qp_type, operations);
    }
    let cqs = send_cq.iter().chain(&recv_cq).map(|cq| &cq.users);
    let used: Vec<&Users> = cqs.chain(srq.map(|srq| &srq.users)).chain(xrcd.map(|xrcd| &xrcd.users)).collect();
    let object = QpObject {
        verbs: UnsafeCell::new(verbs),
        qp,
        // SAFETY: all-zero is a value of this plain C struct.
        ah_attrs: Mutex::new(unsafe { std::mem::zeroed() }),
        sq_sig_all: attr.sq_sig_all != 0,
        builder: Builder::default(),
        max_inline: cap.max_inline_data,
        users: Users::default(),
        domain,
        // SAFETY: their `destroy` refuses as long as this lives.
        used: unsafe { Use::of(&used) },
        _counted: counted,
    };
    let object = Box::into_raw(Box::write(place, object));
    // More than an `ibv_qp`: the functions of an `ibv_qp_ex`, which inline functions of the headers read.
    sanitizer::written(object as u64, size_of::<QpObject>());
    Ok(object.cast())
}

/// Returns the device for a queue pair that a thread uses and that completes at these queues, and a number that it has there.
fn place(
    context: &Context,
    qp_type: QpType,
    user: impl FnOnce() -> ThreadNumber,
    homes: &[&CqHome],
) -> Result<(Arc<Device>, Qpn), Errno> {
    let user = matches!(qp_type, QpType::Rc | QpType::Uc).then(user);
    let mut device = CqHome::choose(context, homes, user);
    if qp_type == QpType::Ud {
        device.net().report_headers();
    }
    let mut qpn = device.net().alloc_qpn();
    if qpn.is_err() && device.is_shard() {
        // A shard has fewer numbers than the device.
        CqHome::mix(homes);
        device = Arc::clone(context.device());
        qpn = device.net().alloc_qpn();
    }
    Ok((device, qpn.map_err(|error| diagnostics::no_qpn(&error))?))
}

/// Reads the type of a queue pair, and the operations of `ibv_wr_*` that it is to have.
fn kind(attr: &v::ibv_qp_init_attr_ex) -> Result<(QpType, Option<u64>), Errno> {
    if attr.comp_mask & !INIT_ATTRS != 0
        || (attr.comp_mask & v::IBV_QP_INIT_ATTR_CREATE_FLAGS != 0 && attr.create_flags != 0)
    {
        return Err(diagnostics::wrong(
            Errno(libc::EOPNOTSUPP),
            "comp_mask or create_flags ask for what this device does not have",
            "leave create_flags 0, and RSS, flow tags and source QPNs out",
        ));
    }
    let qp_type = match attr.qp_type {
        v::IBV_QPT_RC => QpType::Rc,
        v::IBV_QPT_UC => QpType::Uc,
        v::IBV_QPT_UD => QpType::Ud,
        v::IBV_QPT_XRC_SEND => QpType::XrcSend,
        v::IBV_QPT_XRC_RECV => QpType::XrcRecv,
        other => {
            // As the kernel's `create_qp` (uverbs_cmd.c) and the drivers behind it.
            let known = other == v::IBV_QPT_DRIVER;
            return Err(diagnostics::wrong(
                Errno(if known { libc::EOPNOTSUPP } else { libc::EINVAL }),
                "qp_type is none that this device has",
                "use IBV_QPT_RC, _UC, _UD, _RAW_PACKET, _XRC_SEND or _XRC_RECV",
            ));
        }
    };
    let operations = (attr.comp_mask & v::IBV_QP_INIT_ATTR_SEND_OPS_FLAGS != 0).then_some(attr.send_ops_flags);
    if operations.is_some_and(|asked| asked & !builder::operations(qp_type) != 0) {
        return Err(Errno(libc::EOPNOTSUPP));
    }
    Ok((qp_type, operations))
}

/// Clears the attributes that a type has no use for, which are not looked at, as in the kernel's `create_qp` (uverbs_cmd.c).
/// Returns the protection domain that the application named, and the XRC domain.
fn forget_unused(
    attr: &mut v::ibv_qp_init_attr_ex,
    sends: bool,
    receives: bool,
) -> Result<(*mut v::ibv_pd, *mut v::ibv_xrcd), Errno> {
    // An application that names a protection domain for an XRC target finds it in there, of no meaning (libibverbs'
    // `set_qp` of cmd_qp.c): librdmacm creates the SRQs in it.
    let named_pd = if attr.comp_mask & v::IBV_QP_INIT_ATTR_PD != 0 { attr.pd } else { ptr::null_mut() };
    if !sends {
        (attr.pd, attr.send_cq, attr.cap) = (ptr::null_mut(), ptr::null_mut(), NO_QUEUES);
    }
    if !receives {
        (attr.recv_cq, attr.srq) = (ptr::null_mut(), ptr::null_mut());
    }
    let xrcd = if sends { ptr::null_mut() } else { attr.xrcd };
    let given = |field| attr.comp_mask & field != 0;
    if (sends && (!given(v::IBV_QP_INIT_ATTR_PD) || attr.pd.is_null() || attr.send_cq.is_null()))
        || (receives && attr.recv_cq.is_null())
        || (!sends && (!given(v::IBV_QP_INIT_ATTR_XRCD) || xrcd.is_null()))
    {
        return Err(diagnostics::wrong(
            EINVAL,
            "pd, send_cq, recv_cq or xrcd is missing",
            "set pd, send_cq and recv_cq (of XRC: pd and send_cq, or xrcd) and the comp_mask that says so",
        ));
    }
    Ok((named_pd, xrcd))
}

/// Of an XRC target: nothing is posted to it.
const NO_QUEUES: v::ibv_qp_cap =
    v::ibv_qp_cap { max_send_wr: 0, max_recv_wr: 0, max_send_sge: 0, max_recv_sge: 0, max_inline_data: 0 };
const NO_CAP: QpCap = QpCap { max_send_wr: 0, max_recv_wr: 0, max_send_sge: 0, max_recv_sge: 0, max_inline_data: 0 };
/// Of an XRC target: memory is of the SRQs' domains. No domain has this number.
const NO_PD: Pd = Pd(0);

/// Another handle of an XRC target of this process (`ibv_open_qp(3)`).
pub(in crate::edge) unsafe extern "C" fn open_qp(
    ibv_context: *mut v::ibv_context,
    attr: *mut v::ibv_qp_open_attr,
) -> *mut v::ibv_qp {
    ptr_verb(Verb::OpenQp, || {
        const NEEDED: u32 = v::IBV_QP_OPEN_ATTR_NUM | v::IBV_QP_OPEN_ATTR_XRCD | v::IBV_QP_OPEN_ATTR_TYPE;
        // SAFETY: the caller's context and attributes.
        let (context, attr) = unsafe { (shared(ibv_context), &*attr) };
        context.check_alive()?;
        // As libibverbs' ibv_cmd_open_qp.
        if attr.comp_mask >= v::IBV_QP_OPEN_ATTR_RESERVED {
            return Err(Errno(libc::EOPNOTSUPP));
        }
        if attr.comp_mask & NEEDED != NEEDED || attr.xrcd.is_null() || attr.qp_type != v::IBV_QPT_XRC_RECV {
            return Err(EINVAL);
        }
        // SAFETY: the caller's domain.
        let xrcd = unsafe { xrcd::object(attr.xrcd) };
        let counted = context.quotas().qp.take()?;
        let qp = context.device().qp(Qpn::new(attr.qp_num)).ok_or(EINVAL)?;
        let (mine, state) = qp.inspect(|engine| (engine.config().xrcd == Some(xrcd.xrcd.id()), engine.state()));
        let place = Box::<QpObject>::new_uninit();
        let events = AsyncEvents::new(context.async_sink(), place.as_ptr() as u64);
        if !mine || !qp.open(events) {
            return Err(EINVAL);
        }
        let mut verbs = verbs_qp::zeroed();
        let ibv = verbs.public_mut();
        ibv.context = ibv_context;
        if attr.comp_mask & v::IBV_QP_OPEN_ATTR_CONTEXT != 0 {
            ibv.qp_context = attr.qp_context;
        }
        ibv.handle = attr.qp_num;
        ibv.qp_num = attr.qp_num;
        ibv.state = state as u32;
        ibv.qp_type = attr.qp_type;
        let object = QpObject {
            verbs: UnsafeCell::new(verbs),
            qp,
            // SAFETY: all-zero is a value of this plain C struct.
            ah_attrs: Mutex::new(unsafe { std::mem::zeroed() }),
            sq_sig_all: false,
            builder: Builder::default(),
            max_inline: 0,
            users: Users::default(),
            domain: None,
            // SAFETY: `close_xrcd` refuses as long as this lives.
            used: unsafe { Use::of(&[&xrcd.users]) },
            _counted: counted,
        };
        Ok(Box::into_raw(Box::write(place, object)).cast())
    })
}

pub(in crate::edge) fn public_cap(cap: &QpCap) -> v::ibv_qp_cap {
    v::ibv_qp_cap {
        max_send_wr: cap.max_send_wr,
        max_recv_wr: cap.max_recv_wr,
        max_send_sge: cap.max_send_sge,
        max_recv_sge: cap.max_recv_sge,
        max_inline_data: cap.max_inline_data,
    }
}
