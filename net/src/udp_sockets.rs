//! UDP sockets of every process of the network namespace, by `/proc/net/udp` and `udp6` (proc_net(5)).

use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::sys::cancellation::CancelGuard;

/// Tables of the calling thread's namespace: the main thread may be in another one (unshare(2)).
const TABLES: [&str; 2] = ["/proc/thread-self/net/udp", "/proc/thread-self/net/udp6"];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct UdpSocket {
    local: SocketAddr,
    /// Address that the socket is connected to, or port 0.
    peer: SocketAddr,
    /// Bytes in the receive queue, counted with the kernel's own for each datagram.
    unread: u64,
}

/// UDP sockets, as they were at one time.
#[derive(Clone, Debug, Default)]
pub struct UdpSockets(Vec<UdpSocket>);

impl UdpSockets {
    /// Reads the tables of the namespace; empty without a `/proc`.
    #[must_use]
    pub fn read() -> Self {
        let _guard = CancelGuard::new();
        let tables = TABLES.iter().filter_map(|table| fs::read_to_string(table).ok());
        Self(tables.flat_map(|table| parse(&table).collect::<Vec<_>>()).collect())
    }

    /// Whether a socket is bound to this port of all addresses.
    pub(crate) fn has_unspecified(&self, port: u16) -> bool {
        self.0.iter().any(|socket| socket.local.port() == port && socket.local.ip().is_unspecified())
    }

    /// Whether the socket that gets what is sent from one address to the other has datagrams that its process has not read.
    pub(crate) fn is_unread(&self, from: SocketAddr, to: SocketAddr) -> bool {
        let bound = || self.0.iter().filter(|socket| socket.local == to);
        // The kernel prefers the connected one.
        let mut connected = bound().filter(|socket| socket.peer == from).peekable();
        if connected.peek().is_some() {
            return connected.any(|socket| socket.unread > 0);
        }
        bound().any(|socket| socket.peer.port() == 0 && socket.unread > 0)
    }
}

fn parse(table: &str) -> impl Iterator<Item = UdpSocket> {
    table.lines().skip(1).filter_map(|line| {
        let mut columns = line.split_whitespace().skip(1);
        let (local, peer) = (address(columns.next()?)?, address(columns.next()?)?);
        let (_, unread) = columns.nth(1)?.split_once(':')?;
        Some(UdpSocket { local, peer, unread: u64::from_str_radix(unread, 16).ok()? })
    })
}

/// Address and port of a column: words of 32 bits as they lie in memory, and a number.
fn address(column: &str) -> Option<SocketAddr> {
    let (words, port) = column.split_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    let word = |at: usize| Some(u32::from_str_radix(words.get(at * 8..at * 8 + 8)?, 16).ok()?.to_ne_bytes());
    let ip = match words.len() {
        8 => IpAddr::from(Ipv4Addr::from(word(0)?)),
        32 => {
            let octets = [word(0)?, word(1)?, word(2)?, word(3)?].concat();
            IpAddr::from(Ipv6Addr::from(<[u8; 16]>::try_from(octets).ok()?))
        }
        _ => return None,
    };
    Some(SocketAddr::new(ip, port))
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket as Socket;

    use super::*;

    #[test]
    fn sockets_of_all_addresses() {
        let table = |local: &str| {
            let rest = "07 00000000:00000000 00:00000000 00000000     0        0 447 2";
            let peer = if local.len() > 20 { "00000000000000000000000000000000" } else { "00000000" };
            UdpSockets(parse(&format!("   sl  local_address ...\n   312: {local} {peer}:0000 {rest}\n")).collect())
        };
        assert!(table("00000000:12B7").has_unspecified(4791));
        assert!(table("00000000000000000000000000000000:12B7").has_unspecified(4791));
        assert!(!table("0100007F:12B7").has_unspecified(4791));
        assert!(!table("00000000:12B8").has_unspecified(4791));
        assert!(!UdpSockets::default().has_unspecified(4791));
        for malformed in ["", "0", "0000000:12B7", "00000000", "0000000é:12B7", "00000000:12B70"] {
            assert_eq!(address(malformed), None, "{malformed}");
        }
    }

    #[test]
    fn a_connected_socket_with_datagrams_is_unread() {
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let [receiver, sender, other] = [(); 3].map(|()| Socket::bind(address).unwrap());
            let (from, to) = (sender.local_addr().unwrap(), receiver.local_addr().unwrap());
            let is_unread = |from| UdpSockets::read().is_unread(from, to);
            assert!(!is_unread(from), "nothing has come");
            other.send_to(&[0; 100], to).unwrap();
            assert!(is_unread(from), "before it is connected it may be anybody's");
            receiver.recv(&mut [0; 100]).unwrap();
            receiver.connect(from).unwrap();
            sender.send_to(&[0; 100], to).unwrap();
            assert!(is_unread(from) && !is_unread(other.local_addr().unwrap()));
            receiver.recv(&mut [0; 100]).unwrap();
            assert!(!is_unread(from));
        }
    }
}
