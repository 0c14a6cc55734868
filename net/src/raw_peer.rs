//! A peer with an address of its own and nothing else: bytes to and from UDP port 4791, for tools that test other peers.
//!
//! Unlike a [`Port`](crate::Port), a raw peer shares its address with nobody, knows no shared memory, and sends any bytes.

use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

use crate::sys::udp::{TxOptions, raw_tx};
use urxe_wire::ROCE_PORT;

/// Two sockets: one on port 4791 that receives, one on a source port that sends.
#[derive(Debug)]
pub struct RawPeer {
    rx: UdpSocket,
    tx: UdpSocket,
    source: SocketAddr,
}

impl RawPeer {
    /// Binds UDP port 4791 of `address`, and a source port.
    ///
    /// # Errors
    /// [`io::ErrorKind::AddrInUse`]: another RoCE v2 process has the address. [`io::ErrorKind::AddrNotAvailable`]: this host does
    /// not have it.
    pub fn bind(address: IpAddr) -> io::Result<Self> {
        let local = SocketAddr::new(address, ROCE_PORT);
        let rx = UdpSocket::bind(local)?;
        let (socket, source) = raw_tx(local, TxOptions { flow_label: 0, tclass: 0, hop_limit: 0 })?;
        Ok(Self { rx, tx: OwnedFd::from(socket).into(), source })
    }

    /// Own address and the UDP source port of packets.
    #[must_use]
    pub const fn source(&self) -> SocketAddr {
        self.source
    }

    /// Own address, UDP port 4791.
    #[must_use]
    pub const fn local(&self) -> SocketAddr {
        SocketAddr::new(self.source.ip(), ROCE_PORT)
    }

    /// Sends a datagram to UDP port 4791 of `to`: with DF and IPv4 identification 0, as the ICRC must foretell.
    ///
    /// # Errors
    /// The error of the system call; a full socket buffer is waited for.
    pub fn send(&self, to: IpAddr, bytes: &[u8]) -> io::Result<()> {
        match self.tx.send_to(bytes, (to, ROCE_PORT)) {
            Ok(_) => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                let mut poll = libc::pollfd { fd: self.tx.as_raw_fd(), events: libc::POLLOUT, revents: 0 };
                // SAFETY: one structure, writable during the call.
                unsafe { libc::poll(&raw mut poll, 1, 1000) };
                self.tx.send_to(bytes, (to, ROCE_PORT)).map(drop)
            }
            Err(error) => Err(error),
        }
    }

    /// Receives a datagram: its length and its sender. `None` if nothing comes within `timeout`.
    ///
    /// # Errors
    /// The error of the system call.
    pub fn receive(&self, bytes: &mut [u8], timeout: Duration) -> io::Result<Option<(usize, SocketAddr)>> {
        // Zero would be "for ever" (socket(7), SO_RCVTIMEO).
        self.rx.set_read_timeout(Some(timeout.max(Duration::from_micros(1))))?;
        match self.rx.recv_from(bytes) {
            Ok(received) => Ok(Some(received)),
            Err(error) => match error.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut | io::ErrorKind::Interrupted => Ok(None),
                _ => Err(error),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_go_from_one_to_the_other() {
        let [one, other] = ["127.99.7.1", "127.99.7.2"].map(|address| RawPeer::bind(address.parse().unwrap()).unwrap());
        one.send(other.local().ip(), b"any bytes").unwrap();
        let mut bytes = [0; 64];
        let received = loop {
            if let Some(received) = other.receive(&mut bytes, Duration::from_secs(10)).unwrap() {
                break received;
            }
        };
        assert_eq!((&bytes[..received.0], received.1), (&b"any bytes"[..], one.source()));
        assert!(one.receive(&mut bytes, Duration::ZERO).unwrap().is_none());
        assert_eq!(RawPeer::bind(one.local().ip()).unwrap_err().kind(), io::ErrorKind::AddrInUse);
    }
}
