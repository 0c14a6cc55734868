//! Sockets between processes of one user: a block's owner listens at a name made of the block, others connect.
//!
//! Both ends see that the other is of the same user (`SO_PEERCRED`): a name alone proves nothing. Messages keep their bounds
//! (SEQPACKET), and may carry a descriptor.

use core::mem::{size_of, zeroed};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

use socket2::{Domain, SockAddr, Socket, Type};

use crate::ipc::NAME_PREFIX;
use crate::ipc::credentials::{Credentials, abstract_address, own_uid};
use crate::sys::{Control, socklen};

/// Connections that may wait to be accepted.
const BACKLOG: libc::c_int = 64;

/// Room for a header and one descriptor, and what aligns the next header.
const CONTROL: usize = 24;
const _: () = assert!(size_of::<libc::cmsghdr>() + size_of::<RawFd>() <= CONTROL);

/// User ID that the kernel shows for users without a number here (`/proc/sys/kernel/overflowuid`): they are not the same user.
const OVERFLOW_UID: libc::uid_t = 65534;

fn name(kind: &str, block: u16) -> io::Result<SockAddr> {
    abstract_address(&format!("{NAME_PREFIX}/{kind}/{block:04x}"))
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

/// Connections of other users that are closed in one turn: they may come as fast as they go.
const OTHERS: usize = 16;

/// Accepts a connection of the same user; others are closed. `Ok(None)`: there is none, or there are so many others that
/// it is time for something else.
pub(crate) fn accept(listener: RawFd) -> io::Result<Option<OwnedFd>> {
    accept_if(listener, is_same_user)
}

fn accept_if(listener: RawFd, is_welcome: impl Fn(RawFd) -> bool) -> io::Result<Option<OwnedFd>> {
    for _ in 0..OTHERS {
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
        if is_welcome(raw) {
            return Ok(Some(guest));
        }
    }
    Ok(None)
}

/// Whether the other end was opened by this process' user (`SO_PEERCRED`, unix(7)).
//= spec/hosts.md#net-020
//# Memory MUST be shared with processes of the same user and host only, and everybody else reached by UDP.
pub(crate) fn is_same_user(fd: RawFd) -> bool {
    is_of(fd, own_uid())
}

fn is_of(fd: RawFd, user: u32) -> bool {
    Credentials::of_raw(fd).is_ok_and(|peer| peer.uid == user) && user != OVERFLOW_UID
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
    // Not CONTROL: what aligns the next header would do for a second descriptor (`scm_max_fds` of net/core/scm.c), which
    // nobody would close. The kernel closes what there is no room for.
    // SAFETY: no pointers.
    message.msg_controllen = unsafe { libc::CMSG_LEN(socklen::<RawFd>()) } as _;
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

    /// Connections of other users that keep coming do not keep a receiver from its work.
    #[test]
    fn others_are_sent_away_a_few_at_a_time() {
        const KIND: &str = "others";
        let block = crate::sys::random::random_u16();
        let listener = listen(KIND, block).unwrap();
        let waiting: Vec<_> = (0..=OTHERS).map(|_| connect(KIND, block).unwrap()).collect();
        assert!(accept_if(listener.as_raw_fd(), |_| false).unwrap().is_none());
        let is_sent_away = |socket: &&Socket| socket.send(b"?").is_err();
        assert_eq!(waiting.iter().filter(is_sent_away).count(), OTHERS);
        assert!(accept(listener.as_raw_fd()).unwrap().is_some(), "the last one still waits");
    }

    /// Descriptors that nobody asked for do not stay open in this process.
    #[test]
    fn a_message_leaves_one_descriptor_at_most() {
        let (near, far) = Socket::pair(Domain::UNIX, Type::SEQPACKET.nonblocking(), None).unwrap();
        let name = format!("urxe-{:08x}", crate::sys::random::random_u32());
        let terminated = std::ffi::CString::new(name.as_str()).unwrap();
        // SAFETY: a terminated name.
        let raw = unsafe { libc::memfd_create(terminated.as_ptr(), libc::MFD_CLOEXEC) };
        assert!(raw >= 0);
        // SAFETY: new, and nobody else's.
        let file = unsafe { OwnedFd::from_raw_fd(raw) };
        let open = || {
            let links = std::fs::read_dir("/proc/self/fd").unwrap();
            let links = links.filter_map(|entry| std::fs::read_link(entry.unwrap().path()).ok());
            links.filter(|target| target.to_string_lossy().contains(&name)).count()
        };
        for count in [1, 2, 3, 8] {
            send_files(near.as_raw_fd(), &vec![file.as_raw_fd(); count]);
            let (length, came) = receive(far.as_raw_fd(), &mut [0; 8]).unwrap().unwrap();
            assert_eq!((length, came.is_some()), (1, true), "{count} sent");
            assert_eq!(open(), 2, "{count} sent");
            drop(came);
        }
        assert_eq!(open(), 1);
    }

    /// One byte with several descriptors.
    fn send_files(fd: RawFd, files: &[RawFd]) {
        let mut iov = libc::iovec { iov_base: [0_u8].as_ptr().cast_mut().cast(), iov_len: 1 };
        let mut control = Control([0_u8; 64]);
        let bytes = libc::socklen_t::try_from(size_of_val(files)).unwrap();
        // SAFETY: all-zero bytes are a valid msghdr.
        let mut message: libc::msghdr = unsafe { zeroed() };
        message.msg_iov = &raw mut iov;
        message.msg_iovlen = 1;
        message.msg_control = control.0.as_mut_ptr().cast();
        // SAFETY: no pointers; and the buffer has room for a header and eight descriptors.
        unsafe {
            message.msg_controllen = libc::CMSG_SPACE(bytes) as _;
            let header = libc::CMSG_FIRSTHDR(&raw const message);
            (*header).cmsg_level = libc::SOL_SOCKET;
            (*header).cmsg_type = libc::SCM_RIGHTS;
            (*header).cmsg_len = libc::CMSG_LEN(bytes) as _;
            let data = libc::CMSG_DATA(header).cast::<RawFd>();
            for (index, file) in files.iter().enumerate() {
                data.add(index).write_unaligned(*file);
            }
            assert_eq!(libc::sendmsg(fd, &raw const message, libc::MSG_DONTWAIT), 1);
        }
    }
}
