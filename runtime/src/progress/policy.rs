//! Decisions about progress: when a poll reads the clock, yields or parks, and when the progress thread leaves packets to
//! polls, spins or sleeps.
//!
//! The policy keeps no thread, makes no system calls but those of the watchdog's timer and getrusage(2), and changes nothing of the
//! application's threads. It is told what happened and when; its decisions depend on nothing else but [`contention`](super::contention).
//!
//! Whether an ACK is delayed is decided beside the policy, for each queue pair by itself (`delayed_ack`): it depends on how
//! promptly the application answers on that queue pair. The watchdog's timer is a timerfd, which the progress thread waits for.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use urxe_engine::{Clock, Instant};

use super::clock_sampler::ClockSampler;
use super::contended::Contended;
use super::poll_backoff::{Backoff, PollBackoff};
use super::poll_watchdog::PollWatchdog;
use super::several_devices;
use super::time_scale::scaled;
use super::tuning::TUNING;

/// Policy of one device.
#[derive(Debug)]
pub(crate) struct ProgressPolicy {
    clock_sampler: ClockSampler,
    backoff: PollBackoff,
    /// Timer by which the progress thread learns that polling has stopped.
    pub(crate) watchdog: PollWatchdog,
    /// Time of the last empty poll, in nanoseconds.
    polled_at: AtomicU64,
    /// Thread of that poll, where there are several devices.
    polled_by: AtomicUsize,
    contended: Contended,
    /// A poll has left ACKs to the progress thread, which may sleep.
    has_left_acks: AtomicBool,
    /// The progress thread has the receive token.
    is_thread_receiving: AtomicBool,
}

impl ProgressPolicy {
    /// Policy of a device that nobody has polled.
    ///
    /// # Errors
    /// The system refuses a timer.
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self {
            clock_sampler: ClockSampler::default(),
            backoff: PollBackoff::default(),
            watchdog: PollWatchdog::new()?,
            polled_at: AtomicU64::new(0),
            polled_by: AtomicUsize::new(0),
            contended: Contended::default(),
            has_left_acks: AtomicBool::new(false),
            is_thread_receiving: AtomicBool::new(false),
        })
    }

    /// Decides whether a poll reads the clock.
    #[inline]
    pub(crate) fn reads_clock(&self) -> bool {
        !self.clock_sampler.may_skip()
    }

    /// Records that a poll has read the clock.
    pub(crate) fn clock_read(&self, now: Instant) {
        self.clock_sampler.looked(now);
    }

    /// Records that a poll found packets; `now` if it has read the clock.
    pub(crate) fn poll_found(&self, now: Option<Instant>) {
        several_devices::found(now);
        self.contended.found();
        match now {
            Some(now) => self.backoff.found(now),
            None => self.backoff.found_unseen(),
        }
    }

    /// Records that a poll has parked until now.
    pub(crate) fn poll_parked(&self, now: Instant) {
        self.backoff.found(now);
    }

    /// Records the number of packets that a poll of a spinning application found.
    pub(crate) fn packets_found(&self, packets: usize, clock: &impl Clock) {
        self.watchdog.found(packets, clock);
    }

    /// Decides what an empty poll does next.
    pub(crate) fn poll_empty(&self, now: Instant) -> Backoff {
        let next = self.backoff.found_nothing(now);
        if next != Backoff::Spin && several_devices::found_within(now, scaled(TUNING.yield_after)) {
            // Asked again when that time is over.
            self.backoff.found(now);
            return Backoff::Spin;
        }
        // Where others want the processor, a thread that gives way gets it back when they have used up their time. One that only sends has
        // its packets taken meanwhile, and does better without a sleep.
        if next == Backoff::Spin || !self.contended.is_on_at(now) {
            return next;
        }
        if self.contended.spins() {
            self.backoff.found(now);
            return Backoff::Spin;
        }
        Backoff::Park
    }

    /// Looks whether the calling thread, which has answered late, loses its processor to others. `spins`: this end of the connection is
    /// the one that spins then while it waits.
    pub(crate) fn answers_late(&self, now: Instant, spins: bool) -> bool {
        self.contended.answers_late(now, spins)
    }

    /// Records that a poll has handed out completions: it may be the last for long, where the application waits for a change of its memory.
    #[inline]
    pub(crate) fn completed(&self) {
        self.contended.completed();
    }

    /// Records that completions of some queue pair may be waited for in sleep.
    pub(crate) fn may_sleep(&self) {
        self.contended.may_sleep();
    }

    /// Tells whether packets are left to an application that has lost its processor while it polled.
    pub(crate) fn leaves_packets(&self, now: Instant) -> bool {
        // Others' time slices are no longer on a slow machine.
        self.contended.leaves(now) && now.since(self.polled_at()) < TUNING.polling_contended
    }

    /// Has packets taken at once for a while, as another host sends.
    pub(crate) fn leave_none(&self, now: Instant) {
        self.contended.leave_none(now);
    }

    /// Records that a poll has left ACKs to the progress thread.
    pub(crate) fn leave_acks(&self) {
        self.has_left_acks.store(true, Ordering::Relaxed);
    }

    /// Tells whether a poll has left ACKs to the progress thread since the last question.
    pub(crate) fn takes_acks(&self) -> bool {
        self.has_left_acks.load(Ordering::Relaxed) && self.has_left_acks.swap(false, Ordering::Relaxed)
    }

    /// Records whether the progress thread has the receive token.
    pub(crate) fn thread_receives(&self, receives: bool) {
        self.is_thread_receiving.store(receives, Ordering::Relaxed);
    }

    /// Tells whether the progress thread has the receive token, as of lately.
    pub(crate) fn is_thread_receiving(&self) -> bool {
        self.is_thread_receiving.load(Ordering::Relaxed)
    }

    /// Tells whether a thread that answers has lost its processor to others lately.
    pub(crate) fn is_contended(&self) -> bool {
        self.contended.is_on()
    }

    /// Tells whether contention lasts at `now`, and forgets it when it is over.
    pub(crate) fn is_contended_at(&self, now: Instant) -> bool {
        self.contended.is_on_at(now)
    }

    /// Time for which an ACK waits.
    pub(crate) fn delayed_ack_timeout(&self) -> Duration {
        // Who waits for a processor waits for slices of the scheduler, which are no longer on a slow machine.
        if self.is_contended() { TUNING.delayed_ack_timeout_contended } else { scaled(TUNING.delayed_ack_timeout) }
    }

    /// Time after which it is looked at whether an ACK has waited long enough.
    pub(crate) fn delayed_ack_period(&self) -> Duration {
        self.delayed_ack_timeout().min(TUNING.watchdog_last)
    }

    /// Records how long a yield took.
    pub(crate) fn yielded(&self, before: Instant, after: Instant) {
        self.backoff.yielded(before, after);
    }

    /// Records that the application polls until `until`, as of `now`.
    pub(crate) fn polls(&self, now: Instant, until: Instant) {
        self.contended.polls(now, self.polled_at.load(Ordering::Relaxed));
        self.polled_at.store(until.as_nanos(), Ordering::Relaxed);
        if several_devices::are_several() {
            self.polled_by.store(several_devices::this_thread(), Ordering::Relaxed);
        }
        self.watchdog.put_off(now);
    }

    /// Tells whether the calling thread still polls, and was the last that did.
    pub(crate) fn is_polled_here(&self, now: Instant) -> bool {
        self.is_polling(now) && self.polled_by.load(Ordering::Relaxed) == several_devices::this_thread()
    }

    /// Records that the application has stopped polling; returns whether the progress thread is to be told.
    pub(crate) fn stops_polling(&self) -> bool {
        self.polled_at.swap(0, Ordering::Relaxed) != 0 && self.watchdog.is_on()
    }

    /// Tells whether the application has polled in vain since `then`.
    pub(crate) fn polled_since(&self, then: Instant) -> bool {
        self.polled_at.load(Ordering::Relaxed) > then.as_nanos()
    }

    fn polled_within(&self, now: Instant, age: Duration) -> bool {
        now.since(self.polled_at()) < scaled(age)
    }

    fn polled_at(&self) -> Instant {
        Instant::from_nanos(self.polled_at.load(Ordering::Relaxed))
    }

    /// Tells whether the application still polls, so that the progress thread leaves packets to it.
    pub(crate) fn is_polling(&self, now: Instant) -> bool {
        self.polled_within(now, TUNING.polling) || self.leaves_packets(now)
    }

    /// Tells whether the application polls at this moment.
    pub(crate) fn is_busy_polling(&self, now: Instant) -> bool {
        self.polled_within(now, TUNING.busy_polling)
    }

    /// Tells whether the application has polled so lately that raw frames are left to it.
    pub(crate) fn is_polling_frames(&self, now: Instant) -> bool {
        self.polled_within(now, TUNING.polling_frames)
    }

    /// Counts short sleeps in a row: `before`, and one that took `slept` and ended with packets if `is_readable`.
    pub(crate) fn short_sleeps(before: u32, slept: Duration, is_readable: bool) -> u32 {
        if is_readable && slept < scaled(TUNING.short_sleep) { before + 1 } else { 0 }
    }

    /// Decides how long the progress thread spins before it sleeps, after at most `packets` at once and this many short
    /// sleeps in a row.
    pub(crate) fn spin_before_sleep(packets: usize, short_sleeps: u32) -> Option<Duration> {
        (packets >= TUNING.burst || short_sleeps >= TUNING.short_sleeps).then(|| scaled(TUNING.spin_before_sleep))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(micros: u64) -> Instant {
        Instant::from_nanos(1_000_000_000 + 1000 * micros)
    }

    #[test]
    fn the_progress_thread_keeps_away_while_the_application_polls() {
        let policy = ProgressPolicy::new().unwrap();
        assert!(!policy.is_polling(at(0)) && !policy.is_busy_polling(at(0)));
        policy.polls(at(0), at(0));
        assert!(!policy.polled_since(at(0)) && policy.is_busy_polling(at(59)));
        assert!(!policy.is_busy_polling(at(60)) && policy.is_polling(at(249)) && !policy.is_polling(at(250)));
        assert!(!policy.stops_polling(), "nobody watches");
        assert!(!policy.is_polling(at(10)));
        policy.watchdog.begin(at(0));
        policy.polls(at(20), at(20));
        assert!(policy.stops_polling() && !policy.stops_polling(), "the thread is told once");
    }

    #[test]
    fn raw_frames_are_left_to_an_application_for_longer() {
        let policy = ProgressPolicy::new().unwrap();
        assert!(!policy.is_polling_frames(at(0)), "it has never polled");
        policy.polls(at(0), at(0));
        assert!(!policy.is_polling(at(9_999)) && policy.is_polling_frames(at(9_999)));
        assert!(!policy.is_polling_frames(at(10_000)));
        policy.polls(at(20_000), at(20_000));
        policy.stops_polling();
        assert!(!policy.is_polling_frames(at(20_001)), "it waits for an event");
    }

    #[test]
    fn a_thread_that_finds_something_at_another_device_spins_on() {
        several_devices::note_several();
        let (busy, idle) = (ProgressPolicy::new().unwrap(), ProgressPolicy::new().unwrap());
        idle.poll_empty(at(0));
        busy.poll_found(Some(at(30)));
        assert_eq!(idle.poll_empty(at(40)), Backoff::Spin);
        assert_eq!(idle.poll_empty(at(79)), Backoff::Spin, "asked again later");
        assert_eq!(idle.poll_empty(at(80)), Backoff::Yield, "nothing has been found for long");
        idle.poll_parked(at(600));
        assert_eq!(idle.poll_empty(at(640)), Backoff::Yield, "nor while it was parked");
    }

    #[test]
    fn polls_park_for_a_while_after_an_answer_that_had_to_wait_for_the_processor() {
        let policy = ProgressPolicy::new().unwrap();
        let idle = |from: u64| {
            policy.poll_found(Some(at(from)));
            policy.poll_empty(at(from) + TUNING.yield_after)
        };
        assert_eq!(idle(0), Backoff::Yield);
        assert_eq!(policy.delayed_ack_timeout(), TUNING.delayed_ack_timeout);
        policy.contended.set(at(0) + TUNING.contention_lasts, false);
        assert_eq!(idle(1000), Backoff::Park);
        assert_eq!(policy.delayed_ack_timeout(), TUNING.delayed_ack_timeout_contended);
        assert_eq!(policy.delayed_ack_period(), TUNING.watchdog_last);
        policy.contended.set(at(0) + TUNING.contention_lasts, true);
        assert_eq!(idle(2000), Backoff::Spin, "the other end parks");
        assert_eq!(idle(200_000), Backoff::Yield, "long ago");
        assert!(!policy.is_contended());
    }

    #[test]
    fn packets_are_left_to_an_application_that_has_lost_its_processor() {
        let policy = ProgressPolicy::new().unwrap();
        policy.polls(at(0), at(0));
        assert!(!policy.leaves_packets(at(1)), "nobody has lost anything");
        policy.contended.set(at(0) + TUNING.contention_lasts, true);
        (0..TUNING.vain_polls).for_each(|_| policy.polls(at(0), at(0)));
        assert!(policy.leaves_packets(at(59_999)) && policy.is_polling(at(59_999)));
        assert!(!policy.leaves_packets(at(60_000)) && !policy.is_polling(at(60_000)));
        policy.completed();
        assert!(!policy.leaves_packets(at(1)), "it may look at its memory now");
        (0..TUNING.vain_polls).for_each(|_| policy.polls(at(10), at(10)));
        assert!(policy.leaves_packets(at(11)));
        policy.leave_none(at(11));
        assert!(!policy.leaves_packets(at(12)), "another host sends");
    }

    #[test]
    fn acks_that_are_left_are_told_once() {
        let policy = ProgressPolicy::new().unwrap();
        assert!(!policy.takes_acks());
        policy.leave_acks();
        assert!(policy.takes_acks() && !policy.takes_acks());
    }

    /// A poll that parks says so: the thread waits until the park is over.
    #[test]
    fn a_parked_poll_counts_as_polling() {
        let policy = ProgressPolicy::new().unwrap();
        policy.polls(at(0), at(0) + TUNING.park);
        assert!(policy.is_polling(at(700)) && policy.polled_since(at(400)));
        assert!(!policy.is_polling(at(750)));
    }

    #[test]
    fn the_thread_spins_after_bursts_and_short_sleeps() {
        let micros = Duration::from_micros;
        assert_eq!(ProgressPolicy::spin_before_sleep(1, 0), None);
        assert_eq!(ProgressPolicy::spin_before_sleep(TUNING.burst, 0), Some(TUNING.spin_before_sleep));
        let mut sleeps = 0;
        for _ in 0..TUNING.short_sleeps {
            assert_eq!(ProgressPolicy::spin_before_sleep(1, sleeps), None);
            sleeps = ProgressPolicy::short_sleeps(sleeps, micros(39), true);
        }
        assert_eq!(ProgressPolicy::spin_before_sleep(1, sleeps), Some(TUNING.spin_before_sleep));
        assert_eq!(ProgressPolicy::short_sleeps(sleeps, micros(40), true), 0, "that one was worth it");
        assert_eq!(ProgressPolicy::short_sleeps(sleeps, micros(1), false), 0, "a timer woke it");
    }
}
