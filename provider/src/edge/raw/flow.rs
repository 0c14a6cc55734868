//! Flow steering (`ibv_create_flow(3)`).

use std::ffi::c_int;
use std::io;
use std::sync::Arc;

use urxe_engine::QpType;
use urxe_engine::flow::{Class, Rule, SpecError, spec};
use urxe_explain::Verb;
use urxe_ffi::verbs as v;

use super::object::object;
use super::qp::refused as refused_socket;
use super::{counters, is_raw};
use crate::device::uses_xdp;
use crate::edge::context::shared;
use crate::edge::users::{Use, Users};
use crate::edge::{int_verb, ptr_verb, qp_object};
use crate::kernel::Errno;
use crate::verbs::context::Context;
use crate::verbs::diagnostics;
use urxe_runtime::device::Device;
use urxe_runtime::raw::{Destination, Flow, Target};

const EINVAL: Errno = Errno(libc::EINVAL);
const EOPNOTSUPP: Errno = Errno(libc::EOPNOTSUPP);

/// An `ibv_flow` of ours.
#[repr(C)]
struct FlowObject {
    ibv: v::ibv_flow,
    flow: Flow,
    device: Arc<Device>,
    used: Use,
}

pub(in crate::edge) unsafe extern "C" fn create_flow(
    qp: *mut v::ibv_qp,
    attr: *mut v::ibv_flow_attr,
) -> *mut v::ibv_flow {
    ptr_verb(Verb::CreateFlow, || {
        // SAFETY: the caller's queue pair and attributes, which programs pack.
        let (ibv_context, fields) = unsafe { ((*qp).context, attr.read_unaligned()) };
        // SAFETY: the caller's queue pair.
        let context = unsafe { shared(ibv_context) };
        context.check_alive()?;
        // SAFETY: as above.
        let (receiver, receiver_users) = unsafe { receiver(qp, context) }?;
        let (class, dont_trap) = kind(&fields)?;
        // SAFETY: the specifications follow, as many as the attributes say.
        let bytes = unsafe { specifications(attr, fields.num_of_specs) };
        let (wanted, actions) = spec::parse(&bytes, fields.num_of_specs).map_err(refused)?;
        let counters = actions.counters.map(|counters| counters as *mut v::ibv_counters);
        if counters.is_some_and(<*mut _>::is_null) {
            return Err(EINVAL);
        }
        // SAFETY: the caller's counters.
        let counters = counters.map(|counters| unsafe { counters::object(counters) });
        if class != Class::Normal && !wanted.is_any() {
            return Err(diagnostics::wrong(
                EINVAL,
                "a rule of this type takes frames whatever they are",
                "leave the specifications out, or make it IBV_FLOW_ATTR_NORMAL",
            ));
        }
        if actions.tag.is_some() && matches!(receiver, Target::Datagrams(_)) {
            return Err(diagnostics::wrong(
                EOPNOTSUPP,
                "completions of datagrams have no flow tag",
                "leave IBV_FLOW_SPEC_ACTION_TAG out, or lead the rule to a raw packet queue pair",
            ));
        }
        let counted = counters.map(|counters| Arc::clone(&counters.counted));
        let target = Destination { target: receiver, counters: counted };
        let rule = Rule { class, priority: fields.priority, wanted, actions, dont_trap, target };
        let device = Arc::clone(context.device());
        let flow = device.raw().add_flow(device.net(), rule);
        let flow = flow.map_err(|error| system(&error))?;
        let ibv = v::ibv_flow { comp_mask: 0, context: ibv_context, handle: 0 };
        let users: Vec<_> = counters.iter().map(|counters| &counters.users).chain([receiver_users]).collect();
        // SAFETY: `destroy_qp` and `destroy_counters` refuse as long as this lives.
        let used = unsafe { Use::of(&users) };
        Ok(Box::into_raw(Box::new(FlowObject { ibv, flow, device, used })).cast())
    })
}

/// Returns the receiver of what a rule takes, and the count of the rules to it.
///
/// # Safety
/// A queue pair of ours, of this context.
unsafe fn receiver<'a>(qp: *mut v::ibv_qp, context: &Context) -> Result<(Target, &'a Users), Errno> {
    // SAFETY: the caller's promise.
    if unsafe { is_raw(qp) } {
        // SAFETY: as above.
        let object = unsafe { object(qp) };
        return Ok((object.kind.target(), &object.users));
    }
    // SAFETY: as above, and not raw.
    let object = unsafe { qp_object::object(qp) };
    if object.qp.inspect(|engine| engine.config().qp_type) != QpType::Ud {
        return Err(diagnostics::wrong(
            EINVAL,
            "rules are to raw packet and UD queue pairs",
            "make the queue pair with IBV_QPT_RAW_PACKET or IBV_QPT_UD",
        ));
    }
    let device = context.device();
    device.raw().tx(device.net()).map_err(|error| refused_socket(&error))?;
    Ok((Target::Datagrams(Arc::downgrade(&object.qp)), &object.users))
}

/// Returns the errno of a system that refuses a rule.
pub(super) fn system(error: &io::Error) -> Errno {
    let errno = Errno(error.raw_os_error().unwrap_or(libc::ENOMEM));
    if !uses_xdp() {
        return errno;
    }
    match errno.0 {
        libc::EPERM => diagnostics::wrong(
            errno,
            "XDP needs CAP_BPF and CAP_NET_ADMIN, which user namespaces do not give",
            "run as root, with the container's --cap-add=BPF,NET_ADMIN,NET_RAW, or choose URXE_RAW=packet",
        ),
        libc::EBUSY => diagnostics::wrong(
            errno,
            "another process takes frames from the interface by XDP, of which there is one at a time",
            "end that one, or choose URXE_RAW=packet here: it gets what the other leaves",
        ),
        _ => errno,
    }
}

/// Returns the class of a rule, and whether it lets others have its frames.
fn kind(attr: &v::ibv_flow_attr) -> Result<(Class, bool), Errno> {
    if attr.comp_mask != 0 || attr.port != 1 {
        return Err(diagnostics::wrong(EINVAL, "comp_mask is not 0, or port is not 1", "the device has port 1 only"));
    }
    if attr.flags & v::IBV_FLOW_ATTR_FLAGS_EGRESS != 0 {
        return Err(diagnostics::wrong(
            EOPNOTSUPP,
            "the device steers what it receives",
            "leave IBV_FLOW_ATTR_FLAGS_EGRESS out",
        ));
    }
    if attr.flags & !v::IBV_FLOW_ATTR_FLAGS_DONT_TRAP != 0 {
        return Err(EINVAL);
    }
    let class = match attr.type_ {
        v::IBV_FLOW_ATTR_NORMAL => Class::Normal,
        v::IBV_FLOW_ATTR_ALL_DEFAULT => Class::AllDefault,
        v::IBV_FLOW_ATTR_MC_DEFAULT => Class::MulticastDefault,
        v::IBV_FLOW_ATTR_SNIFFER => Class::Sniffer,
        _ => return Err(diagnostics::wrong(EINVAL, "type is none of ibv_flow_attr_type", "use IBV_FLOW_ATTR_NORMAL")),
    };
    Ok((class, attr.flags & v::IBV_FLOW_ATTR_FLAGS_DONT_TRAP != 0))
}

/// Returns the bytes of the specifications behind `attr`. Their lengths are their own: `attr.size` is 0 in VPP.
///
/// # Safety
/// `count` specifications follow, each as long as it says.
unsafe fn specifications(attr: *const v::ibv_flow_attr, count: u8) -> Vec<u8> {
    let mut bytes = Vec::new();
    // SAFETY: the caller's promise.
    let mut at = unsafe { attr.add(1) }.cast::<u8>();
    for _ in 0..count {
        // SAFETY: a specification begins here, and these bytes are its type and size.
        let start = unsafe { at.cast::<[u8; spec::SPEC_HEADER]>().read_unaligned() };
        let Some((_, size)) = spec::header(&start).filter(|(_, size)| *size >= start.len()) else { break };
        // SAFETY: as long as it says.
        bytes.extend_from_slice(unsafe { std::slice::from_raw_parts(at, size) });
        // SAFETY: the end of the specification.
        at = unsafe { at.add(size) };
    }
    bytes
}

/// Returns the errno of specifications that are refused.
fn refused(error: SpecError) -> Errno {
    let (errno, why) = match error {
        SpecError::Truncated => {
            (EINVAL, "a specification is shorter than its type, or there are fewer than num_of_specs")
        }
        SpecError::UnknownType(_) => (EINVAL, "a specification has a type that there is none of"),
        SpecError::Actions => (EINVAL, "actions contradict one another"),
        SpecError::Unsupported(_) => (EOPNOTSUPP, "a specification is of a type that the device does not match"),
        SpecError::UnsupportedField(_) => (EOPNOTSUPP, "a mask covers a field that the device does not match"),
    };
    diagnostics::wrong(errno, why, "see the table of specifications in docs/guide/raw-ethernet.md")
}

pub(in crate::edge) unsafe extern "C" fn destroy_flow(flow: *mut v::ibv_flow) -> c_int {
    int_verb(Verb::DestroyFlow, || {
        // SAFETY: the caller's flow.
        unsafe { shared((*flow).context) }.check_own()?;
        // SAFETY: from `create_flow`, and not used any more.
        let object = unsafe { Box::from_raw(flow.cast::<FlowObject>()) };
        object.device.raw().remove_flow(&object.flow);
        drop(object.used);
        Ok(())
    })
}
