//! The responder: takes requests, in order and once each, and answers them (IBA 9.7.4, 9.7.5).
//!
//! A request is checked in the specification's order: PSN, opcode sequence, operation and access of the QP,
//! receive WQE, length, R_Key; then it is executed. Answers wait until the next `transmit`, so that one ACK
//! answers a burst of requests.
//!
//! Here is what all requests have in common; `message` executes SENDs and WRITEs, `resource` what takes a responder
//! resource, with receive WQEs from `recv_wqe`. `replay` answers duplicates. `write_reorder` delays the bytes of WRITEs
//! ([`crate::quirks`]).

use alloc::boxed::Box;
use alloc::collections::VecDeque;

use urxe_wire::opcode::{Kind, OpcodeInfo};
use urxe_wire::{Ext, Msn, NakCode, Packet, Psn, Reth, Syndrome};

use super::kept::Kept;
use super::kept_packet::KeptPacket;
use super::psn_nak::PsnNak;
use super::recv_wqe::find_srq;
use super::response_queue::ResponseQueue;
use super::write_reorder::WriteReorder;
use crate::access::Access;
use crate::async_event::AsyncEvent;
use crate::counter::CountedOps;
use crate::cq::{Cqe, WcOpcode};
use crate::event::{DropReason, Event, Nak};
use crate::fault::ResponderFault;
use crate::host::{Consumer, Host, Io};
use crate::key::Key;
use crate::memory::AccessRequest;
use crate::mr::Accessor;
use crate::qp::QueuePair;
use crate::qp::state::QpState;
use crate::quirks::AckPolicy;
use crate::time::{Clock, Instant};
use crate::work::RecvWr;

/// The responder of one queue pair.
#[derive(Debug, Default)]
pub(in crate::qp) struct Responder {
    /// ePSN.
    pub(super) expected: Psn,
    /// Requests completed.
    pub(super) msn: Msn,
    /// A NAK for `expected` is out: say no more until that packet comes, or should have come (IBA 9.7.5.2.8).
    psn_nak: Option<PsnNak>,
    /// The message being received.
    pub(super) inbound: Option<Inbound>,
    /// The rest of a message is dropped until the next First or Only (UC).
    pub(super) dropping: bool,
    /// Answers to READs and atomics, kept for duplicates; oldest first.
    pub(super) replays: VecDeque<Replay>,
    pub(in crate::qp) responses: ResponseQueue,
    /// The consumer knows that the connection works.
    established: bool,
    /// Requests behind a gap.
    pub(in crate::qp) kept: Option<Box<Kept>>,
    /// The bytes of the request that is carried out are stored already.
    pub(in crate::qp) is_stored: bool,
    /// Bytes of a WRITE that come later.
    pub(super) reorder: Option<Box<WriteReorder>>,
}

/// A message of several packets, under way.
#[derive(Debug)]
pub(super) enum Inbound {
    Send { wr: RecvWr, received: u32 },
    Write { reth: Reth, received: u32 },
}

/// Record of a READ or atomic, from which a duplicate is answered.
#[derive(Clone, Copy, Debug)]
pub(super) enum Replay {
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

/// Outcome of a request.
pub(in crate::qp) enum Verdict {
    /// Done.
    Accepted,
    /// No receive WQE: RNR NAK.
    NotReady,
}

impl Responder {
    /// INIT → RTR.
    pub(in crate::qp) fn start(&mut self, rq_psn: Psn) {
        self.expected = rq_psn;
    }

    /// Whether a message of several packets is under way.
    pub(in crate::qp) const fn is_in_message(&self) -> bool {
        self.inbound.is_some()
    }

    /// Notes that a request has come. True for the first: the consumer is to know that the connection works.
    pub(in crate::qp) const fn establish(&mut self) -> bool {
        !core::mem::replace(&mut self.established, true)
    }

    /// Whether the first request has come.
    pub(in crate::qp) const fn is_established(&self) -> bool {
        self.established
    }

    /// Takes requests for done: the peer has carried them out itself, or these are packets whose bytes are stored.
    pub(in crate::qp) fn skip(&mut self, psns: u32, messages: u32) {
        self.expected = self.expected.add(psns);
        self.msn = Msn::new(self.msn.get().wrapping_add(messages));
        self.psn_nak = None;
    }

    pub(in crate::qp) const fn expected_psn(&self) -> Psn {
        self.expected
    }

    /// Whether a request of this PSN is likely the peer's: near the one expected, or within a READ whose answer may be asked for
    /// again.
    pub(in crate::qp) fn is_near(&self, psn: Psn) -> bool {
        /// More packets than peers have in flight.
        const NEAR: u32 = 1 << 12;
        let is_of_read = |replay: &Replay| match *replay {
            Replay::Read { first, last } => psn.distance_from(first) >= 0 && psn.distance_from(last) <= 0,
            Replay::Atomic { .. } | Replay::Placement { .. } => false,
        };
        psn.distance_from(self.expected).unsigned_abs() <= NEAR || self.replays.iter().any(is_of_read)
    }

    /// The receive WQE of a message that will not be finished.
    pub(in crate::qp) fn take_inbound_recv(&mut self) -> Option<RecvWr> {
        match self.inbound.take()? {
            Inbound::Send { wr, .. } => Some(wr),
            Inbound::Write { .. } => None,
        }
    }

    /// Time at which answers or bytes of a WRITE that are kept back are due.
    pub(in crate::qp) fn kept_until(&self) -> Option<Instant> {
        match &self.reorder {
            Some(reorder) => reorder.until(),
            None => self.responses.kept_until(),
        }
    }

    /// Ends every delay now.
    pub(in crate::qp) fn flush_delayed(&mut self, policy: AckPolicy, clock: &impl Clock) {
        match &mut self.reorder {
            Some(reorder) => reorder.flush_delayed(clock.now()),
            None => self.responses.flush_delayed(policy, clock),
        }
    }

    /// Forgets what is not acknowledged.
    pub(in crate::qp) fn clear(&mut self) {
        self.responses.clear();
        self.reorder = None;
        self.kept = None;
    }

    /// Takes the request that was kept and is expected now.
    pub(in crate::qp) fn take_kept(&mut self) -> Option<KeptPacket> {
        self.kept.as_mut()?.take(self.expected)
    }

    /// Takes back a request that was kept and has been carried out.
    pub(in crate::qp) fn recycle_kept(&mut self, packet: KeptPacket) {
        if let Some(kept) = &mut self.kept {
            kept.recycle(packet);
        }
    }

    /// Notes that nothing is kept any more.
    pub(in crate::qp) fn rest_kept(&mut self) {
        self.kept.take_if(|kept| !kept.rest(self.expected));
    }

    /// Notes that there are `posted` receive WQEs now: a peer that was told there are none is told so (IBA 9.7.7.2.3, unsolicited
    /// acknowledge).
    pub(in crate::qp) fn receive_posted(&mut self, posted: usize) {
        if posted > 0 && self.responses.take_advertised_none() {
            self.acknowledge();
        }
    }

    pub(in crate::qp) fn acknowledge(&mut self) {
        self.responses.acknowledge(self.expected, self.msn);
    }

    //= spec/responder.md#rsp-005
    //# The answers kept for duplicates MUST be as many as responder resources.
    pub(super) fn remember(&mut self, replay: Replay, most: u8) {
        while self.replays.len() >= usize::from(most) {
            self.replays.pop_front();
        }
        self.replays.push_back(replay);
    }
}

impl<H: Host> QueuePair<H> {
    /// Takes a request.
    pub(in crate::qp) fn handle_request(&mut self, io: &mut Io<'_, H>, packet: &Packet<'_>, info: &OpcodeInfo) -> bool {
        let psn = packet.bth().psn;
        let distance = psn.distance_from(self.responder.expected);
        if distance > 0 && self.keeps_packets() {
            return self.keep_request(io, packet);
        }
        if distance > 0 {
            //= spec/responder.md#rsp-001
            //# A request behind a gap MUST be refused with a PSN sequence error NAK once, and once more when the
            //# requester has gone back and the gap is still there, and else be dropped until the gap is filled.
            let is_told = self.responder.psn_nak.is_some();
            let has_reopened = self.responder.psn_nak.get_or_insert_default().has_reopened(psn);
            if is_told && !has_reopened {
                self.drop_packet(io, packet, DropReason::OutOfSequence);
            } else {
                self.send_nak(io, Nak::Code(NakCode::PsnSequenceError), self.responder.expected);
            }
            return false;
        }
        if distance < 0 {
            self.handle_duplicate(io, packet);
            return false;
        }
        let accepted = self.handle_expected(io, packet, info);
        if let Some(kept) = &self.responder.kept {
            match kept.rests_until() {
                None => self.execute_kept(io),
                Some(end) if self.responder.expected.distance_from(end) >= 0 => self.responder.kept = None,
                Some(_) => {}
            }
        }
        accepted
    }

    /// Takes the request that is expected.
    // A part of the caller: it does little but call another.
    #[inline(always)]
    pub(in crate::qp) fn handle_expected(
        &mut self,
        io: &mut Io<'_, H>,
        packet: &Packet<'_>,
        info: &OpcodeInfo,
    ) -> bool {
        let psn = packet.bth().psn;
        //= spec/responder.md#rsp-021
        //# The first request that arrives in RTR MUST raise the event COMM_EST.
        if self.state == QpState::Rtr && self.responder.establish() {
            io.consumer.async_event(self.config.qpn, AsyncEvent::CommunicationEstablished);
        }
        match self.execute(io, packet, info) {
            Ok(Verdict::Accepted) => {
                self.responder.psn_nak = None;
                true
            }
            //= spec/responder.md#rsp-007
            //# A message for which there is no receive WQE MUST be put off with an RNR NAK of min_rnr_timer.
            Ok(Verdict::NotReady) => {
                // The packet is there, so what follows says nothing of a gap.
                self.responder.psn_nak = None;
                self.send_nak(io, Nak::Rnr(self.attr.min_rnr_timer), psn);
                true
            }
            //= spec/hosts.md#net-012
            //# A request for an XRC SRQ whose process does not answer in time MUST be dropped, to be repeated by its
            //# requester, or put off with an RNR NAK.
            Err((ResponderFault::NoAnswer, wr)) => {
                // What comes next is this message once more: it gets the same WQE.
                self.rq.extend(wr);
                self.drop_packet(io, packet, DropReason::NoAnswer);
                false
            }
            Err((fault, wr)) => {
                self.count_refused(io, info);
                self.responder_fault(io, fault, wr, psn);
                false
            }
        }
    }

    /// Counts a request that was refused, if WRITEs of the peer are counted.
    pub(super) fn count_refused(&self, io: &mut Io<'_, H>, info: &OpcodeInfo) {
        if info.kind == Kind::Write {
            self.config.count(io, CountedOps::REMOTE_RDMA_WRITE, false);
        }
    }

    fn send_nak(&mut self, io: &mut Io<'_, H>, nak: Nak, psn: Psn) {
        io.consumer.trace(self.config.qpn, Event::SentNak { nak, psn });
        self.responder.psn_nak.get_or_insert_default();
        let syndrome = match nak {
            Nak::Rnr(timer) => Syndrome::RnrNak(timer),
            Nak::Code(code) => Syndrome::Nak(code),
        };
        self.responder.responses.refuse(psn, syndrome, self.responder.msn);
    }

    /// Tells peer and consumer of a fault in answering `psn`, and goes to ERR (IBA 9.9.3.1 for RC).
    pub(in crate::qp) fn responder_fault(
        &mut self,
        io: &mut Io<'_, H>,
        fault: ResponderFault,
        wr: Option<RecvWr>,
        psn: Psn,
    ) {
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
    pub(in crate::qp) fn execute(
        &mut self,
        io: &mut Io<'_, H>,
        packet: &Packet<'_>,
        info: &OpcodeInfo,
    ) -> Result<Verdict, (ResponderFault, Option<RecvWr>)> {
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
            let (number, srq) = find_srq(io, domain, packet).map_err(|fault| (fault, None))?;
            // One that was given back waits for its own message to come again.
            let waits = !self.rq.is_empty();
            if waits && self.xrc_srq.as_ref().is_some_and(|(before, _)| *before != number) {
                return Err((ResponderFault::NoSuchSrq, None));
            }
            self.xrc_srq = Some((number, srq));
        }
        match (info.kind, packet.ext()) {
            (Kind::Send, _) => self.execute_send(io, packet, info),
            (Kind::Write, _) => self.execute_write(io, packet, info),
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

    /// The peer, as one who asks for access.
    pub(super) fn peer(&self, io: &Io<'_, H>) -> Accessor {
        self.config.peer_in(self.remote_pd(io))
    }
}

/// Asks for all of the memory that a request names.
pub(super) fn access_request(by: Accessor, reth: &Reth, access: Access) -> AccessRequest {
    AccessRequest { by, key: Key(reth.r_key.0), access, va: reth.va, length: u64::from(reth.dma_len) }
}
