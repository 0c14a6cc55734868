//! Capabilities: what the device says that it can do, in one place.
//!
//! `tests/tests/verbs_capabilities` does each of them, and finds that each that works is said.
//! Bits that the headers of rdma-core 44 have no names for are named here.

use urxe_ffi::verbs as v;
use urxe_status::port::PortAttributes;
use urxe_wire::LinkLayer;

/// `ibv_device_attr::device_cap_flags`.
pub(crate) const DEVICE: u32 = v::IBV_DEVICE_RC_RNR_NAK_GEN
    | v::IBV_DEVICE_AUTO_PATH_MIG
    | v::IBV_DEVICE_SYS_IMAGE_GUID
    | v::IBV_DEVICE_BAD_PKEY_CNTR
    | v::IBV_DEVICE_BAD_QKEY_CNTR
    // An address handle has a port, and there is but one.
    | v::IBV_DEVICE_UD_AV_PORT_ENFORCE
    | v::IBV_DEVICE_CURR_QP_STATE_MOD
    | v::IBV_DEVICE_PORT_ACTIVE_EVENT
    | v::IBV_DEVICE_SRQ_RESIZE
    | v::IBV_DEVICE_XRC
    | v::IBV_DEVICE_RAW_MULTI
    | v::IBV_DEVICE_RAW_IP_CSUM
    | v::IBV_DEVICE_MANAGED_FLOW_STEERING
    | v::IBV_DEVICE_MEM_WINDOW
    | v::IBV_DEVICE_MEM_WINDOW_TYPE_2B
    // Of these, what user space has: local invalidation, and SEND with invalidate.
    | v::IBV_DEVICE_MEM_MGT_EXTENSIONS;

/// `IBV_DEVICE_FLUSH_GLOBAL`, `_FLUSH_PERSISTENT` and `_ATOMIC_WRITE` (`ib_user_verbs.h` of Linux 6.2).
const FLUSH_GLOBAL: u64 = 1 << 38;
const FLUSH_PERSISTENT: u64 = 1 << 39;
const ATOMIC_WRITE: u64 = 1 << 40;

/// `ibv_device_attr_ex::device_cap_flags_ex`, besides [`DEVICE`].
pub(crate) const DEVICE_EX: u64 = FLUSH_GLOBAL | FLUSH_PERSISTENT | ATOMIC_WRITE;

/// `ibv_device_attr_ex::raw_packet_caps`: checksums of IPv4, TCP and UDP are filled in and looked at, and VLAN tags taken out.
pub(crate) const RAW_PACKET: u32 = v::IBV_RAW_PACKET_CAP_CVLAN_STRIPPING | v::IBV_RAW_PACKET_CAP_IP_CSUM;

/// `ibv_device_attr_ex::odp_caps`. Memory is accessed where it is, when it is: every region could be on demand.
pub(crate) const ODP: u32 = v::IBV_ODP_SUPPORT | v::IBV_ODP_SUPPORT_IMPLICIT;
/// Capabilities of UD.
pub(crate) const ODP_UD: u32 = v::IBV_ODP_SUPPORT_SEND | v::IBV_ODP_SUPPORT_RECV | v::IBV_ODP_SUPPORT_SRQ_RECV;
/// Capabilities of UC.
pub(crate) const ODP_UC: u32 = ODP_UD | v::IBV_ODP_SUPPORT_WRITE;
/// Capabilities of RC and XRC.
pub(crate) const ODP_RC: u32 =
    ODP_UC | v::IBV_ODP_SUPPORT_READ | v::IBV_ODP_SUPPORT_ATOMIC | ODP_SUPPORT_FLUSH | ODP_SUPPORT_ATOMIC_WRITE;

/// `IBV_ODP_SUPPORT_FLUSH` and `IBV_ODP_SUPPORT_ATOMIC_WRITE`, of rdma-core 45 and later.
const ODP_SUPPORT_FLUSH: u32 = 1 << 6;
const ODP_SUPPORT_ATOMIC_WRITE: u32 = 1 << 7;

/// `ibv_port_attr::port_cap_flags`: what sysfs says, but for bit 26, which has another meaning here than in the specification
/// (the kernel's `make_port_cap_flags`).
pub(crate) const fn port(link_layer: LinkLayer) -> u32 {
    let mask = PortAttributes::of(link_layer).capability_mask & !IP_BASED_GIDS;
    if link_layer.is_infiniband() { mask } else { mask | IP_BASED_GIDS }
}

/// `IBV_PORT_IP_BASED_GIDS`, as of every RoCE device.
const IP_BASED_GIDS: u32 = 1 << 26;
