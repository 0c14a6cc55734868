//! Selective repeat: what is kept of packets that come out of order, by choice of the host.
//!
//! Two queue pairs that both have [`SelectiveRepeat`] agree on it over the wire ([`urxe_wire::selective`]). The responder
//! then keeps packets behind a gap and says which ones, and the requester sends again only what is missing.

use alloc::sync::Arc;
use core::sync::atomic::{AtomicUsize, Ordering};

/// Paths of a queue pair at most.
pub const MOST_PATHS: u8 = 16;

/// Selective repeat of a queue pair.
#[derive(Clone, Debug)]
pub struct SelectiveRepeat {
    /// Memory for packets behind gaps, shared with others.
    pub memory: Arc<KeptMemory>,
    /// UDP source ports over which packets are spread, at least 1 and [`MOST_PATHS`] at most.
    pub paths: u8,
}

impl SelectiveRepeat {
    /// Selective repeat on one path, with memory shared with others.
    #[must_use]
    pub const fn new(memory: Arc<KeptMemory>) -> Self {
        Self { memory, paths: 1 }
    }
}

/// Bound of the memory that queue pairs take for packets behind gaps.
#[derive(Debug)]
pub struct KeptMemory {
    free: AtomicUsize,
    all: usize,
}

impl Default for KeptMemory {
    fn default() -> Self {
        Self::of(Self::MOST)
    }
}

impl KeptMemory {
    /// Bytes by default: 64 MiB.
    pub const MOST: usize = 64 << 20;

    /// Memory of that many bytes.
    #[must_use]
    pub const fn of(bytes: usize) -> Self {
        Self { free: AtomicUsize::new(bytes), all: bytes }
    }

    /// Whether half of it is free at least.
    pub(crate) fn is_plenty(&self) -> bool {
        self.free() >= self.all / 2
    }

    /// Bytes that are free.
    #[must_use]
    pub fn free(&self) -> usize {
        self.free.load(Ordering::Relaxed)
    }

    /// Takes `bytes`, if there are so many.
    pub(crate) fn take(&self, bytes: usize) -> bool {
        self.free.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |free| free.checked_sub(bytes)).is_ok()
    }

    /// Gives back what was taken.
    pub(crate) fn give_back(&self, bytes: usize) {
        self.free.fetch_add(bytes, Ordering::Relaxed);
    }
}
