//! Measures urxe beside bare UDP and TCP, alternating in one run, and prints medians and ratios. Judges no figure: it
//! fails only when a program does.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use clap::Parser;
use urxe_benches::report::{self, Setting};
use urxe_benches::sample::Measured;
use urxe_benches::suite::{PROBES, Probe};
use urxe_tests::{Host, World};

/// Measure urxe beside bare UDP and TCP.
#[derive(Parser)]
#[command(version, about, max_term_width = 100)]
struct Args {
    /// How often everything is measured, in turns
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// No further round begins after this time
    #[arg(long, value_name = "SECONDS")]
    limit: Option<u64>,
    /// Only programs whose command line has this in it
    #[arg(long, value_name = "TEXT", default_value = "")]
    only: String,
    /// Where the raw numbers go
    #[arg(long, value_name = "DIR", default_value = "target/bench")]
    out: PathBuf,
}

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("side-by-side: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Whether every program succeeded.
fn run(args: &Args) -> Result<bool> {
    for probe in PROBES {
        probe.program.find()?;
    }
    let setting = Setting::new()?;
    println!("{}", setting.describe());
    if setting.is_busy() {
        println!("Other programs are running: trust the ratios, not the figures.");
    }
    let world = World::new()?;
    // Unless a program says otherwise.
    world.host().set_env("URXE_LOOPBACK", "udp");
    let (measured, failed) = measure(world.host(), args)?;
    println!("\n{}\n{}", report::figures_table(&measured), report::ratios_table(&measured));
    println!("raw numbers: {}", report::keep(&measured, &setting, &args.out)?.display());
    for (probe, error) in &failed {
        eprintln!("\nfailed: {}\n{error:#}", probe.program.describe());
    }
    Ok(failed.is_empty())
}

/// The values of all rounds, and the probes that failed; a probe that fails is not run again.
fn measure(host: &Host, args: &Args) -> Result<(Measured, Vec<(&'static Probe, anyhow::Error)>)> {
    let (mut measured, mut failed) = (Measured::default(), Vec::new());
    // SAFETY: no preconditions.
    let is_root = unsafe { libc::geteuid() } == 0;
    let mut probes: Vec<&Probe> = Vec::new();
    for probe in PROBES.iter().filter(|probe| probe.program.describe().contains(&args.only)) {
        if probe.program.needs_root() && !is_root {
            println!("not measured, as it needs root: {}", probe.program.describe());
        } else {
            probes.push(probe);
        }
    }
    let start = Instant::now();
    for round in 1..=args.rounds {
        if let Some(limit) = args.limit.filter(|limit| start.elapsed() > Duration::from_secs(*limit)) {
            println!("stopped after {} rounds: {limit} s are over", round - 1);
            break;
        }
        print!("round {round} of {}", args.rounds);
        for probe in std::mem::take(&mut probes) {
            print!(" .");
            std::io::stdout().flush()?;
            match probe.program.run(host) {
                Ok(values) => {
                    ensure!(values.len() == probe.figures.len(), "{values:?} of {}", probe.program.describe());
                    for (figure, value) in probe.figures.iter().zip(values) {
                        measured.push(*figure, value);
                    }
                    probes.push(probe);
                }
                Err(error) => failed.push((probe, error)),
            }
        }
        // What slowly changes on the machine favours nobody.
        probes.reverse();
        println!(" {:.0} s", start.elapsed().as_secs_f64());
    }
    Ok((measured, failed))
}
