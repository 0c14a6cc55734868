//! Measures how bandwidth, latency and goodput depend on sizes, queue pairs and losses, and draws it.

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Parser;
use serde_json::json;
use urxe_benches::curves::{PICTURES, numbers};
use urxe_benches::report::Setting;
use urxe_tests::World;

/// Measure and draw curves.
#[derive(Parser)]
#[command(version, about, max_term_width = 100)]
struct Args {
    /// How often everything is measured; medians are drawn
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Draw only pictures whose name has this in it
    #[arg(long, value_name = "WORD", default_value = "")]
    only: String,
    /// Where the pictures and the numbers go
    #[arg(long, value_name = "DIR", default_value = "target/bench/curves")]
    out: PathBuf,
}

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("curves: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> Result<()> {
    let setting = Setting::new()?;
    println!("{}", setting.describe());
    fs::create_dir_all(&args.out).with_context(|| format!("making {}", args.out.display()))?;
    let world = World::new()?;
    // Unless a program says otherwise.
    world.host().set_env("URXE_LOOPBACK", "udp");
    for picture in PICTURES.iter().filter(|picture| picture.name.contains(&args.only)) {
        let chart = picture.measure(world.host(), args.rounds)?;
        let kept = json!({ "setting": setting.describe(), "rounds": args.rounds, "chart": numbers(&chart) });
        for (end, contents) in [("svg", chart.svg()), ("json", format!("{kept:#}\n"))] {
            let path = args.out.join(format!("{}.{end}", picture.name));
            fs::write(&path, contents).with_context(|| format!("writing {}", path.display()))?;
            println!("{}", path.display());
        }
    }
    Ok(())
}
