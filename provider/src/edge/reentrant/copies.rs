//! Copies of lists of work requests, with their scatter/gather lists, inline data, and the objects that they name by pointer,
//! in memory of one piece.

use std::ptr::{self, NonNull};

use urxe_engine::PostError;
use urxe_ffi::verbs as v;

use super::ALIGN;
use crate::edge::ah::AhObject;
use crate::kernel::Errno;
use urxe_runtime::limits;
use urxe_runtime::memory::faultable_copy;

/// A work request of a list.
pub(super) trait Request: Copy {
    fn next(&self) -> *mut Self;
    /// Scatter/gather list.
    fn sges(&self) -> (*mut v::ibv_sge, i32);
    fn is_inline(&self) -> bool;
    fn link(&mut self) -> *mut *mut Self;
    fn set_sges(&mut self, sg_list: *mut v::ibv_sge);

    /// Bytes that copies of the objects take which the request names.
    fn named(&self, _is_datagram: bool) -> usize {
        0
    }

    /// Copies the objects to `to`, and names the copies.
    ///
    /// # Safety
    /// The objects live, and there are as many bytes at `to` as [`named`](Self::named) says, aligned to [`ALIGN`].
    unsafe fn rename(&mut self, _is_datagram: bool, _to: *mut u8) {}

    /// Drops the copies.
    ///
    /// # Safety
    /// The objects are copies, and are not used any more.
    unsafe fn drop_named(&mut self, _is_datagram: bool) {}
}

/// Objects that `IBV_WR_BIND_MW` names.
#[repr(C)]
struct Bound {
    window: v::ibv_mw,
    region: v::ibv_mr,
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

    fn link(&mut self) -> *mut *mut Self {
        &raw mut self.next
    }

    fn set_sges(&mut self, sg_list: *mut v::ibv_sge) {
        self.sg_list = sg_list;
    }

    fn named(&self, is_datagram: bool) -> usize {
        let bytes = match self.opcode {
            _ if is_datagram => size_of::<AhObject>(),
            v::IBV_WR_BIND_MW => size_of::<Bound>(),
            _ => 0,
        };
        bytes.next_multiple_of(ALIGN)
    }

    unsafe fn rename(&mut self, is_datagram: bool, to: *mut u8) {
        // SAFETY: the caller's objects and room; the members of the unions are those of UD and of this opcode.
        unsafe {
            if is_datagram {
                let ud = &mut self.wr.ud;
                if !ud.ah.is_null() {
                    to.cast::<AhObject>().write(AhObject::copy(ud.ah));
                    ud.ah = to.cast();
                }
            } else if self.opcode == v::IBV_WR_BIND_MW {
                let (bind, to) = (&mut self.__bindgen_anon_2.bind_mw, to.cast::<Bound>());
                let (window, region) = (&raw mut (*to).window, &raw mut (*to).region);
                window.copy_from(bind.mw, 1);
                bind.mw = window;
                if !bind.bind_info.mr.is_null() {
                    region.copy_from(bind.bind_info.mr, 1);
                    bind.bind_info.mr = region;
                }
            }
        }
    }

    unsafe fn drop_named(&mut self, is_datagram: bool) {
        // SAFETY: the member of UD; the caller's promise.
        unsafe {
            if is_datagram && !self.wr.ud.ah.is_null() {
                self.wr.ud.ah.cast::<AhObject>().drop_in_place();
            }
        }
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

    fn link(&mut self) -> *mut *mut Self {
        &raw mut self.next
    }

    fn set_sges(&mut self, sg_list: *mut v::ibv_sge) {
        self.sg_list = sg_list;
    }
}

/// A request that cannot be posted, and why. Those before it can.
pub(super) type Refused<W> = Option<(*mut W, Errno)>;

/// Returns the bytes that the copy of a list takes, up to the first request that cannot be posted.
///
/// # Safety
/// `first` begins a list that ends with null.
pub(super) unsafe fn room<W: Request>(first: NonNull<W>, max_inline: u32, is_datagram: bool) -> (usize, Refused<W>) {
    let (mut at, mut room) = (first.as_ptr(), 0);
    // SAFETY: the caller's promise.
    while let Some(wr) = unsafe { at.as_ref() } {
        let (list, count) = wr.sges();
        let Some(count) = u32::try_from(count).ok().filter(|count| *count <= limits::MAX_SGE) else {
            return (room, Some((at, Errno(libc::EINVAL))));
        };
        let count = count as usize;
        let mut bytes = 0_usize;
        if wr.is_inline() {
            // SAFETY: the list has that many elements.
            bytes = (0..count).map(|index| unsafe { (*list.add(index)).length } as usize).sum();
            if bytes > max_inline as usize {
                return (room, Some((at, Errno::from(PostError::InlineTooLong))));
            }
        }
        room += size_of::<W>().next_multiple_of(ALIGN);
        room += count * size_of::<v::ibv_sge>() + bytes.next_multiple_of(ALIGN) + wr.named(is_datagram);
        at = wr.next();
    }
    (room, None)
}

/// Copies a list to `to`, up to `end`, or a request whose inline data cannot be read.
///
/// # Safety
/// As for [`room`], which says how many bytes there are at `to`, and which request is `end`. What the requests name lives.
pub(super) unsafe fn copy<W: Request>(
    first: NonNull<W>,
    end: *mut W,
    is_datagram: bool,
    to: *mut u8,
) -> (*mut W, Refused<W>) {
    let (mut at, mut to) = (first.as_ptr(), to);
    let mut copied = ptr::null_mut();
    let mut link = &raw mut copied;
    // SAFETY: the caller's promises: every part fits, and is aligned as all parts are multiples of `ALIGN`.
    unsafe {
        while let Some(wr) = at.as_ref()
            && at != end
        {
            let (list, count) = wr.sges();
            let count = count.unsigned_abs() as usize;
            let (place, sges) = (to.cast::<W>(), to.add(size_of::<W>().next_multiple_of(ALIGN)).cast::<v::ibv_sge>());
            let mut bytes = sges.add(count).cast::<u8>();
            for index in 0..count {
                let mut sge = list.add(index).read();
                if wr.is_inline() {
                    let length = sge.length as usize;
                    let part = std::slice::from_raw_parts_mut(bytes, length);
                    if faultable_copy::load(sge.addr, part).is_err() {
                        return (copied, Some((at, Errno(libc::EFAULT))));
                    }
                    sge.addr = bytes as u64;
                    bytes = bytes.add(length);
                }
                sges.add(index).write(sge);
            }
            to = to.add(bytes.offset_from_unsigned(to).next_multiple_of(ALIGN));
            let mut new = *wr;
            new.rename(is_datagram, to);
            to = to.add(wr.named(is_datagram));
            new.set_sges(sges);
            new.link().write(ptr::null_mut());
            place.write(new);
            link.write(place);
            link = (*place).link();
            at = wr.next();
        }
    }
    (copied, None)
}

/// Drops copies of a list.
///
/// # Safety
/// The list came from [`copy`], and is not used any more.
pub(super) unsafe fn free<W: Request>(mut list: *mut W, is_datagram: bool) {
    // SAFETY: the caller's promise.
    while let Some(wr) = unsafe { list.as_mut() } {
        // SAFETY: as above.
        unsafe { wr.drop_named(is_datagram) };
        list = wr.next();
    }
}
