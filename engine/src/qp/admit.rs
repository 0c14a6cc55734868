//! Packets on their way in: the checks that come before requester and responder (IBA 9.6.1), and which of the two takes
//! a packet.

use urxe_wire::opcode::{OpcodeInfo, Role};
use urxe_wire::{Opcode, PKey, Packet, Transport};

use super::send::{Failure, SendSide};
use super::{Origin, QpType, QueuePair};
use crate::event::{DropReason, Event};
use crate::host::{Consumer, Host, Io, Network};

impl<H: Host> QueuePair<H> {
    /// Takes a packet whose ICRC was found right and whose destination is this QP (IBA 9.6, 9.7). Returns whether it was
    /// accepted: it passed the checks, and was the next request, a response to one that is outstanding, or a datagram.
    /// Duplicates and refused requests are not, though they may be answered.
    pub fn handle_packet(&mut self, io: &mut Io<'_, H>, packet: &Packet<'_>, origin: &Origin<H>) -> bool {
        let bth = packet.bth();
        let info = bth.opcode.info();
        if let Err(reason) = self.admit(packet, info, origin) {
            if reason == DropReason::Stranger && self.speaks_of_paths(bth) {
                self.note_stranger(io, bth.mig_req, origin);
            }
            self.drop_packet(io, packet, reason);
            return false;
        }
        if self.attr.has_alternate && self.speaks_of_paths(bth) {
            self.follow_peer(io, bth.mig_req, origin);
        }
        match info.role {
            Role::Request => match self.config.qp_type {
                QpType::Uc => self.handle_unacknowledged(io, packet, info),
                QpType::Ud => self.handle_datagram(io, packet, origin),
                QpType::Rc | QpType::XrcSend | QpType::XrcRecv => self.handle_request(io, packet, info),
            },
            Role::Response => self.handle_response(io, packet),
            Role::Notification if bth.opcode == Opcode::CNP => {
                self.handle_notification(io, packet);
                false
            }
            Role::Notification => self.handle_selective(io, packet),
        }
    }

    /// The checks that come before requester and responder (IBA 9.6.1).
    //= spec/packets.md#pkt-013
    //# A packet of another transport, partition or peer than the queue pair's MUST be dropped without an answer.
    fn admit(&self, packet: &Packet<'_>, info: &OpcodeInfo, origin: &Origin<H>) -> Result<(), DropReason> {
        let bth = packet.bth();
        //= spec/states.md#qps-008
        //# Packets MUST be dropped in the states that do not receive.
        if !self.state.receives() {
            return Err(DropReason::State(self.state));
        }
        let transport = bth.opcode.transport();
        // XRC is one way: the initiator takes only responses.
        let backwards = self.config.qp_type == QpType::XrcSend && info.role == Role::Request;
        let is_beside = match transport {
            Transport::Cnp => true,
            Transport::Urxe => self.config.qp_type == QpType::Rc,
            transport => transport == self.config.qp_type.transport(),
        };
        if backwards || !is_beside {
            return Err(DropReason::Transport);
        }
        if !bth.p_key.matches(PKey::DEFAULT) {
            return Err(DropReason::PKey);
        }
        match &self.route {
            Some(route) if !H::Network::is_from(route, origin) && !self.admits_by_alternate(bth.mig_req, origin) => {
                Err(DropReason::Stranger)
            }
            Some(_) | None => Ok(()),
        }
    }

    pub(super) fn drop_packet(&self, io: &mut Io<'_, H>, packet: &Packet<'_>, reason: DropReason) {
        let (opcode, psn) = (packet.bth().opcode, packet.bth().psn);
        io.consumer.trace(self.config.qpn, Event::Dropped { opcode, psn, reason });
    }

    fn handle_response(&mut self, io: &mut Io<'_, H>, packet: &Packet<'_>) -> bool {
        if !self.state.sends() {
            self.drop_packet(io, packet, DropReason::State(self.state));
            return false;
        }
        // A packet of another transport than the queue pair's was dropped before: UC and UD have no responses.
        let SendSide::Reliable(requester) = &mut self.send else { return false };
        let handled = requester.handle_response(&self.config, &self.attr, io, packet);
        if handled.is_ok() && requester.failed_front().is_none() && !self.drain_pending {
            // Mostly: there is nothing to settle.
            return true;
        }
        self.settle_sends(io, packet, handled)
    }

    /// Requests may have completed, by a packet that the requester has handled: fails the oldest if it is its turn, and tells
    /// if all have. Returns whether the packet was accepted.
    pub(super) fn settle_sends(
        &mut self,
        io: &mut Io<'_, H>,
        packet: &Packet<'_>,
        handled: Result<(), Failure>,
    ) -> bool {
        match handled {
            Ok(()) => {
                if let SendSide::Reliable(requester) = &self.send
                    && let Some(status) = requester.failed_front()
                {
                    self.fail_send(io, status);
                }
                self.check_drained(io);
            }
            Err(Failure::Dropped(reason)) => self.drop_packet(io, packet, reason),
            Err(Failure::Front(status)) => self.fail_send(io, status),
        }
        handled.is_ok()
    }
}
