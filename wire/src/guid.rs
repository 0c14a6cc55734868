//! Globally unique identifiers of nodes and ports.

use core::fmt;
use core::net::Ipv4Addr;

use crate::Gid;

/// An EUI-64 in network byte order: the name of a node or a port, and the lower half of its GIDs (IBA 4.1.1).
///
/// A port of InfiniBand that has an IPv4 address is named by it, so that the GUID alone leads to the address. The form is that
/// of RFC 5214, 6.1: 02-00-5E-FE and the address, an identifier of local significance that no hardware has.
///
/// ```
/// use core::net::Ipv4Addr;
/// use urxe_wire::Guid;
/// let guid = Guid::from(Ipv4Addr::new(10, 77, 0, 2));
/// assert_eq!(guid.to_string(), "0200:5efe:0a4d:0002");
/// assert_eq!(guid.ipv4(), Some(Ipv4Addr::new(10, 77, 0, 2)));
/// assert_eq!(guid.gid().to_string(), "fe80:0000:0000:0000:0200:5efe:0a4d:0002");
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Guid([u8; 8]);

/// First half of GUIDs that embed an IPv4 address.
const EMBEDS_IPV4: [u8; 4] = [0x02, 0x00, 0x5E, 0xFE];

impl Guid {
    /// The default subnet prefix, fe80::/64 (IBA 4.1.1).
    pub const DEFAULT_PREFIX: [u8; 8] = [0xFE, 0x80, 0, 0, 0, 0, 0, 0];

    /// A GUID of its bytes.
    #[must_use]
    pub const fn new(octets: [u8; 8]) -> Self {
        Self(octets)
    }

    /// The bytes.
    #[must_use]
    pub const fn octets(self) -> [u8; 8] {
        self.0
    }

    /// The modified EUI-64 of a hardware address (RFC 4291, appendix A): FF FE in the middle, universal/local bit inverted.
    #[must_use]
    pub const fn from_mac([a, b, c, d, e, f]: [u8; 6]) -> Self {
        Self([a ^ 2, b, c, 0xFF, 0xFE, d, e, f])
    }

    /// The IPv4 address in it, if it embeds one.
    #[must_use]
    pub fn ipv4(self) -> Option<Ipv4Addr> {
        let [p, q, r, s, a, b, c, d] = self.0;
        ([p, q, r, s] == EMBEDS_IPV4).then(|| Ipv4Addr::new(a, b, c, d))
    }

    /// The GID with the default subnet prefix.
    #[must_use]
    pub fn gid(self) -> Gid {
        let mut octets = [0; 16];
        let (prefix, guid) = octets.split_at_mut(8);
        prefix.copy_from_slice(&Self::DEFAULT_PREFIX);
        guid.copy_from_slice(&self.0);
        Gid::new(octets)
    }

    /// The GUID in a GID of the default subnet prefix.
    #[must_use]
    pub fn of_gid(gid: &Gid) -> Option<Self> {
        let octets = gid.octets();
        let (prefix, guid) = octets.split_first_chunk::<8>()?;
        Some(Self(guid.try_into().ok()?)).filter(|_| *prefix == Self::DEFAULT_PREFIX)
    }
}

impl From<Ipv4Addr> for Guid {
    fn from(address: Ipv4Addr) -> Self {
        let ([p, q, r, s], [a, b, c, d]) = (EMBEDS_IPV4, address.octets());
        Self([p, q, r, s, a, b, c, d])
    }
}

impl From<u64> for Guid {
    fn from(number: u64) -> Self {
        Self(number.to_be_bytes())
    }
}

impl From<Guid> for u64 {
    fn from(guid: Guid) -> Self {
        Self::from_be_bytes(guid.0)
    }
}

/// Four groups of four digits, as `/sys/class/infiniband/DEVICE/node_guid` has them.
impl fmt::Display for Guid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, pair) in self.0.chunks(2).enumerate() {
            f.write_str(if index == 0 { "" } else { ":" })?;
            pair.iter().try_for_each(|byte| write!(f, "{byte:02x}"))?;
        }
        Ok(())
    }
}

impl fmt::Debug for Guid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Guid({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_survives_the_way_through_a_gid() {
        for address in [Ipv4Addr::new(10, 77, 0, 2), Ipv4Addr::LOCALHOST, Ipv4Addr::BROADCAST] {
            let gid = Guid::from(address).gid();
            assert_eq!(Guid::of_gid(&gid).and_then(Guid::ipv4), Some(address));
        }
    }

    #[test]
    fn other_identifiers_have_no_address() {
        assert_eq!(Guid::from_mac([0x52, 0x54, 0, 0x12, 0x34, 0x56]).ipv4(), None);
        let mapped = Gid::from(core::net::IpAddr::V4(Ipv4Addr::LOCALHOST));
        assert_eq!(Guid::of_gid(&mapped), None);
    }
}
