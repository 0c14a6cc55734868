//! Types of `<infiniband/verbs.h>` that came after rdma-core 44, as far as the op table names them.

use core::marker::{PhantomData, PhantomPinned};

use crate::verbs::ibv_context;

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
}

/// A completion counter (rdma-core 65).
#[repr(C)]
pub struct ibv_comp_cntr {
    /// The device.
    pub context: *mut ibv_context,
    /// The kernel's number of it.
    pub handle: u32,
}

/// Attributes of a new completion counter (rdma-core 65).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ibv_comp_cntr_init_attr {
    /// No bit is known.
    pub comp_mask: u32,
    /// `enum ibv_comp_cntr_type`.
    pub type_: core::ffi::c_uint,
    /// No bit is known.
    pub flags: u32,
}

/// `ibv_comp_cntr_init_attr::type`: work requests are counted.
pub const IBV_COMP_CNTR_TYPE_WRS: core::ffi::c_uint = 0;
/// `ibv_comp_cntr_init_attr::type`: bytes are counted.
pub const IBV_COMP_CNTR_TYPE_BYTES: core::ffi::c_uint = 1;

/// Capabilities of completion counters (rdma-core 65).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ibv_comp_cntr_caps {
    /// The largest value.
    pub max_value: u64,
    /// Largest number of counters.
    pub max_counters: u32,
    /// Operations that can be counted: `enum ibv_qp_attach_comp_cntr_op`.
    pub supported_qp_attach_ops: u32,
}

/// Operations of a queue pair that a completion counter counts (rdma-core 65).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ibv_qp_attach_comp_cntr_attr {
    /// No bit is known.
    pub comp_mask: u32,
    /// `enum ibv_qp_attach_comp_cntr_op`.
    pub op_mask: u32,
}

/// A DMA handle (rdma-core 59).
#[repr(C)]
pub struct ibv_dmah {
    /// The device.
    pub context: *mut ibv_context,
}

/// Attributes of a new DMA handle (rdma-core 59).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ibv_dmah_init_attr {
    /// Mask of the members that are set: `IBV_DMAH_INIT_ATTR_MASK_*`.
    pub comp_mask: u32,
    /// The processor that will look at what is written.
    pub cpu_id: u32,
    /// PCIe's processing hint.
    pub ph: u8,
    /// `enum ibv_tph_mem_type`: 0 volatile, 1 persistent.
    pub tph_mem_type: u8,
}

/// `ibv_dmah_init_attr::cpu_id` counts.
pub const IBV_DMAH_INIT_ATTR_MASK_CPU_ID: u32 = 1 << 0;
/// `ibv_dmah_init_attr::ph` counts.
pub const IBV_DMAH_INIT_ATTR_MASK_PH: u32 = 1 << 1;
/// `ibv_dmah_init_attr::tph_mem_type` counts.
pub const IBV_DMAH_INIT_ATTR_MASK_TPH_MEM_TYPE: u32 = 1 << 2;

/// `ibv_parent_domain_init_attr::comp_mask` (rdma-core 64): buffers may be where a confidential guest shares memory with its
/// host, if a device needs that.
pub const IBV_PARENT_DOMAIN_INIT_ATTR_ALLOW_CC_UNPROTECTED_ALLOC: u32 = 1 << 2;

/// Argument of `ibv_reg_mr_ex` (rdma-core 59; `buf` since 64, so look at `comp_mask` first).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ibv_mr_init_attr {
    /// Bytes.
    pub length: usize,
    /// `ibv_access_flags`.
    pub access: core::ffi::c_int,
    /// Mask of the following members that count: `IBV_REG_MR_MASK_*`.
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
