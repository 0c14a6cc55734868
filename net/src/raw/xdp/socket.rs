//! AF_XDP sockets: one for each receive queue of an interface, with memory for frames (UMEM) and four rings.

use core::mem::{size_of, zeroed};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::Arc;

use super::ring::{Mapping, Ring};
use crate::raw::frame::{Checksum, RawFrame};
use crate::sys::fd::{Fd, FdSet};
use crate::sys::{family, set_struct, socklen};

/// Chunks for received frames, if there is the memory; powers of two.
const RX_CHUNKS: [u32; 4] = [4096, 1024, 256, 64];
/// Entries of the ring of frames that have left: there are none, but the kernel wants the ring.
const COMPLETIONS: u32 = 64;
/// Bytes of a chunk: two sizes serve, as a page is the largest.
const CHUNKS: [u32; 2] = [2048, 4096];
/// Bytes that the kernel keeps free in front of a received frame (`XDP_PACKET_HEADROOM`).
const HEADROOM: u32 = 256;
/// Ethernet header and two VLAN headers.
const FRAME_HEADER: u32 = 14 + 8;

/// Bytes of a chunk for frames of an interface with this MTU, and of the longest frame that is received in one.
pub(super) fn chunk(mtu: u32) -> (u32, u32) {
    let [small, large] = CHUNKS;
    let chunk = if mtu.saturating_add(FRAME_HEADER) <= small - HEADROOM { small } else { large };
    (chunk, chunk - HEADROOM)
}

/// A socket that receives.
#[derive(Debug)]
pub(super) struct RxQueue {
    fd: Fd,
    memory: Mapping,
    chunk: u64,
    /// Chunks that the kernel may fill.
    fill: Ring<u64>,
    rx: Ring<libc::xdp_desc>,
    chunks: u32,
    /// Frames taken since the ring was last seen empty.
    run: u32,
    /// Frames have found no chunk, or may have.
    has_lost: bool,
    /// Losses told of already.
    lost: u64,
}

/// Opens a socket for one queue of an interface. ENOBUFS: the process may lock no more memory (RLIMIT_MEMLOCK). EINVAL: there is no
/// such queue. EBUSY: another socket has it.
pub(super) fn open(fds: &Arc<FdSet>, interface: u32, queue: u32, mtu: u32) -> io::Result<RxQueue> {
    let mut result = Err(io::ErrorKind::OutOfMemory.into());
    for chunks in RX_CHUNKS {
        result = open_with(fds, interface, queue, mtu, chunks);
        match &result {
            Err(error) if matches!(error.raw_os_error(), Some(libc::ENOBUFS | libc::ENOMEM)) => {}
            _ => break,
        }
    }
    result
}

fn open_with(fds: &Arc<FdSet>, interface: u32, queue: u32, mtu: u32, chunks: u32) -> io::Result<RxQueue> {
    // SAFETY: plain numbers.
    let socket = unsafe { libc::socket(libc::AF_XDP, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
    if socket < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: new, and ours.
    let socket = unsafe { OwnedFd::from_raw_fd(socket) };
    let fd = socket.as_raw_fd();
    let (chunk, _) = chunk(mtu);
    let memory = Mapping::anonymous(chunks as usize * chunk as usize)?;
    let request =
        libc::xdp_umem_reg_v1 { addr: memory.address(), len: memory.length() as u64, chunk_size: chunk, headroom: 0 };
    set_struct(fd, libc::SOL_XDP, libc::XDP_UMEM_REG, &request)?;
    for (ring, entries) in
        [(libc::XDP_UMEM_FILL_RING, chunks), (libc::XDP_RX_RING, chunks), (libc::XDP_UMEM_COMPLETION_RING, COMPLETIONS)]
    {
        set_struct(fd, libc::SOL_XDP, ring, &entries)?;
    }
    let offsets = offsets(fd)?;
    let page = libc::off_t::try_from(libc::XDP_UMEM_PGOFF_FILL_RING).map_err(|_| io::ErrorKind::InvalidInput)?;
    let mut fill = Ring::map(fd, page, offsets.fr, chunks, true)?;
    let rx = Ring::map(fd, libc::XDP_PGOFF_RX_RING, offsets.rx, chunks, false)?;
    let address = libc::sockaddr_xdp {
        sxdp_family: family(libc::AF_XDP),
        // Frames are copied: what a driver has of its own would make no difference here, but to what may be bound.
        sxdp_flags: libc::XDP_COPY,
        sxdp_ifindex: interface,
        sxdp_queue_id: queue,
        sxdp_shared_umem_fd: 0,
    };
    // SAFETY: an address of the length that is given.
    let bound = unsafe { libc::bind(fd, (&raw const address).cast(), socklen::<libc::sockaddr_xdp>()) };
    if bound != 0 {
        return Err(io::Error::last_os_error());
    }
    (0..chunks).for_each(|number| fill.write(u64::from(number) * u64::from(chunk)));
    fill.show();
    let fd = fds.adopt(socket)?;
    Ok(RxQueue { fd, memory, chunk: chunk.into(), fill, rx, chunks, run: 0, has_lost: false, lost: 0 })
}

fn offsets(fd: RawFd) -> io::Result<libc::xdp_mmap_offsets> {
    // SAFETY: plain integers, for which all-zero is valid; room for them, and its length.
    unsafe {
        let mut offsets: libc::xdp_mmap_offsets = zeroed();
        let mut length = socklen::<libc::xdp_mmap_offsets>();
        let option = libc::XDP_MMAP_OFFSETS;
        match libc::getsockopt(fd, libc::SOL_XDP, option, (&raw mut offsets).cast(), &raw mut length) {
            0 if length as usize == size_of::<libc::xdp_mmap_offsets>() => Ok(offsets),
            // Linux before 5.4.
            0 => Err(io::ErrorKind::Unsupported.into()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

impl RxQueue {
    /// Whether a frame is there.
    pub(super) fn has_frames(&self) -> bool {
        self.rx.has_more()
    }

    /// Hands frames to `each`, oldest first, up to `most`. Returns how many there were.
    pub(super) fn take(&mut self, most: usize, each: &mut impl FnMut(RawFrame<'_>)) -> usize {
        let count = self.rx.available().min(u32::try_from(most).unwrap_or(u32::MAX));
        for _ in 0..count {
            let frame = self.rx.read();
            let (at, length) = (usize::try_from(frame.addr).unwrap_or(usize::MAX), frame.len as usize);
            if let Some(start) = self.memory.at(at, length) {
                // SAFETY: inside of the memory; the kernel does not touch a chunk that it has given to us, and nobody else has it.
                let bytes = unsafe { core::slice::from_raw_parts_mut(start.as_ptr(), length) };
                let checksum = Checksum::MaybePartial;
                each(RawFrame { bytes, missing: None, segments: None, is_sent: false, is_taken: true, checksum });
            }
            // As many as there are chunks fit.
            self.fill.write(frame.addr - frame.addr % self.chunk);
        }
        if count > 0 {
            self.rx.show();
            self.fill.show();
            self.run += count;
        }
        if !self.has_frames() {
            // As of the ring of a packet socket: frames are lost only while every chunk is taken.
            self.has_lost |= self.run >= self.chunks;
            self.run = 0;
        }
        count as usize
    }

    /// Returns how many frames found no chunk since the last call.
    pub(super) fn take_lost(&mut self) -> u64 {
        if !core::mem::take(&mut self.has_lost) || !self.fd.is_ours() {
            return 0;
        }
        // SAFETY: plain integers, for which all-zero is valid; room for them, and its length.
        let statistics = unsafe {
            let mut statistics: libc::xdp_statistics = zeroed();
            let mut length = socklen::<libc::xdp_statistics>();
            let option = libc::XDP_STATISTICS;
            libc::getsockopt(self.fd.as_raw_fd(), libc::SOL_XDP, option, (&raw mut statistics).cast(), &raw mut length);
            statistics
        };
        let lost = statistics.rx_dropped.saturating_add(statistics.rx_ring_full);
        let before = self.lost;
        self.lost = lost.max(before);
        self.lost - before
    }

    pub(super) fn as_raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    /// Returns the socket, unless the application has closed it.
    pub(super) fn own(&self) -> Option<RawFd> {
        self.fd.is_ours().then(|| self.as_raw_fd())
    }
}
