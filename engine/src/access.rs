//! Access rights of memory and of queue pairs.

use core::ops::BitOr;

/// A set of rights, with the bits of `enum ibv_access_flags`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Access(u32);

impl Access {
    /// The empty set: local reading is always allowed and has no flag (`ibv_reg_mr(3)`).
    pub const NONE: Self = Self(0);
    /// The device may write for its own application: receives, READ responses, atomic results.
    pub const LOCAL_WRITE: Self = Self(1);
    /// A peer may RDMA WRITE.
    pub const REMOTE_WRITE: Self = Self(1 << 1);
    /// A peer may RDMA READ.
    pub const REMOTE_READ: Self = Self(1 << 2);
    /// A peer may CMP_SWP and FETCH_ADD.
    pub const REMOTE_ATOMIC: Self = Self(1 << 3);
    /// Memory windows may be bound to the region.
    pub const MW_BIND: Self = Self(1 << 4);
    /// Remote addresses count from 0 at the start of the region.
    pub const ZERO_BASED: Self = Self(1 << 5);
    /// Pages need not be there in advance.
    pub const ON_DEMAND: Self = Self(1 << 6);
    /// A hint: the region lies in huge pages.
    pub const HUGETLB: Self = Self(1 << 7);
    /// A peer may FLUSH to global visibility.
    pub const FLUSH_GLOBAL: Self = Self(1 << 8);
    /// A peer may FLUSH to persistence.
    pub const FLUSH_PERSISTENT: Self = Self(1 << 9);

    /// All rights of peers.
    pub const REMOTE: Self = Self(
        Self::REMOTE_WRITE.0
            | Self::REMOTE_READ.0
            | Self::REMOTE_ATOMIC.0
            | Self::FLUSH_GLOBAL.0
            | Self::FLUSH_PERSISTENT.0,
    );

    /// All rights that let somebody change the memory.
    pub const ANY_WRITE: Self = Self(Self::LOCAL_WRITE.0 | Self::REMOTE_WRITE.0 | Self::REMOTE_ATOMIC.0);

    /// Takes the bits of `enum ibv_access_flags`, whatever they are.
    #[must_use]
    pub const fn from_bits(bits: u32) -> Self {
        Self(bits)
    }

    /// Converts them to the bits of `enum ibv_access_flags`.
    #[must_use]
    pub const fn bits(self) -> u32 {
        self.0
    }

    /// Whether all of `rights` are in the set.
    #[must_use]
    pub const fn contains(self, rights: Self) -> bool {
        self.0 & rights.0 == rights.0
    }

    /// Whether any of `rights` is in the set.
    #[must_use]
    pub const fn intersects(self, rights: Self) -> bool {
        self.0 & rights.0 != 0
    }
}

impl BitOr for Access {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}
