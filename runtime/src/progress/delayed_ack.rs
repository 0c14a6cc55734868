//! Delayed ACKs, which wait for the application's next request.
//!
//! An application that answers each message at once is the usual case where latency matters, and there an ACK that
//! leaves by itself costs a system call at both ends and makes the peer look twice. So the ACK of such a queue pair waits
//! for a moment, and the next request takes it along in one run of packets. The thread that let it wait sends it in time (see the
//! module `progress`).
//!
//! An ACK waits only on a queue pair whose application has answered promptly several times in a row. An answer that is late because its
//! thread had lost the processor counts as a prompt one until ACKs are delayed, and then as none: the application may answer as soon as it can.

use std::time::Duration;

use urxe_engine::{Clock as _, Instant};

use super::time_scale::scaled;
use super::tuning::TUNING;
use crate::clock::LazyInstant;

/// Whether ACKs may wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum AckMode {
    /// ACKs may wait: a thread will look after them in time.
    Delay,
    /// ACKs may wait, except those whose waiting time was not measured.
    DelayTimed,
    /// ACKs leave at once.
    Immediate,
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

/// History by which a queue pair decides whether an ACK may wait for the application's next request.
#[derive(Debug, Default)]
pub(crate) struct DelayedAck {
    /// The last ACK.
    due: Due,
    /// The last ACK is being delayed.
    waits: bool,
    /// How many messages were answered promptly; half as many with each that was not.
    prompt: u8,
}

impl DelayedAck {
    /// Whether an ACK waits on that alone is to be sent, for `timeout` at most.
    ///
    /// To look at the clock takes its time. Who has been prompt for long is measured only where somebody has looked anyway,
    /// which those who poll do now and then.
    pub(crate) fn lets_wait(&mut self, clock: &LazyInstant, acks: AckMode, timeout: Duration) -> bool {
        if self.waits {
            match self.due {
                Due::Unmeasured if acks == AckMode::DelayTimed => return false,
                Due::Unmeasured | Due::No => self.due = Due::At(clock.now()),
                Due::At(at) => return clock.now().since(at) < timeout,
            }
            return true;
        }
        if !matches!(self.due, Due::No) {
            self.prompt /= 2;
        }
        self.waits = self.prompt >= TUNING.prompt_answers;
        let is_measured = self.prompt < TUNING.prompt_answers_most || clock.taken().is_some();
        self.due = if is_measured { Due::At(clock.now()) } else { Due::Unmeasured };
        self.waits
    }

    /// Whether no ACK has become due that no request has followed.
    #[inline]
    pub(crate) const fn is_idle(&self) -> bool {
        !self.waits && matches!(self.due, Due::No)
    }

    /// Whether an ACK waits.
    pub(crate) const fn waits(&self) -> bool {
        self.waits
    }

    /// The application has posted a send request; an ACK that waited has left with it. `is_contended`: whether its thread loses its
    /// processor to others.
    pub(crate) fn answered(&mut self, clock: &LazyInstant, is_contended: impl FnOnce(Instant) -> bool) {
        if let Due::At(at) = self.due {
            let now = clock.now();
            if now.since(at) < scaled(TUNING.prompt_answer) {
                self.prompt = TUNING.prompt_answers_most.min(self.prompt + 1);
            } else if !is_contended(now) {
                self.prompt /= 2;
            } else if self.prompt < TUNING.prompt_answers {
                self.prompt += 1;
            }
        }
        self.due = Due::No;
        self.waits = false;
    }

    /// An ACK that waits leaves by itself.
    pub(crate) const fn gave_up(&mut self) {
        self.waits = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(micros: u64) -> LazyInstant {
        Instant::from_nanos(micros * 1000).into()
    }

    /// State of a queue pair whose application answers at once, at the time of that many microseconds.
    fn prompt(now: u64) -> DelayedAck {
        let mut acks = DelayedAck::default();
        for _ in 0..TUNING.prompt_answers {
            assert!(!acks.lets_wait(&at(now), AckMode::Delay, TUNING.delayed_ack_timeout), "nothing is known yet");
            acks.answered(&at(now + 5), |_| false);
        }
        acks
    }

    #[test]
    fn acks_wait_for_those_who_answer_at_once() {
        let mut acks = prompt(100);
        assert!(acks.lets_wait(&at(200), AckMode::Delay, TUNING.delayed_ack_timeout));
        assert!(acks.lets_wait(&at(219), AckMode::Delay, TUNING.delayed_ack_timeout));
        acks.answered(&at(219), |_| false);
        assert!(!acks.waits());
        assert!(acks.lets_wait(&at(300), AckMode::Delay, TUNING.delayed_ack_timeout));
    }

    #[test]
    fn acks_do_not_wait_for_long() {
        let mut acks = prompt(100);
        assert!(acks.lets_wait(&at(200), AckMode::Delay, TUNING.delayed_ack_timeout));
        assert!(!acks.lets_wait(&at(220), AckMode::Delay, TUNING.delayed_ack_timeout));
        acks.gave_up();
        // The answer is late: prompt answers are counted anew.
        acks.answered(&at(250), |_| false);
        assert!(!acks.lets_wait(&at(300), AckMode::Delay, TUNING.delayed_ack_timeout));
    }

    #[test]
    fn acks_do_not_wait_for_those_who_only_receive() {
        let mut acks = prompt(100);
        assert!(acks.lets_wait(&at(200), AckMode::Delay, TUNING.delayed_ack_timeout));
        assert!(!acks.lets_wait(&at(220), AckMode::Delay, TUNING.delayed_ack_timeout));
        acks.gave_up();
        for message in 0..10 {
            assert!(!acks.lets_wait(&at(300 + message), AckMode::Delay, TUNING.delayed_ack_timeout));
        }
    }

    #[test]
    fn long_prompt_application_may_be_late_once() {
        let mut acks = DelayedAck::default();
        for time in 0..100 {
            acks.lets_wait(&at(100 * time), AckMode::Delay, TUNING.delayed_ack_timeout);
            acks.answered(&at(100 * time + 5), |_| false);
        }
        assert!(acks.lets_wait(&at(20_000), AckMode::Delay, TUNING.delayed_ack_timeout));
        assert!(!acks.lets_wait(&at(20_020), AckMode::Delay, TUNING.delayed_ack_timeout));
        acks.gave_up();
        acks.answered(&at(24_000), |_| false);
        assert!(acks.lets_wait(&at(30_000), AckMode::Delay, TUNING.delayed_ack_timeout), "something came between");
        acks.gave_up();
        let ceases = |message: &u64| {
            let waits = acks.lets_wait(&at(30_000 + 1000 * message), AckMode::Delay, TUNING.delayed_ack_timeout);
            acks.gave_up();
            waits
        };
        let waits = (1..10).filter(ceases).count();
        assert!(waits <= 3, "{waits} ACKs waited for somebody who has ceased to answer");
    }

    /// A clock that has not been looked at, and need not be.
    fn unseen() -> LazyInstant {
        LazyInstant::default()
    }

    #[test]
    fn long_prompt_application_is_timed_where_the_clock_was_read() {
        let mut acks = prompt(100);
        assert!(
            acks.lets_wait(&unseen(), AckMode::Delay, TUNING.delayed_ack_timeout) && matches!(acks.due, Due::At(_)),
            "not for long"
        );
        acks.answered(&unseen(), |_| false);
        for time in 0..100 {
            acks.lets_wait(&at(100 * time), AckMode::Delay, TUNING.delayed_ack_timeout);
            acks.answered(&at(100 * time + 5), |_| false);
        }
        let clock = unseen();
        assert!(acks.lets_wait(&clock, AckMode::Delay, TUNING.delayed_ack_timeout));
        acks.answered(&clock, |_| false);
        assert_eq!((clock.taken(), acks.prompt), (None, TUNING.prompt_answers_most), "nobody has looked");
        assert!(acks.lets_wait(&unseen(), AckMode::Delay, TUNING.delayed_ack_timeout));
        // From the next look on it is measured.
        assert!(
            acks.lets_wait(&at(20_000), AckMode::Delay, TUNING.delayed_ack_timeout)
                && acks.lets_wait(&at(20_019), AckMode::Delay, TUNING.delayed_ack_timeout)
        );
        assert!(!acks.lets_wait(&at(20_020), AckMode::Delay, TUNING.delayed_ack_timeout));
        acks.gave_up();
        acks.answered(&at(20_050), |_| false);
        assert_eq!(acks.prompt, TUNING.prompt_answers_most / 2);
    }

    #[test]
    fn sweep_delays_no_ack_without_time() {
        let mut acks = prompt(100);
        acks.prompt = TUNING.prompt_answers_most;
        assert!(acks.lets_wait(&unseen(), AckMode::Delay, TUNING.delayed_ack_timeout));
        assert!(!acks.lets_wait(&at(200), AckMode::DelayTimed, TUNING.delayed_ack_timeout));
    }

    #[test]
    fn unsolicited_sends_are_no_prompt_answers() {
        let mut acks = DelayedAck::default();
        for time in 0..100 {
            acks.answered(&at(time), |_| false);
        }
        assert!(!acks.lets_wait(&at(100), AckMode::Delay, TUNING.delayed_ack_timeout));
    }

    #[test]
    fn an_answer_that_had_to_wait_for_the_processor_is_a_prompt_one() {
        let mut acks = DelayedAck::default();
        for message in 0..u64::from(TUNING.prompt_answers) {
            assert!(!acks.lets_wait(&at(20_000 * message), AckMode::Delay, Duration::from_millis(1)));
            acks.answered(&at(20_000 * message + 10_000), |_| true);
        }
        assert!(acks.lets_wait(&at(200_000), AckMode::Delay, Duration::from_millis(1)));
        let mut acks = prompt(100);
        assert!(acks.lets_wait(&at(200), AckMode::Delay, Duration::from_millis(1)));
        assert!(acks.lets_wait(&at(1199), AckMode::Delay, Duration::from_millis(1)));
        assert!(!acks.lets_wait(&at(1200), AckMode::Delay, Duration::from_millis(1)));
        acks.gave_up();
        acks.answered(&at(20_000), |_| true);
        assert!(acks.lets_wait(&at(30_000), AckMode::Delay, TUNING.delayed_ack_timeout));
        acks.answered(&at(40_000), |_| false);
        assert!(!acks.lets_wait(&at(50_000), AckMode::Delay, TUNING.delayed_ack_timeout));
    }
}
