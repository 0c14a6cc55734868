//! Packets of a pcapng file, or of a pcap file, as tcpdump writes them.

use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use pcap_file::pcap::PcapReader;
use pcap_file::pcapng::PcapNgReader;
use pcap_file::pcapng::blocks::enhanced_packet::EnhancedPacketOption;
use pcap_file::pcapng::blocks::interface_description::InterfaceDescriptionOption;
use pcap_file::pcapng::blocks::{Block, enhanced_packet::EnhancedPacketBlock};
use pcap_file::{DataLink, PcapError, TsResolution};
use urxe_wire::icrc::Flow;
use urxe_wire::packet::Service;
use urxe_wire::{Bth, Header, LOOPBACK_PORT, Packet, ROCE_PORT};

use crate::segments;

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
    /// The payload, where it was asked for ([`read_whole`]).
    pub payload: Vec<u8>,
    /// Whether the packet was captured where it left (else where it came in); `None` if the capture does not say.
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

/// Contents of a capture.
#[derive(Clone, Debug, Default)]
pub struct Capture {
    /// The RoCE v2 packets, in the order of the file.
    pub packets: Vec<Captured>,
    /// True if the file ends within a record, or has a record that cannot be read: what follows is missing.
    pub is_truncated: bool,
    /// Number of records of which the capturing program kept the beginning only (its "snaplen").
    pub cut_short: usize,
    /// Number of records that were several packets: UDP_SEGMENT or UDP_GRO made one datagram of them.
    pub super_packets: usize,
    with_payloads: bool,
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
    /// No interface of the file is Ethernet's.
    #[error("captured with link type {0:?}: name an interface, as tcpdump -i lo does")]
    LinkType(DataLink),
}

/// Reads the RoCE v2 packets of a file. Packets that the kernel handled as one datagram (UDP_SEGMENT, UDP_GRO) come one by
/// one.
///
/// # Errors
/// See [`ReadError`]. A file that ends within a record is none: [`Capture::is_truncated`].
pub fn read(path: &Path) -> Result<Capture, ReadError> {
    read_into(path, Capture::default())
}

/// Reads the RoCE v2 packets of a file with their payloads.
///
/// # Errors
/// See [`read`].
pub fn read_whole(path: &Path) -> Result<Capture, ReadError> {
    read_into(path, Capture { with_payloads: true, ..Capture::default() })
}

fn read_into(path: &Path, capture: Capture) -> Result<Capture, ReadError> {
    let mut file = BufReader::new(File::open(path)?);
    // A pcapng file begins with a section header block (draft-ietf-opsawg-pcapng, 4.1).
    let is_pcapng = file.fill_buf()?.starts_with(&[0x0A, 0x0D, 0x0D, 0x0A]);
    if is_pcapng { of_pcapng(file, capture) } else { of_pcap(file, capture) }
}

/// Reads the RoCE v2 packets of a file, and no more about it.
///
/// # Errors
/// See [`read`].
pub fn packets(path: &Path) -> Result<Vec<Captured>, ReadError> {
    read(path).map(|capture| capture.packets)
}

/// Reads a capture of tcpdump: without comments and directions.
fn of_pcap(file: impl BufRead, mut capture: Capture) -> Result<Capture, ReadError> {
    let mut reader = PcapReader::new(file).map_err(ReadError::Format)?;
    let link = reader.header().datalink;
    if link != DataLink::ETHERNET {
        return Err(ReadError::LinkType(link));
    }
    let unit = match reader.header().ts_resolution {
        TsResolution::MicroSecond => 1000,
        TsResolution::NanoSecond => 1,
    };
    // Raw: the library takes a packet that was longer than the snapshot length for a mistake in the file.
    while let Some(packet) = reader.next_raw_packet() {
        let Ok(packet) = packet else {
            capture.is_truncated = true;
            break;
        };
        let at = Duration::from_secs(packet.ts_sec.into()) + Duration::from_nanos(u64::from(packet.ts_frac) * unit);
        let record = Record { at, is_whole: packet.orig_len as usize == packet.data.len() };
        capture.add(&packet.data, &record, None, &[]);
    }
    Ok(capture)
}

fn of_pcapng(file: impl BufRead, mut capture: Capture) -> Result<Capture, ReadError> {
    let mut reader = PcapNgReader::new(file).map_err(ReadError::Format)?;
    let mut interfaces: Vec<Interface> = Vec::new();
    let (mut has_ethernet, mut other) = (false, None);
    while let Some(block) = reader.next_block() {
        let Ok(block) = block else {
            capture.is_truncated = true;
            break;
        };
        match block {
            Block::SectionHeader(_) => interfaces.clear(),
            Block::InterfaceDescription(interface) => {
                let given = interface.options.iter().find_map(|option| match option {
                    InterfaceDescriptionOption::IfTsResol(resolution) => Some(*resolution),
                    _ => None,
                });
                let link = interface.linktype;
                match link {
                    DataLink::ETHERNET => has_ethernet = true,
                    _ => other = other.or(Some(link)),
                }
                interfaces.push(Interface { link, resolution: given.unwrap_or(6) });
            }
            Block::EnhancedPacket(packet) => {
                let Some(interface) = interfaces.get(packet.interface_id as usize) else {
                    // Nothing says what it is, nor what its time means.
                    capture.is_truncated = true;
                    break;
                };
                if interface.link == DataLink::ETHERNET {
                    let is_whole = packet.original_len as usize == packet.data.len();
                    let record = Record { at: at(packet.timestamp, interface.resolution), is_whole };
                    capture.add(&packet.data, &record, direction(&packet), &comments(&packet));
                }
            }
            _ => {}
        }
    }
    match other {
        Some(link) if !has_ethernet => Err(ReadError::LinkType(link)),
        _ => Ok(capture),
    }
}

/// An interface of a section (draft-ietf-opsawg-pcapng, 4.2).
struct Interface {
    link: DataLink,
    /// Time unit as `if_tsresol`.
    resolution: u8,
}

/// Metadata of a frame in the file.
struct Record {
    at: Duration,
    is_whole: bool,
}

impl Capture {
    /// Adds the packets of a frame, if it is of RoCE v2.
    fn add(&mut self, frame: &[u8], record: &Record, outbound: Option<bool>, comments: &[String]) {
        let Some(datagram) = udp(frame) else { return };
        let Datagram { from, to, id, bytes, len } = datagram;
        let with_payloads = self.with_payloads;
        let mut add = |bytes: &[u8], is_whole| {
            let Some(bth) = bytes.first_chunk().and_then(|bytes| Bth::parse(bytes).ok()) else { return };
            let parsed = if is_whole { Packet::parse(bytes).ok() } else { None };
            self.packets.push(Captured {
                at: record.at,
                from: from.ip(),
                to: to.ip(),
                header: parsed.map(|packet| packet.header),
                bth,
                len: parsed.map_or(0, |packet| packet.payload.len()),
                payload: parsed.filter(|_| with_payloads).map_or(Vec::new(), |packet| packet.payload.to_vec()),
                outbound,
                comments: comments.to_vec(),
            });
        };
        match segments::size(&Flow::new(from, to), id, bytes, len) {
            Some(size) => {
                let mut left = len;
                for segment in bytes.chunks(size) {
                    add(segment, segment.len() == size.min(left));
                    left = left.saturating_sub(size);
                }
                self.super_packets += 1;
            }
            None => add(bytes, record.is_whole),
        }
        if !record.is_whole {
            self.cut_short += 1;
        }
    }
}

/// Where it was captured: the low two bits of `epb_flags` are 1 for inbound, 2 for outbound.
fn direction(packet: &EnhancedPacketBlock<'_>) -> Option<bool> {
    packet.options.iter().find_map(|option| match option {
        EnhancedPacketOption::Flags(flags) => match flags & 3 {
            1 => Some(false),
            2 => Some(true),
            _ => None,
        },
        _ => None,
    })
}

fn comments(packet: &EnhancedPacketBlock<'_>) -> Vec<String> {
    let comments = packet.options.iter().filter_map(|option| match option {
        // Captures are passed around: nothing that a terminal would obey.
        EnhancedPacketOption::Comment(text) => Some(text.replace(char::is_control, " ")),
        _ => None,
    });
    comments.collect()
}

/// The reader takes every unit for a nanosecond; here it becomes what the interface says it is (a power of ten).
fn at(units: Duration, resolution: u8) -> Duration {
    let per_unit = 10_u32.checked_pow(9_u32.saturating_sub(u32::from(resolution))).unwrap_or(1);
    units.saturating_mul(per_unit)
}

/// A UDP datagram in a frame.
struct Datagram<'a> {
    from: SocketAddr,
    to: SocketAddr,
    /// IPv4 identification; 0 for IPv6.
    id: u16,
    /// Payload, as far as it was kept.
    bytes: &'a [u8],
    /// Length of the payload when it was sent.
    len: usize,
}

/// The datagram to the RoCE port in an Ethernet frame.
fn udp(frame: &[u8]) -> Option<Datagram<'_>> {
    let (ether, rest) = frame.split_first_chunk::<14>()?;
    let (from, to, id, udp) = match [ether[12], ether[13]] {
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
            (ip(12)?, ip(16)?, u16::from_be_bytes([header[4], header[5]]), rest.get(len..)?)
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
            (ip(8)?, ip(24)?, 0, rest)
        }
        _ => return None,
    };
    let (header, payload) = udp.split_first_chunk::<8>()?;
    let port = |at: usize| u16::from_be_bytes([header[at], header[at + 1]]);
    // Short frames are padded to 60 bytes, and one that was cut has less than the header says.
    let len = usize::from(port(4)).checked_sub(8)?;
    let bytes = payload.get(..len).unwrap_or(payload);
    let (from, to) = (SocketAddr::new(from, port(0)), SocketAddr::new(to, port(2)));
    PORTS.contains(&to.port()).then_some(Datagram { from, to, id, bytes, len })
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
    fn captures_of_tcpdump_are_read() {
        let found = packets(file(DataLink::ETHERNET).path()).unwrap();
        let seen: Vec<_> = found.iter().map(|packet| (packet.at.as_secs(), packet.bth.psn.get(), packet.len)).collect();
        assert_eq!(seen, [(1, 5, 0), (2, 5, 0)]);
        assert!(found.iter().all(|packet| packet.header.is_some() && packet.outbound.is_none()));
    }

    /// The second packet is longer than `tcpdump -s` keeps, and the third is not.
    #[test]
    fn a_packet_longer_than_the_snapshot_length_is_cut_short() {
        let frame = frame();
        let mut bytes = [0xA1B2_C3D4_u32, 0x0004_0002, 0, 0, 58, 1].map(u32::to_le_bytes).concat();
        for (at, kept, length) in [(1_u32, 58, 58), (2, 58, 1082), (3, 50, 1082), (4, 58, 58)] {
            bytes.extend([at, 500_000, kept, length].map(u32::to_le_bytes).concat());
            bytes.extend(&frame[..kept as usize]);
        }
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(&bytes).unwrap();
        let capture = read(file.path()).unwrap();
        let times: Vec<_> = capture.packets.iter().map(|packet| packet.at.as_millis()).collect();
        assert_eq!((times, capture.cut_short, capture.is_truncated), (vec![1500, 2500, 4500], 2, false));
    }

    /// A capture like that of `dumpcap -i eth0 -i usbmon1`.
    #[test]
    fn packets_of_other_interfaces_are_left_out() {
        let mut writer = PcapNgWriter::new(Vec::new()).unwrap();
        for linktype in [DataLink::LINUX_SLL, DataLink::ETHERNET] {
            writer.write_pcapng_block(InterfaceDescriptionBlock { linktype, snaplen: 0, options: Vec::new() }).unwrap();
        }
        let frame = frame();
        let packet = |interface_id| EnhancedPacketBlock {
            interface_id,
            timestamp: Duration::ZERO,
            original_len: u32::try_from(frame.len()).unwrap(),
            data: frame.as_slice().into(),
            options: Vec::new(),
        };
        for interface in [0, 1, 0] {
            writer.write_pcapng_block(packet(interface)).unwrap();
        }
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(writer.get_ref()).unwrap();
        let capture = read(file.path()).unwrap();
        assert_eq!((capture.packets.len(), capture.is_truncated), (1, false));
        // A packet of an interface that was not described, by a writer that does not ask.
        let before = writer.get_ref().len();
        writer.write_pcapng_block(packet(1)).unwrap();
        let mut bytes = writer.get_ref().clone();
        bytes[before + 8] = 2;
        std::fs::write(file.path(), bytes).unwrap();
        let capture = read(file.path()).unwrap();
        assert_eq!((capture.packets.len(), capture.is_truncated), (1, true));
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
        let mut found = Capture::default();
        found.add(&padded, &Record { at: Duration::ZERO, is_whole: true }, None, &[]);
        let [packet] = &found.packets[..] else { panic!("{found:?}") };
        assert_eq!((packet.header.is_some(), packet.len), (true, 0));
    }

    #[test]
    fn a_file_that_ends_within_a_record_says_so() {
        let whole = std::fs::read(file(DataLink::ETHERNET).path()).unwrap();
        for (len, packets, is_truncated) in
            [(whole.len(), 2, false), (whole.len() - 1, 1, true), (whole.len() - frame().len() - 10, 1, true)]
        {
            let mut file = tempfile::NamedTempFile::new().unwrap();
            file.write_all(&whole[..len]).unwrap();
            let capture = read(file.path()).unwrap();
            assert_eq!((capture.packets.len(), capture.is_truncated), (packets, is_truncated), "{len} bytes");
        }
    }

    /// A pcapng file of ours, with its last byte missing.
    #[test]
    fn a_pcapng_file_that_ends_within_a_block_says_so() {
        let mut writer = crate::Writer::new("test", 0);
        writer.interface("lo", "");
        let addresses = crate::Addresses::new("10.0.0.1:49152".parse().unwrap(), "10.0.0.2:4791".parse().unwrap(), 0);
        for at in [1, 2] {
            writer.packet(0, crate::Direction::Sent, at, &addresses, &frame()[42..], &[]);
        }
        let bytes = writer.bytes();
        for (len, packets, is_truncated) in [(bytes.len(), 2, false), (bytes.len() - 1, 1, true)] {
            let mut file = tempfile::NamedTempFile::new().unwrap();
            file.write_all(&bytes[..len]).unwrap();
            let capture = read(file.path()).unwrap();
            assert_eq!((capture.packets.len(), capture.is_truncated), (packets, is_truncated), "{len} bytes");
        }
    }

    /// Three packets in one datagram, as tcpdump sees a send with UDP_SEGMENT.
    #[test]
    fn super_packets_are_split() {
        let mut bytes = Vec::new();
        let [from, to]: [SocketAddr; 2] = ["10.0.0.1:49152", "10.0.0.2:4791"].map(|at| at.parse().unwrap());
        for (index, len) in [(0, 256), (1, 256), (2, 8)] {
            let mut packet = vec![0; Bth::LEN + len];
            let opcode = Opcode::new(Transport::Rc, Operation::SendMiddle).unwrap();
            Bth::new(opcode, Qpn::new(17), Psn::new(5 + u32::from(index))).emit(packet.first_chunk_mut().unwrap());
            let icrc = urxe_wire::icrc::compute(&Flow::new(from, to), index, &packet);
            bytes.extend([packet, icrc.to_le_bytes().to_vec()].concat());
        }
        for (snaplen, wanted) in [(0, &[(5, 256), (6, 256), (7, 8)][..]), (42 + 300, &[(5, 0)])] {
            let mut writer = crate::Writer::new("test", snaplen);
            writer.interface("lo", "");
            writer.packet(0, crate::Direction::Sent, 1, &crate::Addresses::new(from, to, 0), &bytes, &[]);
            let mut file = tempfile::NamedTempFile::new().unwrap();
            file.write_all(writer.bytes()).unwrap();
            let capture = read(file.path()).unwrap();
            let seen: Vec<_> = capture.packets.iter().map(|packet| (packet.bth.psn.get(), packet.len)).collect();
            assert_eq!(seen, wanted);
            assert_eq!((capture.super_packets, capture.cut_short), if snaplen == 0 { (1, 0) } else { (0, 1) });
        }
    }
}
