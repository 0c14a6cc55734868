//! UD: address handles, and queue pairs that need no connection.

use std::mem::MaybeUninit;
use std::sync::Arc;

use anyhow::{Context as _, Result, ensure};
use urxe_ffi::functions as f;
use urxe_ffi::verbs as v;

use super::context::Context;
use super::cq::{Cq, Wc};
use super::handle::{Errno, Handle};
use super::memory::{ALL_ACCESS, Mr, Pd};
use super::qp::{Change, Init, Qp};
use super::wr::{RecvWr, SendWr};

/// Bytes of the network header before every message.
pub const GRH: usize = 40;
/// The Q_Key of these queue pairs.
pub const Q_KEY: u32 = 0x1111_1111;
/// The queue pair number of multicast.
pub const MULTICAST: u32 = 0x00ff_ffff;

/// An address handle.
pub struct Ah {
    handle: Handle<v::ibv_ah>,
    _pd: Arc<Pd>,
}

/// The attributes that lead to a GID.
pub fn towards(gid: [u8; 16], sgid_index: u32) -> v::ibv_ah_attr {
    // SAFETY: a plain C struct of numbers.
    let mut attr: v::ibv_ah_attr = unsafe { MaybeUninit::zeroed().assume_init() };
    attr.is_global = 1;
    attr.port_num = 1;
    attr.grh.dgid.raw = gid;
    attr.grh.sgid_index = u8::try_from(sgid_index).expect("an index of a test");
    attr.grh.hop_limit = 64;
    attr
}

/// The attributes that lead to a LID, without a GRH.
pub fn to_lid(dlid: u16) -> v::ibv_ah_attr {
    // SAFETY: a plain C struct of numbers.
    let mut attr: v::ibv_ah_attr = unsafe { MaybeUninit::zeroed().assume_init() };
    (attr.dlid, attr.port_num) = (dlid, 1);
    attr
}

impl Ah {
    /// `ibv_create_ah(3)`.
    pub fn new(pd: &Arc<Pd>, mut attr: v::ibv_ah_attr) -> Result<Self, Errno> {
        // SAFETY: a live domain; the attributes are read during the call.
        let raw = unsafe { f::ibv_create_ah(pd.raw(), &raw mut attr) };
        // SAFETY: just made.
        let handle = unsafe { Handle::new(raw, f::ibv_destroy_ah)? };
        Ok(Self { handle, _pd: Arc::clone(pd) })
    }

    /// `ibv_create_ah_from_wc(3)`: back to where the message in `mr` came from.
    pub fn back(pd: &Arc<Pd>, wc: &Wc, mr: &Mr) -> Result<Self> {
        // SAFETY: a plain C struct of numbers.
        let mut raw_wc: v::ibv_wc = unsafe { MaybeUninit::zeroed().assume_init() };
        raw_wc.wc_flags = wc.flags;
        (raw_wc.src_qp, raw_wc.slid, raw_wc.sl) = (wc.src_qp, wc.slid, wc.sl);
        let grh = mr.pages().read(0, GRH);
        // SAFETY: a live domain; a completion and 40 bytes, which are read during the call.
        let raw = unsafe { f::ibv_create_ah_from_wc(pd.raw(), &raw mut raw_wc, grh.as_ptr().cast_mut().cast(), 1) };
        // SAFETY: just made.
        let handle = unsafe { Handle::new(raw, f::ibv_destroy_ah)? };
        Ok(Self { handle, _pd: Arc::clone(pd) })
    }

    /// The C object.
    pub fn raw(&self) -> *mut v::ibv_ah {
        self.handle.raw()
    }
}

/// A UD queue pair in RTS, with memory to send from and to receive into.
pub struct Mouth {
    /// The queue pair.
    pub qp: Qp,
    /// Completion queue of all requests.
    pub cq: Arc<Cq>,
    /// Protection domain.
    pub pd: Arc<Pd>,
    /// Region that it sends from.
    pub out: Mr,
    /// Region that it receives into.
    pub room: Mr,
}

impl Mouth {
    /// Makes one.
    pub fn new(context: &Arc<Context>) -> Result<Self> {
        Self::completing_at(context, &Cq::new(context, 64, None)?)
    }

    /// Makes one that completes in this queue.
    pub fn completing_at(context: &Arc<Context>, cq: &Arc<Cq>) -> Result<Self> {
        let (pd, cq) = (Pd::new(context)?, Arc::clone(cq));
        let qp = Qp::new(&pd, &cq, &cq, &Init { qp_type: v::IBV_QPT_UD, ..Init::default() })?;
        let init = Change::init(0).without(v::IBV_QP_ACCESS_FLAGS).with(v::IBV_QP_QKEY, |attr| attr.qkey = Q_KEY);
        qp.modify(&init).context("to INIT")?;
        qp.modify(&Change::to(v::IBV_QPS_RTR)).context("to RTR")?;
        qp.modify(&Change::to(v::IBV_QPS_RTS).with(v::IBV_QP_SQ_PSN, |attr| attr.sq_psn = 0x00ff_ffff))?;
        let [out, room] = [Mr::alloc(&pd, 8192, ALL_ACCESS)?, Mr::alloc(&pd, 8192, ALL_ACCESS)?];
        Ok(Self { qp, cq, pd, out, room })
    }

    /// Waits for a message of up to `len` bytes.
    pub fn listen(&self, wr_id: u64, len: usize) -> Result<()> {
        Ok(self.qp.post_recv(&RecvWr::new(wr_id, &[self.room.sge(0, GRH + len)]))?)
    }

    /// Posts a request to a queue pair behind `ah`.
    pub fn post(&self, wr: &SendWr, ah: &Ah, number: u32, q_key: u32) -> Result<(), Errno> {
        let mut raw = wr.raw();
        raw.wr.ud =
            v::ibv_send_wr__bindgen_ty_2__bindgen_ty_3 { ah: ah.handle.raw(), remote_qpn: number, remote_qkey: q_key };
        let mut bad = std::ptr::null_mut();
        // SAFETY: as the inline function of verbs.h does.
        Errno::check(unsafe {
            let post = (*self.pd.context().raw()).ops.post_send.expect("every provider has it");
            post(self.qp.raw(), &raw mut raw, &raw mut bad)
        })
    }

    /// Says `message`, and waits until that is sent.
    pub fn say(&self, op: super::Op, message: &[u8], ah: &Ah, number: u32) -> Result<()> {
        self.out.pages().write(0, message);
        self.post(&SendWr::new(op, &[self.out.sge(0, message.len())]).id(77), ah, number, Q_KEY)?;
        let wc = self.cq.next()?;
        ensure!(wc.wr_id == 77 && wc.status == super::Status::SUCCESS, "the send: {wc:?}");
        Ok(())
    }

    /// The message that came.
    pub fn hear(&self, len: usize) -> Vec<u8> {
        self.room.pages().read(GRH, len)
    }

    /// `ibv_attach_mcast(3)`.
    pub fn attach(&self, group: [u8; 16]) -> Result<(), Errno> {
        let gid = v::ibv_gid { raw: group };
        // SAFETY: a live queue pair.
        Errno::check(unsafe { f::ibv_attach_mcast(self.qp.raw(), &raw const gid, 0) })
    }

    /// `ibv_detach_mcast(3)`.
    pub fn detach(&self, group: [u8; 16]) -> Result<(), Errno> {
        let gid = v::ibv_gid { raw: group };
        // SAFETY: a live queue pair.
        Errno::check(unsafe { f::ibv_detach_mcast(self.qp.raw(), &raw const gid, 0) })
    }
}
