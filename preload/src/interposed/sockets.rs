//! Functions of sockets: those that a socket of `NETLINK_RDMA` needs help with ([`crate::netlink`]).

use core::ffi::{c_int, c_uint, c_void};

use crate::folder::is_active;
use crate::netlink::{self, NETLINK_RDMA, NETLINK_USERSOCK, is_netlink};
use crate::next::fail;
use crate::pointer::is_readable;

type Bytes = *const c_void;
type Room = *mut c_void;

/// The most pieces that a message has (`UIO_MAXIOV` of `<linux/uio.h>`).
const MOST_PIECES: usize = 1024;

interpose! {
    others {
        fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int = |next| {
            if domain == libc::AF_NETLINK && protocol == NETLINK_RDMA && is_active() {
                crate::devices_are_looked_for();
                if !netlink::is_served() {
                    return fail(libc::EPROTONOSUPPORT);
                }
                // SAFETY: numbers.
                let fd = unsafe { next(domain, kind, NETLINK_USERSOCK) };
                if fd >= 0 && !netlink::remember(fd) {
                    // SAFETY: just opened.
                    unsafe { libc::close(fd) };
                    return fail(libc::EPROTONOSUPPORT);
                }
                return fd;
            }
            // SAFETY: the caller's own call.
            unsafe { next(domain, kind, protocol) }
        }
        fn bind(fd: c_int, address: Bytes, length: c_uint) -> c_int = |next| {
            if !is_netlink(fd) {
                // SAFETY: the caller's own call.
                return unsafe { next(fd, address, length) };
            }
            let mut own = [0_u8; size_of::<libc::sockaddr_nl>()];
            let usable = if address.is_null() { 0 } else { own.len().min(length as usize) };
            if !is_readable(address, usable) {
                return fail(libc::EFAULT);
            }
            // SAFETY: the caller's address is that long.
            unsafe { address.cast::<u8>().copy_to_nonoverlapping(own.as_mut_ptr(), usable) };
            // Its groups are of another protocol.
            if let Some(groups) = own.last_chunk_mut::<4>() {
                *groups = [0; 4];
            }
            // SAFETY: an address of our own.
            let result = unsafe { next(fd, own.as_ptr().cast(), c_uint::try_from(usable).unwrap_or_default()) };
            if result == 0 {
                netlink::bound(fd);
            }
            result
        }
        fn setsockopt(fd: c_int, level: c_int, name: c_int, value: Bytes, length: c_uint) -> c_int = |next| {
            if level == libc::SOL_NETLINK && name == libc::NETLINK_ADD_MEMBERSHIP && is_netlink(fd) {
                // Nothing is announced.
                return fail(libc::EOPNOTSUPP);
            }
            // SAFETY: the caller's own call.
            unsafe { next(fd, level, name, value, length) }
        }
        fn send(fd: c_int, bytes: Bytes, length: usize, flags: c_int) -> isize = |next| {
            let piece = libc::iovec { iov_base: bytes.cast_mut(), iov_len: length };
            // SAFETY: the caller's bytes, without an address; or the caller's own call.
            unsafe { netlink::sent(fd, &[piece], core::ptr::null(), 0).unwrap_or_else(|| next(fd, bytes, length, flags)) }
        }
        fn sendto(fd: c_int, bytes: Bytes, length: usize, flags: c_int, to: Bytes, to_length: c_uint) -> isize = |next| {
            let piece = libc::iovec { iov_base: bytes.cast_mut(), iov_len: length };
            // SAFETY: the caller's bytes and address; or the caller's own call.
            unsafe {
                netlink::sent(fd, &[piece], to, to_length)
                    .unwrap_or_else(|| next(fd, bytes, length, flags, to, to_length))
            }
        }
        fn sendmsg(fd: c_int, message: *const libc::msghdr, flags: c_int) -> isize = |next| {
            if is_netlink(fd) && is_readable(message, size_of::<libc::msghdr>()) {
                // SAFETY: the caller's message.
                let message = unsafe { &*message };
                let (pieces, count) = (message.msg_iov.cast_const(), message.msg_iovlen);
                if count > MOST_PIECES {
                    return fail(libc::EMSGSIZE);
                }
                if !is_readable(pieces, count * size_of::<libc::iovec>()) {
                    return fail(libc::EFAULT);
                }
                // SAFETY: as above.
                let pieces = if count == 0 { &[] } else { unsafe { core::slice::from_raw_parts(pieces, count) } };
                // SAFETY: as above.
                if let Some(sent) = unsafe { netlink::sent(fd, pieces, message.msg_name, message.msg_namelen) } {
                    return sent;
                }
            }
            // SAFETY: the caller's own call.
            unsafe { next(fd, message, flags) }
        }
        fn recv(fd: c_int, room: Room, length: usize, flags: c_int) -> isize = |next| {
            // SAFETY: the caller's own call.
            let received = unsafe { next(fd, room, length, flags) };
            if received >= 0 {
                // SAFETY: no address.
                unsafe { netlink::received(fd, core::ptr::null_mut(), || 0) };
            }
            received
        }
        fn recvfrom(
            fd: c_int, room: Room, length: usize, flags: c_int, from: Room, from_length: *mut c_uint
        ) -> isize = |next| {
            // SAFETY: the caller's own call.
            let received = unsafe { next(fd, room, length, flags, from, from_length) };
            if received >= 0 {
                // SAFETY: the system has filled in `from_length` if it has filled in `from`.
                unsafe { netlink::received(fd, from, || from_length.read()) };
            }
            received
        }
        fn __recvfrom_chk(
            fd: c_int, room: Room, length: usize, size: usize, flags: c_int, from: Room, from_length: *mut c_uint
        ) -> isize = |next| {
            // SAFETY: the caller's own call.
            let received = unsafe { next(fd, room, length, size, flags, from, from_length) };
            if received >= 0 {
                // SAFETY: the system has filled in `from_length` if it has filled in `from`.
                unsafe { netlink::received(fd, from, || from_length.read()) };
            }
            received
        }
        fn recvmsg(fd: c_int, message: *mut libc::msghdr, flags: c_int) -> isize = |next| {
            // SAFETY: the caller's own call.
            let received = unsafe { next(fd, message, flags) };
            if received >= 0 {
                // SAFETY: the system has filled it in.
                unsafe { netlink::received(fd, (*message).msg_name, || (*message).msg_namelen) };
            }
            received
        }
    }
}
