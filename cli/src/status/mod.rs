//! `urxe status`: the processes of this network that have a device of urxe's, and how these are.
//!
//! Each device answers on a socket of its own (`urxe-status` asks, `provider/src/status` answers). What they say is shown
//! as a [`table`], as JSON, as [`metrics`], or as the files of [`sysfs`].

mod metrics;
mod sysfs;
mod table;

use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::Value;

use crate::out;

/// Counters of what is to happen; others are of trouble.
pub(crate) const HARMLESS: [&str; 16] = [
    "rx_packets",
    "rx_bytes",
    "rx_datagrams",
    "forwarded_out",
    "forwarded_in",
    "flows_opened",
    "tx_packets",
    "tx_bytes",
    "tx_runs",
    "tx_ring_runs",
    "rx_ring_runs",
    "rings_opened",
    "rings_accepted",
    "rings_closed",
    "inside_runs",
    "contended_locks",
];

/// How long a process may take to answer.
const TIMEOUT: Duration = Duration::from_secs(2);

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

/// Reads a number of seconds.
pub(crate) fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| "not a number of seconds".to_owned())?;
    Duration::try_from_secs_f64(seconds).ok().filter(|time| !time.is_zero()).ok_or_else(|| "not a time".to_owned())
}

/// Reports found.
#[derive(Default)]
pub(crate) struct Found {
    pub(crate) devices: Vec<Value>,
    /// Devices of other users, and of processes that do not answer.
    pub(crate) silent: usize,
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

/// The devices of processes that still run, and the counters of those that were closed below the `urxe run` of this folder.
pub(crate) fn at_end(run_folder: &Path) -> String {
    let mut text = match look() {
        Ok(found) => table::text(&found, true),
        Err(error) => format!("{error:#}\n"),
    };
    let folder = run_folder.join(urxe_options::RUN_FINAL_COUNTERS);
    let Ok(closed) = urxe_status::FinalCounters::open(&folder, urxe_net::ipc::credentials::own_uid()) else {
        return text;
    };
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        // Beside the devices' files there is a lock.
        let Some((device, _network)) = name.split_once('@') else { continue };
        text += &format!("\nclosed devices {device}, together:\n");
        for (name, value) in closed.read(&name).into_iter().flatten().filter(|(_, value)| *value != 0) {
            text += &format!("  {name} {value}\n");
        }
    }
    text
}

/// Asks every device of this network.
pub(crate) fn look() -> Result<Found> {
    let answers = urxe_status::ask_all(TIMEOUT).context("listing the sockets of this network namespace")?;
    let (mut devices, mut silent) = (Vec::new(), answers.silent);
    for report in &answers.reports {
        match serde_json::from_str::<Value>(&report.text) {
            Ok(device) if is_plain(&device) && report.is_by(device["pid"].as_u64()) => devices.push(device),
            // It took too long, is another version, or speaks for somebody else.
            Ok(_) | Err(_) => silent += 1,
        }
    }
    devices.sort_by_key(|device| (device["pid"].as_u64(), device["device"].as_str().map(str::to_owned)));
    Ok(Found { devices, silent })
}

/// Whether numbers are numbers, and counters are called as counters are: any user may say anything here, and a name with a line
/// end in it would be a metric of somebody else's.
fn is_plain(device: &Value) -> bool {
    let is_name = |name: &str| name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    let counts = |of: &Value| {
        let counters = of["counters"].as_object();
        counters.is_some_and(|counters| counters.iter().all(|(name, value)| is_name(name) && value.is_u64()))
    };
    let are_plain = |qps: &Vec<Value>| qps.iter().all(|qp| qp["qpn"].is_u64() && counts(qp));
    device["pid"].is_u64() && counts(device) && device["qps"].as_array().is_some_and(are_plain)
}

fn json(found: &Found) -> Result<String> {
    Ok(serde_json::to_string_pretty(&found.devices)? + "\n")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn reports_with_forged_names_or_values_are_refused() {
        let device = |pid: Value, counter: &str, value: Value, qpn: Value| {
            let qps = json!([{"qpn": qpn, "counters": {}}]);
            json!({"pid": pid, "counters": {counter: value}, "qps": qps})
        };
        assert!(is_plain(&device(1.into(), "rx_packets", 5.into(), 17.into())));
        assert!(!is_plain(&device("1".into(), "rx_packets", 5.into(), 17.into())));
        assert!(!is_plain(&device(1.into(), "x{} 1\nurxe_rx_packets_total", 5.into(), 17.into())));
        assert!(!is_plain(&device(1.into(), "rx_packets", "5\u{9b}".into(), 17.into())));
        assert!(!is_plain(&device(1.into(), "rx_packets", 5.into(), "17\"} 1".into())));
        assert!(!is_plain(&json!({"pid": 1})));
    }
}
