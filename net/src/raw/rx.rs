//! The socket that receives raw frames.

use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::{Arc, Mutex, MutexGuard};

use super::frame::RawFrame;
use super::ring::Ring;
use super::xdp::{ProgramMaps, Steering, Xdp, XdpRx};
use super::{RECEIVE_BUFFER, ask_for_buffer, bind, packet_socket};
use crate::mutex::lock;
use crate::sys::epoll_key::EpollKey;
use crate::sys::fd::{Fd, FdSet};
use crate::sys::{set_option, set_struct};

const ETH_P_ALL: u16 = 3;
const ETH_ALEN: u16 = 6;
/// Bytes of frames longer than a slot that may wait.
const BUFFER: libc::c_int = 8 << 20;

/// Instruction of a classic BPF program (`struct sock_filter`): operation, jumps if true and if false, operand.
pub type Instruction = (u16, u8, u8, u32);

/// Program that passes no frame.
const NOTHING: Instruction = (0x06, 0, 0, 0);
/// Program that passes every frame.
const EVERYTHING: Instruction = (0x06, 0, 0, u32::MAX);

/// Destinations that the interface is to accept besides its own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MacAddress {
    /// One address, of a host or of a group.
    One([u8; 6]),
    /// Every group address.
    AllMulticast,
    /// Every address.
    Any,
}

/// The receiving side for raw frames: the ring, which one thread at a time looks into.
#[derive(Debug)]
pub struct RawRx {
    // Unmapped before the socket is closed.
    ring: Ring,
    xdp: Option<XdpRx>,
    socket: Arc<RawRxSocket>,
}

/// The socket of a receive ring: its filter and its memberships. Changes wait for the kernel's lock of network configuration,
/// and nobody who looks into the ring waits for them.
#[derive(Debug)]
pub struct RawRxSocket {
    fd: Fd,
    fds: Arc<FdSet>,
    interface: u32,
    steering: Mutex<Option<Steering>>,
}

impl RawRx {
    pub(super) fn open(fds: &Arc<FdSet>, interface: u32, mtu: u32) -> io::Result<Self> {
        let socket = packet_socket()?;
        let fd = socket.as_raw_fd();
        attach(fd, &[NOTHING])?;
        // Any number but 0 has frames that a slot is too short for wait whole.
        set_option(fd, libc::SOL_PACKET, libc::PACKET_COPY_THRESH, 1)?;
        set_option(fd, libc::SOL_PACKET, libc::PACKET_VNET_HDR, 1)?;
        ask_for_buffer(&socket, RECEIVE_BUFFER, BUFFER);
        let ring = Ring::new(fd, mtu)?;
        set_option(fd, libc::SOL_PACKET, libc::PACKET_IGNORE_OUTGOING, 1)?;
        bind(fd, interface, ETH_P_ALL)?;
        let fd = fds.adopt(socket)?;
        let fds = Arc::clone(fds);
        Ok(Self { ring, xdp: None, socket: Arc::new(RawRxSocket { fd, fds, interface, steering: Mutex::new(None) }) })
    }

    /// Receives by sockets of XDP as well.
    pub fn set_xdp(&mut self, xdp: Xdp) {
        *self.socket.steering() = Some(xdp.steering);
        self.xdp = Some(xdp.rx);
    }

    /// Says whether the port is to wake when a frame is there, or an error of the interface. When it begins to, the frames that are there
    /// are dropped: they came for rules that are gone.
    ///
    /// # Errors
    /// Any refusal of the system.
    pub fn watch(&mut self, watches: bool) -> io::Result<()> {
        let fd = self.socket.own()?;
        let fds = Arc::clone(&self.socket.fds);
        if fds.is_dead() || fds.is_lost() {
            return Err(io::Error::from_raw_os_error(libc::EBADF));
        }
        if watches {
            self.receive(usize::MAX, |_| ());
            self.clear_error();
        }
        for fd in self.xdp.iter().flat_map(XdpRx::fds).chain([fd]) {
            if watches {
                fds.watch(fd, EpollKey::Raw.pack())?;
            } else {
                fds.unwatch(fd);
            }
        }
        Ok(())
    }

    /// Returns the socket.
    #[must_use]
    pub const fn socket(&self) -> &Arc<RawRxSocket> {
        &self.socket
    }

    /// Takes pending errors, by which epoll reports a socket for ever: ENETDOWN when the interface has gone down.
    pub fn clear_error(&self) {
        self.xdp.iter().flat_map(XdpRx::fds).chain(self.socket.own()).for_each(clear_error);
    }

    /// Whether a frame is there. Asks the ring, not the system.
    #[must_use]
    pub fn has_frames(&self) -> bool {
        self.ring.has_frames() || self.xdp.as_ref().is_some_and(XdpRx::has_frames)
    }

    /// Whether less than half of the ring is full.
    #[must_use]
    pub fn has_room(&self) -> bool {
        self.ring.has_room()
    }

    /// Hands frames to `each`, oldest first, up to `most` of each ring. Returns how many there were.
    pub fn receive(&mut self, most: usize, mut each: impl FnMut(RawFrame<'_>)) -> usize {
        let Self { ring, xdp, socket } = self;
        // Whatever XDP took before a frame that is in the ring is there by then.
        let taken = ring.take(most, |buffer| socket.take_long(buffer), &mut each);
        taken + xdp.as_mut().map_or(0, |xdp| xdp.take(most, &mut each))
    }

    /// Returns how many frames found no slot of the ring since the last call, as far as what is in the ring tells of losses: all,
    /// once it is empty.
    #[must_use]
    pub fn take_lost(&mut self) -> u64 {
        let lost = self.xdp.as_mut().map_or(0, XdpRx::take_lost);
        lost + self.take_lost_by_ring()
    }

    fn take_lost_by_ring(&mut self) -> u64 {
        if !core::mem::take(&mut self.ring.has_lost) {
            return 0;
        }
        let Ok(fd) = self.socket.own() else { return 0 };
        let mut answer = [0_u32; 2];
        let mut length = crate::sys::socklen::<[u32; 2]>();
        // SAFETY: `struct tpacket_stats` is two numbers; room for them, and its length.
        let asked = unsafe {
            let option = libc::PACKET_STATISTICS;
            libc::getsockopt(fd, libc::SOL_PACKET, option, answer.as_mut_ptr().cast(), &raw mut length)
        };
        if asked == 0 { answer[1].into() } else { 0 }
    }
}

impl RawRxSocket {
    /// Returns the descriptor.
    ///
    /// # Errors
    /// EBADF if the application has closed it: the number may be its own by now.
    fn own(&self) -> io::Result<RawFd> {
        if self.fd.is_ours() { Ok(self.fd.as_raw_fd()) } else { Err(io::Error::from_raw_os_error(libc::EBADF)) }
    }

    /// Reads the oldest of the frames that a slot was too short for. Returns its length, which may be more than there is room for,
    /// or `None` if the application has closed the socket.
    fn take_long(&self, buffer: &mut [u8]) -> Option<usize> {
        /// Errors of the interface, each of which is reported once and before any frame.
        const MOST_ERRORS: usize = 8;
        let fd = self.own().ok()?;
        (0..MOST_ERRORS).find_map(|_| {
            // By number: the C library's function is a cancellation point.
            // SAFETY: room for as many bytes as are asked for.
            let read = unsafe {
                let flags = libc::MSG_DONTWAIT | libc::MSG_TRUNC;
                libc::syscall(libc::SYS_recvfrom, fd, buffer.as_mut_ptr(), buffer.len(), flags, 0_usize, 0_usize)
            };
            usize::try_from(read).ok()
        })
    }

    /// Has the kernel pass the frames that a program wants; all with `None`.
    ///
    /// # Errors
    /// Any refusal of the system: then the filter is what it was.
    pub fn set_filter(&self, program: Option<&[Instruction]>) -> io::Result<()> {
        attach(self.own()?, program.unwrap_or(&[EVERYTHING]))
    }

    /// Returns how long the frames may be that a program takes, or `None` if there are no sockets of XDP.
    #[must_use]
    pub fn longest_taken(&self) -> Option<usize> {
        self.steering().as_ref().map(Steering::longest)
    }

    /// Has XDP take the frames that a program wants, which `make` makes for the maps; none with `None`. Frames that it passes are those
    /// of the [filter](Self::set_filter).
    ///
    /// # Errors
    /// Any refusal of the system: then the program is what it was. `Unsupported` without sockets of XDP.
    pub fn set_program(&self, make: Option<&dyn Fn(ProgramMaps) -> Vec<u64>>) -> io::Result<()> {
        self.steering().as_mut().ok_or(io::ErrorKind::Unsupported)?.set_program(make)
    }

    fn steering(&self) -> MutexGuard<'_, Option<Steering>> {
        lock(&self.steering)
    }

    /// Says whether frames that this host sends are received too.
    ///
    /// # Errors
    /// Any refusal of the system.
    pub fn set_sees_sent(&self, sees: bool) -> io::Result<()> {
        set_option(self.own()?, libc::SOL_PACKET, libc::PACKET_IGNORE_OUTGOING, (!sees).into())
    }

    /// Has the interface accept frames to an address, until [`leave`](Self::leave) is called as often.
    ///
    /// # Errors
    /// Any refusal of the system.
    pub fn join(&self, address: MacAddress) -> io::Result<()> {
        self.membership(libc::PACKET_ADD_MEMBERSHIP, address)
    }

    /// Ends a [`join`](Self::join).
    pub fn leave(&self, address: MacAddress) {
        // Fails if the interface is gone, and its memberships with it.
        let _ = self.membership(libc::PACKET_DROP_MEMBERSHIP, address);
    }

    fn membership(&self, change: libc::c_int, address: MacAddress) -> io::Result<()> {
        let (kind, mac) = match address {
            MacAddress::One(mac) if mac[0] & 1 != 0 => (libc::PACKET_MR_MULTICAST, mac),
            MacAddress::One(mac) => (libc::PACKET_MR_UNICAST, mac),
            MacAddress::AllMulticast => (libc::PACKET_MR_ALLMULTI, [0; 6]),
            MacAddress::Any => (libc::PACKET_MR_PROMISC, [0; 6]),
        };
        let [a, b, c, d, e, f] = mac;
        let request = libc::packet_mreq {
            mr_ifindex: self.interface.cast_signed(),
            mr_type: u16::try_from(kind).unwrap_or_default(),
            mr_alen: ETH_ALEN,
            mr_address: [a, b, c, d, e, f, 0, 0],
        };
        set_struct(self.own()?, libc::SOL_PACKET, change, &request)
    }
}

/// Takes a socket's pending error.
fn clear_error(fd: RawFd) {
    let mut error: libc::c_int = 0;
    let mut length = crate::sys::socklen::<libc::c_int>();
    // SAFETY: room for a number, and its length. That nothing is pending is no failure.
    unsafe {
        libc::getsockopt(fd, libc::SOL_SOCKET, libc::SO_ERROR, (&raw mut error).cast(), &raw mut length);
    }
}

/// Attaches a classic BPF program to a socket.
fn attach(fd: RawFd, program: &[Instruction]) -> io::Result<()> {
    let mut code: Vec<_> = program.iter().map(|&(code, jt, jf, k)| libc::sock_filter { code, jt, jf, k }).collect();
    let len = u16::try_from(code.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
    let program = libc::sock_fprog { len, filter: code.as_mut_ptr() };
    set_struct(fd, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &program)
}
