//! The fake sysfs tree: what the kernel shows of an rxe device, as plain files.
//!
//! libibverbs finds devices here (`SYSFS_PATH`), before it loads any provider; so the tree holds every slot that
//! `URXE_NETDEV` could ask for, and the provider claims those that it does. Once loaded, the provider answers queries
//! itself: the rest is for programs that read the files by path. Counters say 0 here: under `urxe run` the library answers
//! for them, elsewhere `urxe status --sysfs` writes them. Left out of the kernel's tree is what belongs to its device
//! model (`power`, `uevent`, `subsystem`).

use std::path::{Path, PathBuf};

use urxe_net::Interface;
use urxe_options::Personality;
use urxe_status::port::CAPABILITY_MASK;
use urxe_wire::{Gid, Lid};

use crate::plan::Plan;

mod pci;

/// `class/infiniband_verbs/abi_version`: `IB_USER_VERBS_ABI_VERSION` of rdma/ib_user_verbs.h.
const UVERBS_ABI: u32 = 6;

/// `class/misc/rdma_cm/abi_version`: `RDMA_USER_CM_ABI_VERSION` of rdma/rdma_user_cm.h.
const RDMA_CM_ABI: u32 = 4;

/// `class/infiniband_mad/abi_version`: `IB_USER_MAD_ABI_VERSION` of rdma/ib_user_mad.h.
const UMAD_ABI: u32 = 5;

/// `uverbsN/abi_version`: the version of the private ABI between provider and kernel driver. There is no kernel driver;
/// the provider only has to accept this number.
const DRIVER_ABI: u32 = 1;

/// `uverbsN/dev`: the device number of `/dev/null` (Documentation/admin-guide/devices.txt), which `/dev/infiniband/uverbsN`
/// has as well. libibverbs compares the two (util/open_cdev.c).
const DEV_NULL: &str = "1:3";

/// GIDs in a port's table; empty entries are zero. A longer list of addresses makes a longer table.
const GID_TABLE_LEN: usize = 16;

/// Interface, as the tree describes it.
pub(crate) struct Netdev<'a> {
    /// `None` if only the network namespace that the tree is shown in knows.
    pub(crate) name: Option<&'a str>,
    pub(crate) guid: [u8; 8],
    pub(crate) gids: &'a [Gid],
    /// [`Lid::NONE`] unless `--lid` asks for one.
    pub(crate) lid: Lid,
}

impl<'a> From<&'a Interface> for Netdev<'a> {
    fn from(interface: &'a Interface) -> Self {
        Self { name: Some(interface.name()), guid: interface.guid(), gids: interface.gids(), lid: Lid::NONE }
    }
}

impl<'a> Netdev<'a> {
    /// The interface of another network namespace, for the device of this index.
    pub(crate) fn elsewhere(index: usize, name: Option<&'a str>) -> Self {
        Self { name, guid: spare_guid(index), gids: &[], lid: Lid::NONE }
    }

    /// With the LID that the port says it has.
    pub(crate) fn with_lid(self, lid: Lid) -> Self {
        Self { lid, ..self }
    }
}

/// A device, and its interface if it has one.
pub(crate) struct Slot<'a> {
    pub(crate) name: String,
    pub(crate) netdev: Option<Netdev<'a>>,
}

/// Adds the tree at `root` to `plan`, for libibverbs to find by `SYSFS_PATH`: folders where the kernel has links.
pub(crate) fn add_tree(plan: &mut Plan, root: &Path, slots: &[Slot<'_>]) {
    add_classes(plan, root);
    for (index, slot) in slots.iter().enumerate() {
        add_uverbs(plan, &root.join(format!("class/infiniband_verbs/uverbs{index}")), &slot.name);
        let device = root.join("class/infiniband").join(&slot.name);
        add_device(plan, &device, index, slot);
        add_net(plan, &device.join("device"), slot.netdev.as_ref());
    }
}

/// Adds the tree at `root` to `plan`, in the place of the kernel's own `/sys`: with its links, so that a program that
/// follows them finds where a device hangs.
pub(crate) fn add_kernel_tree(plan: &mut Plan, root: &Path, slots: &[Slot<'_>], personality: Personality) {
    add_classes(plan, root);
    for (index, slot) in slots.iter().enumerate() {
        let parent = match personality {
            Personality::Virtual => PathBuf::from("devices/virtual"),
            Personality::Pci => pci::add_function(plan, root, index, slot),
        };
        let (device, uverbs) = (parent.join("infiniband").join(&slot.name), format!("uverbs{index}"));
        add_device(plan, &root.join(&device), index, slot);
        match personality {
            Personality::Virtual => add_net(plan, &root.join(&device).join("device"), slot.netdev.as_ref()),
            Personality::Pci => {
                plan.link(root.join(&device).join("device"), "../..");
                plan.link(root.join(&parent).join("infiniband_verbs").join(&uverbs).join("device"), "../..");
            }
        }
        plan.link(root.join("class/infiniband").join(&slot.name), Path::new("../..").join(&device));
        let device = parent.join("infiniband_verbs").join(&uverbs);
        add_uverbs(plan, &root.join(&device), &slot.name);
        plan.link(root.join("class/infiniband_verbs").join(&uverbs), Path::new("../..").join(&device));
        for umad in ["umad", "issm"].map(|kind| format!("{kind}{index}")) {
            let device = parent.join("infiniband_mad").join(&umad);
            add_umad(plan, &root.join(&device), &slot.name);
            if personality == Personality::Pci {
                plan.link(root.join(&device).join("device"), "../..");
            }
            plan.link(root.join("class/infiniband_mad").join(&umad), Path::new("../..").join(&device));
        }
    }
    plan.text(root.join("class/infiniband_mad/abi_version"), format!("{UMAD_ABI}\n"));
    // `..` of a class leads to the others.
    plan.link(root.join("class/net"), "/sys/class/net");
}

fn add_classes(plan: &mut Plan, root: &Path) {
    plan.text(root.join("class/infiniband_verbs/abi_version"), format!("{UVERBS_ABI}\n"));
    plan.text(root.join("class/misc/rdma_cm/abi_version"), format!("{RDMA_CM_ABI}\n"));
    plan.text(root.join("class/misc/rdma_cm/dev"), format!("{DEV_NULL}\n"));
}

/// The GUID of a device that has no interface now, but may be given one by `URXE_NETDEV`: librdmacm tells devices apart by
/// their GUIDs. Locally administered (IEEE 802c), so nobody's card has it.
fn spare_guid(index: usize) -> [u8; 8] {
    [0x02, b'u', b'r', 0xFF, 0xFE, b'x', b'e', u8::try_from(index).unwrap_or(u8::MAX)]
}

fn add_uverbs(plan: &mut Plan, dir: &Path, name: &str) {
    plan.text(dir.join("ibdev"), format!("{name}\n"));
    plan.text(dir.join("dev"), format!("{DEV_NULL}\n"));
    plan.text(dir.join("abi_version"), format!("{DRIVER_ABI}\n"));
}

fn add_umad(plan: &mut Plan, dir: &Path, name: &str) {
    for (file, value) in [("ibdev", name), ("port", "1"), ("dev", DEV_NULL)] {
        plan.text(dir.join(file), format!("{value}\n"));
    }
}

fn add_device(plan: &mut Plan, dir: &Path, index: usize, slot: &Slot<'_>) {
    let netdev = slot.netdev.as_ref();
    let guid = colon_separated(&netdev.map_or_else(|| spare_guid(index), |netdev| netdev.guid));
    for (name, value) in [
        ("node_type", "1: CA"),
        ("node_guid", &guid),
        ("sys_image_guid", &guid),
        ("node_desc", "urxe"),
        ("fw_ver", env!("CARGO_PKG_VERSION")),
        ("hca_type", "urxe"),
        ("hw_rev", "0x0"),
    ] {
        plan.text(dir.join(name), format!("{value}\n"));
    }
    if let Some(Netdev { name: Some(name), .. }) = netdev {
        plan.text(dir.join("parent"), format!("{name}\n"));
    }
    add_port(plan, &dir.join("ports/1"), netdev);
}

/// The interface, where programs look for it: below `device/net`.
fn add_net(plan: &mut Plan, device: &Path, netdev: Option<&Netdev<'_>>) {
    if let Some(Netdev { name: Some(name), .. }) = netdev {
        plan.link(device.join("net").join(name), Path::new("/sys/class/net").join(name));
    }
}

fn add_port(plan: &mut Plan, dir: &Path, netdev: Option<&Netdev<'_>>) {
    let (state, phys_state) = if netdev.is_some() { ("4: ACTIVE", "5: LinkUp") } else { ("1: DOWN", "3: Disabled") };
    let lid = &format!("{}", netdev.map_or(Lid::NONE, |netdev| netdev.lid));
    for (name, value) in [
        ("state", state),
        ("phys_state", phys_state),
        ("link_layer", "Ethernet"),
        ("rate", "10 Gb/sec (1X FDR10)"),
        ("cap_mask", &format!("{CAPABILITY_MASK:#010x}")),
        // RoCE has neither LIDs, unless they are asked for, nor a subnet manager.
        ("lid", lid),
        ("lid_mask_count", "0"),
        ("sm_lid", "0x0"),
        ("sm_sl", "0"),
        // The default partition, full membership.
        ("pkeys/0", "0xffff"),
    ] {
        plan.text(dir.join(name), format!("{value}\n"));
    }
    for counter in urxe_status::sysfs::files() {
        plan.text(dir.join(counter.folder).join(counter.name), "0\n");
    }
    let gids = netdev.map_or(&[][..], |netdev| netdev.gids);
    for index in 0..gids.len().max(GID_TABLE_LEN) {
        let gid = gids.get(index);
        plan.text(dir.join(format!("gids/{index}")), format!("{}\n", gid.copied().unwrap_or_default()));
        // The kernel answers EINVAL for the type of an empty entry. A file cannot, and libibverbs takes a missing one
        // for an error that ends ibv_query_gid_table (libibverbs/cmd_device.c).
        plan.text(dir.join(format!("gid_attrs/types/{index}")), "RoCE v2\n");
        if let (Some(Netdev { name: Some(name), .. }), Some(_)) = (netdev, gid) {
            plan.text(dir.join(format!("gid_attrs/ndevs/{index}")), format!("{name}\n"));
        }
    }
}

/// Groups of two bytes in hexadecimal, as sysfs prints GUIDs.
fn colon_separated(bytes: &[u8]) -> String {
    let group = |pair: &[u8]| pair.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    bytes.chunks(2).map(group).collect::<Vec<_>>().join(":")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The tree for one interface, installed below a temporary folder.
    fn tree(slots: &[Slot<'_>]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        let mut plan = Plan::default();
        add_tree(&mut plan, &dir.path().join("sysfs"), slots);
        plan.apply(&dir.path().join("manifest")).unwrap();
        dir
    }

    fn slot(netdev: Option<Netdev<'_>>) -> Slot<'_> {
        Slot { name: "urxe0".to_owned(), netdev }
    }

    fn kernel_tree(personality: Personality) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        let mut plan = Plan::default();
        let netdev = Netdev { name: Some("lo"), guid: [2; 8], gids: &[], lid: Lid(0x10a) };
        add_kernel_tree(&mut plan, &dir.path().join("sysfs"), &[slot(Some(netdev))], personality);
        plan.write().unwrap();
        dir
    }

    fn read(tree: &tempfile::TempDir, path: &str) -> String {
        std::fs::read_to_string(tree.path().join("sysfs/class").join(path)).unwrap()
    }

    #[test]
    fn what_the_kernel_prints_for_rxe() {
        // Addresses of the kernel's dump in its own notation: MAC 52:54:00:77:00:02.
        let gids = [
            Gid::new([0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0x50, 0x54, 0, 0xff, 0xfe, 0x77, 0, 2]),
            Gid::new([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0x4d, 0, 2]),
        ];
        let guid = [0x50, 0x54, 0, 0xff, 0xfe, 0x77, 0, 2];
        let tree = tree(&[slot(Some(Netdev { name: Some("eth0"), guid, gids: &gids, lid: Lid::NONE }))]);
        assert_eq!(read(&tree, "infiniband/urxe0/node_guid"), "5054:00ff:fe77:0002\n");
        assert_eq!(read(&tree, "infiniband/urxe0/ports/1/gids/0"), "fe80:0000:0000:0000:5054:00ff:fe77:0002\n");
        assert_eq!(read(&tree, "infiniband/urxe0/ports/1/gids/1"), "0000:0000:0000:0000:0000:ffff:0a4d:0002\n");
        assert_eq!(read(&tree, "infiniband/urxe0/ports/1/gids/2"), "0000:0000:0000:0000:0000:0000:0000:0000\n");
        assert_eq!(read(&tree, "infiniband/urxe0/ports/1/gid_attrs/types/1"), "RoCE v2\n");
        assert_eq!(read(&tree, "infiniband/urxe0/ports/1/gid_attrs/ndevs/1"), "eth0\n");
        assert_eq!(read(&tree, "infiniband/urxe0/ports/1/state"), "4: ACTIVE\n");
        assert_eq!(read(&tree, "infiniband/urxe0/ports/1/lid"), "0x0\n");
        assert_eq!(read(&tree, "infiniband_verbs/abi_version"), "6\n");
        assert_eq!(read(&tree, "misc/rdma_cm/abi_version"), "4\n");
    }

    #[test]
    fn a_device_without_an_interface_is_down() {
        let tree = tree(&[slot(None)]);
        assert_eq!(read(&tree, "infiniband_verbs/uverbs0/ibdev"), "urxe0\n");
        assert_eq!(read(&tree, "infiniband_verbs/uverbs0/dev"), "1:3\n");
        assert_eq!(read(&tree, "infiniband/urxe0/ports/1/state"), "1: DOWN\n");
    }

    #[test]
    fn links_lead_where_the_kernels_do() {
        for (personality, device, path) in [
            (Personality::Virtual, "devices/virtual/infiniband/urxe0/device", "devices/virtual/infiniband/urxe0"),
            (Personality::Pci, "devices/pci7572:00/7572:00:00.0", "devices/pci7572:00/7572:00:00.0/infiniband/urxe0"),
        ] {
            let tree = kernel_tree(personality);
            let sys = tree.path().join("sysfs").canonicalize().unwrap();
            let class = sys.join("class/infiniband/urxe0");
            assert_eq!(class.canonicalize().unwrap(), sys.join(path));
            assert_eq!(class.join("device").canonicalize().unwrap(), sys.join(device));
            assert!(class.join("device/net/lo").is_symlink());
            assert_eq!(read(&tree, "infiniband_verbs/uverbs0/ibdev"), "urxe0\n");
            assert_eq!(read(&tree, "infiniband/urxe0/ports/1/lid"), "0x10a\n");
        }
    }

    #[test]
    fn a_pci_function_says_what_it_is() {
        let tree = kernel_tree(Personality::Pci);
        assert_eq!(read(&tree, "infiniband/urxe0/device/class"), "0x020000\n");
        assert_eq!(read(&tree, "infiniband/urxe0/device/vendor"), "0x7572\n");
        assert_eq!(read(&tree, "infiniband/urxe0/device/numa_node"), "0\n");
        assert_eq!(read(&tree, "pci_bus/7572:00/../../7572:00:00.0/device"), "0x7865\n");
        assert_eq!(
            read(&tree, "../bus/pci/devices/7572:00:00.0/modalias"),
            "pci:v00007572d00007865sv00007572sd00007865bc02sc00i00\n"
        );
    }
}
