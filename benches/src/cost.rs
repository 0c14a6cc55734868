//! Overhead of the disabled diagnostics hooks (captures, explanations, strict mode, faults, quirks), and of explanations that
//! `urxe run` keeps for a program that fails: the library against one from which all places that ask were left out
//! (`--cfg urxe_unobserved`).
//!
//! The difference sought is below one percent, far less than what a machine does by itself from one second to the next. So
//! each round runs without, with, with, without: what changes steadily meanwhile cancels out; the ratio is that of the
//! two means, and the median of the rounds' ratios is what counts. Each end keeps to a processor of its own.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde_json::json;
use urxe_tests::{World, artifacts};

use crate::programs::{Perftest, Program, SHARED_MEMORY, Variables};
use crate::report::{Setting, markdown};
use crate::sample::Sample;

/// Least ratio of the speed with the disabled hooks to the speed without.
pub const GOAL: f64 = 0.98;

/// Least ratio with explanations for a program that fails.
const GOAL_EXPLAINED: f64 = 0.9;

/// Measurement of a program, with its goals.
#[derive(Debug)]
pub struct Probe {
    /// Name in the table's row.
    pub name: &'static str,
    program: Program,
    better: Better,
    goal: f64,
}

/// Direction in which a value gets better.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Better {
    Less,
    More,
}

const UDP: Variables = &[("URXE_LOOPBACK", "udp")];
const MEMORY: Variables = &[SHARED_MEMORY];

const fn probe(name: &'static str, perftest: Perftest, way: Variables, better: Better) -> Probe {
    Probe { name, program: Program::Perftest(perftest.with(way).apart()), better, goal: GOAL }
}

/// A probe with the explanations that are on where nobody says otherwise under `urxe run`.
const fn explained(name: &'static str, perftest: Perftest, better: Better) -> Probe {
    let perftest = perftest.with(&[("URXE_EXPLAIN", "failure")]).apart();
    Probe { name, program: Program::Perftest(perftest), better, goal: GOAL_EXPLAINED }
}

const fn large() -> Perftest {
    Perftest::bandwidth("ib_write_bw", "-s 1048576 -n 2000")
}

const fn small() -> Perftest {
    Perftest::rate("ib_write_bw", "-s 8 -l 64 -n 1024000")
}

const fn ping() -> Perftest {
    Perftest::latency("ib_write_lat", "-s 8 -n 50000")
}

/// Probes of `make cost`.
pub const PROBES: &[Probe] = &[
    probe("ib_write_bw 1 MiB, UDP", large(), UDP, Better::More),
    probe("ib_write_bw 8 B, messages, UDP", small(), UDP, Better::More),
    probe("ib_write_lat 8 B, UDP", ping(), UDP, Better::Less),
    probe("ib_write_bw 1 MiB, shared memory", large(), MEMORY, Better::More),
    probe("ib_write_bw 8 B, messages, shared memory", small(), MEMORY, Better::More),
    probe("ib_write_lat 8 B, shared memory", ping(), MEMORY, Better::Less),
    explained("ib_write_bw 8 B, messages, explanations on", small(), Better::More),
    explained("ib_write_lat 8 B, explanations on", ping(), Better::Less),
];

/// Two libraries, installed by turns in one world.
#[derive(Debug)]
pub struct Bench {
    world: World,
    with: PathBuf,
    without: PathBuf,
}

/// The values of a probe in one round.
#[derive(Debug, Clone, Copy)]
pub struct Round {
    /// Value with the usual library: the mean of two runs.
    pub with: f64,
    /// Value with the library without hooks: the mean of two runs.
    pub without: f64,
}

impl Bench {
    /// A world, and a folder for the library without hooks at `library`.
    pub fn new(library: &Path) -> Result<Self> {
        let world = World::new()?;
        let without = world.dir().join("without");
        fs::create_dir(&without)?;
        // `urxe install` installs what is beside it; an older release's command installs its library.
        let beside = library.with_file_name("urxe");
        let command = if beside.exists() { beside } else { artifacts::urxe()? };
        fs::copy(command, without.join("urxe"))?;
        fs::copy(library, without.join("liburxe.so")).with_context(|| library.display().to_string())?;
        let with = artifacts::bin_dir()?.to_path_buf();
        let same = fs::read(with.join("liburxe.so"))? == fs::read(without.join("liburxe.so"))?;
        ensure!(!same, "{} is the usual library", library.display());
        // What the world came with: each run installs its own.
        world.host().run(with.join("urxe"), &["uninstall"])?;
        Ok(Self { world, with, without })
    }

    /// Runs a probe four times.
    pub fn round(&self, probe: &Probe) -> Result<Round> {
        let run = |dir: &Path| -> Result<f64> {
            self.world.host().run(dir.join("urxe"), &["install"])?;
            let values = probe.program.run(self.world.host())?;
            // Another release may not read this one's manifest.
            self.world.host().run(dir.join("urxe"), &["uninstall"])?;
            values.first().copied().context("no figure")
        };
        let [a, b, c, d] = [run(&self.without)?, run(&self.with)?, run(&self.with)?, run(&self.without)?];
        Ok(Round { with: f64::midpoint(b, c), without: f64::midpoint(a, d) })
    }
}

impl Probe {
    /// How fast it was with all of it, in terms of how fast it was without.
    fn speed(&self, round: Round) -> f64 {
        match self.better {
            Better::More => round.with / round.without,
            Better::Less => round.without / round.with,
        }
    }

    /// Speeds of the rounds measured.
    pub fn speeds(&self, rounds: &[Round]) -> Sample {
        rounds.iter().map(|round| self.speed(*round)).collect()
    }
}

/// A row for each probe: medians, ratio, goal. Markdown, aligned.
pub fn table(measured: &[(&Probe, Vec<Round>)]) -> String {
    let heads = ["measured", "without", "with", "speed: median", "min..max", "goal"];
    let mut rows = vec![heads.map(str::to_owned).to_vec()];
    for (probe, rounds) in measured {
        let median = |values: Sample| values.median().map_or_else(|| "-".to_owned(), |value| format!("{value:.3}"));
        let speeds = probe.speeds(rounds);
        let verdict = speeds.median().map_or("", |speed| if speed >= probe.goal { "met" } else { "missed" });
        rows.push(vec![
            probe.name.into(),
            median(rounds.iter().map(|round| round.without).collect()),
            median(rounds.iter().map(|round| round.with).collect()),
            median(speeds.clone()),
            speeds.range().map_or_else(String::new, |(min, max)| format!("{min:.3}..{max:.3}")),
            format!("≥ {} {verdict}", probe.goal),
        ]);
    }
    markdown(&rows)
}

/// Writes every value to a file named by the date in `dir`; its path.
pub fn keep(measured: &[(&Probe, Vec<Round>)], setting: &Setting, dir: &Path) -> Result<PathBuf> {
    let row = |(probe, rounds): &(&Probe, Vec<Round>)| {
        let values: Vec<_> = rounds.iter().map(|round| json!([round.without, round.with])).collect();
        json!({ "name": probe.name, "program": probe.program.describe(), "without_and_with": values })
    };
    let all = json!({ "setting": setting.to_json(), "probes": measured.iter().map(row).collect::<Vec<_>>() });
    fs::create_dir_all(dir).with_context(|| format!("making {}", dir.display()))?;
    let path = dir.join(format!("cost-{}.json", setting.date()));
    fs::write(&path, format!("{all:#}\n")).with_context(|| format!("writing {}", path.display()))?;
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faster_is_more_than_one() {
        let [rate, time] = [&PROBES[0], &PROBES[2]];
        let rounds = [Round { with: 2.0, without: 1.0 }, Round { with: 1.0, without: 1.0 }];
        assert_eq!(rate.speeds(&rounds).values(), [2.0, 1.0]);
        assert_eq!(time.speeds(&rounds).values(), [0.5, 1.0]);
    }

    #[test]
    fn the_table_says_what_is_met() {
        let round = |with| vec![Round { with, without: 1.0 }];
        let text = table(&[(&PROBES[0], round(0.99)), (&PROBES[1], round(0.97)), (&PROBES[2], Vec::new())]);
        assert_eq!((text.matches("0.98 met").count(), text.matches("0.98 missed").count()), (1, 1), "{text}");
        assert_eq!(text.lines().count(), 5);
    }
}
