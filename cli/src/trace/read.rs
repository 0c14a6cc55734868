//! Packets of a pcapng file.

use std::borrow::Cow;
use std::fs::File;
use std::io::BufReader;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use pcap_file::pcapng::PcapNgReader;
use pcap_file::pcapng::blocks::enhanced_packet::EnhancedPacketOption;
use pcap_file::pcapng::blocks::interface_description::InterfaceDescriptionOption;
use pcap_file::pcapng::blocks::{Block, enhanced_packet::EnhancedPacketBlock};
use urxe_wire::packet::Service;
use urxe_wire::{Bth, Header, Packet, ROCE_PORT};

/// A packet of a capture.
#[derive(Clone, Debug)]
pub(super) struct Captured {
    /// Since 1970.
    pub(super) at: Duration,
    pub(super) from: IpAddr,
    pub(super) to: IpAddr,
    /// All headers; `None` if the packet was cut short or is malformed behind the BTH.
    pub(super) header: Option<Header>,
    pub(super) bth: Bth,
    /// Bytes of payload; 0 if it is not known.
    pub(super) len: usize,
    /// Whether it was captured where it left (else where it came in); `None` if the capture does not say.
    pub(super) outbound: Option<bool>,
    /// What urxe knew of it.
    pub(super) comments: Vec<String>,
}

impl Captured {
    /// The queue pair that sent it, where it says so (UD).
    pub(super) fn src_qp(&self) -> Option<u32> {
        match self.header?.service {
            Service::Datagram(deth) => Some(deth.src_qp.get()),
            Service::Connected | Service::Xrc(_) => None,
        }
    }
}

/// The RoCE v2 packets of a file.
pub(super) fn packets(path: &Path) -> Result<Vec<Captured>> {
    let file = File::open(path)?;
    let mut reader = PcapNgReader::new(BufReader::new(file)).context("not a pcapng file")?;
    let mut found = Vec::new();
    let mut resolutions: Vec<u8> = Vec::new();
    while let Some(block) = reader.next_block() {
        // A program that was killed may leave half a block at the end.
        let Ok(block) = block else { break };
        match block {
            Block::SectionHeader(_) => resolutions.clear(),
            Block::InterfaceDescription(interface) => {
                let given = interface.options.iter().find_map(|option| match option {
                    InterfaceDescriptionOption::IfTsResol(resolution) => Some(*resolution),
                    _ => None,
                });
                resolutions.push(given.unwrap_or(6));
            }
            Block::EnhancedPacket(packet) => {
                let resolution = resolutions.get(packet.interface_id as usize).copied().unwrap_or(9);
                found.extend(dissect(&packet, resolution));
            }
            _ => {}
        }
    }
    Ok(found)
}

fn dissect(packet: &EnhancedPacketBlock<'_>, resolution: u8) -> Option<Captured> {
    let (from, to, datagram) = udp(&packet.data)?;
    let bth = Bth::parse(datagram.first_chunk()?).ok()?;
    let whole = packet.original_len as usize == packet.data.len();
    let parsed = if whole { Packet::parse(datagram).ok() } else { None };
    let comments = packet.options.iter().filter_map(|option| match option {
        EnhancedPacketOption::Comment(Cow::Borrowed(text)) => Some((*text).to_owned()),
        EnhancedPacketOption::Comment(Cow::Owned(text)) => Some(text.clone()),
        _ => None,
    });
    Some(Captured {
        at: at(packet.timestamp, resolution),
        from,
        to,
        header: parsed.map(|packet| packet.header),
        bth,
        len: parsed.map_or(0, |packet| packet.payload.len()),
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
    [ROCE_PORT, urxe_net::LOOPBACK_PORT]
        .contains(&u16::from_be_bytes([header[2], header[3]]))
        .then_some((from, to, payload))
}
