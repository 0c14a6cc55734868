//! Registered memory on the heap.

use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;
use core::cell::RefCell;
use core::ops::Deref;

use urxe_wire::{Qpn, RKey};

use crate::access::Access;
use crate::key::Key;
use crate::memory::{Fault, Invalidation, Memory};
use crate::mr::{Pd, Refusal, Region, RegionKind};
use crate::mw::{Bind, BindError, RegionTable};
use crate::work::{Remote, Sge, SgeList};

/// Unused addresses between two buffers.
const GUARD: u64 = 1 << 16;

/// A [`Memory`] for programs without shared application memory: simulators, fuzzers, examples. Each buffer is a `Vec` at
/// an address of its own, registered as a whole.
#[derive(Debug)]
pub struct HeapMemory {
    buffers: RefCell<BTreeMap<u64, Vec<u8>>>,
    regions: RefCell<RegionTable>,
    next: u64,
}

/// A registered buffer of a [`HeapMemory`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Buffer {
    /// First address.
    pub addr: u64,
    /// L_Key and R_Key.
    pub key: Key,
}

impl Buffer {
    /// The bytes from `offset` on, for a peer's READ, WRITE or atomic.
    #[must_use]
    pub const fn remote(&self, offset: u64) -> Remote {
        Remote { addr: self.addr + offset, r_key: RKey(self.key.0) }
    }

    /// The `length` bytes from `offset` on, for a work request.
    #[must_use]
    pub fn sge(&self, offset: u64, length: u32) -> SgeList {
        SgeList::new(&[Sge { addr: self.addr + offset, length, l_key: self.key.0 }])
    }
}

impl HeapMemory {
    /// No buffers; `seed` decides the keys.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        let regions = RefCell::new(RegionTable::new(1 << 16, seed));
        Self { buffers: RefCell::default(), regions, next: GUARD }
    }

    /// Allocates `length` zero bytes and registers them in `pd`. `None` if there are 65 536 regions.
    pub fn register(&mut self, pd: Pd, access: Access, length: usize) -> Option<Buffer> {
        let addr = self.next;
        let bytes = length as u64;
        let region = |key| Region { key, pd, access, iova: addr, length: bytes, host: addr, kind: RegionKind::Memory };
        let key = self.regions.get_mut().insert(region).ok()?;
        self.buffers.get_mut().insert(addr, vec![0; length]);
        self.next += bytes.next_multiple_of(GUARD) + GUARD;
        Some(Buffer { addr, key })
    }

    fn with<T>(&self, addr: u64, length: usize, act: impl FnOnce(&mut [u8]) -> T) -> Result<T, Fault> {
        let mut buffers = self.buffers.borrow_mut();
        let (start, bytes) = buffers.range_mut(..=addr).next_back().ok_or(Fault)?;
        let at = usize::try_from(addr - start).map_err(|_| Fault)?;
        let end = at.checked_add(length).ok_or(Fault)?;
        bytes.get_mut(at..end).map(act).ok_or(Fault)
    }

    fn update(&self, addr: u64, new: impl FnOnce(u64) -> u64) -> Result<u64, Fault> {
        self.with(addr, 8, |word| {
            let old = word.try_into().map_or(0, u64::from_ne_bytes);
            word.copy_from_slice(&new(old).to_ne_bytes());
            old
        })
    }
}

impl Memory for HeapMemory {
    fn region(&self, key: Key) -> Option<impl Deref<Target = Region>> {
        self.regions.borrow().get(key).map(Arc::clone)
    }

    fn read(&self, from: u64, to: &mut [u8]) -> Result<(), Fault> {
        self.with(from, to.len(), |bytes| to.copy_from_slice(bytes))
    }

    fn write(&self, to: u64, from: &[u8]) -> Result<(), Fault> {
        self.with(to, from.len(), |bytes| bytes.copy_from_slice(from))
    }

    fn compare_swap(&self, at: u64, compare: u64, swap: u64) -> Result<u64, Fault> {
        self.update(at, |old| if old == compare { swap } else { old })
    }

    fn fetch_add(&self, at: u64, add: u64) -> Result<u64, Fault> {
        self.update(at, |old| old.wrapping_add(add))
    }

    fn flush(&self, _at: u64, _length: u64, _persistent: bool) -> Result<(), Fault> {
        Ok(())
    }

    fn bind(&self, pd: Pd, qpn: Qpn, bind: &Bind) -> Result<(), BindError> {
        self.regions.borrow_mut().bind(pd, qpn, bind).map(drop)
    }

    fn undo_bind(&self, qpn: Qpn, bind: &Bind) {
        self.regions.borrow_mut().undo_bind(qpn, bind);
    }

    fn invalidate(&self, pd: Pd, qpn: Qpn, key: Key, _how: Invalidation) -> Result<(), Refusal> {
        self.regions.borrow_mut().invalidate(pd, qpn, key).map(drop)
    }
}
