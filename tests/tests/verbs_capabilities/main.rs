//! Every capability that the device says is there, and every one that is there is said: `ibv_query_device_ex(3)`,
//! `ibv_query_port(3)` and sysfs.

use std::sync::Arc;

use anyhow::{Context as _, Result, bail, ensure};
use urxe_ffi::verbs as v;
use urxe_tests::verbs::datagram::{Ah, towards};
use urxe_tests::verbs::memory::{ALL_ACCESS, PAGE};
use urxe_tests::verbs::window::{part, post_invalidate};
use urxe_tests::verbs::{Context, Cq, Mr, Op, Options, Pair, Pd, RecvWr, SendWr, Srq, Status, Window, Xrcd};
use urxe_tests::{GID_IPV4, Host, World, in_world_with};

mod doing;

use doing::{
    bind_2, bindable, by_xrc, changes, counts_bad_pkeys, counts_bad_qkeys, datagram, end, gid, operation, raw, reads,
    receives_from_an_srq, tells_of_the_port, unreliable,
};

type Device = Arc<Context>;

/// How a capability is seen.
enum Seen {
    /// Whether the capability works.
    ByDoing(fn(&Device) -> Result<bool>),
    /// Absent by nature, for this reason.
    Never(&'static str),
}
use Seen::{ByDoing, Never};

struct Row(u32, &'static str, Seen);

/// Compares what a mask says with what works. Bits that no row names must not be set.
fn compare(what: &str, device: &Device, said: u64, rows: &[Row], wrong: &mut Vec<String>) -> Result<()> {
    let mut unknown = said;
    for Row(bit, name, seen) in rows {
        let (says, bit) = (said & 1 << bit != 0, 1_u64 << bit);
        unknown &= !bit;
        match seen {
            ByDoing(works) => {
                if works(device).with_context(|| format!("{what} {name}"))? != says {
                    wrong.push(format!("{what} {name}: said: {says}, works: {}", !says));
                }
            }
            Never(why) if says => wrong.push(format!("{what} {name} is said, but {why}")),
            Never(_) => {}
        }
    }
    if unknown != 0 {
        wrong.push(format!("{what}: {unknown:#x} is said, and has no row here"));
    }
    Ok(())
}

/// urxe0 sits on veth0.
fn linked(world: &World) -> Result<Host> {
    let other = world.add_host()?;
    world.link(world.host(), &other, 1500)?;
    Ok(other)
}

#[test]
fn capabilities_of_the_device() {
    in_world_with(linked, || {
        let device = Context::open()?;
        let attr = device.query_device_ex()?;
        let mut wrong = Vec::new();
        compare("device_cap_flags_ex", &device, attr.device_cap_flags_ex, DEVICE, &mut wrong)?;
        ensure!(u64::from(attr.orig_attr.device_cap_flags) == attr.device_cap_flags_ex & 0xffff_ffff);
        compare("odp_caps.general_caps", &device, attr.odp_caps.general_caps, ON_DEMAND, &mut wrong)?;
        let odp = &attr.odp_caps.per_transport_caps;
        compare("rc_odp_caps", &device, odp.rc_odp_caps.into(), ON_DEMAND_RC, &mut wrong)?;
        compare("uc_odp_caps", &device, odp.uc_odp_caps.into(), ON_DEMAND_UC, &mut wrong)?;
        compare("ud_odp_caps", &device, odp.ud_odp_caps.into(), ON_DEMAND_UD, &mut wrong)?;
        compare("xrc_odp_caps", &device, attr.xrc_odp_caps.into(), ON_DEMAND_XRC, &mut wrong)?;
        // Atomics of eight bytes, which `operation` shows (IBV_PCI_ATOMIC_OPERATION_8_BYTE_SIZE_SUP).
        let pci = attr.pci_atomic_caps;
        ensure!((pci.fetch_add, pci.swap, pci.compare_swap) == (1 << 1, 0, 1 << 1));
        // What `raw_ethernet` shows: frames, checksums, segments, VLAN tags.
        ensure!(attr.raw_packet_caps == v::IBV_RAW_PACKET_CAP_CVLAN_STRIPPING | v::IBV_RAW_PACKET_CAP_IP_CSUM);
        ensure!(attr.max_wq_type_rq > 0 && attr.tso_caps.max_tso > 0);
        ensure!(attr.tso_caps.supported_qpts == 1 << v::IBV_QPT_RAW_PACKET);
        ensure!(attr.rss_caps.supported_qpts == 1 << v::IBV_QPT_RAW_PACKET);
        let pacing = attr.packet_pacing_caps;
        ensure!(pacing.supported_qpts == 1 << v::IBV_QPT_RAW_PACKET && pacing.qp_rate_limit_min == 1);
        if wrong.is_empty() { Ok(()) } else { bail!("{}", wrong.join("\n")) }
    });
}

/// Verbs say what sysfs says, but for bit 26, which means IP-based GIDs to verbs (the kernel's `make_port_cap_flags`).
#[test]
fn capabilities_of_the_port() {
    in_world_with(linked, || {
        let device = Context::open()?;
        let said = device.query_port(1)?.port_cap_flags;
        let mut wrong = Vec::new();
        compare("port_cap_flags", &device, said.into(), PORT, &mut wrong)?;
        let sysfs = std::env::var("SYSFS_PATH").context("SYSFS_PATH")?;
        let path = format!("{sysfs}/class/infiniband/urxe0/ports/1/cap_mask");
        let text = std::fs::read_to_string(&path).with_context(|| path.clone())?;
        let mask = text.trim().strip_prefix("0x").and_then(|digits| u32::from_str_radix(digits, 16).ok());
        let mask = mask.with_context(|| format!("{path}: {text:?}"))?;
        if (mask ^ said) & !v::IBV_PORT_IP_BASED_GIDS != 0 || mask & v::IBV_PORT_IP_BASED_GIDS != 0 {
            wrong.push(format!("sysfs says {mask:#x}, verbs {said:#x}"));
        }
        if wrong.is_empty() { Ok(()) } else { bail!("{}", wrong.join("\n")) }
    });
}

const ONLY_RAW: &str = "only raw packets have checksums";
const NO_VERB: &str = "libibverbs has no verb for it";

/// `enum ibv_device_cap_flags`, and what `ib_user_verbs.h` has above.
const DEVICE: &[Row] = &[
    Row(0, "RESIZE_MAX_WR", ByDoing(|device| changes(device, v::IBV_QP_CAP, |attr| attr.cap.max_send_wr = 32))),
    Row(1, "BAD_PKEY_CNTR", ByDoing(counts_bad_pkeys)),
    Row(2, "BAD_QKEY_CNTR", ByDoing(counts_bad_qkeys)),
    Row(3, "RAW_MULTI", ByDoing(|device| Ok(end(device, v::IBV_QPT_RAW_PACKET).is_ok()))),
    Row(
        4,
        "AUTO_PATH_MIG",
        ByDoing(|device| {
            let path = towards(gid(device)?, GID_IPV4);
            let mask = v::IBV_QP_ALT_PATH | v::IBV_QP_PATH_MIG_STATE;
            changes(device, mask, |attr| {
                (attr.alt_ah_attr, attr.alt_port_num, attr.path_mig_state) = (path, 1, v::IBV_MIG_REARM);
            })
        }),
    ),
    Row(5, "CHANGE_PHY_PORT", Never("there is one port")),
    Row(
        6,
        "UD_AV_PORT_ENFORCE",
        ByDoing(|device| {
            let to = |port_num| Ok::<_, anyhow::Error>(v::ibv_ah_attr { port_num, ..towards(gid(device)?, GID_IPV4) });
            let pd = Pd::new(device)?;
            Ok(Ah::new(&pd, to(2)?).is_err() && Ah::new(&pd, to(1)?).is_ok())
        }),
    ),
    Row(
        7,
        "CURR_QP_STATE_MOD",
        ByDoing(|device| {
            let right = changes(device, v::IBV_QP_CUR_STATE, |attr| attr.cur_qp_state = v::IBV_QPS_RTS)?;
            Ok(right && !changes(device, v::IBV_QP_CUR_STATE, |attr| attr.cur_qp_state = v::IBV_QPS_SQD)?)
        }),
    ),
    Row(8, "SHUTDOWN_PORT", Never(NO_VERB)),
    Row(9, "INIT_TYPE", Never(NO_VERB)),
    Row(10, "PORT_ACTIVE_EVENT", ByDoing(tells_of_the_port)),
    Row(11, "SYS_IMAGE_GUID", ByDoing(|device| Ok(device.query_device()?.sys_image_guid != 0))),
    Row(
        12,
        "RC_RNR_NAK_GEN",
        ByDoing(|device| {
            let pair = Pair::on(device, &Options { rnr_retry: 0, ..Options::default() })?;
            Ok(pair.near.complete(&SendWr::new(Op::Send, &[]))?.status == Status::RNR_RETRY_EXC_ERR)
        }),
    ),
    Row(13, "SRQ_RESIZE", ByDoing(|device| Ok(Srq::new(&Pd::new(device)?, 8, 1)?.modify(Some(64), None).is_ok()))),
    Row(14, "N_NOTIFY_CQ", Never(NO_VERB)),
    Row(
        17,
        "MEM_WINDOW",
        ByDoing(|device| {
            let (pair, region, local) = bindable(device)?;
            let window = Window::new(&pair.far.pd, v::IBV_MW_TYPE_1)?;
            window.bind(&pair.far.qp, 1, part(&region, 0, 64, v::IBV_ACCESS_REMOTE_READ))?;
            ensure!(pair.far.send_cq.next()?.status == Status::SUCCESS);
            reads(&pair, &window, &region, &local)
        }),
    ),
    Row(18, "UD_IP_CSUM", Never(ONLY_RAW)),
    Row(20, "XRC", ByDoing(|device| Ok(Xrcd::open(device, -1, libc::O_CREAT).is_ok()))),
    Row(
        21,
        "MEM_MGT_EXTENSIONS",
        ByDoing(|device| {
            let (pair, region, local) = bindable(device)?;
            let window = Window::new(&pair.far.pd, v::IBV_MW_TYPE_2)?;
            let bound = || bind_2(&pair, &window, &region);
            // Invalidated here, and by the peer.
            bound()?;
            post_invalidate(&pair.far.qp, 2, window.rkey())?;
            let local_inv = pair.far.send_cq.next()?.status == Status::SUCCESS;
            bound()?;
            pair.far.qp.post_recv(&RecvWr::new(3, &[]))?;
            let mut send_inv = raw(v::IBV_WR_SEND_WITH_INV, &[]);
            send_inv.__bindgen_anon_1.invalidate_rkey = window.rkey();
            pair.near.qp.post_raw(&mut send_inv)?;
            let sent = pair.near.send_cq.next()?.status == Status::SUCCESS;
            let told = pair.far.recv_cq.next()?.flags & v::IBV_WC_WITH_INV != 0;
            Ok(local_inv && sent && told && !reads(&pair, &window, &region, &local)?)
        }),
    ),
    Row(23, "MEM_WINDOW_TYPE_2A", Never("a device has 2A or 2B")),
    Row(
        24,
        "MEM_WINDOW_TYPE_2B",
        ByDoing(|device| {
            let (pair, region, local) = bindable(device)?;
            let window = Window::new(&pair.far.pd, v::IBV_MW_TYPE_2)?;
            bind_2(&pair, &window, &region)?;
            reads(&pair, &window, &region, &local)
        }),
    ),
    Row(25, "RC_IP_CSUM", Never(ONLY_RAW)),
    // `raw_ethernet` shows it.
    Row(
        26,
        "RAW_IP_CSUM",
        ByDoing(|device| Ok(device.query_device_ex()?.raw_packet_caps & v::IBV_RAW_PACKET_CAP_IP_CSUM != 0)),
    ),
    Row(
        29,
        "MANAGED_FLOW_STEERING",
        ByDoing(|device| {
            let raw = end(device, v::IBV_QPT_RAW_PACKET)?;
            // SAFETY: as the inline functions of verbs.h do; a rule for all frames.
            let flow = unsafe {
                let mut attr: v::ibv_flow_attr = std::mem::zeroed();
                (attr.type_, attr.port) = (v::IBV_FLOW_ATTR_ALL_DEFAULT, 1);
                let verbs = &*device.extended();
                let flow = verbs.ibv_create_flow.map(|create| create(raw.qp.raw(), &raw mut attr));
                flow.filter(|flow| !flow.is_null()).and_then(|flow| Some(verbs.ibv_destroy_flow?(flow)))
            };
            Ok(flow == Some(0))
        }),
    ),
    Row(34, "RAW_SCATTER_FCS", Never("Linux hands on no FCS")),
    Row(
        36,
        "PCI_WRITE_END_PADDING",
        ByDoing(|device| {
            let (pd, cq) = (Pd::new(device)?, Cq::new(device, 4, None)?);
            // SAFETY: live objects, as the inline function of verbs.h does.
            Ok(!unsafe {
                let mut init: v::ibv_qp_init_attr_ex = std::mem::zeroed();
                (init.qp_type, init.pd, init.send_cq, init.recv_cq) = (v::IBV_QPT_RC, pd.raw(), cq.raw(), cq.raw());
                init.comp_mask = v::IBV_QP_INIT_ATTR_PD | v::IBV_QP_INIT_ATTR_CREATE_FLAGS;
                init.create_flags = v::IBV_QP_CREATE_PCI_WRITE_END_PADDING;
                let create = (*device.extended()).create_qp_ex.context("libibverbs always has it")?;
                create(device.raw(), &raw mut init)
            }
            .is_null())
        }),
    ),
    // libibverbs 44 cannot post a FLUSH; the right to it can be given. `a_flush_is_direct` of `runtime/tests/devices` and the
    // schedules of `sim/tests` post it.
    Row(38, "FLUSH_GLOBAL", ByDoing(|device| Ok(Mr::alloc(&Pd::new(device)?, PAGE, FLUSHABLE).is_ok()))),
    Row(
        39,
        "FLUSH_PERSISTENT",
        ByDoing(|device| {
            // Of memory that does not last it is refused for that reason alone; `verbs_persistence` has memory that lasts.
            let error = Mr::alloc(&Pd::new(device)?, PAGE, ALL_ACCESS | FLUSH_PERSISTENT).err();
            let unknown = Mr::alloc(&Pd::new(device)?, PAGE, ALL_ACCESS | 1 << 15).err();
            Ok(error.is_some() && unknown.is_some())
        }),
    ),
    Row(40, "ATOMIC_WRITE", ByDoing(|device| operation(device, v::IBV_WR_ATOMIC_WRITE, 0))),
];

const FLUSH_GLOBAL: u32 = 1 << 8;
const FLUSH_PERSISTENT: u32 = 1 << 9;
const FLUSHABLE: u32 = ALL_ACCESS | FLUSH_GLOBAL;
const ODP: u32 = v::IBV_ACCESS_ON_DEMAND;

/// `enum ibv_odp_general_caps`.
const ON_DEMAND: &[Row] = &[
    Row(0, "SUPPORT", ByDoing(|device| Ok(Mr::alloc(&Pd::new(device)?, PAGE, ALL_ACCESS | ODP).is_ok()))),
    Row(
        1,
        "SUPPORT_IMPLICIT",
        ByDoing(|device| Ok(Mr::of_address(&Pd::new(device)?, 0, usize::MAX, ALL_ACCESS | ODP).is_ok())),
    ),
];

/// `enum ibv_odp_transport_cap_bits`, of RC.
const ON_DEMAND_RC: &[Row] = &[
    Row(0, "SEND", ByDoing(|device| operation(device, v::IBV_WR_SEND, ODP))),
    Row(1, "RECV", ByDoing(|device| operation(device, v::IBV_WR_SEND, ODP))),
    Row(2, "WRITE", ByDoing(|device| operation(device, v::IBV_WR_RDMA_WRITE, ODP))),
    Row(3, "READ", ByDoing(|device| operation(device, v::IBV_WR_RDMA_READ, ODP))),
    Row(4, "ATOMIC", ByDoing(|device| operation(device, v::IBV_WR_ATOMIC_FETCH_AND_ADD, ODP))),
    Row(5, "SRQ_RECV", ByDoing(|device| receives_from_an_srq(device, v::IBV_QPT_RC))),
    // The right alone, as for `FLUSH_GLOBAL`.
    Row(6, "FLUSH", ByDoing(|device| Ok(Mr::alloc(&Pd::new(device)?, PAGE, FLUSHABLE | ODP).is_ok()))),
    Row(7, "ATOMIC_WRITE", ByDoing(|device| operation(device, v::IBV_WR_ATOMIC_WRITE, ODP))),
];

/// ODP capabilities of XRC, of which all receives are an SRQ's.
const ON_DEMAND_XRC: &[Row] = &[
    Row(0, "SEND", ByDoing(|device| by_xrc(device, v::IBV_WR_SEND))),
    Row(1, "RECV", ByDoing(|device| by_xrc(device, v::IBV_WR_SEND))),
    Row(2, "WRITE", ByDoing(|device| by_xrc(device, v::IBV_WR_RDMA_WRITE))),
    Row(3, "READ", ByDoing(|device| by_xrc(device, v::IBV_WR_RDMA_READ))),
    Row(4, "ATOMIC", ByDoing(|device| by_xrc(device, v::IBV_WR_ATOMIC_FETCH_AND_ADD))),
    Row(5, "SRQ_RECV", ByDoing(|device| by_xrc(device, v::IBV_WR_SEND))),
    // The right alone, as for `FLUSH_GLOBAL`.
    Row(6, "FLUSH", ByDoing(|device| Ok(Mr::alloc(&Pd::new(device)?, PAGE, FLUSHABLE | ODP).is_ok()))),
    Row(7, "ATOMIC_WRITE", ByDoing(|device| by_xrc(device, v::IBV_WR_ATOMIC_WRITE))),
];

/// ODP capabilities of UC.
const ON_DEMAND_UC: &[Row] = &[
    Row(0, "SEND", ByDoing(|device| unreliable(device, v::IBV_WR_SEND))),
    Row(1, "RECV", ByDoing(|device| unreliable(device, v::IBV_WR_SEND))),
    Row(2, "WRITE", ByDoing(|device| unreliable(device, v::IBV_WR_RDMA_WRITE))),
    Row(3, "READ", ByDoing(|device| unreliable(device, v::IBV_WR_RDMA_READ))),
    Row(4, "ATOMIC", ByDoing(|device| unreliable(device, v::IBV_WR_ATOMIC_FETCH_AND_ADD))),
    Row(5, "SRQ_RECV", ByDoing(|device| receives_from_an_srq(device, v::IBV_QPT_UC))),
    Row(7, "ATOMIC_WRITE", ByDoing(|device| unreliable(device, v::IBV_WR_ATOMIC_WRITE))),
];

/// ODP capabilities of UD.
const ON_DEMAND_UD: &[Row] = &[
    Row(0, "SEND", ByDoing(datagram)),
    Row(1, "RECV", ByDoing(datagram)),
    Row(2, "WRITE", ByDoing(|device| Ok(end(device, v::IBV_QPT_UD)?.posts(v::IBV_WR_RDMA_WRITE)))),
    Row(3, "READ", ByDoing(|device| Ok(end(device, v::IBV_QPT_UD)?.posts(v::IBV_WR_RDMA_READ)))),
    Row(4, "ATOMIC", ByDoing(|device| Ok(end(device, v::IBV_QPT_UD)?.posts(v::IBV_WR_ATOMIC_FETCH_AND_ADD)))),
    Row(5, "SRQ_RECV", ByDoing(|device| receives_from_an_srq(device, v::IBV_QPT_UD))),
];

/// `enum ibv_port_cap_flags`: subnet management has nothing to do with RoCE.
const PORT: &[Row] = &[
    // Connections are made by datagrams to QP1, which many tests do.
    Row(16, "CM_SUP", ByDoing(|_| Ok(urxe_tests::rdmacm::Channel::new().is_ok()))),
    Row(
        26,
        "IP_BASED_GIDS",
        ByDoing(|device| Ok(gid(device)?.starts_with(&[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff]))),
    ),
];
