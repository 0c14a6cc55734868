//! The regions of one device in this process.

use std::collections::HashMap;
use std::convert::Infallible;
use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, Weak};

use urxe_engine::mw::TableError;
use urxe_engine::{
    Access, Bind, BindError, Invalidation, Key, Pd, Refusal, Region, RegionKind, RegionTable, TableFull, WindowType,
};
use urxe_net::direct::Export;
use urxe_wire::Qpn;

use super::kept::Generation;
use super::{faultable_copy, shared_pages};
use crate::direct::region;
use crate::lock;
use crate::xrc::client::{Client, is_remote};

/// All regions and memory windows of a device. Read by every packet, changed by registration.
#[derive(Debug)]
pub struct Regions {
    table: RwLock<RegionTable>,
    /// Regions of other processes, which XRC messages may be about.
    client: Option<Arc<Client>>,
    /// Changes when a region is taken out of the table.
    generation: Generation,
    /// Contexts that keep regions cached.
    keepers: RwLock<Vec<Weak<dyn Keepers>>>,
    /// Table in which peers of this host see them.
    shown: OnceLock<Shown>,
}

/// Contexts that keep regions cached ([`kept`](super::kept)).
pub(crate) trait Keepers: fmt::Debug + Send + Sync {
    /// Waits until none of them uses the region that had `key`, which was taken out of the table. The caller has no context, and no queue
    /// pair's engine: others wait for that with their contexts locked.
    fn wait(&self, key: Key);
}

/// Regions that peers of this host see.
#[derive(Debug)]
struct Shown {
    export: Arc<Export>,
    /// Offsets of their memory in the shared file.
    places: Mutex<HashMap<Key, u64>>,
}

impl Shown {
    /// Where the memory of a region is in the shared file from now on, if it can be there. A window is where the region `parent` is,
    /// which stays as long as it.
    fn place(&self, region: &Region, parent: Option<&Region>) -> Option<u64> {
        let at = match region.kind {
            RegionKind::Memory => {
                // Peers write to receive buffers, too.
                let is_reachable = region.access.intersects(Access::REMOTE | Access::MW_BIND | Access::LOCAL_WRITE);
                if region.access.contains(Access::ON_DEMAND) || !is_reachable {
                    return None;
                }
                shared_pages::share(region.host, region.length)?
            }
            RegionKind::Window(_) => {
                let (parent, places) = (parent?, lock(&self.places));
                places.get(&parent.key)?.checked_add(region.host.checked_sub(parent.host)?)?
            }
            RegionKind::Null => return None,
        };
        lock(&self.places).insert(region.key, at);
        Some(at)
    }

    /// Where the memory of a region is in the shared file, if it is there.
    fn place_of(&self, region: &Region) -> Option<u64> {
        lock(&self.places).get(&region.key).copied()
    }

    /// Waits until nobody is at what is hidden, and ends the sharing of the memory of a registration.
    fn settle(&self, region: &Region, wait: Wait) {
        match wait {
            Wait::Long => self.export.wait(),
            Wait::Brief => self.export.wait_briefly(),
        }
        let at = lock(&self.places).remove(&region.key);
        // Of registrations: windows are within them.
        if let Some(at) = at.filter(|_| region.kind == RegionKind::Memory) {
            shared_pages::unshare(region.host, region.length, at);
        }
    }
}

/// Patience with peers that copy from or to what is hidden.
#[derive(Clone, Copy)]
enum Wait {
    /// Of the application, which takes the memory back or closes a window.
    Long,
    /// Of packets that close a window.
    Brief,
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
    /// Makes an empty table for `most` entries at most; `seed` makes the keys hard to guess.
    pub fn new(most: usize, seed: u64) -> Self {
        Self {
            table: RwLock::new(RegionTable::new(most, seed)),
            client: None,
            generation: Generation::first(),
            keepers: RwLock::default(),
            shown: OnceLock::new(),
        }
    }

    /// Adds the memory of other processes that `client` reaches.
    pub fn with(self, client: &Arc<Client>) -> Self {
        Self { client: Some(Arc::clone(client)), ..self }
    }

    /// Shows those to peers of this host that are made from now on.
    pub(crate) fn show_by(&self, export: &Arc<Export>) {
        let _ = self.shown.set(Shown { export: Arc::clone(export), places: Mutex::default() });
    }

    /// Adds contexts that keep regions cached.
    pub(crate) fn keep_by(&self, keepers: Weak<dyn Keepers>) {
        self.keepers.write().unwrap_or_else(PoisonError::into_inner).push(keepers);
    }

    /// The region that has this key, and where it is in the shared file, if peers see it.
    pub(crate) fn shared(&self, key: u32) -> Option<(Region, u64)> {
        let region = self.table().get(Key(key)).map(|region| Region::clone(region))?;
        let at = self.shown.get()?.place_of(&region)?;
        Some((region, at))
    }

    /// The generation of the table.
    #[inline]
    pub(crate) fn generation(&self) -> u64 {
        self.generation.now()
    }

    /// A copy of the region that has `key`, and the generation of the table that has it.
    pub(super) fn copy(&self, key: Key) -> Option<(Region, u64)> {
        let table = self.table();
        table.get(key).map(|region| (Region::clone(region), self.generation.now()))
    }

    /// Takes `old`, which was hidden, out of use.
    fn settle(&self, old: Arc<Region>, wait: Wait) {
        // Windows are not kept.
        if !matches!(old.kind, RegionKind::Window(_)) {
            // Waits without the lock: a turn may take long.
            let keepers = self.keepers.read().unwrap_or_else(PoisonError::into_inner).clone();
            keepers.iter().filter_map(Weak::upgrade).for_each(|keepers| keepers.wait(old.key));
        }
        if let Some(shown) = self.shown.get() {
            shown.settle(&old, wait);
        }
        settle(old);
    }

    /// Hides a region that has just been taken out of the table, which is still locked: its key may be given again soon.
    fn hide(&self, old: &Region) {
        self.generation.advance();
        if let Some(shown) = self.shown.get() {
            region::hide(&shown.export, old);
        }
    }

    fn table(&self) -> RwLockReadGuard<'_, RegionTable> {
        self.table.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn table_mut(&self) -> RwLockWriteGuard<'_, RegionTable> {
        self.table.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets `act` at `[host, host + length)` of a region in use, where the application's mapping of it has faulted: in the file that
    /// the memory is shared by. `None`: it is not.
    #[cold]
    pub(super) fn reach_shared<T>(
        &self,
        region: &Region,
        host: u64,
        length: usize,
        act: impl FnOnce(u64) -> T,
    ) -> Option<T> {
        let at = self.shown.get()?.place_of(region)?.checked_add(host.checked_sub(region.host)?)?;
        shared_pages::reach(host, length as u64, at, act)
    }

    /// Adds the region that `make` makes for its key.
    ///
    /// # Errors
    /// [`TableFull`]; `make` is not called then.
    pub fn insert(&self, make: impl FnOnce(Key) -> Region) -> Result<Key, TableFull> {
        faultable_copy::admit();
        let key = self.table_mut().insert(make)?;
        self.show(key, None);
        Ok(key)
    }

    /// Shows the region that has `key`, or the window that is bound to `parent`, if peers can reach its memory.
    fn show(&self, key: Key, parent: Option<Key>) {
        let Some(shown) = self.shown.get() else { return };
        let (region, parent) = {
            let table = self.table();
            let Some(region) = table.get(key).cloned() else { return };
            (region, parent.and_then(|parent| table.get(parent).cloned()))
        };
        let Some(at) = shown.place(&region, parent.as_deref()) else { return };
        drop(parent);
        // Whoever takes it out of the table meanwhile hides it then, or has done so already.
        let table = self.table();
        if table.get(key).is_some_and(|now| Arc::ptr_eq(now, &region)) {
            region::show(&shown.export, &region, at);
        } else if region.kind != RegionKind::Memory {
            // A window that another thread has closed since: whatever has its key later is somewhere else.
            lock(&shown.places).remove(&key);
        }
    }

    /// Replaces the region that has the key of `region`. When this returns, nobody uses the old one any more.
    ///
    /// # Errors
    /// [`TableError`]; the table is as it was.
    pub fn replace(&self, region: Region) -> Result<(), TableError> {
        let key = region.key;
        let old = self.change(|table| table.replace(region))?;
        self.settle(old, Wait::Long);
        self.show(key, None);
        Ok(())
    }

    /// Removes a region. When this returns, nobody copies from or to it any more: the memory is the application's own
    /// again.
    ///
    /// # Errors
    /// [`TableError`]; the table is as it was.
    pub fn remove(&self, key: Key) -> Result<(), TableError> {
        let old = self.change(|table| table.remove(key))?;
        self.settle(old, Wait::Long);
        Ok(())
    }

    /// Changes the table, and hides what was taken out of use.
    fn change<E>(&self, change: impl FnOnce(&mut RegionTable) -> Result<Arc<Region>, E>) -> Result<Arc<Region>, E> {
        let mut table = self.table_mut();
        change(&mut table).inspect(|old| self.hide(old))
    }

    /// Changes the table, and hides what was taken out of use, if anything was.
    fn change_window<E>(
        &self,
        change: impl FnOnce(&mut RegionTable) -> Result<Option<Arc<Region>>, E>,
    ) -> Result<Option<Arc<Region>>, E> {
        let mut table = self.table_mut();
        change(&mut table).inspect(|old| old.iter().for_each(|old| self.hide(old)))
    }

    /// Number of regions, memory windows included.
    pub fn count(&self) -> usize {
        self.table().len()
    }

    /// All regions, as they are now.
    pub fn all(&self) -> Vec<Region> {
        self.table().regions().cloned().collect()
    }

    /// Number of regions, and their bytes together; as many as can be told, if one is of all memory.
    pub fn totals(&self) -> (u64, u64) {
        let add = |(count, bytes): (u64, u64), region: &Region| (count + 1, bytes.saturating_add(region.length));
        self.table().regions().fold((0, 0), add)
    }

    /// Adds a memory window.
    ///
    /// # Errors
    /// [`TableFull`].
    pub fn insert_window(&self, pd: Pd, kind: WindowType) -> Result<Key, TableFull> {
        self.table_mut().insert_window(pd, kind)
    }

    /// The region or window that has `key`.
    pub fn region(&self, key: Key) -> Option<Held> {
        self.table().get(key).map(|region| Held(Arc::clone(region)))
    }

    /// Binds a memory window. When this returns, nobody copies from or to what it showed before, but for a peer that was stopped in
    /// the middle of a copy.
    pub(super) fn bind(&self, pd: Pd, qpn: Qpn, bind: &Bind) -> Result<(), BindError> {
        let old = self.change_window(|table| table.bind(pd, qpn, bind))?;
        if let Some(old) = old {
            self.settle(old, Wait::Long);
        }
        self.show(bind.new_key, Some(bind.region));
        Ok(())
    }

    /// Takes back a bind. Peers that are not done at once copy on: packets may be what ends its request.
    pub(super) fn undo_bind(&self, qpn: Qpn, bind: &Bind) {
        let old = self.change_window::<Infallible>(|table| Ok(table.undo_bind(qpn, bind)));
        if let Ok(Some(old)) = old {
            self.settle(old, Wait::Brief);
        }
    }

    /// Unbinds the memory window with `key`. When this returns, nobody copies from or to what it showed, but for a peer that was
    /// stopped in the middle of a copy; a packet waits for no peer that is not done at once.
    pub(super) fn invalidate(&self, pd: Pd, qpn: Qpn, key: Key, how: Invalidation) -> Result<(), Refusal> {
        if is_remote(pd) {
            return self.client.as_ref().ok_or(Refusal::Vanished)?.invalidate(pd, qpn, key);
        }
        let old = self.change(|table| table.invalidate(pd, qpn, key))?;
        let wait = match how {
            Invalidation::Local => Wait::Long,
            Invalidation::Remote => Wait::Brief,
        };
        self.settle(old, wait);
        Ok(())
    }

    /// Other processes, and their memory.
    pub(super) fn client(&self) -> Option<&Client> {
        self.client.as_deref()
    }

    /// Removes a memory window; `key` is any that it has had.
    ///
    /// # Errors
    /// [`TableError::NoSuchKey`] if no window has or had it.
    pub fn remove_window(&self, key: Key) -> Result<(), TableError> {
        let old = self.change_window(|table| table.remove_window(key))?;
        if let Some(old) = old {
            self.settle(old, Wait::Long);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_region_of_all_memory_and_another_are_counted() {
        let regions = Regions::new(8, 1);
        for length in [u64::MAX, 4096] {
            let access = Access::ON_DEMAND;
            let make = |key| Region { key, pd: Pd(1), access, iova: 0, length, host: 0, kind: RegionKind::Memory };
            regions.insert(make).unwrap();
        }
        assert_eq!(regions.totals(), (2, u64::MAX));
    }
}
