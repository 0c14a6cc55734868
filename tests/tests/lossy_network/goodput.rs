//! Goodput over networks that lose packets or let them be overtaken: figures of `make lossy-network`.

use std::fmt;

use anyhow::{Context as _, Result, ensure};
use urxe_tests::forward::{DIFFERENT_PATHS, EQUAL_PATHS};
use urxe_tests::{Host, Perftest, World};

use crate::repeated::{Repeated, watch_repeated};
use crate::{Forwarded, MANY, dropped, lose};

/// Rounds of `make lossy-network`: `URXE_GOODPUT` says how many.
fn rounds() -> Result<u32> {
    Ok(std::env::var("URXE_GOODPUT").map_or(Ok(1), |rounds| rounds.parse())?)
}

/// Length of a run: seconds where figures are wanted, else as many messages as show that it works.
fn length(rounds: u32) -> [&'static str; 2] {
    if rounds > 1 { ["-D", "2"] } else { ["-n", "500"] }
}

const PROGRAMS: [&str; 3] = ["ib_write_bw", "ib_send_bw", "ib_read_bw"];

/// Measures the goodput of a program, in Gbit/s, for so long ([`length`]).
fn gigabits(program: &str, [here, there]: [&Host; 2], length: [&str; 2]) -> Result<f64> {
    // The tail of a message that is lost is probed for long before: the timeout is for an end that waits for a processor.
    let args = [&["-s", "65536", "-u", "16", "--report_gbits"], &length[..]].concat();
    Perftest::start(program, &args, here, there)?.gigabits()
}

/// Figures of several rounds, from the smallest to the largest.
struct Figures(Vec<f64>);

impl Figures {
    fn new(mut figures: Vec<f64>) -> Self {
        figures.sort_by(f64::total_cmp);
        Self(figures)
    }

    fn median(&self) -> f64 {
        self.0[self.0.len() / 2]
    }

    /// Prints the figures, and whether their median reaches the goal.
    fn judged(&self, goal: f64) -> String {
        format!("{self}, {}", if self.median() >= goal { "met" } else { "missed" })
    }
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.2}", self.median())?;
        match &self.0[..] {
            [least, .., most] => write!(f, " ({least:.2} to {most:.2})"),
            _ => Ok(()),
        }
    }
}

/// Prints two rows of a table, those of going back and of selective repeat. `measure` is given which it is, and a place of the row: the
/// first is printed as it is, the others as ratios to the first one of their round, which have goals with selective repeat.
fn print_rows(program: &str, rounds: u32, goals: &[f64], measure: impl Fn(bool, usize) -> Result<f64>) -> Result<()> {
    let mut rows = [false, true].map(|is_selective| (is_selective, vec![Vec::new(); 1 + goals.len()]));
    for round in 0..rounds {
        for (is_selective, columns) in &mut rows {
            let mut rates = vec![0.0; columns.len()];
            for turn in 0..rates.len() {
                // Every other round goes backwards: what changes in the course of a round changes no ratio for long.
                let place = if round.is_multiple_of(2) { turn } else { rates.len() - 1 - turn };
                rates[place] = measure(*is_selective, place)?;
            }
            let first = rates[0];
            rates[1..].iter_mut().for_each(|rate| *rate /= first);
            columns.iter_mut().zip(rates).for_each(|(column, figure)| column.push(figure));
        }
    }
    for (is_selective, columns) in rows {
        let goals = std::iter::once(None).chain(goals.iter().map(Some));
        let cells = columns.into_iter().map(Figures::new).zip(goals).map(|(figures, goal)| match goal {
            Some(goal) if is_selective => figures.judged(*goal),
            _ => figures.to_string(),
        });
        let cells: Vec<String> = cells.collect();
        println!("| {program}{} | {} |", if is_selective { ", selective repeat" } else { "" }, cells.join(" | "));
    }
    Ok(())
}

/// Has programs on these hosts started from now on repeat selectively, or go back.
fn choose(hosts: [&Host; 2], is_selective: bool) {
    for host in hosts {
        host.set_env("URXE_SELECTIVE_REPEAT", if is_selective { "1" } else { "0" });
    }
}

/// Prints the goodput over eight paths for `make lossy-network`, in rounds, and what is repeated from the start of a connection on.
#[test]
fn goodput_over_paths() -> Result<()> {
    const PACKETS: u64 = 20_000;
    let rounds = rounds()?;
    let networks = [Forwarded::over_paths(EQUAL_PATHS)?, Forwarded::over_paths(DIFFERENT_PATHS)?];
    println!("64 KiB messages over eight paths, selective repeat, by a forwarder; Gbit/s, medians of {rounds}.\n");
    println!("| program | paths of one delay | of different delay | ratio | packets | sent again | in vain |");
    println!("|---|---|---|---|---|---|---|");
    for program in PROGRAMS {
        let mut columns = [vec![], vec![], vec![]];
        for _ in 0..rounds {
            let measure = |network: &Forwarded| gigabits(program, network.hosts(), ["-n", "1000"]);
            let [equal, different] = [measure(&networks[0])?, measure(&networks[1])?];
            [equal, different, different / equal].into_iter().zip(&mut columns).for_each(|(new, all)| all.push(new));
        }
        let [equal, different, ratio] = columns.map(|column| Figures::new(column).median());
        let enough = u64::from(rounds) * PACKETS;
        let [here, there] = networks[1].hosts();
        let Repeated { packets, again, in_vain } = watch_repeated(program, here, there, |now| now.packets >= enough)?;
        println!("| {program} | {equal:.2} | {different:.2} | {ratio:.2} | {packets} | {again} | {in_vain} |");
    }
    networks.iter().try_for_each(Forwarded::ensure_all_paths_were_taken)
}

/// Prints the goodput over losses for `make lossy-network`, in rounds.
#[test]
fn goodput() -> Result<()> {
    /// Packets lost in a thousand, and the part of the goodput without losses that is to be left.
    const LOSSES: [(u32, f64); 4] = [(1, 0.97), (10, 0.9), (30, 0.75), (100, 0.4)];
    let rounds = rounds()?;
    let (world, other) = World::linked()?;
    let hosts = [world.host(), &other];
    // A veth passes runs of GSO on as one packet, and the kernel would drop them whole.
    for host in hosts {
        host.run("ethtool", &["-K", "veth0", "gro", "off", "gso", "off", "tx-udp-segmentation", "off"])?;
    }
    println!("64 KiB messages over veth, MTU 1500, losses in both directions: medians of {rounds}, and ranges.");
    println!("With losses: ratios to the run of the same round without; the goals are those of selective repeat.\n");
    println!("| program | no losses, Gbit/s | 0.1 %: ≥ 0.97 | 1 %: ≥ 0.9 | 3 %: ≥ 0.75 | 10 %: ≥ 0.4 |");
    println!("|---|---|---|---|---|---|");
    for program in PROGRAMS {
        print_rows(program, rounds, &LOSSES.map(|(_, goal)| goal), |is_selective, place| {
            let per_mille = place.checked_sub(1).map_or(0, |at| LOSSES[at].0);
            choose(hosts, is_selective);
            hosts.into_iter().try_for_each(|host| lose(host, per_mille))?;
            let rate = gigabits(program, hosts, length(rounds));
            let rate = rate.with_context(|| format!("{program}, {per_mille} in 1000, selective: {is_selective}"))?;
            let lost = dropped(world.host())? + dropped(&other)?;
            ensure!(per_mille == 0 || lost > 0, "no packet was lost: this shows nothing");
            Ok(rate)
        })?;
    }
    Ok(())
}

/// Prints the goodput of packets that others overtake for `make lossy-network`, in rounds, beside that of the same network in order.
#[test]
fn goodput_of_overtaken_packets() -> Result<()> {
    let rounds = rounds()?;
    let networks = [Forwarded::overtaken_by(0)?, Forwarded::overtaken_by(MANY)?];
    println!("64 KiB messages by a forwarder: medians of {rounds}, and ranges.");
    println!("The ratio is one within a round; the goal is that of selective repeat.\n");
    println!("| program | in order, Gbit/s | 1 % overtaken by up to {MANY}, to that: ≥ 0.95 |");
    println!("|---|---|---|");
    for program in PROGRAMS {
        print_rows(program, rounds, &[0.95], |is_selective, place| {
            let hosts = networks[place].hosts();
            choose(hosts, is_selective);
            let rate = gigabits(program, hosts, length(rounds));
            rate.with_context(|| format!("{program}, place {place}, selective: {is_selective}"))
        })?;
    }
    networks[1].ensure_some_were_overtaken()
}
