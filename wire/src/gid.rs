//! Global identifiers: the 128-bit addresses of ports.

use core::fmt;
use core::net::{IpAddr, Ipv6Addr};

/// A global identifier in network byte order: a 64-bit subnet prefix and a 64-bit interface identifier (IBA 4.1.1).
///
/// A RoCE v2 port has one for each IP address: an IPv6 address as it is, an IPv4 address in its mapped form
/// (IBA annex A17.4.5.1).
///
/// ```
/// use urxe_wire::Gid;
/// let gid = Gid::from("10.77.0.2".parse::<core::net::IpAddr>().unwrap());
/// assert_eq!(gid.to_string(), "0000:0000:0000:0000:0000:ffff:0a4d:0002");
/// assert_eq!(gid.ip(), "10.77.0.2".parse::<core::net::IpAddr>().unwrap());
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Gid([u8; 16]);

impl Gid {
    /// The zero GID: an empty row of a GID table.
    pub const UNSPECIFIED: Self = Self([0; 16]);

    /// A GID of its bytes, as in `union ibv_gid`.
    #[must_use]
    pub const fn new(octets: [u8; 16]) -> Self {
        Self(octets)
    }

    /// The bytes, as in `union ibv_gid`.
    #[must_use]
    pub const fn octets(self) -> [u8; 16] {
        self.0
    }

    /// The address that a RoCE v2 GID stands for: IPv4 if it has the mapped form.
    #[must_use]
    pub fn ip(self) -> IpAddr {
        let v6 = self.ipv6();
        v6.to_ipv4_mapped().map_or(IpAddr::V6(v6), IpAddr::V4)
    }

    /// The GID read as an IPv6 address.
    #[must_use]
    pub fn ipv6(self) -> Ipv6Addr {
        Ipv6Addr::from(self.0)
    }

    /// Whether all bytes are zero.
    #[must_use]
    pub fn is_unspecified(self) -> bool {
        self == Self::UNSPECIFIED
    }
}

impl From<IpAddr> for Gid {
    fn from(ip: IpAddr) -> Self {
        Self(match ip {
            IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
            IpAddr::V6(ip) => ip.octets(),
        })
    }
}

/// Eight groups of four digits, as `/sys/class/infiniband/DEVICE/ports/1/gids/0` has them.
impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, group) in self.ipv6().segments().iter().enumerate() {
            let colon = if index == 0 { "" } else { ":" };
            write!(f, "{colon}{group:04x}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Gid({self})")
    }
}

#[cfg(test)]
mod tests {
    use std::string::ToString as _;

    use super::*;

    #[test]
    fn an_ip_address_survives_the_way_there_and_back() {
        for ip in ["0.0.0.0", "127.0.0.1", "192.0.2.255", "::", "::1", "fe80::5054:ff:fe77:2", "ff0e::ffff:e000:1"] {
            let ip: IpAddr = ip.parse().unwrap();
            assert_eq!(Gid::from(ip).ip(), ip);
        }
    }

    #[test]
    fn every_group_has_four_digits() {
        let gid = Gid::from("fe80::5054:ff:fe77:2".parse::<IpAddr>().unwrap());
        assert_eq!(gid.to_string(), "fe80:0000:0000:0000:5054:00ff:fe77:0002");
        assert_eq!(Gid::UNSPECIFIED.to_string(), "0000:0000:0000:0000:0000:0000:0000:0000");
    }
}
