//! What an interface's LID is where somebody wants LIDs, which RoCE has none of: the last two bytes of its first IPv4
//! address.

use std::net::{Ipv4Addr, Ipv6Addr};

use crate::Interface;

/// LIDs of ports; above them are those of multicast groups (IBA 4.1.3).
pub const UNICAST_LIDS: std::ops::Range<u16> = 0x0001..0xC000;

impl Interface {
    /// Its LID; 0 if it can have none.
    #[must_use]
    pub fn lid(&self) -> u16 {
        self.first_ipv4().map_or(0, |(_, address)| lid_of(address))
    }

    /// The first row of the GID table with an IPv4 address.
    #[must_use]
    pub fn first_ipv4(&self) -> Option<(u32, Ipv4Addr)> {
        let rows = (0_u32..).zip(self.gids());
        rows.filter_map(|(index, gid)| Some((index, Ipv6Addr::from(*gid).to_ipv4_mapped()?))).next()
    }
}

fn lid_of(address: Ipv4Addr) -> u16 {
    let [.., high, low] = address.octets();
    let lid = u16::from_be_bytes([high, low]);
    if UNICAST_LIDS.contains(&lid) { lid } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_two_bytes() {
        for (own, lid) in [("127.0.0.1", 1), ("10.77.3.4", 0x0304), ("10.77.0.0", 0), ("10.77.192.1", 0)] {
            assert_eq!(lid_of(own.parse().unwrap()), lid, "{own}");
        }
    }
}
