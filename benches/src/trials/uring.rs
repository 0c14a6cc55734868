//! Sending and receiving by io_uring: `send`, `send_zc`, and multishot `recv` into a ring of provided buffers.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::io;
use std::net::UdpSocket;
use std::os::fd::AsRawFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU16, Ordering};

use io_uring::types::{BufRingEntry, Fd};
use io_uring::{IoUring, cqueue, opcode};

use super::stream::{Receiver, Sender};
use crate::bare::{PACKET, RUN};

/// Buffers of a sender, and of a receiver.
const BUFFERS: usize = 64;
/// Bytes of a receiver's buffer: the longest run.
const BUFFER: usize = 1 << 16;
/// Number of the only group of provided buffers.
const GROUP: u16 = 0;
/// `IORING_SEND_ZC_REPORT_USAGE` of linux/io_uring.h: completions tell of copies.
const REPORT_USAGE: u16 = 1 << 3;
/// `IORING_NOTIF_USAGE_ZC_COPIED` of linux/io_uring.h.
const COPIED: i32 = i32::MIN;

fn error(result: i32) -> io::Error {
    io::Error::from_raw_os_error(-result)
}

/// A sender by io_uring.
pub(super) struct UringSender {
    ring: IoUring,
    socket: UdpSocket,
    buffers: Vec<Vec<u8>>,
    free: Vec<usize>,
    is_zero_copy: bool,
    told: u32,
    copied: u32,
}

impl UringSender {
    /// Sends by `IORING_OP_SEND`.
    pub(super) fn copying(socket: UdpSocket) -> io::Result<Self> {
        Self::new(socket, RUN * PACKET, false)
    }

    /// Sends by `IORING_OP_SEND_ZC`.
    pub(super) fn zero_copy(socket: UdpSocket) -> io::Result<Self> {
        Self::new(socket, RUN * PACKET, true)
    }

    /// Makes a sender with buffers of so many bytes.
    pub(super) fn new(socket: UdpSocket, bytes: usize, is_zero_copy: bool) -> io::Result<Self> {
        let (ring, buffers) = (IoUring::new(2 * BUFFERS as u32)?, vec![vec![0; bytes]; BUFFERS]);
        Ok(Self { ring, socket, buffers, free: (0..BUFFERS).collect(), is_zero_copy, told: 0, copied: 0 })
    }

    /// Takes back the buffers that the kernel has read.
    fn reap(&mut self) -> io::Result<()> {
        for completion in self.ring.completion() {
            let (result, flags) = (completion.result(), completion.flags());
            if cqueue::notif(flags) {
                self.told += 1;
                self.copied += u32::from(result & COPIED != 0);
            } else if result < 0 {
                return Err(error(result));
            }
            if !cqueue::more(flags) {
                self.free.push(completion.user_data() as usize);
            }
        }
        Ok(())
    }
}

impl Sender for UringSender {
    fn buffer(&mut self) -> io::Result<Option<&mut [u8]>> {
        self.reap()?;
        Ok(self.free.last().map(|&at| self.buffers[at].as_mut_slice()))
    }

    fn send(&mut self) -> io::Result<bool> {
        let Some(at) = self.free.pop() else { return Ok(false) };
        let (fd, buffer) = (Fd(self.socket.as_raw_fd()), &self.buffers[at]);
        let (start, length) = (buffer.as_ptr(), buffer.len() as u32);
        let entry = match self.is_zero_copy {
            true => opcode::SendZc::new(fd, start, length).zc_flags(REPORT_USAGE).build(),
            false => opcode::Send::new(fd, start, length).build(),
        };
        // SAFETY: the buffer lives as long as the ring, and is written to again only when the kernel has told that it was read.
        unsafe { self.ring.submission().push(&entry.user_data(at as u64)) }.map_err(io::Error::other)?;
        self.ring.submit()?;
        Ok(true)
    }

    fn note(&self) -> String {
        match self.is_zero_copy {
            true => format!("{} of {} runs copied by the kernel all the same", self.copied, self.told),
            false => String::new(),
        }
    }
}

/// A receiver by one multishot `recv`.
pub(super) struct UringReceiver {
    ring: IoUring,
    buffers: Provided,
    socket: UdpSocket,
    is_armed: bool,
}

impl UringReceiver {
    pub(super) fn new(socket: UdpSocket) -> io::Result<Self> {
        let ring = IoUring::new(2 * BUFFERS as u32)?;
        let buffers = Provided::new();
        // SAFETY: the ring of buffers is aligned to a page, has as many entries, and lives until the io_uring has been closed, as
        // fields are dropped in their order.
        unsafe {
            ring.submitter().register_buf_ring_with_flags(buffers.entries.as_ptr() as u64, BUFFERS as u16, GROUP, 0)?;
        }
        Ok(Self { ring, buffers, socket, is_armed: false })
    }
}

impl Receiver for UringReceiver {
    fn receive(&mut self, take: &mut dyn FnMut(&[u8])) -> io::Result<()> {
        if !self.is_armed {
            let entry = opcode::RecvMulti::new(Fd(self.socket.as_raw_fd()), GROUP).build();
            // SAFETY: it names the socket, and buffers that live as long as the ring.
            unsafe { self.ring.submission().push(&entry) }.map_err(io::Error::other)?;
            self.ring.submit()?;
            self.is_armed = true;
        }
        for completion in self.ring.completion() {
            self.is_armed &= cqueue::more(completion.flags());
            match (usize::try_from(completion.result()), cqueue::buffer_select(completion.flags())) {
                (Ok(length), Some(id)) => {
                    take(self.buffers.get(id, length));
                    self.buffers.give(id);
                }
                // All buffers were in use: the next call arms it again.
                (Err(_), _) if completion.result() == -libc::ENOBUFS => {}
                _ => return Err(error(completion.result().min(-libc::EIO))),
            }
        }
        Ok(())
    }
}

/// Buffers that the kernel takes from a ring, and their ring.
struct Provided {
    entries: NonNull<BufRingEntry>,
    bytes: Vec<u8>,
    tail: u16,
}

// SAFETY: the entries belong to it alone, and are plain memory.
unsafe impl Send for Provided {}

impl Provided {
    /// The size and alignment that io_uring_register(2) demands of the ring.
    fn layout() -> Layout {
        let entries = Layout::array::<BufRingEntry>(BUFFERS).and_then(|layout| layout.align_to(4096));
        entries.expect("a small array")
    }

    fn new() -> Self {
        // SAFETY: the layout is not empty.
        let entries = unsafe { alloc_zeroed(Self::layout()) }.cast::<BufRingEntry>();
        let entries = NonNull::new(entries).unwrap_or_else(|| handle_alloc_error(Self::layout()));
        let mut all = Self { entries, bytes: vec![0; BUFFERS * BUFFER], tail: 0 };
        (0..BUFFERS as u16).for_each(|id| all.give(id));
        all
    }

    /// Bytes that the kernel wrote to a buffer.
    fn get(&self, id: u16, length: usize) -> &[u8] {
        &self.bytes[usize::from(id) * BUFFER..][..length]
    }

    /// Gives a buffer to the kernel.
    fn give(&mut self, id: u16) {
        let address = self.bytes[usize::from(id) * BUFFER..].as_mut_ptr() as u64;
        let slot = usize::from(self.tail) % BUFFERS;
        self.tail = self.tail.wrapping_add(1);
        // SAFETY: the slot is one of the ring, and the kernel reads it only once the tail is behind it; the tail is two aligned
        // bytes of the first entry, which nothing else here writes.
        unsafe {
            let entry = &mut *self.entries.as_ptr().add(slot);
            entry.set_addr(address);
            entry.set_len(BUFFER as u32);
            entry.set_bid(id);
            let tail = BufRingEntry::tail(self.entries.as_ptr()).cast_mut();
            AtomicU16::from_ptr(tail).store(self.tail, Ordering::Release);
        }
    }
}

impl Drop for Provided {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout; the io_uring is closed.
        unsafe { dealloc(self.entries.as_ptr().cast(), Self::layout()) };
    }
}
