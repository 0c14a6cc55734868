//! Bytes of a WRITE that came behind a gap, stored at once.
//!
//! The bytes of one message may be stored in any order (IBA 9.5), and a copy is saved: at 1 % lost nearly all packets come behind a
//! gap. Programs that wait for the last byte rely on it to come last, so the last packet waits for its turn. So does the first: it
//! says where its message goes. Besides the message under way the next one is stored so, as far as nothing of the message under way
//! is still to be stored at the same place. In its turn a packet is checked as ever; only the copy is left out.

use urxe_wire::opcode::Kind;
use urxe_wire::{Ext, Packet, Psn, Reth};

use super::kept::Kept;
use super::responder::{Inbound, ask};
use crate::access::Access;
use crate::host::{Host, Io};
use crate::memory::{self, Ask, Touch};
use crate::qp::QueuePair;
use crate::quirks::Quirks as _;

/// Place of bytes: those from this offset on of the message of a RETH.
#[derive(Clone, Copy, Debug)]
pub(in crate::qp) struct Place {
    reth: Reth,
    offset: u64,
}

impl<H: Host> QueuePair<H> {
    /// Place of the bytes of a packet behind a gap, if it is from the middle of a WRITE and they may be stored at once.
    //= spec/selective.md#sel-011
    //# Bytes of a WRITE MAY be stored before those in front of them, if they are of neither its first nor its last packet,
    //# it is the one under way or the next, and nothing in front of them is to be stored at the same place.
    pub(in crate::qp) fn early_place(&self, kept: &Kept, packet: &Packet<'_>) -> Option<Place> {
        let Some(Inbound::Write { reth, received }) = &self.responder.inbound else { return None };
        let (bth, mtu) = (packet.bth(), self.attr.path_mtu.bytes());
        let info = bth.opcode.info();
        let is_middle = info.kind == Kind::Write && !info.position.starts() && !info.position.ends();
        let may = self.attr.access.contains(Access::REMOTE_WRITE) && self.config.quirks.writes().is_none();
        if !is_middle || packet.payload.len() != mtu || !may {
            return None;
        }
        let (mtu, received, length) = (mtu as u64, u64::from(*received), u64::from(reth.dma_len));
        // All packets before it are of this message and full, or this is no packet of the message.
        let offset = received + u64::from(bth.psn.advance_from(self.responder.expected)) * mtu;
        if offset + mtu < length {
            return Some(Place { reth: *reth, offset });
        }
        let packets = u32::try_from((length - received).div_ceil(mtu)).ok()?;
        let next = self.responder.expected.add(packets);
        let place = Place {
            reth: write_from(kept, next, packet.payload.len())?,
            offset: u64::try_from(bth.psn.distance_from(next)).ok()? * mtu,
        };
        let is_inside = place.offset + mtu < u64::from(place.reth.dma_len) && place.reth.dma_len <= 1 << 31;
        // Addresses under another key may be those of the same memory.
        let is_comparable = place.reth.r_key == reth.r_key;
        // What of the message under way goes to the same place.
        let from = place.reth.va.checked_add(place.offset)?;
        let (from, to) = (from.saturating_sub(reth.va), (from.checked_add(mtu)?).saturating_sub(reth.va));
        let (from, to) = (from.max(received), to.min(length));
        let is_stored = |psn| kept.get(psn).is_some_and(|kept| kept.is_stored());
        let mut packets = (from.saturating_sub(received) / mtu)..(to.saturating_sub(received).div_ceil(mtu));
        let is_free = from >= to
            || packets.all(|nth| u32::try_from(nth).is_ok_and(|nth| is_stored(self.responder.expected.add(nth))));
        (is_inside && is_comparable && is_free).then_some(place)
    }

    /// Stores the bytes of a packet behind a gap at their place. Returns whether they are stored.
    pub(in crate::qp) fn store_early(&self, io: &Io<'_, H>, place: &Place, payload: &[u8]) -> bool {
        let Some(va) = place.reth.va.checked_add(place.offset) else { return false };
        let whole = ask(self.peer(io), &place.reth, Access::REMOTE_WRITE);
        let part = Ask { va, length: payload.len() as u64, ..whole };
        // The next message's memory has not been checked yet.
        //= spec/responder.md#rsp-009
        //# All of the memory that a WRITE names MUST be checked before its first byte is stored.
        memory::access(io.memory, &whole, Touch::Look).is_ok()
            && memory::access(io.memory, &part, Touch::Write(payload)).is_ok()
    }
}

/// The RETH of a WRITE of several packets whose first is kept at this PSN, and has `len` bytes.
fn write_from(kept: &Kept, psn: Psn, len: usize) -> Option<Reth> {
    let packet = kept.get(psn)?.packet();
    let info = packet.bth().opcode.info();
    let begins = info.kind == Kind::Write && info.position.starts() && !info.position.ends();
    match packet.ext() {
        Ext::Reth(reth) if begins && packet.payload.len() == len => Some(*reth),
        _ => None,
    }
}
