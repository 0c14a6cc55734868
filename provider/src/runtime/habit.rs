//! When an ACK waits for the application's next request.
//!
//! An application that answers each message at once is the usual case where latency matters, and there an ACK that
//! leaves by itself costs a system call at both ends and makes the peer look twice. So the ACK of such a queue pair waits
//! for a moment ([`patience`]), and the next request takes it along in one run of packets. Whoever let it wait sees to it that it
//! leaves in time: see [`progress`](super::progress).
//!
//! No ACK waits on a queue pair that does not answer, or not that fast: habits are learnt from what was done before.

use std::time::Duration;

use urxe_engine::Instant;

use super::pace::stretched;

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

/// What is known of a queue pair's application.
#[derive(Debug, Default)]
pub(super) struct Habit {
    /// When the last ACK became due that no request has followed.
    due_at: Option<Instant>,
    /// That ACK waits.
    waits: bool,
    /// How many messages were answered promptly; half as many with each that was not.
    prompt: u8,
}

impl Habit {
    /// Nothing but an ACK is to be sent: whether it waits on.
    pub(super) fn lets_wait(&mut self, now: Instant) -> bool {
        if self.waits {
            return self.due_within(patience(), now);
        }
        if self.due_at.is_some() {
            self.prompt /= 2;
        }
        self.due_at = Some(now);
        self.waits = self.prompt >= HABIT;
        self.waits
    }

    /// Whether an ACK waits.
    pub(super) const fn waits(&self) -> bool {
        self.waits
    }

    /// The application posts a send request; an ACK that waits leaves with it.
    pub(super) fn answered(&mut self, now: Instant) {
        if self.due_at.is_some() {
            self.prompt =
                if self.due_within(stretched(PROMPT), now) { TRUST.min(self.prompt + 1) } else { self.prompt / 2 };
        }
        self.due_at = None;
        self.waits = false;
    }

    /// An ACK that waits leaves by itself.
    pub(super) const fn gave_up(&mut self) {
        self.waits = false;
    }

    fn due_within(&self, time: Duration, now: Instant) -> bool {
        self.due_at.is_some_and(|due_at| now.since(due_at) < time)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(micros: u64) -> Instant {
        Instant::from_nanos(micros * 1000)
    }

    /// A habit of answering at once, at the time of that many microseconds.
    fn prompt(now: u64) -> Habit {
        let mut habit = Habit::default();
        for _ in 0..HABIT {
            assert!(!habit.lets_wait(at(now)), "nothing is known yet");
            habit.answered(at(now + 5));
        }
        habit
    }

    #[test]
    fn acks_wait_for_those_who_answer_at_once() {
        let mut habit = prompt(100);
        assert!(habit.lets_wait(at(200)));
        assert!(habit.lets_wait(at(219)));
        habit.answered(at(219));
        assert!(!habit.waits());
        assert!(habit.lets_wait(at(300)));
    }

    #[test]
    fn acks_do_not_wait_for_long() {
        let mut habit = prompt(100);
        assert!(habit.lets_wait(at(200)));
        assert!(!habit.lets_wait(at(220)));
        habit.gave_up();
        // The answer is late: the habit is broken.
        habit.answered(at(250));
        assert!(!habit.lets_wait(at(300)));
    }

    #[test]
    fn acks_do_not_wait_for_those_who_only_receive() {
        let mut habit = prompt(100);
        assert!(habit.lets_wait(at(200)));
        assert!(!habit.lets_wait(at(220)));
        habit.gave_up();
        for message in 0..10 {
            assert!(!habit.lets_wait(at(300 + message)));
        }
    }

    #[test]
    fn who_has_been_prompt_for_long_may_be_late_once() {
        let mut habit = Habit::default();
        for time in 0..100 {
            habit.lets_wait(at(100 * time));
            habit.answered(at(100 * time + 5));
        }
        assert!(habit.lets_wait(at(20_000)));
        assert!(!habit.lets_wait(at(20_020)));
        habit.gave_up();
        habit.answered(at(24_000));
        assert!(habit.lets_wait(at(30_000)), "something came between");
        habit.gave_up();
        let ceases = |message: &u64| {
            let waits = habit.lets_wait(at(30_000 + 1000 * message));
            habit.gave_up();
            waits
        };
        let waits = (1..10).filter(ceases).count();
        assert!(waits <= 3, "{waits} ACKs waited for somebody who has ceased to answer");
    }

    #[test]
    fn those_who_send_unasked_have_no_habit() {
        let mut habit = Habit::default();
        for time in 0..100 {
            habit.answered(at(time));
        }
        assert!(!habit.lets_wait(at(100)));
    }
}
