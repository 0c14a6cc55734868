//! Lists of calls that were put aside, linked by [`Node::next`].

use std::{mem, ptr};

use super::Node;

/// The list the other way round.
pub(super) fn reversed(mut list: *mut Node) -> *mut Node {
    let mut result = ptr::null_mut();
    // SAFETY: the caller's own list.
    while let Some(node) = unsafe { list.as_mut() } {
        let next = mem::replace(&mut node.next, result);
        result = mem::replace(&mut list, next);
    }
    result
}

/// Adds nodes at the end of a list.
pub(super) fn append(list: &mut *mut Node, nodes: *mut Node) {
    let mut at = list;
    // SAFETY: the caller's own list.
    while let Some(node) = unsafe { at.as_mut() } {
        at = &mut node.next;
    }
    *at = nodes;
}

/// Whether a call in the list is for this queue.
pub(super) fn is_for(mut list: *mut Node, queue: *const ()) -> bool {
    // SAFETY: the caller's own list.
    while let Some(node) = unsafe { list.as_ref() } {
        if node.call.queue() == queue {
            return true;
        }
        list = node.next;
    }
    false
}
