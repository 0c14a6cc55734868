//! Threads that poll several devices in turn.
//!
//! A poll that finds nothing for a while yields, or parks where processors are few ([`poll_backoff`](super::poll_backoff)). Of a thread
//! that forwards frames from one device to another, the polls of the second find nothing all the time, and the frames of the first would
//! wait meanwhile. So what a thread finds at one device keeps it from yielding and parking at the others.

use std::cell::Cell;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use urxe_engine::Instant;

/// "At a time that nobody has looked at."
const UNSEEN: u64 = u64::MAX;

/// More than one device has been open at a time.
static SEVERAL: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// When a poll of this thread found something last, in nanoseconds.
    static FOUND: Cell<u64> = const { Cell::new(0) };
}

/// Notes that more than one device is open.
pub(crate) fn note_several() {
    SEVERAL.store(true, Ordering::Relaxed);
}

/// Whether more than one device has been open at a time.
#[inline]
pub(crate) fn are_several() -> bool {
    SEVERAL.load(Ordering::Relaxed)
}

/// Number that tells the calling thread from others as long as it lives.
pub(super) fn this_thread() -> usize {
    FOUND.with(|found| ptr::from_ref(found).addr())
}

/// Notes that a poll of the calling thread has found something, of any device.
#[inline]
pub(super) fn found(now: Option<Instant>) {
    if are_several() {
        FOUND.set(now.map_or(UNSEEN, Instant::as_nanos));
    }
}

/// Whether a poll of the calling thread has found something within this time, of any device.
pub(super) fn found_within(now: Instant, age: Duration) -> bool {
    if !are_several() {
        return false;
    }
    if FOUND.get() == UNSEEN {
        FOUND.set(now.as_nanos());
    }
    let found = FOUND.get();
    found != 0 && now.since(Instant::from_nanos(found)) < age
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_remember_their_own_finds() {
        note_several();
        let (start, age) = (Instant::from_nanos(1_000_000_000), Duration::from_micros(40));
        assert!(!found_within(start, age), "nothing has been found yet");
        found(Some(start));
        assert!(found_within(start + age / 2, age) && !found_within(start + age, age));
        found(None);
        assert!(found_within(start + 2 * age, age), "since the last question, for all that is known");
        assert!(!found_within(start + 3 * age, age));
        found(Some(start));
        assert!(!std::thread::spawn(move || found_within(start, age)).join().unwrap());
    }
}
