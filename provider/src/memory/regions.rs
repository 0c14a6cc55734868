//! The regions of one device in this process, and how the engine reaches their bytes.

use std::ops::Deref;
use std::sync::{Arc, PoisonError, RwLock};

use urxe_engine::{Fault, Key, KeyTable, Memory, Region, memory::Full};

use super::guard;

/// All regions of a device. Read by every packet, changed by registration.
#[derive(Debug)]
pub(crate) struct Regions(RwLock<KeyTable<Arc<Region>>>);

/// A region in use: it cannot be deregistered as long as this lives.
#[derive(Debug)]
pub(crate) struct Held(Arc<Region>);

impl Deref for Held {
    type Target = Region;

    fn deref(&self) -> &Region {
        &self.0
    }
}

impl Regions {
    /// No regions, at most `most`; `seed` makes the keys hard to guess.
    pub(crate) fn new(most: usize, seed: u64) -> Self {
        Self(RwLock::new(KeyTable::new(most, seed)))
    }

    /// Adds the region that `make` makes for its key.
    pub(crate) fn insert(&self, make: impl FnOnce(Key) -> Region) -> Result<Key, Full> {
        guard::install();
        self.0.write().unwrap_or_else(PoisonError::into_inner).insert(|key| Arc::new(make(key)))
    }

    /// Removes a region and waits until nobody copies from or to it any more: when this returns, the memory is the
    /// application's own again.
    pub(crate) fn remove(&self, key: Key) {
        let removed = self.0.write().unwrap_or_else(PoisonError::into_inner).remove(key);
        let Some(mut region) = removed else { return };
        // Held for the time of one packet's copy at most.
        while Arc::get_mut(&mut region).is_none() {
            std::thread::yield_now();
        }
    }
}

impl Memory for Regions {
    type Region = Held;

    fn region(&self, key: Key) -> Option<Held> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).get(key).map(|region| Held(Arc::clone(region)))
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
}
