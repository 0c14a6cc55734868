//! Devices and counters by `urxe status`.

use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::artifacts;
use crate::world::{Host, wait_until};

/// Runs `urxe status` with `args` in the network of this process until `is_complete` holds of what it prints: a device that is slow to
/// answer is left out.
fn status_until(args: &[&str], mut is_complete: impl FnMut(&str) -> Result<bool>) -> Result<String> {
    let mut said = String::new();
    wait_until("the device answers", || {
        let output = Command::new(artifacts::urxe()?).arg("status").args(args).output()?;
        ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        said = String::from_utf8(output.stdout)?;
        is_complete(&said)
    })?;
    Ok(said)
}

/// Output of `urxe status` with `args`, with the devices of this process in it.
pub fn own_status(args: &[&str]) -> Result<String> {
    let pid = std::process::id().to_string();
    status_until(args, |said| Ok(said.split(|letter: char| !letter.is_ascii_digit()).any(|number| number == pid)))
}

/// Sum of a counter over this process's devices, of which there is one at least.
pub fn own_counter(name: &str) -> Result<u64> {
    let mut sum = None;
    status_until(&["--json"], |said| {
        let devices = parse(said)?;
        let own = devices.iter().filter(|device| device["pid"] == std::process::id());
        sum = own.filter_map(|device| device["counters"][name].as_u64()).reduce(|sum, more| sum + more);
        Ok(sum.is_some())
    })?;
    sum.context("no counter")
}

fn parse(said: &str) -> Result<Vec<Value>> {
    serde_json::from_str(said).with_context(|| format!("urxe status --json: {said}"))
}

/// Devices of the processes of a host. A process that has ended, or is slow to answer, is left out.
pub fn devices(host: &Host) -> Result<Vec<Value>> {
    parse(&host.run(artifacts::urxe()?, &["status", "--json"])?.stdout)
}

/// Waits until `is_so` of the [`devices`] of a host, and returns them.
pub fn wait_for_devices(
    host: &Host,
    what: &str,
    mut is_so: impl FnMut(&[Value]) -> Result<bool>,
) -> Result<Vec<Value>> {
    let mut found = Vec::new();
    wait_until(what, || {
        found = devices(host)?;
        is_so(&found)
    })?;
    Ok(found)
}

/// Waits until `is_so` of the device of process `pid` of a host, and returns it.
pub fn wait_for_device(host: &Host, pid: u32, what: &str, is_so: impl Fn(&Value) -> bool) -> Result<Value> {
    let is_it = |device: &Value| device["pid"] == pid && is_so(device);
    let devices = wait_for_devices(host, what, |devices| Ok(devices.iter().any(is_it)))?;
    devices.into_iter().find(is_it).context("no device")
}

/// Sums of counters over the processes of a host, in one report. A process that has ended, or is slow to answer, counts nothing.
pub fn host_counters(host: &Host, names: &[&str]) -> Result<Vec<u64>> {
    let devices = devices(host)?;
    let sum = |name: &&str| devices.iter().filter_map(|device| device["counters"][*name].as_u64()).sum::<u64>();
    Ok(names.iter().map(sum).collect())
}

/// Sum of a counter over the processes of a host, as for [`host_counters`].
pub fn host_counter(host: &Host, name: &str) -> Result<u64> {
    Ok(host_counters(host, &[name])?.into_iter().sum())
}
