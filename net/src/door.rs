//! Lines between processes of one user on one host, for what packets cannot do.
//!
//! Who has something under a QPN that others may ask for opens a *door* at the QPN's block: a listening socket whose name
//! is made of the block, as the block's mailbox has one. Who asks connects, which makes a *line*. Messages keep their
//! bounds and their order, and one may carry an open file, which proves that the sender has it. Both ends see that the
//! other is of the same user (`SO_PEERCRED`): a name alone proves nothing.

use core::mem::{size_of, zeroed};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::SocketAddr as UnixAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use socket2::{Domain, SockAddr, Socket, Type};
use urxe_wire::Qpn;

use crate::fd::{Fd, FdSet};
use crate::port::Port;
use crate::registry::{NAME_PREFIX, block_of};
use crate::sys::{Control, socklen};

/// Who may wait at a door.
const BACKLOG: libc::c_int = 64;

/// Room for one descriptor; what comes beyond, the kernel closes.
const CONTROL: usize = 24;
const _: () = assert!(size_of::<libc::cmsghdr>() + size_of::<RawFd>() <= CONTROL);

/// Whom the kernel shows in place of users that have no number here (`/proc/sys/kernel/overflowuid`): two of them need
/// not be the same.
const OVERFLOW_UID: libc::uid_t = 65534;

/// Where other processes may ask for what is under the numbers of a block.
#[derive(Debug)]
pub struct Door {
    socket: Fd,
    fds: Arc<FdSet>,
}

/// A connection with another process.
#[derive(Debug)]
pub struct Line {
    socket: Fd,
}

/// The name of a block's door.
fn name(block: u16) -> io::Result<SockAddr> {
    let name = format!("{NAME_PREFIX}/xrc/{block:04x}");
    // Let std check that it fits before socket2 copies it.
    UnixAddr::from_abstract_name(&name)?;
    SockAddr::unix(format!("\0{name}"))
}

impl Port {
    /// Opens a door at the block of `qpn`, which is this port's. It needs to be waited at
    /// ([`AsRawFd`]), and is closed when it is dropped.
    ///
    /// # Errors
    /// `AddrInUse` if it is open already; what else the system refuses.
    pub fn open_door(&self, qpn: Qpn) -> io::Result<Door> {
        Door::open(self.fds(), block_of(qpn))
    }

    /// A line to the process whose `qpn` is, without waiting.
    ///
    /// # Errors
    /// `ConnectionRefused` if there is no door; `PermissionDenied` if another user would answer; `WouldBlock` if too many
    /// wait there already; what else the system refuses.
    pub fn call(&self, qpn: Qpn) -> io::Result<Line> {
        Line::call(self.fds(), block_of(qpn))
    }

    /// Takes a file into the keeping of the port: a forked child has no part in it.
    ///
    /// # Errors
    /// What the system refuses.
    pub fn keep_file(&self, file: BorrowedFd<'_>) -> io::Result<KeptFile> {
        KeptFile::new(self.fds(), file)
    }
}

/// An open file that a forked child does not have.
#[derive(Debug)]
pub struct KeptFile(Fd);

impl AsRawFd for KeptFile {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

impl KeptFile {
    fn new(fds: &Arc<FdSet>, file: BorrowedFd<'_>) -> io::Result<Self> {
        fds.adopt(file.try_clone_to_owned()?).map(Self)
    }
}

impl AsRawFd for Door {
    fn as_raw_fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }
}

impl AsRawFd for Line {
    fn as_raw_fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }
}

impl Door {
    fn open(fds: &Arc<FdSet>, block: u16) -> io::Result<Self> {
        let socket = Socket::new(Domain::UNIX, Type::SEQPACKET.nonblocking(), None)?;
        socket.bind(&name(block)?)?;
        socket.listen(BACKLOG)?;
        Ok(Self { socket: fds.adopt(socket)?, fds: Arc::clone(fds) })
    }

    /// Takes the line of who waits at the door, if it is the same user's; others are sent away. `Ok(None)`: nobody.
    ///
    /// # Errors
    /// What the system refuses, such as another descriptor.
    //= spec/hosts.md#net-010
    //# Nobody MUST get at another process' part of an XRC domain but who is of the same user and shows the domain's file.
    pub fn answer(&self) -> io::Result<Option<Line>> {
        loop {
            let flags = libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
            // SAFETY: the peer's address is not asked for.
            let raw = unsafe { libc::accept4(self.as_raw_fd(), core::ptr::null_mut(), core::ptr::null_mut(), flags) };
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
                return Ok(Some(Line { socket: self.fds.adopt(guest)? }));
            }
        }
    }
}

/// Whether the other end was opened by this process' user (`SO_PEERCRED`, unix(7)).
fn is_same_user(fd: RawFd) -> bool {
    let mut peer = libc::ucred { pid: 0, uid: libc::uid_t::MAX, gid: 0 };
    let mut len = socklen::<libc::ucred>();
    // SAFETY: `peer` is writable, and `len` its size.
    let rc = unsafe { libc::getsockopt(fd, libc::SOL_SOCKET, libc::SO_PEERCRED, (&raw mut peer).cast(), &raw mut len) };
    // SAFETY: no preconditions.
    rc == 0 && peer.uid == unsafe { libc::geteuid() } && peer.uid != OVERFLOW_UID
}

impl Line {
    fn call(fds: &Arc<FdSet>, block: u16) -> io::Result<Self> {
        let socket = Socket::new(Domain::UNIX, Type::SEQPACKET.nonblocking(), None)?;
        socket.connect(&name(block)?)?;
        if !is_same_user(socket.as_raw_fd()) {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        Ok(Self { socket: fds.adopt(socket)? })
    }

    /// Sends one message, of two parts, without waiting.
    ///
    /// # Errors
    /// `WouldBlock` if the other end lets too many messages lie; `BrokenPipe` if it is gone; what else the system
    /// refuses.
    pub fn send(&self, parts: [&[u8]; 2]) -> io::Result<()> {
        crate::sys::send_parts(self.as_raw_fd(), parts).map(drop)
    }

    /// Sends one message with an open file, likewise.
    ///
    /// # Errors
    /// As [`send`](Self::send).
    pub fn send_file(&self, bytes: &[u8], file: &KeptFile) -> io::Result<()> {
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
            libc::CMSG_DATA(header).cast::<RawFd>().write_unaligned(file.0.as_raw_fd());
        }
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        // SAFETY: everything that `message` points to outlives the call, and the kernel only reads it.
        let sent = unsafe { libc::sendmsg(self.as_raw_fd(), &raw const message, flags) };
        if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Takes the next message into `buffer`, and the file that came with it. `Ok(None)`: there is none now.
    ///
    /// # Errors
    /// `UnexpectedEof` when the other end is gone; `InvalidData` if the message is longer than `buffer`; what else the
    /// system says.
    pub fn receive(&self, buffer: &mut [u8]) -> io::Result<Option<(usize, Option<OwnedFd>)>> {
        let mut iov = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
        let mut control = Control([0_u8; CONTROL]);
        // SAFETY: all-zero bytes are a valid msghdr.
        let mut message: libc::msghdr = unsafe { zeroed() };
        message.msg_iov = &raw mut iov;
        message.msg_iovlen = 1;
        message.msg_control = control.0.as_mut_ptr().cast();
        message.msg_controllen = CONTROL as _;
        let flags = libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC;
        // SAFETY: every pointer in `message` is to live, writable memory of the length beside it.
        let received = unsafe { libc::recvmsg(self.as_raw_fd(), &raw mut message, flags) };
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

    /// Takes the next message into `buffer`, when it comes before `until`. `Ok(None)`: it did not.
    ///
    /// # Errors
    /// As [`receive`](Self::receive).
    pub fn receive_until(&self, buffer: &mut [u8], until: Instant) -> io::Result<Option<usize>> {
        loop {
            if let Some((length, _)) = self.receive(buffer)? {
                return Ok(Some(length));
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(None);
            }
            self.wait(left);
        }
    }

    /// Ends the line, at both ends.
    pub fn hang_up(&self) {
        // SAFETY: no pointers. It can only fail by having ended already.
        unsafe { libc::shutdown(self.as_raw_fd(), libc::SHUT_RDWR) };
    }

    /// Waits for a message, or for the end of the line.
    fn wait(&self, most: Duration) {
        let mut poll = libc::pollfd { fd: self.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // Rounded up: not to spin in the last millisecond.
        let most = i32::try_from(most.as_millis()).unwrap_or(i32::MAX).saturating_add(1);
        // SAFETY: one pollfd, writable. Timeout and interruption are all the same to the caller, who looks again.
        unsafe { libc::poll(&raw mut poll, 1, most) };
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
    use std::fs::File;
    use std::os::fd::AsFd;
    use std::os::unix::fs::MetadataExt;

    use crate::random::random_u16;

    #[test]
    fn a_line_carries_messages_and_a_file_and_tells_of_its_end() {
        let (fds, block) = (FdSet::new().unwrap(), random_u16());
        assert_eq!(Line::call(&fds, block).unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
        let door = Door::open(&fds, block).unwrap();
        assert_eq!(Door::open(&fds, block).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        assert!(door.answer().unwrap().is_none());

        let near = Line::call(&fds, block).unwrap();
        let far = door.answer().unwrap().unwrap();
        let (file, mut buffer) = (File::open("/proc/self/exe").unwrap(), [0; 16]);
        near.send_file(b"hello", &KeptFile::new(&fds, file.as_fd()).unwrap()).unwrap();
        near.send([b"one", b"two"]).unwrap();
        let (length, came) = far.receive(&mut buffer).unwrap().unwrap();
        assert_eq!(&buffer[..length], b"hello");
        assert_eq!(File::from(came.unwrap()).metadata().unwrap().ino(), file.metadata().unwrap().ino());
        let (length, came) = far.receive(&mut buffer).unwrap().unwrap();
        assert!(&buffer[..length] == b"onetwo" && came.is_none());
        assert!(far.receive(&mut buffer).unwrap().is_none());

        let soon = Instant::now() + Duration::from_millis(5);
        assert!(near.receive_until(&mut buffer, soon).unwrap().is_none());
        assert!(Instant::now() >= soon, "it waits as long as it is told");
        near.send([&[0; 16], b"too long"]).unwrap();
        assert_eq!(far.receive(&mut buffer).unwrap_err().kind(), io::ErrorKind::InvalidData);
        drop(near);
        assert_eq!(far.receive(&mut buffer).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        drop(door);
        assert_eq!(Line::call(&fds, block).unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
    }
}
