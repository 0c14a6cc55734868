//! The words by which a target shows its queue pairs and regions, and a requester says that it is at one of them.
//!
//! # Showing and hiding
//!
//! A queue pair and a region have a *version* each: odd while they are shown, even while they are hidden or being changed. A
//! requester copies what it needs and then looks whether the version is what it was.
//!
//! # Copying, and waiting for copies
//!
//! A requester that copies from or to a region first *enters*: it stores the region's key in the queue pair's `busy` word, and
//! then looks at both versions once more. It may stay in for several copies, as long as both versions are what they were. A target
//! that hides a region or queue pair changes the version, and then looks for the key in the `busy` words. Between write and look
//! both have a sequentially consistent fence: so either the requester sees that the version has changed and stays out, or the
//! target sees that it is in, and waits; or both. `loom/` has this checked over all reorderings, and all interleavings of at most
//! three preemptions (`make loom`).
//!
//! A queue pair has one requester, its peer, which does this with the peer's queue pair locked: one `busy` word is enough. A peer
//! that was stopped before it entered may go on when the queue pair has another peer: so a word that is taken stays whose it is,
//! and a requester that finds it taken stays out.
//!
//! A peer that is stopped in the middle of a copy holds the word for as long. The queue pair is not shown again until it has left.

#[cfg(not(loom))]
use core::sync::atomic::{AtomicU64, Ordering, fence};
#[cfg(loom)]
use loom::sync::atomic::{AtomicU64, Ordering, fence};

/// Set in a `busy` word while its requester is at a region; the key is in the lower half.
const BUSY: u64 = 1 << 63;
/// Number of entries in a `busy` word, modulo 2^31: two copies from or to one region are two words.
const ENTRIES: u64 = ENTRY * (BUSY / ENTRY - 1);
const ENTRY: u64 = 1 << 32;

/// Queue pair as its peer needs to know it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SharedQp {
    /// Number, and above it the peer's.
    pub numbers: u64,
    /// Protection domain, and above it the rights of peers.
    pub rights: u64,
    /// Digest of the addresses of both ends.
    pub addresses: u64,
    /// READs and atomics it takes at once, and above that its type.
    pub limits: u64,
}

/// Words of a queue pair. The first half is written by its own process, the second by the peer's.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct QpWords {
    version: AtomicU64,
    fields: [AtomicU64; 4],
    /// Expected PSN, less the PSNs that direct requests took and the responder knows of; above its 24 bits the receive WQEs that packets
    /// took since the queue pair was shown.
    base: AtomicU64,
    _spare: [AtomicU64; 2],
    busy: AtomicU64,
    /// PSNs, messages, bytes and receive WQEs of direct requests, from when the queue pair was shown.
    taken: [AtomicU64; 4],
    _spare_of_peer: [AtomicU64; 3],
}

/// Region as peers need to know it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SharedRegion {
    /// Key, and above it the protection domain.
    pub name: u64,
    /// Rights, and above them the kind: who may use it.
    pub rights: u64,
    /// First address as peers name it.
    pub iova: u64,
    /// Bytes.
    pub length: u64,
    /// Offset of the first byte in the shared file.
    pub at: u64,
}

/// Words of a region.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct RegionWords {
    version: AtomicU64,
    fields: [AtomicU64; 5],
    _spare: [AtomicU64; 2],
}

/// Requests that a peer has carried out itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Taken {
    /// PSNs that they would have had.
    pub psns: u64,
    /// Messages.
    pub messages: u64,
    /// Bytes of payload.
    pub bytes: u64,
    /// Receive WQEs.
    pub receives: u64,
}

/// Sequentially consistent fence behind a compare-and-swap that was done. On x86-64 that instruction is the fence, as any with a lock
/// prefix (Intel SDM, volume 3A, 9.2.3.9), and another would take longer than a short copy.
#[inline]
fn fence_behind_exchange() {
    #[cfg(all(target_arch = "x86_64", not(loom)))]
    core::sync::atomic::compiler_fence(Ordering::SeqCst);
    #[cfg(any(not(target_arch = "x86_64"), loom))]
    fence(Ordering::SeqCst);
}

const fn is_shown(version: u64) -> bool {
    version % 2 == 1
}

/// Hides what has this version, if it is shown. What was stored before is not seen under the old version any more by who
/// enters from now on. Returns the version that it has.
fn hide(version: &AtomicU64) -> u64 {
    let now = version.load(Ordering::Relaxed);
    let hidden = if is_shown(now) { now.wrapping_add(1) } else { now };
    version.store(hidden, Ordering::Relaxed);
    fence(Ordering::SeqCst);
    hidden
}

fn show<const N: usize>(version: &AtomicU64, fields: &[AtomicU64; N], values: [u64; N]) -> u64 {
    hide(version);
    for (field, value) in fields.iter().zip(values) {
        field.store(value, Ordering::Relaxed);
    }
    let shown = version.load(Ordering::Relaxed) | 1;
    version.store(shown, Ordering::Release);
    shown
}

/// The version and the fields that belong to it, if they are shown.
fn read<const N: usize>(version: &AtomicU64, fields: &[AtomicU64; N]) -> Option<(u64, [u64; N])> {
    let before = version.load(Ordering::Acquire);
    let mut values = [0; N];
    for (value, field) in values.iter_mut().zip(fields) {
        *value = field.load(Ordering::Relaxed);
    }
    fence(Ordering::Acquire);
    (is_shown(before) && version.load(Ordering::Relaxed) == before).then_some((before, values))
}

impl QpWords {
    #[cfg(any(test, loom))]
    pub(crate) fn new() -> Self {
        let zero = || AtomicU64::new(0);
        Self {
            version: zero(),
            fields: core::array::from_fn(|_| zero()),
            base: zero(),
            _spare: core::array::from_fn(|_| zero()),
            busy: zero(),
            taken: core::array::from_fn(|_| zero()),
            _spare_of_peer: core::array::from_fn(|_| zero()),
        }
    }

    /// Shows a queue pair whose responder expects the PSN `base`; nothing was taken yet. Returns the version. `None`: a peer that
    /// it was shown to before is at a region still, and nothing is shown.
    pub(crate) fn show(&self, qp: &SharedQp, base: u64) -> Option<u64> {
        hide(&self.version);
        // Whoever enters from now on sees that it may not.
        if self.copying().is_some() {
            return None;
        }
        for taken in &self.taken {
            taken.store(0, Ordering::Relaxed);
        }
        self.base.store(base, Ordering::Relaxed);
        Some(show(&self.version, &self.fields, [qp.numbers, qp.rights, qp.addresses, qp.limits]))
    }

    /// Hides the queue pair, and returns its version then. Its peer may be at a region still ([`copying`](Self::copying)).
    pub(crate) fn hide(&self) -> u64 {
        hide(&self.version)
    }

    /// The queue pair, if it is shown, and its version.
    pub(crate) fn read(&self) -> Option<(u64, SharedQp)> {
        let (version, [numbers, rights, addresses, limits]) = read(&self.version, &self.fields)?;
        Some((version, SharedQp { numbers, rights, addresses, limits }))
    }

    /// Whether the entry is still shown as it was.
    #[inline]
    pub(crate) fn is(&self, version: u64) -> bool {
        self.version.load(Ordering::Relaxed) == version
    }

    /// Says what the responder expects, less what was taken.
    #[inline]
    pub(crate) fn set_base(&self, base: u64) {
        self.base.store(base, Ordering::Release);
    }

    /// PSN that the responder expects, less the PSNs that were taken, and above it the receive WQEs that packets took.
    #[inline]
    pub(crate) fn base(&self) -> u64 {
        self.base.load(Ordering::Acquire)
    }

    /// Requests that the peer has taken.
    #[inline]
    pub(crate) fn taken(&self) -> Taken {
        let [psns, messages, bytes, receives] = &self.taken;
        let (psns, messages) = (psns.load(Ordering::Acquire), messages.load(Ordering::Relaxed));
        Taken { psns, messages, bytes: bytes.load(Ordering::Relaxed), receives: receives.load(Ordering::Relaxed) }
    }

    /// Says what was taken: by the only one who takes.
    #[inline]
    pub(crate) fn set_taken(&self, taken: &Taken) {
        let [psns, messages, bytes, receives] = &self.taken;
        receives.store(taken.receives, Ordering::Relaxed);
        bytes.store(taken.bytes, Ordering::Relaxed);
        messages.store(taken.messages, Ordering::Relaxed);
        psns.store(taken.psns, Ordering::Release);
    }

    /// Enters a region that was shown with `region_version`, through the queue pair as it was with `version`. False: one of them
    /// is hidden now, or another peer is at a region, and nothing may be copied. After true come any number of copies, before each of
    /// which both versions are looked at again, and then [`leave`](Self::leave).
    //= spec/memory.md#mem-007
    //# When deregistration returns, nobody MUST copy from or to the memory any more.
    #[inline]
    pub(crate) fn enter(&self, version: u64, region: &RegionWords, region_version: u64, key: u32) -> bool {
        let before = self.busy.load(Ordering::Relaxed);
        let busy = BUSY | before.wrapping_add(ENTRY) & ENTRIES | u64::from(key);
        let is_alone =
            before & BUSY == 0 && self.busy.compare_exchange(before, busy, Ordering::SeqCst, Ordering::Relaxed).is_ok();
        if !is_alone {
            return false;
        }
        fence_behind_exchange();
        let is_in = self.is(version) && region.is(region_version);
        if !is_in {
            self.leave();
        }
        is_in
    }

    /// Leaves: what was copied is there.
    #[inline]
    pub(crate) fn leave(&self) {
        self.busy.store(self.busy.load(Ordering::Relaxed) & ENTRIES, Ordering::Release);
    }

    /// The copy that the peer is at: another word than that of any copy shortly before. For the target, when it has hidden what the
    /// peer should not be at.
    pub(crate) fn copying(&self) -> Option<u64> {
        Some(self.busy.load(Ordering::Acquire)).filter(|busy| *busy & BUSY != 0)
    }

    /// Whether a copy is one from or to the region that has, or had, `key`.
    pub(crate) const fn is_at(copy: u64, key: u32) -> bool {
        copy & !ENTRIES == BUSY | key as u64
    }

    /// Ends a copy of a peer that has ended itself.
    #[cfg_attr(loom, expect(dead_code, reason = "no peer of a model ends"))]
    pub(crate) fn abandon(&self, copy: u64) {
        let _ = self.busy.compare_exchange(copy, copy & ENTRIES, Ordering::Acquire, Ordering::Relaxed);
    }
}

impl RegionWords {
    #[cfg(any(test, loom))]
    pub(crate) fn new() -> Self {
        let zero = || AtomicU64::new(0);
        Self { version: zero(), fields: core::array::from_fn(|_| zero()), _spare: core::array::from_fn(|_| zero()) }
    }

    /// Shows a region.
    pub(crate) fn show(&self, region: &SharedRegion) {
        let SharedRegion { name, rights, iova, length, at } = *region;
        show(&self.version, &self.fields, [name, rights, iova, length, at]);
    }

    /// Hides the region. Peers may be at it still ([`QpWords::copying`]).
    pub(crate) fn hide(&self) {
        hide(&self.version);
    }

    /// The region, if it is shown, and its version.
    pub(crate) fn read(&self) -> Option<(u64, SharedRegion)> {
        let (version, [name, rights, iova, length, at]) = read(&self.version, &self.fields)?;
        Some((version, SharedRegion { name, rights, iova, length, at }))
    }

    /// Whether the entry is still shown as it was.
    #[inline]
    pub(crate) fn is(&self, version: u64) -> bool {
        self.version.load(Ordering::Relaxed) == version
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
