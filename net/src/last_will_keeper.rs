//! Keeper of [last wills](crate::last_will): a process that has no device, and sends the wills of those that have no neighbour.
//!
//! Below `urxe run` it is the process that outlives the program anyhow, to remove what is left of the run. The keeper listens at an
//! abstract name before the program starts. A process connects when it has its first will; when the connection hangs up, the
//! keeper sends what the process has left there and not taken back.
//!
//! The keeper is of another network namespace than a process that cannot connect, and of the same as one that can: names belong to
//! the namespace. Processes of other users are neither heard nor entrusted with last wills. Those of link-local addresses and of
//! InfiniBand's GIDs, which say nothing without their interface, are not sent.

use core::time::Duration;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use urxe_wire::icrc::{self, Flow};
use urxe_wire::mad::MAD_LEN;
use urxe_wire::packet::Service;
use urxe_wire::{Bth, Deth, Ext, Header, Opcode, Operation, Psn, QKey, Qpn, ROCE_PORT, Transport};

use crate::ipc::{bind, unix};
use crate::last_will::{LastWill, LastWillStore, keeper_address};
use crate::sys::borrow;
use crate::sys::fd::descriptor_share;
use crate::sys::ifaddrs::needs_scope;
use crate::sys::udp::{TxOptions, raw_tx};

/// Connections that may wait to be accepted.
const BACKLOG: libc::c_int = 1024;

/// Time without accepting after a connection could not be accepted, for want of descriptors mostly: it stays readable.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// How long what is left to be done takes at most.
const LONGEST_END: Duration = Duration::from_secs(2);

/// Keeper of the last wills of processes that know its name.
#[derive(Debug)]
pub struct LastWillKeeper {
    listener: OwnedFd,
    /// Connections, one for each process.
    clients: Vec<OwnedFd>,
    wills: LastWillStore,
    /// When more last wills are to be sent.
    next: Option<Instant>,
    /// When connections are accepted again.
    accept_at: Option<Instant>,
}

/// Listens at the name of a keeper, which another process may become with this descriptor.
///
/// # Errors
/// `AddrInUse` if somebody listens there already; what else the system refuses.
pub fn listen(name: &str) -> io::Result<OwnedFd> {
    let socket = bind::seqpacket(&keeper_address(name)?)?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

impl LastWillKeeper {
    /// A keeper that accepts at this [listener](listen).
    #[must_use]
    pub fn new(listener: OwnedFd) -> Self {
        Self { listener, clients: Vec::new(), wills: LastWillStore::default(), next: None, accept_at: None }
    }

    /// Keeps last wills and sends those of processes that end, until the other end of `until` is closed. Then sends what is left, for two
    /// seconds at most.
    pub fn run(&mut self, until: BorrowedFd<'_>) {
        while !self.wait(Some(until), None) {
            self.turn();
        }
        let end = Instant::now() + LONGEST_END;
        loop {
            self.turn();
            let left = end.saturating_duration_since(Instant::now());
            if (self.clients.is_empty() && !self.wills.are_due()) || left.is_zero() {
                return;
            }
            self.wait(None, Some(left));
        }
    }

    /// Sleeps until there is something to do, for `most` at most. Returns whether the other end of `until` is closed.
    fn wait(&self, until: Option<BorrowedFd<'_>>, most: Option<Duration>) -> bool {
        let listener = self.accepts().then(|| self.listener.as_raw_fd());
        let until = until.map(|until| until.as_raw_fd());
        let watched: Vec<BorrowedFd<'_>> =
            until.into_iter().chain(listener).chain(self.clients.iter().map(AsRawFd::as_raw_fd)).map(borrow).collect();
        let mut polled: Vec<PollFd<'_>> = watched.iter().map(|fd| PollFd::new(fd, PollFlags::IN)).collect();
        let times = self.next.into_iter().chain(self.accept_at);
        let times = times.map(|at| at.saturating_duration_since(Instant::now()));
        let left = times.chain(most).min().and_then(|left| Timespec::try_from(left).ok());
        // Interrupted, or too little memory: asked again.
        let _ = poll(&mut polled, left.as_ref());
        until.is_some() && polled.first().is_some_and(|first| !first.revents().is_empty())
    }

    /// Whether connections are accepted, and there is room for one more.
    fn accepts(&self) -> bool {
        self.accept_at.is_none() && self.clients.len() < descriptor_share()
    }

    /// Accepts, hears everybody, and sends some of what is due.
    fn turn(&mut self) {
        self.accept_at = self.accept_at.filter(|at| *at > Instant::now());
        while self.accepts() {
            match unix::accept(self.listener.as_raw_fd()) {
                Ok(Some(client)) => self.clients.push(client),
                Ok(None) => break,
                Err(_) => self.accept_at = Some(Instant::now() + ACCEPT_PAUSE),
            }
        }
        let Self { clients, wills, .. } = self;
        clients.retain(|client| wills.hear(client.as_raw_fd()));
        if self.wills.begin() || self.next.is_some_and(|next| next <= Instant::now()) {
            let (due, again) = self.wills.send(Instant::now(), |_| true);
            self.next = again.map(|after| Instant::now() + after);
            // A peer that cannot be reached is told as much as one that does not listen.
            due.iter().for_each(|will| drop(send(will)));
        }
    }
}

/// Sends a will from QP1 to QP1.
fn send(will: &LastWill) -> io::Result<()> {
    let (local, remote) = (will.local.ip(), will.remote.ip());
    if [local, remote].iter().any(|ip| matches!(ip, IpAddr::V6(ip) if needs_scope(*ip))) {
        return Err(io::ErrorKind::AddrNotAvailable.into());
    }
    let remote = SocketAddr::new(remote, ROCE_PORT);
    let options = TxOptions { flow_label: 0, tclass: 0, hop_limit: 0 };
    let (socket, source) = raw_tx(SocketAddr::new(local, ROCE_PORT), options)?;
    let packet = packet(&will.message).ok_or(io::ErrorKind::InvalidData)?;
    let icrc = icrc::compute(&Flow::new(source, remote), 0, &packet);
    socket.send_to(&[&packet[..], &icrc.to_le_bytes()].concat(), &remote.into())?;
    Ok(())
}

/// A datagram to QP1, from BTH to payload.
fn packet(message: &[u8; MAD_LEN]) -> Option<Vec<u8>> {
    let opcode = Opcode::new(Transport::Ud, Operation::SendOnly)?;
    let service = Service::Datagram(Deth { q_key: QKey::GSI, src_qp: Qpn::GSI, lid_routed: false });
    let header = Header { bth: Bth::new(opcode, Qpn::GSI, Psn::default()), service, ext: Ext::None };
    let mut bytes = vec![0; header.len()];
    header.emit(&mut bytes);
    bytes.extend_from_slice(message);
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use socket2::{Domain, Socket, Type};

    use super::*;

    /// A connection that cannot be accepted stays readable: the listener is not looked at for a while, then again.
    #[test]
    fn a_listener_that_cannot_accept_is_left_alone_for_a_while() {
        // Nobody listens at it, so accept(2) fails each time, as without descriptors.
        let socket = Socket::new(Domain::UNIX, Type::SEQPACKET.nonblocking(), None).unwrap();
        let mut keeper = LastWillKeeper::new(socket.into());
        assert!(keeper.accepts());
        for _ in 0..3 {
            keeper.turn();
            assert!(!keeper.accepts() && keeper.accept_at.is_some());
            // Sleeps until it is to be looked at again: nothing else wakes it up.
            keeper.wait(None, None);
            assert!(keeper.accept_at.is_some_and(|at| at <= Instant::now()));
        }
    }
}
