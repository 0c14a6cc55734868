//! Two connected queue pairs of one process.

use std::sync::Arc;

use anyhow::{Context as _, Result, ensure};
use urxe_ffi::verbs as v;

use super::context::Context;
use super::cq::{Channel, Cq, Status, Wc};
use super::memory::{ALL_ACCESS, Mr, Pd, pattern};
use super::qp::{CAP, Change, Init, Qp};
use super::wr::{Op, RecvWr, SendWr};
use crate::pingpong::GID_IPV4;

/// Options of two queue pairs and their connection.
#[derive(Clone)]
pub struct Options {
    /// GID index at both ends.
    pub gid: u32,
    /// Path MTU (`IBV_MTU_…`).
    pub mtu: v::ibv_mtu,
    /// Access rights of the peer.
    pub access: u32,
    /// Queue sizes.
    pub cap: v::ibv_qp_cap,
    /// Size of each CQ.
    pub cqe: i32,
    /// Exponent of the ACK timeout.
    pub timeout: u8,
    /// Tries after a timeout.
    pub retry_cnt: u8,
    /// Tries after an RNR NAK; 7 is for ever.
    pub rnr_retry: u8,
    /// Timer code in RNR NAKs.
    pub min_rnr_timer: u8,
    /// READs and atomics at once, in both directions.
    pub rd_atomic: u8,
    /// Every send gives a completion.
    pub sq_sig_all: bool,
    /// CQs have a completion channel.
    pub events: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            gid: GID_IPV4,
            mtu: v::IBV_MTU_1024,
            access: ALL_ACCESS,
            cap: CAP,
            cqe: 256,
            // 1.07 s, eight times: a peer that others keep from the processor for seconds is not given up. No packet is lost
            // on `lo`, so this only matters when something is wrong.
            timeout: 18,
            retry_cnt: 7,
            rnr_retry: 7,
            // 0.01 ms.
            min_rnr_timer: 1,
            rd_atomic: 4,
            sq_sig_all: false,
            events: false,
        }
    }
}

/// A queue pair with all that it needs.
pub struct End {
    /// The queue pair.
    pub qp: Qp,
    /// Completion queue of its sends.
    pub send_cq: Arc<Cq>,
    /// Completion queue of its receives.
    pub recv_cq: Arc<Cq>,
    /// The channel of both, with [`Options::events`].
    pub channel: Option<Arc<Channel>>,
    /// Protection domain, which the other end does not share.
    pub pd: Arc<Pd>,
    /// The device it was opened on.
    pub context: Arc<Context>,
}

/// Two ends, both in RTS.
pub struct Pair {
    /// The end that posts the requests that a test is about.
    pub near: End,
    /// The end that they are for.
    pub far: End,
}

/// PSNs close to where they wrap, so that every test crosses that.
const FIRST_PSN: u32 = 0x00ff_fffd;

impl End {
    /// A queue pair in RESET.
    pub fn new(context: &Arc<Context>, options: &Options) -> Result<Self> {
        Self::within(&Pd::new(context)?, options)
    }

    /// A queue pair in RESET, of this protection domain.
    pub fn within(pd: &Arc<Pd>, options: &Options) -> Result<Self> {
        let (pd, context) = (Arc::clone(pd), pd.context());
        let channel = if options.events { Some(Channel::new(context)?) } else { None };
        let send_cq = Cq::new(context, options.cqe, channel.as_ref())?;
        let recv_cq = Cq::new(context, options.cqe, channel.as_ref())?;
        let init = Init { cap: options.cap, sq_sig_all: options.sq_sig_all, ..Init::default() };
        let qp = Qp::new(&pd, &send_cq, &recv_cq, &init)?;
        Ok(Self { qp, send_cq, recv_cq, channel, pd, context: Arc::clone(context) })
    }

    /// RESET → INIT.
    pub fn init(&self, options: &Options) -> Result<()> {
        self.qp.modify(&Change::init(options.access)).context("to INIT")
    }

    /// INIT → RTR, towards a queue pair at `gid`.
    pub fn ready_to_receive(&self, peer: u32, gid: [u8; 16], options: &Options) -> Result<()> {
        self.qp.modify(&rtr(peer, gid, options)).context("to RTR")
    }

    /// RTR → RTS.
    pub fn ready_to_send(&self, options: &Options) -> Result<()> {
        self.qp.modify(&rts(options)).context("to RTS")
    }

    /// RESET → RTS.
    pub fn connect(&self, peer: u32, gid: [u8; 16], options: &Options) -> Result<()> {
        connect_to(&self.qp, peer, gid, options)
    }

    /// GID of this end.
    pub fn gid(&self, options: &Options) -> Result<[u8; 16]> {
        Ok(self.context.query_gid(1, i32::try_from(options.gid)?)?)
    }

    /// Memory with which everything may be done.
    pub fn region(&self, len: usize) -> Result<Mr> {
        Ok(Mr::alloc(&self.pd, len, ALL_ACCESS)?)
    }

    /// Posts a request and waits for its completion.
    pub fn complete(&self, wr: &SendWr) -> Result<Wc> {
        self.qp.post_send(wr)?;
        let wc = self.send_cq.next()?;
        ensure!(wc.wr_id == wr.wr_id && wc.qp_num == self.qp.number(), "another request's: {wc:?}");
        Ok(wc)
    }
}

impl Pair {
    /// Two connected ends of one open device.
    pub fn new(options: &Options) -> Result<Self> {
        Self::on(&Context::open()?, options)
    }

    /// Makes a pair on a device that is open already.
    pub fn on(context: &Arc<Context>, options: &Options) -> Result<Self> {
        let pair = Self { near: End::new(context, options)?, far: End::new(context, options)? };
        pair.connect(options)?;
        Ok(pair)
    }

    /// Connects both ends, which are in RESET.
    pub fn connect(&self, options: &Options) -> Result<()> {
        let Self { near, far } = self;
        near.connect(far.qp.number(), far.gid(options)?, options).context("near end")?;
        far.connect(near.qp.number(), near.gid(options)?, options).context("far end")
    }
}

/// A message of several packets gets from the one end to the other.
pub fn works(pair: &Pair) -> Result<()> {
    let Pair { near, far } = pair;
    let (local, remote) = (near.region(5000)?, far.region(5000)?);
    local.pages().write(0, &pattern(1, 5000));
    far.qp.post_recv(&RecvWr::new(0, &[remote.sge(0, 5000)]))?;
    let wc = near.complete(&SendWr::new(Op::Send, &[local.sge(0, 5000)]))?;
    ensure!(wc.status == Status::SUCCESS, "{wc:?}");
    ensure!(far.recv_cq.next()?.byte_len == 5000 && remote.pages().read(0, 5000) == pattern(1, 5000));
    Ok(())
}

/// RESET → RTS for both of two queue pairs of one device, each other's peers.
pub fn connect(context: &Context, near: &Qp, far: &Qp, options: &Options) -> Result<()> {
    let gid = context.query_gid(1, i32::try_from(options.gid)?)?;
    connect_to(near, far.number(), gid, options)?;
    connect_to(far, near.number(), gid, options)
}

/// RESET → RTS, towards a queue pair at `gid`.
pub fn connect_to(qp: &Qp, peer: u32, gid: [u8; 16], options: &Options) -> Result<()> {
    qp.modify(&Change::init(options.access)).context("to INIT")?;
    qp.modify(&rtr(peer, gid, options)).context("to RTR")?;
    qp.modify(&rts(options)).context("to RTS")
}

/// INIT → RTR.
pub fn rtr(peer: u32, gid: [u8; 16], options: &Options) -> Change {
    let mask = v::IBV_QP_AV
        | v::IBV_QP_PATH_MTU
        | v::IBV_QP_DEST_QPN
        | v::IBV_QP_RQ_PSN
        | v::IBV_QP_MAX_DEST_RD_ATOMIC
        | v::IBV_QP_MIN_RNR_TIMER;
    Change::to(v::IBV_QPS_RTR).with(mask, |attr| {
        attr.path_mtu = options.mtu;
        attr.dest_qp_num = peer;
        attr.rq_psn = FIRST_PSN;
        attr.max_dest_rd_atomic = options.rd_atomic;
        attr.min_rnr_timer = options.min_rnr_timer;
        attr.ah_attr.is_global = 1;
        attr.ah_attr.port_num = 1;
        attr.ah_attr.grh.dgid.raw = gid;
        attr.ah_attr.grh.sgid_index = u8::try_from(options.gid).expect("an index of a test");
        attr.ah_attr.grh.hop_limit = 64;
    })
}

/// RTR → RTS.
pub fn rts(options: &Options) -> Change {
    let mask =
        v::IBV_QP_SQ_PSN | v::IBV_QP_TIMEOUT | v::IBV_QP_RETRY_CNT | v::IBV_QP_RNR_RETRY | v::IBV_QP_MAX_QP_RD_ATOMIC;
    Change::to(v::IBV_QPS_RTS).with(mask, |attr| {
        attr.sq_psn = FIRST_PSN;
        attr.timeout = options.timeout;
        attr.retry_cnt = options.retry_cnt;
        attr.rnr_retry = options.rnr_retry;
        attr.max_rd_atomic = options.rd_atomic;
    })
}
