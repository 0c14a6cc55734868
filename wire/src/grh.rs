//! The network header in front of a datagram, as receive buffers of UD queue pairs hold it.
//!
//! On InfiniBand it is the GRH, if there is one; on RoCE v2 the IPv6 header, or 20 unused bytes and the IPv4 header (IBA annex
//! A17.4.5.3; the kernel's `union rdma_network_hdr`). libibverbs tells the two apart by the version and the IPv4
//! header's checksum (`ibv_init_ah_from_wc`), so the checksum must be right.

use core::net::IpAddr;

use crate::checksum::{fold, sum};
use crate::{Gid, ICRC_LEN};

/// Bytes it takes in the buffer.
pub const LEN: usize = 40;

const UDP_LEN: usize = 8;
const IPV4_LEN: usize = 20;
/// IPv4 and IPv6 "next protocol" of UDP.
const UDP: u8 = 17;
/// "Next header" of a GRH: an IBA transport (IBA 8.3.3).
const IBA: u8 = 0x1B;

/// Kind of the header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// 20 unused bytes, then an IPv4 header.
    Ipv4,
    /// An IPv6 header.
    Ipv6,
    /// A GRH of InfiniBand.
    Grh,
}

impl Kind {
    /// Finds the kind of a header that [`network_header`] or [`infiniband`] made.
    #[must_use]
    pub const fn of(header: &[u8; LEN]) -> Self {
        match (header[0] >> 4, header[6]) {
            (6, IBA) => Self::Grh,
            (6, _) => Self::Ipv6,
            _ => Self::Ipv4,
        }
    }
}

/// Header fields besides the addresses.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Fields {
    /// IPv4 TOS or IPv6 traffic class.
    pub tclass: u8,
    /// IPv4 TTL or IPv6 hop limit.
    pub hop_limit: u8,
}

/// The header of a packet of `len` bytes from the BTH to the padding. IPv4 identification and IPv6 flow label, which a
/// UDP socket does not tell, are 0. Addresses of different versions make an IPv6 header with mapped addresses.
#[must_use]
pub fn network_header(from: IpAddr, to: IpAddr, fields: Fields, len: usize) -> [u8; LEN] {
    let udp_len = UDP_LEN + len + ICRC_LEN;
    if let (IpAddr::V4(from), IpAddr::V4(to)) = (from, to) {
        let mut bytes = [0; LEN];
        let header = &mut bytes[LEN - IPV4_LEN..];
        let total = u16::try_from(IPV4_LEN + udp_len).unwrap_or(u16::MAX);
        header[0] = 0x45;
        header[1] = fields.tclass;
        header[2..4].copy_from_slice(&total.to_be_bytes());
        // Don't Fragment.
        header[6] = 0x40;
        header[8] = fields.hop_limit;
        header[9] = UDP;
        header[12..16].copy_from_slice(&from.octets());
        header[16..20].copy_from_slice(&to.octets());
        let checksum = !fold(sum(header));
        header[10..12].copy_from_slice(&checksum.to_be_bytes());
        bytes
    } else {
        let mapped = |ip: IpAddr| match ip {
            IpAddr::V4(ip) => ip.to_ipv6_mapped(),
            IpAddr::V6(ip) => ip,
        };
        ipv6([mapped(from).octets(), mapped(to).octets()], fields, UDP, udp_len)
    }
}

/// The GRH of a packet of `len` bytes from the BTH to the padding (IBA 8.3).
#[must_use]
pub fn infiniband(from: &Gid, to: &Gid, fields: Fields, len: usize) -> [u8; LEN] {
    ipv6([from.octets(), to.octets()], fields, IBA, len + ICRC_LEN)
}

/// An IPv6 header, whose layout the GRH shares (IBA 8.3).
fn ipv6([from, to]: [[u8; 16]; 2], fields: Fields, next: u8, len: usize) -> [u8; LEN] {
    let mut bytes = [0; LEN];
    bytes[0..4].copy_from_slice(&(6 << 28 | u32::from(fields.tclass) << 20).to_be_bytes());
    bytes[4..6].copy_from_slice(&u16::try_from(len).unwrap_or(u16::MAX).to_be_bytes());
    bytes[6] = next;
    bytes[7] = fields.hop_limit;
    bytes[8..24].copy_from_slice(&from);
    bytes[24..40].copy_from_slice(&to);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ipv4_stands_at_the_end_with_a_right_checksum() {
        let fields = Fields { tclass: 0x20, hop_limit: 64 };
        let header = network_header([10, 0, 0, 1].into(), [10, 0, 0, 2].into(), fields, 24);
        assert_eq!(header[..20], [0; 20]);
        assert_eq!(Kind::of(&header), Kind::Ipv4);
        assert_eq!(header[20..30], [0x45, 0x20, 0, 56, 0, 0, 0x40, 0, 64, 17]);
        assert_eq!(header[32..], [10, 0, 0, 1, 10, 0, 0, 2]);
        // A header with its checksum sums up to all ones.
        assert_eq!(fold(sum(&header[20..])), u16::MAX);
    }

    #[test]
    fn ipv6_fills_it() {
        let fields = Fields { tclass: 0x20, hop_limit: 64 };
        let [from, to] = ["fe80::1", "fe80::2"].map(|text| text.parse().unwrap());
        let header = network_header(from, to, fields, 24);
        assert_eq!(Kind::of(&header), Kind::Ipv6);
        assert_eq!(header[..8], [0x62, 0, 0, 0, 0, 36, 17, 64]);
        assert_eq!((header[23], header[39]), (1, 2));
    }

    #[test]
    fn a_grh_counts_the_icrc() {
        let gid = |last| Gid::new([last; 16]);
        let header = infiniband(&gid(1), &gid(2), Fields { tclass: 0x20, hop_limit: 1 }, 24);
        assert_eq!(Kind::of(&header), Kind::Grh);
        assert_eq!(header[..8], [0x62, 0, 0, 0, 0, 28, 0x1B, 1]);
        assert_eq!((header[8], header[23], header[24], header[39]), (1, 1, 2, 2));
    }
}
