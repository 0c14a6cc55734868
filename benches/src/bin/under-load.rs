//! Measures how long programs take while spinners want the processors, beside UCX through shared memory. `make bench-load`
//! builds what it needs.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use clap::Parser;
use urxe_benches::load::{GOAL, Spinners, TASKS, Times};
use urxe_benches::report::Setting;
use urxe_tests::World;

/// Measure programs on a machine that has no processor to spare.
#[derive(Parser)]
#[command(version, about, max_term_width = 100)]
struct Args {
    /// Runs of each program at each load
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Spinners for each processor
    #[arg(long, value_delimiter = ',', default_value = "1,2,5,10")]
    loads: Vec<usize>,
    /// Seconds after which a run counts as one that does not end, as one that fails does
    #[arg(long, default_value_t = 60)]
    limit: u64,
    /// Seconds after which no other row is begun, for machines that have no hours [default: none]
    #[arg(long, value_name = "SECONDS")]
    limit_total: Option<u64>,
    /// Seed of the spinners' times
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Measure only what has this in its name
    #[arg(long, value_name = "WORDS", default_value = "")]
    only: String,
}

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("under-load: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> Result<()> {
    println!("{}", Setting::new()?.describe());
    let world = World::new()?;
    let processors = std::thread::available_parallelism()?.get();
    let tasks: Vec<_> = TASKS.iter().filter(|task| task.name.contains(&args.only)).collect();
    ensure!(!tasks.is_empty(), "nothing has “{}” in its name", args.only);
    println!("| program | spinners a processor | ended | seconds | UCX, sysv: ended | seconds | ratio | goal |");
    println!("|---|---|---|---|---|---|---|---|");
    let start = Instant::now();
    let rows: Vec<_> = args.loads.iter().flat_map(|load| tasks.iter().map(move |task| (*load, *task))).collect();
    for (number, (load, task)) in (1_usize..).zip(&rows) {
        let mut times = Times::default();
        for round in 0..args.rounds {
            let _spinners = Spinners::start(load * processors, args.seed + u64::from(round));
            task.round(world.host(), Duration::from_secs(args.limit), round, &mut times);
        }
        for failure in &times.failures {
            eprintln!("under-load: {}: {failure:#}", task.name);
        }
        let ratio = times.ratio().map_or_else(|| "none".to_owned(), |ratio| format!("{ratio:.2}"));
        let (urxe, beside) = (Side(&times.urxe), Side(&times.beside));
        let verdict = if times.meet_goal() { "met" } else { "missed" };
        println!("| {} | {load} | {urxe} | {beside} | {ratio} | all end, {GOAL}: {verdict} |", task.name);
        let left = rows.len() - number;
        let is_over = |limit: &u64| left > 0 && start.elapsed() >= Duration::from_secs(*limit);
        if let Some(limit) = args.limit_total.filter(is_over) {
            println!("\nStopped after {limit} s (--limit-total): {left} of {} rows are not measured.", rows.len());
            break;
        }
    }
    Ok(())
}

/// Runs of one side: how many ended, and the median of their times.
struct Side<'a>(&'a [Option<Duration>]);

impl std::fmt::Display for Side<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut ended: Vec<_> = self.0.iter().flatten().collect();
        ended.sort();
        write!(f, "{} of {} | ", ended.len(), self.0.len())?;
        match ended.get(ended.len().saturating_sub(1) / 2) {
            Some(median) => write!(f, "{:.1}", median.as_secs_f64()),
            None => f.write_str("none"),
        }
    }
}
