//! Streams over eight paths between two hosts, through a forwarder.

use anyhow::{Context as _, Result};
use urxe_tests::forward::{DIFFERENT_PATHS, EQUAL_PATHS};
use urxe_tests::{Perftest, World};

/// Size and number of the messages.
const ARGS: &str = "-s 65536 -n 1000";
/// Variables of both ends.
const SPREAD: [(&str, &str); 2] = [("URXE_SELECTIVE_REPEAT", "1"), ("URXE_PATHS", "8")];

/// Delays of eight paths.
#[derive(Debug, Clone, Copy)]
pub enum Paths {
    /// Paths as slow as the slowest of the others.
    Equal,
    /// Paths from fast to slow.
    Different,
}

impl Paths {
    const fn micros(self) -> [u64; 8] {
        match self {
            Self::Equal => EQUAL_PATHS,
            Self::Different => DIFFERENT_PATHS,
        }
    }

    /// Returns the command line, and what the paths are.
    pub fn describe(self) -> String {
        let (variables, micros) = (crate::programs::assignments(&SPREAD), self.micros());
        format!("{variables}ib_write_bw {ARGS} over paths of {micros:?} µs")
    }

    /// Runs both ends. Returns Gbit/s.
    pub fn run(self) -> Result<Vec<f64>> {
        let world = World::new()?;
        let (other, between) = (world.add_host()?, world.add_host()?);
        let forwarder = world.link_by_paths(world.host(), &between, &other, &self.micros())?;
        for (host, (name, value)) in [world.host(), &other].into_iter().flat_map(|host| SPREAD.map(|new| (host, new))) {
            host.set_env(name, value);
        }
        let args: Vec<&str> = ARGS.split_whitespace().chain(["--report_gbits"]).collect();
        let stream = Perftest::start("ib_write_bw", &args, world.host(), &other)?;
        let gigabits = stream.gigabits().with_context(|| forwarder.stderr_so_far())?;
        Ok(vec![gigabits])
    }
}
