//! Measures other ways to send and receive UDP on one host, beside those that urxe takes. Prints the table of
//! docs/adr/0019-udp-trials.md.

use std::process::ExitCode;

use clap::Parser;
use urxe_benches::report::Setting;
use urxe_benches::trials::{Outcomes, TRIALS, Trial, table};

/// Measure other ways to send and receive UDP.
#[derive(Parser)]
#[command(version, about, max_term_width = 100)]
struct Args {
    /// Rounds, of which the medians are printed
    #[arg(long, default_value_t = 9, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Measure only what has this in its name or its group's
    #[arg(long, value_name = "WORDS", default_value = "")]
    only: String,
}

fn main() -> ExitCode {
    let args = Args::parse();
    match Setting::new() {
        Ok(setting) => println!("{}", setting.describe()),
        Err(error) => eprintln!("udp-trials: {error:#}"),
    }
    let is_wanted = |trial: &&Trial| trial.name.contains(&args.only) || trial.group.contains(&args.only);
    let mut all: Vec<_> = TRIALS.iter().filter(is_wanted).map(|trial| (trial, Outcomes::default())).collect();
    if all.is_empty() {
        eprintln!("udp-trials: nothing has “{}” in its name", args.only);
        return ExitCode::FAILURE;
    }
    for round in 0..args.rounds {
        // Every other round backwards: what follows a trial is not always the same.
        match round % 2 {
            0 => all.iter_mut().for_each(|(trial, outcomes)| trial.measure(outcomes)),
            _ => all.iter_mut().rev().for_each(|(trial, outcomes)| trial.measure(outcomes)),
        }
    }
    print!("{}", table(&all));
    ExitCode::SUCCESS
}
