//! Files below `/sys/class/infiniband`, where `urxe run` shows it: what is in such a file is found out when it is
//! opened.
//!
//! State and tables of ports are those of the device if this process has it open, else those of the interface. A counter is the sum over all processes of this network namespace that have the device, and over those that are no more
//! ([`final_counters`]); of other users' processes only if this is root.

use std::ffi::CString;
use std::fs::File;
use std::io::{Seek, Write};
use std::os::fd::{FromRawFd, IntoRawFd, RawFd};
use std::sync::Arc;
use std::time::Duration;

use urxe_net::PortError;
use urxe_net::ipc::credentials::file_may_have;

use urxe_status::link;
use urxe_status::port::PortAttributes;
use urxe_wire::LinkLayer;

use super::final_counters;
use crate::device;
use crate::verbs::shared_device::SharedDevice;
use urxe_net::issm;

/// Bit of the capability mask: a program of the host is a subnet manager.
const IS_SM: u32 = 1 << 1;

/// How long a process may take to answer: somebody waits in open(2).
const TIMEOUT: Duration = Duration::from_secs(1);

/// Callbacks by which the preloaded library serves live counters.
pub(crate) static LIVE: urxe_preload::Live = urxe_preload::Live {
    is_name: |name| urxe_status::sysfs::is_name(name) || link::is_name(name) || SUBNET.contains(&name),
    open,
};

/// Files of an InfiniBand port that its subnet decides on.
const SUBNET: [&[u8]; 2] = [b"sm_lid", b"cap_mask"];

/// A file that holds what the one at this path says now; `None` if that does not change.
fn open(path: &[u8]) -> Option<RawFd> {
    let opened = std::panic::catch_unwind(|| {
        let path = std::str::from_utf8(path).ok()?;
        if let Some(text) = of_subnet(path) {
            return memory_file(&text);
        }
        if let Some(text) = of_link(path) {
            return memory_file(&text);
        }
        let (device, file) = urxe_status::sysfs::at(path)?;
        memory_file(&file.text(sums(device)?.iter().copied()))
    });
    opened.ok().flatten()
}

/// Content of a file that follows the port's interface.
fn of_link(path: &str) -> Option<String> {
    let (device, file) = link::at(path)?;
    let netdev = device::netdev_of(device)?;
    let interface = match SharedDevice::interface_of(device) {
        Some(interface) => Some(interface),
        None => match device::interface(&netdev) {
            Ok(interface) => Some(Arc::new(interface)),
            // It was removed.
            Err(PortError::NoSuchInterface { .. }) => None,
            // Nothing is known of the link (no descriptor is left, say): the file as it was written is the better answer.
            Err(_) => return None,
        },
    };
    match (interface, file) {
        (Some(interface), file) => link::text(&interface, file),
        (None, "state") => Some(link::state(false).to_owned()),
        (None, "phys_state") => Some(link::phys_state(false).to_owned()),
        (None, file) => file.starts_with("gids/").then(|| link::gid(None)),
    }
}

/// Content of a file that the port's subnet decides on: as the processes that have the device know it. `None` if it is another
/// file, or no process has: then the file itself is right.
fn of_subnet(path: &str) -> Option<String> {
    let (port, file) = path.rsplit_once('/')?;
    let device = port.strip_suffix("/ports/1")?.rsplit('/').next()?;
    let netdev = device::netdev_of(device).filter(|_| device::is_infiniband())?;
    match file {
        "sm_lid" => {
            let reports = reports(device, TIMEOUT);
            let texts: Vec<&str> = reports.iter().map(|report| report.text.as_str()).collect();
            sm_lid(&texts).map(|lid| format!("{lid}\n"))
        }
        "cap_mask" => {
            let mask = PortAttributes::of(LinkLayer::Infiniband).capability_mask;
            let is_sm = if issm::is_open(&netdev).unwrap_or(false) { IS_SM } else { 0 };
            Some(format!("{:#010x}\n", mask | is_sm))
        }
        _ => None,
    }
}

/// The LID of the subnet manager in these reports: that of the process which answers for the port, since others may have begun just now.
fn sm_lid<'a>(reports: &[&'a str]) -> Option<&'a str> {
    let owner = reports.iter().find(|report| urxe_status::is_true(report, "owns_port"));
    owner.into_iter().chain(reports).find_map(|report| urxe_status::text(report, "sm_lid"))
}

/// The device's counters in every process that has it, one after another.
pub(crate) fn sums(device: &str) -> Option<Vec<(&'static str, u64)>> {
    device::netdev_of(device)?;
    let reports = reports(device, TIMEOUT);
    let present = reports.iter().flat_map(|report| urxe_status::counters(&report.text));
    let known = |(name, value)| urxe_status::names().find(|known| *known == name).map(|name| (name, value));
    Some(present.filter_map(known).chain(final_counters::read(device)).collect())
}

/// Reports of the processes that have the device.
pub(crate) fn reports(device: &str, timeout: Duration) -> Vec<urxe_status::Report> {
    let (Some(netdev), Ok(answers)) = (device::netdev_of(device), urxe_status::ask_all(timeout)) else {
        return Vec::new();
    };
    let same = |report: &urxe_status::Report| {
        let says = |member| urxe_status::text(&report.text, member);
        says("device") == Some(device) && says("netdev") == Some(&netdev)
    };
    answers.reports.into_iter().filter(same).collect()
}

/// The files of `hw_counters`, and what each would hold now.
pub(crate) fn hardware_counters(device: &str) -> Vec<(&'static str, u64)> {
    let Some(sums) = sums(device) else { return Vec::new() };
    let files = urxe_status::sysfs::files().filter(urxe_status::sysfs::File::is_hardware);
    files.map(|file| (file.name, file.value(sums.iter().copied()))).collect()
}

/// A file without a name, to be read from its beginning, that nobody can change.
fn memory_file(text: &str) -> Option<RawFd> {
    if !file_may_have(text.len()) {
        return None;
    }
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

#[cfg(test)]
mod tests {
    use super::sm_lid;

    #[test]
    fn a_process_that_has_just_begun_does_not_say_who_manages_the_subnet() {
        let new = r#"{"pid":10000,"sm_lid":"48896","owns_port":false,"counters":{}}"#;
        let owner = r#"{"pid":9999,"sm_lid":"1","owns_port":true,"counters":{}}"#;
        assert_eq!(sm_lid(&[new, owner]), Some("1"));
        assert_eq!(sm_lid(&[owner, new]), Some("1"));
        assert_eq!(sm_lid(&[new]), Some("48896"), "the port has no owner for a moment");
        assert_eq!(sm_lid(&[r#"{"pid":1,"counters":{}}"#]), None);
    }
}
