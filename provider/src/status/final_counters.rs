//! Counters of closed devices, kept in the folder of `urxe run`: see [`urxe_status::FinalCounters`].

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use urxe_net::ipc::credentials::own_uid;
use urxe_status::FinalCounters;

/// Adds what the device has counted. What goes wrong costs counts, and concerns nobody.
pub(crate) fn add(device: &str, counters: impl Iterator<Item = (&'static str, u64)>) {
    let _ = open(own_uid()).and_then(|kept| kept.add(&name(device)?, counters));
}

/// Returns the counters of closed devices of this name.
pub(crate) fn read(device: &str) -> impl Iterator<Item = (&'static str, u64)> {
    // This user's, or root's, if root has started this program as another user.
    let kept = open(own_uid()).or_else(|_| open(0)).and_then(|kept| kept.read(&name(device)?));
    kept.into_iter().flatten()
}

fn open(owner: u32) -> io::Result<FinalCounters> {
    let folder = urxe_preload::folder().ok_or(io::ErrorKind::NotFound)?;
    FinalCounters::open(&Path::new(OsStr::from_bytes(folder)).join(urxe_options::RUN_FINAL_COUNTERS), owner)
}

/// The name of a device's file in this network namespace.
fn name(device: &str) -> io::Result<String> {
    let network = fs::metadata("/proc/self/ns/net")?.ino();
    Ok(format!("{device}@{network}"))
}
