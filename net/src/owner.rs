//! Who holds the unconnected socket of an address, and who comes next.
//!
//! The owner of `address` is the process that listens on the abstract name `…/owner/<address>`. Every other process
//! keeps a connection to it, over which they say nothing but [wills](crate::will): it hangs up when the owner goes, however
//! it goes, and then all race for the name.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::time::Duration;

use socket2::{Domain, SockAddr, Socket, Type};

use crate::error::PortError;
use crate::fd::{Fd, FdSet};
use crate::local::abstract_address;
use crate::registry::NAME_PREFIX;
use crate::udp::bind_owner;

/// Connections that may wait for the owner to accept them (the system caps it at net.core.somaxconn).
const BACKLOG: libc::c_int = 4096;

/// This process's place at one address.
#[derive(Debug)]
pub(crate) enum Seat {
    /// Nobody's yet: lost a race, will try again.
    Vacant,
    /// Another process has the unconnected socket.
    Follower {
        /// Hangs up when that process goes.
        owner: Fd,
    },
    /// This process has it.
    Owner {
        /// Where the others connect.
        listener: Fd,
        /// The unconnected socket.
        udp: Fd,
        /// The others.
        followers: Vec<Fd>,
    },
}

impl Seat {
    /// One attempt to become owner of `local` or, if there is one, to follow it. [`Seat::Vacant`]: try again soon.
    pub(crate) fn take(fds: &Arc<FdSet>, local: SocketAddr) -> Result<Self, PortError> {
        const WHAT: &str = "claim the address for this process";
        let failed = |e| PortError::os(WHAT, e);
        let name = owner_name(local).map_err(failed)?;
        let socket = Socket::new(Domain::UNIX, Type::SEQPACKET.nonblocking(), None).map_err(failed)?;
        match socket.bind(&name) {
            Ok(()) => {}
            Err(e) if e.kind() == io::ErrorKind::AddrInUse => return follow(fds, &name).map_err(failed),
            Err(e) => return Err(failed(e)),
        }
        let udp = bind_owner(fds, local).map_err(|e| match e.kind() {
            io::ErrorKind::AddrInUse => PortError::PortTaken { address: local },
            _ => PortError::os("open the UDP socket", e),
        })?;
        // Now: who follows may send at once.
        socket.listen(BACKLOG).map_err(failed)?;
        let listener = fds.adopt(socket).map_err(failed)?;
        Ok(Self::Owner { listener, udp, followers: Vec::new() })
    }

    /// [`Seat::take`] until it gives a place; the owner of the moment may be just coming or just going.
    pub(crate) fn take_patiently(fds: &Arc<FdSet>, local: SocketAddr) -> Result<Self, PortError> {
        const ATTEMPTS: u32 = 200;
        for _ in 0..ATTEMPTS {
            match Self::take(fds, local)? {
                Self::Vacant => std::thread::sleep(Duration::from_millis(1)),
                seat => return Ok(seat),
            }
        }
        // Whoever has the name neither listens nor goes away.
        Err(PortError::PortTaken { address: local })
    }

    /// Accepts who waits, and watches each connection under the token that `token` makes of its descriptor, to learn
    /// when it ends. `Err` when there are `limit` of them or no descriptor is left.
    pub(crate) fn accept(&mut self, fds: &Arc<FdSet>, limit: usize, token: impl Fn(RawFd) -> u64) -> io::Result<()> {
        let Self::Owner { listener, followers, .. } = self else { return Ok(()) };
        loop {
            if followers.len() >= limit {
                return Err(io::Error::from_raw_os_error(libc::EMFILE));
            }
            // SAFETY: the peer's address is not asked for.
            let raw = unsafe {
                libc::accept4(
                    listener.as_raw_fd(),
                    core::ptr::null_mut(),
                    core::ptr::null_mut(),
                    libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK,
                )
            };
            if raw < 0 {
                let error = io::Error::last_os_error();
                return match error.raw_os_error() {
                    Some(libc::EAGAIN | libc::EINTR | libc::ECONNABORTED) => Ok(()),
                    _ => Err(error),
                };
            }
            // SAFETY: the call succeeded, so `raw` is open and nobody else's.
            let follower = fds.adopt(unsafe { OwnedFd::from_raw_fd(raw) })?;
            fds.watch(raw, token(raw))?;
            followers.push(follower);
        }
    }

    /// The connection to who has the wills of this process: the owner, or if it is this, the first of the others.
    pub(crate) fn heir(&self) -> Option<RawFd> {
        match self {
            Self::Vacant => None,
            Self::Follower { owner } => Some(owner.as_raw_fd()),
            Self::Owner { followers, .. } => followers.first().map(AsRawFd::as_raw_fd),
        }
    }

    /// The connections to neighbours.
    pub(crate) fn neighbours(&self) -> impl Iterator<Item = RawFd> {
        let (owner, followers) = match self {
            Self::Vacant => (None, &[][..]),
            Self::Follower { owner } => (Some(owner), &[][..]),
            Self::Owner { followers, .. } => (None, followers.as_slice()),
        };
        owner.into_iter().chain(followers).map(AsRawFd::as_raw_fd)
    }

    /// Forgets a follower whose connection ended, or who said what none of us says.
    pub(crate) fn dismiss(&mut self, fd: RawFd) {
        if let Self::Owner { followers, .. } = self {
            followers.retain(|follower| follower.as_raw_fd() != fd);
        }
    }
}

/// Connects to the owner. It may have gone meanwhile, or not be listening yet: then the place is vacant for now.
fn follow(fds: &Arc<FdSet>, name: &SockAddr) -> io::Result<Seat> {
    let socket = Socket::new(Domain::UNIX, Type::SEQPACKET.nonblocking(), None)?;
    match socket.connect(name) {
        Ok(()) => Ok(Seat::Follower { owner: fds.adopt(socket)? }),
        // EAGAIN: its backlog is full.
        Err(e) if matches!(e.raw_os_error(), Some(libc::ECONNREFUSED | libc::EAGAIN)) => Ok(Seat::Vacant),
        Err(e) => Err(e),
    }
}

fn owner_name(local: SocketAddr) -> io::Result<SockAddr> {
    let name = match local {
        SocketAddr::V4(a) => format!("{NAME_PREFIX}/owner/{}", a.ip()),
        SocketAddr::V6(a) => format!("{NAME_PREFIX}/owner/{}%{}", a.ip(), a.scope_id()),
    };
    abstract_address(&name)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An address of this test's own, so that parallel tests do not meet.
    fn local(last: u8) -> SocketAddr {
        SocketAddr::from(([127, 99, 1, last], 4791))
    }

    #[test]
    fn first_owns_second_follows_and_inherits() {
        let fds = FdSet::new().unwrap();
        let first = Seat::take(&fds, local(1)).unwrap();
        assert!(matches!(first, Seat::Owner { .. }));
        let second = Seat::take(&fds, local(1)).unwrap();
        let Seat::Follower { owner } = &second else { panic!("{second:?}") };
        let hung_up = |fd: RawFd| {
            let mut poll = libc::pollfd { fd, events: 0, revents: 0 };
            // SAFETY: one pollfd, no wait.
            unsafe { libc::poll(&raw mut poll, 1, 0) };
            poll.revents & libc::POLLHUP != 0
        };
        assert!(!hung_up(owner.as_raw_fd()));
        // Not accepted: hangs up all the same.
        drop(first);
        assert!(hung_up(owner.as_raw_fd()));
        assert!(matches!(Seat::take(&fds, local(1)).unwrap(), Seat::Owner { .. }));
    }

    #[test]
    fn accepted_followers_are_kept_until_dismissed() {
        let fds = FdSet::new().unwrap();
        let mut owner = Seat::take(&fds, local(2)).unwrap();
        let _a = Seat::take(&fds, local(2)).unwrap();
        let _b = Seat::take(&fds, local(2)).unwrap();
        owner.accept(&fds, 8, |_| 0).unwrap();
        let Seat::Owner { followers, .. } = &owner else { panic!("{owner:?}") };
        assert_eq!(followers.len(), 2);
        let gone = followers[0].as_raw_fd();
        owner.dismiss(gone);
        let Seat::Owner { followers, .. } = &owner else { panic!("{owner:?}") };
        assert_eq!(followers.len(), 1);
    }

    #[test]
    fn a_foreign_holder_of_the_port_is_named() {
        let holder = std::net::UdpSocket::bind(local(3)).unwrap();
        let error = Seat::take(&FdSet::new().unwrap(), local(3)).unwrap_err();
        assert!(matches!(error, PortError::PortTaken { address } if address == local(3)), "{error}");
        drop(holder);
        assert!(matches!(Seat::take(&FdSet::new().unwrap(), local(3)).unwrap(), Seat::Owner { .. }));
    }
}
