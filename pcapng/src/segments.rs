//! Segments of a super-packet: several RoCE v2 packets that the kernel handled as one datagram.
//!
//! `tcpdump` sees a UDP_SEGMENT send before the kernel, or the card, cuts it up, and a UDP_GRO receive after it was put
//! together. All segments but the last have one size, which the frame does not tell. The ICRC does: each segment has its own
//! (IBA 7.8.1), over an IPv4 identification that counts up (`inet_gso_segment`).

use urxe_wire::icrc::{self, Check, Flow};
use urxe_wire::{Bth, ICRC_LEN};

/// Every header and every padded payload of RoCE v2 fills words of this size.
const WORD: usize = 4;
const SHORTEST: usize = Bth::LEN + ICRC_LEN;
const MTUS: [usize; 5] = [256, 512, 1024, 2048, 4096];
/// No packet is longer: the largest path MTU with all headers.
const LONGEST: usize = 4096 + 128;
/// Bytes of headers between BTH and payload, at most.
const EXTENSIONS: usize = 32;

/// Finds the size of all segments but the last; `None` for a single packet, damaged or not.
///
/// `len` is the length of the datagram, of which `bytes` may have lost the end. `id` is the IPv4 identification.
pub(crate) fn size(flow: &Flow, id: u16, bytes: &[u8], len: usize) -> Option<usize> {
    if bytes.len() < len { by_opcode(bytes, len) } else { by_icrc(flow, id, bytes) }
}

/// The size with which every segment has a right ICRC.
fn by_icrc(flow: &Flow, id: u16, bytes: &[u8]) -> Option<usize> {
    if bytes.len() < 2 * SHORTEST || icrc::verify(flow, id, bytes) != Check::Bad {
        return None;
    }
    let begins_packet = |at: usize| bth(bytes, at).is_some();
    let has_icrcs = |size: usize| {
        let mut segments = bytes.chunks(size).zip(0_u16..);
        segments.all(|(segment, index)| icrc::verify(flow, id.wrapping_add(index), segment) != Check::Bad)
    };
    // The last segment may be short, so at least the first is as long as any.
    (SHORTEST..=LONGEST.min(bytes.len() - SHORTEST)).step_by(WORD).find(|&size| begins_packet(size) && has_icrcs(size))
}

/// The size that the path MTU gives, where the end of the datagram, and so its ICRC, was not kept.
fn by_opcode(bytes: &[u8], len: usize) -> Option<usize> {
    let first = bth(bytes, 0).filter(|_| len > LONGEST)?;
    let headers = (Bth::LEN..=Bth::LEN + EXTENSIONS).step_by(WORD);
    let sizes = headers.flat_map(|headers| MTUS.map(|mtu| headers + mtu + ICRC_LEN));
    sizes.filter(|size| *size < len).find(|&size| {
        bth(bytes, size).is_some_and(|next| next.dest_qp == first.dest_qp && next.psn == first.psn.next())
    })
}

fn bth(bytes: &[u8], at: usize) -> Option<Bth> {
    Bth::parse(bytes.get(at..)?.first_chunk()?).ok()
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use urxe_wire::{Opcode, Operation, Psn, Qpn, Transport};

    use super::*;

    const ID: u16 = 7;

    fn flow() -> Flow {
        let [from, to]: [SocketAddr; 2] = ["10.0.0.1:49152", "10.0.0.2:4791"].map(|at| at.parse().unwrap());
        Flow::new(from, to)
    }

    /// Packets with so much payload each, as one datagram.
    fn super_packet(operation: Operation, lengths: &[usize]) -> Vec<u8> {
        let mut out = Vec::new();
        for (index, len) in (0_u16..).zip(lengths) {
            let opcode = Opcode::new(Transport::Rc, operation).unwrap();
            let mut packet = vec![0xA5; Bth::LEN + len];
            Bth::new(opcode, Qpn::new(17), Psn::new(5 + u32::from(index))).emit(packet.first_chunk_mut().unwrap());
            let icrc = icrc::compute(&flow(), ID + index, &packet);
            packet.extend_from_slice(&icrc.to_le_bytes());
            out.extend(packet);
        }
        out
    }

    #[test]
    fn the_icrc_tells_where_segments_end() {
        for (lengths, wanted) in [
            (&[1024, 1024, 1024, 1024][..], Some(1040)),
            (&[1024, 1024, 36], Some(1040)),
            (&[64, 64, 64], Some(80)),
            (&[0, 0], Some(16)),
            (&[4096], None),
        ] {
            let bytes = super_packet(Operation::SendMiddle, lengths);
            assert_eq!(size(&flow(), ID, &bytes, bytes.len()), wanted, "{lengths:?}");
        }
    }

    #[test]
    fn a_damaged_packet_is_one_packet() {
        let mut bytes = super_packet(Operation::SendMiddle, &[4096]);
        bytes[100] ^= 1;
        assert_eq!(size(&flow(), ID, &bytes, bytes.len()), None);
    }

    #[test]
    fn psns_tell_where_the_end_was_not_kept() {
        let bytes = super_packet(Operation::SendMiddle, &[1024; 8]);
        assert_eq!(size(&flow(), ID, &bytes[..4000], bytes.len()), Some(1040));
        assert_eq!(size(&flow(), ID, &bytes[..96], bytes.len()), None, "nothing of the second");
        assert_eq!(size(&flow(), ID, &bytes[..96], 1040), None, "one packet, cut short");
    }
}
