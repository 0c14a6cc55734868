//! Asking another process of this host: who is at the other end of a unix socket, and connecting to one by its name.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixStream};

use socket2::{Domain, SockAddr, Socket, Type};

use super::passed_files::refuse_files;
use crate::sys::socklen;

/// Credentials of the process at the other end (`SO_PEERCRED`, unix(7)): the one that has connected, or that was the first to
/// listen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Credentials {
    /// The process; `None` if it is in a PID namespace that cannot be seen from here.
    pub pid: Option<u32>,
    /// Effective user ID of the process.
    pub uid: u32,
}

impl Credentials {
    /// Reads the credentials of the other end of a socket.
    ///
    /// # Errors
    /// The system's error: it is no unix socket.
    pub fn of(socket: &impl AsFd) -> io::Result<Self> {
        Self::of_raw(socket.as_fd().as_raw_fd())
    }

    pub(crate) fn of_raw(fd: RawFd) -> io::Result<Self> {
        let mut peer = libc::ucred { pid: 0, uid: libc::uid_t::MAX, gid: libc::gid_t::MAX };
        let mut len = socklen::<libc::ucred>();
        // SAFETY: `peer` is writable, and `len` its size.
        let rc =
            unsafe { libc::getsockopt(fd, libc::SOL_SOCKET, libc::SO_PEERCRED, (&raw mut peer).cast(), &raw mut len) };
        if rc != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Self { pid: u32::try_from(peer.pid).ok().filter(|pid| *pid != 0), uid: peer.uid })
    }
}

/// Whether the process at the other end of a socket could do with this one by ptrace(2) what it likes, as far as that can be seen:
/// both are of one PID namespace and one user, and this one has not said that it is not to be traced (`PR_SET_DUMPABLE`).
pub(crate) fn may_trace_us(socket: RawFd) -> bool {
    // SAFETY: a question.
    let is_traceable = || unsafe { libc::prctl(libc::PR_GET_DUMPABLE, 0, 0, 0, 0) } == 1;
    // The kernel shows the namespaces of another process to those alone who may trace it.
    let namespace = |process: &str| std::fs::read_link(format!("/proc/{process}/ns/pid")).ok();
    let is_neighbor = |peer: u32| {
        let own = namespace("self");
        own.is_some() && own == namespace(&peer.to_string())
    };
    let peer = Credentials::of_raw(socket).ok();
    peer.filter(|peer| peer.uid == own_uid()).and_then(|peer| peer.pid).is_some_and(is_neighbor) && is_traceable()
}

/// The effective user of this process.
#[must_use]
pub fn own_uid() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// Whether a file of this process may have so many bytes, memory files included (RLIMIT_FSIZE of setrlimit(2)): to write more
/// ends the process by SIGXFSZ.
#[must_use]
pub fn file_may_have(bytes: usize) -> bool {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is writable.
    let known = unsafe { libc::getrlimit(libc::RLIMIT_FSIZE, &raw mut limit) } == 0;
    known && limit.rlim_cur >= bytes as libc::rlim_t
}

/// An abstract name, for a socket of socket2.
pub(crate) fn abstract_address(name: &str) -> io::Result<SockAddr> {
    // Its length is part of it; let std check that it fits before socket2 copies it.
    SocketAddr::from_abstract_name(name)?;
    SockAddr::unix(format!("\0{name}"))
}

/// Connects to an abstract name, without waiting: `WouldBlock` if the backlog of its listener is full, as anybody can arrange.
///
/// # Errors
/// The system's error.
pub fn connect(name: &str) -> io::Result<UnixStream> {
    let socket = Socket::new(Domain::UNIX, Type::STREAM.nonblocking(), None)?;
    refuse_files(&socket);
    socket.connect(&abstract_address(name)?)?;
    socket.set_nonblocking(false)?;
    Ok(UnixStream::from(OwnedFd::from(socket)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_other_end_is_known_and_nobody_waits_for_it() {
        let name = format!("urxe-test/local/{}", std::process::id());
        let listener = Socket::new(Domain::UNIX, Type::STREAM, None).unwrap();
        listener.bind(&abstract_address(&name).unwrap()).unwrap();
        assert_eq!(connect(&name).unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
        // One may wait.
        listener.listen(0).unwrap();
        let first = connect(&name).unwrap();
        let own = Credentials { pid: Some(std::process::id()), uid: own_uid() };
        assert_eq!(Credentials::of(&first).unwrap(), own);
        assert_eq!(connect(&name).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        let (accepted, _) = listener.accept().unwrap();
        assert_eq!(Credentials::of(&accepted).unwrap(), own);
    }
}
