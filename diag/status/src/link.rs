//! Files of a port in sysfs that follow its interface: state, GID table, P_Keys.

use urxe_net::Interface;
use urxe_wire::{Gid, GidLayout, LinkLayer};

use crate::port::PortAttributes;

/// Names of the files beside those of tables, whose names are numbers.
const NAMES: [&str; 2] = ["state", "phys_state"];

/// Longest number of a row.
const DIGITS: usize = 3;

/// Whether a file of this name is among them, in whatever folder.
#[must_use]
pub fn is_name(name: &[u8]) -> bool {
    let is_row = || (1..=DIGITS).contains(&name.len()) && name.iter().all(u8::is_ascii_digit);
    NAMES.iter().any(|known| known.as_bytes() == name) || is_row()
}

/// The device and the file below its port that a path leads to: `…/infiniband/urxe0/ports/1/gids/0`.
#[must_use]
pub fn at(path: &str) -> Option<(&str, &str)> {
    let (device, file) = path.rsplit_once("/ports/1/")?;
    let (class, device) = device.rsplit_once('/')?;
    class.ends_with("/infiniband").then_some((device, file))
}

/// Content of `state`: the kernel's `state_show` (drivers/infiniband/core/sysfs.c).
#[must_use]
pub const fn state(is_running: bool) -> &'static str {
    if is_running { "4: ACTIVE\n" } else { "1: DOWN\n" }
}

/// Content of `phys_state`.
#[must_use]
pub const fn phys_state(is_running: bool) -> &'static str {
    if is_running { "5: LinkUp\n" } else { "3: Disabled\n" }
}

/// Content of a row of `gids`; an empty row is zero.
#[must_use]
pub fn gid(gid: Option<Gid>) -> String {
    format!("{}\n", gid.unwrap_or_default())
}

/// Content of a row of `gid_attrs/types`. The kernel answers EINVAL for the type of an empty row. A file cannot, and libibverbs
/// takes a missing one for an error that ends `ibv_query_gid_table` (`libibverbs/cmd_device.c`).
#[must_use]
pub fn gid_type(link_layer: LinkLayer, layout: GidLayout, index: usize) -> &'static str {
    if link_layer.is_infiniband() || layout.is_roce_v1(index) { "IB/RoCE v1\n" } else { "RoCE v2\n" }
}

/// Content of a row of `gid_attrs/ndevs`: nothing of an empty row, where the kernel answers EINVAL, and of InfiniBand, which has no
/// network interface behind a GID (`show_port_gid_attr_ndev` of the kernel's sysfs.c).
#[must_use]
pub fn gid_ndev(link_layer: LinkLayer, netdev: Option<&str>, gid: Option<Gid>) -> String {
    match (link_layer, netdev, gid) {
        (LinkLayer::Ethernet, Some(netdev), Some(_)) => format!("{netdev}\n"),
        _ => String::new(),
    }
}

/// Content of a row of `pkeys` before any subnet manager; `None` beyond the table.
#[must_use]
pub fn pkey(link_layer: LinkLayer, index: u16) -> Option<String> {
    Some(format!("{:#06x}\n", PortAttributes::of(link_layer).pkey(index)?.0))
}

/// Content of the file at this path below a port on `interface`; `None` if it is another file.
#[must_use]
pub fn text(interface: &Interface, file: &str) -> Option<String> {
    match file {
        "state" => return Some(state(interface.is_running()).to_owned()),
        "phys_state" => return Some(phys_state(interface.is_running()).to_owned()),
        _ => {}
    }
    let (table, row) = file.rsplit_once('/')?;
    let (index, link_layer) = (row.parse::<u16>().ok()?, interface.link_layer());
    let own = || interface.gid(index.into());
    match table {
        "gids" => Some(gid(own())),
        "gid_attrs/types" => Some(gid_type(link_layer, interface.gid_layout(), index.into()).to_owned()),
        "gid_attrs/ndevs" => {
            let gid = own();
            Some(gid_ndev(link_layer, gid.as_ref().map(|gid| interface.netdev_of(gid).1), gid))
        }
        "pkeys" => pkey(link_layer, index),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_known_by_their_names_and_paths() {
        for name in ["state", "phys_state", "0", "15", "254"] {
            assert!(is_name(name.as_bytes()), "{name}");
        }
        for name in ["rate", "", "0x1", "757200", "state1"] {
            assert!(!is_name(name.as_bytes()), "{name}");
        }
        let path = "/dev/shm/u/sys/devices/virtual/infiniband/urxe0/ports/1/gid_attrs/ndevs/3";
        assert_eq!(at(path), Some(("urxe0", "gid_attrs/ndevs/3")));
        for path in ["/sys/class/net/urxe0/ports/1/state", "/sys/class/infiniband/urxe0/ports/2/state", "ports/1/state"]
        {
            assert_eq!(at(path), None, "{path}");
        }
    }

    #[test]
    fn the_loopback_interface_in_files() {
        let lo = Interface::by_name("lo").unwrap();
        let text = |file| text(&lo, file);
        assert_eq!(text("state").as_deref(), Some("4: ACTIVE\n"));
        assert_eq!(text("phys_state").as_deref(), Some("5: LinkUp\n"));
        assert_eq!(text("gids/1").as_deref(), Some("0000:0000:0000:0000:0000:ffff:7f00:0001\n"));
        assert_eq!(text("gid_attrs/ndevs/1").as_deref(), Some("lo\n"));
        assert_eq!(text("gid_attrs/types/1").as_deref(), Some("RoCE v2\n"));
        assert_eq!(text("gids/200").as_deref(), Some("0000:0000:0000:0000:0000:0000:0000:0000\n"));
        assert_eq!(text("gid_attrs/ndevs/200").as_deref(), Some(""));
        assert_eq!(text("pkeys/0").as_deref(), Some("0xffff\n"));
        assert_eq!((text("pkeys/1"), text("rate"), text("counters/1")), (None, None, None));
    }
}
