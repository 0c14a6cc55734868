//! READs, atomics, ATOMIC WRITEs and FLUSHes: requests of one packet that take a responder resource each, and whose
//! answers are kept for duplicates.

use urxe_wire::opcode::Kind;
use urxe_wire::{AtomicEth, Feth, FlushLevel, Psn, Reth};

use super::responder::{Replay, Verdict, access_request};
use super::response_queue::{ReadResponse, Response};
use crate::access::Access;
use crate::fault::ResponderFault;
use crate::host::{Host, Io};
use crate::key::Key;
use crate::memory::{self, AccessRequest, MemoryOp};
use crate::mr::Pd;
use crate::qp::QueuePair;

impl<H: Host> QueuePair<H> {
    pub(in crate::qp) fn execute_read(&mut self, io: &Io<'_, H>, reth: Reth) -> Result<Verdict, ResponderFault> {
        let pd = self.remote_pd(io);
        self.check_read(io, pd, &reth)?;
        self.check_resources()?;
        let first = self.responder.expected;
        let last = first.add(self.attr.path_mtu.packets(reth.dma_len) - 1);
        self.responder.expected = last.next();
        self.responder.msn = self.responder.msn.next();
        let most = self.most_replays();
        self.responder.remember(Replay::Read { first, last }, most);
        let msn = self.responder.msn;
        let read = ReadResponse { first, next: first, last, reth, msn, pd, replayed: false };
        self.responder.responses.respond(Response::Read(read));
        Ok(Verdict::Accepted)
    }

    pub(in crate::qp) fn check_read(&self, io: &Io<'_, H>, pd: Pd, reth: &Reth) -> Result<(), ResponderFault> {
        if !self.attr.access.contains(Access::REMOTE_READ) {
            return Err(ResponderFault::QpAccess);
        }
        if reth.dma_len > 1 << 31 {
            return Err(ResponderFault::Length);
        }
        if reth.dma_len == 0 {
            return Ok(());
        }
        let request = access_request(self.config.peer_in(pd), reth, Access::REMOTE_READ);
        memory::access(io.memory, &request, MemoryOp::Look).map(drop).map_err(ResponderFault::remote)
    }

    pub(in crate::qp) fn execute_atomic(
        &mut self,
        io: &Io<'_, H>,
        kind: Kind,
        atomic: &AtomicEth,
    ) -> Result<Verdict, ResponderFault> {
        if !self.attr.access.contains(Access::REMOTE_ATOMIC) {
            return Err(ResponderFault::QpAccess);
        }
        //= spec/responder.md#rsp-012
        //# An atomic on an address that is no multiple of eight MUST be refused as an invalid request.
        if !atomic.va.is_multiple_of(8) {
            return Err(ResponderFault::Misaligned);
        }
        self.check_resources()?;
        let op = match kind {
            Kind::CompareSwap => MemoryOp::CompareSwap { compare: atomic.compare, swap: atomic.swap_add },
            _ => MemoryOp::FetchAdd(atomic.swap_add),
        };
        let (by, key) = (self.peer(io), Key(atomic.r_key.0));
        let request = AccessRequest { by, key, access: Access::REMOTE_ATOMIC, va: atomic.va, length: 8 };
        let original = memory::access(io.memory, &request, op).map_err(ResponderFault::remote)?;
        let psn = self.responder.expected;
        self.responder.expected = psn.next();
        self.responder.msn = self.responder.msn.next();
        let most = self.most_replays();
        self.responder.remember(Replay::Atomic { psn, original }, most);
        let msn = self.responder.msn;
        self.responder.responses.respond(Response::Atomic { psn, original, msn, replayed: false });
        Ok(Verdict::Accepted)
    }

    /// Eight bytes, stored at once (IBA annex A19). The R_Key needs the right to write, as on the kernel's rxe.
    pub(in crate::qp) fn execute_atomic_write(
        &mut self,
        io: &Io<'_, H>,
        reth: &Reth,
        payload: &[u8],
    ) -> Result<Verdict, ResponderFault> {
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
        let request = access_request(self.peer(io), reth, Access::REMOTE_WRITE);
        memory::access(io.memory, &request, MemoryOp::WriteWord(word)).map_err(ResponderFault::remote)?;
        Ok(self.respond_placement(reth))
    }

    /// Executes a FLUSH: what was written before becomes visible, or persistent (IBA annex A19).
    pub(in crate::qp) fn execute_flush(
        &mut self,
        io: &Io<'_, H>,
        feth: Feth,
        reth: &Reth,
    ) -> Result<Verdict, ResponderFault> {
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
        let op = MemoryOp::Flush { persistent: feth.persistence, whole: feth.level == FlushLevel::Region };
        memory::access(io.memory, &access_request(self.peer(io), reth, needed), op).map_err(ResponderFault::remote)?;
        Ok(self.respond_placement(reth))
    }

    //= spec/responder.md#rsp-011
    //# More READs and atomics at once than responder resources MUST be refused as an invalid request.
    fn check_resources(&self) -> Result<(), ResponderFault> {
        if self.responder.responses.unanswered() >= usize::from(self.attr.max_dest_rd_atomic) {
            return Err(ResponderFault::TooManyReads);
        }
        Ok(())
    }

    /// Answers an ATOMIC WRITE or FLUSH that was carried out: by a READ response without data (IBA annex A19).
    fn respond_placement(&mut self, reth: &Reth) -> Verdict {
        let psn = self.responder.expected;
        self.responder.expected = psn.next();
        self.responder.msn = self.responder.msn.next();
        let most = self.most_replays();
        self.responder.remember(Replay::Placement { psn }, most);
        let read = self.placement_response(psn, reth, false);
        self.responder.responses.respond(Response::Read(read));
        Verdict::Accepted
    }

    pub(in crate::qp) fn placement_response(&self, psn: Psn, reth: &Reth, replayed: bool) -> ReadResponse {
        let reth = Reth { dma_len: 0, ..*reth };
        let (msn, pd) = (self.responder.msn, self.config.pd);
        ReadResponse { first: psn, next: psn, last: psn, reth, msn, pd, replayed }
    }
}
