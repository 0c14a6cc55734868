//! Channels between processes of one user on one host, for what packets cannot do.
//!
//! The owner of a QPN block listens on an abstract SEQPACKET socket named after the block; other processes connect.
//! Messages keep their bounds and their order, and one may carry an open file, which proves that the sender has it.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{Shutdown, shutdown};

use crate::ipc::{refuse_files, unix};
use crate::sys::borrow;
use crate::sys::fd::{Fd, FdSet};

/// Part of the names of these listeners.
const KIND: &str = "xrc";

/// Listening socket of a QPN block.
#[derive(Debug)]
pub struct Listener {
    socket: Fd,
    fds: Arc<FdSet>,
}

/// Connection with another process.
#[derive(Debug)]
pub struct Channel {
    socket: Fd,
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
    /// Whether the number still is what it was.
    #[must_use]
    pub fn is_ours(&self) -> bool {
        self.0.is_ours()
    }

    pub(crate) fn new(fds: &Arc<FdSet>, file: BorrowedFd<'_>) -> io::Result<Self> {
        fds.adopt(file.try_clone_to_owned()?).map(Self)
    }
}

impl AsRawFd for Listener {
    fn as_raw_fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }
}

impl AsRawFd for Channel {
    fn as_raw_fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }
}

impl Listener {
    pub(crate) fn open(fds: &Arc<FdSet>, block: u16) -> io::Result<Self> {
        Ok(Self { socket: fds.adopt(unix::listen(KIND, block)?)?, fds: Arc::clone(fds) })
    }

    /// Accepts a connection of the same user; others are closed. `Ok(None)`: there is none.
    ///
    /// # Errors
    /// EBADF if the application has closed the listener; any refusal of the system, such as no descriptor left.
    //= spec/hosts.md#net-010
    //# Nobody MUST get at another process' part of an XRC domain but who is of the same user and shows the domain's file.
    pub fn accept(&self) -> io::Result<Option<Channel>> {
        if !self.socket.is_ours() {
            return Err(io::Error::from_raw_os_error(libc::EBADF));
        }
        let guest = unix::accept(self.as_raw_fd())?;
        guest.map(|guest| Ok(Channel { socket: self.fds.adopt(guest)? })).transpose()
    }
}

impl Channel {
    pub(crate) fn connect(fds: &Arc<FdSet>, block: u16) -> io::Result<Self> {
        Ok(Self { socket: fds.adopt(unix::connect(KIND, block)?)? })
    }

    /// Whether the number still is what it was.
    #[must_use]
    pub fn is_ours(&self) -> bool {
        self.socket.is_ours()
    }

    /// Sends one message, of two parts, without waiting.
    ///
    /// # Errors
    /// `WouldBlock` if the other end lets too many messages lie; `BrokenPipe` if it is gone; what else the system
    /// refuses.
    pub fn send(&self, parts: [&[u8]; 2]) -> io::Result<()> {
        crate::sys::send_parts(self.as_raw_fd(), parts).map(drop)
    }

    /// Sends one message with an open file, without waiting.
    ///
    /// # Errors
    /// Errors of [`send`](Self::send).
    pub fn send_file(&self, bytes: &[u8], file: &KeptFile) -> io::Result<()> {
        unix::send_file(self.as_raw_fd(), bytes, file.as_raw_fd())
    }

    /// Refuses files from now on: the one that was expected has come.
    pub fn refuse_files(&self) {
        refuse_files(&self.socket);
    }

    /// Takes the next message into `buffer`, and the file that came with it. `Ok(None)`: there is none now.
    ///
    /// # Errors
    /// `UnexpectedEof` when the other end is gone; `InvalidData` if the message is longer than `buffer`; what else the
    /// system says.
    pub fn receive(&self, buffer: &mut [u8]) -> io::Result<Option<(usize, Option<OwnedFd>)>> {
        unix::receive(self.as_raw_fd(), buffer)
    }

    /// Takes the next message into `buffer`, when it comes before `until`. `Ok(None)`: it did not.
    ///
    /// # Errors
    /// Errors of [`receive`](Self::receive).
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

    /// Shuts the channel down, at both ends.
    pub fn shutdown(&self) {
        // It can only fail by having ended already.
        let _ = shutdown(borrow(self.as_raw_fd()), Shutdown::Both);
    }

    /// Waits for a message, or for the end of the channel.
    fn wait(&self, most: Duration) {
        let most = Timespec::try_from(most).unwrap_or(Timespec { tv_sec: i64::MAX, tv_nsec: 0 });
        let fd = borrow(self.as_raw_fd());
        // Timeout and interruption are all the same to the caller, who looks again.
        let _ = poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&most));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::os::fd::AsFd;
    use std::os::unix::fs::MetadataExt;

    use crate::sys::random::random_u16;

    #[test]
    fn a_channel_carries_messages_and_a_file_and_tells_of_its_end() {
        let (fds, block) = (FdSet::new().unwrap(), random_u16());
        assert_eq!(Channel::connect(&fds, block).unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
        let listener = Listener::open(&fds, block).unwrap();
        assert_eq!(Listener::open(&fds, block).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        assert!(listener.accept().unwrap().is_none());

        let near = Channel::connect(&fds, block).unwrap();
        let far = listener.accept().unwrap().unwrap();
        let (file, mut buffer) = (File::open("/proc/self/exe").unwrap(), [0; 16]);
        near.send_file(b"hello", &KeptFile::new(&fds, file.as_fd()).unwrap()).unwrap();
        near.send([b"one", b"two"]).unwrap();
        let (length, came) = far.receive(&mut buffer).unwrap().unwrap();
        assert_eq!(&buffer[..length], b"hello");
        assert_eq!(File::from(came.unwrap()).metadata().unwrap().ino(), file.metadata().unwrap().ino());
        let (length, came) = far.receive(&mut buffer).unwrap().unwrap();
        assert!(&buffer[..length] == b"onetwo" && came.is_none());
        assert!(far.receive(&mut buffer).unwrap().is_none());

        far.refuse_files();
        let refuses = near.send_file(b"late", &KeptFile::new(&fds, file.as_fd()).unwrap()).is_err();
        assert_eq!(refuses, refuse_files(&near));
        assert!(refuses || far.receive(&mut buffer).is_ok());

        let soon = Instant::now() + Duration::from_millis(5);
        assert!(near.receive_until(&mut buffer, soon).unwrap().is_none());
        assert!(Instant::now() >= soon, "it waits as long as it is told");
        near.send([&[0; 16], b"too long"]).unwrap();
        assert_eq!(far.receive(&mut buffer).unwrap_err().kind(), io::ErrorKind::InvalidData);
        drop(near);
        assert_eq!(far.receive(&mut buffer).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        drop(listener);
        assert_eq!(Channel::connect(&fds, block).unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
    }
}
