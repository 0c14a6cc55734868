//! QP1, the general services interface: datagrams of communication management.

use std::net::IpAddr;
use std::sync::Arc;

use urxe_net::{Destination, Gid, Port};
use urxe_wire::cm::CmMad;
use urxe_wire::mad::MAD_LEN;
use urxe_wire::packet::Service;
use urxe_wire::{Bth, Deth, Ext, Header, Opcode, Operation, Packet, Psn, QKey, Qpn, Transport};

use super::host::Sender;
use super::port::{NetPort, Work};
use urxe_engine::{Instant, Network};

/// Who takes the datagrams.
pub(crate) trait Gsi: Send + Sync {
    /// A message has come.
    fn receive(&self, work: &mut Work, now: Instant, local: Gid, peer: Gid, mad: &CmMad);

    /// The time set with [`NetPort::set_gsi_timer`] has come.
    fn handle_timeout(&self, now: Instant);

    /// The device was taken out ([`NetPort::is_gone`]).
    fn removed(&self, work: &mut Work);
}

/// The message in a packet to QP1, if it may come in (IBA 9.6.1.2: the Q_Key) and is one.
pub(super) fn message(packet: &Packet<'_>) -> Option<CmMad> {
    match packet.header.service {
        Service::Datagram(deth) if deth.q_key == QKey::GSI => CmMad::parse(packet.payload).ok(),
        _ => None,
    }
}

/// Sends a message from QP1 to QP1. What cannot be sent is lost.
pub(crate) fn send(work: &mut Work, port: &Port, psn: Psn, local: Gid, remote: Gid, payload: &[u8; MAD_LEN]) {
    let to = Destination { local, remote, dest_qpn: Qpn::GSI, flow_label: 0, tclass: 0, hop_limit: 0 };
    let Some(opcode) = Opcode::new(Transport::Ud, Operation::SendOnly) else { return };
    let Ok(route) = port.route(&to) else { return };
    let service = Service::Datagram(Deth { q_key: QKey::GSI, src_qp: Qpn::GSI });
    let header = Header { bth: Bth::new(opcode, Qpn::GSI, psn), service, ext: Ext::None };
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
    urxe_net::gid_of(address)
}

impl NetPort {
    /// Says who takes datagrams to QP1 from now on; before, and after `None`, requests are refused.
    pub(crate) fn set_gsi(&self, gsi: Option<Arc<dyn Gsi>>) {
        *self.gsi.write().unwrap_or_else(std::sync::PoisonError::into_inner) = gsi;
    }

    /// Tells who takes them that the device was taken out.
    pub(super) fn tell_gsi_removed(&self, work: &mut Work) {
        if let Some(gsi) = self.gsi() {
            gsi.removed(work);
        }
    }

    pub(super) fn gsi(&self) -> Option<Arc<dyn Gsi>> {
        self.gsi.read().unwrap_or_else(std::sync::PoisonError::into_inner).clone()
    }
}
