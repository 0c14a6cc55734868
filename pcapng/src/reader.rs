//! Packets of a pcapng file, or of a pcap file, as tcpdump writes them.

use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::Path;
use std::time::Duration;

use pcap_file::pcap::PcapReader;
use pcap_file::pcapng::PcapNgReader;
use pcap_file::pcapng::blocks::enhanced_packet::EnhancedPacketOption;
use pcap_file::pcapng::blocks::interface_description::InterfaceDescriptionOption;
use pcap_file::pcapng::blocks::{Block, enhanced_packet::EnhancedPacketBlock};
use pcap_file::{DataLink, PcapError};
use urxe_wire::packet::Service;
use urxe_wire::{Bth, Header, LOOPBACK_PORT, Packet, ROCE_PORT};

/// UDP ports of RoCE v2, and of urxe's processes on `lo` where the kernel's rxe holds the former.
const PORTS: [u16; 2] = [ROCE_PORT, LOOPBACK_PORT];

/// A packet of a capture.
#[derive(Clone, Debug)]
pub struct Captured {
    /// Time since 1970.
    pub at: Duration,
    /// Source.
    pub from: IpAddr,
    /// Destination.
    pub to: IpAddr,
    /// All headers; `None` if the packet was cut short or is malformed behind the BTH.
    pub header: Option<Header>,
    /// Base transport header.
    pub bth: Bth,
    /// Bytes of payload; 0 if it is not known.
    pub len: usize,
    /// Whether it was captured where it left (else where it came in); `None` if the capture does not say.
    pub outbound: Option<bool>,
    /// Comments of the capturing program.
    pub comments: Vec<String>,
}

impl Captured {
    /// Returns the source queue pair of a UD packet.
    #[must_use]
    pub fn src_qp(&self) -> Option<u32> {
        match self.header?.service {
            Service::Datagram(deth) => Some(deth.src_qp.get()),
            Service::Connected | Service::Xrc(_) => None,
        }
    }
}

/// Reason why a file cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// The file cannot be opened or read.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The file has neither format.
    #[error("neither a pcapng nor a pcap file")]
    Format(#[source] PcapError),
    /// The frames are not Ethernet's.
    #[error("captured with link type {0:?}: name an interface, as tcpdump -i lo does")]
    LinkType(DataLink),
}

/// Reads the RoCE v2 packets of a file. A record that is cut off at the end, by a program that was killed, is left out.
///
/// # Errors
/// See [`ReadError`].
pub fn packets(path: &Path) -> Result<Vec<Captured>, ReadError> {
    let mut file = BufReader::new(File::open(path)?);
    // A pcapng file begins with a section header block (draft-ietf-opsawg-pcapng, 4.1).
    let is_pcapng = file.fill_buf()?.starts_with(&[0x0A, 0x0D, 0x0D, 0x0A]);
    if is_pcapng { of_pcapng(file) } else { of_pcap(file) }
}

/// Reads a capture of tcpdump: without comments and directions.
fn of_pcap(file: impl BufRead) -> Result<Vec<Captured>, ReadError> {
    let mut reader = PcapReader::new(file).map_err(ReadError::Format)?;
    let link = reader.header().datalink;
    if link != DataLink::ETHERNET {
        return Err(ReadError::LinkType(link));
    }
    let mut found = Vec::new();
    // A program that was killed may leave half a packet at the end.
    while let Some(Ok(packet)) = reader.next_packet() {
        let whole = packet.orig_len as usize == packet.data.len();
        found.extend(dissect(&packet.data, whole, packet.timestamp));
    }
    Ok(found)
}

fn of_pcapng(file: impl BufRead) -> Result<Vec<Captured>, ReadError> {
    let mut reader = PcapNgReader::new(file).map_err(ReadError::Format)?;
    let mut found = Vec::new();
    let mut resolutions: Vec<u8> = Vec::new();
    while let Some(block) = reader.next_block() {
        // A program that was killed may leave half a block at the end.
        let Ok(block) = block else { break };
        match block {
            Block::SectionHeader(_) => resolutions.clear(),
            Block::InterfaceDescription(interface) => {
                if interface.linktype != DataLink::ETHERNET {
                    return Err(ReadError::LinkType(interface.linktype));
                }
                let given = interface.options.iter().find_map(|option| match option {
                    InterfaceDescriptionOption::IfTsResol(resolution) => Some(*resolution),
                    _ => None,
                });
                resolutions.push(given.unwrap_or(6));
            }
            Block::EnhancedPacket(packet) => {
                let resolution = resolutions.get(packet.interface_id as usize).copied().unwrap_or(9);
                found.extend(annotated(&packet, resolution));
            }
            _ => {}
        }
    }
    Ok(found)
}

/// A packet, with what the capture says about it.
fn annotated(packet: &EnhancedPacketBlock<'_>, resolution: u8) -> Option<Captured> {
    let whole = packet.original_len as usize == packet.data.len();
    let captured = dissect(&packet.data, whole, at(packet.timestamp, resolution))?;
    let comments = packet.options.iter().filter_map(|option| match option {
        // Captures are passed around: nothing that a terminal would obey.
        EnhancedPacketOption::Comment(text) => Some(text.replace(char::is_control, " ")),
        _ => None,
    });
    Some(Captured {
        outbound: packet.options.iter().find_map(|option| match option {
            // The low two bits are the direction: 1 is inbound, 2 outbound.
            EnhancedPacketOption::Flags(flags) => match flags & 3 {
                1 => Some(false),
                2 => Some(true),
                _ => None,
            },
            _ => None,
        }),
        comments: comments.collect(),
        ..captured
    })
}

fn dissect(frame: &[u8], whole: bool, at: Duration) -> Option<Captured> {
    let (from, to, datagram) = udp(frame)?;
    let bth = Bth::parse(datagram.first_chunk()?).ok()?;
    let parsed = if whole { Packet::parse(datagram).ok() } else { None };
    Some(Captured {
        at,
        from,
        to,
        header: parsed.map(|packet| packet.header),
        bth,
        len: parsed.map_or(0, |packet| packet.payload.len()),
        outbound: None,
        comments: Vec::new(),
    })
}

/// The reader takes every unit for a nanosecond; here it becomes what the interface says it is (a power of ten).
fn at(units: Duration, resolution: u8) -> Duration {
    let per_unit = 10_u32.checked_pow(9_u32.saturating_sub(u32::from(resolution))).unwrap_or(1);
    units.saturating_mul(per_unit)
}

/// Addresses and payload of a datagram to the RoCE port in an Ethernet frame.
fn udp(frame: &[u8]) -> Option<(IpAddr, IpAddr, &[u8])> {
    let (ether, rest) = frame.split_first_chunk::<14>()?;
    let (from, to, udp) = match [ether[12], ether[13]] {
        [0x08, 0x00] => {
            let (header, _) = rest.split_first_chunk::<20>()?;
            let ip = |at: usize| -> Option<IpAddr> {
                let octets: [u8; 4] = header.get(at..at + 4)?.try_into().ok()?;
                Some(Ipv4Addr::from(octets).into())
            };
            let len = usize::from(header[0] & 0x0F) * 4;
            if header[9] != 17 {
                return None;
            }
            (ip(12)?, ip(16)?, rest.get(len..)?)
        }
        [0x86, 0xDD] => {
            let (header, rest) = rest.split_first_chunk::<40>()?;
            let ip = |at: usize| -> Option<IpAddr> {
                let octets: [u8; 16] = header.get(at..at + 16)?.try_into().ok()?;
                Some(Ipv6Addr::from(octets).into())
            };
            if header[6] != 17 {
                return None;
            }
            (ip(8)?, ip(24)?, rest)
        }
        _ => return None,
    };
    let (header, payload) = udp.split_first_chunk::<8>()?;
    // Short frames are padded to 60 bytes, and one that was cut has less than the header says.
    let len = usize::from(u16::from_be_bytes([header[4], header[5]])).checked_sub(8)?;
    let payload = payload.get(..len).unwrap_or(payload);
    PORTS.contains(&u16::from_be_bytes([header[2], header[3]])).then_some((from, to, payload))
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use pcap_file::pcap::{PcapHeader, PcapPacket, PcapWriter};
    use pcap_file::pcapng::PcapNgWriter;
    use pcap_file::pcapng::blocks::interface_description::InterfaceDescriptionBlock;
    use urxe_wire::{Opcode, Operation, Psn, Qpn, Transport};

    use super::*;

    /// An Ethernet frame with a BTH to QP 17, PSN 5, and four bytes of ICRC.
    fn frame() -> Vec<u8> {
        let mut bth = [0; Bth::LEN];
        Bth::new(Opcode::new(Transport::Rc, Operation::SendOnly).unwrap(), Qpn::new(17), Psn::new(5)).emit(&mut bth);
        let ethernet = [&[0; 12][..], &[0x08, 0x00]].concat();
        let ip = [0x45, 0, 0, 44, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
        let udp = [0xC0, 0, 0x12, 0xB7, 0, 24, 0, 0];
        [&ethernet[..], &ip, &udp, &bth, &[0; 4]].concat()
    }

    fn file(datalink: DataLink) -> tempfile::NamedTempFile {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        let mut writer = PcapWriter::with_header(Vec::new(), PcapHeader { datalink, ..PcapHeader::default() }).unwrap();
        let frame = frame();
        let length = u32::try_from(frame.len()).unwrap();
        for at in [1, 2] {
            writer.write_packet(&PcapPacket::new(Duration::from_secs(at), length, &frame)).unwrap();
        }
        file.write_all(&writer.into_writer()).unwrap();
        file
    }

    #[test]
    fn what_tcpdump_writes_is_read() {
        let found = packets(file(DataLink::ETHERNET).path()).unwrap();
        let seen: Vec<_> = found.iter().map(|packet| (packet.at.as_secs(), packet.bth.psn.get(), packet.len)).collect();
        assert_eq!(seen, [(1, 5, 0), (2, 5, 0)]);
        assert!(found.iter().all(|packet| packet.header.is_some() && packet.outbound.is_none()));
    }

    #[test]
    fn frames_without_ethernet_are_refused() {
        let mut writer = PcapNgWriter::new(Vec::new()).unwrap();
        let interface = InterfaceDescriptionBlock { linktype: DataLink::LINUX_SLL, snaplen: 0, options: Vec::new() };
        writer.write_pcapng_block(interface).unwrap();
        let mut pcapng = tempfile::NamedTempFile::new().unwrap();
        pcapng.write_all(writer.get_ref()).unwrap();
        for file in [file(DataLink::LINUX_SLL), pcapng] {
            let said = packets(file.path()).unwrap_err().to_string();
            assert!(said.contains("LINUX_SLL") && said.contains("tcpdump -i lo"), "{said}");
        }
    }

    #[test]
    fn padding_of_a_short_frame_is_no_payload() {
        let padded = [frame(), vec![0; 2]].concat();
        let found = dissect(&padded, true, Duration::ZERO).unwrap();
        assert_eq!((found.header.is_some(), found.len), (true, 0));
    }
}
