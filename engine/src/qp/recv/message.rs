//! SENDs and WRITEs: messages of one or more packets, carried out packet by packet, and acknowledged.

use urxe_wire::opcode::OpcodeInfo;
use urxe_wire::{Ext, Packet, Psn, Reth};

use super::responder::{Inbound, Verdict, access_request};
use super::write_reorder::Part;
use crate::access::Access;
use crate::counter::CountedOps;
use crate::cq::{Cqe, WcOpcode};
use crate::fault::ResponderFault;
use crate::host::{Host, Io};
use crate::key::Key;
use crate::memory::{self, AccessRequest, Invalidation, Memory, MemoryOp};
use crate::mr::Refusal;
use crate::qp::QueuePair;
use crate::qp::sge::scatter;
use crate::quirks::{AckPolicy, Quirks as _};
use crate::work::RecvWr;

impl<H: Host> QueuePair<H> {
    pub(in crate::qp) fn execute_send(
        &mut self,
        io: &mut Io<'_, H>,
        packet: &Packet<'_>,
        info: &OpcodeInfo,
    ) -> Result<Verdict, (ResponderFault, Option<RecvWr>)> {
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
            let imm = if let Ext::ImmDt(imm) = packet.ext() { Some(*imm) } else { None };
            let invalidated = if let Ext::Ieth(ieth) = packet.ext() { Some(ieth.r_key) } else { None };
            if let Some(r_key) = invalidated
                && let Err(refusal) =
                    io.memory.invalidate(self.remote_pd(io), self.config.qpn, Key(r_key.0), Invalidation::Remote)
            {
                return Err((ResponderFault::refused(refusal, ResponderFault::Invalidate), Some(wr)));
            }
            let cqe = self.recv_completion(io, &wr, WcOpcode::Recv, received, imm, packet.bth().solicited_event);
            let cqe = Cqe { invalidated, ..cqe };
            self.complete_recv(io, cqe);
        } else {
            self.responder.inbound = Some(Inbound::Send { wr, received });
        }
        self.accept(packet, info);
        Ok(Verdict::Accepted)
    }

    pub(in crate::qp) fn execute_write(
        &mut self,
        io: &mut Io<'_, H>,
        packet: &Packet<'_>,
        info: &OpcodeInfo,
    ) -> Result<Verdict, (ResponderFault, Option<RecvWr>)> {
        if !self.attr.access.contains(Access::REMOTE_WRITE) {
            return Err((ResponderFault::QpAccess, None));
        }
        let (reth, received) = match (packet.ext(), &self.responder.inbound) {
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
        if info.position.ends() && self.config.is_counted(CountedOps::REMOTE_RDMA_WRITE) {
            // Who sees the count may look at the bytes.
            if let Err(fault) = self.settle_writes(io) {
                return Err((fault, recv));
            }
            self.config.count(io, CountedOps::REMOTE_RDMA_WRITE, true);
        }
        if let Some(wr) = recv {
            if let Err(fault) = self.settle_writes(io) {
                return Err((fault, Some(wr)));
            }
            let imm = match packet.ext() {
                Ext::ImmDt(imm) | Ext::RethImmDt(_, imm) => Some(*imm),
                _ => None,
            };
            let solicited = packet.bth().solicited_event;
            let cqe = self.recv_completion(io, &wr, WcOpcode::RecvRdmaWithImm, reth.dma_len, imm, solicited);
            self.complete_recv(io, cqe);
        }
        self.responder.inbound =
            if info.position.ends() { None } else { Some(Inbound::Write { reth, received: total }) };
        self.accept(packet, info);
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
        let whole = access_request(self.peer(io), reth, Access::REMOTE_WRITE);
        //= spec/responder.md#rsp-009
        //# All of the memory that a WRITE names MUST be checked before its first byte is stored.
        if received == 0 && payload.len() < reth.dma_len as usize {
            memory::access(io.memory, &whole, MemoryOp::Look)?;
        }
        let va = reth.va.checked_add(u64::from(received)).ok_or(Refusal::OutOfBounds)?;
        let part = AccessRequest { va, length: payload.len() as u64, ..whole };
        if let Some(policy) = self.config.quirks.writes()
            && self.config.qp_type.is_reliable()
        {
            let ends = received as usize + payload.len() >= reth.dma_len as usize;
            return self.write_reordered(io, policy, &Part { psn, request: part, payload, ends });
        }
        let op = if self.responder.is_stored { MemoryOp::Look } else { MemoryOp::Write(payload) };
        memory::access(io.memory, &part, op).map(drop)
    }

    /// A SEND or WRITE packet was carried out.
    fn accept(&mut self, packet: &Packet<'_>, info: &OpcodeInfo) {
        let responder = &mut self.responder;
        responder.expected = responder.expected.next();
        if info.position.ends() {
            responder.msn = responder.msn.next();
        }
        //= spec/responder.md#rsp-018
        //# A request that asks for an acknowledgement MUST get one; one MAY answer all before it.
        if self.config.qp_type.is_reliable() {
            if self.config.quirks.acks() == AckPolicy::PerPacket {
                responder.responses.acknowledge_apart(responder.expected, responder.msn);
            } else if packet.bth().ack_req {
                responder.acknowledge();
            }
        }
    }
}

/// The length of a packet's payload, which is at most 64 KiB.
fn length32(payload: &[u8]) -> u32 {
    u32::try_from(payload.len()).unwrap_or(u32::MAX)
}
