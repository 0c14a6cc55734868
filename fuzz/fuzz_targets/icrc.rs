#![no_main]
//! The ICRC of any packet is the CRC-32 of the masked headers and the packet, by another implementation of CRC-32.

use std::net::SocketAddr;

use libfuzzer_sys::fuzz_target;
use urxe_wire::icrc::{self, Check, Flow};
use urxe_wire::{Bth, ICRC_LEN};

const CRC: crc::Crc<u32> = crc::Crc::<u32>::new(&crc::CRC_32_ISO_HDLC);

fuzz_target!(|input: (bool, [u8; 16], [u8; 16], u16, u16, u16, &[u8])| {
    let (ipv4, src, dst, source_port, destination_port, id, packet) = input;
    let packet = &packet[..packet.len().min(9000)];
    if packet.len() < Bth::LEN {
        return;
    }
    let udp_len = u16::try_from(8 + packet.len() + ICRC_LEN).expect("at most 9012").to_be_bytes();
    let mut covered = vec![0xFF; 8];
    let (src, dst) = if ipv4 {
        let [src, dst] = [src, dst].map(|address| <[u8; 4]>::try_from(&address[..4]).expect("four bytes"));
        let total = u16::try_from(28 + packet.len() + ICRC_LEN).expect("at most 9032").to_be_bytes();
        covered.extend([0x45, 0xFF, total[0], total[1], id.to_be_bytes()[0], id.to_be_bytes()[1], 0x40, 0]);
        covered.extend([0xFF, 17, 0xFF, 0xFF]);
        covered.extend([src, dst].concat());
        (SocketAddr::from((src, source_port)), SocketAddr::from((dst, destination_port)))
    } else {
        let ends = [src, dst].map(std::net::Ipv6Addr::from);
        if ends.iter().any(|end| end.to_ipv4_mapped().is_some()) {
            return;
        }
        covered.extend([0x6F, 0xFF, 0xFF, 0xFF, udp_len[0], udp_len[1], 17, 0xFF]);
        covered.extend([src, dst].concat());
        (SocketAddr::from((ends[0], source_port)), SocketAddr::from((ends[1], destination_port)))
    };
    covered.extend(source_port.to_be_bytes());
    covered.extend(destination_port.to_be_bytes());
    covered.extend([udp_len[0], udp_len[1], 0xFF, 0xFF]);
    let bth = covered.len();
    covered.extend(packet);
    covered[bth + 4] = 0xFF;
    let flow = Flow::new(src, dst);
    let icrc = icrc::compute(&flow, id, packet);
    assert_eq!(icrc, CRC.checksum(&covered));
    let datagram = [packet, &icrc.to_le_bytes()].concat();
    assert_eq!(icrc::verify(&flow, id, &datagram), Check::Exact);
});
