//! Asking an open device, and finding it behind an `ibv_context`.

use std::ffi::c_int;
use std::sync::atomic::{AtomicU64, Ordering};

use urxe_explain::Verb;
use urxe_ffi::private::Libibverbs;
use urxe_ffi::verbs as v;

use super::{guarded, int_verb};
use crate::kernel::Errno;
use crate::verbs::context::Context;
use crate::verbs::{diagnostics, lid, query};
use urxe_runtime::sanitizer;
use urxe_status::port::PortAttributes;

/// Private data behind an `ibv_context`.
#[repr(C)]
pub(super) struct Extra {
    pub(super) context: *const Context,
    /// The copy of libibverbs that the context is of.
    pub(super) library: &'static Libibverbs,
}

/// The open device behind an `ibv_context` of ours.
///
/// # Safety
/// `context` came from `ibv_open_device` and has not been freed.
pub(super) unsafe fn shared<'a>(context: *mut v::ibv_context) -> &'a Context {
    // SAFETY: `introduce` left the pointer right behind the context, and holds the reference until `free_context`.
    unsafe { &*(*context.add(1).cast::<Extra>()).context }
}

/// The copy of libibverbs that an `ibv_context` of ours is of.
///
/// # Safety
/// As for [`shared`].
pub(super) unsafe fn library(context: *mut v::ibv_context) -> &'static Libibverbs {
    // SAFETY: as above.
    unsafe { (*context.add(1).cast::<Extra>()).library }
}

/// `ibv_query_device_ex(3)`; works in a child of fork(2) too.
pub(super) unsafe extern "C" fn query_device_ex(
    context: *mut v::ibv_context,
    input: *const v::ibv_query_device_ex_input,
    attr: *mut v::ibv_device_attr_ex,
    attr_size: usize,
) -> c_int {
    int_verb(Verb::QueryDevice, || {
        // SAFETY: the caller's context; input may be null.
        let (context, input) = unsafe { (shared(context), input.as_ref()) };
        if input.is_some_and(|input| input.comp_mask != 0) || attr_size < size_of::<v::ibv_device_attr>() {
            return Err(Errno(libc::EINVAL));
        }
        // SAFETY: all-zero says "not supported" of every extended capability.
        let mut answer = unsafe { std::mem::zeroed::<v::ibv_device_attr_ex>() };
        answer.orig_attr = query::device(context);
        query::extended(context, &mut answer);
        let length = attr_size.min(size_of_val(&answer));
        // SAFETY: the caller has room for attr_size bytes.
        unsafe {
            attr.cast::<u8>().write_bytes(0, attr_size);
            attr.cast::<u8>().copy_from_nonoverlapping((&raw const answer).cast(), length);
        }
        sanitizer::written(attr as u64, attr_size);
        Ok(())
    })
}

pub(super) unsafe extern "C" fn query_port(
    context: *mut v::ibv_context,
    port_num: u8,
    attr: *mut v::ibv_port_attr,
) -> c_int {
    int_verb(Verb::QueryPort, || {
        // SAFETY: the caller's context and structure, which libibverbs has cleared.
        let (context, attr) = unsafe { (shared(context), &mut *attr) };
        context.check_alive()?;
        if port_num != 1 {
            return Err(diagnostics::wrong(Errno(libc::EINVAL), "port_num is not 1", "the device has port 1 only"));
        }
        query::port(&context.interface(), lid::of(context.device().net()), attr);
        let counters = context.device().counters();
        let read = |counter: &AtomicU64| u32::try_from(counter.load(Ordering::Relaxed)).unwrap_or(u32::MAX);
        (attr.bad_pkey_cntr, attr.qkey_viol_cntr) = (read(&counters.bad_pkey), read(&counters.bad_qkey));
        Ok(())
    })
}

/// Reports the speed in units of 100 Mbit/s, as [`query_port`] says it by width and speed.
pub(super) unsafe extern "C" fn query_port_speed(
    context: *mut v::ibv_context,
    port_num: u32,
    speed: *mut u64,
) -> c_int {
    int_verb(Verb::QueryPortSpeed, || {
        // SAFETY: the caller's context.
        let context = unsafe { shared(context) };
        context.check_alive()?;
        if port_num != 1 {
            return Err(diagnostics::wrong(Errno(libc::EINVAL), "port_num is not 1", "the device has port 1 only"));
        }
        // SAFETY: the caller has room for a number.
        unsafe { speed.write(PortAttributes::of(context.interface().link_layer()).rate) };
        Ok(())
    })
}

/// libibverbs has read an asynchronous event.
pub(super) unsafe extern "C" fn async_event(context: *mut v::ibv_context, _event: *mut v::ibv_async_event) {
    let _ = guarded(|| {
        // SAFETY: the caller's context.
        let context = unsafe { shared(context) };
        context.check_own()?;
        context.async_file().refill();
        Ok(())
    });
}
