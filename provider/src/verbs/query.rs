//! Attributes of the device and the port, as `ibv_query_device(3)` and `ibv_query_port(3)` report them.

use urxe_engine::flow::rss::ALL_FIELDS;
use urxe_ffi::verbs as v;
use urxe_net::{Interface, PortLids};
use urxe_options::Personality;
use urxe_status::port::PortAttributes;
use urxe_wire::Mtu;

use super::capabilities;
use super::context::Context;
use crate::device;
use urxe_runtime::limits;
use urxe_runtime::raw::RateLimit;

/// `ibv_query_device`.
pub(crate) fn device(context: &Context) -> v::ibv_device_attr {
    let guid = u64::from_ne_bytes(context.interface().guid().octets());
    let quotas = context.quotas();
    let count = |number: u32| i32::try_from(number).unwrap_or(i32::MAX);
    let (vendor_id, vendor_part_id) = match device::personality() {
        Personality::Virtual | Personality::Pci => (limits::VENDOR_ID, limits::VENDOR_PART_ID),
        Personality::Mlx5 => limits::CONNECTX_5,
    };
    let mut fw_ver = [0; 64];
    for (to, from) in fw_ver.iter_mut().zip(env!("CARGO_PKG_VERSION").bytes()) {
        *to = std::ffi::c_char::from_ne_bytes([from]);
    }
    v::ibv_device_attr {
        fw_ver,
        node_guid: guid,
        sys_image_guid: guid,
        max_mr_size: u64::MAX,
        page_size_cap: 0xffff_f000,
        vendor_id,
        vendor_part_id,
        hw_ver: 0,
        max_qp: count(quotas.qp.most()),
        max_qp_wr: count(limits::MAX_QP_WR),
        device_cap_flags: capabilities::DEVICE,
        max_sge: count(limits::MAX_SGE),
        max_sge_rd: count(limits::MAX_SGE),
        max_cq: count(quotas.cq.most()),
        max_cqe: count(limits::MAX_CQE),
        max_mr: count(limits::MAX_MR),
        max_pd: count(quotas.pd.most()),
        max_qp_rd_atom: i32::from(limits::MAX_RD_ATOM),
        max_ee_rd_atom: 0,
        max_res_rd_atom: count(quotas.qp.most() * u32::from(limits::MAX_RD_ATOM)),
        max_qp_init_rd_atom: i32::from(limits::MAX_RD_ATOM),
        max_ee_init_rd_atom: 0,
        // They are atomic to everybody, but consumers such as UCX look for this level and no higher one. As on NICs,
        // `pci_atomic_caps` tells the rest.
        atomic_cap: v::IBV_ATOMIC_HCA,
        max_ee: 0,
        max_rdd: 0,
        max_mw: count(quotas.mw.most()),
        max_raw_ipv6_qp: 0,
        max_raw_ethy_qp: count(quotas.qp.most()),
        max_mcast_grp: count(limits::MAX_MCAST_GRP),
        max_mcast_qp_attach: count(limits::MAX_MCAST_QP_ATTACH),
        max_total_mcast_qp_attach: count(limits::MAX_MCAST_GRP * limits::MAX_MCAST_QP_ATTACH),
        max_ah: count(quotas.ah.most()),
        max_fmr: 0,
        max_map_per_fmr: 0,
        max_srq: count(quotas.srq.most()),
        max_srq_wr: count(limits::MAX_SRQ_WR),
        max_srq_sge: count(limits::MAX_SGE),
        max_pkeys: PortAttributes::of(context.interface().link_layer()).pkeys,
        local_ca_ack_delay: 15,
        phys_port_cnt: 1,
    }
}

/// All capabilities, as `ibv_query_device_ex` and netlink tell them.
pub(crate) fn capabilities() -> u64 {
    u64::from(capabilities::DEVICE) | capabilities::DEVICE_EX
}

/// `IBV_PCI_ATOMIC_OPERATION_8_BYTE_SIZE_SUP`.
const EIGHT_BYTES: u16 = 1 << 1;

/// Fills in the further attributes of `ibv_query_device_ex(3)`. Fields not set here stay 0: "not supported".
pub(crate) fn extended(context: &Context, answer: &mut v::ibv_device_attr_ex) {
    answer.device_cap_flags_ex = capabilities();
    answer.phys_port_cnt_ex = 1;
    // Atomics are the processor's own.
    answer.pci_atomic_caps.fetch_add = EIGHT_BYTES;
    answer.pci_atomic_caps.compare_swap = EIGHT_BYTES;
    let odp = &mut answer.odp_caps;
    odp.general_caps = u64::from(capabilities::ODP);
    odp.per_transport_caps.rc_odp_caps = capabilities::ODP_RC;
    odp.per_transport_caps.uc_odp_caps = capabilities::ODP_UC;
    odp.per_transport_caps.ud_odp_caps = capabilities::ODP_UD;
    answer.xrc_odp_caps = capabilities::ODP_RC;
    // Timestamps count nanoseconds; the clock's rate is in kHz.
    answer.completion_timestamp_mask = u64::MAX;
    answer.hca_core_clock = 1_000_000;
    answer.max_dm_size = limits::MAX_DM;
    answer.raw_packet_caps = capabilities::RAW_PACKET;
    answer.packet_pacing_caps = v::ibv_packet_pacing_caps {
        qp_rate_limit_min: RateLimit::LEAST,
        qp_rate_limit_max: RateLimit::MOST,
        supported_qpts: 1 << v::IBV_QPT_RAW_PACKET,
    };
    answer.tso_caps = v::ibv_tso_caps { max_tso: limits::MAX_TSO, supported_qpts: 1 << v::IBV_QPT_RAW_PACKET };
    answer.max_wq_type_rq = context.quotas().qp.most();
    answer.rss_caps = v::ibv_rss_caps {
        supported_qpts: 1 << v::IBV_QPT_RAW_PACKET,
        max_rwq_indirection_tables: context.quotas().ind_table.most(),
        max_rwq_indirection_table_size: limits::MAX_RWQ_IND_TABLE,
        rx_hash_fields_mask: ALL_FIELDS,
        rx_hash_function: v::IBV_RX_HASH_FUNC_TOEPLITZ.to_le_bytes()[0],
    };
    (answer.cq_mod_caps.max_cq_count, answer.cq_mod_caps.max_cq_period) = (u16::MAX, u16::MAX);
}

/// `ibv_port_attr::phys_state` (IBA 14.2.5.6, PortPhysicalState).
const DISABLED: u8 = 3;
const LINK_UP: u8 = 5;

/// The largest payload of a packet on the interface: the limit of UD messages.
pub(crate) fn active_mtu(interface: &Interface) -> Mtu {
    Mtu::within(interface.path_mtu().into())
}

/// `ibv_query_port`; the fields the library has cleared stay so.
pub(crate) fn port(interface: &Interface, lids: PortLids, attr: &mut v::ibv_port_attr) {
    let link_layer = interface.link_layer();
    let attributes = PortAttributes::of(link_layer);
    attr.state = if interface.is_running() { v::IBV_PORT_ACTIVE } else { v::IBV_PORT_DOWN };
    attr.max_mtu = v::IBV_MTU_4096;
    attr.active_mtu = u32::from(active_mtu(interface).code());
    attr.gid_tbl_len = i32::try_from(limits::GID_TABLE).unwrap_or(i32::MAX);
    attr.port_cap_flags = capabilities::port(link_layer);
    (attr.lid, attr.lmc, attr.sm_lid, attr.sm_sl) = (lids.lid.0, lids.lmc, lids.sm_lid.0, lids.sm_sl);
    attr.max_msg_sz = limits::MAX_MSG;
    attr.pkey_tbl_len = attributes.pkeys;
    attr.max_vl_num = 1;
    (attr.active_width, attr.active_speed) = (attributes.width, attributes.speed);
    attr.phys_state = if interface.is_running() { LINK_UP } else { DISABLED };
    let code = if link_layer.is_infiniband() { v::IBV_LINK_LAYER_INFINIBAND } else { v::IBV_LINK_LAYER_ETHERNET };
    attr.link_layer = u8::try_from(code).unwrap_or_default();
}
