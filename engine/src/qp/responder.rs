//! The responder: takes requests, in order and once each, and answers them (IBA 9.7.4, 9.7.5).
//!
//! A request is checked in the specification's order: PSN, opcode sequence, operation and access of the QP,
//! receive WQE, length, R_Key; then it is executed. Answers wait until the next `transmit`, so that one ACK
//! answers a burst of requests.

mod disorder;
mod replay;

use alloc::boxed::Box;
use alloc::collections::VecDeque;

use urxe_wire::opcode::Kind;
use urxe_wire::packet::Service;
use urxe_wire::{AtomicEth, Ext, Feth, FlushLevel, ImmDt, Msn, NakCode, Packet, Psn, Reth, Syndrome};

use super::answers::{Answers, ReadResponse, Response};
use super::sge::scatter;
use super::state::QpState;
use super::{QueuePair, Srq};
use crate::access::Access;
use crate::chaos::AckPolicy;
use crate::cq::{Cqe, WcOpcode, WcStatus};
use crate::event::{AsyncEvent, DropReason, Event, Nak};
use crate::fault::ResponderFault;
use crate::host::{Consumer, Host, Io};
use crate::memory::{self, Accessor, Ask, Key, Memory, Pd, Refusal, Touch};
use crate::srq::XrcDomain;
use crate::time::Instant;
use crate::work::RecvWr;
use disorder::{Disorder, Part};

/// The responder of one queue pair.
#[derive(Debug, Default)]
pub(super) struct Responder {
    /// ePSN.
    expected: Psn,
    /// Requests completed.
    msn: Msn,
    /// A NAK for `expected` is out: say no more until that packet comes (IBA 9.7.5.2.8).
    nak_sent: bool,
    /// The message being received.
    inbound: Option<Inbound>,
    /// Answers to READs and atomics, kept for duplicates; oldest first.
    replays: VecDeque<Replay>,
    pub(super) answers: Answers,
    /// The consumer knows that the connection works.
    established: bool,
    /// Bytes of a WRITE that come later.
    disorder: Option<Box<Disorder>>,
}

/// A message of several packets, under way.
#[derive(Debug)]
enum Inbound {
    Send { wr: RecvWr, received: u32 },
    Write { reth: Reth, received: u32 },
}

/// What a duplicate READ or atomic is answered from.
#[derive(Clone, Copy, Debug)]
enum Replay {
    Read {
        first: Psn,
        last: Psn,
    },
    Atomic {
        psn: Psn,
        original: u64,
    },
    /// An ATOMIC WRITE or FLUSH: the answer has no data.
    Placement {
        psn: Psn,
    },
}

/// What became of a request.
pub(super) enum Verdict {
    /// Done.
    Accepted,
    /// No receive WQE: RNR NAK.
    NotReady,
}

impl Responder {
    /// INIT → RTR.
    pub(super) fn start(&mut self, rq_psn: Psn) {
        self.expected = rq_psn;
    }

    /// Whether a message of several packets is under way.
    pub(super) const fn is_in_message(&self) -> bool {
        self.inbound.is_some()
    }

    /// Whether this is the first request: the consumer is to know that the connection works.
    pub(super) const fn establish(&mut self) -> bool {
        !core::mem::replace(&mut self.established, true)
    }

    pub(super) const fn expected_psn(&self) -> Psn {
        self.expected
    }

    /// The receive WQE of a message that will not be finished.
    pub(super) fn take_inbound_recv(&mut self) -> Option<RecvWr> {
        match self.inbound.take()? {
            Inbound::Send { wr, .. } => Some(wr),
            Inbound::Write { .. } => None,
        }
    }

    /// When what is kept back is due, answers or bytes of a WRITE.
    pub(super) fn kept_until(&self) -> Option<Instant> {
        match &self.disorder {
            Some(disorder) => disorder.until(),
            None => self.answers.kept_until(),
        }
    }

    /// Nothing is kept back any longer than to `now`.
    pub(super) fn hurry(&mut self, policy: AckPolicy, now: Instant) {
        match &mut self.disorder {
            Some(disorder) => disorder.hurry(now),
            None => self.answers.hurry(policy, now),
        }
    }

    /// Forgets what is not acknowledged.
    pub(super) fn clear(&mut self) {
        self.answers.clear();
        self.disorder = None;
    }

    /// There are `posted` receive WQEs now: tell a peer that was told there are none (IBA 9.7.7.2.3, unsolicited
    /// acknowledge).
    pub(super) fn receive_posted(&mut self, posted: usize) {
        if posted > 0 && self.answers.take_advertised_none() {
            self.acknowledge();
        }
    }

    fn acknowledge(&mut self) {
        self.answers.acknowledge(self.expected, self.msn);
    }

    //= spec/responder.md#rsp-005
    //# The answers kept for duplicates MUST be as many as responder resources.
    fn remember(&mut self, replay: Replay, most: u8) {
        while self.replays.len() >= usize::from(most) {
            self.replays.pop_front();
        }
        self.replays.push_back(replay);
    }
}

impl<H: Host> QueuePair<H> {
    /// Takes a request.
    pub(super) fn handle_request(&mut self, io: &mut Io<'_, H>, packet: &Packet<'_>) {
        let psn = packet.bth().psn;
        let distance = psn.distance_from(self.responder.expected);
        if distance > 0 {
            //= spec/responder.md#rsp-001
            //# A request behind a gap MUST be refused with a PSN sequence error NAK once, and then dropped until the
            //# gap is filled.
            if self.responder.nak_sent {
                self.drop_packet(io, packet, DropReason::OutOfSequence);
            } else {
                self.send_nak(io, Nak::Code(NakCode::PsnSequenceError), self.responder.expected);
            }
            return;
        }
        if distance < 0 {
            self.handle_duplicate(io, packet);
            return;
        }
        //= spec/responder.md#rsp-021
        //# The first request that arrives in RTR MUST raise the event COMM_EST.
        if self.state == QpState::Rtr && self.responder.establish() {
            io.consumer.async_event(self.config.qpn, AsyncEvent::CommunicationEstablished);
        }
        match self.execute(io, packet) {
            Ok(Verdict::Accepted) => self.responder.nak_sent = false,
            //= spec/responder.md#rsp-007
            //# A message for which there is no receive WQE MUST be put off with an RNR NAK of min_rnr_timer.
            Ok(Verdict::NotReady) => self.send_nak(io, Nak::Rnr(self.attr.min_rnr_timer), psn),
            //= spec/hosts.md#net-012
            //# A request for an XRC SRQ whose process does not answer in time MUST be dropped, to be repeated by its
            //# requester, or put off with an RNR NAK.
            Err((ResponderFault::NoAnswer, wr)) => {
                // What comes next is this message once more: it gets the same WQE.
                self.rq.extend(wr);
                self.drop_packet(io, packet, DropReason::NoAnswer);
            }
            Err((fault, wr)) => self.responder_fault(io, fault, wr, psn),
        }
    }

    fn send_nak(&mut self, io: &mut Io<'_, H>, nak: Nak, psn: Psn) {
        io.consumer.trace(self.config.qpn, Event::SentNak { nak, psn });
        self.responder.nak_sent = true;
        let syndrome = match nak {
            Nak::Rnr(timer) => Syndrome::RnrNak(timer),
            Nak::Code(code) => Syndrome::Nak(code),
        };
        self.responder.answers.refuse(psn, syndrome, self.responder.msn);
    }

    /// Tells peer and consumer of a fault in answering `psn`, and goes to ERR (IBA 9.9.3.1 for RC).
    pub(super) fn responder_fault(&mut self, io: &mut Io<'_, H>, fault: ResponderFault, wr: Option<RecvWr>, psn: Psn) {
        let consequence = fault.consequence();
        io.consumer.trace(self.config.qpn, Event::ResponderFault { fault, psn });
        self.send_nak(io, Nak::Code(consequence.nak), psn);
        match wr.or_else(|| self.responder.take_inbound_recv()) {
            Some(wr) => {
                let cqe = self.recv_completion(io, &wr, WcOpcode::Recv, 0, None, false);
                self.complete_recv(io, Cqe { status: consequence.recv, ..cqe });
            }
            None => io.consumer.async_event(self.config.qpn, consequence.event),
        }
        self.enter_error(io);
    }

    /// Checks and carries out the request that is expected. A fault comes with the receive WQE it fails.
    pub(super) fn execute(
        &mut self,
        io: &mut Io<'_, H>,
        packet: &Packet<'_>,
    ) -> Result<Verdict, (ResponderFault, Option<RecvWr>)> {
        let info = packet.bth().opcode.info();
        // What may come next: within a message, its own Middle or Last; else a First or Only (IBA 9.7.4.1.2).
        let in_order = match (&self.responder.inbound, info.kind) {
            (None, _) => info.position.starts(),
            (Some(Inbound::Send { .. }), Kind::Send) | (Some(Inbound::Write { .. }), Kind::Write) => {
                !info.position.starts()
            }
            (Some(_), _) => false,
        };
        //= spec/responder.md#rsp-006
        //# First, Middle, Last and Only packets in an impossible order MUST be refused as an invalid request.
        if !in_order {
            return Err((ResponderFault::OpcodeSequence, None));
        }
        //= spec/packets.md#pkt-012
        //# First and Middle packets MUST have a payload of one path MTU, a Last one between 1 byte and that.
        if !info.payload.allows(packet.payload.len(), self.attr.path_mtu) {
            return Err((ResponderFault::Length, None));
        }
        if info.position.starts() {
            self.settle_writes(io).map_err(|fault| (fault, None))?;
        }
        if info.position.starts()
            && let Some(domain) = self.config.xrcd
        {
            self.xrc_srq = Some(find_srq(io, domain, packet).map_err(|fault| (fault, None))?);
        }
        match (info.kind, packet.ext()) {
            (Kind::Send, ext) => self.execute_send(io, packet, ext),
            (Kind::Write, ext) => self.execute_write(io, packet, ext),
            (Kind::Read, Ext::Reth(reth)) => self.execute_read(io, *reth).map_err(|fault| (fault, None)),
            (Kind::CompareSwap | Kind::FetchAdd, Ext::AtomicEth(atomic)) => {
                self.execute_atomic(io, info.kind, atomic).map_err(|fault| (fault, None))
            }
            (Kind::AtomicWrite, Ext::Reth(reth)) => {
                self.execute_atomic_write(io, reth, packet.payload).map_err(|fault| (fault, None))
            }
            (Kind::Flush, Ext::FethReth(feth, reth)) => {
                self.execute_flush(io, *feth, reth).map_err(|fault| (fault, None))
            }
            _ => Err((ResponderFault::Unsupported, None)),
        }
    }

    fn execute_send(
        &mut self,
        io: &mut Io<'_, H>,
        packet: &Packet<'_>,
        ext: &Ext,
    ) -> Result<Verdict, (ResponderFault, Option<RecvWr>)> {
        let info = packet.bth().opcode.info();
        let (wr, received) = if info.position.starts() {
            match self.take_recv(io) {
                Some(wr) => (wr, 0),
                None => return Ok(Verdict::NotReady),
            }
        } else {
            match self.responder.inbound.take() {
                Some(Inbound::Send { wr, received }) => (wr, received),
                _ => return Err((ResponderFault::OpcodeSequence, None)),
            }
        };
        let payload = packet.payload;
        if u64::from(received) + payload.len() as u64 > wr.buffers.length().min(1 << 31) {
            return Err((ResponderFault::RecvTooShort, Some(wr)));
        }
        if let Err(refusal) = scatter(io.memory, self.recv_pd(io), &wr.buffers, received as usize, payload) {
            if refusal == Refusal::Silent && received > 0 {
                self.responder.inbound = Some(Inbound::Send { wr, received });
                return Err((ResponderFault::NoAnswer, None));
            }
            return Err((ResponderFault::refused(refusal, ResponderFault::RecvProtection), Some(wr)));
        }
        let received = received + length32(payload);
        if info.position.ends() {
            let imm = if let Ext::ImmDt(imm) = ext { Some(*imm) } else { None };
            let invalidated = if let Ext::Ieth(ieth) = ext { Some(ieth.r_key) } else { None };
            if let Some(r_key) = invalidated
                && let Err(refusal) = io.memory.invalidate(self.remote_pd(io), self.config.qpn, Key(r_key.0))
            {
                return Err((ResponderFault::refused(refusal, ResponderFault::Invalidate), Some(wr)));
            }
            let cqe = self.recv_completion(io, &wr, WcOpcode::Recv, received, imm, packet.bth().solicited_event);
            let cqe = Cqe { invalidated, ..cqe };
            self.complete_recv(io, cqe);
        } else {
            self.responder.inbound = Some(Inbound::Send { wr, received });
        }
        self.accept(packet);
        Ok(Verdict::Accepted)
    }

    fn execute_write(
        &mut self,
        io: &mut Io<'_, H>,
        packet: &Packet<'_>,
        ext: &Ext,
    ) -> Result<Verdict, (ResponderFault, Option<RecvWr>)> {
        let info = packet.bth().opcode.info();
        if !self.attr.access.contains(Access::REMOTE_WRITE) {
            return Err((ResponderFault::QpAccess, None));
        }
        let (reth, received) = match (ext, &self.responder.inbound) {
            (Ext::Reth(reth) | Ext::RethImmDt(reth, _), _) => (*reth, 0),
            (_, Some(Inbound::Write { reth, received })) => (*reth, *received),
            _ => return Err((ResponderFault::OpcodeSequence, None)),
        };
        let payload = packet.payload;
        let total = received.saturating_add(length32(payload));
        //= spec/responder.md#rsp-014
        //# The payload of a WRITE MUST be as long as its RETH says.
        let fits = if info.position.ends() { total == reth.dma_len } else { total < reth.dma_len };
        //= spec/responder.md#rsp-015
        //# A message of more than 2^31 bytes MUST be refused as an invalid request.
        if !fits || reth.dma_len > 1 << 31 {
            return Err((ResponderFault::Length, None));
        }
        //= spec/responder.md#rsp-020
        //# A WRITE with immediate MUST take its receive WQE at its last packet.
        let recv = if info.consumes_recv {
            match self.take_recv(io) {
                Some(wr) => Some(wr),
                None => return Ok(Verdict::NotReady),
            }
        } else {
            None
        };
        let psn = packet.bth().psn;
        if let Err(refusal) = self.write_remote(io, &reth, received, payload, psn) {
            return Err((ResponderFault::remote(refusal), recv));
        }
        if let Some(wr) = recv {
            if let Err(fault) = self.settle_writes(io) {
                return Err((fault, Some(wr)));
            }
            let imm = match ext {
                Ext::ImmDt(imm) | Ext::RethImmDt(_, imm) => Some(*imm),
                _ => None,
            };
            let solicited = packet.bth().solicited_event;
            let cqe = self.recv_completion(io, &wr, WcOpcode::RecvRdmaWithImm, reth.dma_len, imm, solicited);
            self.complete_recv(io, cqe);
        }
        self.responder.inbound =
            if info.position.ends() { None } else { Some(Inbound::Write { reth, received: total }) };
        self.accept(packet);
        Ok(Verdict::Accepted)
    }

    /// Stores a WRITE's payload. At the start of the message all of its memory is checked (IBA C9-88: none is, if
    /// it has no bytes).
    //= spec/responder.md#rsp-010
    //# A WRITE or READ of no bytes MUST succeed whatever its R_Key and address are.
    fn write_remote(
        &mut self,
        io: &Io<'_, H>,
        reth: &Reth,
        received: u32,
        payload: &[u8],
        psn: Psn,
    ) -> Result<(), Refusal> {
        if reth.dma_len == 0 {
            return Ok(());
        }
        let whole = ask(self.peer(io), reth, Access::REMOTE_WRITE);
        //= spec/responder.md#rsp-009
        //# All of the memory that a WRITE names MUST be checked before its first byte is stored.
        if received == 0 && payload.len() < reth.dma_len as usize {
            memory::access(io.memory, &whole, Touch::Look)?;
        }
        let va = reth.va.checked_add(u64::from(received)).ok_or(Refusal::OutOfBounds)?;
        let part = Ask { va, length: payload.len() as u64, ..whole };
        if let Some(policy) = self.config.liberties.writes
            && self.config.qp_type.is_reliable()
        {
            let ends = received as usize + payload.len() >= reth.dma_len as usize;
            return self.write_in_disorder(io, policy, &Part { psn, ask: part, payload, ends });
        }
        memory::access(io.memory, &part, Touch::Write(payload)).map(drop)
    }

    fn execute_read(&mut self, io: &Io<'_, H>, reth: Reth) -> Result<Verdict, ResponderFault> {
        let pd = self.remote_pd(io);
        self.check_read(io, pd, &reth)?;
        if self.responder.answers.unanswered() >= usize::from(self.attr.max_dest_rd_atomic) {
            return Err(ResponderFault::TooManyReads);
        }
        let first = self.responder.expected;
        let last = first.add(self.attr.path_mtu.packets(reth.dma_len) - 1);
        self.responder.expected = last.next();
        self.responder.msn = self.responder.msn.next();
        self.responder.remember(Replay::Read { first, last }, self.attr.max_dest_rd_atomic);
        let msn = self.responder.msn;
        let read = ReadResponse { first, next: first, last, reth, msn, pd, replayed: false };
        self.responder.answers.respond(Response::Read(read));
        Ok(Verdict::Accepted)
    }

    fn check_read(&self, io: &Io<'_, H>, pd: Pd, reth: &Reth) -> Result<(), ResponderFault> {
        if !self.attr.access.contains(Access::REMOTE_READ) {
            return Err(ResponderFault::QpAccess);
        }
        if reth.dma_len > 1 << 31 {
            return Err(ResponderFault::Length);
        }
        if reth.dma_len == 0 {
            return Ok(());
        }
        let ask = ask(self.config.peer_in(pd), reth, Access::REMOTE_READ);
        memory::access(io.memory, &ask, Touch::Look).map(drop).map_err(ResponderFault::remote)
    }

    fn execute_atomic(&mut self, io: &Io<'_, H>, kind: Kind, atomic: &AtomicEth) -> Result<Verdict, ResponderFault> {
        if !self.attr.access.contains(Access::REMOTE_ATOMIC) {
            return Err(ResponderFault::QpAccess);
        }
        //= spec/responder.md#rsp-012
        //# An atomic on an address that is no multiple of eight MUST be refused as an invalid request.
        if !atomic.va.is_multiple_of(8) {
            return Err(ResponderFault::Misaligned);
        }
        if self.responder.answers.unanswered() >= usize::from(self.attr.max_dest_rd_atomic) {
            return Err(ResponderFault::TooManyReads);
        }
        let touch = match kind {
            Kind::CompareSwap => Touch::CompareSwap { compare: atomic.compare, swap: atomic.swap_add },
            _ => Touch::FetchAdd(atomic.swap_add),
        };
        let (by, key) = (self.peer(io), Key(atomic.r_key.0));
        let ask = Ask { by, key, access: Access::REMOTE_ATOMIC, va: atomic.va, length: 8 };
        let original = memory::access(io.memory, &ask, touch).map_err(ResponderFault::remote)?;
        let psn = self.responder.expected;
        self.responder.expected = psn.next();
        self.responder.msn = self.responder.msn.next();
        self.responder.remember(Replay::Atomic { psn, original }, self.attr.max_dest_rd_atomic);
        let msn = self.responder.msn;
        self.responder.answers.respond(Response::Atomic { psn, original, msn, replayed: false });
        Ok(Verdict::Accepted)
    }

    /// Eight bytes, stored at once (IBA annex A19). The R_Key needs the right to write, as on the kernel's rxe.
    fn execute_atomic_write(&mut self, io: &Io<'_, H>, reth: &Reth, payload: &[u8]) -> Result<Verdict, ResponderFault> {
        if !self.attr.access.contains(Access::REMOTE_WRITE) {
            return Err(ResponderFault::QpAccess);
        }
        if !reth.va.is_multiple_of(8) {
            return Err(ResponderFault::Misaligned);
        }
        //= spec/responder.md#rsp-013
        //# An ATOMIC WRITE MUST carry exactly eight bytes for an address that is a multiple of eight.
        if reth.dma_len != 8 {
            return Err(ResponderFault::Length);
        }
        self.check_resources()?;
        let word = payload.try_into().map_err(|_| ResponderFault::Length)?;
        let ask = ask(self.peer(io), reth, Access::REMOTE_WRITE);
        memory::access(io.memory, &ask, Touch::WriteWord(word)).map_err(ResponderFault::remote)?;
        Ok(self.respond_placement(reth))
    }

    /// What was written before becomes visible, or persistent (IBA annex A19).
    fn execute_flush(&mut self, io: &Io<'_, H>, feth: Feth, reth: &Reth) -> Result<Verdict, ResponderFault> {
        let mut needed = Access::NONE;
        if feth.global_visibility {
            needed = needed | Access::FLUSH_GLOBAL;
        }
        if feth.persistence {
            needed = needed | Access::FLUSH_PERSISTENT;
        }
        //= spec/responder.md#rsp-025
        //# A FLUSH of a type that the queue pair does not enable MUST be refused as an invalid request.
        if needed == Access::NONE || !self.attr.access.contains(needed) {
            return Err(ResponderFault::QpAccess);
        }
        self.check_resources()?;
        let touch = Touch::Flush { persistent: feth.persistence, whole: feth.level == FlushLevel::Region };
        memory::access(io.memory, &ask(self.peer(io), reth, needed), touch).map_err(ResponderFault::remote)?;
        Ok(self.respond_placement(reth))
    }

    //= spec/responder.md#rsp-011
    //# More READs and atomics at once than responder resources MUST be refused as an invalid request.
    fn check_resources(&self) -> Result<(), ResponderFault> {
        if self.responder.answers.unanswered() >= usize::from(self.attr.max_dest_rd_atomic) {
            return Err(ResponderFault::TooManyReads);
        }
        Ok(())
    }

    /// Answers an ATOMIC WRITE or FLUSH that was carried out: by a READ response without data (IBA annex A19).
    fn respond_placement(&mut self, reth: &Reth) -> Verdict {
        let psn = self.responder.expected;
        self.responder.expected = psn.next();
        self.responder.msn = self.responder.msn.next();
        self.responder.remember(Replay::Placement { psn }, self.attr.max_dest_rd_atomic);
        let read = self.placement_response(psn, reth, false);
        self.responder.answers.respond(Response::Read(read));
        Verdict::Accepted
    }

    fn placement_response(&self, psn: Psn, reth: &Reth, replayed: bool) -> ReadResponse {
        let reth = Reth { dma_len: 0, ..*reth };
        let (msn, pd) = (self.responder.msn, self.config.pd);
        ReadResponse { first: psn, next: psn, last: psn, reth, msn, pd, replayed }
    }

    /// A SEND or WRITE packet was carried out.
    fn accept(&mut self, packet: &Packet<'_>) {
        let responder = &mut self.responder;
        responder.expected = responder.expected.next();
        if packet.bth().opcode.info().position.ends() {
            responder.msn = responder.msn.next();
        }
        //= spec/responder.md#rsp-018
        //# A request that asks for an acknowledgement MUST get one; one MAY answer all before it.
        if self.config.qp_type.is_reliable() {
            if self.config.liberties.acks == AckPolicy::Each {
                responder.answers.acknowledge_apart(responder.expected, responder.msn);
            } else if packet.bth().ack_req {
                responder.acknowledge();
            }
        }
    }

    /// The peer, as one who asks for access.
    fn peer(&self, io: &Io<'_, H>) -> Accessor {
        self.config.peer_in(self.remote_pd(io))
    }

    /// The protection domain of the memory that peers name.
    fn remote_pd(&self, io: &Io<'_, H>) -> Pd {
        self.xrc_srq.as_ref().map_or(self.config.pd, |srq| io.consumer.srq_pd(srq))
    }

    /// The protection domain of receive buffers: the SRQ's, if they are of one (IBA 10.2.9.3).
    pub(super) fn recv_pd(&self, io: &Io<'_, H>) -> Pd {
        self.srq().map_or(self.config.pd, |srq| io.consumer.srq_pd(srq))
    }

    const fn srq(&self) -> Option<&Srq<H>> {
        match &self.xrc_srq {
            Some(srq) => Some(srq),
            None => self.config.srq.as_ref(),
        }
    }

    pub(super) fn take_recv(&mut self, io: &mut Io<'_, H>) -> Option<RecvWr> {
        match (self.rq.pop_front(), self.srq()) {
            // With an SRQ, one that was given back.
            (Some(wr), _) => Some(wr),
            (None, Some(srq)) => io.consumer.take_recv(srq),
            (None, None) => None,
        }
    }

    /// Completes a receive WQE.
    pub(super) fn complete_recv(&self, io: &mut Io<'_, H>, cqe: Cqe) {
        match (&self.xrc_srq, &self.config.recv_cq) {
            (Some(srq), _) => io.consumer.complete_xrc(srq, cqe),
            (None, Some(cq)) => io.consumer.complete(cq, cqe),
            // Has no receive WQEs.
            (None, None) => {}
        }
    }

    pub(super) fn recv_completion(
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
            at: io.now,
            src_qp: self.attr.dest_qpn,
            solicited,
            grh: None,
        }
    }
}

/// The XRC SRQ that a request names: its message goes there, and its memory is of that SRQ's protection domain (IBA
/// annex A14).
//= spec/responder.md#rsp-026
//# An XRC request MUST be received and protected by the SRQ that it names, in the target's domain.
fn find_srq<H: Host>(io: &Io<'_, H>, domain: XrcDomain, packet: &Packet<'_>) -> Result<Srq<H>, ResponderFault> {
    let Service::Xrc(xrceth) = packet.header.service else { return Err(ResponderFault::Unsupported) };
    io.consumer.xrc_srq(domain, xrceth.xrc_srq).ok_or(ResponderFault::NoSuchSrq)
}

/// For all of the memory that a request names.
fn ask(by: Accessor, reth: &Reth, access: Access) -> Ask {
    Ask { by, key: Key(reth.r_key.0), access, va: reth.va, length: u64::from(reth.dma_len) }
}

/// The length of a packet's payload, which is at most 64 KiB.
fn length32(payload: &[u8]) -> u32 {
    u32::try_from(payload.len()).unwrap_or(u32::MAX)
}
