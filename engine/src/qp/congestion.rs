//! Congestion notification: marks of packets that arrive, CNPs that leave and come (IBA annex A17.9).

use core::time::Duration;

use urxe_wire::{Bth, Ext, Header, Opcode, Packet, Psn};

use super::{Origin, QpType, QueuePair};
use crate::congestion::Marks;
use crate::event::Event;
use crate::host::{Consumer, Host, Io, Network};

impl<H: Host> QueuePair<H> {
    /// Takes note of congestion marks of packets of `origin` that have just been handled, of which `packets` say that they have met
    /// congestion. Returns whether a CNP was written, to leave at once.
    //= spec/congestion.md#ecn-002
    //# A packet of the peer that has met congestion MUST be answered by a CNP, but by no more than one in
    //# min_time_between_cnps.
    pub fn handle_marks(&mut self, io: &mut Io<'_, H>, origin: &Origin<H>, marks: Marks, packets: u32) -> bool {
        if !self.config.congestion.ecn || self.config.qp_type == QpType::Ud || !self.state.receives() {
            return false;
        }
        let Some(route) = self.route.as_ref().filter(|route| H::Network::is_from(route, origin)) else { return false };
        if marks.backward && self.state.sends() {
            self.send.handle_notification(&self.config, io.now());
        }
        if !marks.forward || packets == 0 {
            return false;
        }
        io.consumer.trace(self.config.qpn, Event::Marked { packets });
        let (now, parameters) = (io.now(), &self.config.congestion.parameters);
        if !self.notification.may_notify(now) {
            return false;
        }
        let bth = Bth { becn: true, ..self.attr.bth(Opcode::CNP, Psn::new(0)) };
        let header = Header::new(bth, Ext::CnpReserved);
        let dscp = u8::try_from(parameters.cnp_dscp).unwrap_or_default();
        let Some(packet) = io.network.notification(route, header.len(), dscp) else { return false };
        header.emit(packet);
        io.network.commit();
        self.notification.notified(now, Duration::from_micros(parameters.min_time_between_cnps.into()));
        io.consumer.trace(self.config.qpn, Event::SentCnp);
        true
    }

    /// Takes a CNP of the peer.
    //= spec/congestion.md#ecn-003
    //# A CNP of the peer MUST slow the requester. One without BECN, with a payload, or to a queue pair that does not send or
    //# has no part in ECN MUST change nothing and be counted.
    pub(super) fn handle_notification(&mut self, io: &mut Io<'_, H>, packet: &Packet<'_>) {
        let handled = self.config.congestion.ecn
            && self.config.qp_type != QpType::Ud
            && self.state.sends()
            && packet.bth().becn
            && packet.payload.is_empty();
        if handled {
            self.send.handle_notification(&self.config, io.now());
        }
        io.consumer.trace(self.config.qpn, Event::ReceivedCnp { handled });
    }
}
