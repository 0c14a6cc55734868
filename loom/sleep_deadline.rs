//! The background thread of `urxe-runtime` and the deadlines that are set while it falls asleep ([`sleep_deadline`]).

#[allow(dead_code, reason = "the runtime's needs are more than a model's")]
#[path = "../runtime/src/progress/sleep_deadline.rs"]
mod sleep_deadline;

use super::explore;
use loom::sync::Arc;
use loom::thread;
use sleep_deadline::{Deadline, SleepDeadline};
use urxe_engine::Instant;

const fn at(nanos: u64) -> Instant {
    Instant::from_nanos(nanos)
}

/// Either the thread has seen the deadline before it sleeps, or the thread that set it wakes the thread.
fn sleep_ends_by_the_deadline(limit: Option<Instant>) {
    let (sleep_deadline, deadline) = (Arc::new(SleepDeadline::none()), Arc::new(Deadline::never()));
    let setter = {
        let (sleep_deadline, deadline) = (Arc::clone(&sleep_deadline), Arc::clone(&deadline));
        thread::spawn(move || {
            deadline.set(Some(at(5)));
            sleep_deadline.outlasts(at(5))
        })
    };
    sleep_deadline.begin(limit);
    let until = [deadline.get(), limit].into_iter().flatten().min();
    let woken = setter.join().unwrap();
    assert!(woken || until.is_some_and(|until| until <= at(5)), "asleep until {until:?}, and nobody wakes it");
}

#[test]
fn a_deadline_is_seen_or_its_setter_wakes_the_thread() {
    explore(|| sleep_ends_by_the_deadline(None));
    explore(|| sleep_ends_by_the_deadline(Some(at(9))));
}

/// A thread that would have slept for less is not woken.
#[test]
fn a_deadline_after_the_sleep_wakes_nobody() {
    explore(|| {
        let (sleep_deadline, deadline) = (SleepDeadline::none(), Deadline::never());
        sleep_deadline.begin(Some(at(3)));
        deadline.set(Some(at(5)));
        assert!(!sleep_deadline.outlasts(at(5)) && deadline.get() == Some(at(5)));
        sleep_deadline.end();
        assert!(!sleep_deadline.outlasts(at(5)));
    });
}
