//! Requests that came before one that is missing: kept until it comes, when the peer takes part in selective repeat.
//!
//! They are kept whole and carried out in order, so that nothing that a consumer can see depends on the order in which
//! they came.

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::sync::Arc;

use urxe_wire::{Bitmap, Header, Packet, Psn};

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

/// A request that is kept.
#[derive(Debug)]
pub(in crate::qp) struct KeptPacket {
    header: Header,
    payload: Box<[u8]>,
}

impl KeptPacket {
    /// The packet as it came.
    pub(in crate::qp) fn packet(&self) -> Packet<'_> {
        Packet { header: self.header, payload: &self.payload }
    }

    fn size(&self) -> usize {
        OVERHEAD + self.payload.len()
    }
}

/// Fate of a packet behind a gap.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::qp) enum Keeping {
    Kept,
    Duplicate,
    NoRoom,
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
    /// Bytes taken from `memory`, for packets and places.
    bytes: usize,
}

impl Kept {
    pub(in crate::qp) fn new(memory: &Arc<KeptMemory>) -> Self {
        Self { memory: Arc::clone(memory), base: Psn::default(), places: VecDeque::new(), packets: 0, bytes: 0 }
    }

    /// Keeps a packet that came while `expected` was missing.
    pub(in crate::qp) fn keep(&mut self, expected: Psn, packet: &Packet<'_>) -> Keeping {
        self.advance(expected);
        let behind = packet.bth().psn.advance_from(expected) as usize;
        if behind > usize::from(WINDOW) {
            return Keeping::NoRoom;
        }
        if self.places.get(behind).is_some_and(Option::is_some) {
            return Keeping::Duplicate;
        }
        let size = OVERHEAD + packet.payload.len();
        let wanted = behind + 1;
        // Places double, so that they are seldom moved.
        let capacity = match self.places.capacity() {
            enough if enough >= wanted => enough,
            few => wanted.max(2 * few).min(usize::from(WINDOW) + 1),
        };
        if !self.take_memory(size + (capacity - self.places.capacity()) * PLACE) {
            return Keeping::NoRoom;
        }
        if self.places.len() < wanted {
            self.places.reserve_exact(capacity - self.places.len());
            self.places.resize_with(wanted, || None);
        }
        if let Some(place) = self.places.get_mut(behind) {
            *place = Some(KeptPacket { header: packet.header, payload: packet.payload.into() });
            self.packets += 1;
        }
        Keeping::Kept
    }

    /// Takes memory, if the bounds of the queue pair and of the process leave so much.
    fn take_memory(&mut self, bytes: usize) -> bool {
        let takes = self.bytes + bytes <= MOST_BYTES && self.memory.take(bytes);
        if takes {
            self.bytes += bytes;
        }
        takes
    }

    /// Takes the packet that is expected now, if it is here.
    pub(in crate::qp) fn take(&mut self, expected: Psn) -> Option<KeptPacket> {
        self.advance(expected);
        let kept = self.places.front_mut()?.take()?;
        self.release(kept.size());
        Some(kept)
    }

    /// Forgets the packets before `expected`.
    fn advance(&mut self, expected: Psn) {
        let by = expected.advance_from(self.base) as usize;
        self.base = expected;
        for _ in 0..by.min(self.places.len()) {
            if let Some(Some(kept)) = self.places.pop_front() {
                self.release(kept.size());
            }
        }
    }

    fn release(&mut self, size: usize) {
        self.packets -= 1;
        self.bytes -= size;
        self.memory.give_back(size);
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
        bytes.fill(0);
        for (behind, _) in self.places.iter().enumerate().filter(|(_, place)| place.is_some()) {
            Bitmap::set(bytes, behind);
        }
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

    use urxe_wire::{Bth, Ext, Opcode, Operation, Qpn, Transport};

    use super::*;

    fn keep(kept: &mut Kept, expected: u32, psn: u32, len: usize) -> Keeping {
        let opcode = Opcode::new(Transport::Rc, Operation::SendMiddle).unwrap();
        let header = Header::new(Bth::new(opcode, Qpn::new(7), Psn::new(psn)), Ext::None);
        kept.keep(Psn::new(expected), &Packet { header, payload: &vec![u8::try_from(psn & 0xFF).unwrap(); len] })
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
    fn what_is_kept_is_bounded() {
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
