//! Which versions of the private ABI there are, and how they differ.

use core::ffi::CStr;
use core::mem::{offset_of, size_of};

use crate::verbs::{ibv_context, ibv_qp_ex, verbs_context};

/// The number of a private ABI: `verbs_register_driver_<N>`, `IBVERBS_PRIVATE_<N>`, `lib*-rdmav<N>.so`.
///
/// It is the release of rdma-core that last changed the ABI on purpose (`IBVERBS_PABI_VERSION` in CMakeLists.txt).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Pabi {
    /// rdma-core 34 to 56.
    V34,
    /// rdma-core 57 and 58.
    V57,
    /// rdma-core 59 to 63.
    V59,
    /// rdma-core 64.
    V64,
    /// rdma-core 65.
    V65,
}

impl Pabi {
    /// Every number we serve, oldest first.
    pub const ALL: [Self; 5] = [Self::V34, Self::V57, Self::V59, Self::V64, Self::V65];

    /// The number itself.
    pub const fn number(self) -> u32 {
        match self {
            Self::V34 => 34,
            Self::V57 => 57,
            Self::V59 => 59,
            Self::V64 => 64,
            Self::V65 => 65,
        }
    }

    /// The function by which a provider makes itself known.
    pub const fn register_symbol(self) -> &'static CStr {
        match self {
            Self::V34 => c"verbs_register_driver_34",
            Self::V57 => c"verbs_register_driver_57",
            Self::V59 => c"verbs_register_driver_59",
            Self::V64 => c"verbs_register_driver_64",
            Self::V65 => c"verbs_register_driver_65",
        }
    }
}

/// The shape of `verbs_context_ops` and `verbs_context`, named by the first release of rdma-core that has it.
///
/// Ops were only ever added, in alphabetical place; `verbs_context` grows at its front.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Layout {
    /// 34.
    V34,
    /// 35: import and unimport of device memory.
    V35,
    /// 36 to 58: `query_qp_data_in_order`.
    V36,
    /// 59 to 61: DMA handles, `reg_mr_ex`.
    V59,
    /// 62 and 63, under the number 59 still: port speed, export of device memory.
    V62,
    /// 64: provider-allocated buffers.
    V64,
    /// 65: completion counters.
    V65,
}

impl Layout {
    /// Every shape, oldest first.
    pub const ALL: [Self; 7] = [Self::V34, Self::V35, Self::V36, Self::V59, Self::V62, Self::V64, Self::V65];

    /// How many pointers `verbs_context` has in front of those of rdma-core 44.
    const fn context_growth(self) -> usize {
        match self {
            Self::V34 | Self::V35 | Self::V36 => 0,
            // alloc_dmah, dealloc_dmah, reg_mr_ex
            Self::V59 => 3,
            // dm_export_dmabuf_fd
            Self::V62 => 4,
            // alloc_buf, free_buf
            Self::V64 | Self::V65 => 6,
        }
    }

    /// Offset, in bytes, of the public `ibv_context` in the library's `verbs_context`. It is the last member.
    pub const fn context_offset(self) -> usize {
        self.context_growth() * size_of::<usize>() + offset_of!(verbs_context, context)
    }

    /// Size, in bytes, of the library's `verbs_context`.
    pub const fn context_size(self) -> usize {
        self.context_offset() + size_of::<ibv_context>()
    }

    /// Offset of `verbs_context::priv_`, which stays at a fixed distance from the end.
    pub const fn priv_offset(self) -> usize {
        self.context_growth() * size_of::<usize>() + offset_of!(verbs_context, priv_)
    }
}

/// Place where the library's `verbs_qp` keeps the flag that says "this is an `ibv_qp_ex`": right behind `ibv_qp_ex`,
/// which grew twice without a new [`Pabi`]. Named by the first release of rdma-core that has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum QpLayout {
    /// 34 to 43.
    V34,
    /// 44: `wr_atomic_write`.
    V44,
    /// 45 and later: `wr_flush`.
    V45,
}

impl QpLayout {
    /// Every shape, oldest first.
    pub const ALL: [Self; 3] = [Self::V34, Self::V44, Self::V45];

    /// Size of `ibv_qp_ex` in bytes, which is the offset of `verbs_qp::comp_mask`.
    pub const fn comp_mask_offset(self) -> usize {
        match self {
            Self::V34 => size_of::<ibv_qp_ex>() - size_of::<usize>(),
            Self::V44 => size_of::<ibv_qp_ex>(),
            Self::V45 => size_of::<ibv_qp_ex>() + size_of::<usize>(),
        }
    }
}

const _: () = {
    // V34's offset is that of the member which only later releases have.
    assert!(QpLayout::V34.comp_mask_offset() == offset_of!(ibv_qp_ex, wr_atomic_write));
    assert!(Layout::V36.context_size() == size_of::<verbs_context>());
};
