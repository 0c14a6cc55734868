//! Finds out the shape of a libibverbs' private structures by watching what it does with them.
//!
//! Both functions that are called here do nothing but move words about (rdma-core 34 to 65: `verbs_set_ops` in
//! `dummy_ops.c`, `ibv_qp_to_qp_ex` in `verbs.c`), so they can be let loose on scratch memory.

use core::ffi::c_void;
use core::mem::offset_of;

use super::{LookupError, QpToQpEx, SetOps};
use crate::driver::objects::{VERBS_QP_EX, verbs_qp};
use crate::driver::{Layout, QpLayout};
use crate::verbs::ibv_context_ops;
use crate::verbs::{ibv_context, ibv_qp};

/// Words of scratch memory for each structure: some ten times what any version needs.
const WORDS: usize = 1024;

/// Ops that `verbs_set_ops` puts into the public `ibv_context_ops` too: name and offset there.
const PUBLIC: [(&str, usize); 9] = [
    ("alloc_mw", offset_of!(ibv_context_ops, alloc_mw)),
    ("bind_mw", offset_of!(ibv_context_ops, bind_mw)),
    ("create_cq", offset_of!(ibv_context_ops, _compat_create_cq)),
    ("detach_mcast", offset_of!(ibv_context_ops, _compat_detach_mcast)),
    ("modify_qp", offset_of!(ibv_context_ops, _compat_modify_qp)),
    ("poll_cq", offset_of!(ibv_context_ops, poll_cq)),
    ("post_send", offset_of!(ibv_context_ops, post_send)),
    ("req_notify_cq", offset_of!(ibv_context_ops, req_notify_cq)),
    ("resize_cq", offset_of!(ibv_context_ops, _compat_resize_cq)),
];

/// Finds the [`Layout`] of the library: hands it a table whose n-th op is the number n, and looks where the numbers
/// turn up.
pub(super) fn layout(set_ops: SetOps) -> Result<Layout, LookupError> {
    let table: Vec<usize> = (1..=WORDS).collect();
    let mut private = vec![0_usize; WORDS];
    // Wherever the library expects the pointer to its private part, it is there.
    let mut context = vec![private.as_mut_ptr() as usize; WORDS];
    // SAFETY: all three blocks are much larger than the structures they stand for, and the library only copies.
    unsafe { set_ops(context.as_mut_ptr().cast(), table.as_ptr().cast::<c_void>()) };

    let count = private.iter().filter(|&&word| word != 0).count();
    let at = |offset: usize| context.get(offset / size_of::<usize>()).copied();
    Layout::ALL
        .into_iter()
        .find(|layout| {
            let public = layout.context_offset() + offset_of!(ibv_context, ops);
            layout.ops().count() == count
                && PUBLIC.iter().all(|(name, offset)| {
                    layout.op_index(name).is_some_and(|index| at(public + offset) == Some(index + 1))
                })
        })
        .ok_or(LookupError::UnknownOps(count))
}

/// Finds the [`QpLayout`] of the library: sets the flag at one place after the other, and sees whether it notices.
pub(super) fn qp_layout(qp_to_qp_ex: QpToQpEx) -> Result<QpLayout, LookupError> {
    QpLayout::ALL
        .into_iter()
        .find(|layout| {
            let mut qp = [0_u64; size_of::<verbs_qp>() / size_of::<u64>()];
            if let Some(word) = qp.get_mut(layout.comp_mask_offset() / size_of::<u64>()) {
                *word = u64::from(VERBS_QP_EX);
            }
            // SAFETY: the block has the size of the largest version; the library reads one word of it.
            !unsafe { qp_to_qp_ex(qp.as_mut_ptr().cast::<ibv_qp>()) }.is_null()
        })
        .ok_or(LookupError::UnknownQp)
}

#[cfg(test)]
mod tests;
