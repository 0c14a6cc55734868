//! How slow the machine is.
//!
//! Whether an answer is prompt, and somebody still polls, is judged by times of tens of microseconds, chosen where a
//! system call takes a tenth of one. In an emulated processor, where each takes ten times as long (and reading the clock
//! forty times, as the emulated clock is a device), nobody would ever be prompt: each message would be left to a thread
//! that has to be woken. There the times are as many times as long.

use std::sync::OnceLock;
use std::time::Duration;

use super::clock;

/// What a system call and a look at the clock take on a machine that the times were chosen on; and up to so many times as
/// long on those that count as such.
const USUAL: Duration = Duration::from_nanos(100);
const TOLERANCE: u32 = 4;
/// The longest that times become.
const MOST: u32 = 10;
/// The fastest of so many attempts counts: others may have been interrupted.
const ATTEMPTS: usize = 16;

/// A time, as long as this machine needs it.
pub(super) fn stretched(time: Duration) -> Duration {
    static FACTOR: OnceLock<u32> = OnceLock::new();
    // Unit tests are about the times themselves.
    time * if cfg!(test) { 1 } else { *FACTOR.get_or_init(|| factor(measured())) }
}

fn factor(cost: Duration) -> u32 {
    let times = u32::try_from(cost.as_nanos() / USUAL.as_nanos()).unwrap_or(MOST);
    if times < TOLERANCE { 1 } else { times.min(MOST) }
}

/// What a system call and a look at the clock take here.
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
    fn what_a_call_takes_is_measured() {
        assert!(measured() > Duration::ZERO);
    }
}
