//! Measures what captures, explanations, strict mode, faults and quirks cost while none of them is asked for. `make cost`
//! builds what it needs.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Result, ensure};
use clap::Parser;
use urxe_benches::cost::{self, Bench, PROBES, Probe, Round};
use urxe_benches::report::Setting;

/// Measure the library against one that cannot be looked into.
#[derive(Parser)]
#[command(version, about, max_term_width = 100)]
struct Args {
    /// The library that was built with RUSTFLAGS='--cfg urxe_unobserved'
    #[arg(long, value_name = "FILE")]
    without: PathBuf,
    /// How often everything is measured: without, with, with, without
    #[arg(long, default_value_t = 7, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Measure only what has this in its name
    #[arg(long, value_name = "WORDS", default_value = "")]
    only: String,
    /// Where the raw numbers go
    #[arg(long, value_name = "DIR", default_value = "target/bench")]
    out: PathBuf,
}

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("cost: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> Result<()> {
    let setting = Setting::new()?;
    println!("{}", setting.describe());
    if setting.is_busy() {
        println!("Other programs are running: a difference of a few percent is theirs.");
    }
    let bench = Bench::new(&args.without)?;
    let wanted = PROBES.iter().filter(|probe| probe.name.contains(&args.only));
    let mut measured: Vec<(&Probe, Vec<Round>)> = wanted.map(|probe| (probe, Vec::new())).collect();
    ensure!(!measured.is_empty(), "nothing has “{}” in its name", args.only);
    let start = Instant::now();
    for round in 1..=args.rounds {
        print!("round {round} of {}", args.rounds);
        for (probe, rounds) in &mut measured {
            print!(" .");
            std::io::stdout().flush()?;
            rounds.push(bench.round(probe)?);
        }
        println!(" {:.0} s", start.elapsed().as_secs_f64());
    }
    println!("\n{}", cost::table(&measured));
    println!("raw numbers: {}", cost::keep(&measured, &setting, &args.out)?.display());
    Ok(())
}
