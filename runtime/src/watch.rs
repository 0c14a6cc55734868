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

use super::pace::stretched;

/// How soon the thread looks after who ceased to poll at once, and after who polled for long.
const FIRST: Duration = Duration::from_micros(20);
pub(super) const LAST: Duration = Duration::from_millis(4);

/// Exchanges whose answer came with the ACK that make a habit.
const HABIT: u32 = 4;

/// Whether the background thread watches over those who poll, and when it looks.
#[derive(Debug)]
pub(super) struct Watch {
    /// timerfd(2).
    timer: CheckedFd,
    /// When the timer expires, in nanoseconds; 0 while nobody watches.
    until: AtomicU64,
    /// For how long it is put off, in nanoseconds.
    span: AtomicU64,
    /// Polls in a row that found an ACK and the peer's answer together.
    pairs: AtomicU32,
}

impl Watch {
    pub(super) fn new() -> io::Result<Self> {
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
    pub(super) fn fd(&self) -> RawFd {
        self.timer.as_raw_fd()
    }

    /// Whether the thread watches.
    pub(super) fn is_on(&self) -> bool {
        self.until.load(Ordering::Relaxed) != 0
    }

    /// Whether nobody has put the timer off in time.
    pub(super) fn has_expired(&self, now: Instant) -> bool {
        self.until.load(Ordering::Relaxed) <= now.as_nanos()
    }

    /// The thread begins to watch, or to look often again.
    pub(super) fn begin(&self, now: Instant) {
        let first = stretched(FIRST);
        self.span.store(nanos(first), Ordering::Relaxed);
        let until = now + first;
        self.until.store(until.as_nanos(), Ordering::Relaxed);
        self.arm(until);
    }

    /// A poll found so many packets, one at least. When answers used to come along with ACKs, and now there is one packet
    /// alone, the application may cease to poll and wait for the answer to appear in its memory: the thread looks soon.
    pub(super) fn found(&self, packets: usize, clock: &impl Clock) {
        if packets == 2 {
            self.pairs.store(self.pairs.load(Ordering::Relaxed).saturating_add(1), Ordering::Relaxed);
        } else if self.pairs.swap(0, Ordering::Relaxed) >= HABIT {
            self.renew_if_on(clock.now(), stretched(FIRST));
        }
    }

    /// The timer expired, though it had been put off: by two at once, of whom the later was overtaken.
    pub(super) fn renew(&self) {
        self.arm(Instant::from_nanos(self.until.load(Ordering::Relaxed)));
    }

    /// The thread watches no more.
    pub(super) fn end(&self) {
        self.until.store(0, Ordering::Relaxed);
    }

    /// Somebody polls: there is nothing to look after for a while, if anybody watches at all.
    pub(super) fn put_off(&self, now: Instant) {
        let until = self.until.load(Ordering::Relaxed);
        if until == 0 {
            return;
        }
        let span = self.span.load(Ordering::Relaxed);
        if until.saturating_sub(now.as_nanos()) >= span / 8 {
            return;
        }
        self.renew_if_on(now, Duration::from_nanos(span * 2).min(LAST));
    }

    fn renew_if_on(&self, now: Instant, span: Duration) {
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

    /// For a forked child.
    pub(super) fn close_in_child(&self) {
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

    fn is_readable(watch: &Watch, milliseconds: i32) -> bool {
        let mut polled = libc::pollfd { fd: watch.fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one entry.
        unsafe { libc::poll(&raw mut polled, 1, milliseconds) > 0 }
    }

    #[test]
    fn without_a_watch_nothing_is_put_off() {
        let watch = Watch::new().unwrap();
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
        let watch = Watch::new().unwrap();
        watch.begin(clock::now());
        assert!(is_readable(&watch, 10_000), "the timer of a watch expires");
        assert!(watch.has_expired(clock::now()));
        watch.put_off(clock::now() + Duration::from_secs(100));
        assert!(!watch.has_expired(clock::now()) && !is_readable(&watch, 0), "it was put off");
    }

    #[test]
    fn it_is_put_off_when_little_time_is_left_for_ever_longer() {
        let watch = Watch::new().unwrap();
        let until = || watch.until.load(Ordering::Relaxed);
        // Far enough ahead for the timer not to matter.
        let mut now = clock::now() + Duration::from_secs(100);
        watch.begin(now);
        watch.put_off(now);
        assert_eq!(until(), (now + FIRST).as_nanos(), "nearly all of its time is left");
        let mut span = FIRST;
        while span < LAST {
            now = Instant::from_nanos(until() - nanos(span) / 16);
            watch.put_off(now);
            span = (2 * span).min(LAST);
            assert_eq!(until(), (now + span).as_nanos());
        }
        now = Instant::from_nanos(until());
        watch.put_off(now);
        assert_eq!(until(), (now + LAST).as_nanos(), "not longer than that");
    }

    #[test]
    fn an_answer_that_does_not_come_as_it_used_to_is_looked_after() {
        let watch = Watch::new().unwrap();
        let until = || watch.until.load(Ordering::Relaxed);
        let mut now = clock::now() + Duration::from_secs(100);
        watch.begin(now);
        for found in [1, 2, 2, 1, 2, 2, 2, 3, 1] {
            watch.found(found, &(now + FIRST));
            assert_eq!(until(), (now + FIRST).as_nanos(), "that was no habit");
        }
        for _ in 0..HABIT {
            watch.found(2, &now);
        }
        now = now + LAST;
        watch.found(1, &now);
        assert_eq!(until(), (now + FIRST).as_nanos());
        watch.end();
        for found in [2, 2, 2, 2, 1] {
            watch.found(found, &now);
        }
        assert!(!watch.is_on());
    }
}
