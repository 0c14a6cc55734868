//! Counters of `urxe status`.

use std::process::Command;

use anyhow::{Context, Result};
use serde_json::Value;

use crate::artifacts;
use crate::world::{Host, wait_until};

/// Sum of a counter over this process's devices, of which there is one at least.
pub fn own_counter(name: &str) -> Result<u64> {
    let mut sum = None;
    // A device that is slow to answer is left out.
    wait_until("the device says what it counts", || {
        let output = Command::new(artifacts::urxe()?).args(["status", "--json"]).output()?;
        let report: Value = serde_json::from_slice(&output.stdout).context("urxe status --json")?;
        let devices = report.as_array().into_iter().flatten();
        let own = devices.filter(|device| device["pid"].as_u64() == Some(u64::from(std::process::id())));
        sum = own.filter_map(|device| device["counters"][name].as_u64()).reduce(|sum, more| sum + more);
        Ok(sum.is_some())
    })?;
    sum.context("no counter")
}

/// Sums of counters over the processes of a host, in one report. A process that has ended, or is slow to answer, counts nothing.
pub fn host_counters(host: &Host, names: &[&str]) -> Result<Vec<u64>> {
    let said = host.run(artifacts::urxe()?, &["status", "--json"])?.stdout;
    let devices: Value = serde_json::from_str(&said).with_context(|| said.clone())?;
    let counters = || devices.as_array().into_iter().flatten().map(|device| &device["counters"]);
    Ok(names.iter().map(|name| counters().filter_map(|counters| counters[*name].as_u64()).sum()).collect())
}

/// Sum of a counter over the processes of a host, as for [`host_counters`].
pub fn host_counter(host: &Host, name: &str) -> Result<u64> {
    Ok(host_counters(host, &[name])?.into_iter().sum())
}
