//! `urxe status`: the processes of this network that have a device of urxe's, and how these are.
//!
//! Each device answers on a socket of its own (`provider/src/status`); `/proc/net/unix` lists them.

mod metrics;

use std::io::{ErrorKind, IsTerminal, Read, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::Value;

/// What the sockets' names begin with; `@` is how /proc/net/unix shows the abstract namespace.
const NAMES: &str = "@urxe/1/status/";

/// How long a process may take to answer.
const PATIENCE: Duration = Duration::from_secs(2);

/// More than a process with every queue pair it can have would say.
const LONGEST: u64 = 64 << 20;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Print a JSON array, one object for each device of each process
    #[arg(long)]
    json: bool,

    /// Print all counters as Prometheus text (text exposition format 0.0.4)
    #[arg(long, conflicts_with = "json")]
    metrics: bool,

    /// Print counters that are 0 as well
    #[arg(long)]
    all: bool,

    /// Print it again after so many seconds, until interrupted
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
    let mut out = std::io::stdout().lock();
    loop {
        let mut text = match (args.metrics, args.json) {
            (true, _) => metrics::text(),
            (_, true) => json(&look()?)?,
            _ => table(&look()?, args.all),
        };
        if args.watch.is_some() && !args.json && !args.metrics && out.is_terminal() {
            // Home, and clear what is below (ECMA-48).
            text.insert_str(0, "\x1b[H\x1b[J");
        }
        match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
            // Nobody reads any more.
            Err(error) if error.kind() == ErrorKind::BrokenPipe => return Ok(()),
            written => written?,
        }
        let Some(pause) = args.watch else { return Ok(()) };
        std::thread::sleep(pause);
    }
}

fn look() -> Result<Found> {
    let sockets = std::fs::read_to_string("/proc/net/unix").context("reading /proc/net/unix")?;
    let names = sockets.lines().filter_map(|line| line.split_whitespace().nth(7));
    // A connection that is being answered shows up under the same name.
    let names: std::collections::BTreeSet<&str> = names.filter(|name| name.starts_with(NAMES)).collect();
    let mut found = Found::default();
    for name in names {
        match ask(name.trim_start_matches('@')) {
            Ok(Some(device)) => found.devices.push(device),
            Ok(None) => {}
            Err(_) => found.silent += 1,
        }
    }
    found.devices.sort_by_key(|device| (device["pid"].as_u64(), device["device"].as_str().map(str::to_owned)));
    Ok(found)
}

/// What one device says; `None` if it has gone meanwhile.
fn ask(name: &str) -> Result<Option<Value>> {
    let stream = match UnixStream::connect_addr(&SocketAddr::from_abstract_name(name)?) {
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => return Ok(None),
        stream => stream?,
    };
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut text = String::new();
    stream.take(LONGEST).read_to_string(&mut text)?;
    Ok(Some(serde_json::from_str(&text)?))
}

fn json(found: &Found) -> Result<String> {
    Ok(serde_json::to_string_pretty(&found.devices)? + "\n")
}

fn table(found: &Found, all: bool) -> String {
    let mut rows =
        vec![["PID", "PROGRAM", "DEVICE", "NETDEV", "QPS", "MRS", "MR BYTES", "SENT", "RECEIVED"].map(str::to_owned)];
    let mut details = Vec::new();
    for device in &found.devices {
        let qps = device["qps"].as_array().map_or(&[][..], Vec::as_slice);
        rows.push([
            device["pid"].to_string(),
            word(&device["program"]),
            word(&device["device"]),
            word(&device["netdev"]),
            qps.len().to_string(),
            device["mrs"]["count"].to_string(),
            device["mrs"]["bytes"].to_string(),
            device["counters"]["tx_packets"].to_string(),
            device["counters"]["rx_packets"].to_string(),
        ]);
        details.push(qps.iter().map(queue_pair).chain(counters(device, all)).collect::<Vec<_>>());
    }
    let mut text = String::new();
    for (index, line) in aligned(&rows).into_iter().enumerate() {
        text += &line;
        for detail in index.checked_sub(1).and_then(|index| details.get(index)).into_iter().flatten() {
            text += &format!("    {detail}\n");
        }
    }
    if found.devices.is_empty() {
        text = "no process of this network uses urxe\n".to_owned();
    }
    if found.silent > 0 {
        text += &format!("{} more: of other users, or busy (root sees all)\n", found.silent);
    }
    text
}

fn word(value: &Value) -> String {
    value.as_str().unwrap_or("?").to_owned()
}

fn queue_pair(qp: &Value) -> String {
    let number = |value: &Value| format!("{:#08x}", value.as_u64().unwrap_or_default());
    let peer = &qp["peer"];
    let to = match peer["address"].as_str() {
        Some(address) => format!("  to {} of {address}", number(&peer["qpn"])),
        None => String::new(),
    };
    format!("QP {}  {:<8} {:<5}{to}", number(&qp["qpn"]), word(&qp["type"]), word(&qp["state"]))
}

/// Counters of what should not happen, that have happened; or all.
fn counters(device: &Value, all: bool) -> Option<String> {
    const HARMLESS: [&str; 9] = [
        "rx_packets",
        "rx_bytes",
        "rx_datagrams",
        "forwarded_out",
        "forwarded_in",
        "flows_opened",
        "tx_packets",
        "tx_bytes",
        "tx_runs",
    ];
    let counters = device["counters"].as_object()?;
    let said: Vec<String> = counters
        .iter()
        .filter(|(name, value)| all || !HARMLESS.contains(&name.as_str()) && value.as_u64() != Some(0))
        .map(|(name, value)| format!("{name} {value}"))
        .collect();
    (!said.is_empty()).then(|| said.join(", "))
}

/// Columns as wide as their widest word; numbers to the right.
fn aligned<const N: usize>(rows: &[[String; N]]) -> Vec<String> {
    let widths: Vec<usize> = (0..N)
        .map(|column| rows.iter().filter_map(|row| row.get(column)).map(String::len).max().unwrap_or(0))
        .collect();
    let line = |row: &[String; N]| {
        let cells = row.iter().zip(&widths).enumerate().map(|(column, (cell, width))| {
            let is_text = (1..=3).contains(&column);
            if is_text { format!("{cell:<width$}") } else { format!("{cell:>width$}") }
        });
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned() + "\n"
    };
    rows.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table() {
        let device = serde_json::json!({
            "pid": 7, "program": "rping", "device": "urxe0", "netdev": "lo",
            "qps": [{"qpn": 0x123, "type": "RC", "state": "RTS", "peer": {"address": "::1", "qpn": 0x456}},
                    {"qpn": 0x124, "type": "UD", "state": "INIT", "peer": null}],
            "mrs": {"count": 2, "bytes": 4096},
            "counters": {"tx_packets": 10, "rx_packets": 9, "ack_timeout": 1, "icrc_err": 0},
        });
        let text = table(&Found { devices: vec![device], silent: 1 }, false);
        let lines: Vec<&str> = text.lines().map(str::trim).collect();
        assert_eq!(
            lines,
            [
                "PID  PROGRAM  DEVICE  NETDEV  QPS  MRS  MR BYTES  SENT  RECEIVED",
                "7  rping    urxe0   lo        2    2      4096    10         9",
                "QP 0x000123  RC       RTS    to 0x000456 of ::1",
                "QP 0x000124  UD       INIT",
                "ack_timeout 1",
                "1 more: of other users, or busy (root sees all)",
            ]
        );
        assert_eq!(table(&Found::default(), false), "no process of this network uses urxe\n");
    }
}
