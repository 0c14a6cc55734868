//! Addresses that a port receives at, and the elections there.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, RawFd};
use std::time::{Duration, Instant};

use urxe_wire::Gid;

use super::Receiver;
use super::deadline::{Backoff, Task};
use crate::counters::add_alone;
use crate::election::Role;
use crate::error::PortError;
use crate::port::Port;
use crate::sys::epoll_key::EpollKey;
use crate::sys::fd::FdSet;
use crate::sys::fd::descriptor_share;
use crate::sys::udp::report_headers;

/// Interval before the next attempt at an election that another process is about to win.
const RACE: Duration = Duration::from_millis(2);
/// Interval after an error, such as a foreign program that has the port now.
pub(super) const TROUBLE: Duration = Duration::from_millis(500);

impl Receiver {
    /// The addresses whose port a process of another user owns, and which user that is.
    pub fn other_users(&self) -> impl Iterator<Item = (SocketAddr, u32)> {
        self.roles.iter().zip(&self.addresses).filter_map(|(role, address)| match role {
            Role::Guest { owner, .. } => Some(((*address)?, *owner)),
            _ => None,
        })
    }

    /// Reads the interface again, and stands for election at its new addresses.
    pub(crate) fn follow(&mut self, port: &Port) {
        if let Some(watch) = &self.watch {
            watch.clear();
        }
        let before = port.interface();
        // Once more at once: some refusals are over by then.
        let reread = before.reread().or_else(|error| match error {
            PortError::NoSuchInterface { .. } => Err(error),
            _ => before.reread(),
        });
        let now = match reread {
            Ok(now) => now,
            Err(PortError::NoSuchInterface { .. }) => {
                self.watch = None;
                (0..self.addresses.len()).for_each(|index| self.leave_address(index, port));
                return port.set_interface_gone();
            }
            // No descriptor or memory to spare now. The change that was told may be that the link is up.
            Err(_) => {
                if !self.deadlines.has(Task::RereadInterface) {
                    self.deadlines.set(Task::RereadInterface, self.reread.after_failure());
                }
                return port.set_interface_unknown();
            }
        };
        self.reread = Backoff::new();
        for index in 0..self.addresses.len() {
            if self.address(index).is_some_and(|address| !now.addresses().contains(&address)) {
                self.leave_address(index, port);
            }
        }
        for address in now.addresses() {
            if !self.addresses.contains(&Some(*address)) {
                let free = self.addresses.iter().position(Option::is_none);
                let index = free.unwrap_or_else(|| {
                    self.addresses.push(None);
                    self.roles.push(self.vacancy());
                    self.roles.len() - 1
                });
                self.addresses[index] = Some(*address);
                self.peers.clear();
            }
        }
        // An IPv6 address can be used some time after it came, which is a change as well.
        self.retry_elections(port);
        port.set_interface(now, self.watch.is_some());
    }

    /// Gives up an address that the interface no longer has.
    fn leave_address(&mut self, index: usize, port: &Port) {
        self.vacate(index, port);
        self.addresses[index] = None;
        add_alone(&port.counters().flows_closed, self.flows.close_local(index));
        self.inbox.close_local(index);
    }

    /// Stands for election again where there is no port owner to hear from.
    pub(super) fn retry_elections(&mut self, port: &Port) {
        for index in 0..self.roles.len() {
            if self.roles.get(index).is_some_and(Role::is_to_be_retried) {
                self.stand_for_election(index, port);
            }
        }
    }

    /// Appoints the successor of each address.
    pub(crate) fn appoint_successors(&self, port: &Port) {
        for index in 0..self.roles.len() {
            self.appoint_successor(index, port);
        }
    }

    fn appoint_successor(&self, index: usize, port: &Port) {
        if let (Some(address), Some(role)) = (self.address(index), self.roles.get(index)) {
            port.last_wills().appoint(Gid::from(address.ip()), role.successor());
        }
    }

    /// To be called before a descriptor is closed that may be a successor.
    fn dismiss_successor(&self, index: usize, port: &Port) {
        if let Some(address) = self.address(index) {
            port.last_wills().appoint(Gid::from(address.ip()), None);
        }
    }

    pub(super) fn accept(&mut self, index: usize, port: &Port) {
        let Some(role) = self.roles.get_mut(index) else { return };
        let key = |fd| EpollKey::FollowerLink(index, fd).pack();
        if role.accept(&self.fds, descriptor_share(), key).is_err()
            && let Role::Leader { listener, .. } = role
        {
            // No descriptor to spare: who waits in the backlog stays connected and learns all the same when this process
            // goes. Looked at again when a follower has gone.
            self.fds.unwatch(listener.as_raw_fd());
        }
        self.appoint_successor(index, port);
    }

    pub(super) fn dismiss(&mut self, index: usize, fd: RawFd, port: &Port) {
        if self.roles.get(index).and_then(Role::successor).map(AsRawFd::as_raw_fd) == Some(fd) {
            self.dismiss_successor(index, port);
        }
        let Some(role) = self.roles.get_mut(index) else { return };
        role.dismiss(fd);
        if let Role::Leader { listener, .. } = role {
            // Fails when it is watched already, which is the usual case.
            let _ = self.fds.watch(listener.as_raw_fd(), EpollKey::ElectionListener(index).pack());
        }
        self.appoint_successor(index, port);
    }

    /// The connection to the owner of an address has something to say.
    pub(super) fn hear_owner(&mut self, index: usize, port: &Port) {
        let Some(role) = self.roles.get(index) else { return };
        match role.successor().map(AsRawFd::as_raw_fd) {
            Some(owner) if self.last_wills.hear(owner) => self.begin_last_wills(port),
            Some(_) => {
                self.vacate(index, port);
                self.stand_for_election(index, port);
            }
            // Another user's, who may hang up as often as it likes: at its own expense.
            None => {
                self.vacate(index, port);
                self.deadlines.set(Task::RetryElection, RACE);
            }
        }
    }

    pub(super) fn vacate(&mut self, index: usize, port: &Port) {
        self.dismiss_successor(index, port);
        let vacancy = self.vacancy();
        if let Some(role) = self.roles.get_mut(index) {
            role.neighbours().for_each(|fd| self.last_wills.forget(fd));
            *role = vacancy;
        }
        self.note_owned(port);
    }

    /// Role at an address before an election there.
    const fn vacancy(&self) -> Role {
        if self.takes_part { Role::Candidate } else { Role::Bystander }
    }

    /// Says which addresses this process owns.
    pub(crate) fn note_owned(&self, port: &Port) {
        let leads = |(role, address): (&Role, &Option<SocketAddr>)| {
            Some((*address)?.ip()).filter(|_| matches!(role, Role::Leader { .. }))
        };
        port.set_owned(self.roles.iter().zip(&self.addresses).filter_map(leads).collect());
    }

    /// Begins to send the last wills of processes that have ended, unless that is under way already.
    pub(super) fn begin_last_wills(&mut self, port: &Port) {
        if self.last_wills.begin() {
            self.send_last_wills(port);
        }
    }

    /// Sends the next few last wills.
    pub(super) fn send_last_wills(&mut self, port: &Port) {
        let Self { last_wills, roles, addresses, .. } = self;
        let is_owned = |gid| {
            let has_owner = |(role, address): (&Role, &Option<SocketAddr>)| {
                !matches!(role, Role::Candidate) && address.is_some_and(|address| Gid::from(address.ip()) == gid)
            };
            roles.iter().zip(addresses.iter()).any(has_owner)
        };
        let (wills, again) = last_wills.send(Instant::now(), is_owned);
        port.last_wills().send(wills);
        if let Some(after) = again {
            self.deadlines.set(Task::SendLastWills, after);
        }
    }

    /// Stands for election, or does so again later.
    //= spec/hosts.md#net-002
    //# When the owner of the port ends, however it ends, another process MUST take over and the others go on.
    pub(super) fn stand_for_election(&mut self, index: usize, port: &Port) {
        let Some(address) = self.address(index) else { return };
        let Some(place) = self.roles.get_mut(index) else { return };
        let retry = match Role::elect(&self.fds, address) {
            Ok(Role::Candidate) => RACE,
            Ok(role @ Role::Guest { liveness: None, .. }) => {
                *place = role;
                TROUBLE
            }
            Ok(role) => {
                if watch_role(&self.fds, index, &role).is_ok() {
                    if let Role::Leader { udp, .. } = &role {
                        add_alone(&port.counters().takeovers, 1);
                        report_headers(udp.as_raw_fd(), address, self.reported);
                    }
                    *place = role;
                    self.note_owned(port);
                    self.appoint_successor(index, port);
                    self.last_wills.note_owner(Gid::from(address.ip()));
                    self.begin_last_wills(port);
                    return;
                }
                TROUBLE
            }
            // Not usable (yet): tried again when something has changed.
            Err(PortError::Os { source, .. }) if source.kind() == ErrorKind::AddrNotAvailable => return,
            Err(_) => TROUBLE,
        };
        self.deadlines.set(Task::RetryElection, retry);
    }
}

pub(super) fn watch_role(fds: &FdSet, index: usize, role: &Role) -> std::io::Result<()> {
    match role {
        Role::Candidate | Role::Bystander | Role::Guest { liveness: None, .. } => Ok(()),
        Role::Follower { owner } | Role::Guest { liveness: Some(owner), .. } => {
            fds.watch(owner.as_raw_fd(), EpollKey::LeaderLink(index).pack())
        }
        Role::Leader { listener, udp, .. } => {
            fds.watch(listener.as_raw_fd(), EpollKey::ElectionListener(index).pack())?;
            fds.watch(udp.as_raw_fd(), EpollKey::LeaderSocket(index).pack())
        }
    }
}
