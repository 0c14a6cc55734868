//! The bytes of WRITEs in another order than that in which they came ([`crate::quirks`]).
//!
//! Until a message is complete, nobody may rely on any of its bytes (IBA 9.5), so they may be stored in any order: the
//! last ones as soon as they are there, the others later and shuffled. All of them are there before the message is
//! acknowledged, before what comes after it on the same queue pair is carried out, and before its completion if it has
//! immediate data.

use alloc::boxed::Box;
use alloc::vec::Vec;

use urxe_wire::Psn;

use crate::event::Event;
use crate::fault::ResponderFault;
use crate::host::{Consumer, Host, Io};
use crate::memory::{self, AccessRequest, Memory, MemoryOp};
use crate::mr::Refusal;
use crate::qp::QueuePair;
use crate::quirks::{Quirks as _, WritePolicy};
use crate::rng::Rng;
use crate::time::Instant;

/// Bytes stored at once. Fewer than this never come apart.
const PIECE: usize = 64;

/// Bytes that are kept back at most; of long messages, the end is reordered.
const MOST: usize = 64 << 10;

/// The bytes of one message that are kept back.
#[derive(Debug)]
pub(in crate::qp) struct WriteReorder {
    rng: Rng,
    pieces: Vec<(AccessRequest, Vec<u8>)>,
    /// The last of them all, which is stored already.
    tail: Option<(AccessRequest, Vec<u8>)>,
    /// The message is complete, and the bytes come at this time.
    until: Option<Instant>,
    psn: Psn,
}

/// A packet of a WRITE.
#[derive(Clone, Copy, Debug)]
pub(in crate::qp) struct Part<'a> {
    pub(in crate::qp) psn: Psn,
    /// Place where its payload is to be stored.
    pub(in crate::qp) request: AccessRequest,
    pub(in crate::qp) payload: &'a [u8],
    pub(in crate::qp) ends: bool,
}

impl WriteReorder {
    fn store<M: Memory>(&mut self, memory: &M) -> Result<(), Refusal> {
        while !self.pieces.is_empty() {
            let any = self.rng.below(self.pieces.len() as u64);
            let (request, bytes) = self.pieces.swap_remove(usize::try_from(any).unwrap_or(0));
            memory::access(memory, &request, MemoryOp::Write(&bytes))?;
        }
        Ok(())
    }

    /// Where the last bytes are, if somebody has changed them and others are still to come.
    fn overtaken<M: Memory>(&self, memory: &M) -> Option<u64> {
        let (request, bytes) = self.tail.as_ref().filter(|_| !self.pieces.is_empty())?;
        let mut now = bytes.clone();
        memory::access(memory, request, MemoryOp::Read(&mut now)).ok()?;
        (now != *bytes).then_some(request.va)
    }

    /// Time at which the bytes come.
    pub(in crate::qp) const fn until(&self) -> Option<Instant> {
        self.until
    }

    /// Has the bytes stored at `now` at the latest.
    pub(in crate::qp) fn flush_delayed(&mut self, now: Instant) {
        self.until = self.until.map(|until| until.min(now));
    }
}

impl<H: Host> QueuePair<H> {
    /// Stores a part of a WRITE by and by.
    pub(in crate::qp) fn write_reordered(
        &mut self,
        io: &Io<'_, H>,
        policy: WritePolicy,
        part: &Part<'_>,
    ) -> Result<(), Refusal> {
        // What is wrong with it is told now, as it would be without this.
        memory::access(io.memory, &part.request, MemoryOp::Look)?;
        let reorder = self.responder.reorder.get_or_insert_with(|| {
            let rng = Rng::new(policy.seed ^ u64::from(part.psn.get()));
            Box::new(WriteReorder { rng, pieces: Vec::new(), tail: None, until: None, psn: part.psn })
        });
        if reorder.pieces.len() * PIECE > MOST {
            reorder.store(io.memory)?;
        }
        reorder.psn = part.psn;
        let piece = |(offset, bytes): (u64, &[u8])| {
            (
                AccessRequest { va: part.request.va.wrapping_add(offset), length: bytes.len() as u64, ..part.request },
                bytes.to_vec(),
            )
        };
        reorder.pieces.extend((0..).step_by(PIECE).zip(part.payload.chunks(PIECE)).map(piece));
        if part.ends {
            // The last bytes of all.
            if let Some((request, bytes)) = reorder.pieces.pop() {
                memory::access(io.memory, &request, MemoryOp::Write(&bytes))?;
                reorder.tail = Some((request, bytes));
            }
            reorder.until = Some(io.now() + policy.gap);
        }
        Ok(())
    }

    /// Stores what is kept back.
    #[inline]
    pub(in crate::qp) fn settle_writes(&mut self, io: &mut Io<'_, H>) -> Result<(), ResponderFault> {
        match self.responder.reorder.take() {
            None => Ok(()),
            Some(mut reorder) => self.settle(io, &mut reorder),
        }
    }

    fn settle(&mut self, io: &mut Io<'_, H>, reorder: &mut WriteReorder) -> Result<(), ResponderFault> {
        if let Some(va) = reorder.overtaken(io.memory) {
            io.consumer.trace(self.config.qpn, Event::WriteOvertaken { va, psn: reorder.psn });
        }
        reorder.store(io.memory).map_err(ResponderFault::remote)
    }

    //= spec/responder.md#rsp-027
    //# All bytes of a WRITE MUST be stored before it is acknowledged and before what follows it is carried out.
    /// Whether answers are not to be sent yet. What is kept back long enough is stored.
    pub(in crate::qp) fn keeps_back(&mut self, io: &mut Io<'_, H>) -> bool {
        let Some(reorder) = &self.responder.reorder else {
            return self.responder.responses.keeps_back(self.config.quirks.acks(), io.clock);
        };
        let psn = reorder.psn;
        match reorder.until {
            Some(until) if io.now() < until => return true,
            None if self.responder.responses.is_empty() => return false,
            Some(_) | None => {}
        }
        if let Err(fault) = self.settle_writes(io) {
            self.responder_fault(io, fault, None, psn);
        }
        false
    }
}
