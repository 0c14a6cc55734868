//! Multicast groups of raw packet queue pairs (`ibv_attach_mcast(3)`): rules by destination.

use std::sync::PoisonError;

use urxe_engine::flow::{Class, Rule, spec};
use urxe_ffi::verbs as v;

use super::flow::system;
use super::object::{Group, object};
use crate::edge::context::shared;
use crate::kernel::Errno;
use urxe_runtime::limits;
use urxe_runtime::raw::Destination;

const EINVAL: Errno = Errno(libc::EINVAL);

/// Attaches a queue pair; again does nothing.
///
/// # Safety
/// `qp` is ours, [raw](super::is_raw) and lives; `gid` is a GID.
pub(in crate::edge) unsafe fn attach(qp: *mut v::ibv_qp, gid: *const v::ibv_gid) -> Result<(), Errno> {
    // SAFETY: the caller's promise.
    let (context, object, address) = unsafe { (shared((*qp).context), object(qp), address(gid)) };
    context.check_alive()?;
    let address = address?;
    let mut groups = object.groups.lock().unwrap_or_else(PoisonError::into_inner);
    if groups.iter().any(|group| group.address == address) {
        return Ok(());
    }
    if groups.len() >= limits::MAX_MCAST_GRP as usize {
        return Err(Errno(libc::ENOMEM));
    }
    let (wanted, actions) = spec::parse(&specification(address), 1).map_err(|_| EINVAL)?;
    let target = Destination { target: object.kind.target(), counters: None };
    let rule = Rule { class: Class::Normal, priority: 0, wanted, actions, dont_trap: false, target };
    let device = context.device();
    let flow = device.raw().add_flow(device.net(), rule).map_err(|error| system(&error))?;
    groups.push(Group { address, flow });
    Ok(())
}

/// Detaches a queue pair.
///
/// # Safety
/// As for [`attach`].
pub(in crate::edge) unsafe fn detach(qp: *mut v::ibv_qp, gid: *const v::ibv_gid) -> Result<(), Errno> {
    // SAFETY: the caller's promise.
    let (context, object, address) = unsafe { (shared((*qp).context), object(qp), address(gid)) };
    context.check_alive()?;
    let address = address?;
    let mut groups = object.groups.lock().unwrap_or_else(PoisonError::into_inner);
    let at = groups.iter().position(|group| group.address == address).ok_or(EINVAL)?;
    context.device().raw().remove_flow(&groups.swap_remove(at).flow);
    Ok(())
}

/// Returns the MAC address at the end of a GID.
///
/// # Errors
/// EINVAL unless it is a group's.
///
/// # Safety
/// `gid` is a GID.
unsafe fn address(gid: *const v::ibv_gid) -> Result<[u8; 6], Errno> {
    // SAFETY: the caller's promise; every bit pattern is sixteen bytes.
    let [.., a, b, c, d, e, f] = unsafe { (*gid).raw };
    if a & 1 == 0 { Err(EINVAL) } else { Ok([a, b, c, d, e, f]) }
}

/// Returns a `struct ibv_flow_spec_eth` with this destination.
fn specification(address: [u8; 6]) -> Vec<u8> {
    const SIZE: u16 = 40;
    let filter = |address: [u8; 6]| [&address[..], &[0; 10]].concat();
    let mut bytes = [&v::IBV_FLOW_SPEC_ETH.to_ne_bytes()[..], &SIZE.to_ne_bytes()].concat();
    bytes.extend([filter(address), filter([0xff; 6])].concat());
    bytes.resize(SIZE.into(), 0);
    bytes
}
