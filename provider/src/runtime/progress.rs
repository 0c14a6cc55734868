//! Who makes progress: a polling application by itself, or else the background thread.
//!
//! While an application polls, a thread that woke for every packet would only take its processor away. So a poll
//! that finds nothing leaves the time behind ([`NetPort::polled`]), and the thread, when it wakes for a packet and
//! finds such a time fresh, keeps away from the sockets and looks again every [`TICK`]. When polling has stopped, it
//! goes back to waiting for packets. An application that asks for an event is about to sleep: it ends this at once.
//!
//! Some applications poll now and then but spin on their memory in between, waiting for an RDMA WRITE. When a tick
//! finds packets that nobody has taken, the thread stops believing in polls and serves every packet, until it has
//! woken [`WASTED`] times in a row for packets that a poll had taken already.
//!
//! When nothing happens, nothing wakes up: the thread waits for packets and timers without end.

use std::mem::MaybeUninit;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use urxe_engine::Instant;

use super::clock;
use super::port::NetPort;

/// A poll this old says that somebody is polling still.
const FRESH: Duration = Duration::from_micros(250);
/// How often the thread looks whether somebody still polls.
const TICK: Duration = Duration::from_millis(1);
/// A packet that has waited this long for a poll has waited too long.
const OVERDUE: Duration = Duration::from_micros(20);
/// Wake-ups in vain after which polls are believed in again.
const WASTED: u32 = 32;

impl NetPort {
    /// The application found its completion queue empty: makes progress in its thread.
    pub(crate) fn polled(&self, going_to_sleep: bool) {
        if self.progress() > 0 {
            self.vain_polls.store(0, Ordering::Relaxed);
        } else if self.vain_polls.fetch_add(1, Ordering::Relaxed) % PATIENCE == PATIENCE - 1 {
            thread::yield_now();
        }
        let now = clock::now();
        if !going_to_sleep {
            self.polled_at.store(now.as_nanos(), Ordering::Relaxed);
        }
        if self.next_timer().is_some_and(|at| at <= now) {
            self.run_timers(now);
        }
    }

    /// The application will wait for an event instead of polling.
    pub(crate) fn stopped_polling(&self) {
        let polled_at = self.polled_at.swap(0, Ordering::Relaxed);
        let fresh = clock::now().since(Instant::from_nanos(polled_at)) < FRESH + TICK;
        if polled_at != 0 && fresh {
            self.wake();
        }
    }

    /// Whether the application polled in vain less than `age` ago.
    fn polled_within(&self, age: Duration) -> bool {
        clock::now().since(Instant::from_nanos(self.polled_at.load(Ordering::Relaxed))) < age
    }
}

/// Polls in vain after which the processor is offered to others: on a machine with fewer processors than programs
/// that poll, the peer may be waiting for this very one. Alone, it costs a system call.
const PATIENCE: u32 = 16;

/// Starts the background thread of a port.
pub(crate) fn start(port: Arc<NetPort>) -> std::io::Result<JoinHandle<()>> {
    // A thread inherits the signal mask: none of the application's signals may be handled by ours.
    let mut all = MaybeUninit::uninit();
    let mut before = MaybeUninit::uninit();
    // SAFETY: local signal sets.
    unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
    }
    let thread = thread::Builder::new().name("urxe".into()).spawn(move || run(&port));
    // SAFETY: the set that the call above filled in.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), std::ptr::null_mut()) };
    thread
}

fn run(port: &NetPort) {
    let sockets = port.net().epoll_fd();
    // How many more wake-ups in vain it takes to leave packets to polls.
    let mut distrust = 0;
    while !port.stop.load(Ordering::Acquire) {
        port.run_timers(clock::now());
        if port.has_unfinished() {
            port.progress();
            continue;
        }
        if !wait(port, &[port.kick_fd(), sockets], None) {
            continue;
        }
        if distrust == 0 && port.polled_within(FRESH) {
            if !stand_by(port, sockets) {
                distrust = WASTED;
            }
        } else if port.drain_all() > 0 {
            distrust = if distrust > 0 { WASTED } else { 0 };
        } else {
            distrust = distrust.saturating_sub(1);
        }
    }
}

/// Leaves packets to an application that polls, until it stops. False if it left some lying.
fn stand_by(port: &NetPort, sockets: RawFd) -> bool {
    while port.polled_within(FRESH) && !port.stop.load(Ordering::Acquire) {
        wait(port, &[port.kick_fd()], Some(TICK));
        port.run_timers(clock::now());
        if is_readable(sockets) && !port.polled_within(OVERDUE) && is_readable(sockets) {
            return false;
        }
    }
    true
}

fn is_readable(fd: RawFd) -> bool {
    let mut polled = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    // SAFETY: one entry; does not wait.
    unsafe { libc::poll(&raw mut polled, 1, 0) > 0 }
}

/// Sleeps until one of the descriptors is readable, a timer is due, or `most` is over. The first is the one that only
/// wakes; true if another is readable.
fn wait(port: &NetPort, fds: &[RawFd], most: Option<Duration>) -> bool {
    let mut polled = [libc::pollfd { fd: -1, events: libc::POLLIN, revents: 0 }; 2];
    for (entry, fd) in polled.iter_mut().zip(fds) {
        entry.fd = *fd;
    }
    let now = clock::now();
    let limit = most.map(|most| now + most);
    // Say how long before looking at the timers, so that one set meanwhile either is seen or kicks.
    port.sleeps_until.store(limit.map_or(u64::MAX, Instant::as_nanos), Ordering::SeqCst);
    let until = [port.next_timer(), limit].into_iter().flatten().min();
    let timeout = until.map(|until| {
        let left = until.since(now);
        libc::timespec { tv_sec: left.as_secs().cast_signed(), tv_nsec: i64::from(left.subsec_nanos()) }
    });
    let timeout = timeout.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: an array of that many entries; a null timeout waits without end.
    unsafe { libc::ppoll(polled.as_mut_ptr(), 2, timeout, std::ptr::null()) };
    port.sleeps_until.store(0, Ordering::SeqCst);
    let [kick, sockets] = polled;
    if kick.revents != 0 {
        let mut count = [0_u8; 8];
        // SAFETY: eight bytes from our eventfd, which does not block.
        unsafe { libc::read(kick.fd, count.as_mut_ptr().cast(), count.len()) };
    }
    sockets.revents != 0
}
