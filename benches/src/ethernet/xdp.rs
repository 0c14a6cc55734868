//! A bare AF_XDP socket that receives every frame of an interface's first queue.

use std::io;
use std::mem::{size_of, zeroed};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use super::{BURST, MEMORY, SLOT, SLOTS, index_of, length, set};

/// Chunks, and entries of the rings.
const CHUNKS: u32 = 4096;
const CHUNK: u32 = 2048;
const _: () = assert!(CHUNKS as usize == SLOTS && CHUNK as usize == SLOT);

/// bpf(2): its commands, and the structures of those.
const MAP_CREATE: u64 = 0;
const MAP_UPDATE: u64 = 2;
const PROG_LOAD: u64 = 5;
const LINK_CREATE: u64 = 28;
/// `BPF_MAP_TYPE_XSKMAP`, `BPF_PROG_TYPE_XDP` and `BPF_XDP`.
const XSKMAP: u64 = 17;
const PROGRAM: u64 = 6;
const ATTACH: u64 = 37;

fn bpf(command: u64, attr: &[u64]) -> io::Result<libc::c_int> {
    // SAFETY: attributes of the length that is said; their pointers are to what the callers have.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command, attr.as_ptr(), size_of_val(attr)) };
    if result < 0 { Err(io::Error::last_os_error()) } else { libc::c_int::try_from(result).map_err(io::Error::other) }
}

/// Two numbers of 32 bits, as they lie in memory.
fn pair(first: u64, second: u64) -> u64 {
    let word = |number: u64| u32::try_from(number).unwrap_or_default().to_ne_bytes();
    let ([a, b, c, d], [e, f, g, h]) = (word(first), word(second));
    u64::from_ne_bytes([a, b, c, d, e, f, g, h])
}

fn number(fd: libc::c_int) -> u64 {
    fd.cast_unsigned().into()
}

/// Has every frame go to the socket of its queue. Lasts as long as the process.
fn steer(socket: &OwnedFd, interface: u32) -> io::Result<()> {
    let map = bpf(MAP_CREATE, &[pair(XSKMAP, 4), pair(4, 1)])?;
    let (key, value) = (0_u32, socket.as_raw_fd());
    bpf(MAP_UPDATE, &[number(map), (&raw const key) as u64, (&raw const value) as u64, 0])?;
    let instruction = |code: u8, registers: u8, offset: u8, immediate: u64| {
        u64::from_ne_bytes([code, registers, offset, 0, 0, 0, 0, 0]) | pair(0, immediate)
    };
    let program = [
        // R2 is the queue, R1 the map, R3 XDP_PASS; call bpf_redirect_map.
        instruction(0x61, 0x12, 16, 0),
        instruction(0x18, 0x11, 0, number(map)),
        0,
        instruction(0xb7, 0x03, 0, 2),
        instruction(0x85, 0, 0, 51),
        instruction(0x95, 0, 0, 0),
    ];
    let license = c"MIT".as_ptr() as u64;
    let program = bpf(PROG_LOAD, &[pair(PROGRAM, program.len() as u64), program.as_ptr() as u64, license])?;
    let attach = |mode| bpf(LINK_CREATE, &[pair(number(program), interface.into()), pair(ATTACH, mode)]);
    // In the driver, or in front of the network stack.
    attach(1 << 2).or_else(|_| attach(1 << 1)).map(drop)
}

/// A ring that the kernel writes, or reads: counters of producer and consumer, and entries.
struct Ring {
    start: NonNull<u8>,
    offsets: libc::xdp_ring_offset,
}

impl Ring {
    fn map(socket: &OwnedFd, page: libc::off_t, offsets: libc::xdp_ring_offset, entry: usize) -> io::Result<Self> {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let length = usize::try_from(offsets.desc).map_err(io::Error::other)? + CHUNKS as usize * entry;
        // SAFETY: a new mapping of the ring.
        let start = unsafe { libc::mmap(null_mut(), length, access, libc::MAP_SHARED, socket.as_raw_fd(), page) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { start, offsets })
    }

    fn at<T>(&self, offset: u64, index: u32) -> NonNull<T> {
        // SAFETY: inside of the mapping, which lives as long as the process.
        unsafe {
            self.start.byte_add(usize::try_from(offset).unwrap_or_default()).cast().add((index % CHUNKS) as usize)
        }
    }

    fn counter(&self, offset: u64) -> &AtomicU32 {
        // SAFETY: a word that both sides access as one.
        unsafe { AtomicU32::from_ptr(self.at::<u32>(offset, 0).as_ptr()) }
    }
}

/// Takes frames for so long from the first one on, and copies each. Returns how many came a second.
pub fn receive(netdev: &str, run: Duration) -> io::Result<f64> {
    // SAFETY: plain numbers; a new descriptor; new memory; all-zero is valid for offsets, for which there is room.
    let (socket, memory, offsets) = unsafe {
        let socket = libc::socket(libc::AF_XDP, libc::SOCK_RAW, 0);
        if socket < 0 {
            return Err(io::Error::last_os_error());
        }
        let socket = OwnedFd::from_raw_fd(socket);
        let (access, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        let memory = libc::mmap(null_mut(), SLOTS * SLOT, access, flags | libc::MAP_POPULATE, -1, 0);
        if memory == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let request =
            libc::xdp_umem_reg_v1 { addr: memory as u64, len: (SLOTS * SLOT) as u64, chunk_size: CHUNK, headroom: 0 };
        set(&socket, libc::SOL_XDP, libc::XDP_UMEM_REG, &request)?;
        for ring in [libc::XDP_UMEM_FILL_RING, libc::XDP_UMEM_COMPLETION_RING, libc::XDP_RX_RING] {
            set(&socket, libc::SOL_XDP, ring, &CHUNKS)?;
        }
        let mut offsets: libc::xdp_mmap_offsets = zeroed();
        let mut size = length::<libc::xdp_mmap_offsets>();
        let option = libc::XDP_MMAP_OFFSETS;
        libc::getsockopt(socket.as_raw_fd(), libc::SOL_XDP, option, (&raw mut offsets).cast(), &raw mut size);
        (socket, memory.cast::<u8>(), offsets)
    };
    let page = libc::off_t::try_from(libc::XDP_UMEM_PGOFF_FILL_RING).map_err(io::Error::other)?;
    let fill = Ring::map(&socket, page, offsets.fr, size_of::<u64>())?;
    let rx = Ring::map(&socket, libc::XDP_PGOFF_RX_RING, offsets.rx, size_of::<libc::xdp_desc>())?;
    let interface = index_of(netdev)?;
    let address = libc::sockaddr_xdp {
        sxdp_family: u16::try_from(libc::AF_XDP).map_err(io::Error::other)?,
        sxdp_flags: libc::XDP_COPY,
        sxdp_ifindex: interface,
        sxdp_queue_id: 0,
        sxdp_shared_umem_fd: 0,
    };
    // SAFETY: an address of its length.
    let bound = unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), length::<libc::sockaddr_xdp>()) };
    if bound != 0 {
        return Err(io::Error::last_os_error());
    }
    for chunk in 0..CHUNKS {
        // SAFETY: an entry of the ring, which the kernel does not read yet.
        unsafe { fill.at::<u64>(fill.offsets.desc, chunk).write(u64::from(chunk) * u64::from(CHUNK)) };
    }
    let (mut filled, mut taken) = (CHUNKS, 0_u32);
    fill.counter(fill.offsets.producer).store(filled, Ordering::Release);
    steer(&socket, interface)?;
    // Whoever has started this may send now.
    println!("ready");
    let mut copies = vec![0_u8; MEMORY];
    let (mut start, mut count, mut at) = (None, 0_u64, 0);
    while start.is_none_or(|start: Instant| start.elapsed() < run) {
        let there = rx.counter(rx.offsets.producer).load(Ordering::Acquire).wrapping_sub(taken);
        for _ in 0..there.min(u32::try_from(BURST).unwrap_or(1)) {
            // SAFETY: an entry that the kernel has written, and a frame inside of the memory.
            let (chunk, frame) = unsafe {
                let frame = rx.at::<libc::xdp_desc>(rx.offsets.desc, taken).read();
                let bytes = memory.add(usize::try_from(frame.addr).unwrap_or_default());
                (frame.addr - frame.addr % u64::from(CHUNK), std::slice::from_raw_parts(bytes, frame.len as usize))
            };
            copies[at..at + frame.len()].copy_from_slice(frame);
            at = (at + SLOT) % MEMORY;
            // SAFETY: an entry of the ring, which has room for all chunks.
            unsafe { fill.at::<u64>(fill.offsets.desc, filled).write(chunk) };
            (filled, taken, count) = (filled.wrapping_add(1), taken.wrapping_add(1), count + 1);
            start.get_or_insert_with(Instant::now);
        }
        rx.counter(rx.offsets.consumer).store(taken, Ordering::Release);
        fill.counter(fill.offsets.producer).store(filled, Ordering::Release);
    }
    std::hint::black_box(&copies);
    Ok(count as f64 / start.map_or(f64::INFINITY, |start| start.elapsed().as_secs_f64()))
}
