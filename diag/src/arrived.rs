//! Headers of the packet being handled that explanations name.

use std::net::{IpAddr, SocketAddr};

use urxe_net::Datagram;
use urxe_wire::opcode::Role;
use urxe_wire::packet::Service;
use urxe_wire::{Bth, Packet, Psn, QKey, Qpn, Transport};

/// A packet that has come.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arrived {
    /// The sender's address.
    pub(super) from: SocketAddr,
    /// The address that it was sent to.
    pub(super) to: IpAddr,
    /// The queue pair that it is for.
    pub(super) dest: Qpn,
    pub(super) psn: Psn,
    pub(super) is_request: bool,
    /// Sender of a datagram, the Q_Key and the bytes of its message.
    pub(super) datagram: Option<(Qpn, QKey, usize)>,
}

impl Arrived {
    /// Reads the headers; `None` if this is no packet.
    pub(super) fn of(datagram: &Datagram<'_>) -> Option<Self> {
        let bth = Bth::parse(datagram.payload.first_chunk()?).ok()?;
        let mut message = None;
        if bth.opcode.transport() == Transport::Ud {
            let Packet { header, payload } = Packet::parse(datagram.payload).ok()?;
            if let Service::Datagram(deth) = header.service {
                message = Some((deth.src_qp, deth.q_key, payload.len()));
            }
        }
        Some(Self {
            from: datagram.headers.peer,
            to: datagram.headers.local.ip(),
            dest: bth.dest_qp,
            psn: bth.psn,
            is_request: bth.opcode.info().role == Role::Request,
            datagram: message,
        })
    }
}
