//! Objects by number: what `ibv_import_pd(3)`, `ibv_import_mr(3)` and `ibv_import_dm(3)` find.
//!
//! A context and those that import its file share a table, as they share the kernel's `ib_uverbs_file`.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, Weak};

use urxe_engine::Key;

use super::dm::DeviceMemory;
use super::objects::{ProtectionDomain, Registration};
use crate::kernel::Errno;
use urxe_runtime::lock;
use urxe_runtime::memory::mapping::Mapping;

/// A number that stands for nothing (any more): as the kernel's `uverbs_get_uobject_from_file`.
const UNKNOWN: Errno = Errno(libc::ENOENT);

/// Memory region behind an `ibv_mr`, besides the engine's.
#[derive(Clone, Debug)]
pub(crate) struct Registered {
    /// Arguments of the registration.
    pub(crate) asked: Registration,
    /// Keeps the domain from being freed.
    pub(crate) domain: Arc<ProtectionDomain>,
    /// Memory that is ours.
    pub(crate) backing: Option<Arc<Mapping>>,
    /// R_Key.
    pub(crate) r_key: u32,
}

/// Objects made through one uverbs file.
#[derive(Debug, Default)]
pub(crate) struct Handles {
    domains: Mutex<HashMap<u32, Weak<ProtectionDomain>>>,
    /// By L_Key.
    regions: Mutex<HashMap<u32, Registered>>,
    memories: Mutex<HashMap<u32, Weak<DeviceMemory>>>,
    next_memory: AtomicU32,
}

impl Handles {
    /// Makes a domain known by its number.
    pub(crate) fn add_domain(&self, domain: &Arc<ProtectionDomain>) {
        lock(&self.domains).insert(domain.id().0, Arc::downgrade(domain));
    }

    /// The domain of this number.
    pub(crate) fn domain(&self, handle: u32) -> Result<Arc<ProtectionDomain>, Errno> {
        lock(&self.domains).get(&handle).and_then(Weak::upgrade).ok_or(UNKNOWN)
    }

    /// Ends that.
    pub(crate) fn remove_domain(&self, handle: u32) {
        lock(&self.domains).remove(&handle);
    }

    /// Makes a region known, or changes what is known of it.
    pub(crate) fn set_region(&self, key: Key, region: Registered) {
        lock(&self.regions).insert(key.0, region);
    }

    /// The region of this number.
    pub(crate) fn region(&self, handle: u32) -> Result<Registered, Errno> {
        lock(&self.regions).get(&handle).cloned().ok_or(UNKNOWN)
    }

    /// Ends that, and lets go of what it held.
    pub(crate) fn remove_region(&self, key: Key) {
        let removed = lock(&self.regions).remove(&key.0);
        drop(removed);
    }

    /// Makes device memory known; returns its number.
    pub(crate) fn add_memory(&self, memory: &Arc<DeviceMemory>) -> u32 {
        let handle = self.next_memory.fetch_add(1, Ordering::Relaxed);
        lock(&self.memories).insert(handle, Arc::downgrade(memory));
        handle
    }

    /// The device memory of this number.
    pub(crate) fn memory(&self, handle: u32) -> Result<Arc<DeviceMemory>, Errno> {
        lock(&self.memories).get(&handle).and_then(Weak::upgrade).ok_or(UNKNOWN)
    }

    /// Ends that.
    pub(crate) fn remove_memory(&self, handle: u32) {
        lock(&self.memories).remove(&handle);
    }
}
