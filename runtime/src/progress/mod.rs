//! Progress: by a polling application itself, or else by the background thread.
//!
//! While an application polls, a thread that woke for every packet would only take its processor away. So an empty poll
//! records the time ([`Device::polled`]). A thread that wakes for a packet soon after that time leaves the sockets
//! alone and sleeps until polling has stopped: a timer tells, which polls put off (`poll_watchdog`). Then the thread
//! goes back to waiting for packets. An application that asks for an event is about to sleep: that ends the watch at
//! once.
//!
//! Some applications poll for a moment and then spin on their memory, waiting for an RDMA WRITE. A packet that is there
//! when the timer expires is for the thread to process; and the timer expires sooner when the answer takes longer than
//! usual.
//!
//! An ACK may wait for the application's next request (`delayed_ack`). A poll that delays an ACK may be the
//! application's last; so polls delay ACKs only while the thread watches, or have it do so, and the thread sends overdue ACKs when the
//! timer expires. For packets that the thread receives itself, it waits that short time.
//!
//! Packets that concern no application (one-sided operations) often follow one another sooner than a thread falls asleep
//! and wakes up. After a burst of them, and where sleeping has been short several times in a row, the thread looks for
//! the next for a moment before it sleeps.
//!
//! One thread at a time receives, for all: those that poll meanwhile let it have the processor (`polls_in_vain`).
//!
//! Where the application's thread loses its processor to others, polling has not stopped when nobody polls (`contended`).
//!
//! When nothing happens, nothing wakes up: the thread waits for packets and timers without end.

mod clock_sampler;
mod contended;
mod contention;
pub(crate) mod delayed_ack;
pub(crate) mod policy;
mod poll_backoff;
mod poll_watchdog;
pub(crate) mod polls_in_vain;
pub(crate) mod several_devices;
pub(crate) mod sleep_deadline;
mod time_scale;
pub mod tuning;

use std::iter;
use std::os::fd::RawFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use urxe_engine::Instant;
use urxe_net::cancellation::CancelGuard;

use super::clock::LazyInstant;
use super::device::{Device, Drained, FEW};
use super::threads::{ask_for_promptness, without_signals};
use super::{clock, fork, port_events, sanitizer};
use delayed_ack::AckMode;
use policy::ProgressPolicy;
use poll_backoff::Backoff;
use tuning::TUNING;

/// Devices beside its own that a parked poll watches.
const MOST_BESIDE: usize = 15;

impl Device {
    /// Makes progress in the thread of an application that has found its completion queue empty.
    pub fn polled(&self, going_to_sleep: bool) {
        if clock::is_virtual() {
            return self.polled_in_virtual_time();
        }
        let acks = if going_to_sleep { AckMode::Immediate } else { AckMode::Delay };
        let looks = going_to_sleep || self.policy.reads_clock();
        let clock = if looks { LazyInstant::from(clock::now()) } else { LazyInstant::default() };
        let packets = self.progress(acks, &clock);
        if packets > 0 {
            self.found(packets, going_to_sleep, &clock);
        }
        let Some(now) = clock.taken() else { return };
        self.policy.clock_read(now);
        let backoff = if packets == 0 { self.policy.poll_empty(now) } else { Backoff::Spin };
        let parks = backoff == Backoff::Park && !going_to_sleep;
        if backoff == Backoff::Yield {
            thread::yield_now();
            let after = clock::now();
            contention::yielded(after.since(now));
            self.policy.yielded(now, after);
        }
        if !going_to_sleep {
            // A poll that parks is a poll until the park is over.
            self.policy.polls(now, if parks { now + TUNING.park } else { now });
        }
        if self.is_any_due(now) {
            self.run_timers(now);
        }
        if parks {
            self.park();
        }
    }

    /// Takes what has come, or else goes on to the next timer. Nothing is on the way then: packets of a process to itself arrive
    /// before they are sent, so to say, and nobody else does anything.
    #[cold]
    fn polled_in_virtual_time(&self) {
        if self.progress(AckMode::Immediate, &LazyInstant::from(clock::now())) > 0 {
            return;
        }
        if self.has_unfinished() {
            self.drain_all(AckMode::Immediate);
            return;
        }
        if let Some(at) = self.next_timer() {
            clock::advance_to(at);
            self.run_timers(clock::now());
        }
    }

    /// Sleeps until something comes, for a moment at most, and takes it. What comes to another device that the application polls ends the
    /// sleep, too.
    #[cold]
    fn park(&self) {
        let _guard = CancelGuard::new();
        let now = clock::now();
        let beside: [Option<Arc<Self>>; MOST_BESIDE] = fork::others(self, |other| other.policy.is_polled_here(now));
        let devices = || iter::once(self).chain(beside.iter().flatten().map(Arc::as_ref));
        if devices().all(Self::prepare_to_wait) {
            // A negative number is no descriptor.
            let mut sockets = [libc::pollfd { fd: -1, events: libc::POLLIN, revents: 0 }; MOST_BESIDE + 1];
            for (socket, device) in sockets.iter_mut().zip(devices()) {
                socket.fd = device.net().epoll_fd();
            }
            wait_for_any(&mut sockets, TUNING.park);
            for (_, device) in sockets.iter().zip(devices()).filter(|(socket, _)| socket.revents != 0) {
                device.woken();
            }
            if sockets[0].revents != 0 {
                self.progress(AckMode::Delay, &LazyInstant::default());
            }
        }
        let after = clock::now();
        contention::parked(after.since(now));
        self.policy.poll_parked(after);
    }

    /// A poll found packets.
    fn found(&self, packets: usize, going_to_sleep: bool, clock: &LazyInstant) {
        if packets > FEW {
            // That has taken its time.
            clock.renew();
        }
        self.policy.poll_found(clock.taken());
        if !going_to_sleep {
            self.policy.packets_found(packets, clock);
        }
    }

    /// A poll found messages that came without packets.
    pub(crate) fn found_directly(&self) {
        self.policy.poll_found(None);
    }

    /// Notes that a poll has handed out completions.
    #[inline]
    pub fn completed(&self) {
        self.policy.completed();
    }

    /// Notes that the application will wait for an event instead of polling.
    pub fn stopped_polling(&self) {
        if self.policy.stops_polling() {
            self.wake();
        }
    }

    /// Whether raw frames wait for the next poll: nobody waits for an ACK of them, as of RoCE's packets.
    fn leaves_frames(&self, now: Instant) -> bool {
        self.raw().leaves_frames() && self.policy.is_polling_frames(now)
    }

    /// Whether the application has polled in vain since then.
    pub(super) fn polled_since(&self, then: Instant) -> bool {
        self.policy.polled_since(then)
    }
}

/// Starts the background thread of a device.
///
/// # Errors
/// `EAGAIN` at the limit of threads or of memory, and what else pthread_create(3) refuses.
pub fn start(device: Arc<Device>) -> std::io::Result<JoinHandle<()>> {
    let run = move || {
        let _unchecked = sanitizer::Unchecked::begin();
        if catch_unwind(AssertUnwindSafe(|| run(&device))).is_err() {
            port_events::devices_failed();
        }
    };
    without_signals(|| thread::Builder::new().name("urxe".into()).spawn(run))
}

fn run(device: &Device) {
    ask_for_promptness();
    let sockets = device.net().epoll_fd();
    let mut acks_wait = false;
    // Packets that were left to who polls, and of which no socket tells.
    let mut is_left = false;
    let mut short_sleeps = 0;
    while !device.stop.load(Ordering::Acquire) {
        device.run_timers(clock::now());
        if device.has_unfinished() {
            // Waits for who receives now, if anybody does.
            is_left = device.drain_all(AckMode::Immediate).is_left;
            continue;
        }
        let readable = is_left || {
            let asleep_at = clock::now();
            let readable = wait(device, sockets, acks_wait.then(|| device.policy.delayed_ack_period()));
            let slept = clock::now().since(asleep_at);
            short_sleeps = ProgressPolicy::short_sleeps(short_sleeps, slept, readable);
            readable
        };
        let now = clock::now();
        let is_contended = device.policy.is_contended_at(now);
        let takes_acks = device.policy.takes_acks();
        if takes_acks || readable && leaves_to_polls(device, now) {
            (acks_wait, is_left) = stand_by(device, sockets, is_left);
        } else if readable || acks_wait {
            let drained = device.drain_all(if readable || is_contended { AckMode::Delay } else { AckMode::Immediate });
            (acks_wait, is_left) = (drained.acks_wait, drained.is_left);
            // An application that is told of something wants the processor.
            if !is_left
                && drained.one_sided
                && !is_contended
                && let Some(spin) = ProgressPolicy::spin_before_sleep(drained.most, short_sleeps)
            {
                match spin_before_sleep(device, spin) {
                    Some(last) => is_left = last.is_left,
                    None => short_sleeps = 0,
                }
            }
        }
    }
    if !device.has_lost_descriptors() {
        device.send_acks();
    }
}

/// Looks for the next packets for a while, because to sleep and wake up again takes longer than it takes them to come.
/// What was found last, if any came.
fn spin_before_sleep(device: &Device, spin: Duration) -> Option<Drained> {
    let mut now = clock::now();
    let mut until = now + spin;
    let mut any = false;
    while now < until && !device.policy.is_busy_polling(now) && !device.stop.load(Ordering::Acquire) {
        match device.look_once(now) {
            Some(Drained { one_sided: false, .. }) | None => break,
            Some(Drained { most: 1.., .. }) => {
                until = now + spin;
                any = true;
            }
            Some(_) => {}
        }
        if device.is_any_due(now) {
            device.run_timers(now);
        }
        now = clock::now();
    }
    // And anything that came elsewhere, before it sleeps.
    any.then(|| device.drain_all(AckMode::Immediate))
}

/// Whether what has come is left to an application that polls.
fn leaves_to_polls(device: &Device, now: Instant) -> bool {
    device.policy.is_busy_polling(now) || device.leaves_frames(now) || leaves_rings(device, now)
}

/// Whether packets of this host's processes are left to an application that has lost its processor. Those of other hosts are answered
/// for it, as a card does.
fn leaves_rings(device: &Device, now: Instant) -> bool {
    let leaves = device.policy.leaves_packets(now);
    if leaves && device.net().is_readable_besides_rings() {
        device.policy.leave_none(now);
        return false;
    }
    leaves
}

/// Leaves packets to an application that polls, until it stops; takes only those it left lying. Returns whether ACKs wait: they do where
/// it may have stopped for want of a processor. `is_left`, and the second that is returned: there may be packets of which no socket tells.
fn stand_by(device: &Device, sockets: RawFd, mut is_left: bool) -> (bool, bool) {
    let watch = &device.policy.watchdog;
    watch.begin(clock::now());
    let polls = |now| device.policy.is_polling(now) || device.leaves_frames(now);
    while polls(clock::now()) && !device.stop.load(Ordering::Acquire) {
        // Those who poll see to timers as well, or put the watch's off no more.
        let expired = sleep(device, watch.fd(), None);
        if device.stop.load(Ordering::Acquire) {
            break;
        }
        let now = clock::now();
        device.run_timers(now);
        if !expired {
            continue;
        }
        if !watch.has_expired(now) {
            watch.renew();
            continue;
        }
        // Before the ACKs: contention that is over is forgotten.
        let leaves_rings = leaves_rings(device, now);
        device.send_overdue_acks();
        if leaves_rings {
            if is_left || is_readable(sockets) {
                // New rings, and those that end: the next poll looks at all.
                device.woken();
            }
            watch.renew_if_on(now, TUNING.watchdog_last);
            continue;
        }
        let has_come = if device.leaves_frames(now) {
            device.net().is_readable_besides_raw()
        } else {
            is_left || is_readable(sockets)
        };
        if has_come {
            is_left = device.drain_all(AckMode::Delay).is_left;
            watch.begin(clock::now());
        } else {
            watch.put_off(now);
        }
    }
    watch.end();
    if device.has_lost_descriptors() {
        return (false, is_left);
    }
    let acks_wait = device.policy.is_contended() && device.do_acks_wait();
    if !acks_wait {
        device.send_acks();
    }
    (acks_wait, is_left)
}

/// Whether the descriptor is readable.
fn is_readable(fd: RawFd) -> bool {
    let mut polled = [libc::pollfd { fd, events: libc::POLLIN, revents: 0 }];
    wait_for_any(&mut polled, Duration::ZERO);
    polled[0].revents != 0
}

/// Sleeps until one of the descriptors is readable, for so long at most.
fn wait_for_any(polled: &mut [libc::pollfd], most: Duration) {
    let limit = timespec(most);
    // SAFETY: as many entries as there are, and a time that outlives the call. Nothing is readable if it fails.
    unsafe { libc::ppoll(polled.as_mut_ptr(), polled.len() as libc::nfds_t, &raw const limit, std::ptr::null()) };
}

fn timespec(time: Duration) -> libc::timespec {
    libc::timespec { tv_sec: time.as_secs().cast_signed(), tv_nsec: i64::from(time.subsec_nanos()) }
}

/// Sleeps until a socket is readable, somebody kicks, a timer is due, or `most` is over. True if a socket is readable.
//= spec/hosts.md#net-008
//# A device on which nothing happens MUST NOT wake anything.
fn wait(device: &Device, sockets: RawFd, most: Option<Duration>) -> bool {
    let now = clock::now();
    let limit = most.map(|most| now + most);
    // Say how long before looking at the timers, so that one set meanwhile either is seen or kicks.
    device.sleep_deadline.begin(limit);
    let until = [device.next_timer(), limit].into_iter().flatten().min();
    let readable = sleep(device, sockets, until.map(|until| until.since(now)));
    device.sleep_deadline.end();
    readable
}

/// Sleeps until the descriptor is readable or somebody kicks, for so long at most. True if it is readable.
fn sleep(device: &Device, fd: RawFd, most: Option<Duration>) -> bool {
    let mut polled = [device.kick_fd(), fd].map(|fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 });
    let timeout = most.map(timespec);
    let timeout = timeout.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: an array of that many entries; a null timeout waits without end.
    unsafe { libc::ppoll(polled.as_mut_ptr(), 2, timeout, std::ptr::null()) };
    // What is readable may be somebody else's.
    if device.has_lost_descriptors() {
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
