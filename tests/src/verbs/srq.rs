//! Shared receive queues and XRC domains.

use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::os::fd::RawFd;
use std::sync::Arc;

use urxe_ffi::functions as f;
use urxe_ffi::verbs as v;

use super::context::Context;
use super::cq::Cq;
use super::handle::{Errno, Handle};
use super::memory::Pd;
use super::qp::{PostError, post_recv_list};
use super::wr::RecvWr;

/// A shared receive queue.
pub struct Srq {
    handle: Handle<v::ibv_srq>,
    attr: v::ibv_srq_attr,
    pd: Arc<Pd>,
    _xrc: Option<(Arc<Xrcd>, Arc<Cq>)>,
}

// SAFETY: verbs may be called from any thread.
unsafe impl Send for Srq {}
// SAFETY: as above.
unsafe impl Sync for Srq {}

impl Srq {
    /// `ibv_create_srq(3)`.
    pub fn new(pd: &Arc<Pd>, max_wr: u32, max_sge: u32) -> Result<Arc<Self>, Errno> {
        let attr = v::ibv_srq_attr { max_wr, max_sge, srq_limit: 0 };
        let mut init = v::ibv_srq_init_attr { srq_context: std::ptr::null_mut(), attr };
        // SAFETY: a live domain.
        let raw = unsafe { f::ibv_create_srq(pd.raw(), &raw mut init) };
        // SAFETY: just made.
        let handle = unsafe { Handle::new(raw, f::ibv_destroy_srq)? };
        Ok(Arc::new(Self { handle, attr: init.attr, pd: Arc::clone(pd), _xrc: None }))
    }

    /// An XRC SRQ (`ibv_create_srq_ex(3)`).
    pub fn xrc(pd: &Arc<Pd>, xrcd: &Arc<Xrcd>, cq: &Arc<Cq>, max_wr: u32) -> Result<Arc<Self>, Errno> {
        let fields =
            [v::IBV_SRQ_INIT_ATTR_TYPE, v::IBV_SRQ_INIT_ATTR_PD, v::IBV_SRQ_INIT_ATTR_XRCD, v::IBV_SRQ_INIT_ATTR_CQ];
        // SAFETY: a plain C struct of numbers and pointers.
        let mut init: v::ibv_srq_init_attr_ex = unsafe { MaybeUninit::zeroed().assume_init() };
        init.attr = v::ibv_srq_attr { max_wr, max_sge: 2, srq_limit: 0 };
        init.comp_mask = fields.into_iter().sum();
        (init.srq_type, init.pd, init.xrcd, init.cq) = (v::IBV_SRQT_XRC, pd.raw(), xrcd.raw(), cq.raw());
        let context = pd.context();
        // SAFETY: as the inline function of verbs.h does, with live objects; just made.
        let handle = unsafe {
            let create = (*context.extended()).create_srq_ex.expect("libibverbs always has it");
            Handle::new(create(context.raw(), &raw mut init), f::ibv_destroy_srq)?
        };
        let xrc = Some((Arc::clone(xrcd), Arc::clone(cq)));
        Ok(Arc::new(Self { handle, attr: init.attr, pd: Arc::clone(pd), _xrc: xrc }))
    }

    /// Raw pointer, for verbs that have no method here.
    pub fn raw(&self) -> *mut v::ibv_srq {
        self.handle.raw()
    }

    /// Returns the address by which events name it.
    pub fn address(&self) -> usize {
        self.raw() as usize
    }

    /// Attributes that the create verb returned.
    pub fn created(&self) -> v::ibv_srq_attr {
        self.attr
    }

    /// `ibv_get_srq_num(3)`.
    pub fn number(&self) -> Result<u32, Errno> {
        let mut number = 0;
        // SAFETY: as the inline function of verbs.h does.
        Errno::check(unsafe {
            let get = (*self.pd.context().extended()).get_srq_num.expect("libibverbs always has it");
            get(self.raw(), &raw mut number)
        })?;
        Ok(number)
    }

    /// `ibv_modify_srq(3)`.
    pub fn modify(&self, max_wr: Option<u32>, limit: Option<u32>) -> Result<(), Errno> {
        let mut attr = v::ibv_srq_attr {
            max_wr: max_wr.unwrap_or(u32::MAX),
            max_sge: u32::MAX,
            srq_limit: limit.unwrap_or(u32::MAX),
        };
        let bit = |given: bool, bit: u32| if given { bit.cast_signed() } else { 0 };
        let mask = bit(max_wr.is_some(), v::IBV_SRQ_MAX_WR) | bit(limit.is_some(), v::IBV_SRQ_LIMIT);
        // SAFETY: a live queue.
        Errno::check(unsafe { f::ibv_modify_srq(self.raw(), &raw mut attr, mask) })
    }

    /// `ibv_query_srq(3)`: `max_wr`, `max_sge`, `srq_limit`.
    pub fn query(&self) -> Result<(u32, u32, u32), Errno> {
        let mut attr = v::ibv_srq_attr { max_wr: 0, max_sge: 0, srq_limit: 0 };
        // SAFETY: a live queue.
        Errno::check(unsafe { f::ibv_query_srq(self.raw(), &raw mut attr) })?;
        Ok((attr.max_wr, attr.max_sge, attr.srq_limit))
    }

    /// `ibv_post_srq_recv(3)` of a list.
    pub fn post_recvs(&self, list: &[RecvWr]) -> Result<(), PostError> {
        // SAFETY: as the inline function of verbs.h does.
        post_recv_list(list, |first, bad| unsafe {
            let post = (*self.pd.context().raw()).ops.post_srq_recv.expect("every provider has it");
            post(self.raw(), first, bad)
        })
    }

    /// `ibv_post_srq_recv(3)` of one.
    pub fn post_recv(&self, wr: &RecvWr) -> Result<(), PostError> {
        self.post_recvs(std::slice::from_ref(wr))
    }

    /// Destroys it now.
    pub fn destroy(&self) -> Result<(), Errno> {
        self.handle.destroy()
    }
}

/// An XRC domain.
pub struct Xrcd {
    handle: Handle<v::ibv_xrcd>,
    _context: Arc<Context>,
}

// SAFETY: verbs may be called from any thread.
unsafe impl Send for Xrcd {}
// SAFETY: as above.
unsafe impl Sync for Xrcd {}

impl Xrcd {
    /// `ibv_open_xrcd(3)`.
    pub fn open(context: &Arc<Context>, fd: RawFd, oflags: c_int) -> Result<Arc<Self>, Errno> {
        let comp_mask = v::IBV_XRCD_INIT_ATTR_FD | v::IBV_XRCD_INIT_ATTR_OFLAGS;
        let mut attr = v::ibv_xrcd_init_attr { comp_mask, fd, oflags };
        // SAFETY: as the inline function of verbs.h does; just made.
        let handle = unsafe {
            let open = (*context.extended()).open_xrcd.expect("libibverbs always has it");
            Handle::new(open(context.raw(), &raw mut attr), close_xrcd)?
        };
        Ok(Arc::new(Self { handle, _context: Arc::clone(context) }))
    }

    /// Raw pointer, for verbs that have no method here.
    pub fn raw(&self) -> *mut v::ibv_xrcd {
        self.handle.raw()
    }

    /// Closes it now.
    pub fn close(&self) -> Result<(), Errno> {
        self.handle.destroy()
    }
}

/// `ibv_close_xrcd(3)`, which verbs.h has inline.
unsafe extern "C" fn close_xrcd(xrcd: *mut v::ibv_xrcd) -> c_int {
    // SAFETY: a live domain; its context is the end of a `verbs_context`.
    unsafe {
        let context = (*xrcd).context;
        let extended: *mut v::verbs_context =
            context.wrapping_byte_sub(std::mem::offset_of!(v::verbs_context, context)).cast();
        (*extended).close_xrcd.expect("libibverbs always has it")(xrcd)
    }
}
