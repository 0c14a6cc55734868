//! Buffers of work requests: scatter/gather lists and inline data.

use std::ffi::c_int;

use urxe_engine::{Data, PostError, Sge, SgeList};
use urxe_ffi::verbs as v;

use crate::kernel::Errno;
use crate::verbs::diagnostics;
use urxe_runtime::limits;
use urxe_runtime::memory::faultable_copy;

/// A scatter/gather list, copied.
///
/// # Safety
/// `list` has `count` elements.
#[inline]
pub(super) unsafe fn buffers(list: *const v::ibv_sge, count: c_int) -> Result<SgeList, Errno> {
    // SAFETY: the caller's promise.
    unsafe { if count == 1 { Ok(SgeList::one(element(list, 0))) } else { several_buffers(list, count) } }
}

/// Copies a scatter/gather list of any other length than 1: the part of [`buffers`] that is not inlined.
///
/// # Safety
/// As for [`buffers`].
unsafe fn several_buffers(list: *const v::ibv_sge, count: c_int) -> Result<SgeList, Errno> {
    let known = u32::try_from(count).ok().filter(|count| *count <= limits::MAX_SGE);
    let count = known.ok_or_else(|| diagnostics::at_most(Errno(libc::EINVAL), "num_sge", count, limits::MAX_SGE))?;
    // SAFETY: within the list.
    let element = |index: usize| unsafe { element(list, index) };
    Ok(match count as usize {
        0 => SgeList::default(),
        2 => SgeList::new(&[element(0), element(1)]),
        many => SgeList::new(&(0..many).map(element).collect::<Vec<_>>()),
    })
}

/// An element of a scatter/gather list.
///
/// # Safety
/// The list has so many.
#[inline]
pub(super) unsafe fn element(list: *const v::ibv_sge, index: usize) -> Sge {
    // SAFETY: the caller's promise.
    let sge = unsafe { list.add(index).read() };
    Sge { addr: sge.addr, length: sge.length, l_key: sge.lkey }
}

/// The bytes of an inline request: the application's buffers are its own again afterwards, and need no L_Key.
pub(super) fn inline(list: &SgeList, max_inline: u32) -> Result<Data, Errno> {
    let length = list.length();
    if length > u64::from(max_inline) {
        return Err(Errno::from(PostError::InlineTooLong));
    }
    copy(list.as_slice().iter().map(|sge| (sge.addr, sge.length as usize))).map(Data::Inline)
}

/// The application's bytes at some addresses, one after the other.
pub(super) fn copy(parts: impl Iterator<Item = (u64, usize)> + Clone) -> Result<Box<[u8]>, Errno> {
    faultable_copy::admit();
    let mut bytes = vec![0; parts.clone().map(|(_, length)| length).sum()].into_boxed_slice();
    let mut rest = &mut *bytes;
    for (addr, length) in parts {
        let (part, behind) = rest.split_at_mut(length);
        faultable_copy::load(addr, part).map_err(|_| {
            diagnostics::wrong(
                Errno(libc::EFAULT),
                "inline data is copied when it is posted, and its memory is not mapped",
                "give addresses of live memory; inline data needs no lkey, but it must be there",
            )
        })?;
        rest = behind;
    }
    Ok(bytes)
}
