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

/// Reads words about a device that [`write_words`] has left; `None` if there are none of this number.
pub(crate) fn read_words(device: &str, count: usize) -> Option<Vec<u64>> {
    let kept = open(own_uid()).or_else(|_| open(0)).ok()?;
    kept.read_words(&words_name(device).ok()?, count).ok()
}

/// Writes words about a device for later processes of this `urxe run`. What goes wrong loses them.
pub(crate) fn write_words(device: &str, words: &[u64]) {
    let _ = open(own_uid()).and_then(|kept| kept.write_words(&words_name(device)?, words));
}

/// The name of a device's file of words.
fn words_name(device: &str) -> io::Result<String> {
    Ok(format!("{}.zero", name(device)?))
}

/// The name of a device's file in this network namespace.
fn name(device: &str) -> io::Result<String> {
    let network = fs::metadata("/proc/self/ns/net")?.ino();
    Ok(format!("{device}@{network}"))
}
