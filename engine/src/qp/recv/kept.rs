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
        // Places double, so that they are seldom moved.
        let capacity = match self.places.capacity() {
            enough if enough >= wanted => enough,
            few => wanted.max(2 * few).min(usize::from(WINDOW) + 1),
        };
        if !self.take_memory((capacity - self.places.capacity()) * PLACE) {
            return Keeping::NoRoom;
        }
        self.places.reserve_exact(capacity - self.places.len());
        let len = u16::try_from(packet.payload.len()).ok().filter(|len| usize::from(*len) <= STORED.len());
        let payload = match len.filter(|_| store()) {
            Some(len) => Payload::Stored(len),
            None => {
                let Some(mut bytes) = self.buffer(packet.payload.len()) else { return Keeping::NoRoom };
                bytes.extend_from_slice(packet.payload);
                Payload::Bytes(bytes)
            }
        };
        if self.places.len() < wanted {
            self.places.resize_with(wanted, || None);
        }
        if let Some(place) = self.places.get_mut(behind) {
            *place = Some(KeptPacket { header: packet.header, payload });
            self.packets += 1;
            self.bits.set(packet.bth().psn, true);
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
        let first = core::mem::replace(&mut self.base, expected);
        for (_, nth) in (0..by.min(self.places.len())).zip(0..) {
            if let Some(Some(kept)) = self.places.pop_front() {
                self.packets -= 1;
                self.bits.set(first.add(nth), false);
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
mod tests {
    use std::vec;
    use std::vec::Vec;

    use urxe_wire::{Bth, Ext, Header, Opcode, Operation, Qpn, Transport};

    use super::*;

    fn keep(kept: &mut Kept, expected: u32, psn: u32, len: usize) -> Keeping {
        let opcode = Opcode::new(Transport::Rc, Operation::SendMiddle).unwrap();
        let header = Header::new(Bth::new(opcode, Qpn::new(7), Psn::new(psn)), Ext::None);
        let payload = vec![u8::try_from(psn & 0xFF).unwrap(); len];
        kept.keep(Psn::new(expected), &Packet { header, payload: &payload }, || false)
    }

    fn shown(kept: &Kept, missing: u32) -> Vec<(u32, u32)> {
        let mut bytes = vec![0xA5; kept.bitmap_len()];
        kept.emit(&mut bytes);
        let bitmap = Bitmap::new(&bytes).unwrap();
        bitmap.ranges(Psn::new(missing)).map(|(first, last)| (first.get(), last.get())).collect()
    }

    #[test]
    fn packets_come_out_in_order() {
        let memory = Arc::new(KeptMemory::default());
        let mut kept = Kept::new(&memory);
        for psn in [0, 2, 1] {
            assert_eq!(keep(&mut kept, 0xFF_FFFF, psn, 64), Keeping::Kept);
            assert_eq!(keep(&mut kept, 0xFF_FFFF, psn, 64), Keeping::Duplicate);
        }
        assert_eq!(keep(&mut kept, 0xFF_FFFF, 40, 64), Keeping::Kept);
        assert_eq!(shown(&kept, 0xFF_FFFF), [(0, 2), (40, 40)]);
        assert!(kept.take(Psn::new(0xFF_FFFF)).is_none());
        for psn in 0..3 {
            let packet = kept.take(Psn::new(psn)).unwrap();
            assert_eq!(packet.packet().bth().psn, Psn::new(psn));
            assert_eq!(packet.packet().payload, [u8::try_from(psn).unwrap(); 64]);
        }
        assert!(kept.take(Psn::new(3)).is_none() && !kept.is_empty());
        assert_eq!(shown(&kept, 3), [(40, 40)]);
        // A READ takes many PSNs at once: what lies within is no request.
        assert!(kept.take(Psn::new(50)).is_none() && kept.is_empty());
        drop(kept);
        assert_eq!(memory.free(), KeptMemory::MOST);
    }

    //= spec/selective.md#sel-006
    //= type=test
    //# What is kept MUST be bounded, for each queue pair and for the process.
    #[test]
    fn kept_packets_are_bounded() {
        let memory = Arc::new(KeptMemory::default());
        let mut kept = Kept::new(&memory);
        assert_eq!(keep(&mut kept, 0, 1024, 4096), Keeping::Kept);
        assert_eq!(keep(&mut kept, 0, 1025, 4096), Keeping::NoRoom);
        assert_eq!(keep(&mut kept, 0, 0x80_0000 - 1, 4096), Keeping::NoRoom);
        let room = (1..1024).filter(|psn| keep(&mut kept, 0, *psn, 4096) == Keeping::Kept).count();
        assert!((900..1023).contains(&room), "{room} packets of 4096 bytes in 4 MiB");
        drop(kept);
        assert_eq!(memory.free(), KeptMemory::MOST);

        let few = Arc::new(KeptMemory::of(10_000));
        let [mut one, mut other] = [Kept::new(&few), Kept::new(&few)];
        assert_eq!(keep(&mut one, 0, 1, 4096), Keeping::Kept);
        assert_eq!(keep(&mut other, 0, 1, 4096), Keeping::Kept);
        assert_eq!(keep(&mut other, 0, 2, 4096), Keeping::NoRoom);
        drop(one);
        assert_eq!(keep(&mut other, 0, 2, 4096), Keeping::Kept);
    }

    /// Keeps 20 packets of 1000 bytes behind a gap, and carries them out. Returns what is free meanwhile.
    fn fill(kept: &mut Kept, memory: &KeptMemory, gap: u32) -> usize {
        for psn in gap + 1..=gap + 20 {
            assert_eq!(keep(kept, gap, psn, 1000), Keeping::Kept);
        }
        let free = memory.free();
        for psn in gap + 1..=gap + 20 {
            let packet = kept.take(Psn::new(psn)).unwrap();
            assert_eq!(packet.packet().payload, [u8::try_from(psn & 0xFF).unwrap(); 1000]);
            kept.recycle(packet);
        }
        assert!(kept.is_empty());
        free
    }

    #[test]
    fn memory_stays_for_the_next_gap() {
        let memory = Arc::new(KeptMemory::default());
        let mut kept = Kept::new(&memory);
        let free = fill(&mut kept, &memory, 0);
        assert!(kept.rest(Psn::new(21)) && memory.free() == free);
        assert_eq!(kept.rests_until(), Some(Psn::new(21 + CALM)));
        assert_eq!(shown(&kept, 21), []);
        assert_eq!(fill(&mut kept, &memory, 30), free, "the same buffers");
        assert_eq!(kept.rests_until(), None);
        // Longer packets and empty ones need others.
        assert_eq!((keep(&mut kept, 60, 61, 1001), keep(&mut kept, 60, 62, 0)), (Keeping::Kept, Keeping::Kept));
        assert_eq!(memory.free(), free - 1 - OVERHEAD);
        for psn in 61..63 {
            let packet = kept.take(Psn::new(psn)).unwrap();
            kept.recycle(packet);
        }
        assert_eq!(memory.free(), free - 1);
        drop(kept);
        assert_eq!(memory.free(), KeptMemory::MOST);
    }

    #[test]
    fn memory_that_others_may_need_does_not_stay() {
        let memory = Arc::new(KeptMemory::of(40_000));
        let mut kept = Kept::new(&memory);
        fill(&mut kept, &memory, 0);
        assert!(!kept.rest(Psn::new(21)), "more than half of it is taken");
        drop(kept);
        let memory = Arc::new(KeptMemory::default());
        let mut kept = Kept::new(&memory);
        (1..900).for_each(|psn| assert_eq!(keep(&mut kept, 0, psn, 4096), Keeping::Kept));
        assert!(kept.rest(Psn::new(1000)) && KeptMemory::MOST - memory.free() <= MOST_SPARE);
        assert!(KeptMemory::MOST - memory.free() > MOST_SPARE / 2);
    }

    /// Bytes that are stored already take no memory, and leave the length behind.
    #[test]
    fn stored_bytes_take_no_memory() {
        let memory = Arc::new(KeptMemory::default());
        let mut kept = Kept::new(&memory);
        assert_eq!(keep(&mut kept, 0, 1, 64), Keeping::Kept);
        let free = memory.free();
        let opcode = Opcode::new(Transport::Rc, Operation::WriteMiddle).unwrap();
        let header = Header::new(Bth::new(opcode, Qpn::new(7), Psn::new(2)), Ext::None);
        let packet = Packet { header, payload: &[7; 1024] };
        let mut asked = 0;
        for fate in [Keeping::Kept, Keeping::Duplicate] {
            let store = || {
                asked += 1;
                true
            };
            assert_eq!(kept.keep(Psn::new(0), &packet, store), fate);
        }
        assert_eq!(asked, 1, "a duplicate is not stored");
        assert!(free - memory.free() < 1024, "places alone");
        let taken = kept.take(Psn::new(2)).unwrap();
        assert!(taken.is_stored() && taken.packet().payload.len() == 1024);
        kept.recycle(taken);
        drop(kept);
        assert_eq!(memory.free(), KeptMemory::MOST);
    }

    /// A short packet far behind the gap takes places for all between.
    #[test]
    fn places_count() {
        let few = Arc::new(KeptMemory::of(10_000));
        let mut kept = Kept::new(&few);
        assert_eq!(keep(&mut kept, 0, 1024, 1), Keeping::NoRoom);
        assert_eq!(few.free(), 10_000);
        let memory = Arc::new(KeptMemory::default());
        let mut kept = Kept::new(&memory);
        for psn in [1, 9, 1024] {
            assert_eq!(keep(&mut kept, 0, psn, 1), Keeping::Kept);
            let places = kept.places.capacity() * PLACE;
            assert_eq!(memory.free(), KeptMemory::MOST - places - kept.packets * (1 + OVERHEAD), "{psn}");
        }
        drop(kept);
        assert_eq!(memory.free(), KeptMemory::MOST);
    }
}
