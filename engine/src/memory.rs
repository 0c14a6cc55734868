//! Registered memory: regions, keys, and the one door to the application's bytes.

use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::ops::Deref;

use urxe_wire::Qpn;

use crate::access::Access;
use crate::mw::{Bind, BindError};
use crate::rng::Rng;

/// A protection domain, by number.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct Pd(pub u32);

/// A local key or a remote key: eight random low bits and the index of a table entry.
///
/// Regions have one number for both (`ibv_mr.lkey`, `.rkey`), as on the kernel's rxe.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct Key(pub u32);

/// The memory is not there, or not writable: the application unmapped it after registering it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the memory is not mapped, or not writable")]
pub struct Fault;

/// A registered memory region, or a bound memory window (IBA 10.6).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Region {
    /// Its key.
    pub key: Key,
    /// The protection domain it belongs to.
    pub pd: Pd,
    /// What may be done with it.
    pub access: Access,
    /// The first address by which work requests and peers name it.
    pub iova: u64,
    /// Bytes.
    pub length: u64,
    /// Where the byte at `iova` is in the application's address space.
    pub host: u64,
    /// What made it.
    pub kind: RegionKind,
}

/// What made a region, which decides who may use it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RegionKind {
    /// Registration.
    Memory,
    /// A null region: local reads give zeros, local writes go nowhere (`ibv_alloc_null_mr(3)`).
    Null,
    /// A memory window, for peers only; of type 2B for the peer of one queue pair (IBA 10.6.7.2.4).
    Window(Option<Qpn>),
}

/// Who asks for an access.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Accessor {
    /// A work request, by an L_Key.
    Local(Pd),
    /// A peer, by an R_Key, through a queue pair.
    Remote(Pd, Qpn),
}

/// Why an access is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Refusal {
    /// No region has the key.
    #[error("no region has the key")]
    NoSuchKey,
    /// The region belongs to another protection domain.
    #[error("the region belongs to another protection domain")]
    OtherPd,
    /// The region does not allow it.
    #[error("the region does not allow the access")]
    Access,
    /// Part of it lies outside the region.
    #[error("the access leaves the region")]
    OutOfBounds,
    /// The memory is gone.
    #[error("the memory is not mapped")]
    Unmapped,
    /// Eight bytes at once are asked for, and the region does not begin at a word of the processor.
    #[error("the region does not begin at a multiple of eight bytes")]
    Misaligned,
    /// It was another process' memory, and that process is gone, or has given up the SRQ that the memory was reached by;
    /// or it did not answer, and may have done what cannot be done twice.
    #[error("the process that has the memory has ended")]
    Vanished,
    /// It is another process' memory, and that process does not answer now. Asking again does no harm.
    #[error("the process that has the memory does not answer")]
    Silent,
}

/// An access that somebody asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ask {
    /// Who asks.
    pub by: Accessor,
    /// By which key.
    pub key: Key,
    /// For which rights.
    pub access: Access,
    /// From which address on.
    pub va: u64,
    /// To how many bytes.
    pub length: u64,
}

/// What is done with memory to which access was granted.
#[derive(Debug)]
pub enum Touch<'a> {
    /// Nothing: it was only to be seen whether it is granted.
    Look,
    /// Copies from it. A null region has zeros.
    Read(&'a mut [u8]),
    /// Copies to it. A null region forgets them.
    Write(&'a [u8]),
    /// Stores eight bytes at once.
    WriteWord([u8; 8]),
    /// Replaces eight bytes if they are as expected.
    CompareSwap {
        /// What is expected.
        compare: u64,
        /// What comes there then.
        swap: u64,
    },
    /// Adds to eight bytes.
    FetchAdd(u64),
    /// Flushes it.
    Flush {
        /// To persistence.
        persistent: bool,
        /// All of the region, whatever range was asked for.
        whole: bool,
    },
}

/// An access that was refused: who asked for what, and the rule it broke.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Denied {
    /// Who asked.
    pub by: Accessor,
    /// By which key.
    pub key: Key,
    /// To do what.
    pub access: Access,
    /// From which address on.
    pub va: u64,
    /// With how many bytes.
    pub length: u64,
    /// Why not.
    pub refusal: Refusal,
}

impl Region {
    /// The host address of `[va, va + length)`, if `by` may do `access` to all of it (IBA 10.6.3.1, C10-57 f.). Of a
    /// null region, it means nothing.
    ///
    /// # Errors
    /// The first rule broken, in the order of [`Refusal`].
    #[inline(always)]
    pub fn check(&self, by: Accessor, access: Access, va: u64, length: u64) -> Result<u64, Refusal> {
        let belongs = match (self.kind, by) {
            (RegionKind::Memory, Accessor::Local(pd) | Accessor::Remote(pd, _))
            | (RegionKind::Null, Accessor::Local(pd))
            | (RegionKind::Window(None), Accessor::Remote(pd, _)) => self.pd == pd,
            // The domain too: a number comes back with another queue pair some day.
            //= spec/memory.md#mem-005
            //# A type 2 window MUST serve the queue pair that it is bound to, and no other.
            (RegionKind::Window(Some(bound)), Accessor::Remote(pd, qpn)) => bound == qpn && self.pd == pd,
            (RegionKind::Null, Accessor::Remote(..)) | (RegionKind::Window(_), Accessor::Local(_)) => {
                return Err(Refusal::NoSuchKey);
            }
        };
        if !belongs {
            //= spec/memory.md#mem-002
            //# A key MUST NOT give access through another protection domain.
            return Err(Refusal::OtherPd);
        }
        if !self.access.contains(access) {
            //= spec/memory.md#mem-003
            //# An access MUST be one that the region was registered for.
            return Err(Refusal::Access);
        }
        let offset = va.checked_sub(self.iova).ok_or(Refusal::OutOfBounds)?;
        //= spec/memory.md#mem-001
        //# An access that leaves its region, also by overflow of an address, MUST be refused.
        let end = offset.checked_add(length).ok_or(Refusal::OutOfBounds)?;
        if end > self.length {
            return Err(Refusal::OutOfBounds);
        }
        self.host.checked_add(offset).ok_or(Refusal::OutOfBounds)
    }
}

/// The application's memory, as the engine may touch it: by host addresses that [`Region::check`] gave.
///
/// The memory is shared with the application's threads and with peers, so there are only copies, never
/// references. An implementation must turn memory that is gone into [`Fault`].
pub trait Memory {
    /// The region or window that has `key`. It stays registered as long as it is held: deregistration waits.
    fn region(&self, key: Key) -> Option<impl Deref<Target = Region>>;

    /// Copies from the application's memory.
    ///
    /// # Errors
    /// [`Fault`] if part of it is not mapped; `to` may have been written in part.
    fn read(&self, from: u64, to: &mut [u8]) -> Result<(), Fault>;

    /// Copies to the application's memory. The last byte becomes visible last: programs spin on it.
    ///
    /// # Errors
    /// [`Fault`] if part of it is not mapped or not writable; a part may have been written.
    fn write(&self, to: u64, from: &[u8]) -> Result<(), Fault>;

    /// Atomically replaces the eight bytes at `at` by `swap` if they equal `compare`; returns what was there.
    /// Numbers are in the host's byte order. `at` is a multiple of eight.
    ///
    /// # Errors
    /// [`Fault`] if it is not mapped or not writable.
    fn compare_swap(&self, at: u64, compare: u64, swap: u64) -> Result<u64, Fault>;

    /// Atomically adds to the eight bytes at `at`, wrapping; returns what was there.
    ///
    /// # Errors
    /// [`Fault`] if it is not mapped or not writable.
    fn fetch_add(&self, at: u64, add: u64) -> Result<u64, Fault>;

    /// Makes what was written to `[at, at + length)` visible to every thread and device of the machine, or, if
    /// `persistent`, safe from the machine's end.
    ///
    /// # Errors
    /// [`Fault`] if that cannot be done there.
    fn flush(&self, at: u64, length: u64, persistent: bool) -> Result<(), Fault>;

    /// Binds a memory window for the queue pair `qpn` of `pd`, by the rules of [`Window::bind`](crate::mw::Window).
    ///
    /// # Errors
    /// The rule broken; nothing is changed then.
    fn bind(&self, pd: Pd, qpn: Qpn, bind: &Bind) -> Result<(), BindError>;

    /// Takes back a bind whose request does not complete with success, by [`RegionTable::undo_bind`]. When it returns,
    /// nobody copies from or to what the window showed.
    ///
    /// [`RegionTable::undo_bind`]: crate::mw::RegionTable::undo_bind
    fn undo_bind(&self, qpn: Qpn, bind: &Bind);

    /// Unbinds the memory window with `key`. When it returns, nobody copies from or to it any more.
    ///
    /// # Errors
    /// `key` is none that may be invalidated through the queue pair `qpn` of `pd`.
    fn invalidate(&self, pd: Pd, qpn: Qpn, key: Key) -> Result<(), Refusal>;

    /// Whether `by` belongs to a protection domain of another process: then the whole access is that process' to check
    /// and carry out, by [`elsewhere`](Self::elsewhere), and none of the other methods is called.
    fn is_elsewhere(&self, _by: Accessor) -> bool {
        false
    }

    /// Touches memory of another process, as [`access`] does otherwise.
    ///
    /// # Errors
    /// As [`access`].
    fn elsewhere(&self, _ask: &Ask, _touch: &mut Touch<'_>) -> Result<u64, Refusal> {
        Err(Refusal::Vanished)
    }

    /// An access to `region` (`None`: there is none) was refused, for a person debugging to know. The event or
    /// completion that comes of it follows in the same call.
    fn refused(&self, _denied: &Denied, _region: Option<&Region>) {}
}

/// Touches memory as `ask` asks for, if that is granted; the region is held meanwhile. Returns what eight bytes that are
/// changed at once were before; else 0.
///
/// # Errors
/// The [`Refusal`]; then nothing was touched, but for a [`Fault`] half way, which is [`Refusal::Unmapped`].
// What is touched, and how, is known where this is called: nearly all of it falls away there.
#[inline(always)]
pub fn access<M: Memory>(memory: &M, ask: &Ask, touch: Touch<'_>) -> Result<u64, Refusal> {
    // Here and for what is denied `ask` and `touch` are put together only then: they need not be in memory otherwise.
    if memory.is_elsewhere(ask.by) {
        return elsewhere(memory, *ask, touch);
    }
    let Some(region) = memory.region(ask.key) else { return Err(denied(memory, *ask, Refusal::NoSuchKey, None)) };
    let (va, length) = match touch {
        Touch::Flush { whole: true, .. } => (region.iova, region.length),
        _ => (ask.va, ask.length),
    };
    let done = match region.check(ask.by, ask.access, va, length) {
        Ok(at) => touch.carry_out(memory, (region.kind != RegionKind::Null).then_some(at), length),
        Err(refusal) => Err(refusal),
    };
    done.map_err(|refusal| denied(memory, *ask, refusal, Some(&region)))
}

#[cold]
fn elsewhere<M: Memory>(memory: &M, ask: Ask, mut touch: Touch<'_>) -> Result<u64, Refusal> {
    memory.elsewhere(&ask, &mut touch)
}

#[cold]
fn denied<M: Memory>(memory: &M, ask: Ask, refusal: Refusal, region: Option<&Region>) -> Refusal {
    let Ask { by, key, access, va, length } = ask;
    memory.refused(&Denied { by, key, access, va, length, refusal }, region);
    refusal
}

impl Touch<'_> {
    /// At the host address `at`; `None` is a null region's.
    #[inline(always)]
    fn carry_out<M: Memory>(self, memory: &M, at: Option<u64>, length: u64) -> Result<u64, Refusal> {
        let unmapped = |Fault| Refusal::Unmapped;
        let Some(at) = at else {
            return match self {
                Self::Look | Self::Write(_) => Ok(0),
                Self::Read(to) => {
                    to.fill(0);
                    Ok(0)
                }
                // None of these is ever granted there.
                Self::WriteWord(_) | Self::CompareSwap { .. } | Self::FetchAdd(_) | Self::Flush { .. } => {
                    Err(Refusal::Unmapped)
                }
            };
        };
        let is_word = matches!(self, Self::WriteWord(_) | Self::CompareSwap { .. } | Self::FetchAdd(_));
        if is_word && !at.is_multiple_of(8) {
            return Err(Refusal::Misaligned);
        }
        match self {
            Self::Look => Ok(0),
            Self::Read(to) => memory.read(at, to).map(|()| 0).map_err(unmapped),
            Self::Write(from) => memory.write(at, from).map(|()| 0).map_err(unmapped),
            Self::WriteWord(word) => memory.write(at, &word).map(|()| 0).map_err(unmapped),
            Self::CompareSwap { compare, swap } => memory.compare_swap(at, compare, swap).map_err(unmapped),
            Self::FetchAdd(add) => memory.fetch_add(at, add).map_err(unmapped),
            Self::Flush { persistent, .. } => memory.flush(at, length, persistent).map(|()| 0).map_err(unmapped),
        }
    }
}

/// Entries found by key in constant time. Keys cannot be guessed from one another, and a key that was
/// removed does not come back soon (the random low bits change with every use of an entry).
#[derive(Debug)]
pub struct KeyTable<T> {
    entries: Vec<Entry<T>>,
    /// Longest free first: what was freed rests while others are used.
    free: VecDeque<u32>,
    rng: Rng,
    most: usize,
}

#[derive(Debug)]
struct Entry<T> {
    tag: u8,
    value: Option<T>,
}

/// The table is full.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the table is full")]
pub struct Full;

impl<T> KeyTable<T> {
    /// A table of up to `most` entries (at most 2^24 - 1); `seed` decides the low bits of keys.
    #[must_use]
    pub fn new(most: usize, seed: u64) -> Self {
        Self { entries: Vec::new(), free: VecDeque::new(), rng: Rng::new(seed), most: most.min((1 << 24) - 1) }
    }

    /// Adds what `make` returns for its key.
    ///
    /// # Errors
    /// [`Full`]; `make` is not called then.
    pub fn insert(&mut self, make: impl FnOnce(Key) -> T) -> Result<Key, Full> {
        let index = match self.free.pop_front() {
            Some(index) => index,
            None if self.entries.len() < self.most => {
                self.entries.push(Entry { tag: self.rng.next_u8(), value: None });
                u32::try_from(self.entries.len() - 1).map_err(|_| Full)?
            }
            None => return Err(Full),
        };
        let step = 1 + self.rng.next_u8() % 254;
        let entry = self.entries.get_mut(index as usize).ok_or(Full)?;
        //= spec/memory.md#mem-006
        //# The key of memory that was deregistered MUST NOT be the next one given.
        entry.tag = entry.tag.wrapping_add(step);
        // Index 0 would make small, plausible-looking keys; keys start at entry 1.
        let key = Key((index + 1) << 8 | u32::from(entry.tag));
        entry.value = Some(make(key));
        Ok(key)
    }

    /// The entry with `key`.
    #[must_use]
    pub fn get(&self, key: Key) -> Option<&T> {
        let entry = self.entries.get(Self::index(key)?)?;
        if entry.tag == Self::tag(key) { entry.value.as_ref() } else { None }
    }

    /// The entry with `key`, to be changed.
    #[must_use]
    pub fn get_mut(&mut self, key: Key) -> Option<&mut T> {
        let entry = self.entries.get_mut(Self::index(key)?)?;
        if entry.tag == Self::tag(key) { entry.value.as_mut() } else { None }
    }

    /// Gives the entry with `key` the low bits of `new`, which is its key then. `false` if that is not a key of the
    /// same entry.
    pub(crate) fn rekey(&mut self, key: Key, new: Key) -> bool {
        let same = Self::index(key) == Self::index(new);
        let entry = Self::index(key).and_then(|index| self.entries.get_mut(index));
        match entry.filter(|entry| same && entry.tag == Self::tag(key) && entry.value.is_some()) {
            Some(entry) => {
                entry.tag = Self::tag(new);
                true
            }
            None => false,
        }
    }

    /// The key that the entry of `key` has now, whatever low bits `key` has.
    pub(crate) fn present(&self, key: Key) -> Option<Key> {
        let entry = self.entries.get(Self::index(key)?)?;
        entry.value.is_some().then_some(Key((key.0 & !0xff) | u32::from(entry.tag)))
    }

    /// Takes the entry with `key` out.
    pub fn remove(&mut self, key: Key) -> Option<T> {
        let index = Self::index(key)?;
        let entry = self.entries.get_mut(index)?;
        if entry.tag != Self::tag(key) {
            return None;
        }
        let value = entry.value.take()?;
        self.free.push_back(u32::try_from(index).ok()?);
        Some(value)
    }

    /// Every entry.
    pub(crate) fn values(&self) -> impl Iterator<Item = &T> {
        self.entries.iter().filter_map(|entry| entry.value.as_ref())
    }

    /// How many entries there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len() - self.free.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn index(key: Key) -> Option<usize> {
        (key.0 >> 8).checked_sub(1).map(|index| index as usize)
    }

    const fn tag(key: Key) -> u8 {
        key.0.to_le_bytes()[0]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn region() -> Region {
        Region {
            key: Key(0x1ff),
            pd: Pd(1),
            access: Access::LOCAL_WRITE | Access::REMOTE_READ,
            iova: 0x1000,
            length: 0x100,
            host: 0x7000_0000,
            kind: RegionKind::Memory,
        }
    }

    //= spec/memory.md#mem-001
    //= type=test
    //# An access that leaves its region, also by overflow of an address, MUST be refused.
    #[test]
    fn bounds_cannot_be_tricked_by_overflow() {
        let check = |va, length| region().check(Accessor::Local(Pd(1)), Access::REMOTE_READ, va, length);
        assert_eq!(check(0x1000, 0x100), Ok(0x7000_0000));
        assert_eq!(check(0x10ff, 1), Ok(0x7000_00ff));
        assert_eq!(check(0x1100, 0), Ok(0x7000_0100));
        for (va, length) in [(0xfff, 1), (0x1000, 0x101), (0x10ff, 2), (0x1001, u64::MAX), (u64::MAX, 2), (0, u64::MAX)]
        {
            assert_eq!(check(va, length), Err(Refusal::OutOfBounds), "{va:#x}+{length:#x}");
        }
    }

    //= spec/memory.md#mem-005
    //= type=test
    //# A type 2 window MUST serve the queue pair that it is bound to, and no other.
    #[test]
    fn a_type_2_window_is_for_one_queue_pair_of_its_domain() {
        let window = Region { kind: RegionKind::Window(Some(Qpn::new(7))), ..region() };
        let check = |by| window.check(by, Access::REMOTE_READ, 0x1000, 1).map(drop);
        assert_eq!(check(Accessor::Remote(Pd(1), Qpn::new(7))), Ok(()));
        assert_eq!(check(Accessor::Remote(Pd(1), Qpn::new(8))), Err(Refusal::OtherPd));
        assert_eq!(check(Accessor::Remote(Pd(2), Qpn::new(7))), Err(Refusal::OtherPd));
        assert_eq!(check(Accessor::Local(Pd(1))), Err(Refusal::NoSuchKey));
    }

    //= spec/memory.md#mem-003
    //= type=test
    //# An access MUST be one that the region was registered for.
    //= spec/memory.md#mem-002
    //= type=test
    //# A key MUST NOT give access through another protection domain.
    #[test]
    fn rights_and_domain() {
        assert_eq!(region().check(Accessor::Local(Pd(2)), Access::NONE, 0x1000, 1), Err(Refusal::OtherPd));
        assert_eq!(region().check(Accessor::Local(Pd(1)), Access::REMOTE_WRITE, 0x1000, 1), Err(Refusal::Access));
        assert_eq!(region().check(Accessor::Local(Pd(1)), Access::NONE, 0x1000, 1), Ok(0x7000_0000));
    }

    //= spec/memory.md#mem-006
    //= type=test
    //# The key of memory that was deregistered MUST NOT be the next one given.
    #[test]
    fn keys_do_not_come_back_at_once() {
        let mut table = KeyTable::new(1, 7);
        let first = table.insert(|key| key).unwrap();
        assert_eq!(table.insert(|key| key), Err(Full));
        assert_eq!(table.get(first), Some(&first));
        assert_eq!(table.remove(first), Some(first));
        assert_eq!(table.remove(first), None);
        let second = table.insert(|key| key).unwrap();
        assert_ne!(first, second);
        assert_eq!((table.get(first), table.get(Key(0)), table.get(Key(u32::MAX))), (None, None, None));
    }
}
