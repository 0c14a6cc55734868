//! LIDs, for programs that know InfiniBand only.
//!
//! RoCE has none: a port's LID is 0, and an address vector without a GRH leads nowhere (`rdma_check_ah_attr` of the
//! kernel). Programs that were written for InfiniBand tell each other LIDs and nothing else: qperf without `-cm 1`,
//! datagrams over rsockets. Where `--lid` asks for it, the last two bytes of a port's first IPv4 address are its LID, and
//! what goes to a LID goes to that address of the own network. What is on the wire has a GRH as ever.

use std::net::{IpAddr, Ipv4Addr};

use urxe_net::Interface;
use urxe_wire::{Gid, Lid};

use super::address_vector::AddressVector;
use super::diagnostics;
use crate::device;
use crate::kernel::Errno;

/// TTL of a packet whose sender names none, as the kernel's default (`net.ipv4.ip_default_ttl`).
const HOP_LIMIT: u8 = 64;

/// The LID of the port.
pub(crate) fn of(interface: &Interface) -> Lid {
    if device::has_lids() { interface.lid() } else { Lid::NONE }
}

/// The LID of a peer with this GID.
pub(crate) fn of_peer(gid: &Gid) -> Lid {
    let address = gid.ipv6().to_ipv4_mapped().filter(|_| device::has_lids());
    address.map_or(Lid::NONE, |address| {
        let [.., high, low] = address.octets();
        Lid(u16::from_be_bytes([high, low]))
    })
}

/// An address vector that says by a GRH what `av` says by a LID.
///
/// # Errors
/// EINVAL if that is nothing.
pub(crate) fn with_grh(interface: &Interface, av: &AddressVector) -> Result<AddressVector, Errno> {
    if !device::has_lids() {
        return Err(diagnostics::wrong(
            Errno(libc::EINVAL),
            "ah_attr.is_global is 0: this is RoCE, which needs a GRH",
            "set is_global to 1, grh.dgid to the peer's GID and grh.sgid_index to a row of the own table",
        ));
    }
    let led = interface.first_ipv4().and_then(|(index, own)| Some((index, peer(own, av.dlid)?)));
    let (sgid_index, peer) = led.ok_or_else(|| diagnostics::no_lid(av.dlid))?;
    Ok(AddressVector { dgid: Gid::from(IpAddr::V4(peer)), sgid_index, hop_limit: HOP_LIMIT, is_global: true, ..*av })
}

/// The address that has this LID in the network of `own`.
fn peer(own: Ipv4Addr, lid: Lid) -> Option<Ipv4Addr> {
    let ([a, b, ..], [c, d]) = (own.octets(), lid.0.to_be_bytes());
    lid.is_unicast().then(|| Ipv4Addr::new(a, b, c, d))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lid_leads_to_an_address_of_the_own_network() {
        let own = Ipv4Addr::new(10, 77, 0, 1);
        assert_eq!(peer(own, Lid(2)), Some(Ipv4Addr::new(10, 77, 0, 2)));
        assert_eq!(peer(own, Lid(0xBFFF)), Some(Ipv4Addr::new(10, 77, 191, 255)));
        for nobody in [0, 0xC000, 0xFFFF] {
            assert_eq!(peer(own, Lid(nobody)), None);
        }
    }
}
