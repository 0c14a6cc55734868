//! Counters below `/sys/class/infiniband`, where `urxe run` shows it: what is in such a file is found out when it is
//! opened. The sum over all processes of this network namespace that have the device, and over those that are no more
//! ([`ledger`]); of other users' processes only if this is root.

use std::ffi::CString;
use std::fs::File;
use std::io::{Seek, Write};
use std::os::fd::{FromRawFd, IntoRawFd, RawFd};
use std::time::Duration;

use super::ledger;
use crate::device;

/// How long a process may take to answer: somebody waits in open(2).
const PATIENCE: Duration = Duration::from_secs(1);

/// What the preloaded library asks.
pub(crate) static LIVE: urxe_preload::Live = urxe_preload::Live { is_name: urxe_status::sysfs::is_name, open };

/// A file that holds what the counter at this path is now; `None` if there is no such counter.
fn open(path: &[u8]) -> Option<RawFd> {
    let opened = std::panic::catch_unwind(|| {
        let (device, file) = urxe_status::sysfs::at(std::str::from_utf8(path).ok()?)?;
        memory_file(&file.text(sums(device)?.iter().copied()))
    });
    opened.ok().flatten()
}

/// The device's counters in every process that has it, one after another.
fn sums(device: &str) -> Option<Vec<(&'static str, u64)>> {
    let netdev = device::netdev_of(device)?;
    let answers = urxe_status::ask_all(PATIENCE).ok()?;
    let same = |report: &&str| {
        urxe_status::text(report, "device") == Some(device) && urxe_status::text(report, "netdev") == Some(&netdev)
    };
    let texts = answers.reports.iter().map(|report| report.text.as_str());
    let present = texts.filter(same).flat_map(urxe_status::counters);
    let known = |(name, value)| urxe_status::names().find(|known| *known == name).map(|name| (name, value));
    Some(present.filter_map(known).chain(ledger::read(device)).collect())
}

/// A file without a name, to be read from its beginning, that nobody can change.
fn memory_file(text: &str) -> Option<RawFd> {
    let name = CString::new("urxe counter").ok()?;
    // SAFETY: a string.
    let fd = unsafe { libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING) };
    if fd < 0 {
        return None;
    }
    // SAFETY: new, and ours.
    let mut file = unsafe { File::from_raw_fd(fd) };
    file.write_all(text.as_bytes()).ok()?;
    file.rewind().ok()?;
    // SAFETY: a descriptor and flags.
    unsafe { libc::fcntl(fd, libc::F_ADD_SEALS, libc::F_SEAL_WRITE | libc::F_SEAL_SHRINK | libc::F_SEAL_GROW) };
    Some(file.into_raw_fd())
}
