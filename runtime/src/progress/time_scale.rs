//! Scale of short durations to the speed of the machine.
//!
//! Whether an answer is prompt, and somebody still polls, is judged by times of tens of microseconds, chosen where a
//! system call takes a tenth of one. In an emulated processor, where each takes ten times as long (and reading the clock
//! forty times, as the emulated clock is a device), nobody would ever be prompt: each message would be left to a thread
//! that has to be woken. There the times are as many times as long.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::clock;

/// Cost of a system call and a reading of the clock on the machine that the times were chosen on. A machine up to
/// `TOLERANCE` times as slow counts as such.
const USUAL: Duration = Duration::from_nanos(100);
const TOLERANCE: u32 = 4;
/// The longest that times become.
const MOST: u32 = 10;
/// The fastest of so many attempts counts: others may have been interrupted.
const ATTEMPTS: usize = 16;

/// How many times as long times are here; 0 until it is known.
static FACTOR: AtomicU32 = AtomicU32::new(0);

/// A time, as long as this machine needs it.
pub(super) fn scaled(time: Duration) -> Duration {
    match FACTOR.load(Ordering::Relaxed) {
        1 => time,
        0 => time * find_factor(),
        factor => time * factor,
    }
}

/// Several threads may do so at once, and the last to be done is right: a child of fork(2) has nobody to wait for.
#[cold]
fn find_factor() -> u32 {
    // Unit tests are about the times themselves.
    let factor = if cfg!(test) { 1 } else { factor(measured()) };
    FACTOR.store(factor, Ordering::Relaxed);
    factor
}

fn factor(cost: Duration) -> u32 {
    let times = u32::try_from(cost.as_nanos() / USUAL.as_nanos()).unwrap_or(MOST);
    if times < TOLERANCE { 1 } else { times.min(MOST) }
}

/// Measures the cost of a system call and a reading of the clock.
fn measured() -> Duration {
    let attempt = |_| {
        let start = clock::now();
        // SAFETY: no pointers; asks only. Not getpid(2), which a libc may know by heart.
        unsafe { libc::syscall(libc::SYS_getppid) };
        clock::now().since(start)
    };
    (0..ATTEMPTS).map(attempt).min().unwrap_or(USUAL)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usual_machines_have_usual_times() {
        let nanos = Duration::from_nanos;
        for (cost, times) in [(10, 1), (100, 1), (399, 1), (400, 4), (950, 9), (1000, 10), (1_000_000, 10)] {
            assert_eq!(factor(nanos(cost)), times, "{cost} ns");
        }
        assert_eq!(factor(Duration::MAX), MOST);
    }

    #[test]
    fn duration_of_a_call_is_measured() {
        assert!(measured() > Duration::ZERO);
    }
}
