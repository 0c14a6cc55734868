//! A ring of runs of packets, from one sender to one receiver.
//!
//! Positions count bytes from the beginning of time; the offset is the position modulo the ring's size. A *record* is a
//! header and a run, and begins at a multiple of [`LINE`]. The first word of a header is its *stamp*: position and the
//! ring's secret key, which nothing that was there before can be. The sender writes the stamp last, so the receiver looks
//! at nothing else to see whether a record is there: a short packet moves one cache line from processor to processor.
//!
//! # Sleeping
//!
//! A receiver that is about to sleep *arms* the doorbell and then looks at the ring once more. A sender that has put a record
//! in looks afterwards whether the doorbell is armed, and rings if so. Between write and look both have a sequentially
//! consistent fence: in the order of the two fences the later one's side sees what the earlier one's side wrote. So either
//! the receiver sees the record, or the sender sees the armed doorbell, or both; a record never lies unseen by a receiver that
//! sleeps. `loom/` has this checked over all reorderings, and all interleavings of at most three preemptions (`make loom`).

#[cfg(not(loom))]
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
#[cfg(loom)]
use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

/// Bytes of records in a ring. A window of 256 packets of 4096 bytes does not quite fill it; larger ones leave the
/// processor's cache.
pub(super) const SIZE: usize = if cfg!(loom) { 256 } else { 2 << 20 };
/// Alignment of records.
const LINE: usize = 64;
/// Bytes of a record's header: stamp and descriptor.
pub(super) const HEADER: usize = 16;
/// The longest run.
pub(super) const MAX_RUN: usize = if cfg!(loom) { 32 } else { 65535 };
/// Every so many bytes a sender of little that finds the ring empty goes back to its start: little traffic stays in few
/// pages. Until the receiver has read so, there is no more room than this.
const HOME: usize = if cfg!(loom) { 128 } else { 64 << 10 };
/// A run that is little traffic.
const LITTLE: usize = 8 << 10;

const _: () = assert!(SIZE.is_multiple_of(LINE) && SIZE >= 2 * (MAX_RUN + HEADER + LINE));

/// The descriptor of bytes that are to be skipped, up to the end of the ring.
const SKIP: u64 = u64::MAX;
/// Flag of a descriptor: the packets have ICRCs.
const SEALED: u64 = 1 << 63;

/// Memory that both sides see.
pub(super) trait Storage {
    /// Position up to which the receiver has read.
    fn head(&self) -> &AtomicU64;
    /// 1 while the receiver wants to be woken.
    fn doorbell(&self) -> &AtomicU32;
    /// Stamp and descriptor of a record at `offset`, a multiple of [`LINE`] below [`SIZE`].
    fn header(&self, offset: usize) -> (&AtomicU64, &AtomicU64);
    /// Copies `bytes` to `offset`. The range is within the ring.
    fn write(&self, offset: usize, bytes: &[u8]);
    /// Copies to `bytes` from `offset`. The range is within the ring.
    fn read(&self, offset: usize, bytes: &mut [u8]);
}

/// Record of the ring: the length and kind of a run of packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RingRecord {
    pub(crate) len: usize,
    /// Length of each packet but the last.
    pub(crate) segment: usize,
    /// The packets have ICRCs.
    pub(crate) has_icrc: bool,
}

impl RingRecord {
    fn pack(self) -> u64 {
        (self.len as u64) | (self.segment as u64) << 32 | if self.has_icrc { SEALED } else { 0 }
    }

    /// `None`: nothing that [`RingRecord::pack`] makes.
    fn unpack(descriptor: u64) -> Option<Self> {
        let half = |word: u64| usize::try_from(word & 0xFFFF_FFFF).ok();
        let (len, segment) = (half(descriptor)?, half((descriptor & !SEALED) >> 32)?);
        let run = Self { len, segment, has_icrc: descriptor & SEALED != 0 };
        (len <= MAX_RUN && (1..=len).contains(&segment)).then_some(run)
    }
}

/// Bytes that a run takes.
fn record_len(run: usize) -> usize {
    (HEADER + run).next_multiple_of(LINE)
}

fn offset(position: u64) -> usize {
    usize::try_from(position % SIZE as u64).unwrap_or(0)
}

/// The sender's side.
#[derive(Debug)]
pub(super) struct Producer<S> {
    storage: S,
    key: u64,
    tail: u64,
    /// The receiver has read so far at least.
    head: u64,
}

impl<S: Storage> Producer<S> {
    /// Producer of a ring that nobody has written to. Keys are odd: then no stamp is 0, which is what a new ring is full of.
    pub(super) const fn new(storage: S, key: u64) -> Self {
        Self { storage, key, tail: 0, head: 0 }
    }

    /// The receiver sleeps, for all that is known.
    pub(super) fn begin(&self) {
        self.storage.doorbell().store(1, Ordering::Relaxed);
    }

    /// How far the receiver has read. A receiver that says what cannot be is not believed.
    fn look(&mut self) -> u64 {
        let head = self.storage.head().load(Ordering::Acquire);
        if (self.head..=self.tail).contains(&head) {
            self.head = head;
        }
        self.head
    }

    /// Whether so many bytes are free.
    pub(super) fn has_room(&mut self, bytes: usize) -> bool {
        let free = |head, tail| SIZE as u64 - (tail - head) >= bytes as u64;
        free(self.head, self.tail) || {
            let head = self.look();
            free(head, self.tail)
        }
    }

    /// Position that the receiver has yet to reach, if it has: `since`, or the end of what has been put in.
    pub(super) fn unread(&mut self, since: Option<u64>) -> Option<u64> {
        let end = since.unwrap_or(self.tail);
        (self.look() < end).then_some(end)
    }

    /// Position of the receiver when it was last looked at.
    pub(super) const fn seen(&self) -> u64 {
        self.head
    }

    /// Puts a run in, which comes alone or among others. False if there is no room.
    pub(super) fn push(&mut self, packets: &[u8], run: RingRecord, alone: bool) -> bool {
        debug_assert!(packets.len() == run.len && run.len <= MAX_RUN);
        let need = record_len(packets.len());
        let at = offset(self.tail);
        let go_home = alone && need <= LITTLE && at % HOME + need >= HOME && self.look() == self.tail;
        let skip = if at + need > SIZE || go_home { SIZE - at } else { 0 };
        if !self.has_room(skip + need) {
            return false;
        }
        if skip > 0 {
            self.publish(SKIP, skip);
        }
        self.storage.write(offset(self.tail) + HEADER, packets);
        self.publish(run.pack(), need);
        true
    }

    fn publish(&mut self, descriptor: u64, len: usize) {
        let (stamp, place) = self.storage.header(offset(self.tail));
        place.store(descriptor, Ordering::Relaxed);
        stamp.store(self.tail ^ self.key, Ordering::Release);
        self.tail += len as u64;
    }

    /// Whether the receiver has to be woken, after [`Producer::push`]. Says so once.
    //= spec/hosts.md#net-022
    //# A receiver that sleeps MUST be woken by what is put into its ring.
    pub(super) fn must_ring(&self) -> bool {
        fence(Ordering::SeqCst);
        let doorbell = self.storage.doorbell();
        doorbell.load(Ordering::Relaxed) != 0 && doorbell.swap(0, Ordering::Relaxed) != 0
    }
}

/// The receiver's side.
#[derive(Debug)]
pub(super) struct Consumer<S> {
    storage: S,
    key: u64,
    head: u64,
}

/// Error: the ring has content that no sender would have put there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Damaged;

impl<S: Storage> Consumer<S> {
    /// Consumer of a ring that nobody has read from.
    pub(super) const fn new(storage: S, key: u64) -> Self {
        Self { storage, key, head: 0 }
    }

    /// The memory it is in.
    pub(super) const fn storage(&self) -> &S {
        &self.storage
    }

    /// Whether nothing is there.
    pub(super) fn is_empty(&self) -> bool {
        let (stamp, _) = self.storage.header(offset(self.head));
        stamp.load(Ordering::Acquire) != self.head ^ self.key
    }

    /// Takes the oldest run out, into `buffer`. `Ok(None)`: nothing there.
    //= spec/hosts.md#net-021
    //# What another process writes into shared memory MUST do no more than packets can.
    pub(super) fn pop(&mut self, buffer: &mut [u8]) -> Result<Option<RingRecord>, Damaged> {
        // Nobody skips twice in a row.
        for _ in 0..2 {
            let at = offset(self.head);
            let (stamp, place) = self.storage.header(at);
            if stamp.load(Ordering::Acquire) != self.head ^ self.key {
                return Ok(None);
            }
            let descriptor = place.load(Ordering::Relaxed);
            if descriptor == SKIP {
                self.release(SIZE - at);
                continue;
            }
            let run = RingRecord::unpack(descriptor).ok_or(Damaged)?;
            let room = buffer.get_mut(..run.len).ok_or(Damaged)?;
            if at + record_len(run.len) > SIZE {
                return Err(Damaged);
            }
            self.storage.read(at + HEADER, room);
            self.release(record_len(run.len));
            return Ok(Some(run));
        }
        Err(Damaged)
    }

    /// Frees the record for the producer: it has been copied.
    fn release(&mut self, len: usize) {
        self.head += len as u64;
        self.storage.head().store(self.head, Ordering::Release);
    }

    /// Whether the sender will ring for its next run.
    pub(super) fn is_armed(&self) -> bool {
        self.storage.doorbell().load(Ordering::Relaxed) != 0
    }

    /// Wants to be woken from now on. Whoever sleeps then looks once more, behind a [`barrier`].
    pub(super) fn arm(&self) {
        self.storage.doorbell().store(1, Ordering::Relaxed);
    }
}

/// Barrier between arming doorbells and the last look at their rings.
pub(super) fn barrier() {
    fence(Ordering::SeqCst);
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::segment::Segment;
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;
    use std::os::fd::AsFd;

    const KEY: u64 = 0x1234_5678_9ABC_DEF1;

    /// Both sides, each with its own mapping, and a third for whoever wants to do harm.
    fn sides() -> (Producer<Segment>, Consumer<Segment>, Segment) {
        let (segment, memory) = Segment::create().unwrap();
        let open = || Segment::open(memory.as_fd()).unwrap();
        (Producer::new(segment, KEY), Consumer::new(open(), KEY), open())
    }

    fn run(len: usize) -> RingRecord {
        RingRecord { len, segment: len, has_icrc: false }
    }

    fn bytes(number: usize, len: usize) -> Vec<u8> {
        (0..len).map(|at| (number.wrapping_mul(31) + at).to_le_bytes()[0]).collect()
    }

    proptest! {
        /// All that is put in comes out, in order, however the two take turns.
        #[test]
        fn a_queue(steps in proptest::collection::vec((any::<bool>(), 1_usize..=MAX_RUN, any::<bool>()), 1..200)) {
            let (mut producer, mut consumer, _) = sides();
            let (mut model, mut buffer) = (VecDeque::new(), vec![0; MAX_RUN]);
            for (number, (puts, len, alone)) in steps.into_iter().enumerate() {
                if puts {
                    let len = if alone { len % 2000 + 1 } else { len };
                    let sent = bytes(number, len);
                    let said = RingRecord { len, segment: len.div_ceil(3), has_icrc: alone };
                    let room = producer.has_room(2 * (MAX_RUN + HEADER + LINE));
                    let put = producer.push(&sent, said, alone);
                    prop_assert!(put || !room);
                    if put {
                        model.push_back((sent, said));
                    }
                } else {
                    let taken = consumer.pop(&mut buffer).unwrap();
                    prop_assert_eq!(taken, model.front().map(|(_, said)| *said));
                    if let Some((sent, said)) = model.pop_front() {
                        prop_assert_eq!(&buffer[..said.len], &sent[..]);
                    }
                }
                prop_assert_eq!(consumer.is_empty(), model.is_empty());
            }
        }

        /// Another process writes what it likes into a header: a run of a possible length comes out, or an error.
        #[test]
        fn any_descriptor_is_taken_or_refused(descriptor: u64, small in 0_u64..=70_000, segment in 0_u64..=70_000) {
            for descriptor in [descriptor, small | segment << 32] {
                let (mut producer, mut consumer, other) = sides();
                producer.push(&bytes(0, 100), run(100), true);
                other.header(0).1.store(descriptor, Ordering::Relaxed);
                let mut buffer = vec![0; 1 << 16];
                if let Ok(Some(run)) = consumer.pop(&mut buffer) {
                    prop_assert!(run.len <= MAX_RUN && run.segment >= 1 && run.segment <= run.len);
                }
            }
        }
    }

    //= spec/hosts.md#net-021
    //= type=test
    //# What another process writes into shared memory MUST do no more than packets can.
    #[test]
    fn a_record_that_would_end_behind_the_ring_is_refused() {
        let (mut producer, mut consumer, other) = sides();
        let mut buffer = vec![0; 1 << 16];
        while SIZE - offset(producer.tail) > 2 * LINE {
            producer.push(&bytes(0, 40), run(40), false);
            consumer.pop(&mut buffer).unwrap().unwrap();
        }
        let at = offset(producer.tail);
        producer.push(&bytes(0, 40), run(40), false);
        other.header(at).1.store(run(MAX_RUN).pack(), Ordering::Relaxed);
        assert_eq!(consumer.pop(&mut buffer), Err(Damaged));
    }

    #[test]
    fn skipping_for_ever_is_refused() {
        let (mut producer, mut consumer, other) = sides();
        producer.push(&bytes(0, 40), run(40), true);
        other.header(0).1.store(SKIP, Ordering::Relaxed);
        // The next lap begins with another, and so on.
        other.header(0).0.store(KEY, Ordering::Release);
        let mut buffer = vec![0; 1 << 16];
        assert_eq!(consumer.pop(&mut buffer), Ok(None));
        other.header(0).0.store(SIZE as u64 ^ KEY, Ordering::Release);
        assert_eq!(consumer.pop(&mut buffer), Ok(None), "it has skipped once more");
    }

    #[test]
    fn a_receiver_that_lies_about_its_position_gives_no_room() {
        let (mut producer, _, other) = sides();
        while producer.push(&bytes(0, 60_000), run(60_000), false) {}
        for lie in [u64::MAX, producer.tail + 1, u64::MAX / 2] {
            other.head().store(lie, Ordering::Release);
            assert!(!producer.push(&bytes(0, 60_000), run(60_000), false));
        }
        other.head().store(producer.tail, Ordering::Release);
        assert!(producer.push(&bytes(0, 60_000), run(60_000), false));
    }

    #[test]
    fn payload_does_not_pass_for_a_record() {
        let (mut producer, mut consumer, _) = sides();
        let mut buffer = vec![0; 1 << 16];
        // Full of stamps as one would write them who does not know the key.
        let stamps: Vec<u8> = (0..SIZE as u64 / 8).flat_map(|word| (word * 8).to_le_bytes()).collect();
        for lap in 0..200 {
            let from = lap * 40_000 % (SIZE - 60_000);
            assert!(producer.push(&stamps[from..from + 50_000], run(50_000), false));
            assert!(consumer.pop(&mut buffer).unwrap().is_some());
            assert_eq!(consumer.pop(&mut buffer), Ok(None));
        }
    }

    #[test]
    fn little_traffic_stays_in_few_pages() {
        let (mut producer, mut consumer, _) = sides();
        let mut buffer = vec![0; 1 << 16];
        for number in 0..100_000 {
            assert!(producer.push(&bytes(number, 40), run(40), true));
            consumer.pop(&mut buffer).unwrap().unwrap();
            assert!(offset(producer.tail) <= HOME);
        }
    }

    #[test]
    fn a_doorbell_is_rung_once() {
        let (mut producer, mut consumer, _) = sides();
        producer.begin();
        let mut buffer = vec![0; 1 << 16];
        for _ in 0..3 {
            assert!(consumer.is_armed());
            producer.push(&bytes(0, 40), run(40), true);
            assert!(producer.must_ring());
            producer.push(&bytes(0, 40), run(40), true);
            assert!(!producer.must_ring() && !consumer.is_armed());
            while consumer.pop(&mut buffer).unwrap().is_some() {}
            consumer.arm();
        }
    }
}
