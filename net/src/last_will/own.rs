//! Last wills of this process.

use core::sync::atomic::{AtomicBool, Ordering};
use std::collections::{BTreeMap, HashMap};
use std::io::{self, ErrorKind};
use std::os::fd::{AsRawFd, RawFd};
use std::sync::{Arc, Mutex, MutexGuard};

use socket2::Socket;
use urxe_wire::Gid;

use super::{LastWill, keeper_address};
use crate::ipc::unix;
use crate::mutex::lock;
use crate::sys::fd::{Fd, FdSet};
use crate::sys::identity::Identity;
use crate::sys::send_parts;

/// The last wills of this process, and to whom each address' go.
#[derive(Debug, Default)]
pub(crate) struct OwnLastWills {
    own: Mutex<Own>,
    /// Last wills of other processes, to be sent.
    due: Mutex<Vec<LastWill>>,
    is_due: AtomicBool,
}

#[derive(Debug, Default)]
struct Own {
    last_wills: BTreeMap<u32, LastWill>,
    /// By address: the connection to the neighbour. Receivers say when one goes, before they close it.
    successors: HashMap<Gid, Successor>,
    keeper: Keeper,
}

/// Connection to a neighbour, which the receiver owns.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Successor {
    fd: RawFd,
    identity: Option<Identity>,
}

impl Successor {
    fn new(connection: &Fd) -> Self {
        Self { fd: connection.as_raw_fd(), identity: connection.identity() }
    }

    /// The connection, if it is still what it was: the application may have closed it, and use its number.
    fn connection(self) -> Option<RawFd> {
        self.identity.is_none_or(|identity| identity.is_under(self.fd)).then_some(self.fd)
    }
}

/// Process that keeps the last wills of addresses without a successor.
#[derive(Debug, Default)]
enum Keeper {
    #[default]
    Absent,
    /// Name of the keeper, not connected yet: most processes have no last wills, and so never connect.
    Named(String),
    Connected(Fd),
}

/// Connects to a keeper of the same user, without waiting.
fn connect_keeper(name: &str) -> io::Result<Socket> {
    let socket = unix::client()?;
    socket.connect(&keeper_address(name)?)?;
    if unix::is_same_user(socket.as_raw_fd()) { Ok(socket) } else { Err(ErrorKind::PermissionDenied.into()) }
}

impl Keeper {
    /// The connection, if it has been made and is still what it was.
    fn connection(&self) -> Option<RawFd> {
        match self {
            Self::Connected(fd) if fd.is_ours() => Some(fd.as_raw_fd()),
            Self::Connected(_) | Self::Absent | Self::Named(_) => None,
        }
    }
}

impl Own {
    fn tell(&self, local: &Gid, bytes: &[u8]) {
        let to = match self.successors.get(local) {
            Some(successor) => successor.connection(),
            None => self.keeper.connection(),
        };
        if let Some(to) = to {
            // If it is full or gone, it is.
            let _ = send_parts(to, [bytes]);
        }
    }

    /// Connects to the keeper, if that was not tried.
    fn meet_keeper(&mut self, fds: &Arc<FdSet>) {
        if let Keeper::Named(name) = &self.keeper {
            let connected = connect_keeper(name).and_then(|socket| fds.adopt(socket));
            self.keeper = connected.map_or(Keeper::Absent, Keeper::Connected);
        }
    }
}

impl OwnLastWills {
    /// Whether last wills are to be sent.
    #[inline]
    pub(crate) fn are_due(&self) -> bool {
        self.is_due.load(Ordering::Relaxed)
    }

    fn own(&self) -> MutexGuard<'_, Own> {
        lock(&self.own)
    }

    /// Appoints the successor of an address: the connection to the process that keeps its last wills.
    pub(crate) fn appoint(&self, local: Gid, successor: Option<&Fd>) {
        let mut own = self.own();
        let successor = successor.map(Successor::new);
        let before = match successor {
            Some(successor) => own.successors.insert(local, successor),
            None => own.successors.remove(&local),
        };
        if before == successor {
            return;
        }
        let keeper = own.keeper.connection().filter(|_| before.is_none());
        for will in own.last_wills.values().filter(|will| will.local == local) {
            if let Some(keeper) = keeper {
                // The keeper gives up what somebody else has now.
                let _ = send_parts(keeper, [&will.name.to_le_bytes()]);
            }
            own.tell(&local, &will.emit());
        }
    }

    /// Queues last wills to be sent.
    pub(crate) fn send(&self, wills: Vec<LastWill>) {
        if wills.is_empty() {
            return;
        }
        let mut due = lock(&self.due);
        due.extend(wills);
        self.is_due.store(!due.is_empty(), Ordering::Release);
    }

    /// Names the keeper of the last wills of addresses that have no successor.
    pub(crate) fn name_keeper(&self, name: &str) {
        self.own().keeper = Keeper::Named(name.to_owned());
    }

    /// Leaves a last will with the successor of its address, or with the keeper. It takes the place of one of the same name.
    pub(crate) fn set(&self, fds: &Arc<FdSet>, will: LastWill) {
        let mut own = self.own();
        own.meet_keeper(fds);
        own.tell(&will.local, &will.emit());
        own.last_wills.insert(will.name, will);
    }

    /// Takes a last will back.
    pub(crate) fn clear(&self, name: u32) {
        let mut own = self.own();
        if let Some(will) = own.last_wills.remove(&name) {
            own.tell(&will.local, &name.to_le_bytes());
        }
    }

    /// Takes the last wills to be sent.
    pub(crate) fn take_due(&self) -> Vec<LastWill> {
        if !self.is_due.swap(false, Ordering::Acquire) {
            return Vec::new();
        }
        core::mem::take(&mut *lock(&self.due))
    }
}

#[cfg(test)]
mod tests {
    use socket2::{Domain, Type};
    use urxe_wire::mad::MAD_LEN;

    use super::super::LEN;
    use super::*;
    use crate::sys::recv_parts;

    /// An application that closes all descriptors may get a socket of its own under the number of the connection.
    #[test]
    fn nothing_is_said_to_another_socket_under_the_number() {
        let pair = || Socket::pair(Domain::UNIX, Type::SEQPACKET.nonblocking(), None).unwrap();
        let ((connection, neighbour), (other, other_end)) = (pair(), pair());
        let set = FdSet::new().unwrap();
        let connection = set.adopt(connection).unwrap();
        let heard = |end: &Socket| recv_parts(end.as_raw_fd(), [&mut [0; LEN], &mut [0]]).unwrap();
        let last_wills = OwnLastWills::default();
        let will = LastWill { name: 1, local: Gid::new([1; 16]), remote: Gid::new([2; 16]), message: [3; MAD_LEN] };
        last_wills.appoint(will.local, Some(&connection));
        last_wills.set(&set, will.clone());
        assert_eq!(heard(&neighbour), Some(LEN));
        // SAFETY: replaces what is under the number of `connection`, which only closes it.
        let replaced = unsafe { libc::dup3(other.as_raw_fd(), connection.as_raw_fd(), libc::O_CLOEXEC) };
        assert_eq!(replaced, connection.as_raw_fd());
        last_wills.set(&set, will.clone());
        last_wills.appoint(will.local, None);
        last_wills.appoint(will.local, Some(&connection));
        assert_eq!(heard(&other_end), None);
        // SAFETY: the end of a number that its owner leaves alone.
        assert_eq!(unsafe { libc::close(connection.as_raw_fd()) }, 0);
    }
}
