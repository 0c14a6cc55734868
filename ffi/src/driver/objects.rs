//! Verbs objects with the members that libibverbs keeps behind the public ones. A provider's own structs begin with
//! these: the library looks at them.

use core::ffi::c_int;
use core::mem::{offset_of, size_of};

use super::QpLayout;
use crate::verbs::{ibv_cq, ibv_cq_ex, ibv_dm, ibv_mr, ibv_qp, ibv_qp_ex, ibv_srq, ibv_srq_type, ibv_xrcd};

/// `enum ibv_mr_type`: what made a memory region.
#[expect(non_camel_case_types, reason = "C's name")]
pub type ibv_mr_type = core::ffi::c_uint;
/// `ibv_reg_mr` and its kin. Only these may be re-registered, and only these undo fork protection.
pub const IBV_MR_TYPE_MR: ibv_mr_type = 0;
/// `ibv_alloc_null_mr`.
pub const IBV_MR_TYPE_NULL_MR: ibv_mr_type = 1;
/// `ibv_import_mr`.
pub const IBV_MR_TYPE_IMPORTED_MR: ibv_mr_type = 2;
/// `ibv_reg_dmabuf_mr`.
pub const IBV_MR_TYPE_DMABUF_MR: ibv_mr_type = 3;

/// A memory region. `ibv_dereg_mr` and `ibv_rereg_mr` read `mr_type` and `access`.
#[repr(C)]
pub struct verbs_mr {
    /// Public part, which the application sees.
    pub ibv_mr: ibv_mr,
    /// `IBV_MR_TYPE_*`.
    pub mr_type: ibv_mr_type,
    /// `ibv_access_flags`.
    pub access: c_int,
}

/// A shared receive queue.
#[repr(C)]
pub struct verbs_srq {
    /// Public part, which the application sees.
    pub srq: ibv_srq,
    /// `IBV_SRQT_*`.
    pub srq_type: ibv_srq_type,
    /// Domain of an XRC SRQ.
    pub xrcd: *mut verbs_xrcd,
    /// Completion queue of an XRC SRQ.
    pub cq: *mut ibv_cq,
    /// Number of an XRC SRQ.
    pub srq_num: u32,
}

/// An XRC domain.
#[repr(C)]
pub struct verbs_xrcd {
    /// Public part, which the application sees.
    pub xrcd: ibv_xrcd,
    /// `verbs_xrcd_mask`.
    pub comp_mask: u32,
    /// The kernel's handle.
    pub handle: u32,
}

/// Device memory.
#[repr(C)]
pub struct verbs_dm {
    /// Public part, which the application sees.
    pub dm: ibv_dm,
    /// The kernel's handle.
    pub handle: u32,
}

/// A completion queue: `ibv_cq` is a prefix of `ibv_cq_ex`.
#[repr(C)]
pub union verbs_cq {
    /// The plain form.
    pub cq: core::mem::ManuallyDrop<ibv_cq>,
    /// The extended form.
    pub cq_ex: core::mem::ManuallyDrop<ibv_cq_ex>,
}

/// `verbs_qp::comp_mask`: this is an `ibv_qp_ex` (`ibv_qp_to_qp_ex` looks).
pub const VERBS_QP_EX: u32 = 1 << 1;

/// `ibv_qp_ex::wr_flush`, which the headers of rdma-core 44 do not have yet.
pub type WrFlush =
    unsafe extern "C" fn(qp: *mut ibv_qp_ex, rkey: u32, remote_addr: u64, len: usize, type_: u8, level: u8);

/// A queue pair, with room for every [`QpLayout`]. `ibv_qp` is a prefix of `ibv_qp_ex`.
#[repr(C)]
pub struct verbs_qp {
    /// Public part: `ibv_qp`, and the `wr_*` builders if the application asked for them.
    pub qp_ex: ibv_qp_ex,
    /// `wr_flush`, `comp_mask` and `xrcd`, at places that differ by version.
    tail: [u64; 3],
}

impl verbs_qp {
    /// A queue pair of all zeros: no builders, no state.
    pub const fn zeroed() -> Self {
        // SAFETY: plain integers, pointers, Option<fn> and pthread objects; all-zero is a value of each (and
        // glibc's PTHREAD_MUTEX_INITIALIZER and PTHREAD_COND_INITIALIZER).
        unsafe { core::mem::zeroed() }
    }

    /// Tells libibverbs that the builders are there. Call after filling them in: before rdma-core 44 the flag sits
    /// where later ones have `wr_atomic_write`, and takes its place.
    pub fn mark_ex(&mut self, layout: QpLayout) {
        let this: *mut u8 = (&raw mut *self).cast();
        // SAFETY: every layout's word is inside this struct (asserted below) and aligned to 8.
        unsafe { this.add(layout.comp_mask_offset()).cast::<u64>().write(u64::from(VERBS_QP_EX)) };
    }

    /// Fills in `wr_flush`. False where the version has no such builder.
    #[must_use]
    pub fn set_wr_flush(&mut self, layout: QpLayout, wr_flush: WrFlush) -> bool {
        if layout < QpLayout::V45 {
            return false;
        }
        if let Some(word) = self.tail.first_mut() {
            *word = wr_flush as usize as u64;
        }
        true
    }

    /// Public part, which the application sees.
    pub fn public_mut(&mut self) -> &mut ibv_qp {
        let this: *mut Self = self;
        // SAFETY: `ibv_qp` is the prefix of `ibv_qp_ex` (the header's `qp_base`), which is the prefix of this.
        unsafe { &mut *this.cast() }
    }
}

const _: () = {
    assert!(QpLayout::V45.comp_mask_offset() + 2 * size_of::<u64>() <= size_of::<verbs_qp>());
    assert!(offset_of!(verbs_qp, tail) == QpLayout::V44.comp_mask_offset());
    assert!(offset_of!(verbs_qp, tail) % 8 == 0);
};

#[cfg(target_pointer_width = "64")]
const _: () = {
    assert!(size_of::<verbs_mr>() == 56);
    assert!(offset_of!(verbs_mr, mr_type) == 48);
    assert!(size_of::<verbs_xrcd>() == 16);
    assert!(size_of::<verbs_dm>() == 40);
};

// These hold mutexes, whose size is the architecture's.
#[cfg(target_arch = "x86_64")]
const _: () = {
    assert!(size_of::<verbs_srq>() == 160);
    assert!(size_of::<verbs_cq>() == 288);
    assert!(QpLayout::V44.comp_mask_offset() == 352);
};
