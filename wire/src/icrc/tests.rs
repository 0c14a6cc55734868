use core::net::{Ipv4Addr, Ipv6Addr};
use std::vec;
use std::vec::Vec;

use crc::{CRC_32_ISO_HDLC, Crc};
use proptest::prelude::*;

use super::*;
use crate::testing;

/// The CRC-32 of Ethernet from its definition: the bits in the order of transmission (each byte's lowest first)
/// are a polynomial; complement the first 32, multiply by x^32, take the remainder of the division by the
/// generator, complement it. The coefficient of the highest power is the first bit on the wire.
fn bitwise_crc(bytes: &[u8]) -> u32 {
    const GENERATOR: u64 = 0x1_04C1_1DB7;
    let bits = bytes.iter().flat_map(|byte| (0..8).map(move |bit| byte >> bit & 1 != 0));
    let complemented = bits.enumerate().map(|(at, bit)| bit ^ (at < 32));
    let mut remainder = 0u64;
    for bit in complemented.chain([false; 32]) {
        remainder = remainder << 1 | u64::from(bit);
        if remainder >> 32 != 0 {
            remainder ^= GENERATOR;
        }
    }
    !u32::try_from(remainder).unwrap().reverse_bits()
}

/// Fields of an IP header that a router may change, or the kernel chooses.
#[derive(Clone, Copy, Debug)]
struct IpFields {
    traffic_class: u8,
    flow_label: u32,
    hop_limit: u8,
    header_checksum: u16,
    udp_checksum: u16,
    id: u16,
    df: bool,
}

fn ip_fields() -> impl Strategy<Value = IpFields> {
    (any::<(u8, u32, u8, u16, u16, u16)>(), any::<bool>()).prop_map(
        |((traffic_class, flow_label, hop_limit, header_checksum, udp_checksum, id), df)| IpFields {
            traffic_class,
            flow_label: flow_label & 0xF_FFFF,
            hop_limit,
            header_checksum,
            udp_checksum,
            id,
            df,
        },
    )
}

/// The IP and UDP headers in front of `packet` on the wire.
fn ip_and_udp(src: SocketAddr, dst: SocketAddr, fields: IpFields, packet: &[u8]) -> Vec<u8> {
    let udp_len = u16::try_from(UDP_LEN + packet.len() + ICRC_LEN).unwrap();
    let mut out = Vec::new();
    match (src.ip(), dst.ip()) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            out.extend([0x45, fields.traffic_class]);
            out.extend((udp_len + 20).to_be_bytes());
            out.extend(fields.id.to_be_bytes());
            out.extend([if fields.df { 0x40 } else { 0 }, 0, fields.hop_limit, 17]);
            out.extend(fields.header_checksum.to_be_bytes());
            out.extend(src.octets());
            out.extend(dst.octets());
        }
        (IpAddr::V6(src), IpAddr::V6(dst)) => {
            let word = 6 << 28 | u32::from(fields.traffic_class) << 20 | fields.flow_label;
            out.extend(word.to_be_bytes());
            out.extend(udp_len.to_be_bytes());
            out.extend([17, fields.hop_limit]);
            out.extend(src.octets());
            out.extend(dst.octets());
        }
        _ => unreachable!("one address family"),
    }
    out.extend(src.port().to_be_bytes());
    out.extend(dst.port().to_be_bytes());
    out.extend(udp_len.to_be_bytes());
    out.extend(fields.udp_checksum.to_be_bytes());
    out
}

/// Bytes that the ICRC covers, made from a packet as it is on the wire by masking.
fn covered(mut headers: Vec<u8>, packet: &[u8]) -> Vec<u8> {
    if headers[0] >> 4 == 4 {
        for at in [1, 8, 10, 11, 26, 27] {
            headers[at] = 0xFF;
        }
    } else {
        headers[0] |= 0x0F;
        for at in [1, 2, 3, 7, 46, 47] {
            headers[at] = 0xFF;
        }
    }
    let mut packet = packet.to_vec();
    packet[4] = 0xFF;
    [vec![0xFF; 8], headers, packet].concat()
}

fn v4_endpoints() -> impl Strategy<Value = (SocketAddr, SocketAddr)> {
    any::<([u8; 4], u16, [u8; 4])>().prop_map(|(src, port, dst)| {
        ((Ipv4Addr::from(src), port).into(), (Ipv4Addr::from(dst), crate::ROCE_PORT).into())
    })
}

fn v6_endpoints() -> impl Strategy<Value = (SocketAddr, SocketAddr)> {
    // Globally routable: never IPv4-mapped.
    any::<([u16; 7], u16, [u16; 7])>().prop_map(|([a, b, c, d, e, f, g], port, [s, t, u, v, w, x, y])| {
        let src = Ipv6Addr::new(0x2001, a, b, c, d, e, f, g);
        let dst = Ipv6Addr::new(0x2001, s, t, u, v, w, x, y);
        ((src, port).into(), (dst, crate::ROCE_PORT).into())
    })
}

fn packet() -> impl Strategy<Value = Vec<u8>> {
    testing::packet().prop_map(|(header, payload)| testing::bytes(&header, &payload))
}

/// A datagram with the ICRC that a sender who uses these IP fields puts on it.
fn with_icrc(src: SocketAddr, dst: SocketAddr, fields: IpFields, packet: &[u8]) -> Vec<u8> {
    let icrc = Crc::<u32>::new(&CRC_32_ISO_HDLC).checksum(&covered(ip_and_udp(src, dst, fields, packet), packet));
    [packet, &icrc.to_le_bytes()].concat()
}

#[test]
fn bitwise_crc_is_the_crc_of_ethernet() {
    assert_eq!(bitwise_crc(b"123456789"), 0xCBF4_3926);
}

proptest! {
    //= spec/packets.md#pkt-009
    //= type=test
    //# The ICRC MUST cover all of the packet but what routers change, for which ones are put in.
    #[test]
    fn compute_is_the_definition_over_ipv4((src, dst) in v4_endpoints(), fields in ip_fields(), packet in packet()) {
        let fields = IpFields { df: true, ..fields };
        let covered = covered(ip_and_udp(src, dst, fields, &packet), &packet);
        let icrc = compute(&Flow::new(src, dst), fields.id, &packet);
        prop_assert_eq!(icrc, bitwise_crc(&covered));
        prop_assert_eq!(icrc, Crc::<u32>::new(&CRC_32_ISO_HDLC).checksum(&covered));
    }

    //= spec/packets.md#pkt-009
    //= type=test
    //# The ICRC MUST cover all of the packet but what routers change, for which ones are put in.
    #[test]
    fn compute_is_the_definition_over_ipv6((src, dst) in v6_endpoints(), fields in ip_fields(), packet in packet()) {
        let covered = covered(ip_and_udp(src, dst, fields, &packet), &packet);
        let icrc = compute(&Flow::new(src, dst), fields.id, &packet);
        prop_assert_eq!(icrc, bitwise_crc(&covered));
        prop_assert_eq!(icrc, Crc::<u32>::new(&CRC_32_ISO_HDLC).checksum(&covered));
    }

    #[test]
    fn ipv4_mapped_addresses_are_ipv4_on_the_wire((src, dst) in v4_endpoints(), id: u16, packet in packet()) {
        let mapped = |addr: SocketAddr| match addr {
            SocketAddr::V4(v4) => SocketAddr::from((v4.ip().to_ipv6_mapped(), v4.port())),
            v6 => v6,
        };
        let icrc = compute(&Flow::new(src, dst), id, &packet);
        prop_assert_eq!(compute(&Flow::new(mapped(src), mapped(dst)), id, &packet), icrc);
        prop_assert_eq!(compute(&Flow::new(src, mapped(dst)), id, &packet), icrc);
    }

    #[test]
    fn the_identification_is_recovered(
        (src, dst) in v4_endpoints(),
        fields in ip_fields(),
        expected_id: u16,
        packet in packet(),
    ) {
        let datagram = with_icrc(src, dst, fields, &packet);
        let flow = Flow::new(src, dst);
        let recovered = Check::Recovered { id: fields.id, df: fields.df };
        let exact = fields.df && fields.id == expected_id;
        prop_assert_eq!(verify(&flow, expected_id, &datagram), if exact { Check::Exact } else { recovered });
        prop_assert_eq!(verify(&flow, fields.id, &datagram), if fields.df { Check::Exact } else { recovered });
    }

    #[test]
    fn over_ipv6_there_is_nothing_to_recover(
        (src, dst) in v6_endpoints(),
        fields in ip_fields(),
        expected_id: u16,
        packet in packet(),
    ) {
        prop_assert_eq!(verify(&Flow::new(src, dst), expected_id, &with_icrc(src, dst, fields, &packet)), Check::Exact);
    }

    /// CRC-32 finds any three flipped bits in less than 91 607; RoCE packets have 33 000.
    //= spec/packets.md#pkt-010
    //= type=test
    //# A packet whose ICRC is wrong MUST be counted and dropped without an answer.
    #[test]
    fn over_ipv6_flipped_bits_are_found(
        (src, dst) in v6_endpoints(),
        fields in ip_fields(),
        packet in packet(),
        flips in prop::collection::vec(any::<prop::sample::Index>(), 1..=3),
    ) {
        let mut datagram = with_icrc(src, dst, fields, &packet);
        let whole = datagram.clone();
        flip(&mut datagram, &flips);
        prop_assume!(datagram != whole);
        prop_assert_eq!(verify(&Flow::new(src, dst), 0, &datagram), Check::Bad);
    }

    /// The damage may look like another identification, but never like the expected one.
    #[test]
    fn over_ipv4_flipped_bits_are_not_exact(
        (src, dst) in v4_endpoints(),
        fields in ip_fields(),
        packet in packet(),
        flips in prop::collection::vec(any::<prop::sample::Index>(), 1..=3),
    ) {
        let fields = IpFields { df: true, ..fields };
        let mut datagram = with_icrc(src, dst, fields, &packet);
        let whole = datagram.clone();
        flip(&mut datagram, &flips);
        prop_assume!(datagram != whole);
        prop_assert_ne!(verify(&Flow::new(src, dst), fields.id, &datagram), Check::Exact);
    }

    /// FECN and BECN are set by routers on the way.
    #[test]
    fn the_congestion_byte_is_not_covered((src, dst) in v4_endpoints(), id: u16, mut packet in packet(), byte: u8) {
        let flow = Flow::new(src, dst);
        let before = compute(&flow, id, &packet);
        packet[4] = byte;
        prop_assert_eq!(compute(&flow, id, &packet), before);
    }

    /// Another sender, receiver or port is another flow.
    #[test]
    fn the_flow_is_covered((src, dst) in v6_endpoints(), (other_src, other_dst) in v6_endpoints(), packet in packet()) {
        let icrc = compute(&Flow::new(src, dst), 0, &packet);
        prop_assert_ne!(compute(&Flow::new(other_src, dst), 0, &packet), icrc);
        prop_assert_ne!(compute(&Flow::new(src, other_dst), 0, &packet), icrc);
        prop_assert_ne!(compute(&Flow::new((src.ip(), src.port() ^ 1).into(), dst), 0, &packet), icrc);
    }

    /// The byte of FECN and BECN may not be there, and lengths are modulo 2^16.
    #[test]
    fn compute_takes_any_bytes((src, dst) in v4_endpoints(), packet in prop::collection::vec(any::<u8>(), 0..5), id: u16) {
        let mut short = packet.clone();
        let _ = compute(&Flow::new(src, dst), id, &packet);
        short.resize(1 << 16, 0);
        let _ = compute(&Flow::new(src, dst), id, &short);
    }

    #[test]
    fn unshift_undoes_zero_bytes(register: u32, bytes in 0usize..1 << 16) {
        let mut shifted = register;
        for _ in 0..8 * bytes {
            shifted = shifted >> 1 ^ if shifted & 1 != 0 { POLYNOMIAL } else { 0 };
        }
        prop_assert_eq!(unshift(shifted, bytes), register);
    }

    #[test]
    fn verify_takes_any_bytes(datagram in prop::collection::vec(any::<u8>(), 0..64), id: u16) {
        let v4 = Flow::new(([10, 77, 0, 2], 49152).into(), ([10, 77, 0, 3], 4791).into());
        let v6 = Flow::new((Ipv6Addr::LOCALHOST, 49152).into(), (Ipv6Addr::LOCALHOST, 4791).into());
        prop_assert_ne!(verify(&v4, id, &datagram), Check::Exact);
        prop_assert_eq!(verify(&v6, id, &datagram), Check::Bad);
    }
}

fn flip(datagram: &mut [u8], flips: &[prop::sample::Index]) {
    for at in flips {
        let bit = at.index(datagram.len() * 8);
        // The byte of FECN and BECN is not covered.
        if bit / 8 != 4 {
            datagram[bit / 8] ^= 1 << (bit % 8);
        }
    }
}

/// A write of 4096 bytes from an IPv4 sender with this identification, and its flow.
fn long_write(id: u16) -> (Flow, Vec<u8>) {
    let (src, dst) = (SocketAddr::from(([10, 77, 0, 2], 49152)), SocketAddr::from(([10, 77, 0, 3], 4791)));
    let packet: Vec<u8> = (0..12 + 4096u32).map(|at| (at * 7 + 1).to_le_bytes()[0]).collect();
    let fields =
        IpFields { traffic_class: 0, flow_label: 0, hop_limit: 64, header_checksum: 0, udp_checksum: 0, id, df: true };
    (Flow::new(src, dst), with_icrc(src, dst, fields, &packet))
}

#[test]
fn truncated_and_extended_datagrams_are_not_exact() {
    let (flow, datagram) = long_write(0);
    for len in 0..datagram.len() {
        assert_ne!(verify(&flow, 0, &datagram[..len]), Check::Exact, "{len} bytes");
        if len < Bth::LEN + ICRC_LEN {
            assert_eq!(verify(&flow, 0, &datagram[..len]), Check::Bad, "{len} bytes");
        }
    }
    let longer = [&datagram[..], &[0]].concat();
    assert_ne!(verify(&flow, 0, &longer), Check::Exact);
}

/// The module's documentation says so: where a single flipped bit looks like another identification.
#[test]
fn single_bits_that_look_like_an_identification() {
    let (flow, datagram) = long_write(0x1234);
    let mut mistaken = Vec::new();
    for bit in (0..datagram.len() * 8).filter(|bit| bit / 8 != 4) {
        let mut damaged = datagram.clone();
        damaged[bit / 8] ^= 1 << (bit % 8);
        match verify(&flow, 0, &damaged) {
            Check::Exact => panic!("bit {bit}"),
            Check::Recovered { df, .. } => mistaken.push((bit / 8, bit % 8, df)),
            Check::Bad => {}
        }
    }
    assert_eq!(mistaken, [(173, 3, false), (1834, 6, false)]);
}

/// The module's documentation says so: 2^-16 for either state of DF.
#[test]
fn random_damage_passes_for_an_identification_with_probability_2_to_the_minus_15() {
    const TRIALS: u32 = 1 << 21;
    let (flow, datagram) = long_write(0);
    let datagram = &datagram[..40];
    let (mut with_df, mut without_df) = (0u32, 0u32);
    // A random packet has a random ICRC: go through evenly spread ones.
    for trial in 0..TRIALS {
        let mut damaged = datagram.to_vec();
        let icrc = trial.wrapping_mul(0x9E37_79B1);
        damaged[36..].copy_from_slice(&icrc.to_le_bytes());
        match verify(&flow, 0, &damaged) {
            Check::Recovered { df: true, .. } | Check::Exact => with_df += 1,
            Check::Recovered { df: false, .. } => without_df += 1,
            Check::Bad => {}
        }
    }
    // 32 are expected of each; the sequence is fixed, so that this is no test of chance.
    let expected = TRIALS >> 16;
    assert!((expected / 2..=expected * 2).contains(&with_df), "{with_df}");
    assert!((expected / 2..=expected * 2).contains(&without_df), "{without_df}");
}
