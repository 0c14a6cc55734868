//! The responder of UC (IBA 9.8.2.2): carries out what arrives whole, and drops the rest without a word.

use urxe_wire::Packet;
use urxe_wire::opcode::OpcodeInfo;

use super::responder::Verdict;
use crate::async_event::AsyncEvent;
use crate::event::{DropReason, Event};
use crate::host::{Consumer, Host, Io};
use crate::qp::QueuePair;
use crate::qp::state::QpState;

impl<H: Host> QueuePair<H> {
    /// Takes a request on UC. A gap ends the message under way; the next First or Only begins anew, whatever its PSN
    /// (IBA 9.8.2.2.1, 9.8.2.2.2).
    //= spec/unreliable.md#unr-007
    //# On UC and UD nothing that a peer sends MUST stop the queue pair.
    pub(in crate::qp) fn handle_unacknowledged(
        &mut self,
        io: &mut Io<'_, H>,
        packet: &Packet<'_>,
        info: &OpcodeInfo,
    ) -> bool {
        let psn = packet.bth().psn;
        //= spec/unreliable.md#unr-002
        //# On UC a new message MUST be taken at any PSN.
        if info.position.starts() {
            self.responder.dropping = false;
            self.abandon_inbound();
        } else if self.responder.dropping || psn != self.responder.expected_psn() || !self.responder.is_in_message() {
            self.responder.dropping = true;
            self.abandon_inbound();
            self.responder.start(psn.next());
            self.drop_packet(io, packet, DropReason::OutOfSequence);
            return false;
        }
        self.responder.start(psn);
        if self.state == QpState::Rtr && self.responder.establish() {
            io.consumer.async_event(self.config.qpn, AsyncEvent::CommunicationEstablished);
        }
        let reason = match self.execute(io, packet, info) {
            Ok(Verdict::Accepted) => return true,
            Ok(Verdict::NotReady) => DropReason::NoReceive,
            Err((fault, wr)) => {
                self.count_refused(io, info);
                if fault.is_local() {
                    self.local_fault(io, fault, wr, psn);
                    return false;
                }
                io.consumer.trace(self.config.qpn, Event::ResponderFault { fault, psn });
                self.give_back(wr);
                DropReason::Refused
            }
        };
        self.abandon_inbound();
        self.responder.start(psn.next());
        self.responder.dropping = true;
        self.drop_packet(io, packet, reason);
        false
    }

    /// The message under way will not be finished; its receive WQE serves the next one.
    //= spec/unreliable.md#unr-001
    //# On UC a gap MUST drop the message under way, and its receive WQE serve the next one.
    fn abandon_inbound(&mut self) {
        let wr = self.responder.take_inbound_recv();
        self.give_back(wr);
    }
}
