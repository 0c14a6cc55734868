//! Forwarding of datagrams to the process that they are for.
//!
//! A forwarded datagram is one unix datagram: a header with what UDP knew of it, then the payload as it came (a GRO run
//! stays one). It is forwarded once: what comes out of a mailbox is delivered or dropped.
//!
//! A mailbox holds few datagrams (`net.unix.max_dgram_qlen`, 10 by default), and a flow that is new comes in bursts. What
//! does not fit waits here until its process has read some, and is dropped if that does not happen soon. The receiver
//! itself never waits: the process may be stopped, or another user's who binds mailboxes and reads none.

use std::collections::VecDeque;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixDatagram;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::Meta;
use crate::datagram::Headers;
use crate::ipc::header::{HEADER_LEN, Header};
use crate::mailbox::Mailbox;
use crate::port::Port;
use crate::sys::cancellation::CancelGuard;
use crate::sys::epoll_key::EpollKey;
use crate::sys::fd::{Fd, FdSet};
use crate::sys::identity::CheckedFd;
use crate::sys::{scope_id, send_parts, set_option};

/// Bytes of forwarded datagrams that may wait in one mailbox; a limit, not a reservation.
const SEND_BUFFER: libc::c_int = 4 << 20;

/// Mailboxes kept connected.
const CONNECTED: usize = 64;

/// Datagrams that may wait for one mailbox.
const BACKLOG: usize = 32;
/// Bytes that may wait for all mailboxes.
const BACKLOG_BYTES: usize = 4 << 20;
/// Time for which datagrams wait for a process that reads nothing.
pub(crate) const STALLED: Duration = Duration::from_millis(50);

/// Outcome of forwarding a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Forwarded {
    /// The datagram is in the mailbox.
    Sent,
    /// Queued until there is room in the mailbox.
    Waits,
    /// No process owns the block.
    Unknown,
    /// The mailbox is full.
    Full,
    /// No descriptor, no memory.
    Refused,
}

/// Destination of a packet to QP1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// Own process.
    Here,
    /// Own process, which is to refuse it.
    Refused,
    /// Another process, now or later, or nowhere.
    Elsewhere {
        /// Whether the datagram waits for room in the other's mailbox.
        waits: bool,
    },
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
    spare: Option<CheckedFd>,
    /// Bytes that wait.
    bytes: usize,
    /// Datagrams that waited in vain since [`Forwarder::take_lost`].
    lost: usize,
}

/// A socket connected to a mailbox.
#[derive(Debug)]
struct Connection {
    to: Mailbox,
    fd: Fd,
    /// Datagrams that did not fit, in their order. While there are any, the socket is watched for room.
    backlog: VecDeque<Box<[u8]>>,
    /// When the process last read something, for all that is known: while something waits.
    read_at: Instant,
    /// Set when the process let a backlog expire and has read nothing since: nothing is queued for it.
    is_stalled: bool,
}

/// The mailbox's process is gone. Another one may have the name by now.
fn is_gone(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ECONNREFUSED | libc::ENOTCONN | libc::EPIPE | libc::ECONNRESET))
}

fn is_full(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::EAGAIN)
}

impl Forwarder {
    pub(crate) fn new() -> Self {
        Self { connected: Vec::new(), spare: None, bytes: 0, lost: 0 }
    }

    /// Puts a datagram into a mailbox, or has it wait for room there. Never waits itself.
    //= spec/hosts.md#net-032
    //# A mailbox that nobody reads MUST NOT make the owner of the port wait.
    pub(crate) fn forward(&mut self, fds: &Arc<FdSet>, to: Mailbox, header: &Header, payload: &[u8]) -> Forwarded {
        let parts = [&header.emit()[..], payload];
        let mut known = self.connected.iter().position(|connection| connection.to == to);
        let at = loop {
            let at = match known {
                Some(at) => at,
                None => match self.connect(fds, to) {
                    Ok(at) => at,
                    Err(e) if e.kind() == io::ErrorKind::ConnectionRefused => return Forwarded::Unknown,
                    Err(_) => return Forwarded::Refused,
                },
            };
            let Some(connection) = self.connected.get_mut(at) else { return Forwarded::Refused };
            if !connection.backlog.is_empty() {
                break at;
            }
            match send_parts(connection.fd.as_raw_fd(), parts) {
                Ok(_) => {
                    connection.is_stalled = false;
                    return Forwarded::Sent;
                }
                Err(e) if is_full(&e) => break at,
                Err(e) if is_gone(&e) => self.remove(at),
                Err(_) => return Forwarded::Refused,
            }
            // Another process may have the name by now. Once: one that comes and goes is not chased.
            if known.take().is_none() {
                return Forwarded::Unknown;
            }
        };
        let Some(connection) = self.connected.get_mut(at) else { return Forwarded::Refused };
        let bytes = HEADER_LEN + payload.len();
        if connection.is_stalled || connection.backlog.len() >= BACKLOG || self.bytes + bytes > BACKLOG_BYTES {
            return Forwarded::Full;
        }
        if connection.backlog.is_empty() {
            let fd = connection.fd.as_raw_fd();
            if fds.watch_output(fd, EpollKey::Backlog(fd).pack()).is_err() {
                return Forwarded::Full;
            }
            connection.read_at = Instant::now();
        }
        connection.backlog.push_back(parts.concat().into());
        self.bytes += bytes;
        Forwarded::Waits
    }

    /// Puts what waits into the mailbox with this connection, which has room.
    pub(crate) fn send_backlog(&mut self, fds: &FdSet, fd: RawFd) {
        let Some(at) = self.connected.iter().position(|connection| connection.fd.as_raw_fd() == fd) else { return };
        let Some(connection) = self.connected.get_mut(at) else { return };
        while let Some(datagram) = connection.backlog.front() {
            match send_parts(fd, [datagram]) {
                Ok(_) => connection.read_at = Instant::now(),
                Err(e) if is_full(&e) => return,
                Err(e) if is_gone(&e) => return self.remove(at),
                Err(_) => self.lost += 1,
            }
            self.bytes -= datagram.len();
            connection.backlog.pop_front();
        }
        fds.unwatch(fd);
    }

    /// Drops what has waited too long for a process to read. Returns whether others wait.
    pub(crate) fn drop_backlog(&mut self, fds: &FdSet, now: Instant) -> bool {
        let mut others_wait = false;
        for connection in self.connected.iter_mut().filter(|connection| !connection.backlog.is_empty()) {
            if now.duration_since(connection.read_at) < STALLED {
                others_wait = true;
                continue;
            }
            connection.is_stalled = true;
            self.lost += connection.backlog.len();
            self.bytes -= connection.backlog.drain(..).map(|datagram| datagram.len()).sum::<usize>();
            fds.unwatch(connection.fd.as_raw_fd());
        }
        others_wait
    }

    /// Number of datagrams that have waited in vain since the last call.
    pub(crate) fn take_lost(&mut self) -> usize {
        std::mem::take(&mut self.lost)
    }

    /// Gives up a connection, and what waits for it.
    fn remove(&mut self, at: usize) {
        let connection = self.connected.remove(at);
        self.bytes -= connection.backlog.iter().map(|datagram| datagram.len()).sum::<usize>();
        self.lost += connection.backlog.len();
    }

    fn connect(&mut self, fds: &Arc<FdSet>, to: Mailbox) -> io::Result<usize> {
        let _guard = CancelGuard::new();
        let socket = match self.spare.take().and_then(CheckedFd::into_owned) {
            Some(socket) => UnixDatagram::from(socket),
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
            self.spare = Some(OwnedFd::from(socket).into());
            return Err(error);
        }
        if self.connected.len() >= CONNECTED {
            // What is known of mailboxes that nobody reads is kept, in half of the places: these may be dead, and others need the rest.
            let idle = |connection: &Connection| connection.backlog.is_empty();
            let stalled = self.connected.iter().filter(|connection| connection.is_stalled).count();
            let goes = |connection: &Connection| idle(connection) && connection.is_stalled == (stalled > CONNECTED / 2);
            let first = self.connected.iter().position(goes).or_else(|| self.connected.iter().position(idle));
            self.remove(first.unwrap_or_default());
        }
        let (fd, read_at) = (fds.adopt(socket)?, Instant::now());
        self.connected.push(Connection { to, fd, backlog: VecDeque::new(), read_at, is_stalled: false });
        Ok(self.connected.len() - 1)
    }
}

/// Forwards packets of one datagram, of which the first is at index `first`, to the mailbox of another process.
pub(super) fn forward(
    forwarder: &mut Forwarder,
    port: &Port,
    meta: &Meta,
    first: u16,
    learn: bool,
    to: Mailbox,
    packets: &[u8],
) -> Forwarded {
    // QP0 does not exist on RoCE, and a block 0 mailbox neither.
    if to == Mailbox::Block(0) {
        return Forwarded::Unknown;
    }
    let Headers { local, peer, tclass, hop_limit } = meta.headers;
    let local: (IpAddr, u32) = (local.ip(), scope_id(local));
    let segment = u16::try_from(meta.segment).unwrap_or(u16::MAX);
    let header = Header { local, peer, tclass, hop_limit, segment, first, learn };
    forwarder.forward(port.fds(), to, &header, packets)
}

#[cfg(test)]
mod tests {
    use std::os::fd::FromRawFd;

    use urxe_wire::Gid;

    use super::*;
    use crate::ipc::header::tests::header;

    #[test]
    fn a_block_without_owner_is_unknown_and_costs_one_socket() {
        let (fds, mut forwarder) = (FdSet::new().unwrap(), Forwarder::new());
        for _ in 0..3 {
            // Block 0 is never given out.
            assert_eq!(forwarder.forward(&fds, Mailbox::Block(0), &header(), b"payload"), Forwarded::Unknown);
        }
        assert!(forwarder.spare.is_some() && forwarder.connected.is_empty());
        let spare = |forwarder: &Forwarder| forwarder.spare.as_ref().map(AsRawFd::as_raw_fd);
        let first = spare(&forwarder);
        assert_eq!(forwarder.forward(&fds, Mailbox::Block(0), &header(), b"payload"), Forwarded::Unknown);
        assert_eq!(spare(&forwarder), first);
    }

    /// An application that closes all descriptors may have a socket of its own under the number of the spare one.
    #[test]
    fn a_socket_of_the_application_is_no_spare_one() {
        let (fds, mut forwarder) = (FdSet::new().unwrap(), Forwarder::new());
        assert_eq!(forwarder.forward(&fds, Mailbox::Block(0), &header(), b"payload"), Forwarded::Unknown);
        let spare = forwarder.spare.as_ref().unwrap().as_raw_fd();
        let theirs = UnixDatagram::unbound().unwrap();
        // SAFETY: replaces what is under a number that nobody but the forwarder knows, which leaves it alone from now on.
        let under = unsafe { libc::dup3(theirs.as_raw_fd(), spare, libc::O_CLOEXEC) };
        // SAFETY: a new descriptor, which nobody else closes.
        let under = UnixDatagram::from(unsafe { OwnedFd::from_raw_fd(under) });
        let mailbox = mailbox(service(2000));
        assert_eq!(forwarder.forward(&fds, service(2000), &header(), b"payload"), Forwarded::Sent);
        assert!(mailbox.recv(&mut [0; 100]).is_ok());
        assert_eq!(under.peer_addr().unwrap_err().kind(), io::ErrorKind::NotConnected);
    }

    /// A mailbox with a name of no block that is given out.
    fn mailbox(name: Mailbox) -> UnixDatagram {
        let mailbox = UnixDatagram::bind_addr(&name.name().unwrap()).unwrap();
        mailbox.set_nonblocking(true).unwrap();
        mailbox
    }

    /// A name of this process and number. Process ids may have more than 16 bits: those of two numbers must not meet.
    fn service(id: u64) -> Mailbox {
        Mailbox::Service(id << 32 | u64::from(std::process::id()), Gid::new([0xEE; 16]))
    }

    #[test]
    fn datagrams_for_a_full_mailbox_wait_in_order() {
        let (fds, mut forwarder) = (FdSet::new().unwrap(), Forwarder::new());
        let mailbox = mailbox(service(1));
        let mut sent = 0_u32;
        while forwarder.forward(&fds, service(1), &header(), &sent.to_le_bytes()) != Forwarded::Full {
            sent += 1;
        }
        assert_eq!(forwarder.connected[0].backlog.len(), BACKLOG);
        let (mut bytes, mut keys) = ([0; 100], [0; 4]);
        for number in 0..sent {
            let len = mailbox.recv(&mut bytes).unwrap();
            assert_eq!(bytes[HEADER_LEN..len], number.to_le_bytes());
            let ready = fds.ready(&mut keys);
            for key in &keys[..ready] {
                let Some(EpollKey::Backlog(fd)) = EpollKey::unpack(*key) else { panic!("{key:x}") };
                forwarder.send_backlog(&fds, fd);
            }
        }
        assert_eq!((forwarder.bytes, forwarder.take_lost()), (0, 0));
        assert_eq!(fds.ready(&mut keys), 0, "an empty backlog is not watched");
        assert_eq!(forwarder.forward(&fds, service(1), &header(), b"?"), Forwarded::Sent);
    }

    /// More mailboxes than are kept connected, in turn: whatever is remembered of one is forgotten before its next datagram.
    //= spec/hosts.md#net-032
    //= type=test
    //# A mailbox that nobody reads MUST NOT make the owner of the port wait.
    #[test]
    fn mailboxes_that_nobody_reads_are_never_waited_for() {
        /// How often this thread has given its processor away by waiting (`getrusage(2)`).
        fn waits() -> i64 {
            // SAFETY: all-zero bytes are a valid rusage, which the call fills in.
            unsafe {
                let mut usage = core::mem::zeroed();
                libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage);
                usage.ru_nvcsw
            }
        }
        const MAILBOXES: u64 = CONNECTED as u64 + 16;
        const ROUNDS: u64 = 40;
        let (fds, mut forwarder) = (FdSet::new().unwrap(), Forwarder::new());
        let mailboxes: Vec<_> = (0..MAILBOXES).map(|at| mailbox(service(100 + at))).collect();
        let before = waits();
        for _ in 0..ROUNDS {
            for at in 0..MAILBOXES {
                forwarder.forward(&fds, service(100 + at), &header(), &[0; 100]);
            }
        }
        let waited = waits() - before;
        assert!(waited < 100, "{waited} waits for {} datagrams", MAILBOXES * ROUNDS);
        assert!(forwarder.bytes <= BACKLOG_BYTES);
        drop(mailboxes);
    }

    #[test]
    fn a_mailbox_that_nobody_reads_is_remembered_while_others_come_and_go() {
        let (fds, mut forwarder) = (FdSet::new().unwrap(), Forwarder::new());
        let unread = mailbox(service(3000));
        while forwarder.forward(&fds, service(3000), &header(), &[0; 100]) != Forwarded::Full {}
        assert!(!forwarder.drop_backlog(&fds, Instant::now() + STALLED));
        for at in 1..=2 * CONNECTED as u64 {
            let read = mailbox(service(3000 + at));
            assert_eq!(forwarder.forward(&fds, service(3000 + at), &header(), &[0; 100]), Forwarded::Sent);
            assert!(read.recv(&mut [0; 1000]).is_ok());
        }
        assert_eq!(forwarder.forward(&fds, service(3000), &header(), &[0; 100]), Forwarded::Full);
        drop(unread);
    }

    #[test]
    fn mailboxes_that_nobody_reads_leave_places_for_others() {
        let (fds, mut forwarder) = (FdSet::new().unwrap(), Forwarder::new());
        for at in 0..CONNECTED as u64 {
            let unread = mailbox(service(5000 + at));
            while forwarder.forward(&fds, service(5000 + at), &header(), &[0; 60000]) != Forwarded::Full {}
            assert!(!forwarder.drop_backlog(&fds, Instant::now() + STALLED));
            drop(unread);
        }
        let read = [6000, 6001].map(service);
        let mailboxes = read.map(mailbox);
        for (to, mailbox) in read.iter().zip(&mailboxes).cycle().take(10) {
            assert_eq!(forwarder.forward(&fds, *to, &header(), &[0; 100]), Forwarded::Sent);
            assert!(mailbox.recv(&mut [0; 1000]).is_ok());
        }
        assert!(read.iter().all(|to| forwarder.connected.iter().any(|connection| connection.to == *to)));
    }

    #[test]
    fn waiting_datagrams_are_bounded_and_dropped_without_reader() {
        let (fds, mut forwarder) = (FdSet::new().unwrap(), Forwarder::new());
        let mailboxes: Vec<_> = (0..8).map(|at| mailbox(service(1000 + at))).collect();
        for _ in 0..100 {
            for at in 0..8 {
                forwarder.forward(&fds, service(1000 + at), &header(), &[0; 60000]);
            }
        }
        assert!(forwarder.bytes <= BACKLOG_BYTES && forwarder.bytes > BACKLOG_BYTES / 2, "{} bytes", forwarder.bytes);
        let waiting = forwarder.connected.iter().map(|connection| connection.backlog.len()).sum::<usize>();
        assert!(forwarder.drop_backlog(&fds, Instant::now()) || forwarder.bytes == 0);
        assert!(!forwarder.drop_backlog(&fds, Instant::now() + STALLED));
        assert_eq!((forwarder.bytes, forwarder.take_lost()), (0, waiting));
        // Nothing waits for them any more, until they have read.
        assert_eq!(forwarder.forward(&fds, service(1000), &header(), &[0; 60000]), Forwarded::Full);
        while mailboxes[0].recv(&mut [0; 1 << 16]).is_ok() {}
        assert_eq!(forwarder.forward(&fds, service(1000), &header(), &[0; 60000]), Forwarded::Sent);
        drop(mailboxes);
    }

    #[test]
    fn the_first_datagram_after_a_restart_reaches_the_new_process() {
        let (fds, mut forwarder) = (FdSet::new().unwrap(), Forwarder::new());
        let first = mailbox(service(3));
        assert_eq!(forwarder.forward(&fds, service(3), &header(), b"first"), Forwarded::Sent);
        drop(first);
        let second = mailbox(service(3));
        assert_eq!(forwarder.forward(&fds, service(3), &header(), b"second"), Forwarded::Sent);
        assert_eq!(second.recv(&mut [0; 100]).unwrap(), HEADER_LEN + 6);
        assert_eq!(forwarder.connected.len(), 1);
        drop(second);
        assert_eq!(forwarder.forward(&fds, service(3), &header(), b"third"), Forwarded::Unknown);
    }

    #[test]
    fn a_mailbox_that_is_gone_is_forgotten() {
        let (fds, mut forwarder) = (FdSet::new().unwrap(), Forwarder::new());
        let there = mailbox(service(2));
        let results: Vec<_> = (0..1000).map(|_| forwarder.forward(&fds, service(2), &header(), &[0; 60000])).collect();
        assert_eq!(results[0], Forwarded::Sent);
        assert_eq!(results[999], Forwarded::Full);
        drop(there);
        let mut keys = [0; 4];
        assert_eq!(fds.ready(&mut keys), 1, "the end of a mailbox is room, too");
        let Some(EpollKey::Backlog(fd)) = EpollKey::unpack(keys[0]) else { panic!("{:x}", keys[0]) };
        forwarder.send_backlog(&fds, fd);
        assert!(forwarder.connected.is_empty() && forwarder.bytes == 0);
        assert_eq!(forwarder.forward(&fds, service(2), &header(), &[]), Forwarded::Unknown);
    }
}
