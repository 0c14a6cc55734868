//! A simulated address space: mappings with nothing between them, and regions registered on them.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ops::Deref;
use std::sync::Arc;

use urxe_engine::{
    Access, AccessRequest, Accessor, Bind, BindError, Fault, Invalidation, Key, Memory, MemoryOp, Pd, Refusal, Region,
    RegionKind, RegionTable, Remote, WindowType,
};
use urxe_wire::{Qpn, RKey};

/// Unmapped bytes between two mappings.
const GUARD: u64 = 0x1_0000;
/// Where the first mapping is.
const BASE: u64 = 0x7F00_0000_0000;

/// The protection domain everything belongs to that does not name another.
pub const DEFAULT_PD: Pd = Pd(1);

/// A mapping that is registered as a whole.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Buffer {
    /// First address.
    pub addr: u64,
    /// Bytes.
    pub length: u64,
    /// L_Key and R_Key.
    pub key: Key,
}

impl Buffer {
    /// Returns it as a peer names it.
    #[must_use]
    pub const fn remote(&self) -> Remote {
        self.remote_at(0)
    }

    /// Returns the place `offset` bytes into it as a peer names it.
    #[must_use]
    pub const fn remote_at(&self, offset: u64) -> Remote {
        Remote { addr: self.addr + offset, r_key: RKey(self.key.0) }
    }
}

/// An access that the engine must not have made: part of it is in no registered region.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Violation {
    /// First host address.
    pub addr: u64,
    /// Bytes.
    pub length: usize,
    /// The access was to write.
    pub write: bool,
}

/// A store of the engine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Store {
    /// First host address.
    pub addr: u64,
    /// Bytes.
    pub length: usize,
}

/// A process's memory: the application pokes and peeks, the engine goes through [`Memory`].
#[derive(Debug)]
pub struct AddressSpace {
    next: u64,
    keys: RefCell<RegionTable>,
    /// Regions, to find violations; the table of keys cannot be gone through.
    registered: Vec<Arc<Region>>,
    inner: RefCell<Inner>,
    /// Accesses to come that nobody answers.
    silent: Cell<usize>,
}

#[derive(Debug, Default)]
struct Inner {
    mappings: BTreeMap<u64, Mapping>,
    violations: Vec<Violation>,
    /// Stores since they were taken; `None`: nobody wants them.
    stores: Option<Vec<Store>>,
}

#[derive(Debug)]
struct Mapping {
    bytes: Vec<u8>,
    writable: bool,
}

impl AddressSpace {
    /// An empty one; `seed` decides the keys.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self {
            next: BASE,
            keys: RefCell::new(RegionTable::new(1 << 16, seed)),
            registered: Vec::new(),
            inner: RefCell::default(),
            silent: Cell::new(0),
        }
    }

    /// Maps `length` zero bytes and returns the first address, a multiple of 64 KiB.
    pub fn map(&mut self, length: usize) -> u64 {
        let addr = self.next;
        self.next += (length as u64).next_multiple_of(GUARD) + GUARD;
        self.inner.get_mut().mappings.insert(addr, Mapping { bytes: vec![0; length], writable: true });
        addr
    }

    /// Unmaps the mapping at `addr`, behind the back of regions registered on it.
    pub fn unmap(&mut self, addr: u64) {
        self.inner.get_mut().mappings.remove(&addr);
    }

    /// The next so many accesses are to memory of another process, which does not answer.
    pub fn fall_silent(&self, accesses: usize) {
        self.silent.set(accesses);
    }

    /// Makes the mapping at `addr` read-only.
    ///
    /// # Panics
    /// If there is no mapping at `addr`.
    pub fn protect(&mut self, addr: u64) {
        self.inner.get_mut().mappings.get_mut(&addr).expect("a mapping starts there").writable = false;
    }

    /// Registers memory under its own addresses.
    ///
    /// # Panics
    /// If there are 65536 regions.
    pub fn register(&mut self, pd: Pd, access: Access, addr: u64, length: u64) -> Key {
        self.register_at(pd, access, addr, length, addr)
    }

    /// Registers memory whose first byte is named `iova`.
    ///
    /// # Panics
    /// If there are 65536 regions.
    pub fn register_at(&mut self, pd: Pd, access: Access, addr: u64, length: u64, iova: u64) -> Key {
        let region = |key| Region { key, pd, access, iova, length, host: addr, kind: RegionKind::Memory };
        let keys = self.keys.get_mut();
        let key = keys.insert(region).expect("fewer than 65536 regions");
        self.registered.extend(keys.get(key).cloned());
        key
    }

    /// Maps `length` bytes and registers them.
    pub fn register_new(&mut self, length: usize, access: Access) -> Buffer {
        let addr = self.map(length);
        Buffer { addr, length: length as u64, key: self.register(DEFAULT_PD, access, addr, length as u64) }
    }

    /// Makes a memory window.
    ///
    /// # Panics
    /// If there are 65536 regions and windows.
    pub fn alloc_window(&mut self, pd: Pd, kind: WindowType) -> Key {
        self.keys.get_mut().insert_window(pd, kind).expect("fewer than 65536 windows")
    }

    /// Deregisters the region.
    ///
    /// # Panics
    /// If it is none, or a window is bound to it.
    pub fn deregister(&mut self, key: Key) {
        self.keys.get_mut().remove(key).expect("a region that no window is bound to");
        self.registered.retain(|region| region.key != key);
    }

    /// Reads memory as the application.
    ///
    /// # Panics
    /// If it is not mapped.
    #[must_use]
    pub fn peek(&self, addr: u64, length: usize) -> Vec<u8> {
        let mut inner = self.inner.borrow_mut();
        inner.find(addr, length, false).expect("the application reads what it mapped").to_vec()
    }

    /// Whether memory is as expected; like [`peek`](Self::peek) without the copy.
    ///
    /// # Panics
    /// If it is not mapped.
    #[must_use]
    pub fn holds(&self, addr: u64, expected: &[u8]) -> bool {
        let mut inner = self.inner.borrow_mut();
        inner.find(addr, expected.len(), false).expect("the application reads what it mapped") == expected
    }

    /// Writes memory as the application.
    ///
    /// # Panics
    /// If it is not mapped.
    pub fn poke(&mut self, addr: u64, bytes: &[u8]) {
        let inner = self.inner.get_mut();
        inner.find(addr, bytes.len(), true).expect("the application writes what it mapped").copy_from_slice(bytes);
    }

    /// Keeps the engine's stores from now on, for [`take_stores`](Self::take_stores).
    pub fn record_stores(&mut self) {
        self.inner.get_mut().stores = Some(Vec::new());
    }

    /// Stores of packets and responses since the last call, oldest first; those of atomics are not among them.
    #[must_use]
    pub fn take_stores(&self) -> Vec<Store> {
        self.inner.borrow_mut().stores.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Accesses outside of registered regions, oldest first. There must be none.
    #[must_use]
    pub fn violations(&self) -> Vec<Violation> {
        self.inner.borrow().violations.clone()
    }

    fn engine_access<T>(
        &self,
        addr: u64,
        length: usize,
        write: bool,
        then: impl FnOnce(&mut [u8]) -> T,
    ) -> Result<T, Fault> {
        let mut inner = self.inner.borrow_mut();
        let end = addr.checked_add(length as u64);
        let inside =
            |region: &Arc<Region>| region.host <= addr && end.is_some_and(|e| e <= region.host + region.length);
        if !self.registered.iter().any(inside) {
            inner.violations.push(Violation { addr, length, write });
        }
        inner.find(addr, length, write).map(then).ok_or(Fault)
    }
}

impl Inner {
    fn find(&mut self, addr: u64, length: usize, write: bool) -> Option<&mut [u8]> {
        let (start, mapping) = self.mappings.range_mut(..=addr).next_back()?;
        let offset = usize::try_from(addr - start).ok()?;
        if write && !mapping.writable {
            return None;
        }
        mapping.bytes.get_mut(offset..offset.checked_add(length)?)
    }
}

impl Memory for AddressSpace {
    fn region(&self, key: Key) -> Option<impl Deref<Target = Region>> {
        self.keys.borrow().get(key).cloned()
    }

    fn read(&self, from: u64, to: &mut [u8]) -> Result<(), Fault> {
        self.engine_access(from, to.len(), false, |bytes| to.copy_from_slice(bytes))
    }

    fn write(&self, to: u64, from: &[u8]) -> Result<(), Fault> {
        self.engine_access(to, from.len(), true, |bytes| bytes.copy_from_slice(from))?;
        if let Some(stores) = &mut self.inner.borrow_mut().stores {
            stores.push(Store { addr: to, length: from.len() });
        }
        Ok(())
    }

    fn compare_swap(&self, at: u64, compare: u64, swap: u64) -> Result<u64, Fault> {
        self.update(at, |old| if old == compare { swap } else { old })
    }

    fn fetch_add(&self, at: u64, add: u64) -> Result<u64, Fault> {
        self.update(at, |old| old.wrapping_add(add))
    }

    fn flush(&self, at: u64, length: u64, _persistent: bool) -> Result<(), Fault> {
        let length = usize::try_from(length).map_err(|_| Fault)?;
        self.engine_access(at, length, false, |_| ())
    }

    fn bind(&self, pd: Pd, qpn: Qpn, bind: &Bind) -> Result<(), BindError> {
        self.keys.borrow_mut().bind(pd, qpn, bind).map(drop)
    }

    fn undo_bind(&self, qpn: Qpn, bind: &Bind) {
        self.keys.borrow_mut().undo_bind(qpn, bind);
    }

    fn is_remote(&self, _by: Accessor) -> bool {
        self.silent.get() > 0
    }

    fn access_remote(&self, _ask: &AccessRequest, _touch: &mut MemoryOp<'_>) -> Result<u64, Refusal> {
        self.silent.set(self.silent.get().saturating_sub(1));
        Err(Refusal::Silent)
    }

    fn invalidate(&self, pd: Pd, qpn: Qpn, key: Key, _how: Invalidation) -> Result<(), Refusal> {
        self.keys.borrow_mut().invalidate(pd, qpn, key).map(drop)
    }
}

impl AddressSpace {
    fn update(&self, at: u64, new: impl FnOnce(u64) -> u64) -> Result<u64, Fault> {
        assert!(at.is_multiple_of(8), "the engine checks the alignment of atomics");
        self.engine_access(at, 8, true, |bytes| {
            let old = u64::from_ne_bytes(bytes.try_into().expect("eight bytes"));
            bytes.copy_from_slice(&new(old).to_ne_bytes());
            old
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_accesses_outside_of_regions() {
        let mut space = AddressSpace::new(1);
        let addr = space.map(256);
        let key = space.register(DEFAULT_PD, Access::NONE, addr + 64, 64);
        assert_eq!(space.write(addr + 64, &[1; 64]), Ok(()));
        assert_eq!(space.violations(), []);
        assert_eq!(space.write(addr + 64, &[1; 65]), Ok(()));
        assert_eq!(space.read(addr + 63, &mut [0; 2]), Ok(()));
        assert_eq!(space.read(u64::MAX, &mut [0; 2]), Err(Fault));
        space.deregister(key);
        assert_eq!(space.read(addr + 64, &mut [0; 2]), Ok(()));
        let writes: Vec<_> = space.violations().iter().map(|violation| violation.write).collect();
        assert_eq!(writes, [true, false, false, false]);
    }

    #[test]
    fn unmapped_and_read_only_memory_faults() {
        let mut space = AddressSpace::new(1);
        let buffer = space.register_new(64, Access::LOCAL_WRITE);
        space.protect(buffer.addr);
        assert_eq!(space.write(buffer.addr, &[0]), Err(Fault));
        assert_eq!(space.read(buffer.addr, &mut [0]), Ok(()));
        space.unmap(buffer.addr);
        assert_eq!(space.read(buffer.addr, &mut [0]), Err(Fault));
        assert_eq!(space.violations(), []);
    }
}
