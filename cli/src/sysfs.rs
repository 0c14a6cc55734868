//! The fake sysfs tree: what the kernel shows of an rxe device, as plain files.
//!
//! libibverbs finds devices here (`SYSFS_PATH`), before it loads any provider; so the tree holds every slot that
//! `URXE_NETDEV` could ask for, and the provider claims those that it does. Once loaded, the provider answers queries
//! itself: the rest is for programs that read the files by path. Left out of the kernel's tree are counters, which
//! nobody would update, and what belongs to the kernel's device model (`power`, `uevent`, `subsystem`).

use std::path::Path;

use crate::layout::SLOTS;
use crate::plan::Plan;

/// `class/infiniband_verbs/abi_version`: `IB_USER_VERBS_ABI_VERSION` of rdma/ib_user_verbs.h.
const UVERBS_ABI: u32 = 6;

/// `class/misc/rdma_cm/abi_version`: `RDMA_USER_CM_ABI_VERSION` of rdma/rdma_user_cm.h.
const RDMA_CM_ABI: u32 = 4;

/// `uverbsN/abi_version`: the version of the private ABI between provider and kernel driver. There is no kernel driver;
/// the provider only has to accept this number.
const DRIVER_ABI: u32 = 1;

/// `uverbsN/dev`: the device number of `/dev/null` (Documentation/admin-guide/devices.txt), which `/dev/infiniband/uverbsN`
/// is a link to. libibverbs compares the two (util/open_cdev.c).
const DEV_NULL: &str = "1:3";

/// GIDs in a port's table; empty entries are zero. A longer list of addresses makes a longer table.
const GID_TABLE_LEN: usize = 16;

/// What the tree says about an interface.
pub(crate) struct Netdev<'a> {
    pub(crate) name: &'a str,
    pub(crate) guid: [u8; 8],
    pub(crate) gids: &'a [[u8; 16]],
}

/// Adds the tree at `root` to `plan`, with `netdevs` as the interfaces of `urxe0`, `urxe1`, ….
pub(crate) fn add_tree(plan: &mut Plan, root: &Path, netdevs: &[Netdev<'_>]) {
    plan.text(root.join("class/infiniband_verbs/abi_version"), format!("{UVERBS_ABI}\n"));
    plan.text(root.join("class/misc/rdma_cm/abi_version"), format!("{RDMA_CM_ABI}\n"));
    plan.text(root.join("class/misc/rdma_cm/dev"), format!("{DEV_NULL}\n"));
    for slot in 0..SLOTS {
        let uverbs = root.join(format!("class/infiniband_verbs/uverbs{slot}"));
        plan.text(uverbs.join("ibdev"), format!("urxe{slot}\n"));
        plan.text(uverbs.join("dev"), format!("{DEV_NULL}\n"));
        plan.text(uverbs.join("abi_version"), format!("{DRIVER_ABI}\n"));
        add_device(plan, &root.join(format!("class/infiniband/urxe{slot}")), netdevs.get(slot));
    }
}

fn add_device(plan: &mut Plan, dir: &Path, netdev: Option<&Netdev<'_>>) {
    let guid = colon_separated(&netdev.map_or([0; 8], |netdev| netdev.guid));
    plan.text(dir.join("node_type"), "1: CA\n");
    plan.text(dir.join("node_guid"), format!("{guid}\n"));
    plan.text(dir.join("sys_image_guid"), format!("{guid}\n"));
    plan.text(dir.join("node_desc"), "urxe\n");
    plan.text(dir.join("fw_ver"), concat!(env!("CARGO_PKG_VERSION"), "\n"));
    if let Some(Netdev { name, .. }) = netdev {
        plan.text(dir.join("parent"), format!("{name}\n"));
        plan.link(dir.join("device/net").join(name), Path::new("/sys/class/net").join(name));
    }
    add_port(plan, &dir.join("ports/1"), netdev);
}

fn add_port(plan: &mut Plan, dir: &Path, netdev: Option<&Netdev<'_>>) {
    let (state, phys_state) = if netdev.is_some() { ("4: ACTIVE", "5: LinkUp") } else { ("1: DOWN", "3: Disabled") };
    for (name, value) in [
        ("state", state),
        ("phys_state", phys_state),
        ("link_layer", "Ethernet"),
        ("rate", "10 Gb/sec (1X FDR10)"),
        // IB_PORT_CM_SUP, as rxe's port attributes have it.
        ("cap_mask", "0x00010000"),
        // RoCE has neither LIDs nor a subnet manager.
        ("lid", "0x0"),
        ("lid_mask_count", "0"),
        ("sm_lid", "0x0"),
        ("sm_sl", "0"),
        // The default partition, full membership.
        ("pkeys/0", "0xffff"),
    ] {
        plan.text(dir.join(name), format!("{value}\n"));
    }
    let gids = netdev.map_or(&[][..], |netdev| netdev.gids);
    for index in 0..gids.len().max(GID_TABLE_LEN) {
        let gid = gids.get(index);
        plan.text(dir.join(format!("gids/{index}")), colon_separated(gid.unwrap_or(&[0; 16])) + "\n");
        // The kernel answers EINVAL for the type of an empty entry. A file cannot, and libibverbs takes a missing one
        // for an error that ends ibv_query_gid_table (libibverbs/cmd_device.c).
        plan.text(dir.join(format!("gid_attrs/types/{index}")), "RoCE v2\n");
        if let (Some(netdev), Some(_)) = (netdev, gid) {
            plan.text(dir.join(format!("gid_attrs/ndevs/{index}")), format!("{}\n", netdev.name));
        }
    }
}

/// Groups of two bytes in hexadecimal, as sysfs prints GUIDs and GIDs.
fn colon_separated(bytes: &[u8]) -> String {
    let group = |pair: &[u8]| pair.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    bytes.chunks(2).map(group).collect::<Vec<_>>().join(":")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The tree for one interface, installed below a temporary folder.
    fn tree(netdevs: &[Netdev<'_>]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        let mut plan = Plan::default();
        add_tree(&mut plan, &dir.path().join("sysfs"), netdevs);
        plan.apply(&dir.path().join("manifest")).unwrap();
        dir
    }

    fn read(tree: &tempfile::TempDir, path: &str) -> String {
        std::fs::read_to_string(tree.path().join("sysfs/class").join(path)).unwrap()
    }

    #[test]
    fn what_the_kernel_prints_for_rxe() {
        // Addresses of the kernel's dump in its own notation: MAC 52:54:00:77:00:02.
        let gids = [
            [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0x50, 0x54, 0, 0xff, 0xfe, 0x77, 0, 2],
            [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0x4d, 0, 2],
        ];
        let guid = [0x50, 0x54, 0, 0xff, 0xfe, 0x77, 0, 2];
        let tree = tree(&[Netdev { name: "eth0", guid, gids: &gids }]);
        assert_eq!(read(&tree, "infiniband/urxe0/node_guid"), "5054:00ff:fe77:0002\n");
        assert_eq!(read(&tree, "infiniband/urxe0/ports/1/gids/0"), "fe80:0000:0000:0000:5054:00ff:fe77:0002\n");
        assert_eq!(read(&tree, "infiniband/urxe0/ports/1/gids/1"), "0000:0000:0000:0000:0000:ffff:0a4d:0002\n");
        assert_eq!(read(&tree, "infiniband/urxe0/ports/1/gids/2"), "0000:0000:0000:0000:0000:0000:0000:0000\n");
        assert_eq!(read(&tree, "infiniband/urxe0/ports/1/gid_attrs/types/1"), "RoCE v2\n");
        assert_eq!(read(&tree, "infiniband/urxe0/ports/1/gid_attrs/ndevs/1"), "eth0\n");
        assert_eq!(read(&tree, "infiniband/urxe0/ports/1/state"), "4: ACTIVE\n");
        assert_eq!(read(&tree, "infiniband_verbs/abi_version"), "6\n");
        assert_eq!(read(&tree, "misc/rdma_cm/abi_version"), "4\n");
    }

    #[test]
    fn every_slot_is_there_and_the_unused_ones_are_down() {
        let tree = tree(&[]);
        for slot in 0..SLOTS {
            assert_eq!(read(&tree, &format!("infiniband_verbs/uverbs{slot}/ibdev")), format!("urxe{slot}\n"));
            assert_eq!(read(&tree, &format!("infiniband_verbs/uverbs{slot}/dev")), "1:3\n");
            assert_eq!(read(&tree, &format!("infiniband/urxe{slot}/ports/1/state")), "1: DOWN\n");
        }
    }
}
