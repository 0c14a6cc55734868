//! Election of the port owner: the process that holds the unconnected socket of an address.
//!
//! The owner of `address` is the process that listens on the abstract name `…/owner/<address>`. Every other process
//! keeps a connection to it that hangs up when the owner goes, however it goes; then all race for the name.
//!
//! A follower of the owner's user is connected at that name, and the two say [last wills](crate::last_will) to each other. The owner
//! hangs up on everybody else there: another user costs it neither a descriptor nor a look at what he says.
//!
//! A follower of another user is connected at `…/liveness/<address>`, where the owner listens and never accepts. The
//! kernel ends such a connection when its listener is closed, which is all that this follower is to learn. It gets and
//! gives no last wills.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::time::Duration;

use socket2::SockAddr;

use crate::error::PortError;
use crate::ipc::credentials::{Credentials, abstract_address};
use crate::ipc::{NAME_PREFIX, bind, unix};
use crate::sys::fd::{Fd, FdSet};
use crate::sys::udp::bind_owner;

/// Connections that may wait for the owner to accept them (the system caps it at net.core.somaxconn).
const BACKLOG: libc::c_int = 4096;

/// Followers accepted before something else gets its turn.
const ACCEPTED: usize = 64;

/// Role of this process in the election at one address.
#[derive(Debug)]
pub(crate) enum Role {
    /// Candidate: lost a race, will try again.
    Candidate,
    /// No part in the election: another port of this process has it.
    Bystander,
    /// Follower of another process of this user, the port owner.
    Follower {
        /// Hangs up when that process goes.
        owner: Fd,
    },
    /// Follower of a port owner of another user.
    Guest {
        /// User ID of the owner.
        owner: u32,
        /// Hangs up when that process goes. Without it, whether the owner is still there has to be asked now and then.
        liveness: Option<Fd>,
    },
    /// Port owner: this process has the unconnected socket.
    Leader {
        /// Listener for followers of this user.
        listener: Fd,
        /// Listener for followers of other users, who are never accepted. `None`: somebody else has the name.
        _liveness: Option<Fd>,
        /// The unconnected socket.
        udp: Fd,
        /// The followers of this user.
        followers: Vec<Fd>,
    },
}

impl Role {
    /// One attempt to become owner of `local` or, if there is one, to follow it. [`Role::Candidate`]: try again soon.
    pub(crate) fn elect(fds: &Arc<FdSet>, local: SocketAddr) -> Result<Self, PortError> {
        const WHAT: &str = "claim the address for this process";
        let failed = |e| PortError::os(WHAT, e);
        let name = name("owner", local).map_err(failed)?;
        let socket = match bind::seqpacket(&name) {
            Ok(socket) => socket,
            Err(e) if e.kind() == io::ErrorKind::AddrInUse => return follow(fds, &name, local).map_err(failed),
            Err(e) => return Err(failed(e)),
        };
        let udp = bind_owner(fds, local).map_err(|e| match e.kind() {
            io::ErrorKind::AddrInUse => PortError::PortTaken { address: local },
            _ => PortError::os("open the UDP socket", e),
        })?;
        // Before the other: a follower that is refused there looks here.
        let liveness = listen_for_guests(fds, local).ok();
        // Now: who follows may send at once.
        socket.listen(BACKLOG).map_err(failed)?;
        let listener = fds.adopt(socket).map_err(failed)?;
        Ok(Self::Leader { listener, _liveness: liveness, udp, followers: Vec::new() })
    }

    /// [`Role::elect`] until it gives a place; the owner of the moment may be just coming or just going.
    pub(crate) fn elect_patiently(fds: &Arc<FdSet>, local: SocketAddr) -> Result<Self, PortError> {
        const ATTEMPTS: u32 = 200;
        for _ in 0..ATTEMPTS {
            match Self::elect(fds, local)? {
                Self::Candidate => std::thread::sleep(Duration::from_millis(1)),
                role => return Ok(role),
            }
        }
        // Whoever has the name neither listens nor goes away.
        Err(PortError::PortTaken { address: local })
    }

    /// Accepts followers of this user, hangs up on everybody else, and watches each connection under the key that
    /// `key` makes of its descriptor, to learn when it ends. `Err` when there are `limit` of them or no descriptor is left.
    //= spec/hosts.md#net-030
    //# The owner of the port MUST hear, keep and entrust with wills only connections of its own user.
    pub(crate) fn accept(&mut self, fds: &Arc<FdSet>, limit: usize, key: impl Fn(RawFd) -> u64) -> io::Result<()> {
        let Self::Leader { listener, followers, .. } = self else { return Ok(()) };
        for _ in 0..ACCEPTED {
            if followers.len() >= limit {
                return Err(io::Error::from_raw_os_error(libc::EMFILE));
            }
            // If more wait, the listener stays readable.
            let Some(guest) = unix::accept(listener.as_raw_fd())? else { return Ok(()) };
            let follower = fds.adopt(guest)?;
            fds.watch(follower.as_raw_fd(), key(follower.as_raw_fd()))?;
            followers.push(follower);
        }
        Ok(())
    }

    /// Whether only another attempt can tell if there is an owner.
    pub(crate) fn is_to_be_retried(&self) -> bool {
        matches!(self, Self::Candidate | Self::Guest { liveness: None, .. })
    }

    /// The connection to the neighbour that has the last wills of this process: the owner, or for the owner the first of its followers.
    pub(crate) fn successor(&self) -> Option<&Fd> {
        match self {
            Self::Candidate | Self::Bystander | Self::Guest { .. } => None,
            Self::Follower { owner } => Some(owner),
            Self::Leader { followers, .. } => followers.first(),
        }
    }

    /// The connections to neighbours.
    pub(crate) fn neighbours(&self) -> impl Iterator<Item = RawFd> {
        let (owner, followers) = match self {
            Self::Candidate | Self::Bystander | Self::Guest { .. } => (None, &[][..]),
            Self::Follower { owner } => (Some(owner), &[][..]),
            Self::Leader { followers, .. } => (None, followers.as_slice()),
        };
        owner.into_iter().chain(followers).map(AsRawFd::as_raw_fd)
    }

    /// Forgets a follower whose connection ended, or who said what none of us says.
    pub(crate) fn dismiss(&mut self, fd: RawFd) {
        if let Self::Leader { followers, .. } = self {
            followers.retain(|follower| follower.as_raw_fd() != fd);
        }
    }
}

/// Connects to the owner. It may have gone meanwhile, or not be listening yet: then the place is vacant for now.
fn follow(fds: &Arc<FdSet>, name: &SockAddr, local: SocketAddr) -> io::Result<Role> {
    let socket = unix::client()?;
    match socket.connect(name) {
        Ok(()) if unix::is_same_user(socket.as_raw_fd()) => Ok(Role::Follower { owner: fds.adopt(socket)? }),
        Ok(()) => {
            let owner = Credentials::of(&socket)?;
            Ok(Role::Guest { owner: owner.uid, liveness: follow_as_guest(fds, local, owner).ok() })
        }
        // EAGAIN: its backlog is full.
        Err(e) if matches!(e.raw_os_error(), Some(libc::ECONNREFUSED | libc::EAGAIN)) => Ok(Role::Candidate),
        Err(e) => Err(e),
    }
}

/// Listens where followers of other users wait for the end of this process.
fn listen_for_guests(fds: &Arc<FdSet>, local: SocketAddr) -> io::Result<Fd> {
    let socket = bind::seqpacket(&name("liveness", local)?)?;
    socket.listen(BACKLOG)?;
    fds.adopt(socket)
}

/// Connects where the owner listens for followers of other users, if it is the owner who does.
fn follow_as_guest(fds: &Arc<FdSet>, local: SocketAddr, owner: Credentials) -> io::Result<Fd> {
    let socket = unix::client()?;
    socket.connect(&name("liveness", local)?)?;
    if Credentials::of(&socket)? == owner { fds.adopt(socket) } else { Err(io::ErrorKind::PermissionDenied.into()) }
}

/// The name of a socket of the owner of an address.
fn name(kind: &str, local: SocketAddr) -> io::Result<SockAddr> {
    let name = match local {
        SocketAddr::V4(a) => format!("{NAME_PREFIX}/{kind}/{}", a.ip()),
        SocketAddr::V6(a) => format!("{NAME_PREFIX}/{kind}/{}%{}", a.ip(), a.scope_id()),
    };
    abstract_address(&name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ipc::refuse_files;

    /// An address of this test's own, so that parallel tests do not meet.
    fn local(last: u8) -> SocketAddr {
        SocketAddr::from(([127, 99, 1, last], 4791))
    }

    #[test]
    fn first_owns_second_follows_and_inherits() {
        let fds = FdSet::new().unwrap();
        let first = Role::elect(&fds, local(1)).unwrap();
        assert!(matches!(first, Role::Leader { .. }));
        let second = Role::elect(&fds, local(1)).unwrap();
        let Role::Follower { owner } = &second else { panic!("{second:?}") };
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
        assert!(matches!(Role::elect(&fds, local(1)).unwrap(), Role::Leader { .. }));
    }

    #[test]
    fn accepted_followers_are_kept_until_dismissed() {
        let fds = FdSet::new().unwrap();
        let mut owner = Role::elect(&fds, local(2)).unwrap();
        let _a = Role::elect(&fds, local(2)).unwrap();
        let _b = Role::elect(&fds, local(2)).unwrap();
        owner.accept(&fds, 8, |_| 0).unwrap();
        let Role::Leader { followers, .. } = &owner else { panic!("{owner:?}") };
        assert_eq!(followers.len(), 2);
        let gone = followers[0].as_raw_fd();
        owner.dismiss(gone);
        let Role::Leader { followers, .. } = &owner else { panic!("{owner:?}") };
        assert_eq!(followers.len(), 1);
    }

    /// The owner of the port may be anybody, also before its user is known.
    #[test]
    fn followers_are_sent_no_files() {
        let fds = FdSet::new().unwrap();
        let mut owner = Role::elect(&fds, local(4)).unwrap();
        let _follower = Role::elect(&fds, local(4)).unwrap();
        owner.accept(&fds, 8, |_| 0).unwrap();
        let (end, file) = (owner.neighbours().next().unwrap(), std::fs::File::open("/dev/null").unwrap());
        let is_refused = unix::send_file(end, b"x", file.as_raw_fd()).is_err();
        assert_eq!(is_refused, refuse_files(&unix::client().unwrap()));
    }

    #[test]
    fn a_foreign_holder_of_the_port_is_named() {
        let holder = std::net::UdpSocket::bind(local(3)).unwrap();
        let error = Role::elect(&FdSet::new().unwrap(), local(3)).unwrap_err();
        assert!(matches!(error, PortError::PortTaken { address } if address == local(3)), "{error}");
        drop(holder);
        assert!(matches!(Role::elect(&FdSet::new().unwrap(), local(3)).unwrap(), Role::Leader { .. }));
    }
}
