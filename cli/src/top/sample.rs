//! Reports of all devices at one moment, and rates between two moments.

use std::collections::{BTreeMap, HashMap};
use std::time::Instant;

use serde_json::Value;

use crate::status::Found;

/// Counters by their names.
pub(super) type Counters = BTreeMap<String, u64>;

/// Name of a device of a process, or of a queue pair of that device.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(super) struct Key {
    pub(super) pid: u64,
    pub(super) device: String,
    /// `None` for the device itself.
    pub(super) qpn: Option<u64>,
}

/// A device of a process.
pub(super) struct Device {
    pub(super) key: Key,
    pub(super) program: String,
    pub(super) netdev: String,
    pub(super) addresses: String,
    pub(super) qps: u64,
    pub(super) mrs: u64,
    pub(super) mr_bytes: u64,
    pub(super) counters: Counters,
}

/// A queue pair.
pub(super) struct QueuePair {
    pub(super) key: Key,
    pub(super) program: String,
    pub(super) netdev: String,
    /// Service, as RC.
    pub(super) service: String,
    pub(super) state: String,
    /// Address and queue pair number of the peer.
    pub(super) peer: String,
    /// Way to the peer: `udp`, `shm`, or empty without a peer.
    pub(super) way: String,
    pub(super) sq_psn: u64,
    pub(super) rq_psn: u64,
    pub(super) window: Option<u64>,
    pub(super) counters: Counters,
}

/// The last two samples.
#[derive(Default)]
pub(super) struct Samples {
    pub(super) now: Option<Sample>,
    before: Option<Sample>,
}

impl Samples {
    /// Takes another one. Returns it and the one before.
    pub(super) fn take(&mut self, sample: Sample) -> Option<(&Sample, &Sample)> {
        self.before = self.now.replace(sample);
        self.now.as_ref().zip(self.before.as_ref())
    }

    /// Sum of counters.
    pub(super) fn sum(&self, key: &Key, names: &[&str]) -> u64 {
        self.now.as_ref().map_or(0, |now| now.sum(key, names))
    }

    /// Growth of counters per second, between the two.
    pub(super) fn rate(&self, key: &Key, names: &[&str]) -> Option<f64> {
        self.now.as_ref()?.rate(self.before.as_ref()?, key, names)
    }
}

/// Reports of all devices at one moment.
pub(super) struct Sample {
    pub(super) at: Instant,
    pub(super) devices: Vec<Device>,
    pub(super) qps: Vec<QueuePair>,
    /// Devices of other users, and of processes that do not answer.
    pub(super) silent: usize,
    by_key: HashMap<Key, Place>,
}

#[derive(Clone, Copy)]
enum Place {
    Device(usize),
    QueuePair(usize),
}

impl Sample {
    pub(super) fn new(at: Instant, found: &Found) -> Self {
        let (mut devices, mut qps, mut by_key) = (Vec::new(), Vec::new(), HashMap::new());
        for report in &found.devices {
            let device = device(report);
            for report in report["qps"].as_array().into_iter().flatten() {
                let qp = queue_pair(&device, report);
                by_key.insert(qp.key.clone(), Place::QueuePair(qps.len()));
                qps.push(qp);
            }
            by_key.insert(device.key.clone(), Place::Device(devices.len()));
            devices.push(device);
        }
        Self { at, devices, qps, silent: found.silent, by_key }
    }

    pub(super) fn device(&self, key: &Key) -> Option<&Device> {
        match self.by_key.get(key)? {
            Place::Device(index) => self.devices.get(*index),
            Place::QueuePair(_) => None,
        }
    }

    pub(super) fn qp(&self, key: &Key) -> Option<&QueuePair> {
        match self.by_key.get(key)? {
            Place::QueuePair(index) => self.qps.get(*index),
            Place::Device(_) => None,
        }
    }

    /// Counters of a device or queue pair.
    pub(super) fn counters(&self, key: &Key) -> Option<&Counters> {
        match self.by_key.get(key)? {
            Place::Device(index) => self.devices.get(*index).map(|device| &device.counters),
            Place::QueuePair(index) => self.qps.get(*index).map(|qp| &qp.counters),
        }
    }

    /// Names of all devices and queue pairs.
    pub(super) fn keys(&self) -> impl Iterator<Item = &Key> {
        self.by_key.keys()
    }

    pub(super) fn has(&self, key: &Key) -> bool {
        self.by_key.contains_key(key)
    }

    /// Sum of counters of a device or queue pair; counters that are not told are 0.
    pub(super) fn sum(&self, key: &Key, names: &[&str]) -> u64 {
        let Some(counters) = self.counters(key) else { return 0 };
        names.iter().filter_map(|name| counters.get(*name)).fold(0, |sum, value| sum.saturating_add(*value))
    }

    /// Growth of counters per second since `before`; `None` if the device or queue pair is new.
    pub(super) fn rate(&self, before: &Self, key: &Key, names: &[&str]) -> Option<f64> {
        if !before.has(key) {
            return None;
        }
        // A device that was closed and opened again counts from 0.
        let grown = self.sum(key, names).saturating_sub(before.sum(key, names));
        let time = self.at.saturating_duration_since(before.at).as_secs_f64();
        // Above 2^53 the last digits are lost, which nobody sees.
        #[expect(clippy::cast_precision_loss, reason = "shown with three digits")]
        (time > 0.0).then(|| grown as f64 / time)
    }
}

fn device(report: &Value) -> Device {
    let addresses = report["addresses"].as_array().into_iter().flatten();
    Device {
        key: Key { pid: number(&report["pid"]), device: word(&report["device"]), qpn: None },
        program: word(&report["program"]),
        netdev: word(&report["netdev"]),
        addresses: addresses.map(word).collect::<Vec<_>>().join(" "),
        qps: report["qps"].as_array().map_or(0, |qps| qps.len() as u64),
        mrs: number(&report["mrs"]["count"]),
        mr_bytes: number(&report["mrs"]["bytes"]),
        counters: counters(&report["counters"]),
    }
}

fn queue_pair(device: &Device, report: &Value) -> QueuePair {
    let peer = &report["peer"];
    let (peer, way) = match peer["address"].as_str() {
        Some(_) => (format!("{} {:#08x}", word(&peer["address"]), number(&peer["qpn"])), word(&peer["way"])),
        None => (String::new(), String::new()),
    };
    QueuePair {
        key: Key { qpn: Some(number(&report["qpn"])), ..device.key.clone() },
        program: device.program.clone(),
        netdev: device.netdev.clone(),
        service: word(&report["type"]),
        state: word(&report["state"]),
        peer,
        way,
        sq_psn: number(&report["sq_psn"]),
        rq_psn: number(&report["rq_psn"]),
        window: report["window"].as_u64(),
        counters: counters(&report["counters"]),
    }
}

fn counters(of: &Value) -> Counters {
    let counters = of.as_object().into_iter().flatten();
    counters.filter_map(|(name, value)| Some((name.clone(), value.as_u64()?))).collect()
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_default()
}

/// Without what a terminal would obey: processes call themselves what they like.
fn word(value: &Value) -> String {
    value.as_str().unwrap_or("?").replace(char::is_control, "?")
}
