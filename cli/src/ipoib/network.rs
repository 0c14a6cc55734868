//! The IPv4 network of an interface.

use std::net::{IpAddr, Ipv4Addr};

/// The IPv4 network of the interface.
#[derive(Clone, Copy, Debug)]
pub(super) struct Network {
    pub(super) own: Ipv4Addr,
    pub(super) prefix_len: u8,
}

/// Recipient of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Recipient {
    Neighbour,
    /// Group; for IPv4, the address of broadcasts is one.
    Group(IpAddr),
    /// Beyond a gateway, which a TUN device does not tell.
    Elsewhere,
}

impl Network {
    pub(super) fn recipient(self, to: Ipv4Addr) -> Recipient {
        let host_bits = u32::MAX.checked_shr(self.prefix_len.into()).unwrap_or(0);
        let differs = to.to_bits() ^ self.own.to_bits();
        match to.to_bits() & host_bits {
            _ if to.is_broadcast() => Recipient::Group(Ipv4Addr::BROADCAST.into()),
            _ if to.is_multicast() => Recipient::Group(to.into()),
            _ if differs & !host_bits != 0 => Recipient::Elsewhere,
            // The network's broadcast address, where there is one (RFC 3021).
            host if host == host_bits && self.prefix_len < 31 => Recipient::Group(Ipv4Addr::BROADCAST.into()),
            _ => Recipient::Neighbour,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recipients() {
        let network = Network { own: Ipv4Addr::new(192, 0, 2, 1), prefix_len: 24 };
        let recipient = |to: [u8; 4]| network.recipient(to.into());
        assert_eq!(recipient([192, 0, 2, 9]), Recipient::Neighbour);
        assert_eq!(recipient([192, 0, 2, 255]), Recipient::Group(Ipv4Addr::BROADCAST.into()));
        assert_eq!(recipient([255; 4]), Recipient::Group(Ipv4Addr::BROADCAST.into()));
        assert_eq!(recipient([224, 0, 0, 1]), Recipient::Group(Ipv4Addr::new(224, 0, 0, 1).into()));
        assert_eq!(recipient([192, 0, 3, 1]), Recipient::Elsewhere);
        let pair = Network { prefix_len: 31, ..network };
        assert_eq!(pair.recipient([192, 0, 2, 0].into()), Recipient::Neighbour);
        let alone = Network { prefix_len: 32, ..network };
        assert_eq!(alone.recipient([192, 0, 2, 2].into()), Recipient::Elsewhere);
    }
}
