//! Memory windows.

use std::ffi::c_int;
use std::sync::Arc;

use urxe_engine::{Data, Key, Recipient, SendFlags, SendOp, SendWr, SgeList, WindowType};
use urxe_explain::Verb;
use urxe_ffi::verbs as v;

use super::context::shared;
use super::work_requests::bind;
use super::{int_verb, mr, ptr_verb, qp_object, raw};
use crate::kernel::Errno;
use crate::verbs::diagnostics;
use crate::verbs::objects::ProtectionDomain;
use crate::verbs::quota::Counted;

/// An `ibv_mw` of ours.
#[repr(C)]
struct MwObject {
    ibv: v::ibv_mw,
    /// Keeps the domain from being freed.
    domain: Arc<ProtectionDomain>,
    _counted: Counted,
}

pub(super) unsafe extern "C" fn alloc_mw(pd: *mut v::ibv_pd, type_: v::ibv_mw_type) -> *mut v::ibv_mw {
    ptr_verb(Verb::AllocMw, || {
        // SAFETY: the caller's domain.
        let (context, domain) = unsafe { (shared((*pd).context), mr::domain(pd)) };
        context.check_alive()?;
        let kind = match type_ {
            v::IBV_MW_TYPE_1 => WindowType::One,
            v::IBV_MW_TYPE_2 => WindowType::Two,
            _ => return Err(Errno(libc::EINVAL)),
        };
        let counted = context.quotas().mw.take()?;
        let key = context.device().regions().insert_window(domain.id(), kind).map_err(|_| Errno(libc::ENOMEM))?;
        // SAFETY: as above.
        let ibv = v::ibv_mw { context: unsafe { (*pd).context }, pd, rkey: key.0, handle: key.0, type_ };
        Ok(Box::into_raw(Box::new(MwObject { ibv, domain: Arc::clone(domain), _counted: counted })).cast())
    })
}

pub(super) unsafe extern "C" fn dealloc_mw(mw: *mut v::ibv_mw) -> c_int {
    int_verb(Verb::DeallocMw, || {
        // SAFETY: the caller's window.
        let (context, handle) = unsafe { (shared((*mw).context), (*mw).handle) };
        context.check_own()?;
        context.device().regions().remove_window(Key(handle)).map_err(|_| Errno(libc::EINVAL))?;
        if let Some(observer) = context.observer() {
            observer.forget_window(Key(handle));
        }
        // SAFETY: made by `alloc_mw`, and not used any more.
        drop(unsafe { Box::from_raw(mw.cast::<MwObject>()) }.domain);
        Ok(())
    })
}

/// Binds a type 1 window by a send request with a key of our choice, which the window has as soon as it is posted
/// (`ibv_bind_mw(3)`). libibverbs has seen to type and domain.
pub(super) unsafe extern "C" fn bind_mw(qp: *mut v::ibv_qp, mw: *mut v::ibv_mw, mw_bind: *mut v::ibv_mw_bind) -> c_int {
    int_verb(Verb::BindMw, || {
        // SAFETY: the caller's queue pair, window and description.
        let (context, is_raw, asked) = unsafe { (shared((*qp).context), raw::is_raw(qp), &*mw_bind) };
        context.check_alive()?;
        if is_raw {
            return Err(diagnostics::wrong(
                Errno(libc::EOPNOTSUPP),
                "a raw packet queue pair binds no memory windows",
                "bind by a queue pair of type RC or UC",
            ));
        }
        // SAFETY: as above, and not raw.
        let object = unsafe { qp_object::object(qp) };
        //= spec/memory.md#mem-012
        //# A type 1 window MUST NOT be bound zero-based.
        if asked.bind_info.mw_access_flags & v::IBV_ACCESS_ZERO_BASED != 0 {
            return Err(diagnostics::wrong(
                Errno(libc::EINVAL),
                "IBV_ACCESS_ZERO_BASED is for memory windows of type 2",
                "leave it out, or allocate the window with IBV_MW_TYPE_2",
            ));
        }
        // SAFETY: as above.
        let rkey = unsafe { (*mw).rkey };
        let next = (rkey & !0xff) | (rkey.wrapping_add(1) & 0xff);
        // SAFETY: as above.
        let bind = unsafe { bind(mw, next, &asked.bind_info) };
        let flag = |flag| asked.send_flags & flag != 0;
        let wr = SendWr {
            wr_id: asked.wr_id,
            op: SendOp::BindWindow(bind),
            data: Data::Gather(SgeList::new(&[])),
            flags: SendFlags { fence: flag(v::IBV_SEND_FENCE), signaled: flag(v::IBV_SEND_SIGNALED), solicited: false },
            to: Recipient::Peer,
        };
        let device = object.qp.device();
        device
            .with_work(|work| object.qp.drive(work, |engine, io| engine.post_send(io, wr, None)))
            .map_err(Errno::from)?;
        // SAFETY: as above.
        unsafe { (*mw).rkey = next };
        Ok(())
    })
}
