//! Access to registered memory, by the region used last.
//!
//! Looking a region up costs a lock and a reference count, as much as copying a hundred bytes. Messages mostly come one
//! after the other for the same region, so the one used last is cached for the rest of a turn: as long as one queue
//! pair is at work. A thread's own context keeps it for its next turn, too (`kept`).

use std::cell::{Cell, Ref, RefCell};
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use urxe_engine::{
    Access, AccessDenied, AccessRequest, Accessor, Bind, BindError, DirectOutcome, DirectRequest, Fault, Invalidation,
    Key, Memory, MemoryOp, Pd, Refusal, Region, RegionKind,
};
use urxe_wire::Qpn;

use super::kept::Kept;
use super::protected::KnownData;
use super::regions::{Held, Regions};
use super::{faultable_copy, mapping, protected};
use crate::counters::DirectTraffic;
use crate::direct::Attachment;
use crate::interceptor::{self, Interceptor};
use crate::xrc::client::is_remote;

/// Access to registered memory, which keeps the region used last cached.
#[derive(Debug)]
pub struct RegionCache {
    regions: Arc<Regions>,
    cached: RefCell<Option<Cached>>,
    /// Where others see which region is kept between turns; `None`: none is.
    kept: Option<Arc<Kept>>,
    /// The peer of the queue pair at work, if its memory is within reach.
    peer: RefCell<Option<Box<Attachment>>>,
    has_peer: Cell<bool>,
    /// Whether the peer's receive buffers may be within reach, too.
    has_receives: Cell<bool>,
    /// Requests that were carried out there. Written by who has the cache.
    direct: Arc<DirectTraffic>,
    /// Protected memory that was found to be data, until the end of the turn.
    known_data: KnownData,
    interceptor: Option<Arc<dyn Interceptor>>,
}

/// The cached region.
#[derive(Debug)]
struct Cached {
    region: Region,
    owner: Owner,
}

/// Reason why a cached region is registered still.
#[derive(Debug)]
enum Owner {
    /// Held until the end of the turn.
    Held { _region: Held },
    /// Found in the table of this generation.
    Kept { generation: u64 },
}

/// Guard of one turn of one queue pair. At its end only a kept region stays cached.
///
/// Deregistration waits for that, perhaps with another queue pair's engine locked: a turn must not wait for a second engine.
#[derive(Debug)]
pub struct Turn<'a>(&'a RegionCache);

impl Drop for Turn<'_> {
    #[inline]
    fn drop(&mut self) {
        self.0.end_turn();
    }
}

impl RegionCache {
    /// Cache without a region.
    pub fn new(regions: Arc<Regions>, interceptor: Option<Arc<dyn Interceptor>>) -> Self {
        Self {
            regions,
            cached: RefCell::new(None),
            kept: None,
            peer: RefCell::new(None),
            has_peer: Cell::new(false),
            has_receives: Cell::new(false),
            direct: Arc::default(),
            known_data: KnownData::new(),
            interceptor,
        }
    }

    /// Requests that are carried out at peers' memory.
    pub(crate) const fn direct(&self) -> &Arc<DirectTraffic> {
        &self.direct
    }

    /// Keeps the cached region between turns, and says so in `kept`. For callers that access memory with a lock held
    /// ([`Keepers`](super::regions::Keepers)).
    pub(crate) fn keeping(self, kept: Arc<Kept>) -> Self {
        Self { kept: Some(kept), ..self }
    }

    /// Begins a turn.
    #[must_use]
    pub const fn turn(&self) -> Turn<'_> {
        Turn(self)
    }

    /// Has the peer's memory within reach for a turn.
    #[inline]
    pub(crate) fn set_peer(&self, peer: Option<Box<Attachment>>) {
        self.has_peer.set(peer.is_some());
        self.has_receives.set(peer.as_ref().is_some_and(|peer| peer.shows_receives()));
        self.peer.replace(peer);
    }

    /// The end of that.
    #[inline]
    pub(crate) fn take_peer(&self) -> Option<Box<Attachment>> {
        self.has_peer.set(false);
        self.has_receives.set(false);
        self.peer.take()
    }

    /// The end of a turn.
    #[inline]
    fn end_turn(&self) {
        self.leave_peer();
        if self.kept.is_none() {
            self.empty();
        }
        self.known_data.forget();
    }

    /// Empties the cache. The region is dropped where it is: to take it out would copy it.
    #[inline]
    fn empty(&self) {
        *self.cached.borrow_mut() = None;
    }

    /// Empties the cache, and keeps nothing.
    fn release(&self) {
        self.empty();
        if let Some(kept) = &self.kept {
            kept.set(0);
        }
        self.known_data.forget();
    }

    /// Whether the cached region has `key`.
    #[inline]
    fn has(&self, cached: Option<&Cached>, key: Key) -> bool {
        cached.is_some_and(|Cached { region, owner }| match owner {
            Owner::Held { .. } => region.key == key,
            Owner::Kept { generation } => region.key == key && *generation == self.regions.generation(),
        })
    }

    /// The region that has `key`, from the table.
    fn find(&self, key: Key) -> Option<Cached> {
        if let Some(kept) = &self.kept {
            kept.set(key.0);
            let (region, generation) = self.regions.copy(key)?;
            // Windows are closed by who has a queue pair's engine, which must not wait for another's turn to begin.
            if !matches!(region.kind, RegionKind::Window(_)) {
                return Some(Cached { region, owner: Owner::Kept { generation } });
            }
            kept.set(0);
        }
        let held = self.regions.region(key)?;
        Some(Cached { region: Region::clone(&held), owner: Owner::Held { _region: held } })
    }

    /// Does at `[host, host + length)` what has faulted, if the cached region is one that a card would have pinned: `shared` where
    /// peers reach its pages, and else `again`.
    //= spec/memory.md#mem-015
    //# Memory that was protected while registered MUST be accessed all the same, unless it was registered on demand.
    #[cold]
    fn pinned<T>(
        &self,
        fault: Fault,
        (host, length): (u64, usize),
        shared: impl FnOnce(u64) -> Result<T, Fault>,
        again: impl FnOnce() -> Result<T, Fault>,
    ) -> Result<T, Fault> {
        let cached = self.cached.borrow();
        let region = cached.as_ref().map(|cached| &cached.region);
        let region = region.filter(|region| !region.access.contains(Access::ON_DEMAND)).ok_or(fault)?;
        self.regions.reach_shared(region, host, length, shared).unwrap_or_else(again)
    }

    /// Caches the region that has `key`, or none if there is none.
    #[cold]
    fn miss(&self, key: Key) -> Ref<'_, Option<Cached>> {
        // A thread with a cached region copies from or to it; those that have contexts which keep one are admitted.
        faultable_copy::admit();
        self.release();
        let found = self.find(key);
        *self.cached.borrow_mut() = found;
        self.cached.borrow()
    }
}

impl Memory for RegionCache {
    // Inline, like the copies: a request is for one of them, and its address and length are known there.
    #[inline(always)]
    fn region(&self, key: Key) -> Option<impl Deref<Target = Region>> {
        let mut cached = self.cached.borrow();
        if !self.has(cached.as_ref(), key) {
            drop(cached);
            cached = self.miss(key);
        }
        Ref::filter_map(cached, |cached| cached.as_ref().map(|cached| &cached.region)).ok()
    }

    #[inline(always)]
    fn read(&self, from: u64, to: &mut [u8]) -> Result<(), Fault> {
        faultable_copy::load(from, to).or_else(|fault| {
            let (length, to) = (to.len(), RefCell::new(to));
            let shared = |at| faultable_copy::load(at, *to.borrow_mut());
            self.pinned(fault, (from, length), shared, || protected::load(from, *to.borrow_mut()))
        })
    }

    #[inline(always)]
    fn write(&self, to: u64, from: &[u8]) -> Result<(), Fault> {
        // SAFETY: the engine passes addresses that `Region::check` gave, of a region held meanwhile that allows
        // writing.
        unsafe {
            faultable_copy::store(to, from).or_else(|fault| {
                let shared = |at| faultable_copy::store(at, from);
                self.pinned(fault, (to, from.len()), shared, || protected::store(to, from, &self.known_data))
            })
        }
    }

    fn compare_swap(&self, at: u64, compare: u64, swap: u64) -> Result<u64, Fault> {
        // SAFETY: as above.
        unsafe {
            let change = |original| if original == compare { swap } else { original };
            let shared = |at| faultable_copy::compare_swap(at, compare, swap);
            let again = || protected::update(at, change, &self.known_data);
            faultable_copy::compare_swap(at, compare, swap).or_else(|fault| self.pinned(fault, (at, 8), shared, again))
        }
    }

    fn fetch_add(&self, at: u64, add: u64) -> Result<u64, Fault> {
        // SAFETY: as above.
        unsafe {
            let shared = |at| faultable_copy::fetch_add(at, add);
            let again = || protected::update(at, |original| original.wrapping_add(add), &self.known_data);
            faultable_copy::fetch_add(at, add).or_else(|fault| self.pinned(fault, (at, 8), shared, again))
        }
    }

    /// Only a region of a file can be registered for persistence; there it takes as long as the disk does.
    fn flush(&self, at: u64, length: u64, persistent: bool) -> Result<(), Fault> {
        if persistent {
            mapping::persist(at, length).map_err(|_| Fault)?;
        }
        // Processors keep their caches coherent: what is stored in order is seen in order.
        fence(Ordering::SeqCst);
        Ok(())
    }

    fn bind(&self, pd: Pd, qpn: Qpn, bind: &Bind) -> Result<(), BindError> {
        self.release();
        self.regions.bind(pd, qpn, bind).inspect_err(|error| {
            if let Some(interceptor) = interceptor::active(&self.interceptor) {
                interceptor.bind_failed(*error);
            }
        })
    }

    fn undo_bind(&self, qpn: Qpn, bind: &Bind) {
        self.release();
        self.regions.undo_bind(qpn, bind);
    }

    fn invalidate(&self, pd: Pd, qpn: Qpn, key: Key, how: Invalidation) -> Result<(), Refusal> {
        self.release();
        self.regions.invalidate(pd, qpn, key, how)
    }

    #[inline]
    fn is_remote(&self, by: Accessor) -> bool {
        let (Accessor::Local(pd) | Accessor::Remote(pd, _)) = by;
        is_remote(pd)
    }

    fn access_remote(&self, request: &AccessRequest, op: &mut MemoryOp<'_>) -> Result<u64, Refusal> {
        self.release();
        let result = self.regions.client().ok_or(Refusal::Vanished)?.access(request, op);
        result.inspect_err(|refusal| {
            let AccessRequest { by, key, access, va, length } = *request;
            self.refused(&AccessDenied { by, key, access, va, length, refusal: *refusal }, None);
        })
    }

    #[inline]
    fn reaches_peer(&self) -> bool {
        self.has_peer.get()
    }

    #[inline]
    fn reaches_receives(&self) -> bool {
        self.has_receives.get()
    }

    #[inline]
    fn carry_out(&self, request: &DirectRequest<'_>) -> DirectOutcome {
        if self.kept.is_none() {
            faultable_copy::admit();
        }
        match &mut *self.peer.borrow_mut() {
            Some(peer) => peer.carry_out(self, request),
            None => DirectOutcome::ByPackets,
        }
    }

    #[inline]
    fn leave_peer(&self) {
        if self.has_peer.get()
            && let Some(peer) = &mut *self.peer.borrow_mut()
        {
            let (requests, bytes) = peer.leave();
            if requests > 0 {
                self.direct.add(requests, bytes);
            }
        }
    }

    fn refused(&self, denied: &AccessDenied, region: Option<&Region>) {
        if let Some(interceptor) = interceptor::active(&self.interceptor) {
            interceptor.refused(denied, region);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn region_cache() -> RegionCache {
        RegionCache::new(Arc::new(Regions::new(2, 1)), None)
    }

    fn register(regions: &Regions) -> Key {
        let make = |key| Region {
            key,
            pd: Pd(1),
            access: Access::NONE,
            iova: 0,
            length: 8,
            host: 0,
            kind: RegionKind::Memory,
        };
        regions.insert(make).unwrap()
    }

    #[test]
    fn flushing_needs_memory_that_is_there() {
        let memory = region_cache();
        let on_stack = 0_u64;
        let at = (&raw const on_stack) as u64;
        assert!(memory.flush(at, 8, false).is_ok() && memory.flush(at, 8, true).is_ok());
        assert!(memory.flush(0x10, 8, true).is_err());
    }

    /// Deregistration returns, so nothing is held; and what is gone is not found.
    #[test]
    fn cached_region_is_released_at_the_end_of_a_turn() {
        let memory = region_cache();
        let (first, second) = (register(&memory.regions), register(&memory.regions));
        let turn = memory.turn();
        let knows = |key| memory.region(key).is_some_and(|region| region.key == key);
        assert!(knows(first) && knows(first) && knows(second));
        memory.regions.remove(first).unwrap();
        assert!(!knows(first) && knows(second));
        drop(turn);
        memory.regions.remove(second).unwrap();
        assert!(!knows(second));
    }
}
