//! Counters of flow rules (`ibv_create_counters(3)`).
//!
//! As on mlx5, points are attached before a rule is made: `flow` is null then, and rules with the action
//! `IBV_FLOW_SPEC_ACTION_COUNT` count from their making on.

use std::ffi::c_int;
use std::sync::{Arc, Mutex, PoisonError};

use urxe_explain::Verb;
use urxe_ffi::verbs as v;

use crate::edge::context::shared;
use crate::edge::users::Users;
use crate::edge::{int_verb, ptr_verb};
use crate::kernel::Errno;
use crate::verbs::diagnostics;
use crate::verbs::quota::Counted;
use urxe_runtime::raw::FlowCounters;

const EINVAL: Errno = Errno(libc::EINVAL);
const EOPNOTSUPP: Errno = Errno(libc::EOPNOTSUPP);

/// Points that may be attached.
const MAX_POINTS: usize = 1024;

/// An `ibv_counters` of ours.
#[repr(C)]
pub(super) struct CountersObject {
    ibv: v::ibv_counters,
    pub(super) counted: Arc<FlowCounters>,
    points: Mutex<Vec<Point>>,
    /// Rules that count.
    pub(super) users: Users,
    _quota: Counted,
}

/// A value to be read: its place, and whether it is of bytes.
struct Point {
    index: u32,
    is_bytes: bool,
}

/// Returns the object behind an `ibv_counters`.
///
/// # Safety
/// `counters` came from [`create_counters`] and has not been destroyed.
pub(super) unsafe fn object<'a>(counters: *mut v::ibv_counters) -> &'a CountersObject {
    // SAFETY: an `ibv_counters` of ours is the start of a CountersObject.
    unsafe { &*counters.cast::<CountersObject>() }
}

pub(in crate::edge) unsafe extern "C" fn create_counters(
    ibv_context: *mut v::ibv_context,
    attr: *mut v::ibv_counters_init_attr,
) -> *mut v::ibv_counters {
    ptr_verb(Verb::CreateCounters, || {
        // SAFETY: the caller's context and attributes.
        let (context, attr) = unsafe { (shared(ibv_context), &*attr) };
        context.check_alive()?;
        if attr.comp_mask != 0 {
            return Err(EOPNOTSUPP);
        }
        let quota = context.quotas().counters.take()?;
        let ibv = v::ibv_counters { context: ibv_context };
        let counted = Arc::default();
        let object = CountersObject { ibv, counted, points: Mutex::default(), users: Users::default(), _quota: quota };
        Ok(Box::into_raw(Box::new(object)).cast())
    })
}

pub(in crate::edge) unsafe extern "C" fn attach_counters_point_flow(
    counters: *mut v::ibv_counters,
    attr: *mut v::ibv_counter_attach_attr,
    flow: *mut v::ibv_flow,
) -> c_int {
    int_verb(Verb::AttachCountersPointFlow, || {
        // SAFETY: the caller's counters and attributes.
        let (context, object, attr) = unsafe { (shared((*counters).context), object(counters), &*attr) };
        context.check_alive()?;
        if !flow.is_null() || attr.comp_mask != 0 {
            return Err(diagnostics::wrong(
                EOPNOTSUPP,
                "counters are attached to rules by IBV_FLOW_SPEC_ACTION_COUNT",
                "leave flow NULL and comp_mask 0, and make the rule afterwards",
            ));
        }
        if object.users.any() {
            return Err(diagnostics::wrong(
                Errno(libc::EBUSY),
                "rules count with these counters already",
                "attach before ibv_create_flow",
            ));
        }
        let is_bytes = match attr.counter_desc {
            v::IBV_COUNTER_PACKETS => false,
            v::IBV_COUNTER_BYTES => true,
            _ => return Err(EINVAL),
        };
        let mut points = object.points.lock().unwrap_or_else(PoisonError::into_inner);
        if points.len() >= MAX_POINTS || attr.index as usize >= MAX_POINTS {
            return Err(EINVAL);
        }
        points.push(Point { index: attr.index, is_bytes });
        Ok(())
    })
}

pub(in crate::edge) unsafe extern "C" fn read_counters(
    counters: *mut v::ibv_counters,
    values: *mut u64,
    count: u32,
    flags: u32,
) -> c_int {
    int_verb(Verb::ReadCounters, || {
        // SAFETY: the caller's counters.
        let (context, object) = unsafe { (shared((*counters).context), object(counters)) };
        context.check_alive()?;
        let points = object.points.lock().unwrap_or_else(PoisonError::into_inner);
        if flags & !v::IBV_READ_COUNTERS_ATTR_PREFER_CACHED != 0 || points.iter().any(|point| point.index >= count) {
            return Err(diagnostics::wrong(
                EINVAL,
                "a point has an index beyond ncounters, or there are unknown flags",
                "give room for every index that was attached",
            ));
        }
        let (packets, bytes) = (object.counted.packets(), object.counted.bytes());
        // SAFETY: room for that many values.
        unsafe { values.write_bytes(0, count as usize) };
        for point in &*points {
            let value = if point.is_bytes { bytes } else { packets };
            // SAFETY: below `count`, and written before.
            unsafe {
                let place = values.add(point.index as usize);
                place.write(place.read().wrapping_add(value));
            }
        }
        Ok(())
    })
}

pub(in crate::edge) unsafe extern "C" fn destroy_counters(counters: *mut v::ibv_counters) -> c_int {
    int_verb(Verb::DestroyCounters, || {
        // SAFETY: the caller's counters.
        let (context, object) = unsafe { (shared((*counters).context), object(counters)) };
        context.check_own()?;
        if object.users.any() {
            return Err(diagnostics::wrong(
                Errno(libc::EBUSY),
                "a flow counts with the counters",
                "call ibv_destroy_flow first",
            ));
        }
        // SAFETY: from `create_counters`, and not used any more.
        drop(unsafe { Box::from_raw(counters.cast::<CountersObject>()) });
        Ok(())
    })
}
