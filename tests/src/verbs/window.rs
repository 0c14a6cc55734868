//! Memory windows.

use std::mem::MaybeUninit;
use std::sync::Arc;

use anyhow::{Result, ensure};
use urxe_ffi::verbs as v;

use super::cq::Status;
use super::handle::{Errno, Handle};
use super::memory::{Mr, Pd};
use super::pair::End;
use super::qp::{PostError, Qp};
use super::wr::Remote;

/// A memory window.
pub struct Window {
    handle: Handle<v::ibv_mw>,
    pd: Arc<Pd>,
}

impl Window {
    /// `ibv_alloc_mw(3)`; `kind` is `IBV_MW_TYPE_…`.
    pub fn new(pd: &Arc<Pd>, kind: v::ibv_mw_type) -> Result<Self, Errno> {
        unsafe extern "C" fn dealloc(mw: *mut v::ibv_mw) -> libc::c_int {
            // SAFETY: the owner's last use of it; as the inline function of verbs.h does.
            unsafe { (*(*mw).context).ops.dealloc_mw.expect("every provider has it")(mw) }
        }
        // SAFETY: a live PD; as the inline function of verbs.h does.
        let handle = unsafe {
            let alloc = (*pd.context().raw()).ops.alloc_mw.expect("every provider has it");
            Handle::new(alloc(pd.raw(), kind), dealloc)?
        };
        Ok(Self { handle, pd: Arc::clone(pd) })
    }

    /// The R_Key that the application knows.
    pub fn rkey(&self) -> u32 {
        // SAFETY: a field of a live window.
        unsafe { (*self.handle.raw()).rkey }
    }

    /// Tells the window the R_Key that it was bound under, as applications do with windows of type 2.
    pub fn set_rkey(&self, rkey: u32) {
        // SAFETY: a field of a live window, which belongs to the application.
        unsafe { (*self.handle.raw()).rkey = rkey };
    }

    /// Names, as a peer does, the byte at `offset` of `mr`, under the window's key.
    pub fn at(&self, mr: &Mr, offset: usize) -> Remote {
        Remote { rkey: self.rkey(), ..mr.at(offset) }
    }

    /// `ibv_bind_mw(3)`, of a window of type 1.
    pub fn bind(&self, qp: &Qp, wr_id: u64, info: v::ibv_mw_bind_info) -> Result<(), Errno> {
        let mut bind = v::ibv_mw_bind { wr_id, send_flags: v::IBV_SEND_SIGNALED, bind_info: info };
        // SAFETY: live objects; as the inline function of verbs.h does.
        Errno::check(unsafe {
            let verb = (*self.pd.context().raw()).ops.bind_mw.expect("every provider has it");
            verb(qp.raw(), self.handle.raw(), &raw mut bind)
        })
    }

    /// Binds it in the way of its type. Returns the key that it has then: of type 2 the next one, which the window is not told.
    pub fn bind_as_its_type(&self, qp: &Qp, wr_id: u64, info: v::ibv_mw_bind_info) -> Result<u32> {
        // SAFETY: a field of a live window.
        if unsafe { (*self.handle.raw()).type_ } == v::IBV_MW_TYPE_1 {
            self.bind(qp, wr_id, info)?;
            return Ok(self.rkey());
        }
        let rkey = self.rkey() & !0xff | (self.rkey() + 1) & 0xff;
        self.post_bind(qp, wr_id, rkey, info)?;
        Ok(rkey)
    }

    /// Binds it in the way of its type, and waits until it is bound.
    pub fn open(&self, end: &End, info: v::ibv_mw_bind_info) -> Result<()> {
        let rkey = self.bind_as_its_type(&end.qp, 1, info)?;
        let wc = end.send_cq.next()?;
        ensure!(wc.status == Status::SUCCESS, "{wc:?}");
        if rkey != self.rkey() {
            self.set_rkey(rkey);
        }
        Ok(())
    }

    /// `IBV_WR_BIND_MW`, of a window of type 2.
    pub fn post_bind(&self, qp: &Qp, wr_id: u64, rkey: u32, info: v::ibv_mw_bind_info) -> Result<(), PostError> {
        let mut wr = request(wr_id, v::IBV_WR_BIND_MW);
        wr.__bindgen_anon_2.bind_mw.mw = self.handle.raw();
        wr.__bindgen_anon_2.bind_mw.rkey = rkey;
        wr.__bindgen_anon_2.bind_mw.bind_info = info;
        qp.post_raw(&mut wr)
    }
}

/// `IBV_WR_LOCAL_INV`.
pub fn post_invalidate(qp: &Qp, wr_id: u64, rkey: u32) -> Result<(), PostError> {
    let mut wr = request(wr_id, v::IBV_WR_LOCAL_INV);
    wr.__bindgen_anon_1.invalidate_rkey = rkey;
    qp.post_raw(&mut wr)
}

fn request(wr_id: u64, opcode: v::ibv_wr_opcode) -> v::ibv_send_wr {
    // SAFETY: a plain C struct: numbers, unions of numbers, null pointers.
    let mut wr: v::ibv_send_wr = unsafe { MaybeUninit::zeroed().assume_init() };
    (wr.wr_id, wr.opcode, wr.send_flags) = (wr_id, opcode, v::IBV_SEND_SIGNALED);
    wr
}

/// `len` bytes of `mr` from `offset` on, with these rights.
pub fn part(mr: &Mr, offset: usize, len: usize, access: u32) -> v::ibv_mw_bind_info {
    v::ibv_mw_bind_info { mr: mr.raw(), addr: mr.at(offset).addr, length: len as u64, mw_access_flags: access }
}
