//! LIDs by address, and back.

use core::net::Ipv4Addr;

use crate::Lid;
use crate::mad::topology::is_host;

/// Scheme that gives the ports of an IPv4 network LIDs which lead back to their addresses, without anybody being asked.
///
/// A LID is the last two bytes of the address. Where these are no unicast LID, 0xC000 and more, 0xC000 less: in a network of at
/// most 2^14 addresses, all of which are there then. A larger network has more addresses than there are unicast LIDs: those
/// above `x.y.190.255` have none by the scheme. The last 256 unicast LIDs are of switches, and no port's.
///
/// | network | address | LID |
/// |---|---|---|
/// | 127.0.0.0/8 | 127.0.0.1 | 0x0001 |
/// | 10.77.0.0/16 | 10.77.3.4 | 0x0304 |
/// | 192.168.200.0/24 | 192.168.200.5 | 0x0805 |
/// | 10.77.0.0/16 | 10.77.200.5 | none |
/// | any | x.y.191.z | none |
///
/// No two addresses of a network of 2^16 have the same LID.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LidScheme {
    /// The own address.
    address: Ipv4Addr,
    /// Bits of the network's prefix.
    prefix_len: u8,
}

/// First LID that is not unicast.
const LIMIT: u16 = 0xC000;

/// The shortest prefix of a network within one quarter of a /16.
const QUARTER: u8 = 18;

impl LidScheme {
    /// The scheme of the network that `address` is in.
    #[must_use]
    pub const fn new(address: Ipv4Addr, prefix_len: u8) -> Self {
        Self { address, prefix_len }
    }

    /// The own address.
    #[must_use]
    pub const fn address(&self) -> Ipv4Addr {
        self.address
    }

    /// Bits of the network's prefix.
    #[must_use]
    pub const fn prefix_len(&self) -> u8 {
        self.prefix_len
    }

    /// The own LID; [`Lid::NONE`] if the scheme has none.
    #[must_use]
    pub fn lid(&self) -> Lid {
        self.lid_of(self.address)
    }

    /// The LID of a peer; [`Lid::NONE`] unless it leads back there.
    #[must_use]
    pub fn lid_of(&self, peer: Ipv4Addr) -> Lid {
        let low = low_half(peer);
        let lid = Lid(if low < LIMIT { low } else { low - LIMIT });
        if self.address_of(lid) == Some(peer) { lid } else { Lid::NONE }
    }

    /// The address that has a LID; `None` for what is no unicast LID, or a switch's.
    #[must_use]
    pub fn address_of(&self, lid: Lid) -> Option<Ipv4Addr> {
        let is_lowered = self.prefix_len >= QUARTER && low_half(self.address) >= LIMIT && lid.0 < !LIMIT + 1;
        let low = if is_lowered { lid.0 + LIMIT } else { lid.0 };
        let ([a, b, ..], [c, d]) = (self.address.octets(), low.to_be_bytes());
        is_host(lid).then(|| Ipv4Addr::new(a, b, c, d))
    }
}

fn low_half(address: Ipv4Addr) -> u16 {
    let [.., c, d] = address.octets();
    u16::from_be_bytes([c, d])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scheme(address: &str, prefix_len: u8) -> LidScheme {
        LidScheme::new(address.parse().unwrap(), prefix_len)
    }

    #[test]
    fn the_last_two_bytes_where_they_are_unicast() {
        for (own, prefix_len, lid) in [
            ("127.0.0.1", 8, 1),
            ("10.77.3.4", 16, 0x0304),
            ("10.77.0.0", 16, 0),
            ("10.77.190.255", 16, 0xBEFF),
            ("10.77.191.1", 16, 0),
            ("10.77.192.1", 16, 0),
            ("192.168.200.5", 24, 0x0805),
            ("192.168.255.254", 18, 0x3FFE),
            ("192.168.192.1", 17, 0),
        ] {
            assert_eq!(scheme(own, prefix_len).lid(), Lid(lid), "{own}/{prefix_len}");
        }
    }

    #[test]
    fn a_lid_leads_to_an_address_of_the_own_network() {
        let own = scheme("10.77.0.1", 16);
        assert_eq!(own.address_of(Lid(2)), Some(Ipv4Addr::new(10, 77, 0, 2)));
        assert_eq!(own.address_of(Lid(0xBEFF)), Some(Ipv4Addr::new(10, 77, 190, 255)));
        for nobody in [0, 0xBF00, 0xBFFF, 0xC000, 0xFFFF] {
            assert_eq!(own.address_of(Lid(nobody)), None);
        }
        assert_eq!(scheme("192.168.200.5", 24).address_of(Lid(0x0809)), Some(Ipv4Addr::new(192, 168, 200, 9)));
        // Of the same /16, and of another network.
        assert_eq!(scheme("192.168.200.5", 24).address_of(Lid(0x4001)), Some(Ipv4Addr::new(192, 168, 64, 1)));
    }

    /// Every pair of a /16 and of each longer network: a LID that is given leads back, so no two are equal.
    #[test]
    fn no_two_addresses_of_a_network_share_a_lid() {
        for (own, prefix_len) in [("10.77.0.1", 16), ("10.77.192.1", 18), ("10.77.64.1", 18), ("10.77.200.1", 24)] {
            let own = scheme(own, prefix_len);
            let mut given = 0_u32;
            for low in 0..=u16::MAX {
                let [c, d] = low.to_be_bytes();
                let peer = Ipv4Addr::new(10, 77, c, d);
                let lid = own.lid_of(peer);
                if lid != Lid::NONE {
                    assert_eq!(own.address_of(lid), Some(peer));
                    given += 1;
                }
            }
            assert_eq!(given, 0xBEFF, "as many as there are unicast LIDs, without those of switches");
        }
    }

    #[test]
    fn addresses_elsewhere_have_none() {
        assert_eq!(scheme("10.77.0.1", 16).lid_of(Ipv4Addr::new(10, 78, 0, 2)), Lid::NONE);
    }
}
