//! Registration of a provider, and the devices it makes: equal in every version from rdma-core 35 on.
//!
//! In rdma-core 34 [`verbs_sysfs_dev`] lacks `num_ports`, so that what follows it sits 4 bytes lower: a provider
//! that serves 34 reads the members before it only.

use core::ffi::{c_char, c_int, c_uint, c_void};

use libc::{dev_t, timespec};

use crate::verbs::{ibv_device, ibv_node_type, verbs_context};

/// A doubly linked list's links (ccan `list_node`).
#[repr(C)]
pub struct list_node {
    /// The next one.
    pub next: *mut Self,
    /// The previous one.
    pub prev: *mut Self,
}

/// A row of a provider's match table; a row of `kind` [`VERBS_MATCH_SENTINEL`] ends it.
#[repr(C)]
pub struct verbs_match_ent {
    /// The provider's own.
    pub driver_data: *mut c_void,
    /// Value to compare with, depending on `kind`.
    pub u: verbs_match_value,
    /// PCI vendor.
    pub vendor: u16,
    /// PCI device.
    pub device: u16,
    /// `VERBS_MATCH_*`.
    pub kind: u8,
}

/// See [`verbs_match_ent`].
#[repr(C)]
pub union verbs_match_value {
    /// A pattern for fnmatch(3): of `device/modalias`, or of `rdma_device:N<ibdev name>`.
    pub modalias: *const c_char,
    /// `enum rdma_driver_id`.
    pub driver_id: u64,
}

/// Ends a match table.
pub const VERBS_MATCH_SENTINEL: u8 = 0;
/// Compare PCI vendor and device.
pub const VERBS_MATCH_PCI: u8 = 1;
/// Compare `modalias`.
pub const VERBS_MATCH_MODALIAS: u8 = 2;
/// Compare `driver_id`.
pub const VERBS_MATCH_DRIVER_ID: u8 = 3;

/// `driver_id` of a device that sysfs, not netlink, told of (`RDMA_DRIVER_UNKNOWN` of
/// `<rdma/ib_user_ioctl_verbs.h>`).
pub const RDMA_DRIVER_UNKNOWN: u32 = 0;

/// A device that libibverbs found, and asks every provider about.
#[repr(C)]
pub struct verbs_sysfs_dev {
    /// The library's.
    pub entry: list_node,
    /// The provider's.
    pub provider_data: *mut c_void,
    /// The matching row of the provider's table, or null.
    pub match_: *const verbs_match_ent,
    /// The library's: what has been read.
    pub flags: c_uint,
    /// `uverbs0`.
    pub sysfs_name: [c_char; 64],
    /// The character device's number, as sysfs tells it.
    pub sysfs_cdev: dev_t,
    /// `urxe0`.
    pub ibdev_name: [c_char; 64],
    /// `<sysfs>/class/infiniband/urxe0`.
    pub ibdev_path: [c_char; 256],
    /// Content of `device/modalias`.
    pub modalias: [c_char; 512],
    /// GUID in host byte order, once read.
    pub node_guid: u64,
    /// `enum rdma_driver_id`, from netlink.
    pub driver_id: u32,
    /// `IBV_NODE_*`.
    pub node_type: ibv_node_type,
    /// The kernel's index, or -1.
    pub ibdev_idx: c_int,
    /// Number of ports, from netlink; 0 from sysfs.
    pub num_ports: u32,
    /// The uverbs driver ABI (`abi_version` of the uverbs device).
    pub abi_ver: u32,
    /// Time at which the sysfs folder was made.
    pub time_created: timespec,
}

/// A provider, as it registers itself. Must live as long as the process.
#[repr(C)]
pub struct verbs_device_ops {
    /// Name for messages.
    pub name: *const c_char,
    /// Lowest `abi_ver` served.
    pub match_min_abi_version: u32,
    /// Highest `abi_ver` served.
    pub match_max_abi_version: u32,
    /// Ends with a sentinel, which may be all there is when there is `match_device`. Never null: where the kernel told a
    /// driver id, `match_driver_id` (`init.c`) walks it without asking.
    pub match_table: *const verbs_match_ent,
    /// List of providers, for static linking.
    pub static_providers: *mut *const Self,
    /// Has the last word, whatever the table says.
    pub match_device: Option<unsafe extern "C" fn(sysfs_dev: *mut verbs_sysfs_dev) -> bool>,
    /// `ibv_open_device`. Owns `cmd_fd` from here on; closes it and sets errno on failure (null).
    pub alloc_context: Option<
        unsafe extern "C" fn(device: *mut ibv_device, cmd_fd: c_int, private_data: *mut c_void) -> *mut verbs_context,
    >,
    /// `ibv_import_device`; null when not supported.
    pub import_context: Option<unsafe extern "C" fn(device: *mut ibv_device, cmd_fd: c_int) -> *mut verbs_context>,
    /// Makes a zeroed device; the library fills in the rest.
    pub alloc_device: Option<unsafe extern "C" fn(sysfs_dev: *mut verbs_sysfs_dev) -> *mut verbs_device>,
    /// Frees it. The library has freed its `sysfs` already.
    pub uninit_device: Option<unsafe extern "C" fn(device: *mut verbs_device)>,
}

// SAFETY: what libibverbs reads from several threads and never writes.
unsafe impl Sync for verbs_device_ops {}
// SAFETY: as above.
unsafe impl Sync for verbs_match_ent {}

/// A device. The provider's own struct begins with it.
#[repr(C)]
pub struct verbs_device {
    /// Public part, which the application sees.
    pub device: ibv_device,
    /// The provider.
    pub ops: *const verbs_device_ops,
    /// The library's; an `atomic_int`.
    pub refcount: c_int,
    /// The library's.
    pub entry: list_node,
    /// Entry of sysfs in which it was found.
    pub sysfs: *mut verbs_sysfs_dev,
    /// `ib_uverbs_core_support`: the provider sets it. Without `OPTIONAL_MR_ACCESS` the library strips
    /// `IBV_ACCESS_OPTIONAL_RANGE` from what it passes to `reg_mr`.
    pub core_support: u64,
}

#[cfg(target_pointer_width = "64")]
const _: () = {
    use core::mem::{offset_of, size_of};
    assert!(size_of::<verbs_match_ent>() == 24);
    assert!(size_of::<verbs_sysfs_dev>() == 992);
    assert!(offset_of!(verbs_sysfs_dev, sysfs_name) == 36);
    assert!(offset_of!(verbs_sysfs_dev, sysfs_cdev) == 104);
    assert!(offset_of!(verbs_sysfs_dev, ibdev_name) == 112);
    assert!(offset_of!(verbs_sysfs_dev, ibdev_path) == 176);
    assert!(offset_of!(verbs_sysfs_dev, node_guid) == 944);
    assert!(offset_of!(verbs_sysfs_dev, abi_ver) == 968);
    assert!(size_of::<verbs_device_ops>() == 72);
    assert!(offset_of!(verbs_device_ops, match_device) == 32);
    assert!(size_of::<verbs_device>() == 712);
    assert!(offset_of!(verbs_device, core_support) == 704);
};
