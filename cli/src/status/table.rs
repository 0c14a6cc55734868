//! For people: a line for each device of each process, its queue pairs below.

use serde_json::Value;

use super::{Found, HARMLESS};

pub(super) fn text(found: &Found, all: bool) -> String {
    let mut rows =
        vec![["PID", "PROGRAM", "DEVICE", "NETDEV", "QPS", "MRS", "MR BYTES", "SENT", "RECEIVED"].map(str::to_owned)];
    let mut details = Vec::new();
    for device in &found.devices {
        let qps = device["qps"].as_array().map_or(&[][..], Vec::as_slice);
        rows.push([
            amount(&device["pid"]),
            word(&device["program"]),
            word(&device["device"]),
            word(&device["netdev"]),
            qps.len().to_string(),
            amount(&device["mrs"]["count"]),
            amount(&device["mrs"]["bytes"]),
            amount(&device["counters"]["tx_packets"]),
            amount(&device["counters"]["rx_packets"]),
        ]);
        let with_counters = |qp: &Value| {
            let its = counters(qp, all).map(|its| format!("  {its}"));
            std::iter::once(queue_pair(qp)).chain(its).collect::<Vec<_>>()
        };
        details.push(qps.iter().flat_map(with_counters).chain(counters(device, all)).collect::<Vec<_>>());
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

/// Without what a terminal would obey: processes call themselves what they like.
fn word(value: &Value) -> String {
    value.as_str().unwrap_or("?").replace(char::is_control, "?")
}

fn amount(value: &Value) -> String {
    value.as_u64().map_or("?".to_owned(), |amount| amount.to_string())
}

fn queue_pair(qp: &Value) -> String {
    let number = |value: &Value| format!("{:#08x}", value.as_u64().unwrap_or_default());
    let peer = &qp["peer"];
    let to = match peer["address"].as_str() {
        Some(_) => {
            let address = word(&peer["address"]);
            let way = if peer["way"] == "shm" { ", through memory" } else { "" };
            format!("  to {} of {address}{way}", number(&peer["qpn"]))
        }
        None => String::new(),
    };
    format!("QP {}  {:<8} {:<5}{to}", number(&qp["qpn"]), word(&qp["type"]), word(&qp["state"]))
}

/// Counters of what should not happen, that have happened; or all.
fn counters(of: &Value, all: bool) -> Option<String> {
    let counters = of["counters"].as_object()?;
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
            "pid": 7, "program": "r\x1b[2J", "device": "urxe0", "netdev": "lo",
            "qps": [{"qpn": 0x123, "type": "RC", "state": "RTS", "peer": {"address": "::1", "qpn": 0x456, "way": "udp"}},
                    {"qpn": 0x125, "type": "RC", "state": "RTS",
                     "peer": {"address": "127.0.0.1", "qpn": 0x457, "way": "shm"}},
                    {"qpn": 0x124, "type": "UD", "state": "INIT", "peer": null}],
            "mrs": {"count": 2, "bytes": 4096},
            "counters": {"tx_packets": 10, "rx_packets": 9, "ack_timeout": 1, "icrc_err": 0},
        });
        let shown = text(&Found { devices: vec![device], silent: 1 }, false);
        let lines: Vec<&str> = shown.lines().map(str::trim).collect();
        assert_eq!(
            lines,
            [
                "PID  PROGRAM  DEVICE  NETDEV  QPS  MRS  MR BYTES  SENT  RECEIVED",
                "7  r?[2J    urxe0   lo        3    2      4096    10         9",
                "QP 0x000123  RC       RTS    to 0x000456 of ::1",
                "QP 0x000125  RC       RTS    to 0x000457 of 127.0.0.1, through memory",
                "QP 0x000124  UD       INIT",
                "ack_timeout 1",
                "1 more: of other users, or busy (root sees all)",
            ]
        );
        assert_eq!(text(&Found::default(), false), "no process of this network uses urxe\n");
    }
}
