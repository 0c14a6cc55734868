//! `urxe status --metrics`: what the devices that programs have open count, for Prometheus.
//!
//! Every open device of a process has a file without a name, `urxe:DEVICE`, that holds its counters
//! (`provider/src/observe/board.rs` has the format); here they are found below `/proc`.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

/// An open device of a process.
#[derive(Debug, PartialEq, Eq)]
struct Open {
    pid: u32,
    process: String,
    device: String,
    counters: Vec<(String, u64)>,
}

/// All counters in the text exposition format 0.0.4.
pub(super) fn text() -> String {
    metrics(&find(Path::new("/proc")))
}

/// All of them, by process id and device.
fn find(proc: &Path) -> Vec<Open> {
    let mut found = BTreeMap::new();
    let entries = fs::read_dir(proc).into_iter().flatten().flatten();
    for process in entries {
        let Ok(pid) = process.file_name().to_string_lossy().parse::<u32>() else { continue };
        // Processes that may not be looked at, or that end meanwhile, are left out.
        for fd in fs::read_dir(process.path().join("fd")).into_iter().flatten().flatten() {
            let Ok(target) = fs::read_link(fd.path()) else { continue };
            let target = target.to_string_lossy();
            let Some(device) = target.strip_prefix("/memfd:urxe:").and_then(|name| name.strip_suffix(" (deleted)"))
            else {
                continue;
            };
            let Some(counters) = fs::read(fd.path()).ok().and_then(|bytes| parse(pid, &bytes)) else { continue };
            let comm = fs::read_to_string(process.path().join("comm")).unwrap_or_default();
            let open = Open { pid, process: comm.trim_end().to_owned(), device: device.to_owned(), counters };
            found.insert((pid, device.to_owned()), open);
        }
    }
    found.into_values().collect()
}

/// The counters in a file of process `pid`; `None` if it is none, or one inherited over a fork.
fn parse(pid: u32, bytes: &[u8]) -> Option<Vec<(String, u64)>> {
    const ENTRY: usize = 48;
    let (header, entries) = bytes.split_first_chunk::<64>()?;
    let word = |at: usize| Some(u32::from_ne_bytes(header.get(at..at + 4)?.try_into().ok()?));
    if !header.starts_with(b"urxe counters 1\n") || word(16)? != pid {
        return None;
    }
    let count = usize::try_from(word(20)?).ok()?;
    let rows = entries.chunks_exact(ENTRY).take(count).map(|entry| {
        let (name, value) = entry.split_at(40);
        let name: Vec<u8> = name.iter().copied().take_while(|byte| *byte != 0).collect();
        Some((String::from_utf8(name).ok()?, u64::from_ne_bytes(value.try_into().ok()?)))
    });
    rows.collect()
}

fn metrics(open: &[Open]) -> String {
    let mut by_name: BTreeMap<&str, Vec<(&Open, u64)>> = BTreeMap::new();
    for device in open {
        for (name, value) in &device.counters {
            by_name.entry(name).or_default().push((device, *value));
        }
    }
    let mut out = String::new();
    for (name, rows) in by_name {
        // Writing to a string cannot fail.
        let _ = writeln!(out, "# TYPE urxe_{name}_total counter");
        for (Open { pid, process, device, .. }, value) in rows {
            let process = process.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
            let _ =
                writeln!(out, "urxe_{name}_total{{device=\"{device}\",pid=\"{pid}\",process=\"{process}\"}} {value}");
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(pid: u32, entries: &[(&str, u64)]) -> Vec<u8> {
        let mut bytes = b"urxe counters 1\n".to_vec();
        bytes.extend(pid.to_ne_bytes());
        bytes.extend(u32::try_from(entries.len()).unwrap().to_ne_bytes());
        bytes.resize(64, 0);
        for (name, value) in entries {
            let start = bytes.len();
            bytes.extend(name.bytes());
            bytes.resize(start + 40, 0);
            bytes.extend(value.to_ne_bytes());
        }
        bytes
    }

    #[test]
    fn files_of_others_and_torn_ones_are_left_out() {
        let whole = file(7, &[("rx_packets", 5), ("icrc_err", 0)]);
        assert_eq!(parse(7, &whole), Some(vec![("rx_packets".to_owned(), 5), ("icrc_err".to_owned(), 0)]));
        assert_eq!(parse(8, &whole), None, "inherited over a fork");
        assert_eq!(parse(7, &whole[..63]), None);
        assert_eq!(parse(7, b"something else that is long enough to have a header of sixty-four bytes"), None);
    }

    #[test]
    fn metrics_are_grouped_by_name() {
        let open = |pid, value| Open {
            pid,
            process: "a\"b".to_owned(),
            device: "urxe0".to_owned(),
            counters: vec![("rx_packets".to_owned(), value)],
        };
        assert_eq!(
            metrics(&[open(1, 5), open(2, 6)]),
            "# TYPE urxe_rx_packets_total counter\n\
             urxe_rx_packets_total{device=\"urxe0\",pid=\"1\",process=\"a\\\"b\"} 5\n\
             urxe_rx_packets_total{device=\"urxe0\",pid=\"2\",process=\"a\\\"b\"} 6\n"
        );
    }
}
