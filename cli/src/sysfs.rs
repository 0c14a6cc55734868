//! The fake sysfs tree: what the kernel shows of an rxe device, as plain files.
//!
//! libibverbs finds devices here (`SYSFS_PATH`), before it loads any provider; so the tree holds every slot that
//! `URXE_NETDEV` could ask for, and the provider claims those that it does. Once loaded, the provider answers queries
//! itself: the rest is for programs that read the files by path. Counters say 0 here, and the state of ports and their GID tables
//! are as the interfaces were: under `urxe run` the library answers for them, elsewhere `urxe status --sysfs` writes counters. Left out of the kernel's tree is what belongs to its device
//! model (`power`, `uevent`, `subsystem`).

use std::path::{Path, PathBuf};

use urxe_net::Interface;
use urxe_options::Personality;
use urxe_status::link;
use urxe_status::port::PortAttributes;
use urxe_wire::mad::topology::leaf_lid;
use urxe_wire::{Gid, GidLayout, Guid, Lid, LinkLayer};

use crate::plan::Plan;
use crate::topology::Topology;

mod config_space;
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
    pub(crate) guid: Guid,
    pub(crate) gids: &'a [Gid],
    /// Names of the interfaces of the GIDs.
    pub(crate) gid_netdevs: Vec<&'a str>,
    pub(crate) is_running: bool,
    pub(crate) link_layer: LinkLayer,
    pub(crate) gid_layout: GidLayout,
    /// [`Lid::NONE`] unless the link layer or `--lid` asks for one.
    pub(crate) lid: Lid,
}

impl<'a> From<&'a Interface> for Netdev<'a> {
    fn from(interface: &'a Interface) -> Self {
        let (guid, gids, link_layer) = (interface.guid(), interface.gids(), interface.link_layer());
        let (gid_layout, is_running) = (interface.gid_layout(), interface.is_running());
        let gid_netdevs = gids.iter().map(|gid| interface.netdev_of(gid).1).collect();
        let name = Some(interface.name());
        Self { name, guid, gids, gid_netdevs, is_running, link_layer, gid_layout, lid: Lid::NONE }
    }
}

impl<'a> Netdev<'a> {
    /// The interface of another network namespace, for the device of this index.
    pub(crate) fn in_another_namespace(index: usize, name: Option<&'a str>) -> Self {
        let (link_layer, gid_layout) = (LinkLayer::Ethernet, GidLayout::default());
        let (guid, gid_netdevs) = (spare_guid(index), Vec::new());
        Self { name, guid, gids: &[], gid_netdevs, is_running: true, link_layer, gid_layout, lid: Lid::NONE }
    }

    /// Sets the LID that the port says it has.
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
        add_device(plan, &device, index, slot, Personality::Virtual);
        add_net(plan, &device.join("device"), slot.netdev.as_ref());
    }
}

/// Adds the tree at `root` to `plan`, in the place of the kernel's own `/sys`: with its links, so that a program that
/// follows them finds where a device hangs.
pub(crate) fn add_kernel_tree(
    plan: &mut Plan,
    root: &Path,
    slots: &[Slot<'_>],
    personality: Personality,
    topology: Option<&Topology>,
) {
    add_classes(plan, root);
    let parents = match personality {
        Personality::Virtual => vec![PathBuf::from("devices/virtual"); slots.len()],
        Personality::Pci => pci::add_functions(plan, root, slots, &pci::URXE, topology),
        Personality::Mlx5 => pci::add_functions(plan, root, slots, &pci::CONNECTX_5, topology),
    };
    for (index, (slot, parent)) in slots.iter().zip(parents).enumerate() {
        let is_pci = personality != Personality::Virtual;
        // Its text ends in a name, as a kernel's.
        let function = parent.file_name().map(|name| Path::new("../../..").join(name)).unwrap_or_default();
        let (device, uverbs) = (parent.join("infiniband").join(&slot.name), format!("uverbs{index}"));
        add_device(plan, &root.join(&device), index, slot, personality);
        if is_pci {
            plan.link(root.join(&device).join("device"), &function);
            plan.link(root.join(&parent).join("infiniband_verbs").join(&uverbs).join("device"), &function);
        } else {
            add_net(plan, &root.join(&device).join("device"), slot.netdev.as_ref());
        }
        plan.link(root.join("class/infiniband").join(&slot.name), Path::new("../..").join(&device));
        let device = parent.join("infiniband_verbs").join(&uverbs);
        add_uverbs(plan, &root.join(&device), &slot.name);
        plan.link(root.join("class/infiniband_verbs").join(&uverbs), Path::new("../..").join(&device));
        for umad in ["umad", "issm"].map(|kind| format!("{kind}{index}")) {
            let device = parent.join("infiniband_mad").join(&umad);
            add_umad(plan, &root.join(&device), &slot.name);
            if is_pci {
                plan.link(root.join(&device).join("device"), &function);
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
fn spare_guid(index: usize) -> Guid {
    Guid::new([0x02, b'u', b'r', 0xFF, 0xFE, b'x', b'e', u8::try_from(index).unwrap_or(u8::MAX)])
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

fn add_device(plan: &mut Plan, dir: &Path, index: usize, slot: &Slot<'_>, personality: Personality) {
    let netdev = slot.netdev.as_ref();
    let guid = netdev.map_or_else(|| spare_guid(index), |netdev| netdev.guid).to_string();
    let hca_type = match personality {
        Personality::Virtual | Personality::Pci => "urxe",
        Personality::Mlx5 => "MT4119",
    };
    for (name, value) in [
        ("node_type", "1: CA"),
        ("node_guid", &guid),
        ("sys_image_guid", &guid),
        ("node_desc", "urxe"),
        ("fw_ver", env!("CARGO_PKG_VERSION")),
        ("hca_type", hca_type),
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
    let is_running = netdev.is_some_and(|netdev| netdev.is_running);
    let link_layer = netdev.map_or(LinkLayer::Ethernet, |netdev| netdev.link_layer);
    let attributes = PortAttributes::of(link_layer);
    let lid = netdev.map_or(Lid::NONE, |netdev| netdev.lid);
    // Until another is known, a port of InfiniBand is its own subnet manager. RoCE has none.
    let sm_lid = if link_layer.is_infiniband() { leaf_lid(lid) } else { Lid::NONE };
    for (name, value) in [
        ("link_layer", link_layer.sysfs_name()),
        ("rate", attributes.rate_text),
        ("cap_mask", &format!("{:#010x}", attributes.capability_mask)),
        ("lid", &lid.to_string()),
        ("lid_mask_count", "0"),
        ("sm_lid", &sm_lid.to_string()),
        ("sm_sl", "0"),
    ] {
        plan.text(dir.join(name), format!("{value}\n"));
    }
    plan.text(dir.join("state"), link::state(is_running));
    plan.text(dir.join("phys_state"), link::phys_state(is_running));
    for (index, pkey) in (0..).map_while(|index| Some((index, link::pkey(link_layer, index)?))) {
        plan.text(dir.join(format!("pkeys/{index}")), pkey);
    }
    for counter in urxe_status::sysfs::files() {
        plan.text(dir.join(counter.folder).join(counter.name), "0\n");
    }
    let gids = netdev.map_or(&[][..], |netdev| netdev.gids);
    let gid_netdevs = netdev.map_or(&[][..], |netdev| &netdev.gid_netdevs);
    let layout = netdev.map_or(GidLayout::default(), |netdev| netdev.gid_layout);
    for index in 0..layout.rows(gids.len()).max(GID_TABLE_LEN) {
        let position = layout.position(index);
        let gid = gids.get(position).copied();
        let ndev = link::gid_ndev(link_layer, gid_netdevs.get(position).copied(), gid);
        plan.text(dir.join(format!("gids/{index}")), link::gid(gid));
        plan.text(dir.join(format!("gid_attrs/types/{index}")), link::gid_type(link_layer, layout, index));
        plan.text(dir.join(format!("gid_attrs/ndevs/{index}")), ndev);
    }
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
        let netdev = Netdev {
            name: Some("lo"),
            guid: Guid::new([2; 8]),
            gids: &[],
            gid_netdevs: Vec::new(),
            is_running: true,
            link_layer: LinkLayer::Ethernet,
            gid_layout: GidLayout::default(),
            lid: Lid(0x10a),
        };
        add_kernel_tree(&mut plan, &dir.path().join("sysfs"), &[slot(Some(netdev))], personality, None);
        plan.write().unwrap();
        dir
    }

    fn read(tree: &tempfile::TempDir, path: &str) -> String {
        std::fs::read_to_string(tree.path().join("sysfs/class").join(path)).unwrap()
    }

    #[test]
    fn sysfs_is_that_of_the_kernels_rxe() {
        // Addresses of the kernel's dump in its own notation: MAC 52:54:00:77:00:02.
        let gids = [
            Gid::new([0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0x50, 0x54, 0, 0xff, 0xfe, 0x77, 0, 2]),
            Gid::new([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0x4d, 0, 2]),
        ];
        let guid = Guid::from_mac([0x52, 0x54, 0, 0x77, 0, 2]);
        let link_layer = LinkLayer::Ethernet;
        let (name, gid_layout) = (Some("eth0"), GidLayout::default());
        // The device is on two interfaces.
        let gid_netdevs = vec!["eth0", "eth1"];
        let is_running = true;
        let netdev =
            Netdev { name, guid, gids: &gids, gid_netdevs, is_running, link_layer, gid_layout, lid: Lid::NONE };
        let tree = tree(&[slot(Some(netdev))]);
        assert_eq!(read(&tree, "infiniband/urxe0/node_guid"), "5054:00ff:fe77:0002\n");
        assert_eq!(read(&tree, "infiniband/urxe0/ports/1/gids/0"), "fe80:0000:0000:0000:5054:00ff:fe77:0002\n");
        assert_eq!(read(&tree, "infiniband/urxe0/ports/1/gids/1"), "0000:0000:0000:0000:0000:ffff:0a4d:0002\n");
        assert_eq!(read(&tree, "infiniband/urxe0/ports/1/gids/2"), "0000:0000:0000:0000:0000:0000:0000:0000\n");
        assert_eq!(read(&tree, "infiniband/urxe0/ports/1/gid_attrs/types/1"), "RoCE v2\n");
        assert_eq!(read(&tree, "infiniband/urxe0/ports/1/gid_attrs/ndevs/0"), "eth0\n");
        assert_eq!(read(&tree, "infiniband/urxe0/ports/1/gid_attrs/ndevs/1"), "eth1\n");
        assert_eq!(read(&tree, "infiniband/urxe0/ports/1/gid_attrs/ndevs/2"), "");
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
            assert_texts_end_in_names(&sys);
            assert_eq!(read(&tree, "infiniband_verbs/uverbs0/ibdev"), "urxe0\n");
            assert_eq!(read(&tree, "infiniband/urxe0/ports/1/lid"), "0x10a\n");
        }
    }

    /// VPP takes the last component of `device` for a PCI address.
    fn assert_texts_end_in_names(dir: &Path) {
        for entry in std::fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_symlink() {
                let (text, target) = (path.read_link().unwrap(), path.canonicalize().unwrap());
                assert_eq!(text.file_name(), target.file_name(), "{}", path.display());
            } else if path.is_dir() {
                assert_texts_end_in_names(&path);
            }
        }
    }

    #[test]
    fn the_interface_leads_to_its_function() {
        let tree = kernel_tree(Personality::Pci);
        let netdev = Path::new("/sys/class/net/lo").canonicalize().unwrap();
        let device = tree.path().join("sysfs").join(netdev.strip_prefix("/sys").unwrap()).join("device");
        assert_eq!(device.canonicalize().unwrap().file_name(), Some("7572:00:00.0".as_ref()));
    }

    #[test]
    fn a_card_by_names_and_ids_that_no_stock_provider_takes() {
        let tree = kernel_tree(Personality::Mlx5);
        let device = "infiniband/urxe0/device";
        assert_eq!(read(&tree, &format!("{device}/vendor")), "0x15b3\n");
        assert_eq!(read(&tree, &format!("{device}/device")), "0x1017\n");
        assert_eq!(read(&tree, "infiniband/urxe0/hca_type"), "MT4119\n");
        let function = tree.path().join("sysfs/class").join(device);
        assert_eq!(function.join("driver").read_link().unwrap(), Path::new("../../../bus/pci/drivers/mlx5_core"));
        // libibverbs asks providers by it.
        assert!(!function.join("modalias").exists());
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
