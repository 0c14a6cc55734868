//! Receive WQEs: whose they are, and their completions.

use urxe_wire::packet::Service;
use urxe_wire::{ImmDt, Lid, Packet, Psn, Qpn};

use crate::counter::CountedOps;
use crate::cq::{Cqe, FrameCompletion, WcOpcode, WcStatus};
use crate::direct::DirectMessage;
use crate::event::Event;
use crate::fault::ResponderFault;
use crate::host::{Consumer, Host, Io};
use crate::mr::Pd;
use crate::qp::{QueuePair, Srq};
use crate::srq::XrcDomain;
use crate::work::RecvWr;

impl<H: Host> QueuePair<H> {
    /// The receive WQE that comes `nth` in the queue pair's own queue, the oldest being the 0th.
    pub fn receive(&self, nth: usize) -> Option<&RecvWr> {
        self.rq.get(nth)
    }

    /// Receive requests that were posted to the queue pair's own queue and are not there any more, since it was made.
    pub fn receives_taken(&self) -> u64 {
        self.rq_posted.wrapping_sub(self.rq.len() as u64)
    }

    /// Completes the oldest receive WQE, whose buffers a peer's host has filled ([`crate::direct`]).
    pub fn complete_direct(&mut self, io: &mut Io<'_, H>, message: &DirectMessage) {
        let Some(wr) = self.rq.pop_front() else { return };
        let DirectMessage { length, imm, solicited } = *message;
        // What the peer says is not to be believed where it is more than there is.
        let length = u64::from(length).min(wr.buffers.length());
        let length = u32::try_from(length).unwrap_or(u32::MAX);
        let cqe = self.recv_completion(io, &wr, WcOpcode::Recv, length, imm, solicited);
        self.complete_recv(io, cqe);
    }

    /// The protection domain of the memory that peers name.
    pub(in crate::qp) fn remote_pd(&self, io: &Io<'_, H>) -> Pd {
        self.xrc_srq.as_ref().map_or(self.config.pd, |(_, srq)| io.consumer.srq_pd(srq))
    }

    /// The protection domain of receive buffers: the SRQ's, if they are of one (IBA 10.2.9.3).
    pub(in crate::qp) fn recv_pd(&self, io: &Io<'_, H>) -> Pd {
        self.srq().map_or(self.config.pd, |srq| io.consumer.srq_pd(srq))
    }

    const fn srq(&self) -> Option<&Srq<H>> {
        match &self.xrc_srq {
            Some((_, srq)) => Some(srq),
            None => self.config.srq.as_ref(),
        }
    }

    pub(in crate::qp) fn take_recv(&mut self, io: &mut Io<'_, H>) -> Option<RecvWr> {
        match (self.rq.pop_front(), self.srq()) {
            // With an SRQ, one that was given back.
            (Some(wr), _) => Some(wr),
            (None, Some(srq)) => io.consumer.take_recv(srq),
            (None, None) => None,
        }
    }

    /// Returns a receive WQE of which nothing came: it serves the next message.
    pub(super) fn give_back(&mut self, wr: Option<RecvWr>) {
        if let Some(wr) = wr {
            self.rq.push_front(wr);
        }
    }

    /// The consumer's own receive WQE is no good: it completes with an error, and the queue pair goes to ERR (IBA
    /// 9.9.3.2).
    pub(super) fn local_fault(&mut self, io: &mut Io<'_, H>, fault: ResponderFault, wr: Option<RecvWr>, psn: Psn) {
        io.consumer.trace(self.config.qpn, Event::ResponderFault { fault, psn });
        if let Some(wr) = wr {
            let cqe = self.recv_completion(io, &wr, WcOpcode::Recv, 0, None, false);
            self.complete_recv(io, Cqe { status: fault.consequence().recv, ..cqe });
        }
        self.enter_error(io);
    }

    /// Completes a receive WQE.
    pub(in crate::qp) fn complete_recv(&self, io: &mut Io<'_, H>, cqe: Cqe) {
        self.config.count(io, CountedOps::RECV, cqe.status == WcStatus::Success);
        match (&self.xrc_srq, &self.config.recv_cq) {
            (Some((_, srq)), _) => io.consumer.complete_xrc(srq, cqe),
            (None, Some(cq)) => io.consumer.complete_received(cq, cqe),
            // Has no receive WQEs.
            (None, None) => {}
        }
    }

    pub(in crate::qp) fn recv_completion(
        &self,
        io: &Io<'_, H>,
        wr: &RecvWr,
        opcode: WcOpcode,
        byte_len: u32,
        imm: Option<ImmDt>,
        solicited: bool,
    ) -> Cqe {
        Cqe {
            wr_id: wr.wr_id,
            status: WcStatus::Success,
            opcode,
            qpn: self.config.qpn,
            byte_len,
            imm,
            invalidated: None,
            at: if self.xrc_srq.is_some() { io.now() } else { io.time_for(self.config.recv_cq.as_ref()) },
            src_qp: self.attr.dest_qpn,
            solicited,
            grh: None,
            slid: Lid::NONE,
            frame: FrameCompletion::default(),
            refusal: None,
        }
    }
}

/// The XRC SRQ that a request names, and its number: its message goes there, and its memory is of that SRQ's protection
/// domain (IBA annex A14).
//= spec/responder.md#rsp-026
//# An XRC request MUST be received and protected by the SRQ that it names, in the target's domain.
pub(in crate::qp) fn find_srq<H: Host>(
    io: &Io<'_, H>,
    domain: XrcDomain,
    packet: &Packet<'_>,
) -> Result<(Qpn, Srq<H>), ResponderFault> {
    let Service::Xrc(xrceth) = packet.header.service else { return Err(ResponderFault::Unsupported) };
    let number = xrceth.xrc_srq;
    io.consumer.xrc_srq(domain, number).map(|srq| (number, srq)).ok_or(ResponderFault::NoSuchSrq)
}
