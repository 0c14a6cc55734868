//! Types of `<infiniband/verbs.h>` that came after rdma-core 44, as far as the op table names them.

use core::marker::{PhantomData, PhantomPinned};

macro_rules! opaque {
    ($($(#[$doc:meta])* $name:ident)*) => {$(
        $(#[$doc])*
        #[repr(C)]
        pub struct $name {
            _opaque: [u8; 0],
            _foreign: PhantomData<(*mut u8, PhantomPinned)>,
        }
    )*};
}

opaque! {
    /// A provider-allocated buffer (rdma-core 64).
    ibv_buf
    /// A DMA handle (rdma-core 59).
    ibv_dmah
    /// How to make a DMA handle (rdma-core 59).
    ibv_dmah_init_attr
    /// A completion counter (rdma-core 65).
    ibv_comp_cntr
    /// How to make a completion counter (rdma-core 65).
    ibv_comp_cntr_init_attr
    /// What completion counters can do (rdma-core 65).
    ibv_comp_cntr_caps
    /// What a completion counter counts (rdma-core 65).
    ibv_qp_attach_comp_cntr_attr
}

/// What `ibv_reg_mr_ex` registers (rdma-core 59; `buf` since 64, so look at `comp_mask` first).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ibv_mr_init_attr {
    /// Bytes.
    pub length: usize,
    /// `ibv_access_flags`.
    pub access: core::ffi::c_int,
    /// Which of the following count: `IBV_REG_MR_MASK_*`.
    pub comp_mask: u64,
    /// Address that peers and SGEs use.
    pub iova: u64,
    /// Address in this process.
    pub addr: *mut core::ffi::c_void,
    /// A dma-buf.
    pub fd: core::ffi::c_int,
    /// Offset in the dma-buf, in bytes.
    pub fd_offset: u64,
    /// Processing hints.
    pub dmah: *mut ibv_dmah,
    /// A buffer of `ibv_alloc_buf`.
    pub buf: *mut ibv_buf,
}

/// `ibv_mr_init_attr::iova` counts.
pub const IBV_REG_MR_MASK_IOVA: u64 = 1 << 0;
/// `ibv_mr_init_attr::addr` counts.
pub const IBV_REG_MR_MASK_ADDR: u64 = 1 << 1;
/// `ibv_mr_init_attr::fd` counts.
pub const IBV_REG_MR_MASK_FD: u64 = 1 << 2;
/// `ibv_mr_init_attr::fd_offset` counts.
pub const IBV_REG_MR_MASK_FD_OFFSET: u64 = 1 << 3;
/// `ibv_mr_init_attr::dmah` counts.
pub const IBV_REG_MR_MASK_DMAH: u64 = 1 << 4;
/// `ibv_mr_init_attr::buf` counts.
pub const IBV_REG_MR_MASK_BUF: u64 = 1 << 5;
