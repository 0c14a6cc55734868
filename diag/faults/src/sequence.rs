//! Steps of a script: rules that hold one after the other.

use std::time::Duration;

/// End of a step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Until {
    /// Number of packets that have gone by.
    Packets(u64),
    /// Time that has passed.
    Time(Duration),
    /// Step that lasts to the end.
    End,
}

/// The steps, and where in them a script is.
#[derive(Clone, Debug)]
pub(crate) struct Sequence {
    steps: Vec<Until>,
    /// The first step follows the last.
    pub(crate) repeats: bool,
    now: usize,
    /// When it began, and packets since.
    began: Duration,
    packets: u64,
    clock: Duration,
    /// Steps that have begun and not been asked about, and when; `None` is the script itself.
    begun: Vec<(Option<usize>, Duration)>,
}

impl Default for Sequence {
    fn default() -> Self {
        Self {
            steps: Vec::new(),
            repeats: false,
            now: 0,
            began: Duration::ZERO,
            packets: 0,
            clock: Duration::ZERO,
            begun: vec![(None, Duration::ZERO)],
        }
    }
}

impl Sequence {
    /// Adds a step; its number.
    pub(crate) fn push(&mut self, until: Until) -> usize {
        if self.steps.is_empty() {
            self.begun.push((Some(0), Duration::ZERO));
        }
        self.steps.push(until);
        self.steps.len() - 1
    }

    /// Whether any step that ends by counting packets comes before the end of this one, or again after it.
    pub(crate) fn counts_packets(&self, step: usize) -> bool {
        let before = if self.repeats { &self.steps[..] } else { self.steps.get(..=step).unwrap_or_default() };
        before.iter().any(|until| matches!(until, Until::Packets(_)))
    }

    /// Whether the sequence has no end.
    pub(crate) fn is_endless(&self) -> bool {
        self.steps.last().is_none_or(|last| *last == Until::End)
    }

    /// Duration of all steps together, if all end with time.
    pub(crate) fn round(&self) -> Option<Duration> {
        self.steps.iter().try_fold(Duration::ZERO, |sum, until| match until {
            Until::Time(time) => Some(sum.saturating_add(*time)),
            Until::Packets(_) | Until::End => None,
        })
    }

    /// The present step; `None` if there is none, or all are over.
    pub(crate) fn now(&self) -> Option<usize> {
        (self.now < self.steps.len()).then_some(self.now)
    }

    /// A packet has gone by. True if another step begins.
    pub(crate) fn packet(&mut self) -> bool {
        self.packets += 1;
        let over = matches!(self.steps.get(self.now), Some(Until::Packets(most)) if self.packets >= *most);
        if over {
            self.next(self.clock);
        }
        over
    }

    /// Advances the clock. True if another step begins; then it is to be called again.
    pub(crate) fn clock(&mut self, elapsed: Duration) -> bool {
        self.pass_over_rounds(elapsed);
        let over = self.ends_at().filter(|at| *at <= elapsed);
        if let Some(at) = over {
            self.next(at);
        }
        self.clock = self.clock.max(elapsed);
        over.is_some()
    }

    /// Time at which the present step is over, if that is a matter of time.
    pub(crate) fn ends_at(&self) -> Option<Duration> {
        match self.steps.get(self.now)? {
            Until::Time(time) => Some(self.began + *time),
            Until::Packets(_) | Until::End => None,
        }
    }

    pub(crate) fn take_begun(&mut self) -> Vec<(Option<usize>, Duration)> {
        std::mem::take(&mut self.begun)
    }

    /// Whole rounds that nobody has looked at, but for the last, have not been: a process that was stopped for an hour
    /// does not make up for them.
    fn pass_over_rounds(&mut self, elapsed: Duration) {
        let Some(round) = self.round().filter(|round| self.repeats && !round.is_zero()) else { return };
        let missed = elapsed.saturating_sub(self.began).as_nanos() / round.as_nanos();
        let passed = u32::try_from(missed.saturating_sub(1)).unwrap_or(u32::MAX);
        self.began += round.saturating_mul(passed);
    }

    fn next(&mut self, at: Duration) {
        (self.now, self.began, self.packets) = (self.now + 1, at, 0);
        if self.repeats && self.now == self.steps.len() {
            self.now = 0;
        }
        if let Some(now) = self.now() {
            self.begun.push((Some(now), at));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_after_the_other() {
        let mut steps = Sequence::default();
        let second = Duration::from_secs(1);
        for until in [Until::Packets(2), Until::Time(second), Until::Packets(1)] {
            steps.push(until);
        }
        assert_eq!(steps.take_begun(), [(None, Duration::ZERO), (Some(0), Duration::ZERO)]);
        assert!(!steps.clock(second) && !steps.packet() && steps.packet());
        assert_eq!((steps.now(), steps.ends_at()), (Some(1), Some(second * 2)));
        assert!(!steps.packet() && !steps.packet() && !steps.packet(), "it is a matter of time");
        assert!(steps.clock(second * 3) && !steps.clock(second * 3));
        assert_eq!(steps.take_begun(), [(Some(1), second), (Some(2), second * 2)]);
        assert!(steps.packet());
        assert_eq!(steps.now(), None, "all are over");

        steps.repeats = true;
        let mut steps = Sequence { now: 2, ..steps };
        assert!(steps.packet());
        assert_eq!(steps.now(), Some(0));
    }

    #[test]
    fn rounds_that_nobody_saw_are_passed_over() {
        let [one, two, hour] = [1, 2, 3_600_000].map(Duration::from_millis);
        let mut steps = Sequence { repeats: true, ..Sequence::default() };
        for time in [one, two] {
            steps.push(Until::Time(time));
        }
        assert_eq!(steps.round(), Some(one + two));
        assert!(steps.clock(one));
        steps.take_begun();
        let mut begun = 0;
        while steps.clock(hour + two) {
            begun += 1;
        }
        // An hour is so many rounds; the last of them is gone through, and the one after it has come to its second step.
        assert_eq!((begun, steps.now(), steps.ends_at()), (2, Some(1), Some(hour + one + two)));
        assert_eq!(steps.take_begun(), [(Some(0), hour), (Some(1), hour + one)]);
        steps.push(Until::Packets(1));
        assert_eq!(steps.round(), None);
    }
}
