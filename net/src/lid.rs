//! Names of InfiniBand ports: GIDs of a subnet prefix and a GUID, and LIDs by the [scheme](urxe_wire::LidScheme).

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use urxe_wire::{Gid, Guid, Lid, mgid};

use crate::Interface;
use crate::infiniband_gid::embedding;

impl Interface {
    /// The LID by the scheme; [`Lid::NONE`] if the interface can have none.
    #[must_use]
    pub fn lid(&self) -> Lid {
        self.lid_scheme().map_or(Lid::NONE, |scheme| scheme.lid())
    }

    /// The first row of the GID table that stands for an IPv4 address.
    #[must_use]
    pub fn first_ipv4(&self) -> Option<(u32, Ipv4Addr)> {
        let address = |gid| self.network_gid(gid).ipv6().to_ipv4_mapped();
        let (position, address) =
            self.gids().iter().enumerate().find_map(|(position, gid)| Some((position, address(gid)?)))?;
        Some((u32::try_from(self.gid_layout().row(position)).ok()?, address))
    }

    /// The GID that packets of the network have in the place of this one of verbs: of InfiniBand, a GUID that embeds an IPv4
    /// address stands for that, and an [MGID](mgid) for an IPv4 group, where the port has IPv4 addresses.
    #[must_use]
    pub fn network_gid(&self, gid: &Gid) -> Gid {
        let embedded = || Guid::of_gid(gid).map_or_else(|| self.group(gid), Guid::ipv4);
        let address = if self.link_layer().is_infiniband() { embedded() } else { None };
        address.map_or(*gid, |address| Gid::from(IpAddr::V4(address)))
    }

    fn group(&self, gid: &Gid) -> Option<Ipv4Addr> {
        mgid::ipv4_group(gid).filter(|_| self.addresses().iter().any(SocketAddr::is_ipv4))
    }

    /// The GID that verbs show for this one of the network: reverses [`network_gid`](Self::network_gid).
    #[must_use]
    pub fn shown_gid(&self, gid: &Gid) -> Gid {
        if self.link_layer().is_infiniband() { embedding(gid) } else { *gid }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::infiniband_gid::infiniband_gids;

    fn gid(text: &str) -> Gid {
        Gid::from(text.parse::<IpAddr>().unwrap())
    }

    #[test]
    fn gid_tables() {
        let default = gid("fe80::5054:ff:fe12:3456");
        let table = infiniband_gids(&[default, gid("10.77.0.1"), gid("10.77.0.9"), gid("2001:db8::1")]);
        assert_eq!(table, [gid("fe80::200:5efe:a4d:1"), gid("fe80::200:5efe:a4d:9")]);
        assert_eq!(infiniband_gids(&[default, gid("2001:db8::1")]), [default]);
    }

    #[test]
    fn gids_of_verbs_and_of_packets() {
        let lo = Interface::by_name("lo").unwrap().with_link_layer(urxe_wire::LinkLayer::Infiniband);
        for (shown, network) in [
            ("fe80::200:5efe:7f00:2", "::ffff:127.0.0.2"),
            ("ff12:401b:ffff::1", "::ffff:224.0.0.1"),
            ("fe80::1", "fe80::1"),
        ] {
            assert_eq!(lo.network_gid(&gid(shown)), gid(network));
            assert_eq!(lo.shown_gid(&gid(network)), gid(shown));
        }
        assert_eq!(lo.gid_index(&gid("::ffff:127.0.0.1")), Some(0));
    }
}
