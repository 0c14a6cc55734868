//! Sockets between processes of one user: a block's owner listens at a name made of the block, others connect.
//!
//! Both ends see that the other is of the same user (`SO_PEERCRED`): a name alone proves nothing. Messages keep their bounds
//! (SEQPACKET), and may carry a descriptor.

use core::mem::MaybeUninit;
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};

use rustix::cmsg_space;
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, SocketFlags, accept_with, recvmsg, sendmsg,
};
use socket2::{Domain, SockAddr, Socket, Type};

use crate::ipc::credentials::{Credentials, abstract_address, own_uid};
use crate::ipc::passed_files::refuse_files;
use crate::ipc::{NAME_PREFIX, bind};
use crate::sys::borrow;

/// Connections that may wait to be accepted.
const BACKLOG: libc::c_int = 64;

/// User ID that the kernel shows for users without a number here (`/proc/sys/kernel/overflowuid`): they are not the same user.
const OVERFLOW_UID: libc::uid_t = 65534;

fn name(kind: &str, block: u16) -> io::Result<SockAddr> {
    abstract_address(&format!("{NAME_PREFIX}/{kind}/{block:04x}"))
}

/// Listens at the name that a block has for this `kind` of thing, and refuses files.
pub(crate) fn listen(kind: &str, block: u16) -> io::Result<Socket> {
    let socket = bind::seqpacket(&name(kind, block)?)?;
    socket.listen(BACKLOG)?;
    Ok(socket)
}

/// Listens at the name that a block has for this `kind` of thing, for messages with files.
pub(crate) fn listen_for_files(kind: &str, block: u16) -> io::Result<Socket> {
    let socket = bind::seqpacket_for_files(&name(kind, block)?)?;
    socket.listen(BACKLOG)?;
    Ok(socket)
}

/// A socket to connect by. Nobody sends files to whoever connects.
pub(crate) fn client() -> io::Result<Socket> {
    let socket = Socket::new(Domain::UNIX, Type::SEQPACKET.nonblocking(), None)?;
    refuse_files(&socket);
    Ok(socket)
}

/// Connects to who listens there, without waiting. `PermissionDenied` if that is another user.
pub(crate) fn connect(kind: &str, block: u16) -> io::Result<Socket> {
    let socket = client()?;
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
        match accept_with(borrow(listener), SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
            Ok(guest) if is_welcome(guest.as_raw_fd()) => return Ok(Some(guest)),
            Ok(_) | Err(Errno::INTR | Errno::CONNABORTED) => {}
            Err(Errno::AGAIN) => return Ok(None),
            Err(e) => return Err(e.into()),
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
    send_files(fd, bytes, &[borrow(file)])
}

/// Sends one message with one descriptor or two, without waiting.
pub(crate) fn send_files(fd: RawFd, bytes: &[u8], files: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(2))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    // There is room for two.
    control.push(SendAncillaryMessage::ScmRights(files));
    sendmsg(borrow(fd), &[IoSlice::new(bytes)], &mut control, SendFlags::DONTWAIT | SendFlags::NOSIGNAL)?;
    Ok(())
}

/// Takes the next message into `buffer`, and the descriptor that came with it. `Ok(None)`: there is none now.
/// `UnexpectedEof` when the other end is gone; `InvalidData` if the message is longer than `buffer`.
pub(crate) fn receive(fd: RawFd, buffer: &mut [u8]) -> io::Result<Option<(usize, Option<OwnedFd>)>> {
    Ok(receive_files(fd, buffer)?.map(|(length, [file, _])| (length, file)))
}

/// Takes the next message into `buffer` as [`receive`] does, and as many as two descriptors that came with it.
pub(crate) fn receive_files(fd: RawFd, buffer: &mut [u8]) -> io::Result<Option<(usize, [Option<OwnedFd>; 2])>> {
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(2))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let received = match recvmsg(borrow(fd), &mut [IoSliceMut::new(buffer)], &mut control, flags) {
        Ok(received) => received,
        Err(Errno::AGAIN | Errno::INTR) => return Ok(None),
        Err(e) => return Err(e.into()),
    };
    // The kernel closes descriptors that there is no room for, the iterator those that are not taken: what aligns the next header
    // would do for a second one (`scm_max_fds` of net/core/scm.c).
    let files = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut files) => Some([files.next(), files.next()]),
        _ => None,
    });
    match received.bytes {
        0 => Err(io::ErrorKind::UnexpectedEof.into()),
        _ if received.flags.contains(ReturnFlags::TRUNC) => Err(io::ErrorKind::InvalidData.into()),
        length => Ok(Some((length, files.unwrap_or_default()))),
    }
}

#[cfg(test)]
mod tests {
    use rustix::fs::{MemfdFlags, memfd_create};

    use super::*;

    //= spec/hosts.md#net-010
    //= type=test
    //# Nobody MUST get at another process' part of an XRC domain but who is of the same user and shows the domain's file.
    #[test]
    fn another_user_is_told_from_this_one() {
        let (near, _far) = Socket::pair(Domain::UNIX, Type::SEQPACKET, None).unwrap();
        let me = own_uid();
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
        let file = memfd_create(name.as_str(), MemfdFlags::CLOEXEC).unwrap();
        let open = || {
            let links = std::fs::read_dir("/proc/self/fd").unwrap();
            let links = links.filter_map(|entry| std::fs::read_link(entry.unwrap().path()).ok());
            links.filter(|target| target.to_string_lossy().contains(&name)).count()
        };
        for count in [1, 2, 3, 8] {
            send_many(near.as_raw_fd(), &vec![file.as_raw_fd(); count]);
            let (length, came) = receive(far.as_raw_fd(), &mut [0; 8]).unwrap().unwrap();
            assert_eq!((length, came.is_some()), (1, true), "{count} sent");
            assert_eq!(open(), 2, "{count} sent");
            drop(came);
        }
        assert_eq!(open(), 1);
    }

    /// One byte with several descriptors.
    fn send_many(fd: RawFd, files: &[RawFd]) {
        let files: Vec<_> = files.iter().map(|file| borrow(*file)).collect();
        let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(8))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        assert!(control.push(SendAncillaryMessage::ScmRights(&files)));
        assert_eq!(sendmsg(borrow(fd), &[IoSlice::new(&[0])], &mut control, SendFlags::DONTWAIT), Ok(1));
    }
}
