//! Duplicates: requests that were carried out before, and whose answers may have been lost (IBA 9.7.5.1.5).

use urxe_wire::opcode::Kind;
use urxe_wire::{Ext, Packet, Psn, Reth};

use super::recv_wqe::find_srq;
use super::responder::Replay;
use super::response_queue::{ReadResponse, Response, Turn};
use crate::event::{DropReason, Event};
use crate::host::{Consumer, Host, Io};
use crate::qp::QueuePair;

impl<H: Host> QueuePair<H> {
    /// A request seen before (IBA 9.7.5.1.5): SEND and WRITE are acknowledged again, a READ is read again, an
    /// atomic answered from memory of its result. None is executed twice.
    //= spec/responder.md#rsp-002
    //# A duplicate SEND or WRITE MUST be acknowledged again and MUST NOT be executed.
    pub(in crate::qp) fn handle_duplicate(&mut self, io: &mut Io<'_, H>, packet: &Packet<'_>) {
        let (opcode, psn) = (packet.bth().opcode, packet.bth().psn);
        let answered = match packet.ext() {
            Ext::AtomicEth(_) => self.replay_atomic(psn),
            Ext::Reth(reth) if opcode.info().kind == Kind::Read => self.replay_read(io, packet, *reth),
            Ext::Reth(reth) if opcode.info().kind == Kind::AtomicWrite => self.replay_placement(psn, reth),
            Ext::FethReth(_, reth) => self.replay_placement(psn, reth),
            _ => {
                self.note_duplicate();
                self.responder.acknowledge();
                true
            }
        };
        if answered {
            io.consumer.trace(self.config.qpn, Event::Duplicate { opcode, psn });
        } else {
            self.drop_packet(io, packet, DropReason::StaleDuplicate);
        }
    }

    /// Answers a duplicate. False if too many wait already.
    fn replay(&mut self, response: Response) -> bool {
        //= spec/selective.md#sel-013
        //# With selective repeat an answer to a duplicate SHOULD leave before answers to requests behind it.
        // What is missing keeps all behind it from completing.
        let turn = if self.keeps_packets() { Turn::BeforeFirstAnswers } else { Turn::Last };
        let most = self.most_replays();
        self.responder.responses.replay(response, turn, most)
    }

    //= spec/responder.md#rsp-004
    //# A duplicate atomic MUST be answered with the first result and MUST NOT be executed.
    fn replay_atomic(&mut self, psn: Psn) -> bool {
        let found = self.responder.replays.iter().find_map(|replay| match *replay {
            Replay::Atomic { psn: at, original } if at == psn => Some(original),
            _ => None,
        });
        let Some(original) = found else { return false };
        let coming = |response: &Response| matches!(response, Response::Atomic { psn: at, .. } if *at == psn);
        if self.responder.responses.is_coming(coming) {
            return true;
        }
        let response = Response::Atomic { psn, original, msn: self.responder.msn, replayed: true };
        self.replay(response)
    }

    fn replay_placement(&mut self, psn: Psn, reth: &Reth) -> bool {
        let known = |replay: &Replay| matches!(*replay, Replay::Placement { psn: at } if at == psn);
        if !self.responder.replays.iter().any(known) {
            return false;
        }
        let coming = |response: &Response| matches!(response, Response::Read(read) if read.first == psn);
        if self.responder.responses.is_coming(coming) {
            return true;
        }
        let read = self.placement_response(psn, reth, true);
        self.replay(Response::Read(read))
    }

    //= spec/responder.md#rsp-003
    //# A duplicate READ MUST be answered from memory as it is, if it lies within the request it repeats.
    fn replay_read(&mut self, io: &Io<'_, H>, packet: &Packet<'_>, reth: Reth) -> bool {
        let psn = packet.bth().psn;
        let last = psn.add(self.attr.path_mtu.packets(reth.dma_len) - 1);
        let within = |replay: &Replay| match *replay {
            Replay::Read { first, last: end } => {
                psn.distance_from(first) >= 0 && last.distance_from(end) <= 0 && last.distance_from(psn) >= 0
            }
            Replay::Atomic { .. } | Replay::Placement { .. } => false,
        };
        // Not the SRQ of the message under way, if there is one: that of this request.
        let srq = self.config.xrcd.map(|domain| find_srq(io, domain, packet));
        let pd = match srq {
            None => self.config.pd,
            Some(Ok((_, srq))) => io.consumer.srq_pd(&srq),
            Some(Err(_)) => return false,
        };
        if !self.responder.replays.iter().any(within) {
            return false;
        }
        // The first answer may still be on its way out.
        let coming = |response: &Response| {
            matches!(response, Response::Read(read)
                if psn.distance_from(read.next) >= 0 && last.distance_from(read.last) <= 0)
        };
        if self.responder.responses.is_coming(coming) {
            return true;
        }
        // The first answer goes on from there. Were this part answered beside it, the requester would have all of the READ while the
        // rest of the first answer still takes a responder resource, and its next READ would be one too many.
        if self.keeps_packets() && self.responder.responses.rewind(psn, last) {
            return true;
        }
        let msn = self.responder.msn;
        //= spec/responder.md#rsp-028
        //# A duplicate READ of memory that is gone MUST be refused, and MUST NOT end the connection.
        let response = match self.check_read(io, pd, &reth) {
            Ok(()) => Response::Read(ReadResponse { first: psn, next: psn, last, reth, msn, pd, replayed: true }),
            Err(fault) => Response::Refusal { psn, nak: fault.consequence().nak, msn },
        };
        self.replay(response)
    }
}
