//! Sending with `MSG_ZEROCOPY`: the kernel reads the pages of the buffer, and tells when it has (Linux,
//! `Documentation/networking/msg_zerocopy.rst`).

use std::collections::HashMap;
use std::io;
use std::mem::zeroed;
use std::net::UdpSocket;
use std::os::fd::AsRawFd;

use super::stream::{Sender, set, taken};
use crate::bare::{PACKET, RUN};

/// Buffers that the kernel may read at once.
const BUFFERS: usize = 64;
/// `SO_EE_ORIGIN_ZEROCOPY` of linux/errqueue.h.
const ORIGIN_ZEROCOPY: u8 = 5;
/// `SO_EE_CODE_ZEROCOPY_COPIED` of linux/errqueue.h.
const COPIED: u8 = 1;

/// A sender whose buffers the kernel reads in place, or says that it has copied.
#[derive(Debug)]
pub(super) struct ZeroCopy {
    socket: UdpSocket,
    buffers: Vec<Vec<u8>>,
    free: Vec<usize>,
    /// Buffers that the kernel reads, by number of the call.
    lent: HashMap<u32, usize>,
    calls: u32,
    told: u32,
    copied: u32,
}

impl ZeroCopy {
    pub(super) fn new(socket: UdpSocket) -> io::Result<Self> {
        set(&socket, libc::SOL_SOCKET, libc::SO_ZEROCOPY, 1)?;
        let buffers = vec![vec![0; RUN * PACKET]; BUFFERS];
        Ok(Self { socket, buffers, free: (0..BUFFERS).collect(), lent: HashMap::new(), calls: 0, told: 0, copied: 0 })
    }

    /// Takes back the buffers that the kernel has read.
    fn reap(&mut self) -> io::Result<()> {
        #[repr(C, align(8))]
        struct Control([u8; 128]);
        loop {
            let mut control = Control([0; 128]);
            // SAFETY: all-zero bytes are a valid msghdr; the control buffer is aligned, writable, and as long as said.
            let (result, message) = unsafe {
                let mut message: libc::msghdr = zeroed();
                message.msg_control = control.0.as_mut_ptr().cast();
                message.msg_controllen = control.0.len();
                let flags = libc::MSG_ERRQUEUE | libc::MSG_DONTWAIT;
                (libc::recvmsg(self.socket.as_raw_fd(), &raw mut message, flags), message)
            };
            if result < 0 {
                let error = io::Error::last_os_error();
                return if error.kind() == io::ErrorKind::WouldBlock { Ok(()) } else { Err(error) };
            }
            // SAFETY: the kernel has written the control messages that the header describes.
            let error = unsafe {
                let header = libc::CMSG_FIRSTHDR(&raw const message);
                let is_error = !header.is_null()
                    && (*header).cmsg_level == libc::SOL_IP
                    && (*header).cmsg_type == libc::IP_RECVERR;
                is_error.then(|| libc::CMSG_DATA(header).cast::<libc::sock_extended_err>().read_unaligned())
            };
            let Some(error) = error.filter(|error| error.ee_origin == ORIGIN_ZEROCOPY) else { continue };
            for call in error.ee_info..=error.ee_data {
                self.told += 1;
                self.copied += u32::from(error.ee_code & COPIED != 0);
                self.free.extend(self.lent.remove(&call));
            }
        }
    }
}

impl Sender for ZeroCopy {
    fn buffer(&mut self) -> io::Result<Option<&mut [u8]>> {
        if self.free.is_empty() {
            self.reap()?;
        }
        Ok(self.free.last().map(|&at| self.buffers[at].as_mut_slice()))
    }

    fn send(&mut self) -> io::Result<bool> {
        let Some(&at) = self.free.last() else { return Ok(false) };
        let buffer = &self.buffers[at];
        let flags = libc::MSG_ZEROCOPY | libc::MSG_DONTWAIT;
        // SAFETY: a buffer of the length said, which is written to again only when the kernel has told that it was read.
        let sent = unsafe { libc::send(self.socket.as_raw_fd(), buffer.as_ptr().cast(), buffer.len(), flags) };
        let sent = usize::try_from(sent).map_err(|_| io::Error::last_os_error());
        // What is outstanding is charged to the socket's option memory.
        if sent.as_ref().is_err_and(|error| error.raw_os_error() == Some(libc::ENOBUFS)) {
            self.reap()?;
            return Ok(false);
        }
        let is_taken = taken(sent)?;
        if is_taken {
            self.free.pop();
            self.lent.insert(self.calls, at);
            self.calls = self.calls.wrapping_add(1);
        }
        Ok(is_taken)
    }

    fn note(&self) -> String {
        format!("{} of {} runs copied by the kernel all the same", self.copied, self.told)
    }
}
