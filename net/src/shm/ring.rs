//! A ring of runs of packets, from one sender to one receiver.
//!
//! Positions count bytes from the beginning of time; the offset is the position modulo the ring's size. A *record* is a
//! header and a run, and begins at a multiple of [`LINE`]. The first word of a header is its *stamp*: position and the
//! ring's secret key, which nothing that was there before can be. The sender writes the stamp last, so the receiver looks
//! at nothing else to see whether a record is there: a short packet moves one cache line from processor to processor.
//!
//! # Sleeping
//!
//! A receiver that is about to sleep *arms* the bell and then looks at the ring once more. A sender that has put a record
//! in looks afterwards whether the bell is armed, and rings if so. Between write and look both have a sequentially
//! consistent fence: in the order of the two fences the later one's side sees what the earlier one's side wrote. So either
//! the receiver sees the record, or the sender sees the armed bell, or both; a record never lies unseen by a receiver that
//! sleeps. `tests` has this checked over all interleavings and reorderings, with loom.

use super::segment::sync::{AtomicU32, AtomicU64, Ordering, fence};

/// Bytes of records in a ring. A window of 256 packets of 4096 bytes does not quite fill it; larger ones leave the
/// processor's cache.
pub(super) const SIZE: usize = if cfg!(loom) { 256 } else { 2 << 20 };
/// What records are aligned to.
const LINE: usize = 64;
/// Bytes of a record's header: stamp and descriptor.
pub(super) const HEADER: usize = 16;
/// The longest run.
pub(super) const MAX_RUN: usize = if cfg!(loom) { 32 } else { 65535 };
/// Every so many bytes a sender of little that finds the ring empty goes back to its start: little traffic stays in few
/// pages. Until the receiver has read so, there is this much room, which is what was promised by [`Producer::has_room`].
const HOME: usize = if cfg!(loom) { 128 } else { 256 << 10 };
/// A run that is little traffic.
const LITTLE: usize = 8 << 10;

const _: () = assert!(SIZE.is_multiple_of(LINE) && SIZE >= 2 * (MAX_RUN + HEADER + LINE));

/// The descriptor of bytes that are to be skipped, up to the end of the ring.
const SKIP: u64 = u64::MAX;
/// Flag of a descriptor: the packets have ICRCs.
const SEALED: u64 = 1 << 63;

/// Memory that both sides see.
pub(super) trait Storage {
    /// How far the receiver has read.
    fn head(&self) -> &AtomicU64;
    /// 1 while the receiver wants to be woken.
    fn bell(&self) -> &AtomicU32;
    /// Stamp and descriptor of a record at `offset`, a multiple of [`LINE`] below [`SIZE`].
    fn header(&self, offset: usize) -> (&AtomicU64, &AtomicU64);
    /// Copies `bytes` to `offset`. The range is within the ring.
    fn write(&self, offset: usize, bytes: &[u8]);
    /// Copies to `bytes` from `offset`. The range is within the ring.
    fn read(&self, offset: usize, bytes: &mut [u8]);
}

/// What is said about a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    pub(crate) len: usize,
    /// Length of each packet but the last.
    pub(crate) segment: usize,
    /// The packets have ICRCs.
    pub(crate) sealed: bool,
}

impl Run {
    fn pack(self) -> u64 {
        (self.len as u64) | (self.segment as u64) << 32 | if self.sealed { SEALED } else { 0 }
    }

    /// `None`: nothing that [`Run::pack`] makes.
    fn unpack(descriptor: u64) -> Option<Self> {
        let half = |word: u64| usize::try_from(word & 0xFFFF_FFFF).ok();
        let (len, segment) = (half(descriptor)?, half((descriptor & !SEALED) >> 32)?);
        let run = Self { len, segment, sealed: descriptor & SEALED != 0 };
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
    /// Of a ring that nobody has written to. Keys are odd: then no stamp is 0, which is what a new ring is full of.
    pub(super) const fn new(storage: S, key: u64) -> Self {
        Self { storage, key, tail: 0, head: 0 }
    }

    /// The receiver sleeps, for all that is known.
    pub(super) fn begin(&self) {
        self.storage.bell().store(1, Ordering::Relaxed);
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

    /// How far the receiver was when it was last looked at.
    pub(super) const fn seen(&self) -> u64 {
        self.head
    }

    /// Puts a run in, which comes alone or among others. False if there is no room.
    pub(super) fn push(&mut self, packets: &[u8], run: Run, alone: bool) -> bool {
        debug_assert!(packets.len() == run.len && run.len <= MAX_RUN);
        let need = record_len(packets.len());
        let at = offset(self.tail);
        let go_home = alone && need <= LITTLE && at % HOME + need > HOME && self.look() == self.tail;
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

    /// To be asked after [`Producer::push`]: whether the receiver has to be woken. Says so once.
    pub(super) fn must_ring(&self) -> bool {
        fence(Ordering::SeqCst);
        let bell = self.storage.bell();
        bell.load(Ordering::Relaxed) != 0 && bell.swap(0, Ordering::Relaxed) != 0
    }
}

/// The receiver's side.
#[derive(Debug)]
pub(super) struct Consumer<S> {
    storage: S,
    key: u64,
    head: u64,
}

/// Something is in the ring that no sender would have put there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Damaged;

impl<S: Storage> Consumer<S> {
    /// Of a ring that nobody has read from.
    pub(super) const fn new(storage: S, key: u64) -> Self {
        Self { storage, key, head: 0 }
    }

    /// Whether nothing is there.
    pub(super) fn is_empty(&self) -> bool {
        let (stamp, _) = self.storage.header(offset(self.head));
        stamp.load(Ordering::Acquire) != self.head ^ self.key
    }

    /// Takes the oldest run out, into `buffer`. `Ok(None)`: nothing there.
    pub(super) fn pop(&mut self, buffer: &mut [u8]) -> Result<Option<Run>, Damaged> {
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
            let run = Run::unpack(descriptor).ok_or(Damaged)?;
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

    /// What lay here may be overwritten: it has been copied.
    fn release(&mut self, len: usize) {
        self.head += len as u64;
        self.storage.head().store(self.head, Ordering::Release);
    }

    /// Whether the sender will ring for its next run.
    pub(super) fn is_armed(&self) -> bool {
        self.storage.bell().load(Ordering::Relaxed) != 0
    }

    /// Wants to be woken from now on. Whoever sleeps then looks once more, behind a [`barrier`].
    pub(super) fn arm(&self) {
        self.storage.bell().store(1, Ordering::Relaxed);
    }
}

/// Between arming bells and the last look at their rings.
pub(super) fn barrier() {
    fence(Ordering::SeqCst);
}
