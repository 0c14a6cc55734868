//! The socket that sends raw frames.

use core::mem::zeroed;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::Arc;

use super::{SEND_BUFFER, ask_for_buffer, bind, packet_socket};
use crate::sys::epoll_key::EpollKey;
use crate::sys::fd::{Fd, FdSet};

/// Frames handed to the kernel by one call.
const BATCH: usize = 64;
/// Bytes of frames that may wait in a queue of the interface.
const BUFFER: libc::c_int = 4 << 20;

/// The sending side for raw frames.
#[derive(Debug)]
pub struct RawTx {
    fd: Fd,
    fds: Arc<FdSet>,
}

impl RawTx {
    pub(super) fn open(fds: &Arc<FdSet>, interface: u32) -> io::Result<Self> {
        let socket = packet_socket()?;
        bind(socket.as_raw_fd(), interface, 0)?;
        ask_for_buffer(&socket, SEND_BUFFER, BUFFER);
        Ok(Self { fd: fds.adopt(socket)?, fds: Arc::clone(fds) })
    }

    /// Sends frames, oldest first, without blocking. Returns how many have left; the error is that of the next one: EBADF when
    /// the application has closed the socket, whose number may be its own by now.
    pub fn send<'a>(&self, frames: impl IntoIterator<Item = &'a [u8]>) -> (usize, Option<io::Error>) {
        if self.fds.is_dead() || !self.fd.is_ours() {
            return (0, Some(io::Error::from_raw_os_error(libc::EBADF)));
        }
        let mut frames = frames.into_iter();
        let mut sent = 0;
        loop {
            let (given, left, error) = self.send_batch(&mut frames);
            sent += left;
            if error.is_some() || given < BATCH {
                return (sent, error);
            }
        }
    }

    /// Sends up to [`BATCH`] frames: how many there were, how many have left, and the error of the next one.
    fn send_batch<'a>(&self, frames: &mut impl Iterator<Item = &'a [u8]>) -> (usize, usize, Option<io::Error>) {
        // SAFETY: plain integers and pointers, for which all-zero is valid.
        let (mut parts, mut messages): ([libc::iovec; BATCH], [libc::mmsghdr; BATCH]) = unsafe { (zeroed(), zeroed()) };
        let mut count = 0;
        for ((part, message), frame) in parts.iter_mut().zip(&mut messages).zip(frames) {
            *part = libc::iovec { iov_base: frame.as_ptr().cast_mut().cast(), iov_len: frame.len() };
            message.msg_hdr.msg_iov = part;
            message.msg_hdr.msg_iovlen = 1;
            count += 1;
        }
        let mut sent = 0;
        while let Some(rest) = messages.get_mut(sent..count).filter(|rest| !rest.is_empty()) {
            // By number: the C library's function is a cancellation point.
            // SAFETY: messages of one part each, which the kernel reads.
            let result = unsafe {
                let (fd, flags) = (self.fd.as_raw_fd(), libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL);
                libc::syscall(libc::SYS_sendmmsg, fd, rest.as_mut_ptr(), rest.len(), flags)
            };
            match usize::try_from(result) {
                Ok(now) if now > 0 => sent += now,
                _ => return (count, sent, Some(io::Error::last_os_error())),
            }
        }
        (count, sent, None)
    }

    /// Says whether the port is to wake when the socket has room again. One thread at a time calls.
    pub fn wait_for_room(&self, waits: bool) {
        if self.fds.is_dead() || self.fds.is_lost() || !self.fd.is_ours() {
            return;
        }
        if waits {
            // Without it, the next who sends tries again.
            let _ = self.fds.watch_output(self.fd.as_raw_fd(), EpollKey::Raw.pack());
        } else {
            self.fds.unwatch(self.fd.as_raw_fd());
        }
    }
}
