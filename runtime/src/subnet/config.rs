//! Properties of a device's port in its subnet.

use urxe_engine::subnet::PortConfig;
use urxe_net::Interface;
use urxe_status::port::PortAttributes;
use urxe_wire::{Gid, Guid, Mtu};

use crate::device::Device;

fn description(device: &Device) -> [u8; 64] {
    let mut host = [0_u8; 48];
    // SAFETY: a buffer of this length.
    let is_known = unsafe { libc::gethostname(host.as_mut_ptr().cast(), host.len() - 1) } == 0;
    let host = if is_known { host.split(|byte| *byte == 0).next().unwrap_or_default() } else { b"localhost" };
    let mut text = [0; 64];
    for (to, from) in text.iter_mut().zip(host.iter().chain(b" ").chain(device.device_name().as_bytes()).take(63)) {
        *to = *from;
    }
    text
}

/// Properties of the port, as its interface and options are now.
pub(super) fn config(device: &Device, interface: &Interface) -> PortConfig {
    let attributes = PortAttributes::of(interface.link_layer());
    let guid = |gid: &Gid| Guid::new(gid.octets().last_chunk().copied().unwrap_or_default());
    PortConfig {
        lid: interface.lid(),
        guids: interface.gids().iter().map(guid).collect(),
        prefix_len: interface.lid_scheme().map_or(0, |scheme| scheme.prefix_len()),
        capability_mask: attributes.capability_mask,
        width: attributes.width,
        speed: attributes.speed,
        mtu: Mtu::ALL.into_iter().find(|mtu| mtu.bytes() == usize::from(interface.path_mtu())).map_or(3, Mtu::code),
        p_keys: (0..attributes.pkeys).filter_map(|index| attributes.pkey(index)).collect(),
        description: description(device),
        is_up: interface.is_running(),
    }
}
