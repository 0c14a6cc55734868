//! Paths: UDP source ports over which a requester spreads its packets, since networks choose a way by them (ECMP).
//!
//! A path is left when it loses far more than the others, and tried again after a rest, longer each time. When probes or an ACK
//! timeout say that nothing arrives, all are tried again at once.

use alloc::vec::Vec;
use core::time::Duration;

use urxe_wire::Psn;

use crate::selective::MOST_PATHS;
use crate::time::Instant;

/// Packets in a row on one path: a run of them stays one for the kernel (GSO).
const STRIPE: u32 = 16;
/// Packets lost on a path before it may be left.
const ENOUGH: u32 = 8;
/// Packets of a path after which older ones count half.
const MEMORY: u32 = 1024;
/// How many times as often as the others a path loses that is left.
const FACTOR: u64 = 4;
/// Rest of a path when it is left for the first time, and the longest.
const REST: Duration = Duration::from_secs(1);
const LONGEST_REST: Duration = Duration::from_secs(64);

/// Packets that arrived or were lost, by path.
pub(super) type ByPath = [u32; MOST_PATHS as usize];

/// Counts and rest of one path.
#[derive(Clone, Copy, Debug, Default)]
struct Path {
    arrived: u32,
    lost: u32,
    /// Whether the path is not used for now.
    rests: bool,
    /// Length of the last rest, halved since for each calm time.
    rest: Duration,
    /// When the rest is over, or the calm time that follows it.
    until: Option<Instant>,
}

/// The paths of one requester.
#[derive(Debug)]
pub(super) struct Paths {
    paths: Vec<Path>,
    /// Paths in use.
    active: Vec<u8>,
    /// Packets sent again.
    again: usize,
    /// Times that nothing arrived: each has the packets change paths.
    silences: usize,
    /// When the first rest or calm time is over.
    next: Option<Instant>,
}

impl Paths {
    /// Makes that many paths, all in use.
    pub(super) fn new(count: u8) -> Self {
        let count = count.clamp(1, MOST_PATHS);
        let paths = alloc::vec![Path::default(); count.into()];
        Self { paths, active: (0..count).collect(), again: 0, silences: 0, next: None }
    }

    /// The path of a packet that is sent for the first time.
    pub(super) fn of(&self, psn: Psn) -> u8 {
        let stripe = ((psn.get() / STRIPE) as usize).wrapping_add(self.silences);
        self.active.get(stripe % self.active.len().max(1)).copied().unwrap_or(0)
    }

    /// The path of a packet that is sent again: each time another, since the one it took first may be broken.
    pub(super) fn another(&mut self, than: u8) -> u8 {
        for _ in 0..2 {
            self.again = self.again.wrapping_add(1);
            match self.active.get(self.again % self.active.len().max(1)) {
                Some(&path) if path != than => return path,
                _ => {}
            }
        }
        self.active.first().copied().unwrap_or(0)
    }

    /// Takes note of packets that arrived or were lost. Returns a path that is left now.
    pub(super) fn note(&mut self, now: Instant, arrived: &ByPath, lost: &ByPath) -> Option<u8> {
        for ((path, arrived), lost) in self.paths.iter_mut().zip(arrived).zip(lost) {
            path.arrived += arrived;
            path.lost += lost;
            if path.arrived + path.lost > MEMORY {
                (path.arrived, path.lost) = (path.arrived / 2, path.lost / 2);
            }
        }
        self.come_back(now);
        let worst =
            *self.active.iter().max_by_key(|at| self.paths.get(usize::from(**at)).map_or(0, Path::per_million))?;
        let others = self.active.iter().filter(|at| **at != worst).filter_map(|at| self.paths.get(usize::from(*at)));
        let (sum, count) = others.fold((0, 0_u64), |(sum, count), path| (sum + path.per_million(), count + 1));
        let usual = sum.checked_div(count)?;
        let path = self.paths.get_mut(usize::from(worst))?;
        if path.lost < ENOUGH || path.per_million() <= FACTOR * usual.max(1000) {
            return None;
        }
        let rest = (2 * path.rest).clamp(REST, LONGEST_REST);
        *path = Path { rests: true, rest, until: Some(now + rest), ..Path::default() };
        self.choose();
        Some(worst)
    }

    /// Whether the time at which a rest may be over is to be looked at.
    #[inline]
    pub(super) const fn waits(&self) -> bool {
        self.next.is_some()
    }

    /// Uses those again that have rested. The next rest of a path that was used as long as it rested before is shorter.
    pub(super) fn come_back(&mut self, now: Instant) {
        if self.next.is_none_or(|next| now < next) {
            return;
        }
        for path in self.paths.iter_mut().filter(|path| path.until.is_some_and(|until| until <= now)) {
            if !core::mem::take(&mut path.rests) {
                path.rest = Some(path.rest / 2).filter(|rest| *rest >= REST).unwrap_or_default();
            }
            path.until = Some(now + path.rest).filter(|until| *until > now);
        }
        self.choose();
    }

    /// Uses all paths: nothing has arrived on those in use for long. Packets take other ones than before.
    pub(super) fn use_all(&mut self, now: Instant) {
        self.silences = self.silences.wrapping_add(1);
        for path in self.paths.iter_mut().filter(|path| path.rests) {
            (path.rests, path.until) = (false, Some(now + path.rest));
        }
        self.choose();
    }

    /// Sets what follows from the rests.
    fn choose(&mut self) {
        self.active.clear();
        self.active.extend((0..).zip(&self.paths).filter(|(_, path)| !path.rests).map(|(at, _)| at));
        self.next = self.paths.iter().filter_map(|path| path.until).min();
    }
}

impl Path {
    /// Packets lost of a million.
    fn per_million(&self) -> u64 {
        1_000_000 * u64::from(self.lost) / u64::from(self.arrived + self.lost).max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn by(counts: &[(usize, u32)]) -> ByPath {
        let mut all = ByPath::default();
        counts.iter().for_each(|&(at, count)| all[at] = count);
        all
    }

    #[test]
    fn packets_are_spread_evenly_in_runs() {
        let paths = Paths::new(4);
        let mut taken = [0; 4];
        for psn in 0..64 * 16 {
            taken[usize::from(paths.of(Psn::new(psn)))] += 1;
            assert_eq!(paths.of(Psn::new(psn)), paths.of(Psn::new(psn / 16 * 16)));
        }
        assert_eq!(taken, [256; 4]);
    }

    #[test]
    fn a_path_that_loses_is_left_and_tried_again() {
        let mut paths = Paths::new(4);
        let now = Instant::from_nanos(1);
        assert_eq!(paths.note(now, &by(&[(0, 50), (1, 50), (2, 50), (3, 50)]), &by(&[(2, 7)])), None, "too few");
        assert_eq!(paths.note(now, &ByPath::default(), &by(&[(2, 1)])), Some(2));
        assert!((0..1000).all(|psn| paths.of(Psn::new(psn)) != 2));
        assert!((0..100).all(|_| ![2, 1].contains(&paths.another(1))));
        assert_eq!(paths.note(now + REST / 2, &by(&[(0, 50)]), &by(&[(2, 9)])), None, "it rests");
        assert_eq!(paths.note(now + REST, &by(&[(0, 1)]), &by(&[(0, 1)])), Some(2), "it lost on");
        assert_eq!(paths.note(now + REST * 2, &by(&[(0, 1)]), &ByPath::default()), None);
        assert!((0..1000).all(|psn| paths.of(Psn::new(psn)) != 2), "the second rest is longer");
        paths.note(now + REST * 3, &ByPath::default(), &ByPath::default());
        assert!((0..1000).any(|psn| paths.of(Psn::new(psn)) == 2));
    }

    #[test]
    fn a_calm_path_rests_less_the_next_time() {
        let mut paths = Paths::new(2);
        let mut now = Instant::from_nanos(1);
        let leave = |paths: &mut Paths, now| assert_eq!(paths.note(now, &by(&[(0, 50)]), &by(&[(1, 8)])), Some(1));
        let rest = |paths: &Paths| paths.paths[1].rest;
        for nth in 0..8 {
            leave(&mut paths, now);
            assert_eq!(rest(&paths), (REST * (1 << nth)).min(LONGEST_REST));
            assert!(paths.waits());
            now = now + rest(&paths);
            paths.come_back(now);
            assert_eq!(paths.active, [0, 1]);
        }
        now = now + (LONGEST_REST - Duration::from_nanos(1));
        paths.come_back(now);
        assert_eq!(rest(&paths), LONGEST_REST);
        now = now + Duration::from_nanos(1);
        paths.come_back(now);
        assert_eq!(rest(&paths), LONGEST_REST / 2);
        leave(&mut paths, now);
        assert_eq!(rest(&paths), LONGEST_REST);
        for _ in 0..8 {
            now = now + LONGEST_REST;
            paths.come_back(now);
        }
        assert_eq!(rest(&paths), Duration::ZERO, "forgotten");
        assert!(!paths.waits());
        leave(&mut paths, now);
        assert_eq!(rest(&paths), REST);
    }

    #[test]
    fn a_timeout_has_all_be_used_and_packets_change_paths() {
        let mut paths = Paths::new(2);
        let now = Instant::from_nanos(1);
        assert_eq!(paths.note(now, &by(&[(0, 50)]), &by(&[(1, 8)])), Some(1));
        assert_eq!((paths.of(Psn::new(0)), paths.another(0)), (0, 0));
        paths.use_all(now);
        assert_eq!((paths.of(Psn::new(0)), paths.another(0)), (1, 1));
        paths.use_all(now);
        assert_eq!((paths.of(Psn::new(0)), paths.of(Psn::new(STRIPE))), (0, 1));
        assert_eq!(paths.note(now, &by(&[(0, 50)]), &by(&[(1, 8)])), Some(1), "it lost on");
        assert_eq!(paths.paths[1].rest, REST * 2);
    }

    #[test]
    fn where_all_lose_none_is_left() {
        let mut paths = Paths::new(3);
        let now = Instant::from_nanos(1);
        for _ in 0..100 {
            assert_eq!(paths.note(now, &by(&[(0, 90), (1, 88), (2, 91)]), &by(&[(0, 10), (1, 12), (2, 9)])), None);
        }
        let mut one = Paths::new(1);
        assert_eq!(one.note(now, &ByPath::default(), &by(&[(0, 100)])), None);
        assert_eq!((one.of(Psn::new(5)), one.another(0)), (0, 0));
    }
}
