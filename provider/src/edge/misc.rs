//! Small questions to a device and a queue pair.

use std::ffi::c_int;

use urxe_explain::Verb;
use urxe_ffi::verbs as v;
use urxe_runtime::clock;

use super::context::shared;
use super::int_verb;

/// The clock of completion timestamps (`ibv_query_rt_values_ex(3)`): ticks are nanoseconds.
pub(super) unsafe extern "C" fn query_rt_values(context: *mut v::ibv_context, values: *mut v::ibv_values_ex) -> c_int {
    int_verb(Verb::QueryRtValues, || {
        // SAFETY: the caller's context and room.
        let (context, values) = unsafe { (shared(context), &mut *values) };
        context.check_alive()?;
        let asked = values.comp_mask;
        values.comp_mask = 0;
        if asked & v::IBV_VALUES_MASK_RAW_CLOCK != 0 {
            // As ticks, all of them in `tv_nsec`: that is how providers give them and programs read them.
            values.raw_clock.tv_sec = 0;
            values.raw_clock.tv_nsec = i64::try_from(clock::now().as_nanos()).unwrap_or(i64::MAX);
            values.comp_mask = v::IBV_VALUES_MASK_RAW_CLOCK;
        }
        Ok(())
    })
}

/// Whether data arrives in the order of its addresses (`ibv_query_qp_data_in_order(3)`): packets are written in
/// order, and each by ascending addresses with its last bytes last, but wide copies promise no more than that.
pub(super) unsafe extern "C" fn query_qp_data_in_order(
    _qp: *mut v::ibv_qp,
    _op: v::ibv_wr_opcode,
    _flags: u32,
) -> c_int {
    0
}
