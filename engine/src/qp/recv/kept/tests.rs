//! Tests of packets behind a gap that are kept, and of the memory that they take.

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
    assert_eq!(free, memory.free());
    assert_eq!((kept.stored_run(Psn::new(1)), kept.stored_run(Psn::new(2))), (None, Some((1, 1024))));
    assert_eq!(shown(&kept, 0), [(1, 2)]);
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
        assert_eq!(memory.free(), KeptMemory::MOST - places - kept.packets as usize * (1 + OVERHEAD), "{psn}");
    }
    drop(kept);
    assert_eq!(memory.free(), KeptMemory::MOST);
}
