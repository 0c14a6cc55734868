//! When an ACK waits for the application's next request.
//!
//! An application that answers each message at once is the usual case where latency matters, and there an ACK that
//! leaves by itself costs a system call at both ends and makes the peer look twice. So the ACK of such a queue pair waits
//! for a moment ([`patience`]), and the next request takes it along in one run of packets. Whoever let it wait sees to it that it
//! leaves in time: see [`progress`](super::progress).
//!
//! No ACK waits on a queue pair that does not answer, or not that fast: habits are learnt from what was done before.

use std::time::Duration;

use urxe_engine::{Clock as _, Instant};

use super::clock::Look;
use super::pace::stretched;
use super::port::Acks;

/// For how long an ACK waits, on an ordinary machine.
const PATIENCE: Duration = Duration::from_micros(20);
/// How soon an answer is a prompt one. Longer than an ACK waits: the application may have to wait for the processor that
/// the thread which received is on.
const PROMPT: Duration = Duration::from_micros(50);
/// Prompt answers that make a habit.
const HABIT: u8 = 4;
/// As many as count. Who has been prompt for long, and is late because somebody else had the processor, keeps the habit;
/// who ceases to answer has lost it after four messages.
const TRUST: u8 = 32;

/// For how long an ACK waits.
pub(super) fn patience() -> Duration {
    stretched(PATIENCE)
}

/// An ACK that became due, and that no request has followed.
#[derive(Debug, Default)]
enum Due {
    #[default]
    No,
    At(Instant),
    /// When, nobody has looked.
    Unmeasured,
}

/// What is known of a queue pair's application.
#[derive(Debug, Default)]
pub(super) struct Habit {
    /// The last ACK.
    due: Due,
    /// It waits.
    waits: bool,
    /// How many messages were answered promptly; half as many with each that was not.
    prompt: u8,
}

impl Habit {
    /// Nothing but an ACK is to be sent: whether it waits on.
    ///
    /// To look at the clock takes its time. Who has been prompt for long is measured only where somebody has looked anyway,
    /// which those who poll do now and then.
    pub(super) fn lets_wait(&mut self, clock: &Look, acks: Acks) -> bool {
        if self.waits {
            match self.due {
                Due::Unmeasured if acks == Acks::Measured => return false,
                Due::Unmeasured | Due::No => self.due = Due::At(clock.now()),
                Due::At(at) => return clock.now().since(at) < patience(),
            }
            return true;
        }
        if !matches!(self.due, Due::No) {
            self.prompt /= 2;
        }
        self.waits = self.prompt >= HABIT;
        let is_measured = self.prompt < TRUST || clock.taken().is_some();
        self.due = if is_measured { Due::At(clock.now()) } else { Due::Unmeasured };
        self.waits
    }

    /// Whether an ACK waits.
    pub(super) const fn waits(&self) -> bool {
        self.waits
    }

    /// The application has posted a send request; an ACK that waited has left with it.
    pub(super) fn answered(&mut self, clock: &Look) {
        if let Due::At(at) = self.due {
            let is_prompt = clock.now().since(at) < stretched(PROMPT);
            self.prompt = if is_prompt { TRUST.min(self.prompt + 1) } else { self.prompt / 2 };
        }
        self.due = Due::No;
        self.waits = false;
    }

    /// An ACK that waits leaves by itself.
    pub(super) const fn gave_up(&mut self) {
        self.waits = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(micros: u64) -> Look {
        Instant::from_nanos(micros * 1000).into()
    }

    /// A habit of answering at once, at the time of that many microseconds.
    fn prompt(now: u64) -> Habit {
        let mut habit = Habit::default();
        for _ in 0..HABIT {
            assert!(!habit.lets_wait(&at(now), Acks::MayWait), "nothing is known yet");
            habit.answered(&at(now + 5));
        }
        habit
    }

    #[test]
    fn acks_wait_for_those_who_answer_at_once() {
        let mut habit = prompt(100);
        assert!(habit.lets_wait(&at(200), Acks::MayWait));
        assert!(habit.lets_wait(&at(219), Acks::MayWait));
        habit.answered(&at(219));
        assert!(!habit.waits());
        assert!(habit.lets_wait(&at(300), Acks::MayWait));
    }

    #[test]
    fn acks_do_not_wait_for_long() {
        let mut habit = prompt(100);
        assert!(habit.lets_wait(&at(200), Acks::MayWait));
        assert!(!habit.lets_wait(&at(220), Acks::MayWait));
        habit.gave_up();
        // The answer is late: the habit is broken.
        habit.answered(&at(250));
        assert!(!habit.lets_wait(&at(300), Acks::MayWait));
    }

    #[test]
    fn acks_do_not_wait_for_those_who_only_receive() {
        let mut habit = prompt(100);
        assert!(habit.lets_wait(&at(200), Acks::MayWait));
        assert!(!habit.lets_wait(&at(220), Acks::MayWait));
        habit.gave_up();
        for message in 0..10 {
            assert!(!habit.lets_wait(&at(300 + message), Acks::MayWait));
        }
    }

    #[test]
    fn who_has_been_prompt_for_long_may_be_late_once() {
        let mut habit = Habit::default();
        for time in 0..100 {
            habit.lets_wait(&at(100 * time), Acks::MayWait);
            habit.answered(&at(100 * time + 5));
        }
        assert!(habit.lets_wait(&at(20_000), Acks::MayWait));
        assert!(!habit.lets_wait(&at(20_020), Acks::MayWait));
        habit.gave_up();
        habit.answered(&at(24_000));
        assert!(habit.lets_wait(&at(30_000), Acks::MayWait), "something came between");
        habit.gave_up();
        let ceases = |message: &u64| {
            let waits = habit.lets_wait(&at(30_000 + 1000 * message), Acks::MayWait);
            habit.gave_up();
            waits
        };
        let waits = (1..10).filter(ceases).count();
        assert!(waits <= 3, "{waits} ACKs waited for somebody who has ceased to answer");
    }

    /// Somebody who has not looked at the clock, and need not.
    fn unseen() -> Look {
        Look::default()
    }

    #[test]
    fn who_has_been_prompt_for_long_is_measured_where_somebody_has_looked() {
        let mut habit = prompt(100);
        assert!(habit.lets_wait(&unseen(), Acks::MayWait) && matches!(habit.due, Due::At(_)), "not for long");
        habit.answered(&unseen());
        for time in 0..100 {
            habit.lets_wait(&at(100 * time), Acks::MayWait);
            habit.answered(&at(100 * time + 5));
        }
        let clock = unseen();
        assert!(habit.lets_wait(&clock, Acks::MayWait));
        habit.answered(&clock);
        assert_eq!((clock.taken(), habit.prompt), (None, TRUST), "nobody has looked");
        assert!(habit.lets_wait(&unseen(), Acks::MayWait));
        // From the next look on it is measured.
        assert!(habit.lets_wait(&at(20_000), Acks::MayWait) && habit.lets_wait(&at(20_019), Acks::MayWait));
        assert!(!habit.lets_wait(&at(20_020), Acks::MayWait));
        habit.gave_up();
        habit.answered(&at(20_050));
        assert_eq!(habit.prompt, TRUST / 2);
    }

    #[test]
    fn who_sweeps_lets_nothing_wait_that_nobody_measures() {
        let mut habit = prompt(100);
        habit.prompt = TRUST;
        assert!(habit.lets_wait(&unseen(), Acks::MayWait));
        assert!(!habit.lets_wait(&at(200), Acks::Measured));
    }

    #[test]
    fn those_who_send_unasked_have_no_habit() {
        let mut habit = Habit::default();
        for time in 0..100 {
            habit.answered(&at(time));
        }
        assert!(!habit.lets_wait(&at(100), Acks::MayWait));
    }
}
