//! QP1, the general services interface: datagrams of communication management, and those of other classes; and QP0.

use std::net::IpAddr;

use urxe_net::{Destination, Port};
use urxe_wire::cm::CmMad;
use urxe_wire::mad::MAD_LEN;
use urxe_wire::packet::Service;
use urxe_wire::{Bth, Deth, Ext, Gid, Header, Opcode, Operation, PKey, Packet, Psn, QKey, Qpn, Transport};

use super::host::{Sender, TxContext};
use urxe_engine::mad::Address;
use urxe_engine::{Instant, Network};

/// Handler of communication management messages that arrive at QP1.
pub trait Gsi: Send + Sync {
    /// Takes a message that has come. A request that `is_refused` is not told to any listener.
    fn receive(&self, work: &mut TxContext, now: Instant, local: Gid, peer: Gid, mad: &CmMad, is_refused: bool);

    /// Handles the timer that [`Device::set_gsi_timer`](crate::device::Device::set_gsi_timer) has set.
    fn handle_timeout(&self, now: Instant);

    /// The device was taken out ([`Device::is_gone`](crate::device::Device::is_gone)).
    fn removed(&self, work: &mut TxContext);
}

/// Handler of management datagrams that are not of communication management.
pub trait MadHandler: Send + Sync {
    /// Takes a datagram that has come.
    fn receive(&self, work: &mut TxContext, now: Instant, from: &Address, datagram: &[u8; MAD_LEN]);

    /// Called when the interface has changed, or another process owns one of its addresses.
    fn port_changed(&self, work: &mut TxContext, now: Instant);

    /// Called when the time of [`Device::set_mad_timer`](crate::device::Device::set_mad_timer) has come.
    fn handle_timeout(&self, now: Instant);
}

/// Why a packet to QP0 or QP1 is no management datagram.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Unfit {
    /// Another transport.
    Transport,
    /// Another partition.
    PKey,
    /// Another Q_Key.
    QKey,
    /// Not 256 bytes.
    Length,
}

/// The source queue pair and the bytes of a packet to QP0 or QP1, if it may come in and is a management datagram.
pub(super) fn datagram<'a>(packet: &Packet<'a>) -> Result<(Qpn, &'a [u8; MAD_LEN]), Unfit> {
    let q_key = if packet.bth().dest_qp == Qpn::SMI { QKey(0) } else { QKey::GSI };
    let Service::Datagram(deth) = packet.header.service else { return Err(Unfit::Transport) };
    if !packet.bth().p_key.matches(PKey::DEFAULT) {
        return Err(Unfit::PKey);
    }
    if deth.q_key != q_key {
        return Err(Unfit::QKey);
    }
    let datagram = packet.payload.try_into().map_err(|_| Unfit::Length)?;
    Ok((deth.src_qp, datagram))
}

/// The message in a packet to QP1, if it may come in (IBA 9.6.1.1.3, 9.6.1.2: P_Key and Q_Key) and is one.
//= spec/packets.md#pkt-013
//# A packet of another transport, partition or peer than the queue pair's MUST be dropped without an answer.
pub(super) fn message(packet: &Packet<'_>) -> Option<CmMad> {
    let (_, datagram) = datagram(packet).ok()?;
    CmMad::parse(datagram).ok()
}

/// Sends a message from QP1 to QP1. What cannot be sent is lost.
pub fn send(work: &mut TxContext, port: &Port, psn: Psn, local: Gid, remote: Gid, payload: &[u8; MAD_LEN]) {
    let to = Destination { local, remote, dest_qpn: Qpn::GSI, flow_label: 0, tclass: 0, hop_limit: 0 };
    send_to(work, port, psn, &to, payload);
}

/// Sends a datagram from QP1, or from QP0 to QP0. What cannot be sent is lost.
pub fn send_to(work: &mut TxContext, port: &Port, psn: Psn, to: &Destination, payload: &[u8; MAD_LEN]) {
    let Some(opcode) = Opcode::new(Transport::Ud, Operation::SendOnly) else { return };
    let Ok(route) = port.route(to) else { return };
    let (q_key, src_qp) = if to.dest_qpn == Qpn::SMI { (QKey(0), Qpn::SMI) } else { (QKey::GSI, Qpn::GSI) };
    let service = Service::Datagram(Deth { q_key, src_qp, lid_routed: false });
    let header = Header { bth: Bth::new(opcode, to.dest_qpn, psn), service, ext: Ext::None };
    let sender: &mut Sender = &mut work.sender;
    sender.speak_for(Qpn::GSI);
    if let Some(room) = sender.packet(&route, header.len() + MAD_LEN) {
        let at = header.emit(room);
        if let Some(body) = room.get_mut(at..) {
            body.copy_from_slice(payload);
        }
        sender.commit();
        sender.flush();
    }
}

/// The GID of an address.
pub(super) fn gid(address: IpAddr) -> Gid {
    Gid::from(address)
}

#[cfg(test)]
mod tests {
    use urxe_wire::ICRC_LEN;
    use urxe_wire::cm::{CommId, Message, SidrReq};

    use super::*;

    //= spec/packets.md#pkt-013
    //= type=test
    //# A packet of another transport, partition or peer than the queue pair's MUST be dropped without an answer.
    #[test]
    fn only_who_has_the_keys_comes_in() {
        let request = SidrReq { request_id: CommId(1), p_key: PKey::DEFAULT, service_id: 1, private_data: [0; 216] };
        let mad = CmMad { transaction_id: 1, attribute_modifier: 0, message: Message::SidrReq(request) };
        let comes_in = |p_key, q_key, transport| {
            let bth = Bth {
                p_key,
                ..Bth::new(Opcode::new(transport, Operation::SendOnly).unwrap(), Qpn::GSI, Psn::default())
            };
            let service = match transport {
                Transport::Ud => Service::Datagram(Deth { q_key, src_qp: Qpn::GSI, lid_routed: false }),
                _ => Service::Connected,
            };
            let header = Header { bth, service, ext: Ext::None };
            let mut bytes = vec![0; header.len() + MAD_LEN + ICRC_LEN];
            let at = header.emit(&mut bytes);
            bytes[at..at + MAD_LEN].copy_from_slice(&mad.to_bytes());
            message(&Packet::parse(&bytes).unwrap()) == Some(mad)
        };
        assert!(comes_in(PKey::DEFAULT, QKey::GSI, Transport::Ud));
        assert!(comes_in(PKey(0x7FFF), QKey::GSI, Transport::Ud), "a limited member of the same partition");
        assert!(!comes_in(PKey(0x8001), QKey::GSI, Transport::Ud));
        assert!(!comes_in(PKey::DEFAULT, QKey(0x1111_1111), Transport::Ud));
        assert!(!comes_in(PKey::DEFAULT, QKey::GSI, Transport::Rc));
    }
}
