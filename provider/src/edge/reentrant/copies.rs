//! Copies of lists of work requests, with their scatter/gather lists and inline data, in memory of one piece.

use std::ptr::{self, NonNull};

use urxe_engine::PostError;
use urxe_ffi::verbs as v;

use super::ALIGN;
use crate::kernel::Errno;
use urxe_runtime::limits;
use urxe_runtime::memory::faultable_copy;

/// A work request of a list.
pub(super) trait Request: Copy {
    fn next(&self) -> *mut Self;
    /// Scatter/gather list.
    fn sges(&self) -> (*mut v::ibv_sge, i32);
    fn is_inline(&self) -> bool;
    fn relink(&mut self, next: *mut Self, sg_list: *mut v::ibv_sge);
}

impl Request for v::ibv_send_wr {
    fn next(&self) -> *mut Self {
        self.next
    }

    fn sges(&self) -> (*mut v::ibv_sge, i32) {
        (self.sg_list, self.num_sge)
    }

    fn is_inline(&self) -> bool {
        self.send_flags & v::IBV_SEND_INLINE != 0
    }

    fn relink(&mut self, next: *mut Self, sg_list: *mut v::ibv_sge) {
        (self.next, self.sg_list) = (next, sg_list);
    }
}

impl Request for v::ibv_recv_wr {
    fn next(&self) -> *mut Self {
        self.next
    }

    fn sges(&self) -> (*mut v::ibv_sge, i32) {
        (self.sg_list, self.num_sge)
    }

    fn is_inline(&self) -> bool {
        false
    }

    fn relink(&mut self, next: *mut Self, sg_list: *mut v::ibv_sge) {
        (self.next, self.sg_list) = (next, sg_list);
    }
}

/// Bytes that the copy of a list takes, or the request that cannot be posted.
///
/// # Safety
/// `first` begins a list that ends with null.
pub(super) unsafe fn room<W: Request>(first: NonNull<W>, max_inline: u32) -> Result<usize, (*mut W, Errno)> {
    let (mut at, mut room) = (first.as_ptr(), 0);
    // SAFETY: the caller's promise.
    while let Some(wr) = unsafe { at.as_ref() } {
        let (list, count) = wr.sges();
        let known = u32::try_from(count).ok().filter(|count| *count <= limits::MAX_SGE);
        let count = known.ok_or((at, Errno(libc::EINVAL)))? as usize;
        let mut bytes = 0_usize;
        if wr.is_inline() {
            // SAFETY: the list has that many elements.
            bytes = (0..count).map(|index| unsafe { (*list.add(index)).length } as usize).sum();
            if bytes > max_inline as usize {
                return Err((at, Errno::from(PostError::InlineTooLong)));
            }
        }
        room += size_of::<W>().next_multiple_of(ALIGN);
        room += count * size_of::<v::ibv_sge>() + bytes.next_multiple_of(ALIGN);
        at = wr.next();
    }
    Ok(room)
}

/// Copies a list to `to`. The first request there, or the one whose inline data cannot be read.
///
/// # Safety
/// As for [`room`], which says how many bytes there are at `to`.
pub(super) unsafe fn copy<W: Request>(first: NonNull<W>, to: *mut u8) -> Result<*mut W, (*mut W, Errno)> {
    let (mut at, mut to) = (first.as_ptr(), to);
    let copied = to.cast::<W>();
    // SAFETY: the caller's promises: every part fits, and is aligned as all parts are multiples of `ALIGN`.
    unsafe {
        while let Some(wr) = at.as_ref() {
            let (list, count) = wr.sges();
            let count = count.unsigned_abs() as usize;
            let (place, sges) = (to.cast::<W>(), to.add(size_of::<W>().next_multiple_of(ALIGN)).cast::<v::ibv_sge>());
            let mut bytes = sges.add(count).cast::<u8>();
            for index in 0..count {
                let mut sge = list.add(index).read();
                if wr.is_inline() {
                    let length = sge.length as usize;
                    let part = std::slice::from_raw_parts_mut(bytes, length);
                    faultable_copy::load(sge.addr, part).map_err(|_| (at, Errno(libc::EFAULT)))?;
                    sge.addr = bytes as u64;
                    bytes = bytes.add(length);
                }
                sges.add(index).write(sge);
            }
            to = to.add(bytes.offset_from_unsigned(to).next_multiple_of(ALIGN));
            let next = wr.next();
            let mut new = *wr;
            new.relink(if next.is_null() { ptr::null_mut() } else { to.cast() }, sges);
            place.write(new);
            at = next;
        }
    }
    Ok(copied)
}
