//! Posting work requests to raw packet queue pairs.

use urxe_engine::{Data, PostError, RecvWr};
use urxe_ffi::verbs as v;

use super::object::{RawQpObject, object};
use super::requests::Request;
use crate::edge::buffers::{buffers, copy, inline};
use crate::edge::work_requests::each;
use crate::kernel::Errno;
use urxe_runtime::device::Device;
use urxe_runtime::limits;
use urxe_runtime::raw::RecvQueue;

/// Posts a list of send requests; of a signal handler inside another call none, as its thread may hold any lock.
///
/// # Safety
/// As for `ibv_post_send(3)`, of a raw packet queue pair.
#[cold]
pub(in crate::edge) unsafe fn post_send(
    qp: *mut v::ibv_qp,
    is_nested: bool,
    first: *mut v::ibv_send_wr,
    bad_wr: *mut *mut v::ibv_send_wr,
) -> Result<(), Errno> {
    // SAFETY: the caller's queue pair.
    let object = unsafe { object(qp) };
    if is_nested {
        // SAFETY: the caller's pointer.
        unsafe { bad_wr.write(first) };
        return Err(Errno(libc::ENOMEM));
    }
    // SAFETY: the caller's pointer.
    let qp = object.own().inspect_err(|_| unsafe { bad_wr.write(first) })?;
    qp.device().with_work(|work| {
        qp.post_send(work, |stage| {
            let post = |wr: &v::ibv_send_wr| {
                // SAFETY: a request of the caller's list.
                let request = unsafe { request(object, wr) }?;
                stage.push(&request.as_send()).map_err(Errno::from)
            };
            // SAFETY: the caller's list and pointer.
            unsafe { each(first, |wr| wr.next, bad_wr, post) }
        })
    })
}

/// Reads a send request.
///
/// # Safety
/// `wr` has a list of the length that it says.
unsafe fn request(object: &RawQpObject, wr: &v::ibv_send_wr) -> Result<Request, Errno> {
    let tso = match wr.opcode {
        v::IBV_WR_SEND => None,
        v::IBV_WR_TSO => {
            // SAFETY: the member that the opcode names.
            let tso = unsafe { wr.__bindgen_anon_2.tso };
            Some((header(tso.hdr as u64, tso.hdr_sz)?, tso.mss))
        }
        _ => return Err(Errno::from(PostError::Operation)),
    };
    // SAFETY: the caller's promise.
    let list = unsafe { buffers(wr.sg_list, wr.num_sge) }?;
    let is_inline = wr.send_flags & v::IBV_SEND_INLINE != 0;
    let data = if is_inline { inline(&list, object.max_inline)? } else { Data::Gather(list) };
    Ok(Request { wr_id: wr.wr_id, wr_flags: wr.send_flags, data, tso })
}

/// Copies the header of a request of `IBV_WR_TSO`, whose memory need not be registered.
///
/// # Errors
/// EINVAL for one that is longer than any may be; EFAULT.
pub(super) fn header(address: u64, length: u16) -> Result<Box<[u8]>, Errno> {
    if u32::from(length) > limits::MAX_TSO_HEADER {
        return Err(Errno::from(PostError::Operation));
    }
    copy(std::iter::once((address, length.into())))
}

/// Posts a list of receive requests; of a signal handler inside another call none.
///
/// # Safety
/// As for `ibv_post_recv(3)`, of a raw packet queue pair.
#[cold]
pub(in crate::edge) unsafe fn post_recv(
    qp: *mut v::ibv_qp,
    is_nested: bool,
    first: *mut v::ibv_recv_wr,
    bad_wr: *mut *mut v::ibv_recv_wr,
) -> Result<(), Errno> {
    // SAFETY: the caller's queue pair.
    let object = unsafe { object(qp) };
    if is_nested {
        // SAFETY: the caller's pointer.
        unsafe { bad_wr.write(first) };
        return Err(Errno(libc::ENOMEM));
    }
    // SAFETY: the caller's pointer.
    let qp = object.own().inspect_err(|_| unsafe { bad_wr.write(first) })?;
    // SAFETY: the caller's list and pointer.
    unsafe { post_to(qp.device(), qp.recv_queue(), first, bad_wr) }
}

/// Posts a list of receive requests to a queue.
///
/// # Safety
/// As for `ibv_post_recv(3)`.
pub(super) unsafe fn post_to(
    device: &Device,
    queue: &RecvQueue,
    first: *mut v::ibv_recv_wr,
    bad_wr: *mut *mut v::ibv_recv_wr,
) -> Result<(), Errno> {
    device.with_work(|work| {
        let post = |wr: &v::ibv_recv_wr| {
            // SAFETY: a request with that many elements.
            let buffers = unsafe { buffers(wr.sg_list, wr.num_sge) }?;
            queue.post(work, RecvWr { wr_id: wr.wr_id, buffers }).map_err(Errno::from)
        };
        // SAFETY: the caller's list and pointer.
        let posted = unsafe { each(first, |wr| wr.next, bad_wr, post) };
        device.tell(work);
        posted
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_copied_if_they_are_there() {
        let bytes = [7_u8; 54];
        assert_eq!(header(bytes.as_ptr() as u64, 54).as_deref(), Ok(&bytes[..]));
        assert_eq!(header(bytes.as_ptr() as u64, u16::MAX), Err(Errno(libc::EINVAL)));
        assert_eq!(header(8, 54), Err(Errno(libc::EFAULT)));
    }
}
