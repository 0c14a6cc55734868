//! Who makes progress: a polling application by itself, or else the background thread.
//!
//! While an application polls, a thread that woke for every packet would only take its processor away. So a poll
//! that finds nothing leaves the time behind ([`NetPort::polled`]). The thread, when it wakes for a packet just after
//! such a time, keeps away from the sockets, and sleeps until polling has stopped, which a timer tells that those who
//! poll put off ([`watch`](super::watch)). Then the thread goes back to waiting for packets. An application that asks
//! for an event is about to sleep: it ends this at once.
//!
//! Some applications poll for a moment and then spin on their memory, waiting for an RDMA WRITE. A packet that is there
//! when the timer expires is for the thread to take; and the timer is made to expire soon when the answer does not come as
//! it used to.
//!
//! An ACK may wait for the application's next request ([`habit`](super::habit)). Who let it wait may be a poll, and the
//! application then never come back; so polls do so only while the thread watches, and it sends what is overdue when
//! the timer expires. For packets that it takes by itself, the thread waits that short time.
//!
//! Packets that concern no application (one-sided operations) often follow one another sooner than a thread falls asleep
//! and wakes up. After a burst of them, and where sleeping has been short several times in a row, the thread looks for
//! the next for a moment before it sleeps.
//!
//! When nothing happens, nothing wakes up: the thread waits for packets and timers without end.

use std::mem::MaybeUninit;
use std::os::fd::RawFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use urxe_engine::Instant;
use urxe_net::cancellation::CancelGuard;

use super::clock::Look;
use super::pace::stretched;
use super::port::{Acks, Drained, FEW, NetPort};
use super::{changes, clock, habit};

/// A poll this old says that somebody is polling still.
const FRESH: Duration = Duration::from_micros(250);
/// Who polls does so more often than this, even with the processor taken away by a thread that wakes up for a packet:
/// in a virtual machine, interrupting a processor that is busy takes 20 µs and more.
const BUSY: Duration = Duration::from_micros(60);
/// So many packets at once are a burst, which others follow.
const BURST: usize = 16;
/// For how long the next packets are waited for with open eyes: a sender takes 25 µs for two long runs, and more when it
/// is told of a completion and posts the next message between them.
const LINGER: Duration = Duration::from_micros(60);
/// Who sleeps for so short a time, so often in a row, had better not slept. Waking up is part of it.
const NAP: Duration = Duration::from_micros(40);
const NAPS: u32 = 4;
/// For how long a poll sleeps at most where others want the processor ([`crowd`](super::crowd)): who polls may have other
/// things to look at.
const DOZE: Duration = Duration::from_micros(500);
/// The share of a processor that the thread asks for at a time: short, so that it gets one at once when it wakes, from
/// a program that spins as well.
const SLICE: Duration = Duration::from_micros(100);

impl NetPort {
    /// The application found its completion queue empty: makes progress in its thread.
    pub fn polled(&self, going_to_sleep: bool) {
        let acks = if going_to_sleep { Acks::Leave } else { Acks::MayWait };
        let looks = going_to_sleep || !self.glances.may_skip();
        let clock = if looks { Look::from(clock::now()) } else { Look::default() };
        let packets = self.progress(acks, &clock);
        if packets > 0 {
            self.found(packets, going_to_sleep, &clock);
        }
        let Some(now) = clock.taken() else { return };
        self.glances.looked(now);
        let dozes = packets == 0 && self.crowd.found_nothing(now) && !going_to_sleep;
        if !going_to_sleep {
            // To doze is a part of it.
            let until = if dozes { now + DOZE } else { now };
            self.polled_at.store(until.as_nanos(), Ordering::Relaxed);
            self.watch.put_off(now);
        }
        if self.is_any_due(now) {
            self.run_timers(now);
        }
        if dozes {
            self.doze();
        }
    }

    /// Sleeps until something comes, for a moment at most, and takes it.
    #[cold]
    fn doze(&self) {
        let _guard = CancelGuard::new();
        if self.prepare_to_wait() && is_readable(self.net().epoll_fd(), DOZE) {
            self.woken();
            self.progress(Acks::MayWait, &Look::default());
        }
        self.crowd.found(clock::now());
    }

    /// A poll found packets.
    fn found(&self, packets: usize, going_to_sleep: bool, clock: &Look) {
        if packets > FEW {
            // That has taken its time.
            clock.renew();
        }
        match clock.taken() {
            Some(now) => self.crowd.found(now),
            None => self.crowd.found_unseen(),
        }
        if !going_to_sleep {
            self.watch.found(packets, clock);
        }
    }

    /// The application will wait for an event instead of polling.
    pub fn stopped_polling(&self) {
        let polled_at = self.polled_at.swap(0, Ordering::Relaxed);
        if polled_at != 0 && self.watch.is_on() {
            self.wake();
        }
    }

    /// Whether the application has polled in vain since then.
    pub(super) fn polled_since(&self, then: Instant) -> bool {
        self.polled_at.load(Ordering::Relaxed) > then.as_nanos()
    }

    /// Whether the application polled in vain less than `age` ago.
    fn polled_within(&self, age: Duration) -> bool {
        clock::now().since(Instant::from_nanos(self.polled_at.load(Ordering::Relaxed))) < age
    }
}

/// Starts the background thread of a port.
pub fn start(port: Arc<NetPort>) -> std::io::Result<JoinHandle<()>> {
    let run = move || {
        if catch_unwind(AssertUnwindSafe(|| run(&port))).is_err() {
            changes::devices_failed();
        }
    };
    without_signals(|| thread::Builder::new().name("urxe".into()).spawn(run))
}

/// Runs `start` with all signals blocked, which a thread that it starts inherits: none of the application's may be
/// handled by ours.
pub fn without_signals<T>(start: impl FnOnce() -> T) -> T {
    let mut all = MaybeUninit::uninit();
    let mut before = MaybeUninit::uninit();
    // SAFETY: local signal sets.
    unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
    }
    let result = start();
    // SAFETY: the set that the call above filled in.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), std::ptr::null_mut()) };
    result
}

fn run(port: &NetPort) {
    ask_for_promptness();
    let sockets = port.net().epoll_fd();
    let mut acks_wait = false;
    // Packets that were left to who polls, and of which no socket tells.
    let mut is_left = false;
    let mut naps = 0;
    while !port.stop.load(Ordering::Acquire) {
        port.run_timers(clock::now());
        if port.has_unfinished() {
            // Waits for who receives now, if anybody does.
            is_left = port.drain_all(Acks::Leave).is_left;
            continue;
        }
        let readable = is_left || {
            let asleep_at = clock::now();
            let readable = wait(port, sockets, acks_wait.then(habit::patience));
            naps = if readable && clock::now().since(asleep_at) < stretched(NAP) { naps + 1 } else { 0 };
            readable
        };
        if readable && port.polled_within(stretched(BUSY)) {
            is_left = stand_by(port, sockets, is_left);
            acks_wait = false;
        } else if readable || acks_wait {
            let drained = port.drain_all(if readable { Acks::MayWait } else { Acks::Leave });
            (acks_wait, is_left) = (drained.acks_wait, drained.is_left);
            // An application that is told of something wants the processor.
            if !is_left && drained.one_sided && (drained.most >= BURST || naps >= NAPS) {
                match linger(port) {
                    Some(last) => is_left = last.is_left,
                    None => naps = 0,
                }
            }
        }
    }
    if !port.has_lost_descriptors() {
        port.send_acks();
    }
}

/// Looks for the next packets for a while, because to sleep and wake up again takes longer than it takes them to come.
/// What was found last, if any came.
fn linger(port: &NetPort) -> Option<Drained> {
    let mut now = clock::now();
    let linger = stretched(LINGER);
    let mut until = now + linger;
    let mut any = false;
    while now < until && !port.polled_within(stretched(BUSY)) && !port.stop.load(Ordering::Acquire) {
        match port.look_once(now) {
            Some(Drained { one_sided: false, .. }) | None => break,
            Some(Drained { most: 1.., .. }) => {
                until = now + linger;
                any = true;
            }
            Some(_) => {}
        }
        if port.is_any_due(now) {
            port.run_timers(now);
        }
        now = clock::now();
    }
    // And anything that came elsewhere, before it sleeps.
    any.then(|| port.drain_all(Acks::Leave))
}

/// Leaves packets to an application that polls, until it stops; takes only those it left lying. No ACK waits afterwards.
/// `is_left`, and what is returned: there may be packets of which no socket tells.
fn stand_by(port: &NetPort, sockets: RawFd, mut is_left: bool) -> bool {
    let watch = &port.watch;
    watch.begin(clock::now());
    while port.polled_within(stretched(FRESH)) && !port.stop.load(Ordering::Acquire) {
        // Those who poll see to timers as well, or put the watch's off no more.
        let expired = sleep(port, watch.fd(), None);
        if port.stop.load(Ordering::Acquire) {
            break;
        }
        let now = clock::now();
        port.run_timers(now);
        if !expired {
            continue;
        }
        if !watch.has_expired(now) {
            watch.renew();
            continue;
        }
        port.send_overdue_acks();
        if is_left || is_readable(sockets, Duration::ZERO) {
            is_left = port.drain_all(Acks::MayWait).is_left;
            watch.begin(clock::now());
        } else {
            watch.put_off(now);
        }
    }
    watch.end();
    if !port.has_lost_descriptors() {
        port.send_acks();
    }
    is_left
}

/// Asks the kernel to let the calling thread run soon after it wakes, and to wake it on time.
pub fn ask_for_promptness() {
    /// `struct sched_attr` (sched_setattr(2)) as of Linux 4.14.
    #[repr(C)]
    #[derive(Default)]
    struct SchedAttr {
        size: u32,
        policy: u32,
        flags: u64,
        nice: i32,
        priority: u32,
        runtime: u64,
        deadline: u64,
        period: u64,
        util_min: u32,
        util_max: u32,
    }
    // SAFETY: asks only, and needs no memory of ours.
    let nice = unsafe { libc::getpriority(libc::PRIO_PROCESS, 0) };
    let attr = SchedAttr {
        size: u32::try_from(size_of::<SchedAttr>()).unwrap_or_default(),
        policy: libc::SCHED_OTHER.cast_unsigned(),
        nice,
        // Linux 6.12 and later take it as the slice; earlier ones ignore it.
        runtime: u64::try_from(SLICE.as_nanos()).unwrap_or_default(),
        ..SchedAttr::default()
    };
    // Both are wishes: nothing depends on whether they are granted.
    // SAFETY: a structure of the size it says; the other call takes plain numbers.
    unsafe {
        libc::syscall(libc::SYS_sched_setattr, 0, &raw const attr, 0);
        libc::prctl(libc::PR_SET_TIMERSLACK, 1);
    }
}

/// Whether the descriptor is readable, or becomes so within this time.
fn is_readable(fd: RawFd, within: Duration) -> bool {
    let mut polled = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    let limit = timespec(within);
    // SAFETY: one entry, and a time that outlives the call.
    unsafe { libc::ppoll(&raw mut polled, 1, &raw const limit, std::ptr::null()) > 0 }
}

fn timespec(time: Duration) -> libc::timespec {
    libc::timespec { tv_sec: time.as_secs().cast_signed(), tv_nsec: i64::from(time.subsec_nanos()) }
}

/// Sleeps until a socket is readable, somebody kicks, a timer is due, or `most` is over. True if a socket is readable.
//= spec/hosts.md#net-008
//# A device on which nothing happens MUST NOT wake anything.
fn wait(port: &NetPort, sockets: RawFd, most: Option<Duration>) -> bool {
    let now = clock::now();
    let limit = most.map(|most| now + most);
    // Say how long before looking at the timers, so that one set meanwhile either is seen or kicks.
    port.slumber.begin(limit);
    let until = [port.next_timer(), limit].into_iter().flatten().min();
    let readable = sleep(port, sockets, until.map(|until| until.since(now)));
    port.slumber.end();
    readable
}

/// Sleeps until the descriptor is readable or somebody kicks, for so long at most. True if it is readable.
fn sleep(port: &NetPort, fd: RawFd, most: Option<Duration>) -> bool {
    let mut polled = [port.kick_fd(), fd].map(|fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 });
    let timeout = most.map(timespec);
    let timeout = timeout.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: an array of that many entries; a null timeout waits without end.
    unsafe { libc::ppoll(polled.as_mut_ptr(), 2, timeout, std::ptr::null()) };
    // What is readable may be somebody else's.
    if port.has_lost_descriptors() {
        return false;
    }
    let [kick, other] = polled;
    if kick.revents != 0 {
        let mut count = [0_u8; 8];
        // SAFETY: eight bytes from our eventfd, which does not block.
        unsafe { libc::read(kick.fd, count.as_mut_ptr().cast(), count.len()) };
    }
    other.revents != 0
}
