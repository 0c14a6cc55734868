//! Descriptors of a port and the epoll instance that watches them, known all together so that a forked child can close
//! its copies without taking a lock.

use core::sync::atomic::{AtomicBool, AtomicI32, AtomicUsize, Ordering};
use std::io;
use std::os::fd::{AsRawFd, IntoRawFd, OwnedFd, RawFd};
use std::sync::{Arc, Mutex, OnceLock};

use super::identity::Identity;
use super::{close, epoll_add, epoll_create, epoll_ready, epoll_remove};
use crate::mutex::lock;

/// Slots in the first block of a [`FdSet`]; each further block has twice as many.
const FIRST: usize = 64;
/// More descriptors than 2^30 there cannot be (`NR_OPEN` of the kernel).
const BLOCKS: usize = 25;
/// An empty slot.
const NONE: RawFd = -1;

/// One descriptor of a set.
#[derive(Debug)]
struct Slot {
    raw: AtomicI32,
    /// Identity of the open file under the number; written before `raw` is.
    identity: Mutex<Option<Identity>>,
}

impl Slot {
    const fn empty() -> Self {
        Self { raw: AtomicI32::new(NONE), identity: Mutex::new(None) }
    }

    /// Empties the slot, and closes the descriptor if it still is what it was. False if another has emptied it.
    fn close(&self, raw: RawFd) -> bool {
        let is_emptied = self.raw.compare_exchange(raw, NONE, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        // Not `lock`: in the child of a fork, somebody who is not there may have it. A slot in use is not locked, though.
        let identity = self.identity.try_lock().map(|identity| *identity).unwrap_or_default();
        if is_emptied && identity.is_none_or(|identity| identity.is_under(raw)) {
            // SAFETY: the slot has owned the number, and what is under it is what was put there.
            unsafe { close(raw) };
        }
        is_emptied
    }
}

/// The set of open descriptors of one port: readable after `fork` whatever lock was held.
#[derive(Debug)]
pub(crate) struct FdSet {
    epoll: RawFd,
    epoll_identity: Option<Identity>,
    blocks: [OnceLock<Box<[Slot]>>; BLOCKS],
    /// Slots that were used and are empty, and how many there have been.
    free: Mutex<(Vec<usize>, usize)>,
    /// Every [`Fd`] is closed already, and the number may be somebody else's by now.
    abandoned: AtomicBool,
    /// The application was found to have closed the descriptors.
    lost: AtomicBool,
}

impl FdSet {
    pub(crate) fn new() -> io::Result<Arc<Self>> {
        let epoll = epoll_create()?.into_raw_fd();
        Ok(Arc::new(Self {
            epoll,
            epoll_identity: Identity::of(epoll).ok(),
            blocks: [const { OnceLock::new() }; BLOCKS],
            free: Mutex::default(),
            abandoned: AtomicBool::new(false),
            lost: AtomicBool::new(false),
        }))
    }

    /// The epoll instance.
    pub(crate) fn epoll(&self) -> RawFd {
        self.epoll
    }

    /// Whether the application has closed the descriptors: the epoll instance is not what it was.
    pub(crate) fn is_lost(&self) -> bool {
        if self.epoll_identity.is_some_and(|identity| !identity.is_under(self.epoll)) {
            self.lost.store(true, Ordering::Relaxed);
        }
        self.lost.load(Ordering::Relaxed)
    }

    /// Whether the descriptors are known to be the set's no more: somebody has closed them, or [`is_lost`](Self::is_lost) has
    /// found that the application has. Asks nobody.
    #[inline]
    pub(crate) fn is_dead(&self) -> bool {
        self.lost.load(Ordering::Relaxed) || self.abandoned.load(Ordering::Relaxed)
    }

    fn check(&self) -> io::Result<()> {
        if self.is_dead() || self.is_lost() { Err(io::Error::from_raw_os_error(libc::EBADF)) } else { Ok(()) }
    }

    /// Watches a descriptor of the set for input and hang-up, under `key`, until it is closed.
    ///
    /// # Errors
    /// EBADF if the application has closed the descriptors: the epoll instance may be its own.
    pub(crate) fn watch(&self, fd: RawFd, key: u64) -> io::Result<()> {
        self.check()?;
        epoll_add(self.epoll, fd, libc::EPOLLIN | libc::EPOLLRDHUP, key)
    }

    /// Watches a descriptor of the set for room to write, under `key`, until it is closed.
    ///
    /// # Errors
    /// EBADF, as for [`watch`](Self::watch).
    pub(crate) fn watch_output(&self, fd: RawFd, key: u64) -> io::Result<()> {
        self.check()?;
        epoll_add(self.epoll, fd, libc::EPOLLOUT, key)
    }

    /// Stops watching a descriptor.
    pub(crate) fn unwatch(&self, fd: RawFd) {
        // The application may watch the number by an epoll instance of its own.
        if self.check().is_ok() {
            epoll_remove(self.epoll, fd);
        }
    }

    /// The keys of up to `N` watched descriptors that are ready now.
    pub(crate) fn ready<const N: usize>(&self, keys: &mut [u64; N]) -> usize {
        epoll_ready(self.epoll, keys)
    }

    /// Takes a descriptor into the set. A fork between its creation and this call leaves it open in the child until
    /// the child's `exec` (all are close-on-exec).
    pub(crate) fn adopt(self: &Arc<Self>, fd: impl Into<OwnedFd>) -> io::Result<Fd> {
        let fd = fd.into();
        let index = {
            let (free, used) = &mut *lock(&self.free);
            free.pop().unwrap_or_else(|| {
                *used += 1;
                *used - 1
            })
        };
        let Some(slot) = self.slot(index) else { return Err(io::Error::from_raw_os_error(libc::EMFILE)) };
        *lock(&slot.identity) = Identity::of(fd.as_raw_fd()).ok();
        let raw = fd.into_raw_fd();
        slot.raw.store(raw, Ordering::Release);
        Ok(Fd { raw, index, set: Arc::clone(self) })
    }

    /// The slot of this index, in a block that is made if need be.
    fn slot(&self, index: usize) -> Option<&Slot> {
        let (block, offset) = place(index);
        let make = || std::iter::repeat_with(Slot::empty).take(FIRST << block).collect();
        self.blocks.get(block)?.get_or_init(make).get(offset)
    }

    /// Closes all, now and for good, though they are still referred to: in the child of a fork, or when a device is closed
    /// whose objects were not destroyed. Takes no lock, allocates nothing.
    pub(crate) fn abandon(&self) {
        if self.abandoned.swap(true, Ordering::Relaxed) {
            return;
        }
        self.close_epoll();
        for slot in self.blocks.iter().filter_map(OnceLock::get).flatten() {
            let raw = slot.raw.load(Ordering::Acquire);
            if raw != NONE {
                slot.close(raw);
            }
        }
    }

    /// Closes the epoll instance, if it is ours still.
    fn close_epoll(&self) {
        if !self.is_lost() {
            // SAFETY: the set owns its epoll instance; `abandoned`, or the set's end, keep it from being closed again.
            unsafe { close(self.epoll) };
        }
    }
}

/// Block of a slot, and its place there.
const fn place(index: usize) -> (usize, usize) {
    let block = (index / FIRST + 1).ilog2() as usize;
    (block, index + FIRST - (FIRST << block))
}

impl Drop for FdSet {
    fn drop(&mut self) {
        if !self.abandoned.load(Ordering::Relaxed) {
            self.close_epoll();
        }
    }
}

/// An owned descriptor of a port.
#[derive(Debug)]
pub(crate) struct Fd {
    raw: RawFd,
    /// Index of the slot.
    index: usize,
    set: Arc<FdSet>,
}

impl AsRawFd for Fd {
    fn as_raw_fd(&self) -> RawFd {
        self.raw
    }
}

impl Fd {
    /// Identity of the open file when it was adopted; none if it could not be found out.
    pub(crate) fn identity(&self) -> Option<Identity> {
        self.set.slot(self.index).and_then(|slot| *lock(&slot.identity))
    }

    /// Whether the number still is what it was, as far as that can be told.
    pub(crate) fn is_ours(&self) -> bool {
        self.identity().is_none_or(|identity| identity.is_under(self.raw))
    }
}

impl Drop for Fd {
    fn drop(&mut self) {
        if self.set.abandoned.load(Ordering::Relaxed) {
            return;
        }
        let Some(slot) = self.set.slot(self.index) else { return };
        // A copy in a forked process would keep a merely closed descriptor in the epoll instance, ready for ever.
        if !self.set.is_lost() {
            epoll_remove(self.set.epoll, self.raw);
        }
        // Unless all have just been closed.
        if slot.close(self.raw) {
            lock(&self.set.free).0.push(self.index);
        }
    }
}

/// Descriptors of one kind that several ports may have open, all of them together.
#[derive(Clone, Debug)]
pub(crate) struct Budget {
    most: usize,
    used: Arc<AtomicUsize>,
}

/// A descriptor of a [`Budget`], until this is dropped.
#[derive(Debug)]
pub(crate) struct Permit(Arc<AtomicUsize>);

impl Budget {
    pub(crate) fn new(most: usize) -> Self {
        Self { most, used: Arc::default() }
    }

    /// Takes a descriptor, unless all are taken.
    pub(crate) fn take(&self) -> Option<Permit> {
        let more = |used: usize| (used < self.most).then_some(used + 1);
        self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).ok()?;
        Some(Permit(Arc::clone(&self.used)))
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Budgets of descriptors whose numbers grow with the peers.
#[derive(Clone, Debug)]
pub(crate) struct Budgets {
    pub(crate) flows: Budget,
    pub(crate) tx: Budget,
    pub(crate) rings: Budget,
}

impl Budgets {
    /// Budgets of so many descriptors each.
    pub(crate) fn of(most: usize) -> Self {
        let new = || Budget::new(most);
        Self { flows: new(), tx: new(), rings: new() }
    }
}

/// Number of descriptors that each of the growing kinds (transmit sockets, flow sockets, mailboxes, channels) may take: the process
/// belongs to somebody else.
#[must_use]
pub fn descriptor_share() -> usize {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is writable.
    if unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) } != 0 {
        return 64;
    }
    usize::try_from(limit.rlim_cur / 8).unwrap_or(usize::MAX).clamp(8, 256)
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::fd::FromRawFd;
    use std::os::unix::net::UnixStream;

    use super::*;

    fn is_open(raw: RawFd) -> bool {
        // SAFETY: F_GETFD reads a flag; a number that is not open gives EBADF.
        unsafe { libc::fcntl(raw, libc::F_GETFD) >= 0 }
    }

    /// A number far above what parallel tests use, so that nobody reuses it between close and check.
    fn high_fd(number: RawFd) -> OwnedFd {
        let file = std::fs::File::open("/dev/null").unwrap();
        // SAFETY: duplicates an open descriptor to a new number >= `number`, which the result then owns.
        unsafe { OwnedFd::from_raw_fd(libc::fcntl(file.as_raw_fd(), libc::F_DUPFD_CLOEXEC, number)) }
    }

    #[test]
    fn drop_closes() {
        let set = FdSet::new().unwrap();
        let fd = set.adopt(high_fd(700)).unwrap();
        let raw = fd.as_raw_fd();
        assert!(is_open(raw));
        drop(fd);
        assert!(!is_open(raw));
    }

    /// An application that closes all descriptors may have an epoll instance of its own under the number.
    #[test]
    fn the_epoll_instance_of_the_application_watches_nothing_of_ours() {
        let (set, theirs) = (FdSet::new().unwrap(), epoll_create().unwrap());
        let (near, far) = UnixStream::pair().unwrap();
        let fd = set.adopt(far).unwrap();
        // SAFETY: replaces what is under a number that nobody but `set` knows, which leaves it alone from now on.
        let under = unsafe { libc::dup3(theirs.as_raw_fd(), set.epoll(), libc::O_CLOEXEC) };
        // SAFETY: a new descriptor, which nobody else closes.
        let under = unsafe { OwnedFd::from_raw_fd(under) };
        assert_eq!(under.as_raw_fd(), set.epoll());
        (&near).write_all(b"readable").unwrap();
        for watch in [FdSet::watch, FdSet::watch_output] {
            assert_eq!(watch(&set, fd.as_raw_fd(), 1).unwrap_err().raw_os_error(), Some(libc::EBADF));
        }
        assert_eq!(epoll_ready(theirs.as_raw_fd(), &mut [0; 4]), 0);
        epoll_add(theirs.as_raw_fd(), fd.as_raw_fd(), libc::EPOLLIN, 7).unwrap();
        set.unwatch(fd.as_raw_fd());
        assert_eq!(epoll_ready(theirs.as_raw_fd(), &mut [0; 4]), 1);
    }

    #[test]
    fn slots_have_one_place_each() {
        let mut next = (0, 0);
        for index in 0..100 * FIRST {
            assert_eq!(place(index), next);
            next = if next.1 + 1 == FIRST << next.0 { (next.0 + 1, 0) } else { (next.0, next.1 + 1) };
        }
        assert!(place(1 << 30).0 < BLOCKS);
    }

    /// The highest number that the limit of open files allows; more than a set of 16-bit numbers holds where it does.
    #[test]
    fn descriptors_of_high_numbers() {
        let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: a structure to write, then one to read.
        unsafe {
            libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit);
            limit.rlim_cur = limit.rlim_max;
            libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit);
        }
        let high = RawFd::try_from(limit.rlim_max.min(70_000) - 1).unwrap();
        assert!(high > 1000, "a hard limit of {} open files is too few for these tests (ulimit -Hn)", limit.rlim_max);
        let set = FdSet::new().unwrap();
        let fd = set.adopt(high_fd(high)).unwrap();
        let raw = fd.as_raw_fd();
        assert_eq!(raw, high);
        drop(fd);
        assert!(!is_open(raw));
        let fd = set.adopt(high_fd(high)).unwrap();
        set.abandon();
        assert!(!is_open(fd.as_raw_fd()));
    }

    /// The program has closed it, and something else has the number.
    #[test]
    fn drop_and_abandon_leave_strangers_alone() {
        let set = FdSet::new().unwrap();
        let stranger = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let fds = [900, 901].map(|number| set.adopt(high_fd(number)).unwrap());
        for fd in &fds {
            // SAFETY: replaces what is under a number of this test's.
            assert!(unsafe { libc::dup2(stranger.as_raw_fd(), fd.as_raw_fd()) } >= 0);
        }
        let [first, second] = fds;
        let numbers = [first.as_raw_fd(), second.as_raw_fd()];
        drop(first);
        set.abandon();
        drop(second);
        for raw in numbers {
            assert!(is_open(raw));
            // SAFETY: a number of this test's.
            unsafe { libc::close(raw) };
        }
    }

    #[test]
    fn abandon_closes_once() {
        let set = FdSet::new().unwrap();
        let fd = set.adopt(high_fd(800)).unwrap();
        let raw = fd.as_raw_fd();
        set.abandon();
        assert!(!is_open(raw));
        let other = high_fd(raw);
        assert_eq!(other.as_raw_fd(), raw);
        drop(fd);
        assert!(is_open(raw), "an abandoned descriptor closed somebody else's");
    }
}
