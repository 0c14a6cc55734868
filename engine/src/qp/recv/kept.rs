//! Requests that came before one that is missing: kept until it comes, when the peer takes part in selective repeat.
//!
//! They are kept whole and carried out in order, so that nothing that a consumer can see depends on the order in which
//! they came. The bytes of one may be [stored](super::placement) already.
//!
//! Memory stays for the next gap: an allocator that gives it back to the system has the system clear it again, which takes longer
//! than to receive the packets.

use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec::Vec;

use urxe_wire::{Bitmap, Packet, Psn};

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
    packets: usize,
    /// Which places are taken.
    bits: PsnBits,
    /// PSNs of packets whose bytes are stored already.
    pub(super) stored: PsnBits,
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
            bits: PsnBits::default(),
            stored: PsnBits::default(),
            upcoming: Upcoming::default(),
            spare: Vec::new(),
            bytes: 0,
            rests_until: None,
        }
    }

    /// Keeps a packet that came while `expected` was missing. `store` is asked once, if it is kept: whether its bytes are stored now.
    pub(in crate::qp) fn keep(&mut self, expected: Psn, packet: &Packet<'_>, store: impl FnOnce() -> bool) -> Keeping {
        self.rests_until = None;
        self.advance(expected);
        let behind = packet.bth().psn.advance_from(expected) as usize;
        if behind > usize::from(WINDOW) {
            return Keeping::NoRoom;
        }
        if self.places.get(behind).is_some_and(Option::is_some) {
            return Keeping::Duplicate;
        }
        let wanted = behind + 1;
        let capacity = self.places.capacity();
        if capacity < wanted {
            // Places double, so that they are seldom moved.
            let more = wanted.max(2 * capacity).min(usize::from(WINDOW) + 1);
            if !self.take_memory((more - capacity) * PLACE) {
                return Keeping::NoRoom;
            }
            self.places.reserve_exact(more - self.places.len());
        }
        let len = u16::try_from(packet.payload.len()).ok().filter(|len| usize::from(*len) <= STORED.len());
        let payload = match len.filter(|_| store()) {
            Some(len) => Payload::Stored(len),
            None => {
                let Some(mut bytes) = self.buffer(packet.payload.len()) else { return Keeping::NoRoom };
                bytes.extend_from_slice(packet.payload);
                Payload::Bytes(bytes)
            }
        };
        self.packets += 1;
        self.bits.set(packet.bth().psn, true);
        if matches!(payload, Payload::Stored(_)) {
            self.stored.set(packet.bth().psn, true);
        }
        let kept = Some(KeptPacket { header: packet.header, payload });
        match self.places.get_mut(behind) {
            Some(place) => *place = kept,
            None => {
                if self.places.len() < behind {
                    self.places.resize_with(behind, || None);
                }
                self.places.push_back(kept);
            }
        }
        Keeping::Kept
    }

    /// The packet of this PSN, if it is kept.
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
        let kept = self.places.front_mut()?.take()?;
        self.packets -= 1;
        self.bits.set(expected, false);
        self.stored.set(expected, false);
        Some(kept)
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
    pub(in crate::qp) fn advance(&mut self, expected: Psn) {
        let by = expected.advance_from(self.base) as usize;
        if by == 0 {
            return;
        }
        self.upcoming.forget(expected);
        let first = core::mem::replace(&mut self.base, expected);
        for (_, nth) in (0..by.min(self.places.len())).zip(0..) {
            if let Some(Some(kept)) = self.places.pop_front() {
                self.packets -= 1;
                self.bits.set(first.add(nth), false);
                self.stored.set(first.add(nth), false);
                self.recycle(kept);
            }
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
        let last = self.places.iter().rposition(Option::is_some).unwrap_or(0);
        Bitmap::len_for(last)
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
