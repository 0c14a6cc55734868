//! Neighbour discovery (RFC 4861) between InfiniBand hardware addresses (RFC 4391, section 9.3): solicitations and advertisements.

use std::net::Ipv6Addr;

use urxe_wire::checksum::{fold, sum};

use super::frame::HardwareAddress;

/// Protocol number of ICMPv6.
const ICMP: u8 = 58;
/// Hop limit that no router has touched.
const HOP_LIMIT: u8 = 255;
/// Types of ICMPv6.
const SOLICITATION: u8 = 135;
const ADVERTISEMENT: u8 = 136;
/// Flags of an advertisement: an answer; it replaces what is known.
const SOLICITED: u8 = 0x40;
const OVERRIDE: u8 = 0x20;
/// Types of the option that has a hardware address: of the sender, of the target.
const SOURCE_ADDRESS: u8 = 1;
const TARGET_ADDRESS: u8 = 2;
/// Bytes of the option: type, length in units of eight, two that are reserved, the address.
const UNIT: usize = 8;
const UNITS: u8 = 3;
/// Bytes of an IPv6 header, and of a message up to its options.
const IP: usize = 40;
const MESSAGE: usize = 24;

/// All nodes of a link.
pub(super) const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xFF02, 0, 0, 0, 0, 0, 0, 1);

/// Kind of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Solicitation,
    /// Whether the message answers a solicitation of its recipient's.
    Advertisement(bool),
}

/// A message of neighbour discovery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Discovery {
    pub(super) kind: Kind,
    pub(super) from: Ipv6Addr,
    pub(super) to: Ipv6Addr,
    pub(super) target: Ipv6Addr,
    /// Hardware address of the sender, or of the target.
    pub(super) address: Option<HardwareAddress>,
}

/// The group that the host with this address listens to for solicitations.
pub(super) fn solicited_node(address: Ipv6Addr) -> Ipv6Addr {
    let [.., a, b, c] = address.octets();
    Ipv6Addr::from([0xFF, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xFF, a, b, c])
}

/// Checksum of a message of ICMPv6 (RFC 4443, section 2.3): zero if the one in the message is right.
fn checksum(from: Ipv6Addr, to: Ipv6Addr, message: &[u8]) -> u16 {
    !fold(sum(&from.octets()) + sum(&to.octets()) + message.len() as u64 + u64::from(ICMP) + sum(message))
}

/// Whether an IPv6 packet has a solicitation or an advertisement, right or wrong.
pub(super) fn is_discovery(packet: &[u8]) -> bool {
    packet.get(6) == Some(&ICMP) && matches!(packet.get(IP), Some(&(SOLICITATION | ADVERTISEMENT)))
}

impl Discovery {
    /// An IPv6 packet.
    pub(super) fn to_packet(self) -> Vec<u8> {
        let (kind, flags, option) = match self.kind {
            Kind::Solicitation => (SOLICITATION, 0, SOURCE_ADDRESS),
            Kind::Advertisement(is_solicited) => {
                (ADVERTISEMENT, OVERRIDE | if is_solicited { SOLICITED } else { 0 }, TARGET_ADDRESS)
            }
        };
        let mut message = vec![kind, 0, 0, 0, flags, 0, 0, 0];
        message.extend(self.target.octets());
        if let Some(address) = self.address {
            message.extend([option, UNITS, 0, 0]);
            message.extend(address.to_bytes());
        }
        let [high, low] = checksum(self.from, self.to, &message).to_be_bytes();
        if let Some(place) = message.get_mut(2..4) {
            place.copy_from_slice(&[high, low]);
        }
        let [.., high, low] = message.len().to_be_bytes();
        let start = [0x60, 0, 0, 0, high, low, ICMP, HOP_LIMIT];
        [&start[..], &self.from.octets(), &self.to.octets(), &message].concat()
    }

    /// Reads a message from an IPv6 packet; `None` if it has none, or one that is to be dropped (RFC 4861, section 7.1).
    pub(super) fn parse(packet: &[u8]) -> Option<Self> {
        let (header, rest) = packet.split_first_chunk::<IP>()?;
        let length = usize::from(u16::from_be_bytes([header[4], header[5]]));
        let message = rest.get(..length)?;
        let [.., protocol, hop_limit] = *header.first_chunk::<8>()?;
        let address = |at: usize| Some(Ipv6Addr::from(*header.get(at..)?.first_chunk::<16>()?));
        let (from, to) = (address(8)?, address(24)?);
        let (start, options) = message.split_first_chunk::<MESSAGE>()?;
        let [kind, code, _, _, flags, ..] = *start;
        let kind = match kind {
            SOLICITATION => Kind::Solicitation,
            ADVERTISEMENT => Kind::Advertisement(flags & SOLICITED != 0),
            _ => return None,
        };
        let target = Ipv6Addr::from(*start.last_chunk::<16>()?);
        let is_sound = header[0] >> 4 == 6
            && (protocol, hop_limit, code) == (ICMP, HOP_LIMIT, 0)
            && checksum(from, to, message) == 0
            && !target.is_multicast();
        let wanted = if kind == Kind::Solicitation { SOURCE_ADDRESS } else { TARGET_ADDRESS };
        let address = if is_sound { hardware_address(options, wanted)? } else { return None };
        // Who looks whether anybody has the address tells none.
        let is_probe = from.is_unspecified() && kind == Kind::Solicitation;
        let is_answer_to_group = kind == Kind::Advertisement(true) && to.is_multicast();
        let is_refused = is_answer_to_group || is_probe && address.is_some();
        (!is_refused).then_some(Self { kind, from, to, target, address })
    }
}

/// The hardware address among options; `None` if one of them is of no length.
fn hardware_address(mut options: &[u8], wanted: u8) -> Option<Option<HardwareAddress>> {
    let mut found = None;
    while let [kind, units, ..] = *options {
        let (option, rest) = options.split_at_checked(usize::from(units) * UNIT).filter(|_| units > 0)?;
        if (kind, units) == (wanted, UNITS) {
            found = option.last_chunk().map(HardwareAddress::parse);
        }
        options = rest;
    }
    Some(found)
}

#[cfg(test)]
mod tests {
    use urxe_wire::{Gid, Qpn};

    use super::*;

    const HERE: Ipv6Addr = Ipv6Addr::new(0xFE80, 0, 0, 0, 0x200, 0x5EFE, 0xA4D, 1);
    const THERE: Ipv6Addr = Ipv6Addr::new(0xFE80, 0, 0, 0, 0x200, 0x5EFE, 0xA4D, 2);

    fn solicitation() -> Discovery {
        let address = Some(HardwareAddress { qpn: Qpn::new(0x0A_0B0C), gid: Gid::new(HERE.octets()) });
        Discovery { kind: Kind::Solicitation, from: HERE, to: solicited_node(THERE), target: THERE, address }
    }

    #[test]
    fn messages_as_they_are_written() {
        let solicitation = solicitation();
        let packet = solicitation.to_packet();
        assert_eq!(packet.len(), IP + MESSAGE + UNIT * usize::from(UNITS));
        assert_eq!(packet[..8], [0x60, 0, 0, 0, 0, 48, 58, 255]);
        assert_eq!(packet[24..40], [0xFF, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xFF, 0x4D, 0, 2]);
        assert_eq!((packet[40], &packet[48..64]), (135, &THERE.octets()[..]));
        assert_eq!(packet[64..72], [1, 3, 0, 0, 0, 0x0A, 0x0B, 0x0C]);
        assert_eq!(Discovery::parse(&packet), Some(solicitation));
        for kind in [Kind::Advertisement(true), Kind::Advertisement(false)] {
            let advertisement = Discovery { kind, to: THERE, target: HERE, ..solicitation };
            assert_eq!(Discovery::parse(&advertisement.to_packet()), Some(advertisement));
        }
        let bare = Discovery { address: None, ..solicitation };
        assert_eq!(Discovery::parse(&bare.to_packet()), Some(bare));
    }

    #[test]
    fn messages_that_are_dropped() {
        let packet = solicitation().to_packet();
        // Version, length, protocol, hop limit, type, code, checksum, target, the option's length and address.
        for at in [0, 5, 6, 7, 40, 41, 43, 56, 65, 71] {
            let mut other = packet.clone();
            other[at] ^= 0x11;
            assert_eq!(Discovery::parse(&other), None, "byte {at}");
        }
        assert!((0..packet.len()).all(|length| Discovery::parse(&packet[..length]).is_none()));
        let probe = Discovery { from: Ipv6Addr::UNSPECIFIED, ..solicitation() };
        assert_eq!(Discovery::parse(&probe.to_packet()), None, "a probe with an address");
        assert!(Discovery::parse(&Discovery { address: None, ..probe }.to_packet()).is_some());
        let to_all = Discovery { kind: Kind::Advertisement(true), to: ALL_NODES, ..solicitation() };
        assert_eq!(Discovery::parse(&to_all.to_packet()), None, "an answer to a group");
        let of_group = Discovery { target: ALL_NODES, ..solicitation() };
        assert_eq!(Discovery::parse(&of_group.to_packet()), None);
    }
}
