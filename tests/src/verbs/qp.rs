//! Queue pairs.

use std::ffi::c_int;
use std::fmt;
use std::mem::MaybeUninit;
use std::sync::Arc;

use urxe_ffi::functions as f;
use urxe_ffi::verbs as v;

use super::cq::Cq;
use super::handle::{Errno, Handle};
use super::memory::Pd;
use super::srq::{Srq, Xrcd};
use super::wr::{RecvWr, SendList, SendWr};

/// A queue pair.
pub struct Qp {
    handle: Handle<v::ibv_qp>,
    cap: v::ibv_qp_cap,
    pd: Arc<Pd>,
    _cqs: Vec<Arc<Cq>>,
    _srq: Option<Arc<Srq>>,
    _xrcd: Option<Arc<Xrcd>>,
}

// SAFETY: verbs may be called from any thread.
unsafe impl Send for Qp {}
// SAFETY: as above.
unsafe impl Sync for Qp {}

/// Attributes of an RC queue pair.
#[derive(Clone)]
pub struct Init {
    /// Sizes.
    pub cap: v::ibv_qp_cap,
    /// Every send gives a completion.
    pub sq_sig_all: bool,
    /// Service (`IBV_QPT_…`).
    pub qp_type: v::ibv_qp_type,
}

/// Sizes that most tests are happy with.
pub const CAP: v::ibv_qp_cap =
    v::ibv_qp_cap { max_send_wr: 64, max_recv_wr: 64, max_send_sge: 4, max_recv_sge: 4, max_inline_data: 64 };

impl Default for Init {
    fn default() -> Self {
        Self { cap: CAP, sq_sig_all: false, qp_type: v::IBV_QPT_RC }
    }
}

/// Attributes to change and which of them (`ibv_modify_qp(3)`).
#[derive(Clone, Copy)]
pub struct Change {
    /// The attributes.
    pub attr: v::ibv_qp_attr,
    /// `IBV_QP_…`.
    pub mask: v::ibv_qp_attr_mask,
}

/// Why posting failed, and where in the list.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PostError {
    /// Errno that the verb returned.
    pub errno: Errno,
    /// The request that `*bad_wr` points to: its index in the list, or `None` if it is none of them.
    pub bad: Option<usize>,
}

impl fmt::Display for PostError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at request {:?}", self.errno, self.bad)
    }
}

impl std::error::Error for PostError {}

impl Change {
    /// Only the state.
    pub fn to(state: v::ibv_qp_state) -> Self {
        // SAFETY: a plain C struct of numbers.
        let mut attr: v::ibv_qp_attr = unsafe { MaybeUninit::zeroed().assume_init() };
        attr.qp_state = state;
        Self { attr, mask: v::IBV_QP_STATE }
    }

    /// RESET → INIT.
    pub fn init(access: u32) -> Self {
        let mut change = Self::to(v::IBV_QPS_INIT);
        change.attr.port_num = 1;
        change.attr.qp_access_flags = access;
        change.mask |= v::IBV_QP_PKEY_INDEX | v::IBV_QP_PORT | v::IBV_QP_ACCESS_FLAGS;
        change
    }

    /// Also this attribute, which `set` sets.
    pub fn with(mut self, mask: v::ibv_qp_attr_mask, set: impl FnOnce(&mut v::ibv_qp_attr)) -> Self {
        set(&mut self.attr);
        self.mask |= mask;
        self
    }

    /// Leaves this attribute out.
    pub fn without(mut self, mask: v::ibv_qp_attr_mask) -> Self {
        self.mask &= !mask;
        self
    }
}

impl Qp {
    /// `ibv_create_qp(3)`.
    pub fn new(pd: &Arc<Pd>, send_cq: &Arc<Cq>, recv_cq: &Arc<Cq>, init: &Init) -> Result<Self, Errno> {
        Self::create(pd, send_cq, recv_cq, None, init)
    }

    /// Makes a queue pair with a shared receive queue.
    pub fn with_srq(pd: &Arc<Pd>, cq: &Arc<Cq>, srq: &Arc<Srq>, init: &Init) -> Result<Self, Errno> {
        Self::create(pd, cq, cq, Some(srq), init)
    }

    fn create(
        pd: &Arc<Pd>,
        send_cq: &Arc<Cq>,
        recv_cq: &Arc<Cq>,
        srq: Option<&Arc<Srq>>,
        init: &Init,
    ) -> Result<Self, Errno> {
        let mut raw_init = v::ibv_qp_init_attr {
            qp_context: std::ptr::null_mut(),
            send_cq: send_cq.raw(),
            recv_cq: recv_cq.raw(),
            srq: srq.map_or(std::ptr::null_mut(), |srq| srq.raw()),
            cap: init.cap,
            qp_type: init.qp_type,
            sq_sig_all: init.sq_sig_all.into(),
        };
        // SAFETY: live objects.
        let raw = unsafe { f::ibv_create_qp(pd.raw(), &raw mut raw_init) };
        // SAFETY: just made.
        let handle = unsafe { Handle::new(raw, f::ibv_destroy_qp)? };
        let cqs = vec![Arc::clone(send_cq), Arc::clone(recv_cq)];
        Ok(Self { handle, cap: raw_init.cap, pd: Arc::clone(pd), _cqs: cqs, _srq: srq.cloned(), _xrcd: None })
    }

    /// A queue pair on RC with builders of these operations (`ibv_qp_to_qp_ex(3)`).
    pub fn with_builders(pd: &Arc<Pd>, cq: &Arc<Cq>, operations: u32) -> Result<Self, Errno> {
        // SAFETY: a plain C struct of numbers and pointers.
        let mut init: v::ibv_qp_init_attr_ex = unsafe { MaybeUninit::zeroed().assume_init() };
        (init.pd, init.send_cq, init.recv_cq) = (pd.raw(), cq.raw(), cq.raw());
        (init.cap, init.qp_type) = (CAP, v::IBV_QPT_RC);
        init.comp_mask = v::IBV_QP_INIT_ATTR_PD | v::IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
        init.send_ops_flags = operations.into();
        let context = pd.context();
        // SAFETY: as the inline function of verbs.h does.
        let raw = unsafe {
            let create = (*context.extended()).create_qp_ex.expect("libibverbs always has it");
            create(context.raw(), &raw mut init)
        };
        // SAFETY: just made.
        let handle = unsafe { Handle::new(raw, f::ibv_destroy_qp)? };
        Ok(Self { handle, cap: init.cap, pd: Arc::clone(pd), _cqs: vec![Arc::clone(cq)], _srq: None, _xrcd: None })
    }

    /// An XRC initiator.
    pub fn xrc_initiator(pd: &Arc<Pd>, send_cq: &Arc<Cq>, init: &Init) -> Result<Self, Errno> {
        // SAFETY: plain C structs of numbers and pointers.
        let mut raw_init: v::ibv_qp_init_attr = unsafe { MaybeUninit::zeroed().assume_init() };
        raw_init.send_cq = send_cq.raw();
        raw_init.cap = init.cap;
        raw_init.qp_type = v::IBV_QPT_XRC_SEND;
        raw_init.sq_sig_all = init.sq_sig_all.into();
        // SAFETY: live objects.
        let raw = unsafe { f::ibv_create_qp(pd.raw(), &raw mut raw_init) };
        // SAFETY: just made.
        let handle = unsafe { Handle::new(raw, f::ibv_destroy_qp)? };
        let cqs = vec![Arc::clone(send_cq)];
        Ok(Self { handle, cap: raw_init.cap, pd: Arc::clone(pd), _cqs: cqs, _srq: None, _xrcd: None })
    }

    /// An XRC target. (It has no protection domain; `pd` says on which context it is.)
    pub fn xrc_target(pd: &Arc<Pd>, xrcd: &Arc<Xrcd>) -> Result<Self, Errno> {
        // SAFETY: a plain C struct of numbers and pointers.
        let mut init: v::ibv_qp_init_attr_ex = unsafe { MaybeUninit::zeroed().assume_init() };
        init.qp_type = v::IBV_QPT_XRC_RECV;
        init.comp_mask = v::IBV_QP_INIT_ATTR_XRCD;
        init.xrcd = xrcd.raw();
        let context = pd.context();
        // SAFETY: as the inline function of verbs.h does.
        let raw = unsafe {
            let create = (*context.extended()).create_qp_ex.expect("libibverbs always has it");
            create(context.raw(), &raw mut init)
        };
        Self::of_domain(raw, pd, xrcd)
    }

    /// `ibv_open_qp(3)`.
    pub fn open(pd: &Arc<Pd>, xrcd: &Arc<Xrcd>, number: u32) -> Result<Self, Errno> {
        let mut attr = v::ibv_qp_open_attr {
            comp_mask: v::IBV_QP_OPEN_ATTR_NUM | v::IBV_QP_OPEN_ATTR_XRCD | v::IBV_QP_OPEN_ATTR_TYPE,
            qp_num: number,
            xrcd: xrcd.raw(),
            qp_context: std::ptr::null_mut(),
            qp_type: v::IBV_QPT_XRC_RECV,
        };
        let context = pd.context();
        // SAFETY: as the inline function of verbs.h does.
        let raw = unsafe {
            let open = (*context.extended()).open_qp.expect("libibverbs always has it");
            open(context.raw(), &raw mut attr)
        };
        Self::of_domain(raw, pd, xrcd)
    }

    fn of_domain(raw: *mut v::ibv_qp, pd: &Arc<Pd>, xrcd: &Arc<Xrcd>) -> Result<Self, Errno> {
        // SAFETY: just made.
        let handle = unsafe { Handle::new(raw, f::ibv_destroy_qp)? };
        let cap = v::ibv_qp_cap { max_send_wr: 0, max_recv_wr: 0, ..CAP };
        Ok(Self { handle, cap, pd: Arc::clone(pd), _cqs: Vec::new(), _srq: None, _xrcd: Some(Arc::clone(xrcd)) })
    }

    /// Raw pointer, for verbs that have no method here.
    pub fn raw(&self) -> *mut v::ibv_qp {
        self.handle.raw()
    }

    /// Returns the address by which events name it.
    pub fn address(&self) -> usize {
        self.raw() as usize
    }

    /// Number.
    pub fn number(&self) -> u32 {
        // SAFETY: a field of a live QP.
        unsafe { (*self.raw()).qp_num }
    }

    /// The sizes that `ibv_create_qp` returned.
    pub fn cap(&self) -> v::ibv_qp_cap {
        self.cap
    }

    /// `ibv_modify_qp(3)`.
    pub fn modify(&self, change: &Change) -> Result<(), Errno> {
        let mut attr = change.attr;
        let mask = i32::try_from(change.mask).map_err(|_| Errno(libc::EINVAL))?;
        // SAFETY: a live QP.
        Errno::check(unsafe { f::ibv_modify_qp(self.raw(), &raw mut attr, mask) })
    }

    /// `ibv_query_qp(3)` of everything.
    pub fn query(&self) -> Result<(v::ibv_qp_attr, v::ibv_qp_init_attr), Errno> {
        let (mut attr, mut init) = (MaybeUninit::zeroed(), MaybeUninit::zeroed());
        // SAFETY: room for both, which are plain numbers and pointers.
        unsafe {
            Errno::check(f::ibv_query_qp(self.raw(), attr.as_mut_ptr(), 0x01ff_ffff, init.as_mut_ptr()))?;
            Ok((attr.assume_init(), init.assume_init()))
        }
    }

    /// The state that `ibv_query_qp` tells.
    pub fn state(&self) -> Result<v::ibv_qp_state, Errno> {
        Ok(self.query()?.0.qp_state)
    }

    /// `ibv_post_send(3)` of a list.
    pub fn post_sends(&self, list: &[SendWr]) -> Result<(), PostError> {
        let raw = list.iter().map(SendWr::raw).collect();
        let link = |wr: &mut v::ibv_send_wr, next| wr.next = next;
        // SAFETY: as the inline function of verbs.h does.
        post_list(raw, link, |first, bad| unsafe {
            let post = (*self.pd.context().raw()).ops.post_send.expect("every provider has it");
            post(self.raw(), first, bad)
        })
    }

    /// `ibv_post_send(3)` of a list that is written already, at no cost but that of the verb.
    pub fn post_list(&self, list: &mut SendList) -> Result<(), Errno> {
        let mut bad = std::ptr::null_mut();
        // SAFETY: as the inline function of verbs.h does, with a list that lives meanwhile.
        Errno::check(unsafe {
            let post = (*self.pd.context().raw()).ops.post_send.expect("every provider has it");
            post(self.raw(), list.first(), &raw mut bad)
        })
    }

    /// `ibv_post_send(3)` of one.
    pub fn post_send(&self, wr: &SendWr) -> Result<(), PostError> {
        self.post_sends(std::slice::from_ref(wr))
    }

    /// `ibv_post_send(3)` of one that is written already.
    pub fn post_raw(&self, wr: &mut v::ibv_send_wr) -> Result<(), PostError> {
        post_list(
            vec![*wr],
            |wr: &mut v::ibv_send_wr, next| wr.next = next,
            // SAFETY: as the inline function of verbs.h does.
            |first, bad| unsafe {
                let post = (*self.pd.context().raw()).ops.post_send.expect("every provider has it");
                post(self.raw(), first, bad)
            },
        )
    }

    /// `ibv_post_recv(3)` of a list.
    pub fn post_recvs(&self, list: &[RecvWr]) -> Result<(), PostError> {
        // SAFETY: as the inline function of verbs.h does.
        post_recv_list(list, |first, bad| unsafe {
            let post = (*self.pd.context().raw()).ops.post_recv.expect("every provider has it");
            post(self.raw(), first, bad)
        })
    }

    /// `ibv_post_recv(3)` of one.
    pub fn post_recv(&self, wr: &RecvWr) -> Result<(), PostError> {
        self.post_recvs(std::slice::from_ref(wr))
    }

    /// Destroys it now.
    pub fn destroy(&self) -> Result<(), Errno> {
        self.handle.destroy()
    }
}

/// Posts receives as a list.
pub(super) fn post_recv_list(
    list: &[RecvWr],
    post: impl FnOnce(*mut v::ibv_recv_wr, *mut *mut v::ibv_recv_wr) -> c_int,
) -> Result<(), PostError> {
    post_list(list.iter().map(RecvWr::raw).collect(), |wr: &mut v::ibv_recv_wr, next| wr.next = next, post)
}

/// Posts requests as a list, each `link`ed to the next. They live until `post` returns.
fn post_list<T>(
    mut raw: Vec<T>,
    link: impl Fn(&mut T, *mut T),
    post: impl FnOnce(*mut T, *mut *mut T) -> c_int,
) -> Result<(), PostError> {
    let base = if raw.is_empty() { std::ptr::null_mut() } else { raw.as_mut_ptr() };
    for index in 1..raw.len() {
        // SAFETY: both are within the list, which does not move any more.
        unsafe { link(&mut *base.add(index - 1), base.add(index)) };
    }
    let mut bad = std::ptr::null_mut();
    let returned = post(base, &raw mut bad);
    let bad = (0..raw.len()).find(|&index| base.wrapping_add(index) == bad);
    Errno::check(returned).map_err(|errno| PostError { errno, bad })
}
