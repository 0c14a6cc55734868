//! Completion counters (`ibv_create_comp_cntr(3)`): how many operations have ended, without a look at each.
//!
//! Work requests are counted, signaled or not; one that is flushed is counted as an error. Bytes are not, as on EFA, the one
//! device that has these counters. `CountedOps` says why incoming READs are not.

use std::ffi::c_int;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use urxe_engine::{AttachError, CountedOps};
use urxe_explain::Verb;
use urxe_ffi::driver::newer::{
    IBV_COMP_CNTR_TYPE_BYTES, IBV_COMP_CNTR_TYPE_WRS, ibv_comp_cntr, ibv_comp_cntr_caps, ibv_comp_cntr_init_attr,
    ibv_qp_attach_comp_cntr_attr,
};
use urxe_ffi::verbs as v;

use super::context::shared;
use super::{fast_verb, int_verb, ptr_verb, qp_object, raw};
use crate::kernel::Errno;
use crate::verbs::context::Context;
use crate::verbs::quota::Counted;
use urxe_runtime::counter::{CompletionCounter, Count};
use urxe_runtime::device::Device;

const EINVAL: Errno = Errno(libc::EINVAL);
const EOPNOTSUPP: Errno = Errno(libc::EOPNOTSUPP);

/// An `ibv_comp_cntr` of ours.
#[repr(C)]
struct CompCntrObject {
    ibv: ibv_comp_cntr,
    counter: Arc<CompletionCounter>,
    completions_read: LastRead,
    errors_read: LastRead,
    /// Device of the first queue pair that it is attached to.
    device: OnceLock<Arc<Device>>,
    _counted: Counted,
}

impl CompCntrObject {
    /// Device whose progress changes it.
    fn device<'a>(&'a self, context: &'a Context) -> &'a Device {
        self.device.get().unwrap_or_else(|| context.device())
    }
}

/// The value that the application has read last.
#[derive(Default)]
struct LastRead(AtomicU64);

impl LastRead {
    /// Reading the same value again may be waiting for another: makes progress in its thread, as polling a queue does, unless
    /// a signal handler reads that interrupts another call.
    fn read(&self, device: &Device, count: &Count, is_nested: bool) -> u64 {
        let mut value = count.read();
        if self.0.load(Ordering::Relaxed) == value && !is_nested {
            device.polled(false);
            value = count.read();
        }
        if self.0.load(Ordering::Relaxed) != value {
            self.0.store(value, Ordering::Relaxed);
            device.completed();
        }
        value
    }
}

/// Counter behind an `ibv_comp_cntr`, and its device.
///
/// # Safety
/// `comp_cntr` came from [`create_comp_cntr`] and has not been destroyed.
unsafe fn object<'a>(comp_cntr: *mut ibv_comp_cntr) -> (&'a Context, &'a CompCntrObject) {
    // SAFETY: an `ibv_comp_cntr` of ours is the start of a CompCntrObject.
    unsafe { (shared((*comp_cntr).context), &*comp_cntr.cast()) }
}

pub(super) unsafe extern "C" fn query_comp_cntr_caps(
    context: *mut v::ibv_context,
    caps: *mut ibv_comp_cntr_caps,
    caps_size: usize,
) -> c_int {
    int_verb(Verb::QueryCompCntrCaps, || {
        // SAFETY: the caller's context.
        let device = unsafe { shared(context) };
        device.check_alive()?;
        if caps_size < size_of::<ibv_comp_cntr_caps>() {
            return Err(EINVAL);
        }
        let answer = ibv_comp_cntr_caps {
            max_value: u64::MAX,
            max_counters: device.quotas().comp_cntr.most(),
            supported_qp_attach_ops: CountedOps::ALL.bits(),
        };
        // SAFETY: room for the answer; libibverbs has cleared what is behind it.
        unsafe { caps.write(answer) };
        Ok(())
    })
}

pub(super) unsafe extern "C" fn create_comp_cntr(
    context: *mut v::ibv_context,
    attr: *mut ibv_comp_cntr_init_attr,
) -> *mut ibv_comp_cntr {
    ptr_verb(Verb::CreateCompCntr, || {
        // SAFETY: the caller's context and attributes.
        let (device, attr) = unsafe { (shared(context), &*attr) };
        device.check_alive()?;
        if attr.comp_mask != 0 || attr.flags != 0 || attr.type_ == IBV_COMP_CNTR_TYPE_BYTES {
            return Err(EOPNOTSUPP);
        }
        if attr.type_ != IBV_COMP_CNTR_TYPE_WRS {
            return Err(EINVAL);
        }
        let object = CompCntrObject {
            ibv: ibv_comp_cntr { context, handle: 0 },
            counter: Arc::default(),
            completions_read: LastRead::default(),
            errors_read: LastRead::default(),
            device: OnceLock::new(),
            _counted: device.quotas().comp_cntr.take()?,
        };
        Ok(Box::into_raw(Box::new(object)).cast())
    })
}

pub(super) unsafe extern "C" fn destroy_comp_cntr(comp_cntr: *mut ibv_comp_cntr) -> c_int {
    int_verb(Verb::DestroyCompCntr, || {
        // SAFETY: the caller's counter.
        let (context, object) = unsafe { object(comp_cntr) };
        context.check_own()?;
        // A queue pair that it is attached to holds it.
        if Arc::strong_count(&object.counter) > 1 {
            return Err(Errno(libc::EBUSY));
        }
        // SAFETY: made by `create_comp_cntr`, and nothing refers to it.
        drop(unsafe { Box::from_raw(comp_cntr.cast::<CompCntrObject>()) });
        Ok(())
    })
}

pub(super) unsafe extern "C" fn qp_attach_comp_cntr(
    qp: *mut v::ibv_qp,
    comp_cntr: *mut ibv_comp_cntr,
    attr: *mut ibv_qp_attach_comp_cntr_attr,
) -> c_int {
    int_verb(Verb::QpAttachCompCntr, || {
        // SAFETY: the caller's queue pair, counter and attributes.
        let ((context, object), qp_context, is_raw, attr) =
            unsafe { (object(comp_cntr), (*qp).context, raw::is_raw(qp), &*attr) };
        context.check_alive()?;
        if attr.comp_mask != 0 {
            return Err(EOPNOTSUPP);
        }
        let ops = CountedOps::from_bits(attr.op_mask).ok_or(EOPNOTSUPP)?;
        if is_raw {
            return Err(EOPNOTSUPP);
        }
        // The kernel finds a handle among those of the same open device only.
        if ops.is_empty() || qp_context != object.ibv.context {
            return Err(EINVAL);
        }
        // SAFETY: the caller's queue pair, not raw.
        let queue_pair = unsafe { qp_object::object(qp) };
        queue_pair.qp.attach_counter(ops, Arc::clone(&object.counter)).map_err(|error| match error {
            AttachError::State(_) => EINVAL,
            AttachError::Overlap => Errno(libc::EBUSY),
        })?;
        object.device.get_or_init(|| Arc::clone(queue_pair.qp.device()));
        Ok(())
    })
}

/// Does something to a counter, or reads it.
///
/// # Safety
/// As for [`object`].
unsafe fn with(comp_cntr: *mut ibv_comp_cntr, act: impl FnOnce(&Context, &CompCntrObject)) -> Result<(), Errno> {
    // SAFETY: the caller's promise.
    let (context, object) = unsafe { object(comp_cntr) };
    context.check_alive()?;
    act(context, object);
    Ok(())
}

pub(super) unsafe extern "C" fn set_comp_cntr(comp_cntr: *mut ibv_comp_cntr, value: u64) -> c_int {
    // SAFETY: the caller's counter.
    fast_verb(Verb::SetCompCntr, |_| unsafe { with(comp_cntr, |_, object| object.counter.completions.set(value)) })
}

pub(super) unsafe extern "C" fn set_err_comp_cntr(comp_cntr: *mut ibv_comp_cntr, value: u64) -> c_int {
    // SAFETY: the caller's counter.
    fast_verb(Verb::SetErrCompCntr, |_| unsafe { with(comp_cntr, |_, object| object.counter.errors.set(value)) })
}

pub(super) unsafe extern "C" fn inc_comp_cntr(comp_cntr: *mut ibv_comp_cntr, amount: u64) -> c_int {
    // SAFETY: the caller's counter.
    fast_verb(Verb::IncCompCntr, |_| unsafe { with(comp_cntr, |_, object| object.counter.completions.add(amount)) })
}

pub(super) unsafe extern "C" fn inc_err_comp_cntr(comp_cntr: *mut ibv_comp_cntr, amount: u64) -> c_int {
    // SAFETY: the caller's counter.
    fast_verb(Verb::IncErrCompCntr, |_| unsafe { with(comp_cntr, |_, object| object.counter.errors.add(amount)) })
}

pub(super) unsafe extern "C" fn read_comp_cntr(comp_cntr: *mut ibv_comp_cntr, value: *mut u64) -> c_int {
    // SAFETY: the caller's counter, and room for its value.
    fast_verb(Verb::ReadCompCntr, |is_nested| unsafe {
        with(comp_cntr, |context, object| {
            value.write(object.completions_read.read(object.device(context), &object.counter.completions, is_nested));
        })
    })
}

pub(super) unsafe extern "C" fn read_err_comp_cntr(comp_cntr: *mut ibv_comp_cntr, value: *mut u64) -> c_int {
    // SAFETY: the caller's counter, and room for its value.
    fast_verb(Verb::ReadErrCompCntr, |is_nested| unsafe {
        with(comp_cntr, |context, object| {
            value.write(object.errors_read.read(object.device(context), &object.counter.errors, is_nested));
        })
    })
}
