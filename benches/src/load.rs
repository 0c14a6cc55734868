//! Wall time of programs while spinners want the processors, beside the same over UCX's shared memory.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::Result;
use urxe_tests::Host;

use crate::ends::{run_pair, run_ranks};
use crate::suite::Goal;

/// Goal of the time of a run over urxe, as a ratio to the time of what it is held against.
pub const GOAL: Goal = Goal::AtMost(2.0);

/// A program and what it is held against.
#[derive(Debug)]
pub struct Task {
    /// Name of the row.
    pub name: &'static str,
    urxe: Run,
    beside: Run,
}

/// A run, to its end.
#[derive(Debug)]
enum Run {
    /// Server and client of a program.
    Pair { program: &'static str, args: &'static str, env: &'static [(&'static str, &'static str)] },
    /// Ranks of an MPI program that sum up: over these transports of UCX.
    AllReduce { ranks: usize, tls: &'static str, device: &'static str },
}

const SYSV: &[(&str, &str)] = &[("UCX_TLS", "sysv,self"), ("UCX_WARN_UNUSED_ENV_VARS", "n")];
const URXE: &[(&str, &str)] = &[("URXE_LOOPBACK", "shm")];
const DIRECT: &[(&str, &str)] = &[("URXE_LOOPBACK", "shm"), ("URXE_DIRECT", "1")];
const UCX_OVER_URXE: &[(&str, &str)] = &[
    ("URXE_LOOPBACK", "shm"),
    ("UCX_TLS", "rc_v,self"),
    ("UCX_NET_DEVICES", "urxe0:1"),
    ("UCX_WARN_UNUSED_ENV_VARS", "n"),
];

const UCX_OVER_URXE_DIRECT: &[(&str, &str)] =
    &[("URXE_DIRECT", "1"), UCX_OVER_URXE[0], UCX_OVER_URXE[1], UCX_OVER_URXE[2], UCX_OVER_URXE[3]];

const fn urxe(program: &'static str, args: &'static str) -> Run {
    Run::Pair { program, args, env: URXE }
}

const fn direct(program: &'static str, args: &'static str) -> Run {
    Run::Pair { program, args, env: DIRECT }
}

const fn ucx(args: &'static str) -> Run {
    Run::Pair { program: "ucx_perftest", args, env: SYSV }
}

/// The programs. As many exchanges, or bytes, on either side.
pub const TASKS: &[Task] = &[
    // Start of the programs: perftest measures the clock of its processor at each end.
    Task {
        name: "5 round trips: ib_write_lat, direct",
        urxe: direct("ib_write_lat", "-d urxe0 -x 1 -F -s 8 -n 5"),
        beside: ucx("-t ucp_put_lat -s 8 -n 5"),
    },
    Task {
        name: "ib_write_lat",
        urxe: urxe("ib_write_lat", "-d urxe0 -x 1 -F -s 8 -n 30000"),
        beside: ucx("-t ucp_put_lat -s 8 -n 30000"),
    },
    Task {
        name: "ib_write_lat, direct",
        urxe: direct("ib_write_lat", "-d urxe0 -x 1 -F -s 8 -n 30000"),
        beside: ucx("-t ucp_put_lat -s 8 -n 30000"),
    },
    Task {
        name: "ib_send_lat, direct",
        urxe: direct("ib_send_lat", "-d urxe0 -x 1 -F -s 8 -n 30000"),
        beside: ucx("-t tag_lat -s 8 -n 30000"),
    },
    Task {
        name: "ib_send_lat",
        urxe: urxe("ib_send_lat", "-d urxe0 -x 1 -F -s 8 -n 30000"),
        beside: ucx("-t tag_lat -s 8 -n 30000"),
    },
    Task {
        name: "ibv_rc_pingpong",
        urxe: urxe("ibv_rc_pingpong", "-d urxe0 -g 1 -s 8 -n 30000"),
        beside: ucx("-t tag_lat -s 8 -n 30000"),
    },
    Task {
        name: "ib_write_bw 64 KiB, without its sleep(1)",
        urxe: urxe("ib_write_bw", "-d urxe0 -x 1 -F -s 65536 -n 2000"),
        beside: ucx("-t ucp_put_bw -s 65536 -n 2000"),
    },
    Task {
        name: "ib_write_bw 64 KiB, direct, without its sleep(1)",
        urxe: direct("ib_write_bw", "-d urxe0 -x 1 -F -s 65536 -n 2000"),
        beside: ucx("-t ucp_put_bw -s 65536 -n 2000"),
    },
    Task {
        name: "UCX over urxe, tag_lat",
        urxe: Run::Pair { program: "ucx_perftest", args: "-t tag_lat -s 8 -n 30000", env: UCX_OVER_URXE },
        beside: ucx("-t tag_lat -s 8 -n 30000"),
    },
    Task {
        name: "UCX over urxe, tag_lat, direct",
        urxe: Run::Pair { program: "ucx_perftest", args: "-t tag_lat -s 8 -n 30000", env: UCX_OVER_URXE_DIRECT },
        beside: ucx("-t tag_lat -s 8 -n 30000"),
    },
    Task {
        name: "Open MPI, allreduce of 4 ranks",
        urxe: Run::AllReduce { ranks: 4, tls: "rc_v,self", device: "urxe0:1" },
        beside: Run::AllReduce { ranks: 4, tls: "sysv,self", device: "all" },
    },
];

impl Run {
    /// Time for which the program sleeps, whatever the device: `sleep(1)` in `main` of perftest's write_bw.c, once the ends are connected.
    fn sleeps(&self) -> Duration {
        match self {
            Self::Pair { program: "ib_write_bw", .. } => Duration::from_secs(1),
            _ => Duration::ZERO,
        }
    }

    /// Runs it, and returns the time that it took without its sleep; `None` if it does not end within the limit.
    ///
    /// # Errors
    /// A program fails.
    fn time(&self, host: &Host, limit: Duration) -> Result<Option<Duration>> {
        let limit = limit + self.sleeps();
        let start = Instant::now();
        let ended = match self {
            Self::Pair { program, args, env } => {
                run_pair(host, program, &args.split_whitespace().collect::<Vec<_>>(), env, limit)?
            }
            Self::AllReduce { ranks, tls, device } => run_ranks(host, *ranks, "allreduce", tls, device, limit)?,
        };
        Ok(ended.then(|| start.elapsed().saturating_sub(self.sleeps())))
    }
}

/// Times of a task with so many spinners a processor: over urxe, and beside it.
#[derive(Debug, Default)]
pub struct Times {
    /// Times over urxe; `None` for a run that did not end, or failed.
    pub urxe: Vec<Option<Duration>>,
    /// Runs that these are held against.
    pub beside: Vec<Option<Duration>>,
    /// Runs of either side that failed.
    pub failures: Vec<anyhow::Error>,
}

impl Task {
    /// Runs both sides once, in turns, the other first every other round.
    pub fn round(&self, host: &Host, limit: Duration, round: u32, times: &mut Times) {
        let Times { urxe, beside, failures } = times;
        let mut sides = [(&self.urxe, urxe), (&self.beside, beside)];
        if !round.is_multiple_of(2) {
            sides.reverse();
        }
        for (run, times) in sides {
            times.push(run.time(host, limit).unwrap_or_else(|failure| {
                failures.push(failure);
                None
            }));
        }
    }
}

impl Times {
    /// Median of the ratios of rounds in which the other ended: infinite for a run over urxe that did not.
    pub fn ratio(&self) -> Option<f64> {
        let seconds = |time: &Option<Duration>| time.map(|time| time.as_secs_f64());
        let rounds = self.urxe.iter().zip(&self.beside);
        let ratio = |(urxe, beside)| Some(seconds(urxe).unwrap_or(f64::INFINITY) / seconds(beside)?);
        let mut ratios: Vec<f64> = rounds.filter_map(ratio).collect();
        ratios.sort_by(f64::total_cmp);
        ratios.get(ratios.len().checked_sub(1)? / 2).copied()
    }

    /// Whether all runs over urxe ended, and met the [`GOAL`] wherever the other ended.
    pub fn meet_goal(&self) -> bool {
        self.urxe.iter().all(Option::is_some) && self.ratio().is_none_or(|ratio| GOAL.is_met(ratio))
    }
}

/// Threads that compute, and now and then sleep, until this is dropped.
#[derive(Debug)]
pub struct Spinners {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

/// Longest time that a spinner computes, and sleeps: so that the scheduler finds no pattern.
const BURST: Duration = Duration::from_millis(200);
const PAUSE: Duration = Duration::from_millis(5);

impl Spinners {
    /// Starts so many; the seed decides their times.
    pub fn start(count: usize, seed: u64) -> Self {
        let stop = Arc::<AtomicBool>::default();
        let spin = |index: usize| {
            let stop = Arc::clone(&stop);
            let mut random = seed ^ (index as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
            // xorshift64: a fraction of 2^16.
            let mut part_of = move |time: Duration| {
                random ^= random << 13;
                random ^= random >> 7;
                random ^= random << 17;
                time * u32::from((random >> 48) as u16) / (1 << 16)
            };
            thread::spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    let (start, burst) = (Instant::now(), part_of(BURST));
                    while start.elapsed() < burst {
                        std::hint::spin_loop();
                    }
                    thread::sleep(part_of(PAUSE));
                }
            })
        };
        let threads = (0..count).map(spin).collect();
        Self { stop, threads }
    }
}

impl Drop for Spinners {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            // A thread that panicked has told so.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Times of so many seconds; 0 for a run that did not end.
    fn times(urxe: &[u64], beside: &[u64]) -> Times {
        let seconds = |times: &[u64]| times.iter().map(|s| (*s > 0).then(|| Duration::from_secs(*s))).collect();
        Times { urxe: seconds(urxe), beside: seconds(beside), failures: Vec::new() }
    }

    #[test]
    fn the_goal_is_that_all_end_in_time() {
        assert!(times(&[4, 1, 6], &[2, 1, 1]).meet_goal());
        assert!(!times(&[5, 5, 1], &[2, 2, 1]).meet_goal());
        assert!(!times(&[1, 0, 1], &[1, 1, 1]).meet_goal());
        assert!(times(&[1, 1], &[0, 0]).meet_goal());
    }

    #[test]
    fn a_program_that_fails_counts_as_one_that_does_not_end() {
        let world = urxe_tests::World::new().unwrap();
        let run = |program| Run::Pair { program, args: "", env: &[] };
        let task = Task { name: "fails", urxe: run("false"), beside: run("false") };
        let mut times = Times::default();
        task.round(world.host(), Duration::from_secs(10), 0, &mut times);
        assert_eq!(
            (times.urxe.as_slice(), times.beside.as_slice(), times.failures.len()),
            (&[None][..], &[None][..], 2)
        );
        assert!(!times.meet_goal());
    }

    #[test]
    fn a_run_that_did_not_end_is_infinitely_slow() {
        let of = |urxe: &[u64], beside: &[u64]| times(urxe, beside).ratio();
        assert_eq!(of(&[4, 0, 9, 2], &[2, 1, 3, 0]), Some(3.0));
        assert_eq!(of(&[4, 0, 0], &[2, 1, 1]), Some(f64::INFINITY));
        assert_eq!(of(&[1], &[0]), None);
        assert_eq!(Times::default().ratio(), None);
    }
}
