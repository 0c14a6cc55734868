//! LIDs for programs that want some, which RoCE has none of: the last two bytes of the interface's first IPv4
//! address.

use std::net::Ipv4Addr;

use urxe_wire::Lid;

use crate::Interface;

impl Interface {
    /// The LID for `--lid`; [`Lid::NONE`] if the interface can have none.
    #[must_use]
    pub fn lid(&self) -> Lid {
        self.first_ipv4().map_or(Lid::NONE, |(_, address)| lid_of(address))
    }

    /// The first row of the GID table with an IPv4 address.
    #[must_use]
    pub fn first_ipv4(&self) -> Option<(u32, Ipv4Addr)> {
        let rows = (0_u32..).zip(self.gids());
        rows.filter_map(|(index, gid)| Some((index, gid.ipv6().to_ipv4_mapped()?))).next()
    }
}

fn lid_of(address: Ipv4Addr) -> Lid {
    let [.., high, low] = address.octets();
    let lid = Lid(u16::from_be_bytes([high, low]));
    if lid.is_unicast() { lid } else { Lid::NONE }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_two_bytes() {
        for (own, lid) in [("127.0.0.1", 1), ("10.77.3.4", 0x0304), ("10.77.0.0", 0), ("10.77.192.1", 0)] {
            assert_eq!(lid_of(own.parse().unwrap()), Lid(lid), "{own}");
        }
    }
}
