//! The regions of one device in this process.

use std::ops::Deref;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use urxe_engine::Full;
use urxe_engine::mw::TableError;
use urxe_engine::{Bind, BindError, Key, Pd, Refusal, Region, RegionTable, WindowType};
use urxe_wire::Qpn;

use super::faultable_copy;
use crate::xrc::client::{Client, is_elsewhere};

/// All regions and memory windows of a device. Read by every packet, changed by registration.
#[derive(Debug)]
pub struct Regions {
    table: RwLock<RegionTable>,
    /// Regions of other processes, which XRC messages may be about.
    client: Option<Arc<Client>>,
}

/// A region in use: it cannot be deregistered as long as this lives.
#[derive(Debug)]
pub struct Held(Arc<Region>);

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
    // Held for a turn of one queue pair at most.
    while Arc::get_mut(&mut region).is_none() {
        std::thread::yield_now();
    }
}

impl Regions {
    /// No regions, at most `most`; `seed` makes the keys hard to guess.
    pub fn new(most: usize, seed: u64) -> Self {
        Self { table: RwLock::new(RegionTable::new(most, seed)), client: None }
    }

    /// Also reaches memory of other processes.
    pub fn with(self, client: &Arc<Client>) -> Self {
        Self { client: Some(Arc::clone(client)), ..self }
    }

    fn table(&self) -> RwLockReadGuard<'_, RegionTable> {
        self.table.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn table_mut(&self) -> RwLockWriteGuard<'_, RegionTable> {
        self.table.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds the region that `make` makes for its key.
    pub fn insert(&self, make: impl FnOnce(Key) -> Region) -> Result<Key, Full> {
        faultable_copy::admit();
        self.table_mut().insert(make)
    }

    /// Puts another region into the place of the one with its key. When this returns, nobody uses the old one any
    /// more.
    pub fn replace(&self, region: Region) -> Result<(), TableError> {
        let old = self.table_mut().replace(region)?;
        settle(old);
        Ok(())
    }

    /// Removes a region. When this returns, nobody copies from or to it any more: the memory is the application's own
    /// again.
    pub fn remove(&self, key: Key) -> Result<(), TableError> {
        let old = self.table_mut().remove(key)?;
        settle(old);
        Ok(())
    }

    /// How many there are, memory windows included.
    pub fn count(&self) -> usize {
        self.table().len()
    }

    /// All regions, as they are now.
    pub fn all(&self) -> Vec<Region> {
        self.table().regions().cloned().collect()
    }

    /// How many regions there are, and their bytes together.
    pub fn totals(&self) -> (u64, u64) {
        self.table().regions().fold((0, 0), |(count, bytes), region| (count + 1, bytes + region.length))
    }

    /// Adds a memory window.
    pub fn insert_window(&self, pd: Pd, kind: WindowType) -> Result<Key, Full> {
        self.table_mut().insert_window(pd, kind)
    }

    /// The region or window that has `key`.
    pub fn region(&self, key: Key) -> Option<Held> {
        self.table().get(key).map(|region| Held(Arc::clone(region)))
    }

    /// Binds a memory window. When this returns, nobody copies from or to what it showed before.
    pub(super) fn bind(&self, pd: Pd, qpn: Qpn, bind: &Bind) -> Result<(), BindError> {
        let old = self.table_mut().bind(pd, qpn, bind)?;
        if let Some(old) = old {
            settle(old);
        }
        Ok(())
    }

    /// Takes back a bind, likewise.
    pub(super) fn undo_bind(&self, qpn: Qpn, bind: &Bind) {
        let old = self.table_mut().undo_bind(qpn, bind);
        if let Some(old) = old {
            settle(old);
        }
    }

    /// Unbinds the memory window with `key`, likewise.
    pub(super) fn invalidate(&self, pd: Pd, qpn: Qpn, key: Key) -> Result<(), Refusal> {
        if is_elsewhere(pd) {
            return self.client.as_ref().ok_or(Refusal::Vanished)?.invalidate(pd, qpn, key);
        }
        let old = self.table_mut().invalidate(pd, qpn, key)?;
        settle(old);
        Ok(())
    }

    /// Other processes, and their memory.
    pub(super) fn client(&self) -> Option<&Client> {
        self.client.as_deref()
    }

    /// Removes a memory window; `key` is any that it has had.
    pub fn remove_window(&self, key: Key) -> Result<(), TableError> {
        let old = self.table_mut().remove_window(key)?;
        if let Some(old) = old {
            settle(old);
        }
        Ok(())
    }
}
