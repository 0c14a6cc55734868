//! A PCI function for a device to hang from: NCCL, UCX and PyTorch look for its path, its NUMA node and its speed.

use std::path::{Path, PathBuf};

use super::{Slot, add_net};
use crate::plan::Plan;

/// A PCI domain that no machine has ("ur"): ACPI numbers them from 0, virtual ones begin at 0x10000. The preloaded
/// library knows it too.
const DOMAIN: &str = "7572";

/// Vendor and device, "ur" and "xe": as `ibv_query_device` tells them, and no vendor's that a stock provider claims.
const VENDOR: &str = "7572";
const DEVICE: &str = "7865";

/// Adds the function of device `index`; returns its folder in the tree. Each device is on a bus of its own, as NCCL takes
/// functions of one device for ports of one card.
pub(super) fn add_function(plan: &mut Plan, root: &Path, index: usize, slot: &Slot<'_>) -> PathBuf {
    let bus = format!("{DOMAIN}:{index:02x}");
    let (bridge, address) = (PathBuf::from(format!("devices/pci{bus}")), format!("{bus}:00.0"));
    let function = bridge.join(&address);
    let dir = root.join(&function);
    let modalias = format!("pci:v0000{VENDOR}d0000{DEVICE}sv0000{VENDOR}sd0000{DEVICE}bc02sc00i00");
    let (cpus, list) = processors();
    for (name, value) in [
        // Ethernet controller, as cards that speak RoCE say.
        ("class", "0x020000"),
        ("vendor", &format!("0x{VENDOR}")),
        ("device", &format!("0x{DEVICE}")),
        ("subsystem_vendor", &format!("0x{VENDOR}")),
        ("subsystem_device", &format!("0x{DEVICE}")),
        ("revision", "0x00"),
        ("enable", "1"),
        ("irq", "0"),
        ("numa_node", "0"),
        ("local_cpus", &cpus),
        ("local_cpulist", &list),
        ("current_link_speed", "16.0 GT/s PCIe"),
        ("max_link_speed", "16.0 GT/s PCIe"),
        ("current_link_width", "16"),
        ("max_link_width", "16"),
        ("modalias", &modalias),
        ("uevent", &format!("PCI_CLASS=20000\nPCI_ID={VENDOR}:{DEVICE}\nPCI_SLOT_NAME={address}\nMODALIAS={modalias}")),
    ] {
        plan.text(dir.join(name), format!("{value}\n"));
    }
    plan.link(dir.join("subsystem"), "/sys/bus/pci");
    add_net(plan, &dir, slot.netdev.as_ref());
    plan.text(root.join(&bridge).join("pci_bus").join(&bus).join("cpulistaffinity"), format!("{list}\n"));
    plan.link(root.join("bus/pci/devices").join(&address), Path::new("../../..").join(&function));
    plan.link(root.join("class/pci_bus").join(&bus), Path::new("../..").join(&bridge).join("pci_bus").join(&bus));
    function
}

/// Processors of NUMA node 0, as a mask and as a list.
fn processors() -> (String, String) {
    let read = |name: &str| std::fs::read_to_string(format!("/sys/devices/system/node/node0/{name}"));
    match (read("cpumap"), read("cpulist")) {
        (Ok(mask), Ok(list)) => (mask.trim().to_owned(), list.trim().to_owned()),
        // Without NUMA support; processor 0 there is.
        _ => ("1".to_owned(), "0".to_owned()),
    }
}
