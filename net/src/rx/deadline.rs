//! Work that a receiver does later: one timer descriptor for all of it.

use std::io;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::sys::epoll_key::EpollKey;
use crate::sys::fd::{Fd, FdSet};
use crate::sys::{timer_arm, timer_create};

/// Work that can be put off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Task {
    /// Another attempt at the addresses that this process neither owns nor follows anybody at.
    RetryElection,
    /// The next few last wills of processes that have ended.
    SendLastWills,
    /// Dropping datagrams that wait for a mailbox nobody reads.
    DropBacklog,
    /// Closing flow sockets through which nothing comes any more.
    CloseIdleFlows,
    /// Another attempt at reading the interface, which the system refused.
    RereadInterface,
}

impl Task {
    const ALL: [Self; 5] =
        [Self::RetryElection, Self::SendLastWills, Self::DropBacklog, Self::CloseIdleFlows, Self::RereadInterface];
}

/// Intervals between attempts that fail: each is twice as long as the one before, up to a minute.
#[derive(Debug)]
pub(crate) struct Backoff {
    next: Duration,
}

impl Backoff {
    const FIRST: Duration = Duration::from_millis(500);
    const LONGEST: Duration = Duration::from_secs(60);

    pub(crate) const fn new() -> Self {
        Self { next: Self::FIRST }
    }

    /// Returns the interval after another failure.
    pub(crate) fn after_failure(&mut self) -> Duration {
        let longer = (self.next * 2).min(Self::LONGEST);
        core::mem::replace(&mut self.next, longer)
    }
}

/// The deadlines of a receiver, at most one for each [`Task`]. The descriptor is readable when one has passed.
#[derive(Debug)]
pub(crate) struct Deadlines {
    timer: Fd,
    at: [Option<Instant>; Task::ALL.len()],
}

impl Deadlines {
    /// Creates the timer and has it watched.
    pub(crate) fn open(fds: &Arc<FdSet>) -> io::Result<Self> {
        let timer = fds.adopt(timer_create()?)?;
        fds.watch(timer.as_raw_fd(), EpollKey::Timer.pack())?;
        Ok(Self { timer, at: [None; Task::ALL.len()] })
    }

    /// Sets the deadline of a task, unless it has an earlier one.
    pub(crate) fn set(&mut self, task: Task, after: Duration) {
        let now = Instant::now();
        let place = &mut self.at[task as usize];
        if place.is_none_or(|at| at > now + after) {
            *place = Some(now + after);
            self.arm(now);
        }
    }

    /// Whether a task has a deadline that has not been [taken](Self::take_due).
    pub(crate) fn has(&self, task: Task) -> bool {
        self.at[task as usize].is_some()
    }

    /// Returns the tasks whose deadline has passed, which have none then.
    pub(crate) fn take_due(&mut self) -> impl Iterator<Item = Task> + use<> {
        let now = Instant::now();
        let due = self.at.map(|at| at.is_some_and(|at| at <= now));
        for (at, is_due) in self.at.iter_mut().zip(due) {
            if is_due {
                *at = None;
            }
        }
        self.arm(now);
        Task::ALL.into_iter().zip(due).filter_map(|(task, is_due)| is_due.then_some(task))
    }

    fn arm(&self, now: Instant) {
        // A zero would disarm it.
        let after = self.at.iter().flatten().min().map(|at| (*at - now).max(Duration::from_nanos(1)));
        timer_arm(self.timer.as_raw_fd(), after.unwrap_or_default());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attempts_that_fail_become_rare() {
        let mut backoff = Backoff::new();
        let seconds: Vec<_> = (0..9).map(|_| backoff.after_failure().as_secs_f32()).collect();
        assert_eq!(seconds, [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0]);
    }

    #[test]
    fn tasks_are_due_one_by_one_and_the_earlier_deadline_counts() {
        let fds = FdSet::new().unwrap();
        let mut deadlines = Deadlines::open(&fds).unwrap();
        deadlines.set(Task::CloseIdleFlows, Duration::from_secs(3600));
        deadlines.set(Task::SendLastWills, Duration::from_secs(3600));
        assert_eq!(deadlines.take_due().count(), 0);
        deadlines.set(Task::SendLastWills, Duration::ZERO);
        deadlines.set(Task::SendLastWills, Duration::from_secs(3600));
        let mut keys = [0; 4];
        while fds.ready(&mut keys) == 0 {
            std::thread::yield_now();
        }
        assert_eq!(EpollKey::unpack(keys[0]), Some(EpollKey::Timer));
        assert_eq!(deadlines.take_due().collect::<Vec<_>>(), [Task::SendLastWills]);
        assert_eq!([Task::SendLastWills, Task::CloseIdleFlows].map(|task| deadlines.has(task)), [false, true]);
        assert_eq!(fds.ready(&mut keys), 0, "the other deadline is an hour away");
    }
}
