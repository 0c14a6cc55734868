//! Passing a datagram on to the process it is for.
//!
//! A forwarded datagram is one unix datagram: a header with what UDP knew of it, then the payload as it came (a GRO run
//! stays one). It is forwarded once: what comes out of a mailbox is delivered or dropped.

use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixDatagram;
use std::sync::Arc;

use crate::cancellation::Shield;
use crate::fd::{Fd, FdSet};
use crate::service::Mailbox;
use crate::sys::{scope_id, send_parts, set_option, socket_address, wait_writable};

/// Bytes of a [`Header`] before the payload.
pub(crate) const HEADER_LEN: usize = 64;

const MAGIC: [u8; 4] = *b"uRxE";

/// Bytes of forwarded datagrams that may wait in one mailbox; a limit, not a reservation.
const SEND_BUFFER: libc::c_int = 4 << 20;

/// Mailboxes kept connected.
const CONNECTED: usize = 64;

/// What UDP knew of a datagram. All numbers are little-endian in the mailbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    /// Address it was sent to; the port is implied.
    pub(crate) local: (IpAddr, u32),
    /// Address and source port it came from.
    pub(crate) peer: SocketAddr,
    pub(crate) tclass: u8,
    pub(crate) hop_limit: u8,
    /// Length of each packet but the last.
    pub(crate) segment: u16,
    /// Index in its GRO run of the first packet.
    pub(crate) first: u16,
    /// It came through the unconnected socket: the receiver should open a flow socket.
    pub(crate) learn: bool,
}

impl Header {
    pub(crate) fn emit(&self) -> [u8; HEADER_LEN] {
        let mut bytes = [0; HEADER_LEN];
        let mut rest = bytes.as_mut_slice();
        let mut put = |field: &[u8]| {
            let (to, after) = core::mem::take(&mut rest).split_at_mut(field.len());
            to.copy_from_slice(field);
            rest = after;
        };
        put(&MAGIC);
        put(&[u8::from(self.learn), self.tclass, self.hop_limit, 0]);
        put(&self.segment.to_le_bytes());
        put(&self.first.to_le_bytes());
        put(&octets(self.local.0));
        put(&self.local.1.to_le_bytes());
        put(&octets(self.peer.ip()));
        put(&scope_id(self.peer).to_le_bytes());
        put(&self.peer.port().to_le_bytes());
        bytes
    }

    /// `None`: no header of this version.
    pub(crate) fn parse(bytes: &[u8; HEADER_LEN]) -> Option<Self> {
        let mut rest = bytes.as_slice();
        let magic: [u8; 4] = take(&mut rest)?;
        let [learn, tclass, hop_limit, _] = take(&mut rest)?;
        let segment = u16::from_le_bytes(take(&mut rest)?);
        let first = u16::from_le_bytes(take(&mut rest)?);
        let local = (address(take(&mut rest)?), u32::from_le_bytes(take(&mut rest)?));
        let peer_ip = address(take(&mut rest)?);
        let peer_scope = u32::from_le_bytes(take(&mut rest)?);
        let peer_port = u16::from_le_bytes(take(&mut rest)?);
        if magic != MAGIC || learn > 1 || segment == 0 || peer_ip.is_ipv4() != local.0.is_ipv4() {
            return None;
        }
        let peer = socket_address(peer_ip, peer_port, peer_scope);
        Some(Self { local, peer, tclass, hop_limit, segment, first, learn: learn == 1 })
    }
}

fn take<const N: usize>(rest: &mut &[u8]) -> Option<[u8; N]> {
    let (field, after) = rest.split_first_chunk::<N>()?;
    *rest = after;
    Some(*field)
}

/// IPv4 addresses travel in their mapped form.
fn octets(ip: IpAddr) -> [u8; 16] {
    crate::interface::gid_of(ip)
}

fn address(octets: [u8; 16]) -> IpAddr {
    let v6 = Ipv6Addr::from(octets);
    v6.to_ipv4_mapped().map_or(IpAddr::V6(v6), IpAddr::V4)
}

/// What became of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Forwarded {
    /// It is in the mailbox.
    Sent,
    /// Nobody owns the block.
    Unknown,
    /// The mailbox is full.
    Full,
    /// No descriptor, no memory.
    Refused,
}

/// Connections to other processes' mailboxes.
///
/// One socket each, because the kernel charges what waits in a mailbox to its sender's socket: a process that does not
/// read must not use up what the others need.
#[derive(Debug)]
pub(crate) struct Forwarder {
    /// Most recently connected last.
    connected: Vec<Connection>,
    /// A socket that has not found its mailbox, for the next attempt: packets to unknown QPNs cost no socket each.
    spare: Option<UnixDatagram>,
}

/// A socket connected to a mailbox.
#[derive(Debug)]
struct Connection {
    to: Mailbox,
    fd: Fd,
    /// Datagrams for which a full mailbox is not waited for: its process has not read in time.
    hasty: u32,
}

/// How long a full mailbox is waited for, in milliseconds. It holds few datagrams (`net.unix.max_dgram_qlen`, 10 by
/// default), and a flow that is new comes in bursts; a process that lives reads them within this.
const WAIT: u16 = 2;
/// After a wait in vain, so many datagrams are not waited for: who does not read must not hold up the others.
const HASTY: u32 = 256;

impl Forwarder {
    pub(crate) fn new() -> Self {
        Self { connected: Vec::new(), spare: None }
    }

    /// Puts a datagram into a mailbox.
    pub(crate) fn forward(&mut self, fds: &Arc<FdSet>, to: Mailbox, header: &Header, payload: &[u8]) -> Forwarded {
        let known = self.connected.iter().position(|connection| connection.to == to);
        let at = match known {
            Some(at) => at,
            None => match self.connect(fds, to) {
                Ok(at) => at,
                Err(e) if e.kind() == io::ErrorKind::ConnectionRefused => return Forwarded::Unknown,
                Err(_) => return Forwarded::Refused,
            },
        };
        let Some(connection) = self.connected.get_mut(at) else { return Forwarded::Refused };
        match connection.send([&header.emit(), payload]) {
            Ok(_) => Forwarded::Sent,
            Err(e) => match e.raw_os_error() {
                Some(libc::EAGAIN) => Forwarded::Full,
                // Its process is gone. Another one may have the name by now, at the next datagram.
                Some(libc::ECONNREFUSED | libc::ENOTCONN | libc::EPIPE | libc::ECONNRESET) => {
                    self.connected.swap_remove(at);
                    Forwarded::Unknown
                }
                _ => Forwarded::Refused,
            },
        }
    }

    fn connect(&mut self, fds: &Arc<FdSet>, to: Mailbox) -> io::Result<usize> {
        let _shield = Shield::new();
        let socket = match self.spare.take() {
            Some(socket) => socket,
            None => {
                let socket = UnixDatagram::unbound()?;
                let fd = socket.as_raw_fd();
                if set_option(fd, libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, SEND_BUFFER).is_err() {
                    set_option(fd, libc::SOL_SOCKET, libc::SO_SNDBUF, SEND_BUFFER)?;
                }
                socket
            }
        };
        if let Err(error) = socket.connect_addr(&to.name()?) {
            self.spare = Some(socket);
            return Err(error);
        }
        if self.connected.len() >= CONNECTED {
            self.connected.remove(0);
        }
        self.connected.push(Connection { to, fd: fds.adopt(socket)?, hasty: 0 });
        Ok(self.connected.len() - 1)
    }
}

impl Connection {
    fn send(&mut self, parts: [&[u8]; 2]) -> io::Result<usize> {
        let fd = self.fd.as_raw_fd();
        match send_parts(fd, parts) {
            Err(e) if e.raw_os_error() == Some(libc::EAGAIN) => {}
            done => return done,
        }
        if self.hasty > 0 {
            self.hasty -= 1;
            return Err(io::Error::from_raw_os_error(libc::EAGAIN));
        }
        wait_writable(fd, WAIT);
        let sent = send_parts(fd, parts);
        if sent.as_ref().is_err_and(|e| e.raw_os_error() == Some(libc::EAGAIN)) {
            self.hasty = HASTY;
        }
        sent
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn header() -> Header {
        Header {
            local: ("127.0.0.1".parse().unwrap(), 0),
            peer: "127.0.0.1:50000".parse().unwrap(),
            tclass: 0x2A,
            hop_limit: 63,
            segment: 4112,
            first: 3,
            learn: true,
        }
    }

    #[test]
    fn headers_survive() {
        let v6 = Header {
            local: ("fe80::1".parse().unwrap(), 9),
            peer: "[fe80::2%9]:65535".parse().unwrap(),
            learn: false,
            ..header()
        };
        for header in [header(), v6] {
            assert_eq!(Header::parse(&header.emit()), Some(header));
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_parsed_or_refused(bytes: [u8; HEADER_LEN]) {
            prop_assert_eq!(Header::parse(&bytes), None, "random bytes carry no magic");
        }

        #[test]
        fn any_damaged_header_is_parsed_or_refused(at in 4..HEADER_LEN, value: u8) {
            let mut bytes = header().emit();
            bytes[at] = value;
            if let Some(parsed) = Header::parse(&bytes) {
                prop_assert!(parsed.segment > 0);
                prop_assert_eq!(Header::parse(&parsed.emit()), Some(parsed));
            }
        }
    }

    #[test]
    fn a_block_without_owner_is_unknown_and_costs_one_socket() {
        let (fds, mut forwarder) = (FdSet::new().unwrap(), Forwarder::new());
        for _ in 0..3 {
            // Block 0 is never given out.
            assert_eq!(forwarder.forward(&fds, Mailbox::Block(0), &header(), b"payload"), Forwarded::Unknown);
        }
        assert!(forwarder.spare.is_some() && forwarder.connected.is_empty());
    }

    #[test]
    fn a_full_mailbox_is_not_waited_for_long_and_a_gone_one_is_forgotten() {
        let (fds, mut forwarder) = (FdSet::new().unwrap(), Forwarder::new());
        // Block 0xFFFF is never given out either, so this test may have it.
        let mailbox = UnixDatagram::bind_addr(&Mailbox::Block(0xFFFF).name().unwrap()).unwrap();
        let payload = vec![0; 60000];
        let results: Vec<_> =
            (0..1000).map(|_| forwarder.forward(&fds, Mailbox::Block(0xFFFF), &header(), &payload)).collect();
        assert_eq!(results[0], Forwarded::Sent);
        assert_eq!(results[999], Forwarded::Full);
        drop(mailbox);
        assert_eq!(forwarder.forward(&fds, Mailbox::Block(0xFFFF), &header(), &payload), Forwarded::Unknown);
        assert!(forwarder.connected.is_empty());
    }
}
