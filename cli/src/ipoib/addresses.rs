//! IPv6 addresses of the interface, as the kernel has them.

use std::net::{IpAddr, Ipv6Addr};

use super::network::Recipient;

/// The addresses, each with the length of its prefix.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Addresses(Vec<(Ipv6Addr, u8)>);

fn is_in(address: Ipv6Addr, network: Ipv6Addr, prefix_len: u8) -> bool {
    let host_bits = u128::MAX.checked_shr(prefix_len.into()).unwrap_or(0);
    (address.to_bits() ^ network.to_bits()) & !host_bits == 0
}

impl Addresses {
    /// Reads `/proc/net/if_inet6`: those of the interface `name`.
    pub(super) fn of(name: &str) -> Self {
        Self::parse(&std::fs::read_to_string("/proc/net/if_inet6").unwrap_or_default(), name)
    }

    /// A line for each address: it, the interface's index, the length of the prefix, the scope, flags, the interface.
    fn parse(text: &str, name: &str) -> Self {
        let address = |line: &str| {
            let words: Vec<&str> = line.split_whitespace().collect();
            let [address, _, prefix_len, _, _, of] = words[..] else { return None };
            let address = Ipv6Addr::from_bits(u128::from_str_radix(address, 16).ok()?);
            (of == name).then_some((address, u8::from_str_radix(prefix_len, 16).ok()?))
        };
        Self(text.lines().filter_map(address).collect())
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = Ipv6Addr> {
        self.0.iter().map(|(address, _)| *address)
    }

    /// Addresses of the link, with the lengths of their prefixes.
    pub(super) fn of_link(&self) -> impl Iterator<Item = (Ipv6Addr, u8)> {
        self.0.iter().copied().filter(|(address, _)| address.is_unicast_link_local())
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn contains(&self, address: Ipv6Addr) -> bool {
        self.iter().any(|own| own == address)
    }

    /// Recipient of a packet.
    pub(super) fn recipient(&self, to: Ipv6Addr) -> Recipient {
        let is_near = || self.0.iter().any(|(own, prefix_len)| is_in(to, *own, *prefix_len));
        match to {
            _ if to.is_multicast() => Recipient::Group(IpAddr::V6(to)),
            _ if to.is_unicast_link_local() || is_near() => Recipient::Neighbour,
            _ => Recipient::Elsewhere,
        }
    }

    /// The address that asks a neighbour: one of its network, or one of the link.
    pub(super) fn towards(&self, neighbour: Ipv6Addr) -> Option<Ipv6Addr> {
        let near = self.0.iter().find(|(own, prefix_len)| is_in(neighbour, *own, *prefix_len));
        near.map(|(own, _)| *own).or_else(|| self.iter().find(Ipv6Addr::is_unicast_link_local))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_one_interface() {
        let text = "00000000000000000000000000000001 01 80 10 80       lo\n\
                    fe8000000000000002005efe0a4d0001 05 40 20 80      ib0\n\
                    20010db8000000000000000000000001 05 40 00 80      ib0\n\
                    20010db8000000000000000000000009 06 40 00 80     ib01\n";
        let addresses = Addresses::parse(text, "ib0");
        let ip = |text: &str| text.parse::<Ipv6Addr>().unwrap();
        let own = [ip("fe80::200:5efe:a4d:1"), ip("2001:db8::1")];
        assert!(addresses.iter().eq(own));
        assert!(addresses.contains(own[1]) && !addresses.contains(ip("2001:db8::9")));
        let group = ip("ff02::fb");
        for (to, recipient) in [
            (ip("2001:db8::2:3"), Recipient::Neighbour),
            (ip("fe80::7"), Recipient::Neighbour),
            (ip("2001:db8:0:1::2"), Recipient::Elsewhere),
            (group, Recipient::Group(group.into())),
        ] {
            assert_eq!(addresses.recipient(to), recipient, "{to}");
        }
        assert_eq!(addresses.towards(ip("2001:db8::9")), Some(own[1]));
        assert_eq!(addresses.towards(ip("fe80::9")), Some(own[0]));
        assert_eq!(Addresses::default().towards(ip("fe80::9")), None);
        assert_eq!(Addresses::parse("nothing of the kind", "ib0"), Addresses::default());
    }
}
