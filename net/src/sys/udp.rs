//! The three kinds of UDP socket and their options.
//!
//! * *owner socket*: unconnected, on `address:4791`;
//! * *flow socket*: the same, connected to one peer's address and source port;
//! * *transmit socket*: unconnected, on a source port of its own.
//!
//! Only unconnected sockets send: with DF set the kernel then gives IPv4 identification 0 to a lone packet and 0, 1, 2…
//! to the segments of a GSO run, which the ICRC must foretell (`__ip_select_ident` and `inet_gso_segment`; a connected
//! socket counts from a random start).

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;

use rustix::net::sockopt::socket_recv_buffer_size;
use socket2::{Domain, Protocol, SockAddr, Socket, Type};

use crate::sys::fd::{Fd, FdSet};
use crate::sys::random::random_u16;
use crate::sys::{borrow, discard_input, scope_id, set_option, set_struct, socket_address};

/// Receive buffer wanted, bytes; the kernel grants less where `net.core.rmem_max` says so and the process has no
/// CAP_NET_ADMIN. It is a limit, not a reservation.
const RECEIVE_BUFFER: libc::c_int = 8 << 20;

/// First UDP source port of RoCE v2 senders: the kernel's IB_ROCE_UDP_ENCAP_VALID_PORT_MIN (`rdma/ib_verbs.h`).
pub(crate) const FIRST_SOURCE_PORT: u16 = 0xC000;
/// How many source ports there are.
const SOURCE_PORTS: u16 = 0x4000;

/// Hop limit where the user gave none, the kernel's own default.
pub(crate) const DEFAULT_HOP_LIMIT: u8 = 64;

/// The owner socket of `local`.
pub(crate) fn bind_owner(fds: &Arc<FdSet>, local: SocketAddr) -> io::Result<Fd> {
    let socket = receive_socket(local)?;
    fds.adopt(socket)
}

/// A flow socket: what `peer` (address and source port) sends to `local`.
///
/// Between bind and connect the kernel may already steer datagrams of other peers to it, so whoever reads it must look
/// at each datagram's sender and destination QPN.
pub(crate) fn connect_flow(fds: &Arc<FdSet>, local: SocketAddr, peer: SocketAddr) -> io::Result<Fd> {
    let socket = receive_socket(local)?;
    socket.connect(&SockAddr::from(peer))?;
    fds.adopt(socket)
}

pub(crate) fn receive_socket(local: SocketAddr) -> io::Result<Socket> {
    let socket = new_socket(local)?;
    let fd = socket.as_raw_fd();
    // REUSEADDR lets processes of different users share the port, REUSEPORT those of one user (udp_lib_lport_inuse).
    socket.set_reuse_address(true)?;
    socket.set_reuse_port(true)?;
    if set_option(fd, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, RECEIVE_BUFFER).is_err() {
        set_option(fd, libc::SOL_SOCKET, libc::SO_RCVBUF, RECEIVE_BUFFER)?;
    }
    // The port works without these: GRO is an optimisation, checksum 0 over IPv6 comes from rxe peers only.
    let _ = set_option(fd, libc::SOL_UDP, libc::UDP_GRO, 1);
    if local.is_ipv6() {
        let _ = set_option(fd, libc::SOL_UDP, libc::UDP_NO_CHECK6_RX, 1);
    }
    allow_absent(&socket, local, true);
    socket.bind(&SockAddr::from(local))?;
    Ok(socket)
}

/// Header fields that a receive socket tells of each datagram.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub(crate) enum Reported {
    /// No header field.
    #[default]
    Nothing,
    /// The traffic class: for congestion marks.
    Class,
    /// Traffic class and hop limit: for the GRH of UD.
    All,
}

/// Makes a receive socket tell the traffic class and hop limit of each datagram, or the former alone. A socket that will
/// not says nothing, which its reader takes as 0.
pub(crate) fn report_headers(fd: RawFd, local: SocketAddr, reported: Reported) {
    let (level, class, hops) = if local.is_ipv4() {
        (libc::IPPROTO_IP, libc::IP_RECVTOS, libc::IP_RECVTTL)
    } else {
        (libc::IPPROTO_IPV6, libc::IPV6_RECVTCLASS, libc::IPV6_RECVHOPLIMIT)
    };
    if reported >= Reported::Class {
        let _ = set_option(fd, level, class, 1);
    }
    if reported >= Reported::All {
        let _ = set_option(fd, level, hops, 1);
    }
}

/// Header fields that distinguish one transmit socket's packets from another's, besides the addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TxOptions {
    /// Flow label of the address handle; 0 leaves the source port to chance.
    pub(crate) flow_label: u32,
    /// IPv4 TOS or IPv6 traffic class.
    pub(crate) tclass: u8,
    /// IPv4 TTL or IPv6 hop limit; 0 for the default.
    pub(crate) hop_limit: u8,
}

/// Says through which interface multicast to `group` leaves, and how far it goes (0: the default).
pub(crate) fn send_multicast_through(fd: RawFd, group: SocketAddr, interface: u32, hops: u8) -> io::Result<()> {
    let hops = if hops == 0 { DEFAULT_HOP_LIMIT } else { hops };
    let interface = interface.cast_signed();
    if group.is_ipv4() {
        let request = libc::ip_mreqn {
            imr_multiaddr: libc::in_addr { s_addr: 0 },
            imr_address: libc::in_addr { s_addr: 0 },
            imr_ifindex: interface,
        };
        set_struct(fd, libc::IPPROTO_IP, libc::IP_MULTICAST_IF, &request)?;
        set_option(fd, libc::IPPROTO_IP, libc::IP_MULTICAST_TTL, hops.into())
    } else {
        set_option(fd, libc::IPPROTO_IPV6, libc::IPV6_MULTICAST_IF, interface)?;
        set_option(fd, libc::IPPROTO_IPV6, libc::IPV6_MULTICAST_HOPS, hops.into())
    }
}

/// A transmit socket at `local`'s address, and the source port it got.
pub(crate) fn bind_tx(fds: &Arc<FdSet>, local: SocketAddr, options: TxOptions) -> io::Result<(Fd, SocketAddr)> {
    let socket = new_socket(local)?;
    allow_absent(&socket, local, true);
    let bound = set_up_tx(&socket, local, options)?;
    // Nothing is to leave from an address that is another host's by now.
    allow_absent(&socket, local, false);
    Ok((fds.adopt(socket)?, bound))
}

/// A transmit socket that belongs to no port.
pub(crate) fn raw_tx(local: SocketAddr, options: TxOptions) -> io::Result<(Socket, SocketAddr)> {
    let socket = new_socket(local)?;
    let bound = set_up_tx(&socket, local, options)?;
    Ok((socket, bound))
}

/// Makes a transmit socket of it, and returns the source port.
fn set_up_tx(socket: &Socket, local: SocketAddr, options: TxOptions) -> io::Result<SocketAddr> {
    let fd = socket.as_raw_fd();
    discard_input(fd)?;
    let hops = if options.hop_limit == 0 { DEFAULT_HOP_LIMIT } else { options.hop_limit };
    if local.is_ipv4() {
        set_option(fd, libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_DO)?;
        set_option(fd, libc::IPPROTO_IP, libc::IP_TOS, options.tclass.into())?;
        set_option(fd, libc::IPPROTO_IP, libc::IP_TTL, hops.into())?;
    } else {
        set_option(fd, libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, libc::IPV6_PMTUDISC_DO)?;
        set_option(fd, libc::IPPROTO_IPV6, libc::IPV6_TCLASS, options.tclass.into())?;
        set_option(fd, libc::IPPROTO_IPV6, libc::IPV6_UNICAST_HOPS, hops.into())?;
    }
    bind_source_port(socket, local, options.flow_label)
}

/// Lets a socket be bound to an IPv4 address of an interface that is down: the address is not local meanwhile. Where the system does not
/// know the option, binding fails until the interface is up.
fn allow_absent(socket: &Socket, local: SocketAddr, allows: bool) {
    if local.is_ipv4() {
        let _ = set_option(socket.as_raw_fd(), libc::IPPROTO_IP, libc::IP_FREEBIND, allows.into());
    }
}

/// Takes the port that a flow label asks for if nobody has it, or any.
///
/// Never one that another socket of this host sends from: programs carry the same label to every destination (UCX's is
/// 0xfffff), and a source port must tell the receiving host which of its processes a packet is for.
fn bind_source_port(socket: &Socket, local: SocketAddr, flow_label: u32) -> io::Result<SocketAddr> {
    let at = |port| socket_address(local.ip(), port, scope_id(local));
    if flow_label != 0 {
        let wanted = at(source_port_of_flow_label(flow_label));
        match socket.bind(&SockAddr::from(wanted)) {
            Ok(()) => return Ok(wanted),
            Err(e) if e.kind() == io::ErrorKind::AddrInUse => {}
            Err(e) => return Err(e),
        }
    }
    let start = random_u16();
    for step in 0..SOURCE_PORTS {
        let address = at(FIRST_SOURCE_PORT + start.wrapping_add(step) % SOURCE_PORTS);
        match socket.bind(&SockAddr::from(address)) {
            Ok(()) => return Ok(address),
            Err(e) if e.kind() == io::ErrorKind::AddrInUse => {}
            Err(e) => return Err(e),
        }
    }
    Err(io::ErrorKind::AddrInUse.into())
}

/// The source port of a flow label, as the kernel's rdma_flow_label_to_udp_sport (`rdma/ib_verbs.h`): 20 bits folded
/// into 14.
fn source_port_of_flow_label(label: u32) -> u16 {
    let folded = (label ^ ((label >> 14) & 0x3F)) & 0x3FFF;
    let [_, _, high, low] = folded.to_be_bytes();
    FIRST_SOURCE_PORT | u16::from_be_bytes([high, low])
}

fn new_socket(local: SocketAddr) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(local), Type::DGRAM.nonblocking(), Some(Protocol::UDP))?;
    if local.is_ipv6() {
        socket.set_only_v6(true)?;
        // A fresh IPv6 address is tentative for a second or two (duplicate address detection); without this, binding
        // to it fails until then.
        set_option(socket.as_raw_fd(), libc::IPPROTO_IPV6, libc::IPV6_FREEBIND, 1)?;
    }
    Ok(socket)
}

/// Whether the kernel knows UDP segmentation offload (Linux 4.18).
pub(crate) fn has_gso(fd: &Fd) -> bool {
    set_option(fd.as_raw_fd(), libc::SOL_UDP, libc::UDP_SEGMENT, 0).is_ok()
}

/// The receive buffer a socket has, in the kernel's accounting (which counts packets at about their memory, not their
/// payload).
pub(crate) fn receive_buffer(fd: &Fd) -> usize {
    socket_recv_buffer_size(borrow(fd.as_raw_fd())).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ANY: TxOptions = TxOptions { flow_label: 0, tclass: 0, hop_limit: 0 };

    #[test]
    fn flow_labels_fold_into_the_port_range() {
        for (label, port) in [(0, 0xC000), (1, 0xC001), (0x3FFF, 0xFFFF), (0x4000, 0xC001), (0xFFFFF, 0xC000 | 0x3FC0)]
        {
            assert_eq!(source_port_of_flow_label(label), port, "label {label:#x}");
        }
    }

    #[test]
    fn a_flow_label_decides_the_source_port_if_nobody_has_it() {
        let fds = FdSet::new().unwrap();
        // An address of this test's own.
        let local: SocketAddr = "127.99.3.1:4791".parse().unwrap();
        let (_a, first) = bind_tx(&fds, local, ANY).unwrap();
        let (_b, second) = bind_tx(&fds, local, ANY).unwrap();
        assert_ne!(first.port(), second.port());
        let labelled = TxOptions { flow_label: 0xF_FFFF, ..ANY };
        let expected = source_port_of_flow_label(labelled.flow_label);
        let (_c, third) = bind_tx(&fds, local, labelled).unwrap();
        let (_d, fourth) = bind_tx(&fds, local, labelled).unwrap();
        let ports = [first, second, third, fourth].map(|address| address.port());
        assert!(ports.contains(&expected), "{ports:?}");
        assert!(ports.iter().all(|port| *port >= FIRST_SOURCE_PORT), "{ports:?}");
        assert_ne!(third.port(), fourth.port(), "one destination, one port");
    }

    #[test]
    fn owner_socket_has_a_receive_buffer() {
        let fds = FdSet::new().unwrap();
        let fd = bind_owner(&fds, "127.0.0.1:0".parse().unwrap()).unwrap();
        assert!(receive_buffer(&fd) > 0);
        assert!(has_gso(&fd), "this kernel should know UDP_SEGMENT");
    }
}
