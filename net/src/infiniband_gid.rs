//! GIDs of InfiniBand ports: a subnet prefix and a GUID that embeds an IPv4 address.

use urxe_wire::{Gid, Guid, mgid};

/// The GID of the default subnet prefix and the GUID that embeds the IPv4 address of `gid`, of a group the MGID of IPoIB; others
/// stay.
pub(crate) fn embedding(gid: &Gid) -> Gid {
    match gid.ipv6().to_ipv4_mapped() {
        Some(group) if group.is_multicast() => mgid::of_ipv4(group),
        Some(address) => Guid::from(address).gid(),
        None => *gid,
    }
}

/// The GID table of an InfiniBand port on an interface with this table of RoCE: a row for each IPv4 address; for lack of those,
/// the default GID.
pub(crate) fn infiniband_gids(gids: &[Gid]) -> Vec<Gid> {
    let rows: Vec<Gid> = gids.iter().filter(|gid| gid.ipv6().to_ipv4_mapped().is_some()).map(embedding).collect();
    if rows.is_empty() { gids.iter().take(1).copied().collect() } else { rows }
}
