//! Last wills: messages that a neighbour sends for a process that was killed.
//!
//! A kernel tells the peers of a process that was killed that its connections are over. Here the process itself would
//! have to, so it leaves what it would say with a neighbour, which is there anyhow: the owner of its address, or, if it
//! is the owner, its first follower. The two are connected over a socket (owner.rs); when that hangs up, the
//! neighbour says it. A process that is alone on its host leaves its wills with a [keeper](crate::last_will_keeper), if there is one;
//! otherwise its peers find out as they would about a host without power.
//!
//! Neighbours of other users have no part in this (owner.rs): a will names connections, and who knows their names can end
//! them; and whoever may leave wills has the neighbour send them.
//!
//! Over the connection go wills, and names alone of wills that are taken back. What does not fit into the connection is
//! not left: it is best effort.

use core::sync::atomic::{AtomicBool, Ordering};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::io::{self, ErrorKind};
use std::os::fd::{AsRawFd, RawFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use socket2::{Domain, SockAddr, Socket, Type};
use urxe_wire::Gid;
use urxe_wire::mad::MAD_LEN;

use crate::ipc::credentials::abstract_address;
use crate::ipc::{NAME_PREFIX, unix};
use crate::sys::fd::{Fd, FdSet};
use crate::sys::{recv_parts, send_parts};

/// A name, two GIDs and a message.
const LEN: usize = 4 + 16 + 16 + MAD_LEN;

/// Last wills that a neighbour may leave: the memory is ours.
const MOST: usize = 4096;

/// Last wills that all neighbours together may leave; and as many of those that have ended [of late](SOON).
const ALL: usize = 4 * MOST;

/// Messages of one neighbour before somebody else gets his turn: it may say them as fast as they are heard.
const HEARD: usize = 64;

/// Last wills of a process are sent again if the owner changes within this time.
const SOON: Duration = Duration::from_secs(1);

/// Last wills that are sent at a time: the receiver sends them, and has other work.
const AT_ONCE: usize = 16;
/// Interval between two such batches.
const INTERVAL: Duration = Duration::from_millis(2);

/// Message that QP1 sends to a peer's when its process has ended (MQTT's term).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LastWill {
    /// Name of the connection that it is about.
    pub name: u32,
    /// GID of the sender.
    pub local: Gid,
    /// GID of the receiver.
    pub remote: Gid,
    /// The management datagram.
    pub message: [u8; MAD_LEN],
}

impl LastWill {
    fn emit(&self) -> Vec<u8> {
        [&self.name.to_le_bytes()[..], &self.local.octets(), &self.remote.octets(), &self.message].concat()
    }

    fn parse(bytes: &[u8; LEN]) -> Self {
        let (name, rest) = bytes.split_first_chunk().unwrap_or((&[0; 4], &[]));
        let (local, rest) = rest.split_first_chunk().unwrap_or((&[0; 16], &[]));
        let (remote, rest) = rest.split_first_chunk().unwrap_or((&[0; 16], &[]));
        let message = rest.first_chunk().unwrap_or(&[0; MAD_LEN]);
        Self { name: u32::from_le_bytes(*name), local: Gid::new(*local), remote: Gid::new(*remote), message: *message }
    }
}

/// The wills of this process, and to whom each address' go.
#[derive(Debug, Default)]
pub(crate) struct OwnLastWills {
    own: Mutex<Own>,
    /// Last wills of other processes, to be sent.
    due: Mutex<Vec<LastWill>>,
    is_due: AtomicBool,
}

#[derive(Debug, Default)]
struct Own {
    wills: BTreeMap<u32, LastWill>,
    /// By address: the connection to the neighbour. Receivers say when one goes, before they close it.
    successors: HashMap<Gid, RawFd>,
    keeper: Keeper,
}

/// Process that keeps the wills of addresses without a successor.
#[derive(Debug, Default)]
enum Keeper {
    #[default]
    Absent,
    /// Name of the keeper, not connected yet: most processes have no wills, and so never connect.
    Named(String),
    Connected(Fd),
}

/// Connects to a keeper of the same user, without waiting.
fn connect_keeper(name: &str) -> io::Result<Socket> {
    let socket = Socket::new(Domain::UNIX, Type::SEQPACKET.nonblocking(), None)?;
    socket.connect(&keeper_address(name)?)?;
    if unix::is_same_user(socket.as_raw_fd()) { Ok(socket) } else { Err(ErrorKind::PermissionDenied.into()) }
}

/// Address of a keeper's listener.
pub(crate) fn keeper_address(name: &str) -> io::Result<SockAddr> {
    abstract_address(&format!("{NAME_PREFIX}/wills/{name}"))
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
        if let Some(to) = self.successors.get(local).copied().or_else(|| self.keeper.connection()) {
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
    /// Whether there are any to be sent.
    #[inline]
    pub(crate) fn are_due(&self) -> bool {
        self.is_due.load(Ordering::Relaxed)
    }

    fn own(&self) -> MutexGuard<'_, Own> {
        self.own.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Appoints the successor of an address: the connection to the process that keeps its last wills.
    pub(crate) fn appoint(&self, local: Gid, successor: Option<RawFd>) {
        let mut own = self.own();
        let before = match successor {
            Some(successor) => own.successors.insert(local, successor),
            None => own.successors.remove(&local),
        };
        if before == successor {
            return;
        }
        let keeper = own.keeper.connection().filter(|_| before.is_none());
        for will in own.wills.values().filter(|will| will.local == local) {
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
        let mut due = self.due.lock().unwrap_or_else(PoisonError::into_inner);
        due.extend(wills);
        self.is_due.store(!due.is_empty(), Ordering::Release);
    }
}

/// The wills of the neighbours.
#[derive(Debug, Default)]
pub(crate) struct LastWillStore {
    /// By the connection to each.
    living: HashMap<RawFd, BTreeMap<u32, LastWill>>,
    /// Last wills of processes that have ended, to be sent.
    due: VecDeque<LastWill>,
    /// Executed, or of an address that had no owner then, and when that was; the latest last.
    done: VecDeque<(Instant, LastWill)>,
    /// More are sent after [`INTERVAL`].
    goes_on: bool,
}

impl LastWillStore {
    /// Hears some of what a neighbour says. False if it has hung up, or says what none of us does: then its wills are to
    /// be executed.
    pub(crate) fn hear(&mut self, fd: RawFd) -> bool {
        for _ in 0..HEARD {
            let (mut bytes, mut more) = ([0; LEN], [0]);
            match recv_parts(fd, [&mut bytes, &mut more]) {
                Ok(None) => return true,
                Ok(Some(LEN)) => {
                    let will = LastWill::parse(&bytes);
                    let all = self.living.values().map(BTreeMap::len).sum::<usize>();
                    let wills = self.living.entry(fd).or_default();
                    if (wills.len() < MOST && all < ALL) || wills.contains_key(&will.name) {
                        wills.insert(will.name, will);
                    }
                }
                Ok(Some(4)) => {
                    let [a, b, c, d, ..] = bytes;
                    if let Some(wills) = self.living.get_mut(&fd) {
                        wills.remove(&u32::from_le_bytes([a, b, c, d]));
                    }
                }
                // It has not heard all that we said; what it said comes behind this.
                Err(error) if error.kind() == ErrorKind::ConnectionReset => {}
                Ok(Some(_)) | Err(_) => {
                    if let Some(wills) = self.living.remove(&fd) {
                        let room = ALL.saturating_sub(self.due.len() + self.done.len());
                        self.due.extend(wills.into_values().take(room));
                    }
                    return false;
                }
            }
        }
        true
    }

    /// An address has another owner, who receives for the processes of this host. What was sent of late may have been
    /// lost: the old owner was perhaps just going, too, and a process' descriptors are not closed all at once.
    pub(crate) fn has_owner(&mut self, address: Gid) {
        let now = Instant::now();
        for (at, will) in std::mem::take(&mut self.done) {
            if now.duration_since(at) >= SOON {
                continue;
            }
            if will.local == address {
                self.due.push_back(will);
            } else {
                self.done.push_back((at, will));
            }
        }
    }

    /// Whether wills are due that were not sent yet.
    pub(crate) fn are_due(&self) -> bool {
        !self.due.is_empty()
    }

    /// Whether to begin executing: wills are due, and it has not begun yet.
    pub(crate) fn begin(&self) -> bool {
        !self.due.is_empty() && !self.goes_on
    }

    /// The next few wills to be sent, and after how long to ask again. Those of addresses that have no owner, says
    /// `is_owned`, wait until one [has](Self::has_owner).
    //= spec/hosts.md#net-031
    //# Last wills MUST leave a few at a time, and again only for an owner of the address that has just come.
    pub(crate) fn send(&mut self, now: Instant, is_owned: impl Fn(Gid) -> bool) -> (Vec<LastWill>, Option<Duration>) {
        let forgotten = self.done.iter().take_while(|(at, _)| now.duration_since(*at) >= SOON).count();
        self.done.drain(..forgotten);
        let few: Vec<LastWill> = self.due.drain(..AT_ONCE.min(self.due.len())).collect();
        self.done.extend(few.iter().map(|will| (now, will.clone())));
        self.goes_on = !self.due.is_empty();
        let again = if self.goes_on { Some(INTERVAL) } else { (!self.done.is_empty()).then_some(SOON) };
        (few.into_iter().filter(|will| is_owned(will.local)).collect(), again)
    }

    /// A connection ends from this side, because its address goes: nobody's will is sent.
    pub(crate) fn forget(&mut self, fd: RawFd) {
        self.living.remove(&fd);
    }
}

impl OwnLastWills {
    /// Names the keeper of the wills of addresses that have no successor.
    pub(crate) fn name_keeper(&self, name: &str) {
        self.own().keeper = Keeper::Named(name.to_owned());
    }

    /// Leaves a last will with the successor of its address, or with the keeper. It takes the place of one of the same name.
    pub(crate) fn set(&self, fds: &Arc<FdSet>, will: LastWill) {
        let mut own = self.own();
        own.meet_keeper(fds);
        own.tell(&will.local, &will.emit());
        own.wills.insert(will.name, will);
    }

    /// Takes a last will back.
    pub(crate) fn clear(&self, name: u32) {
        let mut own = self.own();
        if let Some(will) = own.wills.remove(&name) {
            own.tell(&will.local, &name.to_le_bytes());
        }
    }

    /// Takes the last wills to be sent.
    pub(crate) fn take_due(&self) -> Vec<LastWill> {
        if !self.is_due.swap(false, Ordering::Acquire) {
            return Vec::new();
        }
        core::mem::take(&mut *self.due.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_will_is_read_as_it_was_written() {
        let will =
            LastWill { name: 0xAB00_1234, local: Gid::new([1; 16]), remote: Gid::new([2; 16]), message: [3; MAD_LEN] };
        let bytes = will.emit();
        assert_eq!(LastWill::parse(bytes.as_slice().try_into().unwrap()), will);
    }

    fn will(name: u32) -> LastWill {
        LastWill { name, local: Gid::new([1; 16]), remote: Gid::new([2; 16]), message: [3; MAD_LEN] }
    }

    fn connected() -> (Socket, Socket) {
        Socket::pair(Domain::UNIX, Type::SEQPACKET.nonblocking(), None).unwrap()
    }

    /// A neighbour that does not stop talking does not keep a receiver from its work.
    #[test]
    fn a_talker_is_heard_for_a_while() {
        let (near, far) = connected();
        let mut last_wills = LastWillStore::default();
        for name in 0..=HEARD {
            near.send(&will(u32::try_from(name).unwrap()).emit()).unwrap();
        }
        let known = |last_wills: &LastWillStore| last_wills.living[&far.as_raw_fd()].len();
        assert!(last_wills.hear(far.as_raw_fd()));
        assert_eq!(known(&last_wills), HEARD);
        assert!(last_wills.hear(far.as_raw_fd()));
        assert_eq!(known(&last_wills), HEARD + 1);
    }

    /// Many neighbours that stay do not fill the memory.
    #[test]
    fn wills_of_the_living_are_bounded() {
        let mut last_wills = LastWillStore::default();
        let neighbours: Vec<_> = (0..=ALL / MOST).map(|_| connected()).collect();
        for (near, far) in &neighbours {
            for name in 0..u32::try_from(MOST).unwrap() {
                near.send(&will(name).emit()).unwrap();
                assert!(last_wills.hear(far.as_raw_fd()));
            }
        }
        assert_eq!(last_wills.living.values().map(BTreeMap::len).sum::<usize>(), ALL);
        // What one has left it may still change.
        let (near, far) = &neighbours[0];
        let changed = LastWill { message: [4; MAD_LEN], ..will(7) };
        near.send(&changed.emit()).unwrap();
        assert!(last_wills.hear(far.as_raw_fd()));
        assert_eq!(last_wills.living[&far.as_raw_fd()][&7], changed);
    }

    /// Neighbours that come, leave wills, and go, do not fill the memory.
    #[test]
    fn wills_of_the_ended_are_bounded() {
        let mut last_wills = LastWillStore::default();
        for round in 0..=ALL / MOST {
            let (near, far) = connected();
            for name in 0..u32::try_from(MOST).unwrap() {
                near.send(&will(name).emit()).unwrap();
                assert!(last_wills.hear(far.as_raw_fd()), "round {round}");
            }
            drop(near);
            assert!(!last_wills.hear(far.as_raw_fd()));
            assert_eq!(last_wills.due.len(), ALL.min((round + 1) * MOST), "round {round}");
        }
    }

    //= spec/hosts.md#net-031
    //= type=test
    //# Last wills MUST leave a few at a time, and again only for an owner of the address that has just come.
    #[test]
    fn wills_are_sent_a_few_at_a_time_and_once() {
        let mut last_wills = LastWillStore::default();
        let end = |last_wills: &mut LastWillStore, names: core::ops::Range<u32>| {
            let (near, far) = connected();
            for name in names {
                near.send(&will(name).emit()).unwrap();
                assert!(last_wills.hear(far.as_raw_fd()));
            }
            drop(near);
            assert!(!last_wills.hear(far.as_raw_fd()));
        };
        end(&mut last_wills, 0..100);
        assert!(last_wills.begin());
        let (mut now, mut seen) = (Instant::now(), Vec::new());
        loop {
            let (wills, again) = last_wills.send(now, |_| true);
            assert!(wills.len() <= AT_ONCE);
            seen.extend(wills.iter().map(|will| will.name));
            if seen.len() == AT_ONCE {
                // It goes on as it would have.
                end(&mut last_wills, 100..101);
                assert!(!last_wills.begin());
            }
            match again {
                Some(INTERVAL) => now += INTERVAL,
                last => break assert_eq!(last, Some(SOON)),
            }
        }
        assert_eq!(seen, (0..101).collect::<Vec<_>>());
        // Another one that ends does not have them sent again.
        end(&mut last_wills, 200..201);
        assert!(last_wills.begin());
        let (wills, _) = last_wills.send(now, |_| true);
        assert_eq!(wills, [will(200)]);
        // They are forgotten in the end.
        assert_eq!(last_wills.send(now + SOON, |_| true), (Vec::new(), None));
    }

    #[test]
    fn wills_are_sent_again_for_an_owner_that_comes_soon() {
        let mut last_wills = LastWillStore::default();
        let (near, far) = connected();
        let elsewhere = LastWill { local: Gid::new([9; 16]), ..will(2) };
        for will in [&will(1), &elsewhere] {
            near.send(&will.emit()).unwrap();
        }
        drop(near);
        assert!(!last_wills.hear(far.as_raw_fd()));
        let now = Instant::now();
        assert_eq!(last_wills.send(now, |_| false).0, []);
        last_wills.has_owner(Gid::new([1; 16]));
        assert_eq!(last_wills.send(now, |_| true).0, [will(1)]);
        last_wills.has_owner(Gid::new([9; 16]));
        assert_eq!(last_wills.send(now, |_| true).0, [elsewhere]);
    }
}
