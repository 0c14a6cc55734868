//! Packets as they are delivered, and what must be read of them to know for whom they are.

use std::fmt;
use std::net::SocketAddr;

use urxe_wire::{Gid, Packet, Qpn, icrc};

use crate::MIN_PACKET;
use crate::qpn_registry::block_of;

/// UDP and IP headers of a packet: equal for all packets of one batch.
#[derive(Clone, Copy, Debug)]
pub struct Headers {
    /// Own address it was sent to, UDP port 4791.
    pub local: SocketAddr,
    /// Address and UDP source port it came from.
    pub peer: SocketAddr,
    /// IPv4 TOS or IPv6 traffic class, if [asked for](crate::Port::report_marks); the low two bits are ECN.
    pub tclass: u8,
    /// IPv4 TTL or IPv6 hop limit on arrival, if [asked for](crate::Port::report_headers).
    pub hop_limit: u8,
}

/// One RoCE packet for this process.
#[derive(Clone, Copy, Debug)]
pub struct Datagram<'a> {
    /// Headers with both addresses.
    pub headers: &'a Headers,
    /// The IPv4 identification it most likely had: its index in the run it came in.
    pub expected_id: u16,
    /// The headers below the BTH, for the ICRC. `None`: it came through memory, whole; the ICRC is left out, and its place
    /// holds nothing.
    pub flow: Option<&'a icrc::Flow>,
    /// BTH to ICRC, at least 16 bytes.
    pub payload: &'a [u8],
    /// Connection request to be refused by QP1, whoever listens in this process: no process of this host listened in time.
    pub is_refused: bool,
}

/// RoCE packets for one queue pair of this process that came in one piece: one, or some of a GRO run.
#[derive(Clone, Copy, Debug)]
pub struct RxBatch<'a> {
    /// The first of them, with the bytes of all.
    first: Datagram<'a>,
    /// Length of each; the last may be shorter.
    segment: usize,
}

impl<'a> RxBatch<'a> {
    /// `first` has the bytes of all, each but the last of `segment`.
    pub(crate) const fn new(first: Datagram<'a>, segment: usize) -> Self {
        Self { first, segment }
    }

    /// The packets.
    #[inline]
    pub fn datagrams(&self) -> impl Iterator<Item = Datagram<'a>> {
        let Self { first, segment } = *self;
        let packets = first.payload.chunks(segment.max(1)).enumerate();
        packets.map(move |(index, payload)| {
            // A run has at most 65 536 bytes, so less packets than identifications.
            let index = u16::try_from(index).unwrap_or_default();
            Datagram { expected_id: first.expected_id.wrapping_add(index), payload, ..first }
        })
    }

    /// The destination QPN of their BTHs.
    pub fn dest_qpn(&self) -> Qpn {
        self.first.dest_qpn()
    }

    /// Headers with both addresses.
    pub const fn headers(&self) -> &'a Headers {
        self.first.headers
    }
}

impl<'a> From<Datagram<'a>> for RxBatch<'a> {
    fn from(datagram: Datagram<'a>) -> Self {
        Self { segment: datagram.payload.len(), first: datagram }
    }
}

/// Reason why a datagram is no packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BadPacket {
    /// The ICRC is wrong.
    Damaged,
    /// The headers are none of RoCE v2.
    Malformed,
}

impl fmt::Display for BadPacket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Damaged => "the ICRC is wrong",
            Self::Malformed => "the headers are none of RoCE v2",
        })
    }
}

impl std::error::Error for BadPacket {}

impl<'a> Datagram<'a> {
    /// Returns the packet, if its ICRC is right and its headers are.
    ///
    /// # Errors
    /// See [`BadPacket`].
    //= spec/packets.md#pkt-010
    //# A packet whose ICRC is wrong MUST be counted and dropped without an answer.
    // Inline, so that of each packet of a run only what is looked at is made.
    #[inline(always)]
    pub fn packet(&self) -> Result<Packet<'a>, BadPacket> {
        if self.verify() == icrc::Check::Bad {
            return Err(BadPacket::Damaged);
        }
        Packet::parse(self.payload).map_err(|_| BadPacket::Malformed)
    }

    /// Checks the ICRC, if there is one.
    #[inline(always)]
    pub fn verify(&self) -> icrc::Check {
        self.flow.map_or(icrc::Check::Exact, |flow| icrc::verify(flow, self.expected_id, self.payload))
    }

    /// The destination QPN of the BTH.
    pub fn dest_qpn(&self) -> Qpn {
        dest_qpn(self.payload).unwrap_or_default()
    }

    /// The GID it was sent to.
    pub fn local_gid(&self) -> Gid {
        Gid::from(self.headers.local.ip())
    }
}

/// Bytes 5 to 7 of the BTH (IBA 9.2); `None`: no whole BTH and ICRC.
pub(crate) fn dest_qpn(packet: &[u8]) -> Option<Qpn> {
    match packet {
        [_, _, _, _, _, a, b, c, rest @ ..] if rest.len() >= MIN_PACKET - 8 => {
            Some(Qpn::new(u32::from_be_bytes([0, *a, *b, *c])))
        }
        _ => None,
    }
}

/// The leading packets of a run that are for this block: their bytes and number, at least one.
pub(crate) fn group_of(run: &[u8], segment: usize, block: u16) -> (&[u8], u16) {
    leading(run, segment, |qpn| block_of(qpn) == block)
}

/// The leading packets of a run with such destinations: their bytes and number.
pub(crate) fn leading(run: &[u8], segment: usize, wanted: impl Fn(Qpn) -> bool) -> (&[u8], u16) {
    let (mut len, mut count) = (0, 0u16);
    for packet in run.chunks(segment) {
        if !dest_qpn(packet).is_some_and(&wanted) {
            break;
        }
        len += packet.len();
        count += 1;
    }
    (run.get(..len).unwrap_or_default(), count)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packet(qpn: u32, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        bytes[4..8].copy_from_slice(&qpn.to_be_bytes());
        bytes
    }

    #[test]
    fn the_qpn_is_read_where_bth_and_icrc_are_whole() {
        assert_eq!(dest_qpn(&packet(0xAB12_3456, 16)), Some(Qpn::new(0x12_3456)));
        for len in 8..16 {
            assert_eq!(dest_qpn(&packet(1, len)), None, "{len} bytes");
        }
        assert_eq!(dest_qpn(&[]), None);
    }

    #[test]
    fn packets_of_a_run_are_numbered_and_the_last_may_be_shorter() {
        let peer = "127.0.0.1:50000".parse().unwrap();
        let local = "127.0.0.1:4791".parse().unwrap();
        let bytes = [packet(7, 20), packet(7, 20), packet(7, 16)].concat();
        let flow = &icrc::Flow::new(peer, local);
        let headers = &Headers { local, peer, tclass: 0, hop_limit: 64 };
        let first =
            Datagram { headers, expected_id: u16::MAX, flow: Some(flow), payload: bytes.as_slice(), is_refused: false };
        let run = RxBatch::new(first, 20);
        assert_eq!(run.dest_qpn(), Qpn::new(7));
        let seen: Vec<_> = run.datagrams().map(|packet| (packet.expected_id, packet.payload.len())).collect();
        assert_eq!(seen, [(u16::MAX, 20), (0, 20), (1, 16)]);
        let alone = RxBatch::from(Datagram { payload: &bytes[..20], ..first });
        assert_eq!(alone.datagrams().count(), 1);
    }

    #[test]
    fn a_group_ends_where_the_block_does() {
        let run: Vec<u8> = [0x100, 0x1FF, 0x200, 0x101].iter().flat_map(|qpn| packet(*qpn, 20)).collect();
        assert_eq!(group_of(&run, 20, 1), (&run[..40], 2));
        assert_eq!(group_of(&run[40..], 20, 2), (&run[40..60], 1));
        // A last packet too short to say is in no group.
        let torn = [packet(0x100, 20), packet(0x100, 20)[..10].to_vec()].concat();
        assert_eq!(group_of(&torn, 20, 1), (&torn[..20], 1));
    }
}
