//! Ethernet frames of an interface, by packet sockets (packet(7)).
//!
//! | file | holds |
//! |---|---|
//! | `tx` | the socket that sends |
//! | `rx` | the socket that receives, its filter and its multicast memberships |
//! | `frame` | a received frame |
//! | `ring` | the receive ring that the kernel writes (`PACKET_RX_RING`, `TPACKET_V2`) |
//! | `xdp` | AF_XDP sockets and their program |
//!
//! `TPACKET_V2` shows each frame as soon as it is there; `TPACKET_V3` shows blocks, whose timer has a millisecond. Frames
//! are sent by sendmmsg(2), which copies them: a transmit ring lends its pages to the packet, and gets them back when the
//! packet is orphaned, which over veth is before its receiver has read them.
//!
//! Slots hold frames as long as the interface's MTU allows. Longer ones, which the kernel has not cut or has put together, wait whole
//! in the socket's own queue (`PACKET_COPY_THRESH`), and `PACKET_VNET_HDR` says what segments they are.

mod frame;
mod ring;
mod rx;
mod tx;
mod xdp;

use core::mem::{size_of, zeroed};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use socket2::{Domain, Protocol, Socket, Type};

use crate::port::Port;
use crate::sys::{family, socklen};

pub use frame::{Checksum, Missing, RawFrame, Segments};
pub use rx::{Instruction, MacAddress, RawRx, RawRxSocket};
pub use tx::RawTx;
pub use xdp::{ProgramMaps, Xdp};

impl Port {
    /// Opens the sending side for raw frames of the interface.
    ///
    /// # Errors
    /// `PermissionDenied` without CAP_NET_RAW in the interface's network namespace; what else the system refuses.
    pub fn open_raw_tx(&self) -> io::Result<RawTx> {
        RawTx::open(self.fds(), self.interface_index())
    }

    /// Opens the receiving side for raw frames of the interface, which passes none until it has a
    /// [filter](RawRxSocket::set_filter).
    ///
    /// # Errors
    /// Errors of [`open_raw_tx`](Self::open_raw_tx).
    pub fn open_raw_rx(&self) -> io::Result<RawRx> {
        RawRx::open(self.fds(), self.interface_index(), self.interface().mtu())
    }

    /// Opens sockets of XDP for the frames that a [program](RawRxSocket::set_program) takes, which has so many bytes to note places in
    /// a frame.
    ///
    /// # Errors
    /// `PermissionDenied` without CAP_BPF, CAP_NET_ADMIN and CAP_NET_RAW; `ResourceBusy` if another process has such sockets on the
    /// interface; what else the system refuses.
    pub fn open_xdp(&self, offsets_size: u32) -> io::Result<Xdp> {
        Xdp::open(self.fds(), self.interface_index(), self.interface().mtu(), offsets_size)
    }
}

/// Finds out whether raw frames may be sent and received in this network namespace.
///
/// # Errors
/// `PermissionDenied` without CAP_NET_RAW; what else the system refuses.
pub fn check_rights() -> io::Result<()> {
    packet_socket().map(drop)
}

/// Finds out whether XDP may take frames here.
///
/// # Errors
/// `PermissionDenied` without CAP_BPF, which user namespaces do not give, and CAP_NET_ADMIN; what else the system refuses.
pub fn check_rights_of_xdp() -> io::Result<()> {
    xdp::check_rights()
}

/// A packet socket that is bound to no interface yet.
fn packet_socket() -> io::Result<OwnedFd> {
    // Protocol 0 receives nothing.
    Socket::new(Domain::PACKET, Type::RAW, Some(Protocol::from(0))).map(OwnedFd::from)
}

/// Binds a packet socket to an interface, for frames of `protocol` (0 for none).
fn bind(fd: RawFd, interface: u32, protocol: u16) -> io::Result<()> {
    // SAFETY: plain integers, for which all-zero is valid.
    let mut address: libc::sockaddr_ll = unsafe { zeroed() };
    address.sll_family = family(libc::AF_PACKET);
    address.sll_protocol = protocol.to_be();
    address.sll_ifindex = interface.cast_signed();
    // SAFETY: an address of the length that is given.
    let bound = unsafe { libc::bind(fd, (&raw const address).cast(), socklen::<libc::sockaddr_ll>()) };
    if bound == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Options that ask for a buffer: within the system's limit, and beyond it.
const SEND_BUFFER: [libc::c_int; 2] = [libc::SO_SNDBUF, libc::SO_SNDBUFFORCE];
const RECEIVE_BUFFER: [libc::c_int; 2] = [libc::SO_RCVBUF, libc::SO_RCVBUFFORCE];

/// Asks for room for this many bytes in a buffer of the socket, beyond the system's limit where that is allowed.
fn ask_for_buffer(fd: &impl AsRawFd, options: [libc::c_int; 2], bytes: libc::c_int) {
    for option in options {
        // Either may be refused: what there is serves.
        let _ = crate::sys::set_option(fd.as_raw_fd(), libc::SOL_SOCKET, option, bytes);
    }
}

const _: () = assert!(size_of::<libc::tpacket2_hdr>() == 32);
