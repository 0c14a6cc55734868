//! The headers that a UDP socket does not see: Ethernet, IP, UDP, made up around a RoCE packet so that its ICRC is right
//! (IBA annex A17.3.3: it covers addresses, ports, lengths, and the IPv4 identification).

use std::net::{IpAddr, SocketAddr};

use urxe_wire::checksum::{fold, sum};
use urxe_wire::icrc;

const ETHERTYPE_IPV4: u16 = 0x0800;
const ETHERTYPE_IPV6: u16 = 0x86DD;
const UDP: u8 = 17;
const UDP_LEN: usize = 8;
const HOP_LIMIT: u8 = 64;

/// Addresses and header fields of a packet, as far as a UDP socket knows them.
#[derive(Clone, Copy, Debug)]
pub struct Addresses {
    /// Source.
    pub from: SocketAddr,
    /// Destination.
    pub to: SocketAddr,
    /// IPv4 type of service, IPv6 traffic class.
    pub tclass: u8,
    /// IPv4 time to live, IPv6 hop limit.
    pub hop_limit: u8,
    /// IPv4 identification.
    pub id: u16,
    /// IPv4 "don't fragment".
    pub df: bool,
}

impl Addresses {
    /// Addresses of a packet from one endpoint to another, with default header fields and an IPv4 identification.
    #[must_use]
    pub const fn new(from: SocketAddr, to: SocketAddr, id: u16) -> Self {
        Self { from, to, tclass: 0, hop_limit: HOP_LIMIT, id, df: true }
    }

    /// Takes over the IPv4 identification and DF bit that the check of the ICRC recovered.
    #[must_use]
    pub const fn recovered(self, check: icrc::Check) -> Self {
        match check {
            icrc::Check::Recovered { id, df } => Self { id, df, ..self },
            icrc::Check::Exact | icrc::Check::Bad => self,
        }
    }
}

/// Appends the headers of `payload` (BTH to ICRC), and returns how many bytes they are.
pub(crate) fn headers(out: &mut Vec<u8>, of: &Addresses, payload: &[u8]) -> usize {
    let start = out.len();
    let udp_len = low16(UDP_LEN + payload.len());
    let (from, to) = (of.from.ip().to_canonical(), of.to.ip().to_canonical());
    out.extend_from_slice(&mac(to));
    out.extend_from_slice(&mac(from));
    match (from, to) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            out.extend_from_slice(&ETHERTYPE_IPV4.to_be_bytes());
            let mut header = [0; 20];
            header[..2].copy_from_slice(&[0x45, of.tclass]);
            header[2..4].copy_from_slice(&udp_len.wrapping_add(20).to_be_bytes());
            header[4..6].copy_from_slice(&of.id.to_be_bytes());
            header[6] = if of.df { 0x40 } else { 0 };
            (header[8], header[9]) = (of.hop_limit, UDP);
            header[12..16].copy_from_slice(&from.octets());
            header[16..].copy_from_slice(&to.octets());
            let checksum = !fold(sum(&header));
            header[10..12].copy_from_slice(&checksum.to_be_bytes());
            out.extend_from_slice(&header);
        }
        (from, to) => {
            let octets = |ip: IpAddr| match ip {
                IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
                IpAddr::V6(ip) => ip.octets(),
            };
            out.extend_from_slice(&ETHERTYPE_IPV6.to_be_bytes());
            out.extend_from_slice(&[0x60 | of.tclass >> 4, of.tclass << 4, 0, 0]);
            out.extend_from_slice(&udp_len.to_be_bytes());
            out.extend_from_slice(&[UDP, of.hop_limit]);
            out.extend_from_slice(&octets(from));
            out.extend_from_slice(&octets(to));
        }
    }
    let mut udp = [0; UDP_LEN];
    udp[..2].copy_from_slice(&of.from.port().to_be_bytes());
    udp[2..4].copy_from_slice(&of.to.port().to_be_bytes());
    udp[4..6].copy_from_slice(&udp_len.to_be_bytes());
    let checksum = udp_checksum(from, to, &udp, payload);
    udp[6..].copy_from_slice(&checksum.to_be_bytes());
    out.extend_from_slice(&udp);
    out.len() - start
}

/// A locally administered address that one can tell the host by.
fn mac(ip: IpAddr) -> [u8; 6] {
    match ip {
        IpAddr::V4(ip) => {
            let [a, b, c, d] = ip.octets();
            [2, 0, a, b, c, d]
        }
        IpAddr::V6(ip) => {
            let [.., a, b, c, d, e] = ip.octets();
            [2, a, b, c, d, e]
        }
    }
}

/// RFC 768, RFC 8200 8.1.
fn udp_checksum(from: IpAddr, to: IpAddr, udp: &[u8; UDP_LEN], payload: &[u8]) -> u16 {
    let mut pseudo = u64::from(UDP) + (UDP_LEN + payload.len()) as u64;
    for ip in [from, to] {
        pseudo += match ip {
            IpAddr::V4(ip) => sum(&ip.octets()),
            IpAddr::V6(ip) => sum(&ip.octets()),
        };
    }
    match !fold(pseudo + sum(udp) + sum(payload)) {
        0 => u16::MAX,
        sum => sum,
    }
}

#[expect(clippy::cast_possible_truncation, reason = "header fields are 16 bits wide")]
const fn low16(len: usize) -> u16 {
    len as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Adding everything up, checksums included, gives all ones.
    #[test]
    fn checksums_add_up() {
        for (from, to) in [("10.0.0.1:49152", "10.0.0.2:4791"), ("[fd77::1]:49152", "[fd77::2]:4791")] {
            let (from, to): (SocketAddr, SocketAddr) = (from.parse().unwrap(), to.parse().unwrap());
            let payload: Vec<u8> = (0..=120).collect();
            let mut out = Vec::new();
            let len = headers(&mut out, &Addresses::new(from, to, 7), &payload);
            assert_eq!(len, if from.is_ipv4() { 42 } else { 62 });
            let udp: [u8; 8] = out[len - 8..].try_into().unwrap();
            let checksum = u16::from_be_bytes([udp[6], udp[7]]);
            let zeroed = [udp[0], udp[1], udp[2], udp[3], udp[4], udp[5], 0, 0];
            assert_eq!(udp_checksum(from.ip(), to.ip(), &zeroed, &payload), checksum);
            if from.is_ipv4() {
                assert_eq!(fold(sum(&out[14..34])), u16::MAX);
            }
        }
    }
}
