//! Which addresses a port receives at: seats come, go, and change hands.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, RawFd};
use std::time::{Duration, Instant};

use urxe_wire::Gid;

use super::Receiver;
use crate::counters::add_alone;
use crate::deadline::Task;
use crate::error::PortError;
use crate::fd::FdSet;
use crate::owner::Seat;
use crate::port::{Port, descriptor_share};
use crate::token::Token;
use crate::udp::report_headers;

/// Until the next attempt at a vacant seat: somebody is just taking it.
const RACE: Duration = Duration::from_millis(2);
/// The same after an error, such as a foreign program that has the port now.
pub(super) const TROUBLE: Duration = Duration::from_millis(500);

impl Receiver {
    /// The addresses whose port a process of another user owns, and which user that is.
    pub fn other_users(&self) -> impl Iterator<Item = (SocketAddr, u32)> {
        self.seats.iter().zip(&self.addresses).filter_map(|(seat, address)| match seat {
            Seat::Guest { owner, .. } => Some(((*address)?, *owner)),
            _ => None,
        })
    }

    /// Looks what has become of the interface, and takes seats at its new addresses.
    pub(crate) fn follow(&mut self, port: &Port) {
        if let Some(watch) = &self.watch {
            watch.clear();
        }
        let now = match port.interface().reread() {
            Ok(now) => now,
            Err(PortError::NoSuchInterface { .. }) => {
                self.watch = None;
                return port.interface_is_gone();
            }
            // Asked again at the next change.
            Err(_) => return,
        };
        for index in 0..self.addresses.len() {
            if self.address(index).is_some_and(|address| !now.addresses().contains(&address)) {
                self.vacate(index, port);
                self.addresses[index] = None;
                add_alone(&port.counters().flows_closed, self.flows.close_local(index));
                self.inbox.close_local(index);
            }
        }
        for address in now.addresses() {
            if !self.addresses.contains(&Some(*address)) {
                let free = self.addresses.iter().position(Option::is_none);
                let index = free.unwrap_or_else(|| {
                    self.addresses.push(None);
                    self.seats.push(Seat::Vacant);
                    self.seats.len() - 1
                });
                self.addresses[index] = Some(*address);
                self.peers.clear();
            }
        }
        // An IPv6 address can be used some time after it came, which is a change as well.
        self.take_seats(port);
        port.interface_is(now);
    }

    /// Tries to fill the seats that have nobody to hear from.
    pub(super) fn take_seats(&mut self, port: &Port) {
        for index in 0..self.seats.len() {
            if self.seats.get(index).is_some_and(Seat::is_to_be_retried) {
                self.take_seat(index, port);
            }
        }
    }

    /// Says who has the wills of each address' connections.
    pub(crate) fn appoint_heirs(&self, port: &Port) {
        for index in 0..self.seats.len() {
            self.appoint_heir(index, port);
        }
    }

    fn appoint_heir(&self, index: usize, port: &Port) {
        if let (Some(address), Some(seat)) = (self.address(index), self.seats.get(index)) {
            port.wills().appoint(Gid::from(address.ip()), seat.heir());
        }
    }

    /// To be called before a descriptor is closed that may be an heir.
    fn dismiss_heir(&self, index: usize, port: &Port) {
        if let Some(address) = self.address(index) {
            port.wills().appoint(Gid::from(address.ip()), None);
        }
    }

    pub(super) fn accept(&mut self, index: usize, port: &Port) {
        let Some(seat) = self.seats.get_mut(index) else { return };
        let token = |fd| Token::Follower(index, fd).pack();
        if seat.accept(&self.fds, descriptor_share(), token).is_err()
            && let Seat::Owner { listener, .. } = seat
        {
            // No descriptor to spare: who waits in the backlog stays connected and learns all the same when this process
            // goes. Looked at again when a follower has gone.
            self.fds.unwatch(listener.as_raw_fd());
        }
        self.appoint_heir(index, port);
    }

    pub(super) fn dismiss(&mut self, index: usize, fd: RawFd, port: &Port) {
        if self.seats.get(index).and_then(Seat::heir) == Some(fd) {
            self.dismiss_heir(index, port);
        }
        let Some(seat) = self.seats.get_mut(index) else { return };
        seat.dismiss(fd);
        if let Seat::Owner { listener, .. } = seat {
            // Fails when it is watched already, which is the usual case.
            let _ = self.fds.watch(listener.as_raw_fd(), Token::Listener(index).pack());
        }
        self.appoint_heir(index, port);
    }

    /// The connection to the owner of an address has something to say.
    pub(super) fn hear_owner(&mut self, index: usize, port: &Port) {
        let Some(seat) = self.seats.get(index) else { return };
        match seat.heir() {
            Some(owner) if self.testators.hear(owner) => self.begin_wills(port),
            Some(_) => {
                self.vacate(index, port);
                self.take_seat(index, port);
            }
            // Another user's, who may hang up as often as it likes: at its own expense.
            None => {
                self.vacate(index, port);
                self.deadlines.set(Task::TakeSeats, RACE);
            }
        }
    }

    pub(super) fn vacate(&mut self, index: usize, port: &Port) {
        self.dismiss_heir(index, port);
        if let Some(seat) = self.seats.get_mut(index) {
            seat.neighbours().for_each(|fd| self.testators.forget(fd));
            *seat = Seat::Vacant;
        }
    }

    /// Has the wills of processes that have ended executed, unless that is under way already.
    pub(super) fn begin_wills(&mut self, port: &Port) {
        if self.testators.begin() {
            self.execute_wills(port);
        }
    }

    /// Has the next few wills executed.
    pub(super) fn execute_wills(&mut self, port: &Port) {
        let Self { testators, seats, addresses, .. } = self;
        let is_owned = |gid| {
            let has_owner = |(seat, address): (&Seat, &Option<SocketAddr>)| {
                !matches!(seat, Seat::Vacant) && address.is_some_and(|address| Gid::from(address.ip()) == gid)
            };
            seats.iter().zip(addresses.iter()).any(has_owner)
        };
        let (wills, again) = testators.execute(Instant::now(), is_owned);
        port.wills().execute(wills);
        if let Some(after) = again {
            self.deadlines.set(Task::ExecuteWills, after);
        }
    }

    /// Tries to fill a vacant seat, or to try again later.
    //= spec/hosts.md#net-002
    //# When the owner of the port ends, however it ends, another process MUST take over and the others go on.
    pub(super) fn take_seat(&mut self, index: usize, port: &Port) {
        let Some(address) = self.address(index) else { return };
        let Some(place) = self.seats.get_mut(index) else { return };
        let retry = match Seat::take(&self.fds, address) {
            Ok(Seat::Vacant) => RACE,
            Ok(seat @ Seat::Guest { liveness: None, .. }) => {
                *place = seat;
                TROUBLE
            }
            Ok(seat) => {
                if watch_seat(&self.fds, index, &seat).is_ok() {
                    if let Seat::Owner { udp, .. } = &seat {
                        add_alone(&port.counters().takeovers, 1);
                        if self.headers {
                            report_headers(udp.as_raw_fd(), address);
                        }
                    }
                    *place = seat;
                    self.appoint_heir(index, port);
                    self.testators.has_owner(Gid::from(address.ip()));
                    self.begin_wills(port);
                    return;
                }
                TROUBLE
            }
            // Not usable (yet): tried again when something has changed.
            Err(PortError::Os { source, .. }) if source.kind() == ErrorKind::AddrNotAvailable => return,
            Err(_) => TROUBLE,
        };
        self.deadlines.set(Task::TakeSeats, retry);
    }
}

pub(super) fn watch_seat(fds: &FdSet, index: usize, seat: &Seat) -> std::io::Result<()> {
    match seat {
        Seat::Vacant | Seat::Guest { liveness: None, .. } => Ok(()),
        Seat::Follower { owner } | Seat::Guest { liveness: Some(owner), .. } => {
            fds.watch(owner.as_raw_fd(), Token::Leader(index).pack())
        }
        Seat::Owner { listener, udp, .. } => {
            fds.watch(listener.as_raw_fd(), Token::Listener(index).pack())?;
            fds.watch(udp.as_raw_fd(), Token::Owner(index).pack())
        }
    }
}
