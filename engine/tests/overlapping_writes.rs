//! WRITEs to places that overlap: in whatever order their packets come, memory is as if they had come one after the other.

use std::ops::Range;

use urxe_engine::attr::QpAttr;
use urxe_engine::rng::Rng;
use urxe_engine::{Access, QpState, WcStatus};
use urxe_sim::memory::DEFAULT_PD;
use urxe_sim::single_qp::{MTU, SingleQp};
use urxe_wire::{Bth, Ext, Header, ImmDt, Opcode, Operation as O, Psn, RKey, Reth, SelectiveOffer};

const SEEDS: u64 = 300;
const PEER: &str = "10.0.0.2";
/// Bytes that all WRITEs go to.
const LEN: u64 = 16 * MTU as u64;

/// A WRITE of bytes that all are `value`.
struct Write {
    place: Range<usize>,
    value: u8,
    has_immediate: bool,
}

struct Packet {
    psn: u32,
    operation: O,
    ext: Ext,
    payload: Vec<u8>,
}

/// A queue pair whose peer has selective repeat, and expects this PSN.
fn agreed(expected: u32) -> SingleQp {
    let mut qp = SingleQp::reset(|setup, _| setup.selective_paths = 1);
    qp.go_to(QpState::Rts, &QpAttr { rq_psn: Psn::new(expected), ..SingleQp::attr() });
    let offer = Ext::SelectiveOffer(SelectiveOffer { answer: true, window: 64 });
    let header = Header::new(Bth::new(Opcode::SELECTIVE_OFFER, qp.qpn, Psn::new(0)), offer);
    qp.gets_from(PEER.parse().unwrap(), &header, &[]);
    qp
}

/// Makes a WRITE to a random place; half of them begin where a packet of another may.
fn write(rng: &mut Rng, value: u8) -> Write {
    let len = match rng.below(8) {
        0 => 0,
        1 => rng.below(MTU as u64),
        2 => MTU as u64,
        _ => rng.below(LEN * 3 / 4),
    };
    let mut start = rng.below(LEN - len + 1);
    if rng.below(2) == 0 {
        start -= start % MTU as u64;
    }
    let start = usize::try_from(start).unwrap();
    Write { place: start..start + usize::try_from(len).unwrap(), value, has_immediate: rng.below(3) == 0 }
}

/// Makes the packets of a WRITE, the first at this PSN.
fn packets(write: &Write, mut psn: u32, va: u64, r_key: RKey) -> Vec<Packet> {
    let bytes = vec![write.value; write.place.len()];
    let pieces: Vec<&[u8]> = if bytes.is_empty() { vec![&[]] } else { bytes.chunks(MTU).collect() };
    let reth = Reth { va: va + write.place.start as u64, r_key, dma_len: u32::try_from(bytes.len()).unwrap() };
    let (immediate, last) = (ImmDt([write.value; 4]), pieces.len() - 1);
    let each = |(nth, piece): (usize, &&[u8])| {
        let (operation, ext) = match (nth == 0, nth == last, write.has_immediate) {
            (true, true, false) => (O::WriteOnly, Ext::Reth(reth)),
            (true, true, true) => (O::WriteOnlyWithImmediate, Ext::RethImmDt(reth, immediate)),
            (true, false, _) => (O::WriteFirst, Ext::Reth(reth)),
            (false, false, _) => (O::WriteMiddle, Ext::None),
            (false, true, false) => (O::WriteLast, Ext::None),
            (false, true, true) => (O::WriteLastWithImmediate, Ext::ImmDt(immediate)),
        };
        let packet = Packet { psn, operation, ext, payload: piece.to_vec() };
        psn = (psn + 1) & 0xFF_FFFF;
        packet
    };
    pieces.iter().enumerate().map(each).collect()
}

/// Compares memory when the first `done` WRITEs are complete: a byte is of the last of them that goes there, or of a later one that
/// does.
fn is_as_in_order(memory: &[u8], before: &[u8], writes: &[Write], done: usize) -> Result<(), String> {
    for (at, byte) in memory.iter().enumerate() {
        let goes_there = |write: &&Write| write.place.contains(&at);
        let due = writes[..done].iter().rfind(goes_there).map_or(before[at], |write| write.value);
        if *byte != due && !writes[done..].iter().filter(goes_there).any(|write| write.value == *byte) {
            return Err(format!("byte {at} is {byte}, not {due}, after {done} WRITEs"));
        }
    }
    Ok(())
}

//= spec/selective.md#sel-011
//= type=test
//# Bytes of a WRITE MAY be stored before those in front of them, if they are of neither its first nor its last packet,
//# all requests from the one under way to it are WRITEs whose memory was checked, and nothing in front of them is to be
//# stored at the same place.
#[test]
fn overlapping_writes_in_any_order_of_packets() {
    let mut early = 0;
    for seed in 0..SEEDS {
        let rng = &mut Rng::new(seed);
        let mut psn = [1000, 0xFF_FFE0][usize::from(rng.below(2) == 0)];
        let mut qp = agreed(psn);
        let (va, own) = (qp.remote.addr, RKey(qp.remote.key.0));
        let memory = qp.node.memory_mut();
        // The memory of both keys is the same.
        let other = memory.register(DEFAULT_PD, Access::LOCAL_WRITE | Access::REMOTE_WRITE, va, LEN);
        let read = |qp: &SingleQp| qp.node.memory().peek(va, usize::try_from(LEN).unwrap());
        let before = read(&qp);
        let writes: Vec<_> = (0..12).map(|nth| write(rng, 0xE0 + nth)).collect();
        let mut coming = Vec::new();
        for write in &writes {
            let r_key = if rng.below(8) == 0 { RKey(other.0) } else { own };
            let new = packets(write, psn, va, r_key);
            psn = (psn + u32::try_from(new.len()).unwrap()) & 0xFF_FFFF;
            coming.extend(new);
        }
        let immediates: Vec<_> = (0..writes.len()).filter(|nth| writes[*nth].has_immediate).collect();
        immediates.iter().for_each(|&nth| qp.recv(nth as u64, 64));
        let mut reached = 0;
        // How far packets overtake.
        let far = [2, 8, 32, 128][usize::try_from(rng.below(4)).unwrap()];
        while !coming.is_empty() {
            let at = usize::try_from(rng.below(far.min(coming.len() as u64))).unwrap();
            let Packet { psn, operation, ext, payload } = &coming[at];
            let stored = read(&qp);
            qp.gets(*operation, *psn, *ext, payload);
            if rng.below(8) != 0 {
                early += usize::from(at > 0 && stored != read(&qp));
                coming.remove(at);
            }
            for (wr_id, status) in qp.completed() {
                assert_eq!((wr_id, status), (immediates[reached] as u64, WcStatus::Success), "seed {seed}");
                reached += 1;
            }
            let done = reached.checked_sub(1).map_or(0, |last| immediates[last] + 1);
            is_as_in_order(&read(&qp), &before, &writes, done).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        }
        assert_eq!(reached, immediates.len(), "seed {seed}");
        is_as_in_order(&read(&qp), &before, &writes, writes.len())
            .unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    }
    assert!(early > 1000, "{early} packets were stored before their turn");
}

/// A packet that waits for a kept one alone, which could be stored by now, has that be stored, and is stored.
#[test]
fn a_kept_packet_that_may_be_stored_blocks_nothing() {
    for start in [1000, 0xFF_FFFA] {
        let mut qp = agreed(start);
        let (va, r_key) = (qp.remote.addr, RKey(qp.remote.key.0));
        let mut coming = Vec::new();
        for (value, first) in [(1, 0), (2, 5), (3, 10)] {
            let write = Write { place: 0..5 * MTU, value, has_immediate: false };
            coming.extend(packets(&write, (start + first) & 0xFF_FFFF, va, r_key));
        }
        let before = qp.node.memory().peek(va, 1)[0];
        let get = |qp: &mut SingleQp, nth: usize| {
            let Packet { psn, operation, ext, payload } = &coming[nth];
            qp.gets(*operation, *psn, *ext, payload);
            // The first byte of each packet's place.
            (0..5).map(|nth| qp.node.memory().peek(va + nth * MTU as u64, 1)[0]).collect::<Vec<_>>()
        };
        // The second packet of the first WRITE and the fourth are missing: so long those of the second WRITE wait.
        [0, 2, 4, 5, 6, 7, 8, 9].into_iter().for_each(|nth| _ = get(&mut qp, nth));
        assert_eq!(get(&mut qp, 10), [1, before, 2, before, before]);
        assert_eq!(get(&mut qp, 1), [1, 1, 2, before, before], "the second WRITE's waits for its turn");
        assert_eq!(get(&mut qp, 11), [1, 3, 2, before, before], "and is in nobody's way");
        assert_eq!(get(&mut qp, 13), [1, 3, 2, before, before], "the first WRITE's is missing");
        assert_eq!(get(&mut qp, 3), [3, 3, 2, 2, 2]);
        assert_eq!(get(&mut qp, 12), [3, 3, 3, 3, 2]);
        assert_eq!(get(&mut qp, 14), [3; 5]);
    }
}
