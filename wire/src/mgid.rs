//! Multicast GIDs of InfiniBand, and the IPv4 groups that their packets go to.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::{Gid, Lid};

/// The start of MGIDs that IPoIB makes of IPv4 groups: link-local scope, its signature (RFC 4391, section 4). The P_Key
/// follows.
const IPOIB_IPV4: [u8; 4] = [0xFF, 0x12, 0x40, 0x1B];

/// The start of MGIDs that IPoIB makes of IPv6 groups.
const IPOIB_IPV6: [u8; 4] = [0xFF, 0x12, 0x60, 0x1B];

/// Place of the signature's last byte, and the value there in MGIDs of rdma_cm (`cma_set_mgid` of the kernel's cma.c).
const SIGNATURE_END: usize = 3;
const RDMA_CM: u8 = 0x01;

/// The default partition, full membership.
const DEFAULT_PKEY: [u8; 2] = [0xFF, 0xFF];

/// Bits of an IPv4 group that IPoIB puts at the end of an MGID.
const GROUP_BITS: u32 = 0x0FFF_FFFF;

/// First IPv4 group.
const FIRST_GROUP: u32 = 0xE000_0000;

/// Administratively scoped groups (RFC 2365), for MGIDs that stand for no IPv4 group.
const ADMINISTRATIVE: u32 = 0xEF00_0000;

/// First LID of multicast.
const FIRST_MLID: u16 = 0xC000;

/// Returns the MGID of an IPv4 group in the default partition, as IPoIB has it; 255.255.255.255 is the broadcast group.
#[must_use]
pub fn of_ipv4(group: Ipv4Addr) -> Gid {
    let mut octets = [0; 16];
    let (head, tail) = octets.split_at_mut(12);
    head[..4].copy_from_slice(&IPOIB_IPV4);
    head[4..6].copy_from_slice(&DEFAULT_PKEY);
    // The broadcast address has all bits, the others lose the four that all groups share.
    let group = if group.is_broadcast() { u32::MAX } else { group.to_bits() & GROUP_BITS };
    tail.copy_from_slice(&group.to_be_bytes());
    Gid::new(octets)
}

/// Returns the MGID of an IPv6 group in the default partition, as IPoIB has it: it ends in the last 80 bits of the group.
#[must_use]
pub fn of_ipv6(group: Ipv6Addr) -> Gid {
    let mut octets = group.octets();
    octets[..4].copy_from_slice(&IPOIB_IPV6);
    octets[4..6].copy_from_slice(&DEFAULT_PKEY);
    Gid::new(octets)
}

/// Returns the MGID of a group in the default partition, as IPoIB has it.
#[must_use]
pub fn of_ip(group: IpAddr) -> Gid {
    match group {
        IpAddr::V4(group) => of_ipv4(group),
        IpAddr::V6(group) => of_ipv6(group),
    }
}

/// Returns the MGID of a group in the default partition, as rdma_cm has it for its own datagrams: their Q_Key is another than that of
/// IPoIB's groups.
#[must_use]
pub fn of_rdma_cm(group: IpAddr) -> Gid {
    let mut octets = of_ip(group).octets();
    octets[SIGNATURE_END] = RDMA_CM;
    Gid::new(octets)
}

/// Returns the IPv4 group that packets to an MGID go to; `None` if `gid` is no MGID.
///
/// An MGID of IPoIB or of rdma_cm, of whatever scope and partition, stands for its IPv4 group, and the broadcast group for 239.255.255.255. Of others
/// a hash chooses one of the 2^24 groups of 239.0.0.0/8.
#[must_use]
pub fn ipv4_group(gid: &Gid) -> Option<Ipv4Addr> {
    let octets = gid.octets();
    if octets[0] != 0xFF {
        return None;
    }
    let bits = match group_of_ipoib(&octets) {
        Some(group) => FIRST_GROUP | group & GROUP_BITS,
        None => ADMINISTRATIVE | hash(&octets) & 0x00FF_FFFF,
    };
    Some(Ipv4Addr::from_bits(bits))
}

/// The last bits of an MGID of IPoIB or rdma_cm, which are those of an IPv4 group or of the broadcast address.
fn group_of_ipoib(octets: &[u8; 16]) -> Option<u32> {
    let [_, _, c, d, _, _, zeros @ .., w, x, y, z] = *octets;
    let [_, _, signature @ ..] = IPOIB_IPV4;
    let is_signed = c == signature[0] && (d == signature[1] || d == RDMA_CM);
    (is_signed && zeros == [0; 6]).then(|| u32::from_be_bytes([w, x, y, z]))
}

/// Returns the MLID of a group: the first for IPoIB's broadcast group, a hash for others. Several groups may
/// share one, as in a subnet with few MLIDs.
#[must_use]
pub fn mlid(gid: &Gid) -> Lid {
    /// The permissive LID is none, and the first is the broadcast group's.
    const OTHERS: u16 = Lid::PERMISSIVE.0 - FIRST_MLID - 1;
    let octets = gid.octets();
    if group_of_ipoib(&octets) == Some(u32::MAX) {
        return Lid(FIRST_MLID);
    }
    let [.., low, lowest] = hash(&octets).to_be_bytes();
    Lid(FIRST_MLID + 1 + u16::from_be_bytes([low, lowest]) % OTHERS)
}

/// FNV-1a.
fn hash(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0x811C_9DC5, |hash, byte| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gid(text: &str) -> Gid {
        Gid::from(text.parse::<IpAddr>().unwrap())
    }

    #[test]
    fn groups_of_ipoib() {
        for (group, mgid) in [
            ([224, 0, 0, 1], "ff12:401b:ffff::1"),
            ([239, 7, 7, 7], "ff12:401b:ffff::f07:707"),
            ([255, 255, 255, 255], "ff12:401b:ffff::ffff:ffff"),
        ] {
            assert_eq!(of_ipv4(Ipv4Addr::from(group)), gid(mgid));
        }
        assert_eq!(ipv4_group(&gid("ff12:401b:ffff::f07:707")), Some(Ipv4Addr::new(239, 7, 7, 7)));
        assert_eq!(ipv4_group(&gid("ff15:401b:8001::1")), Some(Ipv4Addr::new(224, 0, 0, 1)));
        let of_rdma_cm = of_rdma_cm(IpAddr::from([239, 7, 7, 7]));
        assert_eq!(of_rdma_cm, gid("ff12:4001:ffff::f07:707"));
        assert_eq!(ipv4_group(&of_rdma_cm), Some(Ipv4Addr::new(239, 7, 7, 7)));
        assert_eq!(super::of_rdma_cm("ff02::7".parse().unwrap()), gid("ff12:6001:ffff::7"));
        assert_eq!(ipv4_group(&of_ipv4(Ipv4Addr::BROADCAST)), Some(Ipv4Addr::new(239, 255, 255, 255)));
    }

    #[test]
    fn groups_of_ipoib_by_ipv6() {
        for (group, mgid) in [
            ("ff02::1", "ff12:601b:ffff::1"),
            ("ff02::1:ff12:3456", "ff12:601b:ffff::1:ff12:3456"),
            ("ff3e:30:2001:db8:1:2:3:4", "ff12:601b:ffff:db8:1:2:3:4"),
        ] {
            assert_eq!(of_ipv6(group.parse().unwrap()), gid(mgid));
        }
    }

    #[test]
    fn other_groups_are_spread() {
        let groups = ["ff12:601b:ffff::1:ff00:1", "ff12:601b:ffff::1:ff00:2", "ff0e::1", "ff12:401b:ffff:1::1"];
        let groups = groups.map(|group| ipv4_group(&gid(group)).unwrap());
        assert!(groups.iter().all(|group| group.octets()[0] == 239));
        assert!((1..groups.len()).all(|at| !groups[..at].contains(&groups[at])));
        assert_eq!(ipv4_group(&gid("fe80::1")), None);
        assert_eq!(ipv4_group(&gid("::ffff:239.7.7.7")), None);
    }

    #[test]
    fn mlids_are_of_multicast() {
        for group in 0..4096_u32 {
            let mlid = mlid(&of_ipv4(Ipv4Addr::from_bits(FIRST_GROUP + group)));
            assert!((0xC001..0xFFFF).contains(&mlid.0));
        }
        assert_eq!(mlid(&of_ipv4(Ipv4Addr::BROADCAST)), Lid(0xC000));
    }
}
