//! The timer by which the background thread learns that polling has stopped.
//!
//! Those who poll put it off when little of its time is left. As long as they do, it does not expire, and the thread
//! sleeps. Its time begins short, because a packet may have come for somebody who has just ceased to poll, and doubles
//! each time it is put off, because that is not cheap: in a virtual machine 7 µs, if the timer becomes or was the next to
//! expire on its processor.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use urxe_engine::{Clock, Instant};
use urxe_net::identity::CheckedFd;

use super::time_scale::scaled;
use super::tuning::TUNING;

/// Whether the background thread watches over those who poll, and when it looks.
#[derive(Debug)]
pub(crate) struct PollWatchdog {
    /// timerfd(2).
    timer: CheckedFd,
    /// When the timer expires, in nanoseconds; 0 while nobody watches.
    until: AtomicU64,
    /// For how long it is put off, in nanoseconds.
    span: AtomicU64,
    /// Polls in a row that found an ACK and the peer's answer together.
    pairs: AtomicU32,
}

impl PollWatchdog {
    pub(crate) fn new() -> io::Result<Self> {
        // SAFETY: no pointers.
        let fd = unsafe { libc::timerfd_create(libc::CLOCK_MONOTONIC, libc::TFD_CLOEXEC | libc::TFD_NONBLOCK) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: new, and ours.
        let timer = unsafe { OwnedFd::from_raw_fd(fd) };
        let timer = timer.into();
        Ok(Self { timer, until: AtomicU64::new(0), span: AtomicU64::new(0), pairs: AtomicU32::new(0) })
    }

    /// Readable when nobody has put the timer off in time.
    pub(crate) fn fd(&self) -> RawFd {
        self.timer.as_raw_fd()
    }

    /// Whether the thread watches.
    pub(crate) fn is_on(&self) -> bool {
        self.until.load(Ordering::Relaxed) != 0
    }

    /// Whether nobody has put the timer off in time.
    pub(crate) fn has_expired(&self, now: Instant) -> bool {
        self.until.load(Ordering::Relaxed) <= now.as_nanos()
    }

    /// The thread begins to watch, or to look often again.
    pub(crate) fn begin(&self, now: Instant) {
        let first = scaled(TUNING.watchdog_first);
        self.span.store(nanos(first), Ordering::Relaxed);
        let until = now + first;
        self.until.store(until.as_nanos(), Ordering::Relaxed);
        self.arm(until);
    }

    /// A poll found so many packets, one at least. When answers used to come along with ACKs, and now there is one packet
    /// alone, the application may cease to poll and wait for the answer to appear in its memory: the thread looks soon.
    pub(crate) fn found(&self, packets: usize, clock: &impl Clock) {
        if packets == 2 {
            self.pairs.store(self.pairs.load(Ordering::Relaxed).saturating_add(1), Ordering::Relaxed);
        } else if self.pairs.swap(0, Ordering::Relaxed) >= TUNING.watchdog_pairs {
            self.renew_if_on(clock.now(), scaled(TUNING.watchdog_first));
        }
    }

    /// The timer expired, though it had been put off: by two at once, of whom the later was overtaken.
    pub(crate) fn renew(&self) {
        self.arm(Instant::from_nanos(self.until.load(Ordering::Relaxed)));
    }

    /// The thread watches no more.
    pub(crate) fn end(&self) {
        self.until.store(0, Ordering::Relaxed);
    }

    /// Puts the expiry off: a thread polls, and there is nothing to look after for a while, if anybody watches at all.
    pub(crate) fn put_off(&self, now: Instant) {
        let until = self.until.load(Ordering::Relaxed);
        if until == 0 {
            return;
        }
        let span = self.span.load(Ordering::Relaxed);
        if until.saturating_sub(now.as_nanos()) >= span / 8 {
            return;
        }
        self.renew_if_on(now, Duration::from_nanos(span * 2).min(TUNING.watchdog_last));
    }

    /// Has the timer expire after `span`, if the thread watches.
    pub(crate) fn renew_if_on(&self, now: Instant, span: Duration) {
        let (until, new) = (self.until.load(Ordering::Relaxed), now + span);
        // Not if the thread has just ended it, or another thread polls as well.
        let exchanged = || self.until.compare_exchange(until, new.as_nanos(), Ordering::Relaxed, Ordering::Relaxed);
        if until != 0 && exchanged().is_ok() {
            self.span.store(nanos(span), Ordering::Relaxed);
            self.arm(new);
        }
    }

    fn arm(&self, at: Instant) {
        let at = Duration::from_nanos(at.as_nanos());
        let value = libc::timespec { tv_sec: at.as_secs().cast_signed(), tv_nsec: i64::from(at.subsec_nanos()) };
        let zero = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        let spec = libc::itimerspec { it_interval: zero, it_value: value };
        // SAFETY: a time to read; none is asked for. It cannot fail with a timer of ours and a valid time.
        unsafe { libc::timerfd_settime(self.fd(), libc::TFD_TIMER_ABSTIME, &raw const spec, std::ptr::null_mut()) };
    }

    /// Closes a forked child's copy of the timer.
    pub(crate) fn close_in_child(&self) {
        if self.timer.is_ours() {
            // SAFETY: this process will not use it.
            unsafe { libc::close(self.fd()) };
        }
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock;

    fn is_readable(watch: &PollWatchdog, milliseconds: i32) -> bool {
        let mut polled = libc::pollfd { fd: watch.fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one entry.
        unsafe { libc::poll(&raw mut polled, 1, milliseconds) > 0 }
    }

    #[test]
    fn without_a_watch_nothing_is_put_off() {
        let watch = PollWatchdog::new().unwrap();
        watch.put_off(clock::now());
        assert!(!watch.is_on() && !is_readable(&watch, 0));
        watch.begin(clock::now());
        assert!(watch.is_on());
        watch.end();
        watch.put_off(clock::now());
        assert!(!watch.is_on());
    }

    #[test]
    fn the_timer_expires_when_nobody_puts_it_off() {
        let watch = PollWatchdog::new().unwrap();
        watch.begin(clock::now());
        assert!(is_readable(&watch, 60_000), "the timer of a watch expires");
        assert!(watch.has_expired(clock::now()));
        watch.put_off(clock::now() + Duration::from_secs(100));
        assert!(!watch.has_expired(clock::now()) && !is_readable(&watch, 0), "it was put off");
    }

    #[test]
    fn watchdog_restarts_when_little_time_is_left_for_ever_longer() {
        let watch = PollWatchdog::new().unwrap();
        let until = || watch.until.load(Ordering::Relaxed);
        // Far enough ahead for the timer not to matter.
        let mut now = clock::now() + Duration::from_secs(100);
        watch.begin(now);
        watch.put_off(now);
        assert_eq!(until(), (now + TUNING.watchdog_first).as_nanos(), "nearly all of its time is left");
        let mut span = TUNING.watchdog_first;
        while span < TUNING.watchdog_last {
            now = Instant::from_nanos(until() - nanos(span) / 16);
            watch.put_off(now);
            span = (2 * span).min(TUNING.watchdog_last);
            assert_eq!(until(), (now + span).as_nanos());
        }
        now = Instant::from_nanos(until());
        watch.put_off(now);
        assert_eq!(until(), (now + TUNING.watchdog_last).as_nanos(), "not longer than that");
    }

    #[test]
    fn an_answer_that_does_not_come_as_it_used_to_is_looked_after() {
        let watch = PollWatchdog::new().unwrap();
        let until = || watch.until.load(Ordering::Relaxed);
        let mut now = clock::now() + Duration::from_secs(100);
        watch.begin(now);
        for found in [1, 2, 2, 1, 2, 2, 2, 3, 1] {
            watch.found(found, &(now + TUNING.watchdog_first));
            assert_eq!(until(), (now + TUNING.watchdog_first).as_nanos(), "too few pairs to learn from");
        }
        for _ in 0..TUNING.watchdog_pairs {
            watch.found(2, &now);
        }
        now = now + TUNING.watchdog_last;
        watch.found(1, &now);
        assert_eq!(until(), (now + TUNING.watchdog_first).as_nanos());
        watch.end();
        for found in [2, 2, 2, 2, 1] {
            watch.found(found, &now);
        }
        assert!(!watch.is_on());
    }
}
