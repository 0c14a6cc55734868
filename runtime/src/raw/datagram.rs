//! Datagrams of UD in frames, for the queue pairs that rules lead them to.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use urxe_engine::flow::{Header, Headers};
use urxe_net::Datagram;
use urxe_wire::packet::Service;
use urxe_wire::{Bth, ICRC_LEN, Qpn, ROCE_PORT, icrc};

use crate::clock::LazyInstant;
use crate::device::{Device, TxContext};
use crate::qp::Qp;

const UDP_HEADER: usize = 8;

/// A RoCE v2 packet in a frame.
struct FramedPacket<'a> {
    headers: urxe_net::Headers,
    flow: icrc::Flow,
    id: u16,
    payload: &'a [u8],
}

impl<'a> FramedPacket<'a> {
    /// Finds the packet of a frame. `None` if there is none, or not all of it.
    fn find(frame: &Headers<'a>) -> Option<Self> {
        let udp = frame.at(Header::Udp, false).filter(|_| !frame.is_first_fragment(false))?;
        let (header, rest) = udp.split_first_chunk::<UDP_HEADER>()?;
        let [source, destination, length] = [0, 2, 4].map(|at| u16::from_be_bytes([header[at], header[at + 1]]));
        let payload = rest.get(..usize::from(length).checked_sub(UDP_HEADER)?)?;
        if destination != ROCE_PORT || payload.len() < Bth::LEN + ICRC_LEN {
            return None;
        }
        let (from, to, tclass, hop_limit, id) = addresses(frame)?;
        let (peer, local) = (SocketAddr::new(from, source), SocketAddr::new(to, destination));
        let headers = urxe_net::Headers { local, peer, tclass, hop_limit };
        Some(Self { headers, flow: icrc::Flow::new(peer, local), id, payload })
    }

    fn datagram(&self) -> Datagram<'_> {
        let Self { headers, flow, id, payload } = self;
        Datagram { headers, expected_id: *id, flow: Some(flow), payload, is_refused: false }
    }
}

/// Source, destination, traffic class, hop limit and identification of an IP packet.
fn addresses(frame: &Headers<'_>) -> Option<(IpAddr, IpAddr, u8, u8, u16)> {
    if let Some(ip) = frame.at(Header::Ipv4, false).and_then(|ip| ip.first_chunk::<20>()) {
        let [from, to] = [12, 16].map(|at| IpAddr::from([ip[at], ip[at + 1], ip[at + 2], ip[at + 3]]));
        return Some((from, to, ip[1], ip[8], u16::from_be_bytes([ip[4], ip[5]])));
    }
    let ip = frame.at(Header::Ipv6, false)?.first_chunk::<40>()?;
    let address = |at: usize| Some(IpAddr::from(*ip.get(at..)?.first_chunk::<16>()?));
    Some((address(8)?, address(24)?, ip[0] << 4 | ip[1] >> 4, ip[7], 0))
}

impl Device {
    /// Gives a UD queue pair the datagram in a frame, whatever queue pair it names. One that comes to it by its number or its group as
    /// well, as the host has `is_taken` not, is left to that way.
    pub(super) fn deliver_datagram(
        &self,
        work: &mut TxContext,
        clock: &LazyInstant,
        qp: &Arc<Qp>,
        frame: &Headers<'_>,
        is_taken: bool,
    ) {
        let Some(framed) = FramedPacket::find(frame) else { return };
        let datagram = framed.datagram();
        // What is damaged is counted where it is received.
        if !datagram.packet().is_ok_and(|packet| matches!(packet.header.service, Service::Datagram(_))) {
            return;
        }
        let comes_anyhow = match datagram.dest_qpn() {
            Qpn::MULTICAST => self.groups().attached(framed.headers.local.ip()).contains(&qp.qpn()),
            named => named == qp.qpn(),
        };
        if is_taken || !comes_anyhow {
            qp.receive(work, clock, &datagram.into());
            qp.drive(work, |_, _| ());
        }
    }
}
