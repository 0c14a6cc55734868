//! Completion queues, their channels, and completions.

use std::ffi::{CStr, c_int, c_uint};
use std::fmt;
use std::mem::MaybeUninit;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Result, bail};
use urxe_ffi::functions as f;
use urxe_ffi::verbs as v;

use super::PATIENCE;
use super::context::Context;
use super::handle::{Errno, Handle};

/// A completion's status, printed with its name.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Status(pub v::ibv_wc_status);

#[expect(missing_docs, reason = "the names are libibverbs'")]
impl Status {
    pub const SUCCESS: Self = Self(v::IBV_WC_SUCCESS);
    pub const LOC_LEN_ERR: Self = Self(v::IBV_WC_LOC_LEN_ERR);
    pub const LOC_QP_OP_ERR: Self = Self(v::IBV_WC_LOC_QP_OP_ERR);
    pub const LOC_PROT_ERR: Self = Self(v::IBV_WC_LOC_PROT_ERR);
    pub const WR_FLUSH_ERR: Self = Self(v::IBV_WC_WR_FLUSH_ERR);
    pub const MW_BIND_ERR: Self = Self(v::IBV_WC_MW_BIND_ERR);
    pub const LOC_ACCESS_ERR: Self = Self(v::IBV_WC_LOC_ACCESS_ERR);
    pub const REM_INV_REQ_ERR: Self = Self(v::IBV_WC_REM_INV_REQ_ERR);
    pub const REM_ACCESS_ERR: Self = Self(v::IBV_WC_REM_ACCESS_ERR);
    pub const REM_OP_ERR: Self = Self(v::IBV_WC_REM_OP_ERR);
    pub const RETRY_EXC_ERR: Self = Self(v::IBV_WC_RETRY_EXC_ERR);
    pub const RNR_RETRY_EXC_ERR: Self = Self(v::IBV_WC_RNR_RETRY_EXC_ERR);
}

impl fmt::Debug for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // SAFETY: any number gives a static string.
        let name = unsafe { CStr::from_ptr(f::ibv_wc_status_str(self.0)) };
        write!(f, "{} ({})", name.to_string_lossy(), self.0)
    }
}

/// A completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wc {
    /// The number of the work request.
    pub wr_id: u64,
    /// Outcome.
    pub status: Status,
    /// Operation (`IBV_WC_…`).
    pub opcode: v::ibv_wc_opcode,
    /// Bytes transferred.
    pub byte_len: u32,
    /// Immediate data in the host's byte order; means something with `IBV_WC_WITH_IMM`.
    pub imm: u32,
    /// The QP it was posted to.
    pub qp_num: u32,
    /// The QP that sent the message.
    pub src_qp: u32,
    /// `IBV_WC_…` flags.
    pub flags: c_uint,
    /// The sender's LID.
    pub slid: u16,
    /// Service level.
    pub sl: u8,
}

/// A completion channel.
pub struct Channel {
    handle: Handle<v::ibv_comp_channel>,
    context: Arc<Context>,
}

// SAFETY: verbs may be called from any thread.
unsafe impl Send for Channel {}
// SAFETY: as above.
unsafe impl Sync for Channel {}

impl Channel {
    /// `ibv_create_comp_channel(3)`.
    pub fn new(context: &Arc<Context>) -> Result<Arc<Self>, Errno> {
        // SAFETY: a live context.
        let raw = unsafe { f::ibv_create_comp_channel(context.raw()) };
        // SAFETY: just made.
        let handle = unsafe { Handle::new(raw, f::ibv_destroy_comp_channel)? };
        Ok(Arc::new(Self { handle, context: Arc::clone(context) }))
    }

    /// The descriptor to poll.
    pub fn fd(&self) -> RawFd {
        // SAFETY: a field of a live channel.
        unsafe { (*self.handle.raw()).fd }
    }

    /// Device of the object.
    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// `ibv_get_cq_event(3)`: the address of the CQ. Blocks, unless the descriptor was made not to.
    pub fn event(&self) -> Result<usize, Errno> {
        let (mut cq, mut user) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: room for both pointers.
        let returned = unsafe { f::ibv_get_cq_event(self.handle.raw(), &raw mut cq, &raw mut user) };
        if returned == 0 { Ok(cq as usize) } else { Err(Errno::last()) }
    }

    /// Destroys it now.
    pub fn destroy(&self) -> Result<(), Errno> {
        self.handle.destroy()
    }
}

/// A completion queue.
pub struct Cq {
    handle: Handle<v::ibv_cq>,
    _channel: Option<Arc<Channel>>,
    context: Arc<Context>,
}

// SAFETY: verbs may be called from any thread.
unsafe impl Send for Cq {}
// SAFETY: as above.
unsafe impl Sync for Cq {}

impl Cq {
    /// `ibv_create_cq(3)`.
    pub fn new(context: &Arc<Context>, cqe: c_int, channel: Option<&Arc<Channel>>) -> Result<Arc<Self>, Errno> {
        let raw_channel = channel.map_or(std::ptr::null_mut(), |channel| channel.handle.raw());
        // SAFETY: live objects.
        let raw = unsafe { f::ibv_create_cq(context.raw(), cqe, std::ptr::null_mut(), raw_channel, 0) };
        // SAFETY: just made.
        let handle = unsafe { Handle::new(raw, f::ibv_destroy_cq)? };
        Ok(Arc::new(Self { handle, _channel: channel.map(Arc::clone), context: Arc::clone(context) }))
    }

    /// Raw pointer, for verbs that have no method here.
    pub fn raw(&self) -> *mut v::ibv_cq {
        self.handle.raw()
    }

    /// Returns the address by which events name it.
    pub fn address(&self) -> usize {
        self.raw() as usize
    }

    /// Device of the object.
    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// Completions it can hold.
    pub fn capacity(&self) -> c_int {
        // SAFETY: a field of a live CQ.
        unsafe { (*self.raw()).cqe }
    }

    /// `ibv_poll_cq(3)`: up to `most` completions.
    pub fn poll(&self, most: usize) -> Result<Vec<Wc>, Errno> {
        let mut raw = vec![MaybeUninit::<v::ibv_wc>::uninit(); most];
        // SAFETY: as the inline function of verbs.h does, with room for `most`.
        let count = unsafe {
            let poll = (*self.context.raw()).ops.poll_cq.expect("every provider has it");
            poll(self.raw(), c_int::try_from(most).unwrap_or(c_int::MAX), raw.as_mut_ptr().cast())
        };
        let count = usize::try_from(count).map_err(|_| Errno(-count))?;
        raw.truncate(count);
        // SAFETY: the first `count` were filled in.
        Ok(raw.into_iter().map(|wc| Wc::from(&unsafe { wc.assume_init() })).collect())
    }

    /// `ibv_poll_cq(3)` of one completion, at no cost but that of the verb: how it ended, if there was one.
    pub fn poll_status(&self) -> Result<Option<Status>, Errno> {
        let mut raw = MaybeUninit::<v::ibv_wc>::uninit();
        // SAFETY: as the inline function of verbs.h does, with room for one, which was filled in if there is one.
        unsafe {
            let poll = (*self.context.raw()).ops.poll_cq.expect("every provider has it");
            match poll(self.raw(), 1, raw.as_mut_ptr()) {
                0 => Ok(None),
                1 => Ok(Some(Wc::from(raw.assume_init_ref()).status)),
                error => Err(Errno(-error)),
            }
        }
    }

    /// Polls until there is a completion.
    pub fn next(&self) -> Result<Wc> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(wc) = self.poll(1)?.pop() {
                return Ok(wc);
            }
            if Instant::now() > deadline {
                bail!("no completion within {PATIENCE:?}");
            }
            std::thread::yield_now();
        }
    }

    /// Polls until there are `count` completions.
    pub fn take(&self, count: usize) -> Result<Vec<Wc>> {
        (0..count).map(|_| self.next()).collect()
    }

    /// `ibv_req_notify_cq(3)`.
    pub fn arm(&self, solicited_only: bool) -> Result<(), Errno> {
        // SAFETY: as the inline function of verbs.h does.
        unsafe {
            let notify = (*self.context.raw()).ops.req_notify_cq.expect("every provider has it");
            Errno::check(notify(self.raw(), solicited_only.into()))
        }
    }

    /// `ibv_modify_cq(3)`: an event for so many completions, or so many microseconds after the first.
    pub fn moderate(&self, count: u16, period: u16) -> Result<(), Errno> {
        let moderate = v::ibv_moderate_cq { cq_count: count, cq_period: period };
        let mut attr = v::ibv_modify_cq_attr { attr_mask: v::IBV_CQ_ATTR_MODERATE, moderate };
        self.modify(&mut attr)
    }

    /// `ibv_modify_cq(3)`.
    pub fn modify(&self, attr: &mut v::ibv_modify_cq_attr) -> Result<(), Errno> {
        // SAFETY: as the inline function of verbs.h does.
        Errno::check(unsafe {
            let modify = (*self.context.extended()).modify_cq.expect("libibverbs always has it");
            modify(self.raw(), attr)
        })
    }

    /// `ibv_ack_cq_events(3)`.
    pub fn acknowledge_events(&self, count: c_uint) {
        // SAFETY: a live CQ; as many events were got.
        unsafe { f::ibv_ack_cq_events(self.raw(), count) };
    }

    /// `ibv_resize_cq(3)`.
    pub fn resize(&self, cqe: c_int) -> Result<(), Errno> {
        // SAFETY: a live CQ.
        Errno::check(unsafe { f::ibv_resize_cq(self.raw(), cqe) })
    }

    /// Destroys it now.
    pub fn destroy(&self) -> Result<(), Errno> {
        self.handle.destroy()
    }
}

impl From<&v::ibv_wc> for Wc {
    fn from(wc: &v::ibv_wc) -> Self {
        Self {
            wr_id: wc.wr_id,
            status: Status(wc.status),
            opcode: wc.opcode,
            byte_len: wc.byte_len,
            // SAFETY: both members are numbers of the same size.
            imm: u32::from_be(unsafe { wc.__bindgen_anon_1.imm_data }),
            qp_num: wc.qp_num,
            src_qp: wc.src_qp,
            flags: wc.wc_flags,
            slid: wc.slid,
            sl: wc.sl,
        }
    }
}
