//! Operations that a completion counter counts (`ibv_qp_attach_comp_cntr(3)`).

use core::ops::BitOr;

/// Operations (`enum ibv_qp_attach_comp_cntr_op`); the numbers are libibverbs'.
///
/// Incoming READs are not among them: a long READ is asked for in several READ requests, which a responder cannot tell from
/// several READs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CountedOps(u32);

impl CountedOps {
    /// SENDs, with and without immediate data or an R_Key to invalidate.
    pub const SEND: Self = Self(1 << 0);
    /// Receive requests that a message has used.
    pub const RECV: Self = Self(1 << 1);
    /// READs.
    pub const RDMA_READ: Self = Self(1 << 2);
    /// WRITEs, with and without immediate data.
    pub const RDMA_WRITE: Self = Self(1 << 4);
    /// WRITEs of the peer.
    pub const REMOTE_RDMA_WRITE: Self = Self(1 << 5);
    /// All that can be counted.
    pub const ALL: Self =
        Self(Self::SEND.0 | Self::RECV.0 | Self::RDMA_READ.0 | Self::RDMA_WRITE.0 | Self::REMOTE_RDMA_WRITE.0);

    /// Takes libibverbs' bits; `None` if some of them cannot be counted.
    #[must_use]
    pub const fn from_bits(bits: u32) -> Option<Self> {
        if bits & !Self::ALL.0 == 0 { Some(Self(bits)) } else { None }
    }

    /// libibverbs' bits.
    #[must_use]
    pub const fn bits(self) -> u32 {
        self.0
    }

    /// Whether the set is empty.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Whether one of `others` is among them.
    #[must_use]
    pub const fn overlaps(self, others: Self) -> bool {
        self.0 & others.0 != 0
    }
}

impl BitOr for CountedOps {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// Why a completion counter is not attached.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum AttachError {
    /// The queue pair may be at work (EINVAL).
    #[error("the queue pair is in {0}")]
    State(crate::QpState),
    /// Another counter counts one of the operations (EBUSY).
    #[error("another counter counts one of these operations")]
    Overlap,
}
