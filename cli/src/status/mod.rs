//! `urxe status`: the processes of this network that have a device of urxe's, and how these are.
//!
//! Each device answers on a socket of its own (`urxe-status` asks, `provider/src/status` answers). What they say is shown
//! as a [`table`], as JSON, as [`metrics`], or as the files of [`sysfs`].

mod metrics;
mod sysfs;
mod table;

use std::io::IsTerminal;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::Value;

use crate::out;

/// How long a process may take to answer.
const PATIENCE: Duration = Duration::from_secs(2);

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Print a JSON array, one object for each device of each process
    #[arg(long)]
    json: bool,

    /// Print all counters as Prometheus text (text exposition format 0.0.4)
    #[arg(long, conflicts_with = "json")]
    metrics: bool,

    /// Write the sums of all processes into the counters of the tree DIR, the value of SYSFS_PATH, and print nothing
    #[arg(long, value_name = "DIR", conflicts_with_all = ["json", "metrics", "all"])]
    sysfs: Option<PathBuf>,

    /// Print counters that are 0 as well
    #[arg(long)]
    all: bool,

    /// Do it again after so many seconds, until interrupted
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "1", value_parser = seconds)]
    watch: Option<Duration>,
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| "not a number of seconds".to_owned())?;
    Duration::try_from_secs_f64(seconds).ok().filter(|time| !time.is_zero()).ok_or_else(|| "not a time".to_owned())
}

/// What was found.
#[derive(Default)]
struct Found {
    devices: Vec<Value>,
    /// Devices of other users, and of processes that do not answer.
    silent: usize,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    loop {
        if let Some(tree) = &args.sysfs {
            sysfs::write(tree, &look()?.devices)?;
            let Some(pause) = args.watch else { return Ok(()) };
            std::thread::sleep(pause);
            continue;
        }
        let mut text = match (args.metrics, args.json) {
            (true, _) => metrics::text(&look()?.devices),
            (_, true) => json(&look()?)?,
            _ => table::text(&look()?, args.all),
        };
        if args.watch.is_some() && !args.json && !args.metrics && std::io::stdout().is_terminal() {
            // Home, and clear what is below (ECMA-48).
            text.insert_str(0, "\x1b[H\x1b[J");
        }
        let is_read = out::offer(&text)?;
        let Some(pause) = args.watch.filter(|_| is_read) else { return Ok(()) };
        std::thread::sleep(pause);
    }
}

fn look() -> Result<Found> {
    let answers = urxe_status::ask_all(PATIENCE).context("listing the sockets of this network namespace")?;
    let (mut devices, mut silent) = (Vec::new(), answers.silent);
    for report in &answers.reports {
        match serde_json::from_str::<Value>(&report.text) {
            Ok(device) if report.is_by(device["pid"].as_u64()) => devices.push(device),
            // It took too long, is another version, or speaks for somebody else.
            Ok(_) | Err(_) => silent += 1,
        }
    }
    devices.sort_by_key(|device| (device["pid"].as_u64(), device["device"].as_str().map(str::to_owned)));
    Ok(Found { devices, silent })
}

fn json(found: &Found) -> Result<String> {
    Ok(serde_json::to_string_pretty(&found.devices)? + "\n")
}
