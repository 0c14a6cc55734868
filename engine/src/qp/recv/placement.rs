//! Bytes of a WRITE that came behind a gap, stored at once.
//!
//! The bytes of one message may be stored in any order (IBA 9.5), and a copy is saved: at 1 % lost nearly all packets come behind a
//! gap. Programs that wait for the last byte rely on it to come last, so the last packet waits for its turn. So does the first: it
//! says where its message goes. Besides the message under way those behind it are stored so, [as far as it is known](super::upcoming)
//! that they are WRITEs and where their bytes go, and where nothing in front of them is still to be stored. In its turn a packet is
//! checked as ever; only the copy is left out.

use urxe_wire::opcode::Kind;
use urxe_wire::{Ext, Packet, Psn, Reth};

use super::kept::{Kept, WINDOW};
use super::responder::{Inbound, access_request};
use super::upcoming::{Upcoming, UpcomingWrite};
use crate::access::Access;
use crate::host::{Host, Io};
use crate::memory::{self, AccessRequest, MemoryOp};
use crate::qp::QueuePair;
use crate::quirks::{AckPolicy, Quirks as _};

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
    //# all requests from the one under way to it are WRITEs whose memory was checked, and nothing in front of them is to be
    //# stored at the same place.
    pub(in crate::qp) fn early_place(&self, io: &Io<'_, H>, kept: &mut Kept, packet: &Packet<'_>) -> Option<Place> {
        let Some(Inbound::Write { reth, received }) = &self.responder.inbound else { return None };
        let (bth, mtu) = (packet.bth(), self.attr.path_mtu.bytes());
        let may = self.attr.access.contains(Access::REMOTE_WRITE) && self.config.quirks.writes().is_none();
        let (psn, expected) = (bth.psn, self.responder.expected);
        let behind = psn.advance_from(expected);
        if !is_middle(packet, mtu) || !may || behind > WINDOW.into() {
            return None;
        }
        let mtu = mtu as u64;
        let (rest, length) = (u64::from(reth.dma_len.saturating_sub(*received)), u64::from(reth.dma_len));
        // All packets before it are of this message and full, or this is no packet of the message.
        let offset = u64::from(*received) + u64::from(behind) * mtu;
        if offset + mtu < length {
            return Some(Place { reth: *reth, offset });
        }
        let next = expected.add(u32::try_from(rest.div_ceil(mtu)).ok()?);
        // Packets of the message under way that are stored have left: it is as if it began behind these.
        let reth = Reth { va: reth.va.wrapping_add(u64::from(*received)), dma_len: u32::try_from(rest).ok()?, ..*reth };
        let under_way = UpcomingWrite::new(expected, next.advance_from(expected), reth);
        let mut upcoming = core::mem::take(&mut kept.upcoming);
        upcoming.follow(next, psn, |psn| self.write_from(io, kept, psn));
        let mut place = upcoming.middle(psn, &under_way, self.attr.path_mtu, &kept.stored);
        if place.is_none() && self.store_kept(io, kept, &mut upcoming, &under_way, psn) {
            place = upcoming.middle(psn, &under_way, self.attr.path_mtu, &kept.stored);
        }
        kept.upcoming = upcoming;
        place.map(|(reth, offset)| Place { reth, offset })
    }

    /// Stores packets in front of the one at `psn` that go to its place, and had to be kept whole when they came: what was in front
    /// of them may be stored by now. Returns whether there were any.
    fn store_kept(
        &self,
        io: &Io<'_, H>,
        kept: &mut Kept,
        upcoming: &mut Upcoming,
        under_way: &UpcomingWrite,
        psn: Psn,
    ) -> bool {
        let (mtu, mut has_stored) = (self.attr.path_mtu, false);
        while let Some(before) = upcoming.blocks(psn, under_way, mtu, &kept.stored) {
            // Nothing is in front of the message under way.
            let place = under_way.place(before, mtu).or_else(|| upcoming.middle(before, under_way, mtu, &kept.stored));
            let is_stored = place.zip(kept.get(before)).is_some_and(|((reth, offset), whole)| {
                let packet = whole.packet();
                is_middle(&packet, mtu.bytes()) && self.store_early(io, &Place { reth, offset }, packet.payload)
            });
            if !is_stored || !kept.mark_stored(before) {
                break;
            }
            has_stored = true;
        }
        has_stored
    }

    /// The WRITE that begins at this PSN, if its first packet is kept and its memory may be written to.
    //= spec/responder.md#rsp-009
    //# All of the memory that a WRITE names MUST be checked before its first byte is stored.
    fn write_from(&self, io: &Io<'_, H>, kept: &Kept, psn: Psn) -> Option<UpcomingWrite> {
        let packet = kept.get(psn)?.packet();
        let (info, mtu) = (packet.bth().opcode.info(), self.attr.path_mtu);
        let (Ext::Reth(reth) | Ext::RethImmDt(reth, _)) = *packet.ext() else { return None };
        let is_only = info.position.ends();
        let (len, dma_len) = (packet.payload.len(), reth.dma_len as usize);
        let fits = if is_only { len == dma_len } else { len == mtu.bytes() && len < dma_len && dma_len <= 1 << 31 };
        if info.kind != Kind::Write || !info.position.starts() || !fits {
            return None;
        }
        let whole = access_request(self.peer(io), &reth, Access::REMOTE_WRITE);
        let may = dma_len == 0 || memory::access(io.memory, &whole, MemoryOp::Look).is_ok();
        may.then_some(UpcomingWrite::new(psn, mtu.packets(reth.dma_len), reth))
    }

    /// Stores the bytes of a packet behind a gap at their place. Returns whether they are stored.
    pub(in crate::qp) fn store_early(&self, io: &Io<'_, H>, place: &Place, payload: &[u8]) -> bool {
        let Some(va) = place.reth.va.checked_add(place.offset) else { return false };
        let whole = access_request(self.peer(io), &place.reth, Access::REMOTE_WRITE);
        let part = AccessRequest { va, length: payload.len() as u64, ..whole };
        memory::access(io.memory, &part, MemoryOp::Write(payload)).is_ok()
    }

    /// Carries out the packets in a row that are expected now and whose bytes are stored already, all by one check of their memory.
    /// False where there are none, or one of them is to be refused: whoever takes them one after the other finds out which.
    pub(in crate::qp) fn pass_stored(&mut self, io: &Io<'_, H>) -> bool {
        let Some(kept) = &self.responder.kept else { return false };
        let Some(Inbound::Write { reth, received }) = self.responder.inbound else { return false };
        let quirks = &self.config.quirks;
        let may = self.state.receives()
            && self.attr.access.contains(Access::REMOTE_WRITE)
            && quirks.writes().is_none()
            && quirks.acks() != AckPolicy::PerPacket;
        let Some((packets, len)) = kept.stored_run(self.responder.expected).filter(|_| may) else { return false };
        let length = u64::from(packets) * u64::from(len);
        let total = u64::from(received) + length;
        let (Ok(total), Some(va)) = (u32::try_from(total), reth.va.checked_add(received.into())) else { return false };
        if total >= reth.dma_len || usize::from(len) != self.attr.path_mtu.bytes() {
            return false;
        }
        let part = AccessRequest { va, length, ..access_request(self.peer(io), &reth, Access::REMOTE_WRITE) };
        if !memory::is_granted(io.memory, &part) {
            return false;
        }
        self.responder.skip(packets, 0);
        self.responder.inbound = Some(Inbound::Write { reth, received: total });
        true
    }
}

/// Whether a packet is from the middle of a WRITE, and full.
fn is_middle(packet: &Packet<'_>, mtu: usize) -> bool {
    let info = packet.bth().opcode.info();
    let is_inside = !info.position.starts() && !info.position.ends();
    info.kind == Kind::Write && is_inside && packet.payload.len() == mtu
}
