//! For Prometheus: every counter of every device, in the text exposition format 0.0.4.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde_json::Value;

/// Formats the devices' counters, grouped by counter.
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
    objects(devices, &mut out);
    queue_pairs(devices, &mut out);
    out
}

/// Appends what a device has, and what it is.
fn objects(devices: &[Value], out: &mut String) {
    let labels = |device: &Value| {
        let [name_of, process] = ["device", "program"].map(|member| escaped(&device[member]));
        format!("device=\"{name_of}\",pid=\"{}\",process=\"{process}\"", device["pid"])
    };
    let mut gauge = |name: &str, of: &dyn Fn(&Value) -> Option<u64>| {
        let rows = devices.iter().filter_map(|device| Some((labels(device), of(device)?)));
        let rows: String = rows.map(|(labels, value)| format!("urxe_{name}{{{labels}}} {value}\n")).collect();
        if !rows.is_empty() {
            // Writing to a string cannot fail.
            let _ = write!(out, "# TYPE urxe_{name} gauge\n{rows}");
        }
    };
    gauge("mr_bytes", &|device| device["mrs"]["bytes"].as_u64());
    gauge("mrs", &|device| device["mrs"]["count"].as_u64());
    gauge("qps", &|device| device["qps"].as_array().map(|qps| qps.len() as u64));
}

/// Appends the counters of each queue pair. A counter that is not there is 0: most have no trouble.
fn queue_pairs(devices: &[Value], out: &mut String) {
    let mut by_name: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for device in devices {
        let [name_of, process] = ["device", "program"].map(|member| escaped(&device[member]));
        for qp in device["qps"].as_array().into_iter().flatten() {
            let labels = format!(
                "{{device=\"{name_of}\",pid=\"{}\",process=\"{process}\",qpn=\"{}\",type=\"{}\"}}",
                device["pid"],
                qp["qpn"],
                escaped(&qp["type"])
            );
            let mut add = |name: String, value: &Value| {
                let row = format!("urxe_qp_{name}{labels} {value}");
                by_name.entry(name).or_default().push(row);
            };
            for (name, value) in qp["counters"].as_object().into_iter().flatten() {
                add(format!("{name}_total"), value);
            }
            if qp["window"].is_u64() {
                add("window".to_owned(), &qp["window"]);
            }
        }
    }
    for (name, rows) in by_name {
        let kind = if name.ends_with("_total") { "counter" } else { "gauge" };
        // Writing to a string cannot fail.
        let _ = writeln!(out, "# TYPE urxe_qp_{name} {kind}");
        for row in rows {
            let _ = writeln!(out, "{row}");
        }
    }
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

    #[test]
    fn objects_are_counted() {
        let device = serde_json::json!({
            "pid": 1, "program": "p", "device": "urxe0", "counters": {}, "mrs": {"count": 2, "bytes": 4096}, "qps": [],
        });
        let labels = "{device=\"urxe0\",pid=\"1\",process=\"p\"}";
        let rows = [("mr_bytes", 4096), ("mrs", 2), ("qps", 0)];
        let rows = rows.map(|(name, value)| format!("# TYPE urxe_{name} gauge\nurxe_{name}{labels} {value}\n"));
        assert_eq!(super::text(&[device]), rows.concat());
    }

    #[test]
    fn queue_pairs_have_metrics_of_their_own() {
        let device = serde_json::json!({
            "pid": 1, "program": "p", "device": "urxe0", "counters": {},
            "qps": [{"qpn": 17, "type": "RC", "window": 32, "counters": {"tx_packets": 9, "rcvd_rnr_err": 1}}],
        });
        let labels = "{device=\"urxe0\",pid=\"1\",process=\"p\",qpn=\"17\",type=\"RC\"}";
        assert_eq!(
            super::text(&[device]),
            format!(
                "# TYPE urxe_qps gauge\nurxe_qps{{device=\"urxe0\",pid=\"1\",process=\"p\"}} 1\n\
                 # TYPE urxe_qp_rcvd_rnr_err_total counter\nurxe_qp_rcvd_rnr_err_total{labels} 1\n\
                 # TYPE urxe_qp_tx_packets_total counter\nurxe_qp_tx_packets_total{labels} 9\n\
                 # TYPE urxe_qp_window gauge\nurxe_qp_window{labels} 32\n"
            )
        );
    }
}
