//! Requests that came before one that is missing: kept until it comes, when the peer takes part in selective repeat.
//!
//! They are kept whole and carried out in order, so that nothing that a consumer can see depends on the order in which
//! they came. The bytes of one may be [stored](super::placement) already: of such a packet, the middle of a WRITE, two bits are kept.
//!
//! Memory stays for the next gap: an allocator that gives it back to the system has the system clear it again, which takes longer
//! than to receive the packets.

use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec::Vec;

use urxe_wire::{Bitmap, Header, Packet, Psn};

use super::kept_packet::{Keeping, KeptPacket, Payload, STORED};
use super::upcoming::Upcoming;
use crate::qp::psn_bits::PsnBits;
use crate::selective::KeptMemory;

/// Packets behind a gap that a queue pair keeps.
//= spec/selective.md#sel-006
//# What is kept MUST be bounded, for each queue pair and for the process.
pub(in crate::qp) const WINDOW: u16 = 1024;
/// Bytes of these, and of their places.
const MOST_BYTES: usize = 4 << 20;
/// Bytes of a place.
const PLACE: usize = size_of::<Option<KeptPacket>>();
/// Bytes that an allocation takes besides those asked for.
const OVERHEAD: usize = 16;
/// Packets in order after which memory is given back.
const CALM: u32 = 1 << 14;
/// Bytes that wait for the next gap at most.
const MOST_SPARE: usize = MOST_BYTES / 2;

/// Bytes that a buffer takes.
const fn size(buffer: &Vec<u8>) -> usize {
    OVERHEAD + buffer.capacity()
}

/// Requests behind a gap.
#[derive(Debug)]
pub(in crate::qp) struct Kept {
    memory: Arc<KeptMemory>,
    /// The PSN of the first place.
    base: Psn,
    /// Places of the PSNs from `base` on.
    places: VecDeque<Option<KeptPacket>>,
    packets: u32,
    /// The PSN behind all that are kept, while some are.
    end: Psn,
    /// PSNs of packets that are kept.
    bits: PsnBits,
    /// PSNs of those whose bytes are stored already. They have no places.
    pub(super) stored: PsnBits,
    /// Header and length of one of these. They differ in PSN and AckReq.
    middle: Option<(Header, u16)>,
    /// WRITEs behind the message under way.
    pub(super) upcoming: Upcoming,
    /// Buffers of packets that were carried out.
    spare: Vec<Vec<u8>>,
    /// Bytes taken from `memory`, for packets, spare buffers and places.
    bytes: usize,
    /// PSN at which memory is given back, while there is no gap.
    rests_until: Option<Psn>,
}

impl Kept {
    pub(in crate::qp) fn new(memory: &Arc<KeptMemory>) -> Self {
        Self {
            memory: Arc::clone(memory),
            base: Psn::default(),
            places: VecDeque::new(),
            packets: 0,
            end: Psn::default(),
            bits: PsnBits::default(),
            stored: PsnBits::default(),
            middle: None,
            upcoming: Upcoming::default(),
            spare: Vec::new(),
            bytes: 0,
            rests_until: None,
        }
    }

    /// Keeps a packet that came while `expected` was missing. `store` is asked once, unless it came before or
    /// is too far behind: whether its bytes are stored now.
    pub(in crate::qp) fn keep(&mut self, expected: Psn, packet: &Packet<'_>, store: impl FnOnce() -> bool) -> Keeping {
        self.rests_until = None;
        self.advance(expected);
        let psn = packet.bth().psn;
        let behind = psn.advance_from(expected) as usize;
        if behind > usize::from(WINDOW) {
            return Keeping::NoRoom;
        }
        if self.bits.is_set(psn) {
            return Keeping::Duplicate;
        }
        let len = u16::try_from(packet.payload.len()).ok().filter(|len| usize::from(*len) <= STORED.len());
        if let Some(len) = len.filter(|_| store()) {
            self.stored.set(psn, true);
            self.middle = Some((packet.header, len));
        } else if !self.place(behind, packet) {
            return Keeping::NoRoom;
        }
        self.bits.set(psn, true);
        if self.packets == 0 || psn.distance_from(self.end) >= 0 {
            self.end = psn.next();
        }
        self.packets += 1;
        Keeping::Kept
    }

    /// Copies a packet to its place, if there is so much memory.
    fn place(&mut self, behind: usize, packet: &Packet<'_>) -> bool {
        let wanted = behind + 1;
        let capacity = self.places.capacity();
        if capacity < wanted {
            // Places double, so that they are seldom moved.
            let more = wanted.max(2 * capacity).min(usize::from(WINDOW) + 1);
            if !self.take_memory((more - capacity) * PLACE) {
                return false;
            }
            self.places.reserve_exact(more - self.places.len());
        }
        let Some(mut bytes) = self.buffer(packet.payload.len()) else { return false };
        bytes.extend_from_slice(packet.payload);
        let kept = Some(KeptPacket { header: packet.header, payload: Payload::Bytes(bytes) });
        match self.places.get_mut(behind) {
            Some(place) => *place = kept,
            None => {
                if self.places.len() < behind {
                    self.places.resize_with(behind, || None);
                }
                self.places.push_back(kept);
            }
        }
        true
    }

    /// Notes that the bytes of a packet that was kept whole are stored now. False if it was not.
    pub(super) fn mark_stored(&mut self, psn: Psn) -> bool {
        let Some(place) = self.places.get_mut(psn.advance_from(self.base) as usize) else { return false };
        let len = |kept: &KeptPacket| u16::try_from(kept.packet().payload.len()).ok();
        let Some(len) = place.as_ref().and_then(len) else { return false };
        if let Some(kept) = place.take() {
            self.stored.set(psn, true);
            self.middle = Some((kept.header, len));
            self.recycle(kept);
        }
        true
    }

    /// The packet of this PSN, if it is kept whole.
    pub(in crate::qp) fn get(&self, psn: Psn) -> Option<&KeptPacket> {
        self.places.get(psn.advance_from(self.base) as usize)?.as_ref()
    }

    /// Returns an empty buffer for `len` bytes, if there is so much memory.
    fn buffer(&mut self, len: usize) -> Option<Vec<u8>> {
        let mut buffer = self.spare.pop().unwrap_or_default();
        if buffer.capacity() < len || len == 0 {
            self.reuse(buffer, len == 0);
            buffer = Vec::new();
        }
        let is_new = buffer.capacity() == 0;
        if is_new && !self.take_memory(OVERHEAD + len) {
            return None;
        }
        buffer.clear();
        buffer.reserve_exact(len);
        Some(buffer)
    }

    /// Takes back a buffer: it `is_spare` from now on, or its memory is given back.
    fn reuse(&mut self, buffer: Vec<u8>, is_spare: bool) {
        match buffer.capacity() {
            0 => {}
            _ if is_spare => self.spare.push(buffer),
            _ => self.give_back(size(&buffer)),
        }
    }

    /// Takes memory, if the bounds of the queue pair and of the process leave so much.
    fn take_memory(&mut self, bytes: usize) -> bool {
        let takes = self.bytes + bytes <= MOST_BYTES && self.memory.take(bytes);
        if takes {
            self.bytes += bytes;
        }
        takes
    }

    /// Takes the packet that is expected now, if it is here. [`recycle`](Self::recycle) takes it back.
    pub(in crate::qp) fn take(&mut self, expected: Psn) -> Option<KeptPacket> {
        self.advance(expected);
        if self.stored.clear(expected, 1) > 0 {
            self.bits.set(expected, false);
            self.packets -= 1;
            let (mut header, len) = self.middle?;
            header.bth.psn = expected;
            return Some(KeptPacket { header, payload: Payload::Stored(len) });
        }
        let kept = self.places.front_mut()?.take()?;
        self.packets -= self.bits.clear(expected, 1);
        Some(kept)
    }

    /// Number of packets in a row from `expected` on, all of one WRITE, whose bytes are stored already, and the length of each.
    pub(in crate::qp) fn stored_run(&self, expected: Psn) -> Option<(u32, u16)> {
        let (_, len) = self.middle?;
        Some((self.stored.run(expected), len)).filter(|(packets, _)| *packets > 0)
    }

    /// Takes back a packet that was carried out.
    pub(in crate::qp) fn recycle(&mut self, kept: KeptPacket) {
        let Payload::Bytes(bytes) = kept.payload else { return };
        if bytes.capacity() == 0 {
            self.give_back(OVERHEAD);
        }
        self.reuse(bytes, true);
    }

    /// Keeps memory for the next gap, now that there is none before `expected`. False if others may need it more.
    pub(in crate::qp) fn rest(&mut self, expected: Psn) -> bool {
        self.advance(expected);
        self.places.clear();
        self.upcoming.clear();
        while self.bytes > MOST_SPARE
            && let Some(buffer) = self.spare.pop()
        {
            self.give_back(size(&buffer));
        }
        self.rests_until = Some(expected.add(CALM));
        self.memory.is_plenty()
    }

    /// PSN up to which memory is kept for the next gap, while there is none.
    pub(in crate::qp) const fn rests_until(&self) -> Option<Psn> {
        self.rests_until
    }

    /// Forgets the packets before `expected`.
    #[inline]
    pub(in crate::qp) fn advance(&mut self, expected: Psn) {
        if expected != self.base {
            self.move_base(expected);
        }
    }

    // Apart: each packet behind a gap asks, and hardly any finds another base.
    #[inline(never)]
    fn move_base(&mut self, expected: Psn) {
        let by = expected.advance_from(self.base) as usize;
        self.upcoming.forget(expected);
        let first = core::mem::replace(&mut self.base, expected);
        for _ in 0..by.min(self.places.len()) {
            if let Some(Some(kept)) = self.places.pop_front() {
                self.recycle(kept);
            }
        }
        if self.packets > 0 {
            let passed = u32::try_from(by).unwrap_or(u32::MAX).min(u32::from(WINDOW) + 1);
            self.packets -= self.bits.clear(first, passed);
            self.stored.clear(first, passed);
        }
    }

    fn give_back(&mut self, bytes: usize) {
        self.bytes -= bytes;
        self.memory.give_back(bytes);
    }

    /// Whether nothing is kept.
    pub(in crate::qp) const fn is_empty(&self) -> bool {
        self.packets == 0
    }

    /// Bytes of the bitmap of what is kept.
    pub(in crate::qp) fn bitmap_len(&self) -> usize {
        if self.is_empty() { 0 } else { Bitmap::len_for(self.end.sub(1).advance_from(self.base) as usize) }
    }

    /// Writes that bitmap.
    pub(in crate::qp) fn emit(&self, bytes: &mut [u8]) {
        self.bits.emit(self.base.add(1), bytes);
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.memory.give_back(self.bytes);
    }
}

#[cfg(test)]
mod tests;
