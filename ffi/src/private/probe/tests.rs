use super::*;
use crate::verbs::{ibv_qp_ex, verbs_context};

/// A library whose `verbs_set_ops` copies what rdma-core's does, for one layout.
unsafe fn set_ops_as(layout: Layout, context: *mut verbs_context, ops: *const c_void, extra: usize) {
    let count = layout.ops().count() + extra;
    // SAFETY: the probe's blocks are large enough for every layout, and hold a pointer at `priv`.
    unsafe {
        let private = *context.byte_add(layout.priv_offset()).cast::<*mut usize>();
        private.add(3).copy_from_nonoverlapping(ops.cast::<usize>(), count);
        for (name, offset) in PUBLIC {
            let index = layout.op_index(name).unwrap();
            let public = layout.context_offset() + offset_of!(ibv_context, ops) + offset;
            *context.byte_add(public).cast::<usize>() = *ops.cast::<usize>().add(index);
        }
    }
}

macro_rules! library {
    ($name:ident, $layout:ident, $extra:expr) => {
        unsafe extern "C" fn $name(context: *mut verbs_context, ops: *const c_void) {
            // SAFETY: called by the probe.
            unsafe { set_ops_as(Layout::$layout, context, ops, $extra) }
        }
    };
}
library!(v34, V34, 0);
library!(v35, V35, 0);
library!(v36, V36, 0);
library!(v59, V59, 0);
library!(v62, V62, 0);
library!(v64, V64, 0);
library!(v65, V65, 0);
library!(unheard_of, V65, 1);

#[test]
fn every_layout_is_recognised_and_an_unknown_one_refused() {
    let libraries: [SetOps; 7] = [v34, v35, v36, v59, v62, v64, v65];
    for (expected, set_ops) in Layout::ALL.into_iter().zip(libraries) {
        assert_eq!(layout(set_ops), Ok(expected));
    }
    assert_eq!(layout(unheard_of), Err(LookupError::UnknownOps(94)));
}

#[test]
fn the_word_that_qp_to_qp_ex_looks_at_is_found() {
    unsafe fn look(qp: *mut ibv_qp, offset: usize) -> *mut ibv_qp_ex {
        // SAFETY: called by the probe, whose block has room for every layout.
        let word = unsafe { *qp.byte_add(offset).cast::<u32>() };
        if word & VERBS_QP_EX == 0 { core::ptr::null_mut() } else { qp.cast() }
    }
    unsafe extern "C" fn v34(qp: *mut ibv_qp) -> *mut ibv_qp_ex {
        // SAFETY: as above.
        unsafe { look(qp, 344) }
    }
    unsafe extern "C" fn v44(qp: *mut ibv_qp) -> *mut ibv_qp_ex {
        // SAFETY: as above.
        unsafe { look(qp, 352) }
    }
    unsafe extern "C" fn v45(qp: *mut ibv_qp) -> *mut ibv_qp_ex {
        // SAFETY: as above.
        unsafe { look(qp, 360) }
    }
    unsafe extern "C" fn never(_: *mut ibv_qp) -> *mut ibv_qp_ex {
        core::ptr::null_mut()
    }
    assert_eq!(qp_layout(v34), Ok(QpLayout::V34));
    assert_eq!(qp_layout(v44), Ok(QpLayout::V44));
    assert_eq!(qp_layout(v45), Ok(QpLayout::V45));
    assert_eq!(qp_layout(never), Err(LookupError::UnknownQp));
}
