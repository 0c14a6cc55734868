//! Every capability that the device says is there, and every one that is there is said: `ibv_query_device_ex(3)`,
//! `ibv_query_port(3)` and sysfs.

use std::net::UdpSocket;
use std::process::Command;
use std::sync::Arc;

use anyhow::{Context as _, Result, bail, ensure};
use urxe_ffi::verbs as v;
use urxe_tests::verbs::datagram::{Ah, Mouth, Q_KEY, towards};
use urxe_tests::verbs::memory::{ALL_ACCESS, PAGE};
use urxe_tests::verbs::pair::{connect, rtr};
use urxe_tests::verbs::qp::Init;
use urxe_tests::verbs::window::{part, post_invalidate};
use urxe_tests::verbs::{
    Change, Context, Cq, Mr, Op, Options, PATIENCE, Pair, Pd, Qp, RecvWr, SendWr, Srq, Status, Window, Xrcd,
};
use urxe_tests::{GID_IPV4, Host, World, in_world_with, wait_until};
use urxe_wire::icrc::{self, Flow};
use urxe_wire::{Bth, Ext, Header, Opcode, Operation, PKey, Psn, Qpn, ROCE_PORT, Transport};

type Device = Arc<Context>;

/// How a capability is seen.
enum Seen {
    /// Whether it works.
    ByDoing(fn(&Device) -> Result<bool>),
    /// It cannot be there, for this reason.
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
        // XRC has the requester and responder of RC.
        compare("xrc_odp_caps", &device, attr.xrc_odp_caps.into(), ON_DEMAND_RC, &mut wrong)?;
        // Atomics of eight bytes, which `operation` shows (IBV_PCI_ATOMIC_OPERATION_8_BYTE_SIZE_SUP).
        let pci = attr.pci_atomic_caps;
        ensure!((pci.fetch_add, pci.swap, pci.compare_swap) == (1 << 1, 0, 1 << 1));
        ensure!(attr.raw_packet_caps == 0 && attr.max_wq_type_rq == 0 && attr.tso_caps.max_tso == 0);
        ensure!(attr.rss_caps.supported_qpts == 0 && attr.packet_pacing_caps.supported_qpts == 0);
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

const NO_RAW: &str = "there are no raw packets";
const NO_VERB: &str = "libibverbs has no verb for it";

/// `enum ibv_device_cap_flags`, and what `ib_user_verbs.h` has above.
const DEVICE: &[Row] = &[
    Row(0, "RESIZE_MAX_WR", ByDoing(|device| Ok(changes(device, v::IBV_QP_CAP, |attr| attr.cap.max_send_wr = 32)?))),
    Row(1, "BAD_PKEY_CNTR", ByDoing(counts_bad_pkeys)),
    Row(2, "BAD_QKEY_CNTR", ByDoing(counts_bad_qkeys)),
    Row(3, "RAW_MULTI", ByDoing(|device| Ok(end(device, v::IBV_QPT_RAW_PACKET).is_ok()))),
    Row(4, "AUTO_PATH_MIG", ByDoing(|device| Ok(changes(device, v::IBV_QP_ALT_PATH, |attr| attr.alt_port_num = 1)?))),
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
            Ok(reads(&pair, &window, &region, &local)?)
        }),
    ),
    Row(18, "UD_IP_CSUM", Never(NO_RAW)),
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
            let mut send_inv = raw(&pair.near.qp, v::IBV_WR_SEND_WITH_INV, &[]);
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
            Ok(reads(&pair, &window, &region, &local)?)
        }),
    ),
    Row(25, "RC_IP_CSUM", Never(NO_RAW)),
    Row(26, "RAW_IP_CSUM", Never(NO_RAW)),
    Row(
        29,
        "MANAGED_FLOW_STEERING",
        ByDoing(|device| {
            let pair = Pair::on(device, &Options::default())?;
            // SAFETY: as the inline function of verbs.h does; the attributes describe no flow.
            let flow = unsafe {
                let mut attr: v::ibv_flow_attr = std::mem::zeroed();
                (*device.extended()).ibv_create_flow.map(|create| create(pair.near.qp.raw(), &raw mut attr))
            };
            Ok(flow.is_some_and(|flow| !flow.is_null()))
        }),
    ),
    Row(34, "RAW_SCATTER_FCS", Never(NO_RAW)),
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
    // libibverbs 44 cannot post a FLUSH; the right to it can be given.
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
    Row(6, "FLUSH", ByDoing(|device| Ok(Mr::alloc(&Pd::new(device)?, PAGE, FLUSHABLE | ODP).is_ok()))),
    Row(7, "ATOMIC_WRITE", ByDoing(|device| operation(device, v::IBV_WR_ATOMIC_WRITE, ODP))),
];

/// The same, of UC.
const ON_DEMAND_UC: &[Row] = &[
    Row(0, "SEND", ByDoing(|device| unreliable(device, v::IBV_WR_SEND))),
    Row(1, "RECV", ByDoing(|device| unreliable(device, v::IBV_WR_SEND))),
    Row(2, "WRITE", ByDoing(|device| unreliable(device, v::IBV_WR_RDMA_WRITE))),
    Row(3, "READ", ByDoing(|device| unreliable(device, v::IBV_WR_RDMA_READ))),
    Row(4, "ATOMIC", ByDoing(|device| unreliable(device, v::IBV_WR_ATOMIC_FETCH_AND_ADD))),
    Row(5, "SRQ_RECV", ByDoing(|device| receives_from_an_srq(device, v::IBV_QPT_UC))),
    Row(7, "ATOMIC_WRITE", ByDoing(|device| unreliable(device, v::IBV_WR_ATOMIC_WRITE))),
];

/// The same, of UD.
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

// --- what is done ------------------------------------------------------------------------------------------

fn gid(device: &Device) -> Result<[u8; 16]> {
    Ok(device.query_gid(1, i32::try_from(GID_IPV4)?)?)
}

/// A queue pair in RESET, and what it is made from.
struct Alone {
    qp: Qp,
    cq: Arc<Cq>,
    mr: Mr,
}

fn end(device: &Device, qp_type: v::ibv_qp_type) -> Result<Alone> {
    let (pd, cq) = (Pd::new(device)?, Cq::new(device, 16, None)?);
    let qp = Qp::new(&pd, &cq, &cq, &Init { qp_type, ..Init::default() })?;
    Ok(Alone { qp, cq, mr: Mr::alloc(&pd, PAGE, ALL_ACCESS | ODP)? })
}

impl Alone {
    /// Whether, in RTS on UD, it takes such a request.
    fn posts(&self, opcode: v::ibv_wr_opcode) -> bool {
        let sge = [self.mr.sge(0, 8)];
        self.qp.post_raw(&mut raw(&self.qp, opcode, &sge)).is_ok()
    }
}

/// Whether an attribute may be changed in RTS.
fn changes(device: &Device, mask: v::ibv_qp_attr_mask, set: impl FnOnce(&mut v::ibv_qp_attr)) -> Result<bool> {
    let pair = Pair::on(device, &Options::default())?;
    Ok(pair.near.qp.modify(&Change::to(v::IBV_QPS_RTS).with(mask, set)).is_ok())
}

fn raw(_: &Qp, opcode: v::ibv_wr_opcode, sges: &[v::ibv_sge]) -> v::ibv_send_wr {
    // SAFETY: a plain C struct: numbers, unions of numbers, null pointers.
    let mut wr: v::ibv_send_wr = unsafe { std::mem::zeroed() };
    (wr.opcode, wr.send_flags) = (opcode, v::IBV_SEND_SIGNALED);
    (wr.sg_list, wr.num_sge) = (sges.as_ptr().cast_mut(), i32::try_from(sges.len()).expect("a list of a test"));
    wr
}

/// A request that names remote memory, where its opcode has such a field.
fn request(qp: &Qp, opcode: v::ibv_wr_opcode, local: &[v::ibv_sge], remote: &Mr) -> v::ibv_send_wr {
    let (mut wr, at) = (raw(qp, opcode, local), remote.at(64));
    if opcode == v::IBV_WR_ATOMIC_FETCH_AND_ADD {
        (wr.wr.atomic.remote_addr, wr.wr.atomic.rkey, wr.wr.atomic.compare_add) = (at.addr, at.rkey, 1);
    } else {
        (wr.wr.rdma.remote_addr, wr.wr.rdma.rkey) = (at.addr, at.rkey);
    }
    wr
}

/// Whether RC carries out eight bytes of an operation, between regions with these rights besides.
fn operation(device: &Device, opcode: v::ibv_wr_opcode, access: u32) -> Result<bool> {
    let Pair { near, far } = Pair::on(device, &Options::default())?;
    let region = |pd| Mr::alloc(pd, PAGE, ALL_ACCESS | access);
    let (local, remote) = (region(&near.pd)?, region(&far.pd)?);
    far.qp.post_recv(&RecvWr::new(1, &[remote.sge(0, 8)]))?;
    let sge = [local.sge(0, 8)];
    if near.qp.post_raw(&mut request(&near.qp, opcode, &sge, &remote)).is_err() {
        return Ok(false);
    }
    let done = near.send_cq.next()?.status == Status::SUCCESS;
    Ok(done && (opcode != v::IBV_WR_SEND || far.recv_cq.next()?.status == Status::SUCCESS))
}

/// Whether UC carries out eight bytes of an operation, between regions on demand.
fn unreliable(device: &Device, opcode: v::ibv_wr_opcode) -> Result<bool> {
    let (near, far) = (end(device, v::IBV_QPT_UC)?, end(device, v::IBV_QPT_UC)?);
    connect_uc(device, &near.qp, &far.qp)?;
    far.qp.post_recv(&RecvWr::new(1, &[far.mr.sge(0, 8)]))?;
    near.mr.pages().write(0, &[7; 8]);
    let sge = [near.mr.sge(0, 8)];
    if near.qp.post_raw(&mut request(&near.qp, opcode, &sge, &far.mr)).is_err() {
        return Ok(false);
    }
    ensure!(near.cq.next()?.status == Status::SUCCESS);
    if opcode == v::IBV_WR_SEND {
        return Ok(far.cq.next()?.status == Status::SUCCESS);
    }
    wait_until("it is written", || Ok(far.mr.pages().read(64, 8) == [7; 8]))?;
    Ok(true)
}

fn connect_uc(device: &Device, near: &Qp, far: &Qp) -> Result<()> {
    let options = Options::default();
    for (qp, peer) in [(near, far), (far, near)] {
        qp.modify(&Change::init(ALL_ACCESS))?;
        let rc = rtr(peer.number(), gid(device)?, &options);
        qp.modify(&rc.without(v::IBV_QP_MAX_DEST_RD_ATOMIC | v::IBV_QP_MIN_RNR_TIMER))?;
        qp.modify(&Change::to(v::IBV_QPS_RTS).with(v::IBV_QP_SQ_PSN, |attr| attr.sq_psn = rc.attr.rq_psn))?;
    }
    Ok(())
}

fn ud(qp: &Qp) -> Result<()> {
    let init = Change::init(0).without(v::IBV_QP_ACCESS_FLAGS).with(v::IBV_QP_QKEY, |attr| attr.qkey = Q_KEY);
    qp.modify(&init)?;
    qp.modify(&Change::to(v::IBV_QPS_RTR))?;
    Ok(qp.modify(&Change::to(v::IBV_QPS_RTS).with(v::IBV_QP_SQ_PSN, |attr| attr.sq_psn = 0))?)
}

/// Whether a datagram gets from one region on demand to another.
fn datagram(device: &Device) -> Result<bool> {
    let (mouth, ear) = (Mouth::new(device)?, end(device, v::IBV_QPT_UD)?);
    ud(&ear.qp)?;
    ear.qp.post_recv(&RecvWr::new(1, &[ear.mr.sge(0, 64)]))?;
    let out = Mr::alloc(&mouth.pd, PAGE, ALL_ACCESS | ODP)?;
    let ah = Ah::new(&mouth.pd, towards(gid(device)?, GID_IPV4))?;
    mouth.post(&SendWr::new(Op::Send, &[out.sge(0, 8)]), &ah, ear.qp.number(), Q_KEY)?;
    Ok(mouth.cq.next()?.status == Status::SUCCESS && ear.cq.next()?.status == Status::SUCCESS)
}

/// Whether a queue pair of this type receives into a region on demand by an SRQ.
fn receives_from_an_srq(device: &Device, qp_type: v::ibv_qp_type) -> Result<bool> {
    let (pd, cq) = (Pd::new(device)?, Cq::new(device, 16, None)?);
    let srq = Srq::new(&pd, 4, 1)?;
    let mr = Mr::alloc(&pd, PAGE, ALL_ACCESS | ODP)?;
    let init = Init { qp_type, ..Init::default() };
    let Ok(far) = Qp::with_srq(&pd, &cq, &srq, &init) else { return Ok(false) };
    srq.post_recv(&RecvWr::new(1, &[mr.sge(0, 64)]))?;
    let send = SendWr::new(Op::Send, &[mr.sge(128, 8)]);
    let send_cq = Cq::new(device, 16, None)?;
    if qp_type == v::IBV_QPT_UD {
        ud(&far)?;
        let mouth = Mouth::new(device)?;
        mouth.say(Op::Send, b"a letter", &Ah::new(&mouth.pd, towards(gid(device)?, GID_IPV4))?, far.number())?;
    } else {
        let near = Qp::new(&pd, &send_cq, &send_cq, &init)?;
        if qp_type == v::IBV_QPT_UC {
            connect_uc(device, &near, &far)?;
        } else {
            connect(device, &near, &far, &Options::default())?;
        }
        near.post_send(&send)?;
        ensure!(send_cq.next()?.status == Status::SUCCESS);
    }
    Ok(cq.next()?.status == Status::SUCCESS)
}

/// Two ends, a region of the far one that windows can be bound to, and one of the near one.
fn bindable(device: &Device) -> Result<(Pair, Mr, Mr)> {
    let pair = Pair::on(device, &Options::default())?;
    let region = Mr::alloc(&pair.far.pd, PAGE, ALL_ACCESS | v::IBV_ACCESS_MW_BIND)?;
    let local = pair.near.region(PAGE)?;
    Ok((pair, region, local))
}

fn bind_2(pair: &Pair, window: &Window, region: &Mr) -> Result<()> {
    let rkey = window.rkey() & !0xff | (window.rkey() + 1) & 0xff;
    window.post_bind(&pair.far.qp, 1, rkey, part(region, 0, 64, v::IBV_ACCESS_REMOTE_READ))?;
    ensure!(pair.far.send_cq.next()?.status == Status::SUCCESS);
    window.set_rkey(rkey);
    Ok(())
}

/// Whether the near end can read through a window.
fn reads(pair: &Pair, window: &Window, region: &Mr, local: &Mr) -> Result<bool> {
    let read = SendWr::new(Op::Read(window.at(region, 0)), &[local.sge(0, 64)]);
    Ok(pair.near.complete(&read)?.status == Status::SUCCESS)
}

/// Whether the port counts packets of another partition.
fn counts_bad_pkeys(device: &Device) -> Result<bool> {
    let before = device.query_port(1)?.bad_pkey_cntr;
    let Pair { near, far } = Pair::on(device, &Options::default())?;
    let own = gid(device)?;
    let address = std::net::Ipv4Addr::new(own[12], own[13], own[14], own[15]);
    let socket = UdpSocket::bind((address, 0))?;
    let opcode = Opcode::new(Transport::Rc, Operation::SendOnly).context("RC has it")?;
    let mut bth = Bth::new(opcode, Qpn::new(far.qp.number()), Psn::new(0));
    bth.p_key = PKey(0x8001);
    let header = Header::new(bth, Ext::None);
    let mut packet = vec![0; header.len()];
    header.emit(&mut packet);
    let to = (address, ROCE_PORT).into();
    packet.extend_from_slice(&icrc::compute(&Flow::new(socket.local_addr()?, to), 0, &packet).to_le_bytes());
    socket.send_to(&packet, to)?;
    wait_until("it is counted", || Ok(device.query_port(1)?.bad_pkey_cntr > before))?;
    drop(near);
    Ok(true)
}

/// Whether the port counts datagrams with another Q_Key.
fn counts_bad_qkeys(device: &Device) -> Result<bool> {
    let before = device.query_port(1)?.qkey_viol_cntr;
    let (near, far) = (Mouth::new(device)?, Mouth::new(device)?);
    let ah = Ah::new(&near.pd, towards(gid(device)?, GID_IPV4))?;
    near.post(&SendWr::new(Op::Send, &[near.out.sge(0, 8)]), &ah, far.qp.number(), Q_KEY ^ 1)?;
    near.cq.next()?;
    wait_until("it is counted", || Ok(device.query_port(1)?.qkey_viol_cntr > before))?;
    Ok(true)
}

/// Whether a link that comes up is told.
fn tells_of_the_port(device: &Device) -> Result<bool> {
    for state in ["down", "up"] {
        let status = Command::new("ip").args(["link", "set", "veth0", state]).status()?;
        ensure!(status.success(), "ip link set veth0 {state}");
    }
    loop {
        let event = device.async_event(PATIENCE)?.context("no event")?;
        if event.kind() == v::IBV_EVENT_PORT_ACTIVE {
            return Ok(true);
        }
    }
}
