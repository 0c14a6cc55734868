//! Actions that show a capability.

use std::net::UdpSocket;
use std::process::Command;
use std::sync::Arc;

use anyhow::{Context as _, Result, ensure};
use urxe_ffi::verbs as v;
use urxe_tests::verbs::datagram::{Ah, Mouth, Q_KEY, towards};
use urxe_tests::verbs::memory::{ALL_ACCESS, PAGE};
use urxe_tests::verbs::pair::{connect, rtr};
use urxe_tests::verbs::qp::Init;
use urxe_tests::verbs::window::part;
use urxe_tests::verbs::{
    Change, Cq, Mr, Op, Options, PATIENCE, Pair, Pd, Qp, RecvWr, SendWr, Srq, Status, Window, Xrcd,
};
use urxe_tests::{GID_IPV4, wait_until};
use urxe_wire::icrc::{self, Flow};
use urxe_wire::{Bth, Ext, Header, Opcode, Operation, PKey, Psn, Qpn, ROCE_PORT, Transport};

use super::{Device, ODP};

pub(super) fn gid(device: &Device) -> Result<[u8; 16]> {
    Ok(device.query_gid(1, i32::try_from(GID_IPV4)?)?)
}

/// A queue pair in RESET, and what it is made from.
pub(super) struct Alone {
    pub(super) qp: Qp,
    pub(super) cq: Arc<Cq>,
    pub(super) mr: Mr,
}

pub(super) fn end(device: &Device, qp_type: v::ibv_qp_type) -> Result<Alone> {
    let (pd, cq) = (Pd::new(device)?, Cq::new(device, 16, None)?);
    let qp = Qp::new(&pd, &cq, &cq, &Init { qp_type, ..Init::default() })?;
    Ok(Alone { qp, cq, mr: Mr::alloc(&pd, PAGE, ALL_ACCESS | ODP)? })
}

impl Alone {
    /// Whether, in RTS on UD, it takes such a request.
    pub(super) fn posts(&self, opcode: v::ibv_wr_opcode) -> bool {
        let sge = [self.mr.sge(0, 8)];
        self.qp.post_raw(&mut raw(opcode, &sge)).is_ok()
    }
}

/// Whether an attribute may be changed in RTS.
pub(super) fn changes(
    device: &Device,
    mask: v::ibv_qp_attr_mask,
    set: impl FnOnce(&mut v::ibv_qp_attr),
) -> Result<bool> {
    let pair = Pair::on(device, &Options::default())?;
    Ok(pair.near.qp.modify(&Change::to(v::IBV_QPS_RTS).with(mask, set)).is_ok())
}

pub(super) fn raw(opcode: v::ibv_wr_opcode, sges: &[v::ibv_sge]) -> v::ibv_send_wr {
    // SAFETY: a plain C struct: numbers, unions of numbers, null pointers.
    let mut wr: v::ibv_send_wr = unsafe { std::mem::zeroed() };
    (wr.opcode, wr.send_flags) = (opcode, v::IBV_SEND_SIGNALED);
    (wr.sg_list, wr.num_sge) = (sges.as_ptr().cast_mut(), i32::try_from(sges.len()).expect("a list of a test"));
    wr
}

/// A request that names remote memory, where its opcode has such a field.
pub(super) fn request(opcode: v::ibv_wr_opcode, local: &[v::ibv_sge], remote: &Mr) -> v::ibv_send_wr {
    let (mut wr, at) = (raw(opcode, local), remote.at(64));
    if opcode == v::IBV_WR_ATOMIC_FETCH_AND_ADD {
        (wr.wr.atomic.remote_addr, wr.wr.atomic.rkey, wr.wr.atomic.compare_add) = (at.addr, at.rkey, 1);
    } else {
        (wr.wr.rdma.remote_addr, wr.wr.rdma.rkey) = (at.addr, at.rkey);
    }
    wr
}

/// Whether RC carries out eight bytes of an operation, between regions with these rights besides.
pub(super) fn operation(device: &Device, opcode: v::ibv_wr_opcode, access: u32) -> Result<bool> {
    let Pair { near, far } = Pair::on(device, &Options::default())?;
    let region = |pd| Mr::alloc(pd, PAGE, ALL_ACCESS | access);
    let (local, remote) = (region(&near.pd)?, region(&far.pd)?);
    far.qp.post_recv(&RecvWr::new(1, &[remote.sge(0, 8)]))?;
    let sge = [local.sge(0, 8)];
    if near.qp.post_raw(&mut request(opcode, &sge, &remote)).is_err() {
        return Ok(false);
    }
    let done = near.send_cq.next()?.status == Status::SUCCESS;
    Ok(done && (opcode != v::IBV_WR_SEND || far.recv_cq.next()?.status == Status::SUCCESS))
}

/// Whether UC carries out eight bytes of an operation, between regions on demand.
pub(super) fn unreliable(device: &Device, opcode: v::ibv_wr_opcode) -> Result<bool> {
    let (near, far) = (end(device, v::IBV_QPT_UC)?, end(device, v::IBV_QPT_UC)?);
    connect_uc(device, &near.qp, &far.qp)?;
    far.qp.post_recv(&RecvWr::new(1, &[far.mr.sge(0, 8)]))?;
    near.mr.pages().write(0, &[7; 8]);
    let sge = [near.mr.sge(0, 8)];
    if near.qp.post_raw(&mut request(opcode, &sge, &far.mr)).is_err() {
        return Ok(false);
    }
    ensure!(near.cq.next()?.status == Status::SUCCESS);
    if opcode == v::IBV_WR_SEND {
        return Ok(far.cq.next()?.status == Status::SUCCESS);
    }
    wait_until("it is written", || Ok(far.mr.pages().read(64, 8) == [7; 8]))?;
    Ok(true)
}

pub(super) fn connect_uc(device: &Device, near: &Qp, far: &Qp) -> Result<()> {
    let options = Options::default();
    for (qp, peer) in [(near, far), (far, near)] {
        qp.modify(&Change::init(ALL_ACCESS))?;
        let rc = rtr(peer.number(), gid(device)?, &options);
        qp.modify(&rc.without(v::IBV_QP_MAX_DEST_RD_ATOMIC | v::IBV_QP_MIN_RNR_TIMER))?;
        qp.modify(&Change::to(v::IBV_QPS_RTS).with(v::IBV_QP_SQ_PSN, |attr| attr.sq_psn = rc.attr.rq_psn))?;
    }
    Ok(())
}

pub(super) fn ud(qp: &Qp) -> Result<()> {
    let init = Change::init(0).without(v::IBV_QP_ACCESS_FLAGS).with(v::IBV_QP_QKEY, |attr| attr.qkey = Q_KEY);
    qp.modify(&init)?;
    qp.modify(&Change::to(v::IBV_QPS_RTR))?;
    Ok(qp.modify(&Change::to(v::IBV_QPS_RTS).with(v::IBV_QP_SQ_PSN, |attr| attr.sq_psn = 0))?)
}

/// Whether a datagram gets from one region on demand to another.
pub(super) fn datagram(device: &Device) -> Result<bool> {
    let (mouth, ear) = (Mouth::new(device)?, end(device, v::IBV_QPT_UD)?);
    ud(&ear.qp)?;
    ear.qp.post_recv(&RecvWr::new(1, &[ear.mr.sge(0, 64)]))?;
    let out = Mr::alloc(&mouth.pd, PAGE, ALL_ACCESS | ODP)?;
    let ah = Ah::new(&mouth.pd, towards(gid(device)?, GID_IPV4))?;
    mouth.post(&SendWr::new(Op::Send, &[out.sge(0, 8)]), &ah, ear.qp.number(), Q_KEY)?;
    Ok(mouth.cq.next()?.status == Status::SUCCESS && ear.cq.next()?.status == Status::SUCCESS)
}

/// Whether a queue pair of this type receives into a region on demand by an SRQ.
pub(super) fn receives_from_an_srq(device: &Device, qp_type: v::ibv_qp_type) -> Result<bool> {
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

/// Whether XRC carries out eight bytes of an operation, between regions on demand: a SEND is received by an SRQ.
pub(super) fn by_xrc(device: &Device, opcode: v::ibv_wr_opcode) -> Result<bool> {
    let pd = Pd::new(device)?;
    let (send_cq, recv_cq) = (Cq::new(device, 16, None)?, Cq::new(device, 16, None)?);
    let xrcd = Xrcd::open(device, -1, libc::O_CREAT)?;
    let srq = Srq::xrc(&pd, &xrcd, &recv_cq, 4)?;
    let (initiator, target) = (Qp::xrc_initiator(&pd, &send_cq, &Init::default())?, Qp::xrc_target(&pd, &xrcd)?);
    connect(device, &initiator, &target, &Options::default())?;
    let region = || Mr::alloc(&pd, PAGE, ALL_ACCESS | ODP);
    let (local, remote) = (region()?, region()?);
    srq.post_recv(&RecvWr::new(1, &[remote.sge(0, 8)]))?;
    let sge = [local.sge(0, 8)];
    let mut wr = request(opcode, &sge, &remote);
    wr.qp_type.xrc.remote_srqn = srq.number()?;
    if initiator.post_raw(&mut wr).is_err() {
        return Ok(false);
    }
    let done = send_cq.next()?.status == Status::SUCCESS;
    Ok(done && (opcode != v::IBV_WR_SEND || recv_cq.next()?.status == Status::SUCCESS))
}

/// Two ends, a region of the far one that windows can be bound to, and one of the near one.
pub(super) fn bindable(device: &Device) -> Result<(Pair, Mr, Mr)> {
    let pair = Pair::on(device, &Options::default())?;
    let region = Mr::alloc(&pair.far.pd, PAGE, ALL_ACCESS | v::IBV_ACCESS_MW_BIND)?;
    let local = pair.near.region(PAGE)?;
    Ok((pair, region, local))
}

pub(super) fn bind_2(pair: &Pair, window: &Window, region: &Mr) -> Result<()> {
    window.open(&pair.far, part(region, 0, 64, v::IBV_ACCESS_REMOTE_READ))
}

/// Whether the near end can read through a window.
pub(super) fn reads(pair: &Pair, window: &Window, region: &Mr, local: &Mr) -> Result<bool> {
    let read = SendWr::new(Op::Read(window.at(region, 0)), &[local.sge(0, 64)]);
    Ok(pair.near.complete(&read)?.status == Status::SUCCESS)
}

/// Whether the port counts packets of another partition.
pub(super) fn counts_bad_pkeys(device: &Device) -> Result<bool> {
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
pub(super) fn counts_bad_qkeys(device: &Device) -> Result<bool> {
    let before = device.query_port(1)?.qkey_viol_cntr;
    let (near, far) = (Mouth::new(device)?, Mouth::new(device)?);
    let ah = Ah::new(&near.pd, towards(gid(device)?, GID_IPV4))?;
    near.post(&SendWr::new(Op::Send, &[near.out.sge(0, 8)]), &ah, far.qp.number(), Q_KEY ^ 1)?;
    near.cq.next()?;
    wait_until("it is counted", || Ok(device.query_port(1)?.qkey_viol_cntr > before))?;
    Ok(true)
}

/// Whether a link that comes up is told.
pub(super) fn tells_of_the_port(device: &Device) -> Result<bool> {
    for (state, told) in [("down", v::IBV_EVENT_PORT_ERR), ("up", v::IBV_EVENT_PORT_ACTIVE)] {
        let status = Command::new("ip").args(["link", "set", "veth0", state]).status()?;
        ensure!(status.success(), "ip link set veth0 {state}");
        while device.async_event(PATIENCE)?.context("no event")?.kind() != told {}
    }
    Ok(true)
}
