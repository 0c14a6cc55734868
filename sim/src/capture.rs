//! Packet captures of a simulation, for Wireshark.

use std::io::Write;
use std::net::IpAddr;
use std::time::Duration;

use pcap_file::pcap::{PcapHeader, PcapPacket, PcapWriter};
use pcap_file::{DataLink, PcapError, TsResolution};
use urxe_engine::Instant;
use urxe_engine::endpoint::Datagram;

/// Packets with the times they were sent at.
#[derive(Clone, Debug, Default)]
pub struct Capture(Vec<(Instant, Datagram)>);

impl Capture {
    pub(crate) fn push(&mut self, now: Instant, datagram: Datagram) {
        self.0.push((now, datagram));
    }

    /// How many there are.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Writes them as a pcap file of IP packets.
    ///
    /// # Errors
    /// What the writer says.
    pub fn write_pcap(&self, to: impl Write) -> Result<(), PcapError> {
        let header =
            PcapHeader { datalink: DataLink::RAW, ts_resolution: TsResolution::NanoSecond, ..PcapHeader::default() };
        let mut writer = PcapWriter::with_header(to, header)?;
        for (at, datagram) in &self.0 {
            let packet = ip_packet(datagram);
            let len = u32::try_from(packet.len()).unwrap_or(u32::MAX);
            writer.write_packet(&PcapPacket::new(Duration::from_nanos(at.as_nanos()), len, &packet))?;
        }
        Ok(())
    }
}

/// The datagram with its IP and UDP headers. UDP checksums are 0, as the kernel's rxe sends them.
fn ip_packet(datagram: &Datagram) -> Vec<u8> {
    const UDP: u8 = 17;
    let be16 = |len: usize| u16::try_from(len).unwrap_or(u16::MAX).to_be_bytes();
    let udp_len = be16(datagram.bytes.len() + 8);
    let mut packet = Vec::with_capacity(datagram.bytes.len() + 48);
    match (datagram.from.ip(), datagram.to.ip()) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            let [high, low] = be16(datagram.bytes.len() + 28);
            packet.extend_from_slice(&[0x45, 0, high, low, 0, 0, 0x40, 0, 64, UDP, 0, 0]);
            packet.extend_from_slice(&from.octets());
            packet.extend_from_slice(&to.octets());
            let checksum = internet_checksum(&packet).to_be_bytes();
            packet[10..12].copy_from_slice(&checksum);
        }
        (from, to) => {
            let octets = |ip| match ip {
                IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
                IpAddr::V6(ip) => ip.octets(),
            };
            packet.extend_from_slice(&[0x60, 0, 0, 0, udp_len[0], udp_len[1], UDP, 64]);
            packet.extend_from_slice(&octets(from));
            packet.extend_from_slice(&octets(to));
        }
    }
    packet.extend_from_slice(&datagram.from.port().to_be_bytes());
    packet.extend_from_slice(&datagram.to.port().to_be_bytes());
    packet.extend_from_slice(&udp_len);
    packet.extend_from_slice(&[0, 0]);
    packet.extend_from_slice(&datagram.bytes);
    packet
}

/// RFC 1071, of an even number of bytes.
fn internet_checksum(bytes: &[u8]) -> u16 {
    let (pairs, _) = bytes.as_chunks::<2>();
    let sum: u32 = pairs.iter().map(|pair| u32::from(u16::from_be_bytes(*pair))).sum();
    let folded = (sum & 0xFFFF) + (sum >> 16);
    !u16::try_from((folded & 0xFFFF) + (folded >> 16)).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_capture_reads_back() {
        let endpoints = |v4: &str, port| std::net::SocketAddr::new(v4.parse().unwrap(), port);
        let datagram =
            Datagram { from: endpoints("10.0.0.1", 49152), to: endpoints("10.0.0.2", 4791), bytes: vec![1; 20] };
        let mut capture = Capture::default();
        capture.push(Instant::from_nanos(1_000_000_007), datagram);
        let mut file = Vec::new();
        capture.write_pcap(&mut file).unwrap();

        let mut reader = pcap_file::pcap::PcapReader::new(file.as_slice()).unwrap();
        let packet = reader.next_packet().unwrap().unwrap();
        assert_eq!(packet.timestamp, Duration::from_nanos(1_000_000_007));
        assert_eq!(packet.data.len(), 20 + 8 + 20);
        assert_eq!(internet_checksum(&packet.data[..20]), 0, "a header with its checksum sums up to nothing");
        assert_eq!(packet.data[20..24], [0xC0, 0, 0x12, 0xB7]);
        assert!(reader.next_packet().is_none());
    }
}
