//! Writes what was captured into the fuzzers' corpora: every RoCE packet, from the BTH to the ICRC, for `packet`; every
//! management datagram for `cm`. Packets that the kernel's rxe, which was captured, does not send are made.

use std::error::Error;
use std::fs;
use std::net::SocketAddr;
use std::path::Path;

use pcap_file::pcapng::{Block, PcapNgReader};
use urxe_wire::icrc::{self, Flow};
use urxe_wire::{Bitmap, Bth, Ext, Header, Opcode, Packet, Psn, Qpn, ROCE_PORT, SelectiveAck, SelectiveOffer};

fn main() -> Result<(), Box<dyn Error>> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let [packets, mads] = ["packet", "cm"].map(|target| here.join("corpus").join(target));
    fs::create_dir_all(&packets)?;
    fs::create_dir_all(&mads)?;
    for entry in fs::read_dir(here.join("../conformance/captures"))? {
        let path = entry?.path();
        if path.extension().is_none_or(|extension| extension != "pcapng") {
            continue;
        }
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let mut reader = PcapNgReader::new(fs::File::open(&path)?)?;
        let mut frame = 0;
        while let Some(block) = reader.next_block() {
            let Block::EnhancedPacket(block) = block? else { continue };
            frame += 1;
            let Some(datagram) = roce(&block.data) else { continue };
            fs::write(packets.join(format!("{name}-{frame}")), datagram)?;
            if let Ok(packet) = Packet::parse(datagram)
                && packet.bth().dest_qp == Qpn::GSI
            {
                // As `cm` reads it: for the first name, take this datagram.
                fs::write(mads.join(format!("{name}-{frame}")), [&[0, 0], packet.payload, &[2]].concat())?;
            }
        }
    }
    for (name, packet) in made() {
        fs::write(packets.join(name), packet)?;
    }
    Ok(())
}

/// Packets of congestion notification and of selective repeat, by their names.
fn made() -> impl Iterator<Item = (&'static str, Vec<u8>)> {
    let offer = |answer| Ext::SelectiveOffer(SelectiveOffer { answer, window: 1024 });
    let ack = |duplicates| Ext::SelectiveAck(SelectiveAck { duplicates });
    let mut gaps = vec![0; Bitmap::len_for(40)];
    [1, 2, 5, 40].iter().for_each(|behind| Bitmap::set(&mut gaps, *behind));
    let all = [
        ("made-cnp", Opcode::CNP, Ext::CnpReserved, vec![]),
        ("made-offer", Opcode::SELECTIVE_OFFER, offer(false), vec![]),
        ("made-offer-answer", Opcode::SELECTIVE_OFFER, offer(true), vec![]),
        ("made-selective-ack", Opcode::SELECTIVE_ACK, ack(0), vec![]),
        ("made-selective-ack-gaps", Opcode::SELECTIVE_ACK, ack(3), gaps),
        ("made-selective-ack-longest", Opcode::SELECTIVE_ACK, ack(u32::MAX), vec![0xA5; Bitmap::MOST]),
    ];
    all.into_iter().map(|(name, opcode, ext, payload)| {
        let becn = opcode == Opcode::CNP;
        let header = Header::new(Bth { becn, ..Bth::new(opcode, Qpn::new(17), Psn::new(0xFF_FFF0)) }, ext);
        let mut packet = vec![0; header.len()];
        header.emit(&mut packet);
        packet.extend(payload);
        // The flow of the target `packet`.
        let address = |host| SocketAddr::from(([10, 77, 0, host], ROCE_PORT));
        packet.extend(icrc::compute(&Flow::new(address(2), address(3)), 0, &packet).to_le_bytes());
        (name, packet)
    })
}

/// Payload of a UDP datagram to the RoCE port, in an Ethernet frame.
fn roce(ethernet: &[u8]) -> Option<&[u8]> {
    let (header, ip) = ethernet.split_at_checked(14)?;
    let (protocol, udp) = match header[12..] {
        [0x08, 0x00] => (ip.get(9)?, ip.get(usize::from(ip.first()? & 0x0F) * 4..)?),
        [0x86, 0xDD] => (ip.get(6)?, ip.get(40..)?),
        _ => return None,
    };
    let (&[_, _, port0, port1, len0, len1, ..], _) = udp.split_first_chunk::<8>()?;
    let to_us = *protocol == 17 && u16::from_be_bytes([port0, port1]) == ROCE_PORT;
    udp.get(8..usize::from(u16::from_be_bytes([len0, len1]))).filter(|_| to_us)
}
