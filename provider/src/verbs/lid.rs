//! LIDs: address vectors without a GRH.
//!
//! A port of InfiniBand has them. One of RoCE has none: its LID is 0, and an address vector without a GRH leads nowhere
//! (`rdma_check_ah_attr` of the kernel), unless `--lid` asks for LIDs, for programs that were written for InfiniBand and tell
//! each other LIDs and nothing else. A LID leads to an IPv4 address ([`LidTable`](urxe_net::LidTable)). What is on the wire has
//! a GRH as ever.

use std::net::IpAddr;

use urxe_net::{Port, PortLids};
use urxe_wire::{Gid, Lid};

use super::address_vector::{AddressVector, HOP_LIMIT};
use super::diagnostics;
use crate::device;
use crate::kernel::Errno;

/// The LIDs of the port; all zero if ports have none.
pub(crate) fn of(port: &Port) -> PortLids {
    match (device::has_lids(), port.interface()) {
        (false, _) => PortLids::default(),
        (true, interface) if interface.link_layer().is_infiniband() => port.lids().port(&interface),
        // RoCE has no subnet manager.
        (true, interface) => PortLids { lid: interface.lid(), ..PortLids::default() },
    }
}

/// The LID of a peer with this GID.
pub(crate) fn of_peer(port: &Port, gid: &Gid) -> Lid {
    if !device::has_lids() {
        return Lid::NONE;
    }
    let interface = port.interface();
    port.lids().lid_of(&interface, interface.network_gid(gid).ip())
}

/// An address vector that says by a GRH what `av` says by a LID.
///
/// # Errors
/// EINVAL if that is nothing.
pub(crate) fn with_grh(port: &Port, av: &AddressVector) -> Result<AddressVector, Errno> {
    if !device::has_lids() {
        return Err(diagnostics::wrong(
            Errno(libc::EINVAL),
            "ah_attr.is_global is 0: this is RoCE, which needs a GRH",
            "set is_global to 1, grh.dgid to the peer's GID and grh.sgid_index to a row of the own table",
        ));
    }
    let interface = port.interface();
    let led = interface.first_ipv4().and_then(|(index, _)| Some((index, port.lids().address_of(&interface, av.dlid)?)));
    let (sgid_index, peer) = led.ok_or_else(|| diagnostics::no_lid(av.dlid))?;
    Ok(AddressVector { dgid: Gid::from(IpAddr::V4(peer)), sgid_index, hop_limit: HOP_LIMIT, is_global: true, ..*av })
}
