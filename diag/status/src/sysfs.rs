//! The counters below `/sys/class/infiniband/<device>/ports/1`.
//!
//! `counters` has the names of the performance management class (IBA 16.1.3.5 PortCounters; `drivers/infiniband/core/
//! sysfs.c`), `hw_counters` those of the kernel's rxe where it has the like (`drivers/infiniband/sw/rxe/rxe_hw_counters.c`),
//! and our own besides. Left out is what is not counted: unicast and multicast apart, and of rxe's `ack_deferred`,
//! `rdma_sends` and `rdma_recvs`.

use std::slice;

use urxe_engine::mad::perf::Values;
use urxe_wire::mad::perf::COUNTERS;

use crate::counters::named;

/// A file, and what it shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct File {
    /// Folder below the port's: `counters` or `hw_counters`.
    pub folder: &'static str,
    /// Name of the file.
    pub name: &'static str,
    /// The device's counters that it is the sum of. None: what a port made of UDP sockets does not have, always 0.
    sum: &'static [&'static str],
    /// Unit of the number.
    unit: u64,
}

/// `PortXmitData` and `PortRcvData` count in words of 32 bits (IBA 16.1.3.5).
const WORD: u64 = 4;

const fn port(name: &'static str, sum: &'static [&'static str], unit: u64) -> File {
    File { folder: "counters", name, sum, unit }
}

/// The folder of what a device counts besides.
const HW: &str = "hw_counters";

const fn hw(name: &'static str, sum: &'static [&'static str]) -> File {
    File { folder: HW, name, sum, unit: 1 }
}

/// Files with names of the kernel's.
const KERNELS: &[File] = &[
    port("port_xmit_data", &["tx_bytes"], WORD),
    port("port_rcv_data", &["rx_bytes"], WORD),
    port("port_xmit_packets", &["tx_packets"], 1),
    port("port_rcv_packets", &["rx_packets"], 1),
    port("port_rcv_errors", &["icrc_err", "malformed", "drop_short"], 1),
    port("port_xmit_discards", &["tx_no_buffer", "tx_unreachable", "tx_too_long", "tx_other"], 1),
    port("port_xmit_constraint_errors", &["tx_not_permitted"], 1),
    port("port_rcv_constraint_errors", &["bad_pkey"], 1),
    port("link_downed", &["link_downed"], 1),
    port("link_error_recovery", &[], 1),
    port("local_link_integrity_errors", &[], 1),
    port("excessive_buffer_overrun_errors", &[], 1),
    port("port_rcv_remote_physical_errors", &[], 1),
    port("port_rcv_switch_relay_errors", &[], 1),
    port("port_xmit_wait", &[], 1),
    port("symbol_error", &[], 1),
    port("VL15_dropped", &[], 1),
    hw("sent_pkts", &["tx_packets"]),
    hw("rcvd_pkts", &["rx_packets"]),
    hw("send_err", &["tx_no_buffer", "tx_not_permitted", "tx_unreachable", "tx_too_long", "tx_other"]),
];

/// Counters that are shown under names of the kernel's, and under no other.
const RENAMED: [&str; 4] = ["tx_packets", "tx_bytes", "rx_packets", "rx_bytes"];

/// Counter files: those of the kernel, and one for each counter besides.
pub fn files() -> impl Iterator<Item = File> {
    let own = named().filter(|name| !RENAMED.contains(*name));
    KERNELS.iter().copied().chain(own.map(|name| hw(name, slice::from_ref(name))))
}

/// Whether a file of this name is among them, in either folder.
#[must_use]
pub fn is_name(name: &[u8]) -> bool {
    files().any(|file| file.name.as_bytes() == name)
}

/// The device and the file at the end of a path: `…/infiniband/urxe0/ports/1/counters/symbol_error`.
#[must_use]
pub fn at(path: &str) -> Option<(&str, File)> {
    let mut parts = path.rsplit('/');
    let (name, folder) = (parts.next()?, parts.next()?);
    if parts.next() != Some("1") || parts.next() != Some("ports") {
        return None;
    }
    let device = parts.next()?;
    let file = files().find(|file| file.name == name && file.folder == folder)?;
    (parts.next() == Some("infiniband")).then_some((device, file))
}

impl File {
    /// Content of the file, line end included, from the device's counters.
    #[must_use]
    pub fn text<'a>(&self, counters: impl Iterator<Item = (&'a str, u64)>) -> String {
        format!("{}\n", self.value(counters))
    }

    /// Number that the file holds.
    #[must_use]
    pub fn value<'a>(&self, counters: impl Iterator<Item = (&'a str, u64)>) -> u64 {
        let sum =
            counters.filter(|(name, _)| self.sum.contains(name)).fold(0_u64, |sum, (_, value)| sum.wrapping_add(value));
        sum / self.unit
    }

    /// Whether the file is one of the counters that a device has of its own, and netlink shows too.
    #[must_use]
    pub fn is_hardware(&self) -> bool {
        self.folder == HW
    }
}

/// The files of `counters` in sysfs, in the order of [`Counter`](urxe_wire::mad::perf::Counter).
const FILES: [&str; COUNTERS] = [
    "symbol_error",
    "link_error_recovery",
    "link_downed",
    "port_rcv_errors",
    "port_rcv_remote_physical_errors",
    "port_rcv_switch_relay_errors",
    "port_xmit_discards",
    "port_xmit_constraint_errors",
    "port_rcv_constraint_errors",
    "local_link_integrity_errors",
    "excessive_buffer_overrun_errors",
    "VL15_dropped",
    "port_xmit_data",
    "port_rcv_data",
    "port_xmit_packets",
    "port_rcv_packets",
    "port_xmit_wait",
];

/// Values of the counters of performance management, from sums of a device's counters.
#[must_use]
pub fn performance(sums: &[(&'static str, u64)]) -> Values {
    FILES.map(|name| files().find(|file| file.name == name).map_or(0, |file| file.value(sums.iter().copied())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_found_by_their_paths() {
        let (device, file) =
            at("/dev/shm/u/sys/devices/virtual/infiniband/urxe0/ports/1/counters/port_rcv_data").unwrap();
        assert_eq!((device, file.name, file.folder), ("urxe0", "port_rcv_data", "counters"));
        for path in [
            "/sys/class/infiniband/urxe0/ports/1/hw_counters/port_rcv_data",
            "/sys/class/infiniband/urxe0/ports/2/counters/port_rcv_data",
            "/sys/class/infiniband/urxe0/ports/1/counters/",
            "ports/1/counters/port_rcv_data",
            "",
        ] {
            assert_eq!(at(path), None, "{path}");
        }
        assert!(is_name(b"symbol_error") && !is_name(b"symbol") && !is_name(b""));
    }

    #[test]
    fn sums_over_counters_and_processes() {
        let shown = |name: &str, counters: &[(&'static str, u64)]| {
            files().find(|file| file.name == name).unwrap().text(counters.iter().copied())
        };
        assert_eq!(shown("port_xmit_data", &[("tx_bytes", 10), ("rx_bytes", 99), ("tx_bytes", 7)]), "4\n");
        assert_eq!(shown("port_rcv_errors", &[("icrc_err", 1), ("malformed", 2), ("drop_short", 3)]), "6\n");
        assert_eq!(shown("symbol_error", &[("tx_bytes", 10)]), "0\n");
        assert_eq!(shown("sent_pkts", &[("tx_packets", u64::MAX), ("tx_packets", 2)]), "1\n");
    }

    #[test]
    fn no_path_is_taken_twice() {
        let mut paths: Vec<_> = files().map(|file| (file.folder, file.name)).collect();
        let count = paths.len();
        paths.sort_unstable();
        paths.dedup();
        assert_eq!(paths.len(), count, "{paths:?}");
    }

    /// Files are sums of existing counters, and every counter is shown.
    #[test]
    fn every_counter_is_shown() {
        for file in files() {
            assert!(file.sum.iter().all(|source| named().any(|name| name == source)), "{file:?}");
        }
        for name in named() {
            assert!(files().any(|file| file.sum.contains(name)), "{name}");
        }
    }

    #[test]
    fn every_counter_of_performance_management_has_a_file() {
        for name in FILES {
            assert!(files().any(|file| file.name == name && file.folder == "counters"), "{name}");
        }
    }
}
