//! For Prometheus: every counter of every device, in the text exposition format 0.0.4.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde_json::Value;

/// What the devices count, grouped by counter.
pub(super) fn text(devices: &[Value]) -> String {
    let mut by_name: BTreeMap<&str, Vec<(&Value, u64)>> = BTreeMap::new();
    for device in devices {
        for (name, value) in device["counters"].as_object().into_iter().flatten() {
            by_name.entry(name).or_default().push((device, value.as_u64().unwrap_or_default()));
        }
    }
    let mut out = String::new();
    for (name, rows) in by_name {
        // Writing to a string cannot fail.
        let _ = writeln!(out, "# TYPE urxe_{name}_total counter");
        for (device, value) in rows {
            let [name_of, process] = ["device", "program"].map(|member| escaped(&device[member]));
            let pid = &device["pid"];
            let _ =
                writeln!(out, "urxe_{name}_total{{device=\"{name_of}\",pid=\"{pid}\",process=\"{process}\"}} {value}");
        }
    }
    out
}

/// A label's value.
fn escaped(value: &Value) -> String {
    let text = value.as_str().unwrap_or("?");
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    #[test]
    fn metrics_are_grouped_by_name() {
        let device = |pid, value| serde_json::json!({"pid": pid, "program": "a\"b", "device": "urxe0", "counters": {"rx_packets": value}});
        assert_eq!(
            super::text(&[device(1, 5), device(2, 6)]),
            "# TYPE urxe_rx_packets_total counter\n\
             urxe_rx_packets_total{device=\"urxe0\",pid=\"1\",process=\"a\\\"b\"} 5\n\
             urxe_rx_packets_total{device=\"urxe0\",pid=\"2\",process=\"a\\\"b\"} 6\n"
        );
    }
}
