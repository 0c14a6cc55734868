//! Pace of looking for a subnet manager among the programs of the host: a look takes system calls, and each datagram would ask for one.

use std::time::Duration;

use urxe_engine::Instant;

/// Least time between two looks.
const INTERVAL: Duration = Duration::from_millis(10);

/// Time of the last look, and of one that was put off.
#[derive(Debug, Default)]
pub(super) struct SmWatch {
    looked: Option<Instant>,
    again: Option<Instant>,
}

impl SmWatch {
    /// Returns whether it is time to look. Where it is not, the look is put off.
    pub(super) fn take(&mut self, now: Instant) -> bool {
        if let Some(at) = self.looked.map(|at| at + INTERVAL).filter(|at| *at > now) {
            self.again = Some(at);
            return false;
        }
        (self.looked, self.again) = (Some(now), None);
        true
    }

    /// Time of a look that was put off.
    pub(super) const fn poll_timeout(&self) -> Option<Instant> {
        self.again
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_is_a_look_each_interval_and_one_after_it() {
        let mut watch = SmWatch::default();
        let start = Instant::from_nanos(1);
        let mut now = start;
        let mut looks = 0;
        for _ in 0..10_000 {
            looks += u32::from(watch.take(now));
            now = now + Duration::from_micros(10);
        }
        assert_eq!(looks, 10, "in 100 ms");
        let at = watch.poll_timeout().expect("what changed since is seen too");
        assert!(at >= now && watch.take(at));
        assert_eq!(watch.poll_timeout(), None, "it does not wake up without need");
    }
}
