//! Layouts of IPoIB: the encapsulation header, hardware addresses, ARP (RFC 4391, sections 6 and 9).

use std::net::{Ipv4Addr, Ipv6Addr};

use urxe_wire::{Gid, Qpn};

/// Bytes of the encapsulation header: the type of what follows, and two that are reserved.
pub(super) const HEADER_LEN: usize = 4;

/// Ethernet types of payloads.
pub(super) const IPV4: u16 = 0x0800;
pub(super) const ARP: u16 = 0x0806;
pub(super) const IPV6: u16 = 0x86DD;

/// Puts the encapsulation header in front of a packet.
pub(super) fn encapsulate(ether_type: u16, packet: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(HEADER_LEN + packet.len());
    bytes.extend(ether_type.to_be_bytes());
    bytes.extend([0; 2]);
    bytes.extend(packet);
    bytes
}

/// Takes the encapsulation header off. `None` if there is none.
pub(super) fn decapsulate(bytes: &[u8]) -> Option<(u16, &[u8])> {
    let (header, packet) = bytes.split_first_chunk::<HEADER_LEN>()?;
    let [high, low, ..] = *header;
    Some((u16::from_be_bytes([high, low]), packet))
}

/// A hardware address: queue pair and GID, 20 bytes (RFC 4391, section 9.1.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct HardwareAddress {
    pub(super) qpn: Qpn,
    pub(super) gid: Gid,
}

impl HardwareAddress {
    const LEN: usize = 20;

    /// The first byte has flags, of which a datagram interface has none.
    pub(super) fn to_bytes(self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        let (qpn, gid) = bytes.split_at_mut(4);
        qpn.copy_from_slice(&self.qpn.get().to_be_bytes());
        gid.copy_from_slice(&self.gid.octets());
        bytes
    }

    pub(super) fn parse(bytes: &[u8; Self::LEN]) -> Self {
        let [_, a, b, c, gid @ ..] = *bytes;
        Self { qpn: Qpn::new(u32::from_be_bytes([0, a, b, c])), gid: Gid::new(gid) }
    }
}

/// Kind of an ARP packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ArpKind {
    Request,
    Reply,
}

/// An ARP packet between InfiniBand hardware addresses and IPv4 addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Arp {
    pub(super) kind: ArpKind,
    pub(super) sender: (HardwareAddress, Ipv4Addr),
    pub(super) target: (Option<HardwareAddress>, Ipv4Addr),
}

/// Hardware type 32, InfiniBand; IPv4; lengths of both kinds of addresses.
const ARP_START: [u8; 6] = [0, 32, 0x08, 0x00, 20, 4];

impl Arp {
    /// Bytes of the packet.
    pub(super) const LEN: usize = 8 + 2 * (HardwareAddress::LEN + 4);

    pub(super) fn to_bytes(self) -> [u8; Self::LEN] {
        let operation: u8 = match self.kind {
            ArpKind::Request => 1,
            ArpKind::Reply => 2,
        };
        let target = self.target.0.map_or([0; HardwareAddress::LEN], HardwareAddress::to_bytes);
        let fields: [&[u8]; 6] = [
            &ARP_START,
            &[0, operation],
            &self.sender.0.to_bytes(),
            &self.sender.1.octets(),
            &target,
            &self.target.1.octets(),
        ];
        let mut bytes = [0; Self::LEN];
        for (to, from) in bytes.iter_mut().zip(fields.into_iter().flatten()) {
            *to = *from;
        }
        bytes
    }

    /// Reads a packet; what is behind it is padding.
    pub(super) fn parse(bytes: &[u8]) -> Option<Self> {
        let (start, rest) = bytes.split_first_chunk::<6>()?;
        let ([0, operation], rest) = rest.split_first_chunk::<2>()? else { return None };
        let (sender_hardware, rest) = rest.split_first_chunk::<{ HardwareAddress::LEN }>()?;
        let (sender, rest) = rest.split_first_chunk::<4>()?;
        let (target_hardware, rest) = rest.split_first_chunk::<{ HardwareAddress::LEN }>()?;
        let target = rest.first_chunk::<4>()?;
        let kind = match operation {
            1 => ArpKind::Request,
            2 => ArpKind::Reply,
            _ => return None,
        };
        let known = (*target_hardware != [0; HardwareAddress::LEN]).then(|| HardwareAddress::parse(target_hardware));
        (*start == ARP_START).then_some(Self {
            kind,
            sender: (HardwareAddress::parse(sender_hardware), Ipv4Addr::from(*sender)),
            target: (known, Ipv4Addr::from(*target)),
        })
    }
}

/// Destination of an IPv4 packet that is as long as it says.
pub(super) fn ipv4_destination(packet: &[u8]) -> Option<Ipv4Addr> {
    let header = packet.first_chunk::<20>()?;
    let total = usize::from(u16::from_be_bytes([header[2], header[3]]));
    let is_whole = header[0] >> 4 == 4 && (20..=packet.len()).contains(&total);
    is_whole.then(|| Ipv4Addr::new(header[16], header[17], header[18], header[19]))
}

/// Destination of an IPv6 packet that is as long as it says.
pub(super) fn ipv6_destination(packet: &[u8]) -> Option<Ipv6Addr> {
    let header = packet.first_chunk::<40>()?;
    let payload = usize::from(u16::from_be_bytes([header[4], header[5]]));
    let is_whole = header[0] >> 4 == 6 && 40 + payload <= packet.len();
    is_whole.then(|| header.last_chunk().map(|octets: &[u8; 16]| Ipv6Addr::from(*octets))).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hardware(qpn: u32, last: u8) -> HardwareAddress {
        let mut gid = [0; 16];
        (gid[0], gid[1], gid[15]) = (0xFE, 0x80, last);
        HardwareAddress { qpn: Qpn::new(qpn), gid: Gid::new(gid) }
    }

    #[test]
    fn arp_packets() {
        let (here, there) = (Ipv4Addr::new(192, 0, 2, 1), Ipv4Addr::new(192, 0, 2, 2));
        let request = Arp { kind: ArpKind::Request, sender: (hardware(0x0A_0B0C, 1), here), target: (None, there) };
        let bytes = request.to_bytes();
        assert_eq!(bytes[..12], [0, 32, 8, 0, 20, 4, 0, 1, 0, 0x0A, 0x0B, 0x0C]);
        assert_eq!(bytes[12..14], [0xFE, 0x80]);
        assert_eq!(
            (&bytes[28..32], &bytes[32..52], &bytes[52..]),
            (&[192, 0, 2, 1][..], &[0; 20][..], &[192, 0, 2, 2][..])
        );
        assert_eq!(Arp::parse(&bytes), Some(request));
        let reply =
            Arp { kind: ArpKind::Reply, sender: (hardware(7, 2), there), target: (Some(hardware(0x0A_0B0C, 1)), here) };
        assert_eq!(Arp::parse(&reply.to_bytes()), Some(reply));
    }

    #[test]
    fn arp_of_other_networks_is_none() {
        let request = Arp {
            kind: ArpKind::Request,
            sender: (hardware(1, 1), Ipv4Addr::LOCALHOST),
            target: (None, Ipv4Addr::LOCALHOST),
        };
        let bytes = request.to_bytes();
        for (at, value) in [(1, 1), (4, 6), (7, 3), (6, 1)] {
            let mut other = bytes;
            other[at] = value;
            assert_eq!(Arp::parse(&other), None, "byte {at}");
        }
        assert!((0..Arp::LEN).all(|length| Arp::parse(&bytes[..length]).is_none()));
    }

    #[test]
    fn packets_that_are_whole() {
        let mut packet = [0; 24];
        (packet[0], packet[3], packet[16], packet[19]) = (0x45, 24, 10, 1);
        assert_eq!(ipv4_destination(&packet), Some(Ipv4Addr::new(10, 0, 0, 1)));
        assert_eq!(ipv4_destination(&packet[..23]), None);
        packet[0] = 0x60;
        assert_eq!(ipv4_destination(&packet), None);
        let mut packet = [0; 48];
        (packet[0], packet[5], packet[24], packet[39]) = (0x60, 8, 0xFE, 7);
        assert_eq!(ipv6_destination(&packet), Some(Ipv6Addr::new(0xFE00, 0, 0, 0, 0, 0, 0, 7)));
        assert_eq!((ipv6_destination(&packet[..47]), ipv6_destination(&packet[..39])), (None, None));
        packet[0] = 0x45;
        assert_eq!(ipv6_destination(&packet), None);
        assert_eq!(decapsulate(&encapsulate(IPV4, &[1, 2])), Some((IPV4, &[1, 2][..])));
        assert_eq!(decapsulate(&[8, 0, 0]), None);
    }
}
