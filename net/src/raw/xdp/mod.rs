//! Frames by XDP: a program in the interface's driver, or in front of the network stack, takes those that rules want, and AF_XDP sockets
//! receive them. Frames are sent by the packet socket all the same: an AF_XDP socket that copies is not faster, and goes around the
//! queueing discipline of the interface.
//!
//! | file | holds |
//! |---|---|
//! | `bpf` | maps, programs, and their link to the interface (bpf(2)) |
//! | `socket` | a socket for a queue of the interface, and its memory |
//! | `ring` | the rings of a socket |

mod bpf;
mod ring;
mod socket;

use std::io;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::Arc;
use std::time::Duration;

use super::frame::RawFrame;
use crate::sys::borrow;
use crate::sys::fd::{Fd, FdSet};
use bpf::MapKind;
use socket::RxQueue;

/// Receive queues of an interface that are looked at.
const MOST_QUEUES: u32 = 64;

/// The descriptors that a program names: the map of places in a frame, and that of sockets.
#[derive(Clone, Copy, Debug)]
pub struct ProgramMaps {
    /// An array of one element for each processor.
    pub offsets: RawFd,
    /// Sockets by queue of the interface.
    pub sockets: RawFd,
}

/// The program of an interface.
#[derive(Debug)]
pub(super) struct Steering {
    fds: Arc<FdSet>,
    interface: u32,
    offsets: Fd,
    sockets: Fd,
    /// Keeps the program attached.
    link: Option<Fd>,
    longest: usize,
}

/// The receiving side of all sockets.
#[derive(Debug)]
pub(super) struct XdpRx(Vec<RxQueue>);

/// Sockets of all queues of an interface, and what becomes its program.
#[derive(Debug)]
pub struct Xdp {
    pub(super) steering: Steering,
    pub(super) rx: XdpRx,
}

impl Xdp {
    pub(super) fn open(fds: &Arc<FdSet>, interface: u32, mtu: u32, offsets_size: u32) -> io::Result<Self> {
        let offsets = fds.adopt(bpf::create_map(MapKind::PerCpuArray, offsets_size, 1)?)?;
        let sockets = fds.adopt(bpf::create_map(MapKind::XskMap, 4, MOST_QUEUES)?)?;
        let mut queues = Vec::new();
        for number in 0..MOST_QUEUES {
            let queue = match patiently(|| socket::open(fds, interface, number, mtu)) {
                // No more queues.
                Err(error) if number > 0 && error.raw_os_error() == Some(libc::EINVAL) => break,
                opened => opened?,
            };
            bpf::set_socket(borrow(sockets.as_raw_fd()), number, borrow(queue.as_raw_fd()))?;
            queues.push(queue);
        }
        let (_, longest) = socket::chunk(mtu);
        let steering =
            Steering { fds: Arc::clone(fds), interface, offsets, sockets, link: None, longest: longest as usize };
        Ok(Self { steering, rx: XdpRx(queues) })
    }
}

/// Tries again while somebody has the queue: the kernel gives it back some time after a socket is closed.
fn patiently<T>(open: impl Fn() -> io::Result<T>) -> io::Result<T> {
    const ATTEMPTS: usize = 1000;
    const PAUSE: Duration = Duration::from_millis(1);
    for _ in 1..ATTEMPTS {
        match open() {
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) => std::thread::sleep(PAUSE),
            result => return result,
        }
    }
    open()
}

/// Finds out whether programs may be loaded: one is, that lets every frame pass, and attached to nothing.
pub(super) fn check_rights() -> io::Result<()> {
    /// R0 = `XDP_PASS`; exit.
    const PASS: [[u8; 8]; 2] = [[0xb7, 0, 0, 0, 2, 0, 0, 0], [0x95, 0, 0, 0, 0, 0, 0, 0]];
    bpf::load(&PASS.map(u64::from_ne_bytes)).map(drop)
}

impl Steering {
    /// Length of the longest frame that a socket receives.
    pub(super) const fn longest(&self) -> usize {
        self.longest
    }

    /// Attaches a program, which `make` makes for these maps, in the place of the one before; without one, every frame passes.
    pub(super) fn set_program(&mut self, make: Option<&dyn Fn(ProgramMaps) -> Vec<u64>>) -> io::Result<()> {
        let Some(make) = make else {
            self.link = None;
            return Ok(());
        };
        let is_ours = [&self.offsets, &self.sockets].into_iter().chain(&self.link).all(Fd::is_ours);
        if !is_ours {
            return Err(io::Error::from_raw_os_error(libc::EBADF));
        }
        let maps = ProgramMaps { offsets: self.offsets.as_raw_fd(), sockets: self.sockets.as_raw_fd() };
        let program = bpf::load(&make(maps))?;
        match &self.link {
            Some(link) => bpf::replace(borrow(link.as_raw_fd()), program.as_fd()),
            None => {
                self.link = Some(self.fds.adopt(bpf::attach(program.as_fd(), self.interface)?)?);
                Ok(())
            }
        }
    }
}

impl XdpRx {
    pub(super) fn has_frames(&self) -> bool {
        self.0.iter().any(RxQueue::has_frames)
    }

    /// Hands frames to `each`, up to `most` of each queue. Returns how many there were.
    pub(super) fn take(&mut self, most: usize, each: &mut impl FnMut(RawFrame<'_>)) -> usize {
        self.0.iter_mut().map(|queue| queue.take(most, each)).sum()
    }

    /// Returns the sockets that the application has not closed.
    pub(super) fn fds(&self) -> impl Iterator<Item = RawFd> + '_ {
        self.0.iter().filter_map(RxQueue::own)
    }

    pub(super) fn take_lost(&mut self) -> u64 {
        self.0.iter_mut().map(RxQueue::take_lost).sum()
    }
}
