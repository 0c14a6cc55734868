//! Bare packet sockets with rings, and a bare socket of [`xdp`], the way urxe's raw frames travel but with nothing of urxe around them:
//! the ceiling.

pub mod xdp;

use std::io;
use std::mem::{size_of, zeroed};
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use socket2::{Domain, Protocol, Socket, Type};

/// Slots of a ring, and bytes of one.
const SLOTS: usize = 4096;
const SLOT: usize = 2048;
const BLOCK: usize = 1 << 16;
/// Frames handed to the kernel by one call.
const BURST: usize = 64;
/// Header of a slot of a transmit ring: the frame begins behind it.
const HEADER: usize = size_of::<libc::tpacket2_hdr>();
/// Memory that frames are copied to, as a program's buffers.
const MEMORY: usize = 512 * SLOT;
/// Ethertype of experiments (IEEE 802), which no host answers.
const ETHERTYPE: u16 = 0x88b5;
const ETH_P_ALL: u16 = 3;

/// A packet socket with a ring.
struct Ring {
    socket: OwnedFd,
    memory: NonNull<u8>,
    next: usize,
}

impl Ring {
    /// Opens a socket on an interface, for the frames of `protocol`, with the ring that `option` names.
    fn open(netdev: &str, option: libc::c_int, protocol: u16) -> io::Result<Self> {
        let socket = OwnedFd::from(Socket::new(Domain::PACKET, Type::RAW, Some(Protocol::from(0)))?);
        set(&socket, libc::SOL_PACKET, libc::PACKET_VERSION, &(libc::tpacket_versions::TPACKET_V2 as libc::c_int))?;
        let blocks = SLOTS * SLOT / BLOCK;
        let number = |number: usize| libc::c_uint::try_from(number).map_err(io::Error::other);
        let request = libc::tpacket_req {
            tp_block_size: number(BLOCK)?,
            tp_block_nr: number(blocks)?,
            tp_frame_size: number(SLOT)?,
            tp_frame_nr: number(SLOTS)?,
        };
        set(&socket, libc::SOL_PACKET, option, &request)?;
        if protocol != 0 {
            set(&socket, libc::SOL_PACKET, libc::PACKET_IGNORE_OUTGOING, &1)?;
        }
        let interface = index_of(netdev)?;
        // SAFETY: all-zero is an address, which is passed with its length; a new mapping of the ring just made.
        unsafe {
            let mut address: libc::sockaddr_ll = zeroed();
            address.sll_family = AF_PACKET;
            address.sll_protocol = protocol.to_be();
            address.sll_ifindex = interface.cast_signed();
            if libc::bind(socket.as_raw_fd(), (&raw const address).cast(), length::<libc::sockaddr_ll>()) != 0 {
                return Err(io::Error::last_os_error());
            }
            let (access, fd) = (libc::PROT_READ | libc::PROT_WRITE, socket.as_raw_fd());
            let memory = libc::mmap(null_mut(), SLOTS * SLOT, access, libc::MAP_SHARED, fd, 0);
            if memory == libc::MAP_FAILED {
                return Err(io::Error::last_os_error());
            }
            let memory = NonNull::new(memory.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
            Ok(Self { socket, memory, next: 0 })
        }
    }

    /// The next slot, if its status has this bit, or is 0 for `None`.
    fn slot(&self, status: u32) -> Option<NonNull<u8>> {
        // SAFETY: inside of the mapping, which lives as long as the process.
        let slot = unsafe { self.memory.add(self.next * SLOT) };
        let found = status_of(slot).load(Ordering::Acquire);
        (found & status != 0 || found == status).then_some(slot)
    }

    fn advance(&mut self, slot: NonNull<u8>, status: u32) {
        status_of(slot).store(status, Ordering::Release);
        self.next = (self.next + 1) % SLOTS;
    }
}

/// The status word of a slot, which the kernel writes too.
fn status_of<'a>(slot: NonNull<u8>) -> &'a AtomicU32 {
    // SAFETY: the first word of a slot, aligned; both sides access it as one word.
    unsafe { AtomicU32::from_ptr(slot.cast().as_ptr()) }
}

/// Returns the number of an interface.
fn index_of(netdev: &str) -> io::Result<u32> {
    let name = std::ffi::CString::new(netdev)?;
    // SAFETY: a string.
    match unsafe { libc::if_nametoindex(name.as_ptr()) } {
        0 => Err(io::Error::last_os_error()),
        index => Ok(index),
    }
}

const AF_PACKET: u16 = 17;
const _: () = assert!(AF_PACKET as libc::c_int == libc::AF_PACKET);

/// Bytes of a structure, as the kernel is told.
fn length<T>() -> u32 {
    u32::try_from(size_of::<T>()).unwrap_or_default()
}

fn set<T>(socket: &OwnedFd, level: libc::c_int, option: libc::c_int, value: &T) -> io::Result<()> {
    // SAFETY: the value is readable, and as long as is said.
    let done = unsafe {
        let value = std::ptr::from_ref(value).cast();
        libc::setsockopt(socket.as_raw_fd(), level, option, value, length::<T>())
    };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// A frame of this length to everybody.
pub fn frame(size: usize) -> Vec<u8> {
    let mut frame = vec![0x5a; size];
    frame[..6].fill(0xff);
    frame[6..12].copy_from_slice(&[2, 0, 0, 0, 0, 9]);
    frame[12..14].copy_from_slice(&ETHERTYPE.to_be_bytes());
    frame
}

/// Sends frames of this length for so long, 64 a system call. Returns how many a second have left.
pub fn send(netdev: &str, size: usize, run: Duration) -> io::Result<f64> {
    let mut ring = Ring::open(netdev, libc::PACKET_TX_RING, 0)?;
    let (source, length) = (frame(size), u32::try_from(size).map_err(io::Error::other)?);
    let (start, mut sent) = (Instant::now(), 0_u64);
    while start.elapsed() < run {
        for _ in 0..BURST {
            let Some(slot) = ring.slot(libc::TP_STATUS_AVAILABLE) else { break };
            // SAFETY: a slot that is ours, longer than header and frame.
            unsafe {
                slot.add(HEADER).copy_from_nonoverlapping(NonNull::from(&source[0]), size);
                (*slot.cast::<libc::tpacket2_hdr>().as_ptr()).tp_len = length;
            }
            ring.advance(slot, libc::TP_STATUS_SEND_REQUEST);
            sent += 1;
        }
        // SAFETY: no data: those of the ring.
        unsafe { libc::send(ring.socket.as_raw_fd(), std::ptr::null(), 0, libc::MSG_DONTWAIT) };
    }
    Ok(sent as f64 / start.elapsed().as_secs_f64())
}

/// Takes frames for so long from the first one on, and copies each. Returns how many came a second.
pub fn receive(netdev: &str, run: Duration) -> io::Result<f64> {
    let mut ring = Ring::open(netdev, libc::PACKET_RX_RING, ETH_P_ALL)?;
    // Whoever has started this may send now.
    println!("ready");
    let mut memory = vec![0_u8; MEMORY];
    let (mut start, mut count, mut at) = (None, 0_u64, 0);
    while start.is_none_or(|start: Instant| start.elapsed() < run) {
        for _ in 0..BURST {
            let Some(slot) = ring.slot(libc::TP_STATUS_USER) else { break };
            // SAFETY: a slot that is ours, with a frame where it says.
            let (header, frame) = unsafe {
                let header = slot.cast::<libc::tpacket2_hdr>().read();
                let length = (header.tp_snaplen as usize).min(SLOT - usize::from(header.tp_mac));
                (header, std::slice::from_raw_parts(slot.add(header.tp_mac.into()).as_ptr(), length))
            };
            memory[at..at + frame.len()].copy_from_slice(frame);
            at = (at + SLOT) % MEMORY;
            count += u64::from(header.tp_len != 0);
            ring.advance(slot, libc::TP_STATUS_KERNEL);
            start.get_or_insert_with(Instant::now);
        }
    }
    std::hint::black_box(&memory);
    Ok(count as f64 / start.map_or(f64::INFINITY, |start| start.elapsed().as_secs_f64()))
}
