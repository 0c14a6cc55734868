use std::vec::Vec;

use proptest::prelude::*;
use proptest::strategy::ValueTree;

use super::*;
use crate::testing::{bytes, datagram, opcodes, packet, packet_of};
use crate::{Msn, Operation, Psn, QKey, Qpn, RKey, Syndrome, syndrome::Credits};

fn opcode(transport: Transport, operation: Operation) -> Opcode {
    Opcode::new(transport, operation).unwrap()
}

/// A RDMA WRITE Only with immediate of five bytes, as it is on the wire; the ICRC is not a right one.
#[rustfmt::skip]
const WRITE: [u8; 12 + 16 + 4 + 8 + 4] = [
    0x0B, 0x30, 0xFF, 0xFF, 0, 0x00, 0x00, 0x12, 0x80, 0x12, 0x34, 0x56,
    0, 0, 0x7F, 0x12, 0x34, 0x56, 0x78, 0x9A, 0, 0, 0x05, 0x0A, 0, 0, 0, 5,
    0xC0, 0xFF, 0xEE, 0x42,
    1, 2, 3, 4, 5, 0, 0, 0,
    0xA5, 0xA5, 0xA5, 0xA5,
];

/// An acknowledge.
const ACK: [u8; 20] = [0x11, 0, 0xFF, 0xFF, 0, 0, 0, 0x11, 0, 0x12, 0x34, 0x56, 0x1F, 0, 0, 7, 0xA5, 0xA5, 0xA5, 0xA5];

/// A datagram of eight bytes.
#[rustfmt::skip]
const DATAGRAM: [u8; 12 + 8 + 8 + 4] = [
    0x64, 0x00, 0xFF, 0xFF, 0, 0x00, 0x00, 0x01, 0x80, 0x00, 0x00, 0x05,
    0x80, 0x01, 0, 0, 0, 0, 0, 1,
    1, 2, 3, 4, 5, 6, 7, 8,
    0xA5, 0xA5, 0xA5, 0xA5,
];

#[test]
fn a_write_is_taken_apart() {
    let parsed = Packet::parse(&WRITE).unwrap();
    let bth = Bth {
        pad_count: 3,
        ack_req: true,
        ..Bth::new(opcode(Transport::Rc, Operation::WriteOnlyWithImmediate), Qpn::new(0x12), Psn::new(0x12_3456))
    };
    let reth = Reth { va: 0x7F12_3456_789A, r_key: RKey(0x50A), dma_len: 5 };
    let ext = Ext::RethImmDt(reth, ImmDt([0xC0, 0xFF, 0xEE, 0x42]));
    assert_eq!(parsed, Packet { header: Header::new(bth, ext), payload: &[1, 2, 3, 4, 5] });
    assert_eq!((parsed.bth(), parsed.ext()), (&bth, &ext));
    assert_eq!(datagram(&parsed.header, parsed.payload), WRITE);
}

#[test]
fn an_acknowledge_is_taken_apart() {
    let parsed = Packet::parse(&ACK).unwrap();
    let bth = Bth::new(opcode(Transport::Rc, Operation::Acknowledge), Qpn::new(0x11), Psn::new(0x12_3456));
    let ext = Ext::Aeth(Aeth { syndrome: Syndrome::Ack(Credits::INVALID), msn: Msn::new(7) });
    assert_eq!(parsed, Packet { header: Header::new(bth, ext), payload: &[] });
    assert_eq!(datagram(&parsed.header, &[]), ACK);
}

#[test]
fn a_datagram_is_taken_apart() {
    let parsed = Packet::parse(&DATAGRAM).unwrap();
    let bth = Bth { ack_req: true, ..Bth::new(opcode(Transport::Ud, Operation::SendOnly), Qpn::GSI, Psn::new(5)) };
    let service = Service::Datagram(Deth { q_key: QKey::GSI, src_qp: Qpn::GSI, lid_routed: false });
    assert_eq!(parsed, Packet { header: Header { bth, service, ext: Ext::None }, payload: &[1, 2, 3, 4, 5, 6, 7, 8] });
    assert_eq!(datagram(&parsed.header, parsed.payload), DATAGRAM);
}

#[test]
fn xrc_requests_have_an_xrceth_and_responses_have_none() {
    let request = Header {
        bth: Bth::new(opcode(Transport::Xrc, Operation::SendOnly), Qpn::new(1), Psn::new(2)),
        service: Service::Xrc(XrcEth { xrc_srq: Qpn::new(3) }),
        ext: Ext::None,
    };
    assert_eq!(bytes(&request, &[]), [0xA4, 0, 0xFF, 0xFF, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 3]);
    let response = Header::new(
        Bth::new(opcode(Transport::Xrc, Operation::Acknowledge), Qpn::new(1), Psn::new(2)),
        Ext::Aeth(Aeth { syndrome: Syndrome::Ack(Credits::INVALID), msn: Msn::new(3) }),
    );
    assert_eq!(bytes(&response, &[]), [0xB1, 0, 0xFF, 0xFF, 0, 0, 0, 1, 0, 0, 0, 2, 0x1F, 0, 0, 3]);
}

/// The example that Mellanox published ("RoCEv2 CNP Packet Format Example").
#[test]
fn a_cnp_has_sixteen_reserved_bytes() {
    let cnp = Header::new(Bth { becn: true, ..Bth::new(Opcode::CNP, Qpn::new(0xD2), Psn::new(0)) }, Ext::CnpReserved);
    let mut expected = std::vec![0x81, 0, 0xFF, 0xFF, 0x40, 0, 0, 0xD2, 0, 0, 0, 0];
    expected.extend_from_slice(&[0; 16]);
    assert_eq!(bytes(&cnp, &[]), expected);
}

#[test]
fn pad_counts() {
    assert_eq!([0, 1, 2, 3, 4, 5, 1023, 1024].map(pad_count), [0, 3, 2, 1, 0, 3, 1, 0]);
}

/// `datagram` with the bits of `mask` set in byte `at`.
fn with<const N: usize>(mut datagram: [u8; N], at: usize, mask: u8) -> [u8; N] {
    datagram[at] |= mask;
    datagram
}

//= spec/packets.md#pkt-005
//= type=test
//# A packet that is shorter than the headers of its opcode and the ICRC MUST be refused.
#[test]
fn malformed_too_short() {
    assert_eq!(Packet::parse(&[]), Err(Malformed::TooShort));
    // Without the ICRC, without the whole AETH, without the whole BTH.
    for len in 0..ACK.len() {
        assert_eq!(Packet::parse(&ACK[..len]), Err(Malformed::TooShort), "{len} bytes");
    }
    for len in 0..WRITE.len() - 8 {
        assert_eq!(Packet::parse(&WRITE[..len]), Err(Malformed::TooShort), "{len} bytes");
    }
    for len in 0..DATAGRAM.len() - 8 {
        assert_eq!(Packet::parse(&DATAGRAM[..len]), Err(Malformed::TooShort), "{len} bytes");
    }
}

//= spec/packets.md#pkt-006
//= type=test
//# Payload and pad bytes together MUST be a multiple of four bytes long.
#[test]
fn malformed_unaligned() {
    for missing in [1, 2, 3, 5, 6, 7] {
        assert_eq!(Packet::parse(&WRITE[..WRITE.len() - missing]), Err(Malformed::Unaligned), "{missing} missing");
    }
    for missing in [4, 8] {
        assert_ne!(Packet::parse(&WRITE[..WRITE.len() - missing]), Err(Malformed::Unaligned), "{missing} missing");
    }
}

//= spec/packets.md#pkt-004
//= type=test
//# A packet MUST NOT have more pad bytes than payload.
#[test]
fn malformed_pad_count() {
    // Pad bytes, and nothing to pad.
    assert_eq!(Packet::parse(&with(ACK, 1, 0x10)), Err(Malformed::PadCount));
    assert_eq!(Packet::parse(&WRITE[..WRITE.len() - 8]), Err(Malformed::PadCount));
    // Three of four bytes are padding: one is payload.
    assert_eq!(Packet::parse(&WRITE[..WRITE.len() - 4]).map(|packet| packet.payload.len()), Ok(1));
}

//= spec/packets.md#pkt-003
//= type=test
//# A packet of another transport header version than 0 MUST be dropped.
#[test]
fn malformed_version() {
    assert_eq!(Packet::parse(&with(ACK, 1, 0x01)), Err(Malformed::TransportVersion));
    assert_eq!(Packet::parse(&with(ACK, 1, 0x08)), Err(Malformed::TransportVersion));
}

//= spec/packets.md#pkt-002
//= type=test
//# An opcode that the table does not name MUST be refused before anything behind the BTH is read.
#[test]
fn malformed_opcode() {
    // Reserved on RC, nothing of RD, READ on UC, First on UD, CNP's neighbour, manufacturer specific.
    for byte in [0x15, 0x18, 0x40, 0x2C, 0x60, 0x80, 0xE0, 0xFF] {
        let mut datagram = WRITE;
        datagram[0] = byte;
        assert_eq!(Packet::parse(&datagram), Err(Malformed::Opcode(byte)));
    }
}

//= spec/packets.md#pkt-007
//= type=test
//# A reserved AETH syndrome MUST NOT be taken for an acknowledgement of any kind.
#[test]
fn malformed_syndrome() {
    for syndrome in [0x40, 0x65, 0x80] {
        let mut datagram = ACK;
        datagram[12] = syndrome;
        assert_eq!(Packet::parse(&datagram), Err(Malformed::Syndrome(syndrome)));
    }
}

//= spec/packets.md#pkt-008
//= type=test
//# A reserved selectivity level of a FLUSH MUST be refused.
#[test]
fn malformed_flush_level() {
    let flush = Header::new(
        Bth::new(opcode(Transport::Rc, Operation::Flush), Qpn::new(1), Psn::new(2)),
        Ext::FethReth(
            Feth { global_visibility: true, persistence: false, level: crate::feth::FlushLevel::Range },
            Reth { va: 0, r_key: RKey(1), dma_len: 8 },
        ),
    );
    let mut datagram = datagram(&flush, &[]);
    assert!(Packet::parse(&datagram).is_ok());
    datagram[15] |= 0x20;
    assert_eq!(Packet::parse(&datagram), Err(Malformed::FlushLevel));
}

/// AckReq where there are no acknowledgements is no reason to drop the packet.
#[test]
fn ack_req_is_legal_on_unreliable_transports() {
    for transport in [Transport::Uc, Transport::Ud] {
        let service = match transport {
            Transport::Ud => Service::Datagram(Deth { q_key: QKey(1), src_qp: Qpn::new(1), lid_routed: false }),
            _ => Service::Connected,
        };
        let bth = Bth { ack_req: true, ..Bth::new(opcode(transport, Operation::SendOnly), Qpn::new(2), Psn::new(3)) };
        let header = Header { bth, service, ext: Ext::None };
        assert_eq!(Packet::parse(&datagram(&header, &[])), Ok(Packet { header, payload: &[] }));
    }
}

#[test]
fn reasons_can_be_read() {
    use std::string::ToString;
    assert_eq!(Malformed::Opcode(0x15).to_string(), "unknown opcode 0x15");
    assert_eq!(Malformed::Syndrome(0x40).to_string(), "reserved AETH syndrome 0x40");
}

/// The table's lengths are those of the bytes written: hand-added from the sizes of `rxe_opcode.c`.
#[test]
fn header_lengths() {
    let len = |transport, operation| {
        let opcode = opcode(transport, operation);
        ServiceKind::of(opcode).len() + Bth::LEN + opcode.info().headers.len()
    };
    assert_eq!(len(Transport::Rc, Operation::SendMiddle), 12);
    assert_eq!(len(Transport::Rc, Operation::SendOnlyWithImmediate), 16);
    assert_eq!(len(Transport::Rc, Operation::SendLastWithInvalidate), 16);
    assert_eq!(len(Transport::Rc, Operation::WriteFirst), 28);
    assert_eq!(len(Transport::Rc, Operation::WriteOnlyWithImmediate), 32);
    assert_eq!(len(Transport::Rc, Operation::ReadRequest), 28);
    assert_eq!(len(Transport::Rc, Operation::ReadResponseMiddle), 12);
    assert_eq!(len(Transport::Rc, Operation::ReadResponseLast), 16);
    assert_eq!(len(Transport::Rc, Operation::AtomicAcknowledge), 24);
    assert_eq!(len(Transport::Rc, Operation::FetchAdd), 40);
    assert_eq!(len(Transport::Rc, Operation::Flush), 32);
    assert_eq!(len(Transport::Ud, Operation::SendOnly), 20);
    assert_eq!(len(Transport::Ud, Operation::SendOnlyWithImmediate), 24);
    assert_eq!(len(Transport::Xrc, Operation::SendOnly), 16);
    assert_eq!(len(Transport::Xrc, Operation::Acknowledge), 16);
    assert_eq!(len(Transport::Cnp, Operation::CongestionNotification), 28);
}

proptest! {
    //= spec/packets.md#pkt-011
    //= type=test
    //# What is emitted MUST be what would be parsed, byte for byte.
    #[test]
    fn parse_undoes_emit((header, payload) in packet()) {
        let datagram = datagram(&header, &payload);
        let parsed = Packet::parse(&datagram);
        prop_assert_eq!(parsed, Ok(Packet { header, payload: &payload }));
    }

    //= spec/packets.md#pkt-001
    //= type=test
    //# Any bytes MUST be taken for a packet or refused with a reason, and nothing else may happen.
    #[test]
    fn any_bytes_are_a_packet_or_not(datagram in prop::collection::vec(any::<u8>(), 0..128)) {
        canonical(&datagram)?;
    }

    /// Random bytes seldom have a known opcode: give them one.
    //= spec/packets.md#pkt-001
    //= type=test
    //# Any bytes MUST be taken for a packet or refused with a reason, and nothing else may happen.
    #[test]
    fn any_bytes_behind_a_legal_start(
        opcode in prop::sample::select(opcodes()),
        flags in 0u8..16,
        mut datagram in prop::collection::vec(any::<u8>(), 2..128),
    ) {
        datagram[0] = opcode.to_u8();
        datagram[1] = flags << 4;
        canonical(&datagram)?;
    }

    #[test]
    fn damaged_packets(
        (header, payload) in packet(),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
        len: prop::sample::Index,
    ) {
        let mut datagram = datagram(&header, &payload);
        for (at, byte) in damage {
            let at = at.index(datagram.len());
            datagram[at] = byte;
        }
        canonical(&datagram)?;
        canonical(&datagram[..len.index(datagram.len())])?;
    }
}

/// A parsed packet is written back in as many bytes, with the same meaning.
fn canonical(datagram: &[u8]) -> Result<(), TestCaseError> {
    if let Ok(packet) = Packet::parse(datagram) {
        let again = crate::testing::datagram(&packet.header, packet.payload);
        prop_assert_eq!(again.len(), datagram.len());
        prop_assert_eq!(Packet::parse(&again), Ok(packet));
    }
    Ok(())
}

/// Sixteen packets of each opcode, so that none is left to chance.
#[test]
fn every_opcode_round_trips() {
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let seen: Vec<Opcode> = opcodes();
    for &opcode in &seen {
        for _ in 0..16 {
            let (header, payload) = packet_of(opcode).new_tree(&mut runner).unwrap().current();
            assert_eq!(Packet::parse(&datagram(&header, &payload)), Ok(Packet { header, payload: &payload }));
        }
    }
    // RC 25, UC 12, UD 2, XRC 25, CNP, and two of selective repeat.
    assert_eq!(seen.len(), 25 + 12 + 2 + 25 + 1 + 2);
}
