//! The regions of one device in this process, and how the engine reaches their bytes.

use std::ops::Deref;
use std::sync::atomic::{Ordering, fence};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use urxe_engine::memory::Full;
use urxe_engine::mw::TableError;
use urxe_engine::{
    Accessor, Ask, Bind, BindError, Denied, Fault, Key, Memory, Pd, Refusal, Region, RegionTable, Touch, WindowType,
};
use urxe_wire::Qpn;

use super::{guard, mapping};
use crate::observe;
use crate::xrc::neighbours::{Neighbours, is_elsewhere};

/// All regions and memory windows of a device. Read by every packet, changed by registration.
#[derive(Debug)]
pub(crate) struct Regions {
    table: RwLock<RegionTable>,
    /// Those of other processes, which XRC messages may be about.
    neighbours: Option<Arc<Neighbours>>,
}

/// A region in use: it cannot be deregistered as long as this lives.
#[derive(Debug)]
pub(crate) struct Held(Arc<Region>);

impl Deref for Held {
    type Target = Region;

    fn deref(&self) -> &Region {
        &self.0
    }
}

/// Waits until nobody copies from or to what was taken out of the table.
//= spec/memory.md#mem-007
//# When deregistration returns, nobody MUST copy from or to the memory any more.
fn settle(mut region: Arc<Region>) {
    // Held for the time of one packet's copy at most.
    while Arc::get_mut(&mut region).is_none() {
        std::thread::yield_now();
    }
}

impl Regions {
    /// No regions, at most `most`; `seed` makes the keys hard to guess.
    pub(crate) fn new(most: usize, seed: u64) -> Self {
        Self { table: RwLock::new(RegionTable::new(most, seed)), neighbours: None }
    }

    /// Also reaches memory of other processes.
    pub(crate) fn with(self, neighbours: &Arc<Neighbours>) -> Self {
        Self { neighbours: Some(Arc::clone(neighbours)), ..self }
    }

    fn table(&self) -> RwLockReadGuard<'_, RegionTable> {
        self.table.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn table_mut(&self) -> RwLockWriteGuard<'_, RegionTable> {
        self.table.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds the region that `make` makes for its key.
    pub(crate) fn insert(&self, make: impl FnOnce(Key) -> Region) -> Result<Key, Full> {
        guard::install();
        self.table_mut().insert(make)
    }

    /// Puts another region into the place of the one with its key. When this returns, nobody uses the old one any
    /// more.
    pub(crate) fn replace(&self, region: Region) -> Result<(), TableError> {
        let old = self.table_mut().replace(region)?;
        settle(old);
        Ok(())
    }

    /// Removes a region. When this returns, nobody copies from or to it any more: the memory is the application's own
    /// again.
    pub(crate) fn remove(&self, key: Key) -> Result<(), TableError> {
        let old = self.table_mut().remove(key)?;
        settle(old);
        Ok(())
    }

    /// How many there are, memory windows included.
    pub(crate) fn count(&self) -> usize {
        self.table().len()
    }

    /// All regions, as they are now.
    pub(crate) fn all(&self) -> Vec<Region> {
        self.table().regions().cloned().collect()
    }

    /// How many regions there are, and their bytes together.
    pub(crate) fn totals(&self) -> (u64, u64) {
        self.table().regions().fold((0, 0), |(count, bytes), region| (count + 1, bytes + region.length))
    }

    /// Adds a memory window.
    pub(crate) fn insert_window(&self, pd: Pd, kind: WindowType) -> Result<Key, Full> {
        self.table_mut().insert_window(pd, kind)
    }

    /// Removes a memory window; `key` is any that it has had.
    pub(crate) fn remove_window(&self, key: Key) -> Result<(), TableError> {
        let old = self.table_mut().remove_window(key)?;
        if let Some(old) = old {
            settle(old);
        }
        Ok(())
    }
}

impl Memory for Regions {
    type Region = Held;

    fn region(&self, key: Key) -> Option<Held> {
        self.table().get(key).map(|region| Held(Arc::clone(region)))
    }

    fn read(&self, from: u64, to: &mut [u8]) -> Result<(), Fault> {
        guard::load(from, to)
    }

    fn write(&self, to: u64, from: &[u8]) -> Result<(), Fault> {
        // SAFETY: the engine passes addresses that `Region::check` gave, of a region held meanwhile that allows
        // writing.
        unsafe { guard::store(to, from) }
    }

    fn compare_swap(&self, at: u64, compare: u64, swap: u64) -> Result<u64, Fault> {
        // SAFETY: as above.
        unsafe { guard::compare_swap(at, compare, swap) }
    }

    fn fetch_add(&self, at: u64, add: u64) -> Result<u64, Fault> {
        // SAFETY: as above.
        unsafe { guard::fetch_add(at, add) }
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
        let old = self.table_mut().bind(pd, qpn, bind).inspect_err(|error| observe::unbound(*error))?;
        if let Some(old) = old {
            settle(old);
        }
        Ok(())
    }

    fn invalidate(&self, pd: Pd, qpn: Qpn, key: Key) -> Result<(), Refusal> {
        if is_elsewhere(pd) {
            return self.neighbours.as_ref().ok_or(Refusal::Vanished)?.invalidate(pd, qpn, key);
        }
        let old = self.table_mut().invalidate(pd, qpn, key)?;
        settle(old);
        Ok(())
    }

    #[inline]
    fn elsewhere(&self, ask: &Ask, touch: &mut Touch<'_>) -> Option<Result<u64, Refusal>> {
        let (Accessor::Local(pd) | Accessor::Remote(pd, _)) = ask.by;
        let neighbours = self.neighbours.as_ref().filter(|_| is_elsewhere(pd))?;
        Some(neighbours.touch(ask, touch))
    }

    fn refused(&self, denied: &Denied, region: Option<&Region>) {
        observe::refused(denied, region);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flushing_needs_memory_that_is_there() {
        let regions = Regions::new(1, 1);
        let on_stack = 0_u64;
        let at = (&raw const on_stack) as u64;
        assert!(regions.flush(at, 8, false).is_ok() && regions.flush(at, 8, true).is_ok());
        assert!(regions.flush(0x10, 8, true).is_err());
    }
}
