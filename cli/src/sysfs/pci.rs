//! PCI functions for devices to hang from: NCCL, UCX and PyTorch look for their paths, NUMA nodes and speeds, hwloc and VPP
//! for configuration spaces, VPP for the driver too.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use super::config_space::config_space;
use super::{Slot, add_net};
use crate::plan::Plan;
use crate::topology::{FIRST_DOMAIN, Function, Ids, Locality, Topology};

/// Names and ids of devices' functions.
pub(super) struct Identity {
    ids: Ids,
    driver: &'static str,
    /// Providers of libibverbs are asked by it, and would take the device of a card that they know.
    has_modalias: bool,
}

/// Vendor and device, "ur" and "xe": as `ibv_query_device` tells the device, and no vendor's that a stock provider claims.
pub(super) const URXE: Identity = Identity { ids: ids(0x7572, 0x7865), driver: "urxe", has_modalias: true };

/// MT27800 Family [ConnectX-5].
pub(super) const CONNECTX_5: Identity = Identity { ids: ids(0x15b3, 0x1017), driver: "mlx5_core", has_modalias: false };

const fn ids(vendor: u16, device: u16) -> Ids {
    Ids { vendor, device, subsystem_vendor: vendor, subsystem_device: device }
}

/// Adds the functions of all devices, and those of `topology` besides; returns the devices' folders in the tree. Without a
/// topology each device is on a bus of its own, as NCCL takes functions of one device for ports of one card.
pub(super) fn add_functions(
    plan: &mut Plan,
    root: &Path,
    slots: &[Slot<'_>],
    identity: &Identity,
    topology: Option<&Topology>,
) -> Vec<PathBuf> {
    let locality = Locality { numa_node: 0, cpus: None };
    let alone = || (0..slots.len()).map(|index| Function::alone(index, &locality)).collect();
    let functions: Vec<Function> = topology.map_or_else(alone, |topology| topology.functions.clone());
    let mut buses = BTreeSet::new();
    for function in &functions {
        add_function(plan, root, function, identity);
        if let Some((index, slot)) = function.device.and_then(|index| Some((index, slots.get(index)?))) {
            add_driver(plan, root, &function.folder(), identity, index, slot);
        }
        if buses.insert((function.address.domain, function.address.bus)) {
            add_bus(plan, root, function);
        }
    }
    let folder = |index| functions.iter().find(|function| function.device == Some(index)).map(Function::folder);
    (0..slots.len()).filter_map(folder).collect()
}

/// Adds a function's folder and its link in `bus/pci/devices`.
fn add_function(plan: &mut Plan, root: &Path, function: &Function, identity: &Identity) {
    let is_device = function.device.is_some();
    let Ids { vendor, device, subsystem_vendor, subsystem_device } =
        function.ids.filter(|_| !is_device).unwrap_or(if is_device { identity.ids } else { URXE.ids });
    let (address, folder) = (function.address.to_string(), function.folder());
    let dir = root.join(&folder);
    let [interface, subclass, base, _] = function.class.to_le_bytes();
    let ids = format!("v0000{vendor:04X}d0000{device:04X}sv0000{subsystem_vendor:04X}sd0000{subsystem_device:04X}");
    let modalias = format!("pci:{ids}bc{base:02X}sc{subclass:02X}i{interface:02X}");
    let has_modalias = is_device && identity.has_modalias;
    let mut uevent =
        format!("PCI_CLASS={:X}\nPCI_ID={vendor:04X}:{device:04X}\nPCI_SLOT_NAME={address}\n", function.class);
    if is_device {
        uevent = format!("DRIVER={}\n{uevent}", identity.driver);
    }
    if has_modalias {
        uevent += &format!("MODALIAS={modalias}\n");
        plan.text(dir.join("modalias"), format!("{modalias}\n"));
    }
    let (cpus, list) = processors(&function.locality);
    let (speed, width) = (function.link.speed_text(), function.link.width.to_string());
    for (name, value) in [
        ("class", format!("{:#08x}", function.class)),
        ("vendor", format!("{vendor:#06x}")),
        ("device", format!("{device:#06x}")),
        ("subsystem_vendor", format!("{subsystem_vendor:#06x}")),
        ("subsystem_device", format!("{subsystem_device:#06x}")),
        ("revision", "0x00".to_owned()),
        ("enable", "1".to_owned()),
        ("irq", "0".to_owned()),
        ("numa_node", function.locality.numa_node.to_string()),
        ("local_cpus", cpus),
        ("local_cpulist", list),
        ("current_link_speed", speed.to_owned()),
        ("max_link_speed", speed.to_owned()),
        ("current_link_width", width.clone()),
        ("max_link_width", width),
    ] {
        plan.text(dir.join(name), format!("{value}\n"));
    }
    plan.text(dir.join("uevent"), uevent);
    if let Some(buses) = function.buses {
        plan.text(dir.join("secondary_bus_number"), format!("{}\n", buses.secondary));
        plan.text(dir.join("subordinate_bus_number"), format!("{}\n", buses.subordinate));
    }
    let shown = Ids { vendor, device, subsystem_vendor, subsystem_device };
    plan.bytes(dir.join("config"), config_space(function, &shown));
    plan.link(dir.join("subsystem"), "/sys/bus/pci");
    plan.link(root.join("bus/pci/devices").join(&address), Path::new("../../..").join(&folder));
}

/// Adds what only the function of a device has: its interface, its driver, its IOMMU group.
fn add_driver(plan: &mut Plan, root: &Path, folder: &Path, identity: &Identity, index: usize, slot: &Slot<'_>) {
    let (dir, top) = (root.join(folder), up(folder));
    let Some(address) = folder.file_name() else { return };
    add_net(plan, &dir, slot.netdev.as_ref());
    if let Some(name) = slot.netdev.as_ref().and_then(|netdev| netdev.name) {
        add_netdev_link(plan, root, folder, name);
    }
    let drivers = Path::new("bus/pci/drivers").join(identity.driver);
    plan.link(dir.join("driver"), top.join(&drivers));
    plan.link(root.join(&drivers).join(address), up(&drivers).join(folder));
    // Numbers of the kernel's groups are small.
    let group = Path::new("kernel/iommu_groups").join(format!("{FIRST_DOMAIN:04x}{index:02}"));
    plan.link(dir.join("iommu_group"), top.join(&group));
    plan.text(root.join(&group).join("type"), "identity\n");
    plan.link(root.join(&group).join("devices").join(address), up(&group.join("devices")).join(folder));
}

/// Adds the bus that a function is on.
fn add_bus(plan: &mut Plan, root: &Path, function: &Function) {
    let name = format!("{:04x}:{:02x}", function.address.domain, function.address.bus);
    let bus = function.behind.join("pci_bus").join(&name);
    let (_, list) = processors(&function.locality);
    plan.text(root.join(&bus).join("cpulistaffinity"), format!("{list}\n"));
    plan.link(root.join("class/pci_bus").join(name), Path::new("../..").join(bus));
}

/// The way from a folder of the tree to its root.
fn up(folder: &Path) -> PathBuf {
    folder.iter().map(|_| "..").collect()
}

/// Adds `device` to the folder of an interface, which the preloaded library shows in the machine's.
fn add_netdev_link(plan: &mut Plan, root: &Path, function: &Path, netdev: &str) {
    // An interface of another network namespace has no folder here.
    let Ok(folder) = fs::canonicalize(Path::new("/sys/class/net").join(netdev)) else { return };
    let Ok(below) = folder.strip_prefix("/sys") else { return };
    if !below.starts_with("devices") {
        return;
    }
    plan.link(root.join(below).join("device"), up(below).join(function));
}

/// Processors as a mask and as a list: those that are given, or those of the NUMA node.
fn processors(locality: &Locality) -> (String, String) {
    if let Some(cpus) = &locality.cpus {
        return cpus.clone();
    }
    let read = |node: i32, name: &str| fs::read_to_string(format!("/sys/devices/system/node/node{node}/{name}"));
    let of_node = |node| Some((read(node, "cpumap").ok()?, read(node, "cpulist").ok()?));
    match of_node(locality.numa_node).or_else(|| of_node(0)) {
        Some((mask, list)) => (mask.trim().to_owned(), list.trim().to_owned()),
        // Without NUMA support; processor 0 there is.
        None => ("1".to_owned(), "0".to_owned()),
    }
}
