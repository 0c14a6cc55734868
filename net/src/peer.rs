//! Sockets between processes of one user: a block's owner listens at a name made of the block, others connect.
//!
//! Both ends see that the other is of the same user (`SO_PEERCRED`): a name alone proves nothing. Messages keep their bounds
//! (SEQPACKET), and may carry a descriptor.

use core::mem::{size_of, zeroed};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::SocketAddr as UnixAddr;

use socket2::{Domain, SockAddr, Socket, Type};

use crate::registry::NAME_PREFIX;
use crate::sys::{Control, socklen};

/// Who may wait to be accepted.
const BACKLOG: libc::c_int = 64;

/// Room for one descriptor; what comes beyond, the kernel closes.
const CONTROL: usize = 24;
const _: () = assert!(size_of::<libc::cmsghdr>() + size_of::<RawFd>() <= CONTROL);

/// What the kernel shows for users that have no number here (`/proc/sys/kernel/overflowuid`): they are not the same.
const OVERFLOW_UID: libc::uid_t = 65534;

fn name(kind: &str, block: u16) -> io::Result<SockAddr> {
    let name = format!("{NAME_PREFIX}/{kind}/{block:04x}");
    // Let std check that it fits before socket2 copies it.
    UnixAddr::from_abstract_name(&name)?;
    SockAddr::unix(format!("\0{name}"))
}

/// Listens at the name that a block has for this `kind` of thing.
pub(crate) fn listen(kind: &str, block: u16) -> io::Result<Socket> {
    let socket = Socket::new(Domain::UNIX, Type::SEQPACKET.nonblocking(), None)?;
    socket.bind(&name(kind, block)?)?;
    socket.listen(BACKLOG)?;
    Ok(socket)
}

/// Connects to who listens there, without waiting. `PermissionDenied` if that is another user.
pub(crate) fn connect(kind: &str, block: u16) -> io::Result<Socket> {
    let socket = Socket::new(Domain::UNIX, Type::SEQPACKET.nonblocking(), None)?;
    socket.connect(&name(kind, block)?)?;
    if is_same_user(socket.as_raw_fd()) { Ok(socket) } else { Err(io::ErrorKind::PermissionDenied.into()) }
}

/// Who waits to be accepted, if it is the same user's; others are sent away. `Ok(None)`: nobody.
pub(crate) fn accept(listener: RawFd) -> io::Result<Option<OwnedFd>> {
    loop {
        let flags = libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        // SAFETY: the peer's address is not asked for.
        let raw = unsafe { libc::accept4(listener, core::ptr::null_mut(), core::ptr::null_mut(), flags) };
        if raw < 0 {
            let error = io::Error::last_os_error();
            match error.raw_os_error() {
                Some(libc::EAGAIN) => return Ok(None),
                Some(libc::EINTR | libc::ECONNABORTED) => continue,
                _ => return Err(error),
            }
        }
        // SAFETY: the call succeeded, so `raw` is open and nobody else's.
        let guest = unsafe { OwnedFd::from_raw_fd(raw) };
        if is_same_user(raw) {
            return Ok(Some(guest));
        }
    }
}

/// Whether the other end was opened by this process' user (`SO_PEERCRED`, unix(7)).
//= spec/hosts.md#net-020
//# Memory MUST be shared with processes of the same user and host only, and everybody else reached by UDP.
fn is_same_user(fd: RawFd) -> bool {
    // SAFETY: no preconditions.
    is_of(fd, unsafe { libc::geteuid() })
}

fn is_of(fd: RawFd, user: libc::uid_t) -> bool {
    let mut peer = libc::ucred { pid: 0, uid: libc::uid_t::MAX, gid: 0 };
    let mut len = socklen::<libc::ucred>();
    // SAFETY: `peer` is writable, and `len` its size.
    let rc = unsafe { libc::getsockopt(fd, libc::SOL_SOCKET, libc::SO_PEERCRED, (&raw mut peer).cast(), &raw mut len) };
    rc == 0 && peer.uid == user && user != OVERFLOW_UID
}

/// Sends one message with a descriptor, without waiting.
pub(crate) fn send_file(fd: RawFd, bytes: &[u8], file: RawFd) -> io::Result<()> {
    let mut iov = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    let mut control = Control([0_u8; CONTROL]);
    // SAFETY: all-zero bytes are a valid msghdr.
    let mut message: libc::msghdr = unsafe { zeroed() };
    message.msg_iov = &raw mut iov;
    message.msg_iovlen = 1;
    message.msg_control = control.0.as_mut_ptr().cast();
    message.msg_controllen = CONTROL as _;
    // SAFETY: the control buffer is aligned (`Control`) and, as asserted above, has room for one header with a
    // descriptor; CMSG_FIRSTHDR therefore returns its start.
    unsafe {
        let header = libc::CMSG_FIRSTHDR(&raw const message);
        (*header).cmsg_level = libc::SOL_SOCKET;
        (*header).cmsg_type = libc::SCM_RIGHTS;
        (*header).cmsg_len = libc::CMSG_LEN(socklen::<RawFd>()) as _;
        libc::CMSG_DATA(header).cast::<RawFd>().write_unaligned(file);
    }
    // SAFETY: everything that `message` points to outlives the call, and the kernel only reads it.
    let sent = unsafe { libc::sendmsg(fd, &raw const message, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) };
    if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Takes the next message into `buffer`, and the descriptor that came with it. `Ok(None)`: there is none now.
/// `UnexpectedEof` when the other end is gone; `InvalidData` if the message is longer than `buffer`.
pub(crate) fn receive(fd: RawFd, buffer: &mut [u8]) -> io::Result<Option<(usize, Option<OwnedFd>)>> {
    let mut iov = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    let mut control = Control([0_u8; CONTROL]);
    // SAFETY: all-zero bytes are a valid msghdr.
    let mut message: libc::msghdr = unsafe { zeroed() };
    message.msg_iov = &raw mut iov;
    message.msg_iovlen = 1;
    message.msg_control = control.0.as_mut_ptr().cast();
    message.msg_controllen = CONTROL as _;
    // SAFETY: every pointer in `message` is to live, writable memory of the length beside it.
    let received = unsafe { libc::recvmsg(fd, &raw mut message, libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC) };
    let Ok(received) = usize::try_from(received) else {
        let error = io::Error::last_os_error();
        let later = matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EINTR));
        return if later { Ok(None) } else { Err(error) };
    };
    let file = descriptor(&message);
    match received {
        0 => Err(io::ErrorKind::UnexpectedEof.into()),
        _ if message.msg_flags & libc::MSG_TRUNC != 0 => Err(io::ErrorKind::InvalidData.into()),
        length => Ok(Some((length, file))),
    }
}

/// The descriptor that came with a message.
fn descriptor(message: &libc::msghdr) -> Option<OwnedFd> {
    // SAFETY: `message` was filled in by recvmsg, and its control buffer is alive in the caller.
    let header = unsafe { libc::CMSG_FIRSTHDR(message) };
    if header.is_null() {
        return None;
    }
    // SAFETY: CMSG_FIRSTHDR returns null or a header that lies wholly in the control buffer.
    let found = unsafe { header.read_unaligned() };
    // SAFETY: no pointers.
    let length = unsafe { libc::CMSG_LEN(socklen::<RawFd>()) };
    if (found.cmsg_level, found.cmsg_type) != (libc::SOL_SOCKET, libc::SCM_RIGHTS) || found.cmsg_len != length as usize
    {
        return None;
    }
    // SAFETY: a header with one descriptor, which the kernel has just opened for this process.
    Some(unsafe { OwnedFd::from_raw_fd(libc::CMSG_DATA(header).cast::<RawFd>().read_unaligned()) })
}

#[cfg(test)]
mod tests {
    use super::*;

    //= spec/hosts.md#net-010
    //= type=test
    //# Nobody MUST get at another process' part of an XRC domain but who is of the same user and shows the domain's file.
    #[test]
    fn another_user_is_told_from_this_one() {
        let (near, _far) = Socket::pair(Domain::UNIX, Type::SEQPACKET, None).unwrap();
        // SAFETY: no preconditions.
        let me = unsafe { libc::geteuid() };
        assert_eq!(is_of(near.as_raw_fd(), me), me != OVERFLOW_UID);
        assert!(!is_of(near.as_raw_fd(), me.wrapping_add(1)));
        // Who has no credentials at the other end is nobody's.
        let alone = Socket::new(Domain::UNIX, Type::SEQPACKET, None).unwrap();
        assert!(!is_of(alone.as_raw_fd(), me));
    }
}
