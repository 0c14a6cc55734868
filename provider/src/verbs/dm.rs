//! Device memory (`ibv_alloc_dm(3)`): the device being the process, plain memory of it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::kernel::Errno;
use urxe_runtime::limits;
use urxe_runtime::memory::mapping::Mapping;

/// Bytes in use in this process.
static IN_USE: AtomicU64 = AtomicU64::new(0);

/// Counts against what there is.
#[derive(Debug)]
struct Share(u64);

impl Share {
    fn take(length: u64) -> Option<Self> {
        let taken = IN_USE.fetch_update(Ordering::AcqRel, Ordering::Acquire, |used| {
            used.checked_add(length).filter(|used| *used <= limits::MAX_DM)
        });
        taken.is_ok().then(|| Self(length))
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        IN_USE.fetch_sub(self.0, Ordering::AcqRel);
    }
}

/// A piece of it; every `ibv_dm` that stands for it holds it.
#[derive(Debug)]
pub(crate) struct DeviceMemory {
    length: u64,
    /// Regions keep it mapped, too.
    mapping: Arc<Mapping>,
    _share: Share,
}

impl DeviceMemory {
    /// # Errors
    /// ENOMEM.
    pub(crate) fn new(length: usize) -> Result<Arc<Self>, Errno> {
        let share = Share::take(length as u64).ok_or(Errno(libc::ENOMEM))?;
        let mapping = Arc::new(Mapping::anonymous(length).map_err(|_| Errno(libc::ENOMEM))?);
        Ok(Arc::new(Self { length: length as u64, mapping, _share: share }))
    }

    /// The address of `[offset, offset + length)`.
    ///
    /// # Errors
    /// EINVAL for what is not in it.
    pub(crate) fn part(&self, offset: u64, length: u64) -> Result<u64, Errno> {
        let end = offset.checked_add(length).filter(|end| *end <= self.length);
        end.map(|_| self.mapping.address() + offset).ok_or(Errno(libc::EINVAL))
    }

    /// For a region of it.
    pub(crate) const fn mapping(&self) -> &Arc<Mapping> {
        &self.mapping
    }

    /// Whether there are regions of it.
    pub(crate) fn is_registered(&self) -> bool {
        Arc::strong_count(&self.mapping) > 1
    }
}
