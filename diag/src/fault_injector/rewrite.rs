//! Packets as the script changes them.

use urxe_net::{Datagram, Route};
use urxe_wire::{Aeth, Bth, Ext, Header, ICRC_LEN, Msn, Opcode, Operation, Packet, Syndrome, icrc};

/// Appends the ICRC of `packet`, as sent alone.
pub(super) fn with_icrc(route: &Route, packet: &[u8]) -> Vec<u8> {
    let flow = icrc::Flow::new(route.local(), route.remote());
    [packet, &icrc::compute(&flow, 0, packet).to_le_bytes()].concat()
}

/// Appends an ICRC to `packet`, as if it had arrived in place of `datagram`.
pub(super) fn with_new_icrc(datagram: &Datagram<'_>, mut packet: Vec<u8>) -> Vec<u8> {
    let icrc = datagram.flow.map_or(0, |flow| icrc::compute(flow, datagram.expected_id, &packet));
    packet.extend(icrc.to_le_bytes());
    packet
}

/// Returns the payload of a packet without ICRC; `None` if that is no packet.
pub(super) fn payload_mut(packet: &mut [u8]) -> Option<&mut [u8]> {
    let whole = [&*packet, &[0; ICRC_LEN]].concat();
    let parsed = Packet::parse(&whole).ok()?;
    let (start, len) = (parsed.header.len(), parsed.payload.len());
    packet.get_mut(start..start + len)
}

/// Returns the refusal that stands in for a response.
pub(super) fn refusal(response: &[u8], syndrome: Syndrome) -> Option<Vec<u8>> {
    let bth = Bth::parse(response.first_chunk()?).ok()?;
    let opcode = Opcode::new(bth.opcode.transport(), Operation::Acknowledge)?;
    let header = Header::new(Bth::new(opcode, bth.dest_qp, bth.psn), Ext::Aeth(Aeth { syndrome, msn: Msn::default() }));
    let mut bytes = vec![0; header.len()];
    header.emit(&mut bytes);
    Some(bytes)
}
