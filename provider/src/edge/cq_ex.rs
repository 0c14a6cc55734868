//! Extended completion queues: `ibv_create_cq_ex`, and polling by `start_poll`, `next_poll`, `end_poll`
//! (`ibv_create_cq_ex(3)`).

use std::ffi::c_int;

use urxe_engine::Cqe;
use urxe_explain::Verb;
use urxe_ffi::verbs as v;

use super::context::shared;
use super::cq::{self, CqObject, Current, Poll};
use super::{fast_verb, guarded, ptr_verb};
use crate::kernel::Errno;
use urxe_runtime::{clock, sanitizer};

/// Fields of completions that there are. RoCE has no LIDs and no service levels on the wire: they read as 0.
const WC_FLAGS: u32 = v::IBV_WC_EX_WITH_BYTE_LEN
    | v::IBV_WC_EX_WITH_IMM
    | v::IBV_WC_EX_WITH_QP_NUM
    | v::IBV_WC_EX_WITH_SRC_QP
    | v::IBV_WC_EX_WITH_SLID
    | v::IBV_WC_EX_WITH_SL
    | v::IBV_WC_EX_WITH_DLID_PATH_BITS
    | v::IBV_WC_EX_WITH_CVLAN
    | v::IBV_WC_EX_WITH_FLOW_TAG
    | v::IBV_WC_EX_WITH_COMPLETION_TIMESTAMP
    | v::IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK;

/// `wc_flags` that need the time of each completion.
const TIMES: u32 = v::IBV_WC_EX_WITH_COMPLETION_TIMESTAMP | v::IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK;

pub(super) unsafe extern "C" fn create_cq_ex(
    context: *mut v::ibv_context,
    attr: *mut v::ibv_cq_init_attr_ex,
) -> *mut v::ibv_cq_ex {
    ptr_verb(Verb::CreateCqEx, || {
        // SAFETY: the caller's attributes.
        let attr = unsafe { &*attr };
        let given = |field| attr.comp_mask & field != 0;
        let flags = if given(v::IBV_CQ_INIT_ATTR_MASK_FLAGS) { attr.flags } else { 0 };
        if attr.comp_mask & !(v::IBV_CQ_INIT_ATTR_MASK_FLAGS | v::IBV_CQ_INIT_ATTR_MASK_PD) != 0 {
            return Err(Errno(libc::EINVAL));
        }
        if attr.wc_flags & !u64::from(WC_FLAGS) != 0 || flags & !v::IBV_CREATE_CQ_ATTR_SINGLE_THREADED != 0 {
            return Err(Errno(libc::EOPNOTSUPP));
        }
        let parent_domain = if given(v::IBV_CQ_INIT_ATTR_MASK_PD) { attr.parent_domain } else { std::ptr::null_mut() };
        let poll = Poll::new(flags & v::IBV_CREATE_CQ_ATTR_SINGLE_THREADED != 0);
        let (cqe, vector) = (c_int::try_from(attr.cqe), c_int::try_from(attr.comp_vector));
        let (Ok(cqe), Ok(vector)) = (cqe, vector) else { return Err(Errno(libc::EINVAL)) };
        // SAFETY: the caller's context, channel and domain.
        let cq = unsafe { cq::create(context, cqe, attr.channel, vector, parent_domain, poll) }?;
        if attr.wc_flags & u64::from(TIMES) != 0 {
            // SAFETY: new.
            unsafe { cq::object(cq) }.cq.want_time();
        }
        let cq: *mut v::ibv_cq_ex = cq.cast();
        // SAFETY: new, and as large as an `ibv_cq_ex`.
        unsafe { fill_in(&mut *cq, attr.wc_flags) };
        Ok(cq)
    })
}

/// Fills in the functions for the fields that `wc_flags` asks for.
fn fill_in(cq: &mut v::ibv_cq_ex, wc_flags: u64) {
    cq.start_poll = Some(start_poll);
    cq.next_poll = Some(next_poll);
    cq.end_poll = Some(end_poll);
    cq.read_opcode = Some(read_opcode);
    cq.read_vendor_err = Some(read_vendor_err);
    cq.read_wc_flags = Some(read_wc_flags);
    macro_rules! readers {
        ($($flag:ident $name:ident $function:ident;)*) => {
            $(if wc_flags & u64::from(v::$flag) != 0 { cq.$name = Some($function); })*
        };
    }
    readers! {
        IBV_WC_EX_WITH_BYTE_LEN read_byte_len read_byte_len;
        IBV_WC_EX_WITH_IMM read_imm_data read_imm_data;
        IBV_WC_EX_WITH_QP_NUM read_qp_num read_qp_num;
        IBV_WC_EX_WITH_SRC_QP read_src_qp read_src_qp;
        IBV_WC_EX_WITH_SLID read_slid read_slid;
        IBV_WC_EX_WITH_SL read_sl read_sl;
        IBV_WC_EX_WITH_DLID_PATH_BITS read_dlid_path_bits read_dlid_path_bits;
        IBV_WC_EX_WITH_CVLAN read_cvlan read_cvlan;
        IBV_WC_EX_WITH_FLOW_TAG read_flow_tag read_flow_tag;
        IBV_WC_EX_WITH_COMPLETION_TIMESTAMP read_completion_ts read_completion_ts;
        IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK read_completion_wallclock_ns read_completion_wallclock_ns;
    }
}

/// Makes the oldest completion the current one.
///
/// # Safety
/// As for the calls between `start_poll` and `end_poll`.
unsafe fn advance(cq: *mut v::ibv_cq_ex, object: &CqObject, is_nested: bool) -> Result<(), Errno> {
    let take = |cqe: &Cqe| {
        let wc = cq::work_completion(cqe);
        // SAFETY: one thread is between `start_poll` and `end_poll`; the public fields are ours to write.
        unsafe {
            (*cq).status = wc.status;
            (*cq).wr_id = wc.wr_id;
            *object.poll.current.get() = Current { wc, at: cqe.at, frame: cqe.frame };
        }
    };
    if is_nested {
        return if object.cq.try_poll(1, take) > 0 { Ok(()) } else { Err(Errno(libc::ENOENT)) };
    }
    match object.cq.poll(1, take) {
        0 if object.cq.has_overrun() => Err(Errno(libc::EIO)),
        0 => Err(Errno(libc::ENOENT)),
        _ => {
            sanitizer::completed();
            Ok(())
        }
    }
}

unsafe extern "C" fn start_poll(cq: *mut v::ibv_cq_ex, attr: *mut v::ibv_poll_cq_attr) -> c_int {
    fast_verb(Verb::StartPoll, |is_nested| {
        // SAFETY: the caller's queue and attributes.
        let (context, object, attr) = unsafe { (shared((*cq).context), cq::object(cq.cast()), &*attr) };
        context.check_alive()?;
        if attr.comp_mask != 0 {
            return Err(Errno(libc::EINVAL));
        }
        if let Some(session_lock) = &object.poll.session_lock {
            if !is_nested {
                session_lock.enter();
            } else if !session_lock.try_enter() {
                return Err(Errno(libc::ENOENT));
            }
        }
        // SAFETY: the session lock is held, or the application promised to use one thread.
        let mut result = unsafe { advance(cq, object, is_nested) };
        if result == Err(Errno(libc::ENOENT)) && !is_nested {
            object.home.polled(context, object.cq.is_armed());
            // SAFETY: as above.
            result = unsafe { advance(cq, object, is_nested) };
        }
        if result.is_ok() && !is_nested {
            object.home.completed(context);
        }
        //= spec/completions.md#cq-008
        //# A poll that finds nothing MUST leave an extended queue free for every other thread.
        // After a failure there is no `end_poll`.
        if let (Err(_), Some(session_lock)) = (&result, &object.poll.session_lock) {
            session_lock.leave();
        }
        result
    })
}

unsafe extern "C" fn next_poll(cq: *mut v::ibv_cq_ex) -> c_int {
    fast_verb(Verb::NextPoll, |is_nested| {
        // SAFETY: the caller's queue, between `start_poll` and `end_poll`.
        unsafe { advance(cq, cq::object(cq.cast()), is_nested) }
    })
}

unsafe extern "C" fn end_poll(cq: *mut v::ibv_cq_ex) {
    let _ = guarded(|| {
        // SAFETY: the caller's queue.
        if let Some(session_lock) = unsafe { &cq::object(cq.cast()).poll.session_lock } {
            session_lock.leave();
        }
        Ok(())
    });
}

// --- fields ------------------------------------------------------------------------------------------------

/// # Safety
/// `cq` is ours, and the caller is between `start_poll` and `end_poll`.
unsafe fn current<'a>(cq: *mut v::ibv_cq_ex) -> &'a Current {
    // SAFETY: the caller's promise; nobody writes meanwhile.
    unsafe { &*cq::object(cq.cast()).poll.current.get() }
}

macro_rules! fields {
    ($($name:ident: $type:ty = |$current:ident| $value:expr;)*) => {$(
        unsafe extern "C" fn $name(cq: *mut v::ibv_cq_ex) -> $type {
            // SAFETY: the caller's queue.
            let $current = unsafe { current(cq) };
            $value
        }
    )*};
}

fields! {
    read_opcode: v::ibv_wc_opcode = |current| current.wc.opcode;
    read_vendor_err: u32 = |current| current.wc.vendor_err;
    read_wc_flags: u32 = |current| current.wc.wc_flags;
    read_byte_len: u32 = |current| current.wc.byte_len;
    // SAFETY: a number, whichever member was written.
    read_imm_data: u32 = |current| unsafe { current.wc.__bindgen_anon_1.imm_data };
    read_qp_num: u32 = |current| current.wc.qp_num;
    read_src_qp: u32 = |current| current.wc.src_qp;
    read_slid: u32 = |current| u32::from(current.wc.slid);
    read_sl: u8 = |current| current.wc.sl;
    read_dlid_path_bits: u8 = |current| current.wc.dlid_path_bits;
    read_cvlan: u16 = |current| current.frame.cvlan;
    read_flow_tag: u32 = |current| current.frame.flow_tag;
    // In ticks of `hca_core_clock`, which are nanoseconds.
    read_completion_ts: u64 = |current| current.at.as_nanos();
    read_completion_wallclock_ns: u64 = |current| clock::wall_clock(current.at);
}
