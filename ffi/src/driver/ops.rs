//! The table of functions by which libibverbs calls a provider: `verbs_context_ops`.

use core::ffi::{c_int, c_uint, c_void};

use super::Layout;
use super::newer::*;
use super::objects::verbs_mr;
use crate::verbs::*;

/// `enum ibv_advise_mr_advice`; the header makes it a macro.
#[expect(non_camel_case_types, reason = "C's name")]
pub type ibv_advise_mr_advice = ib_uverbs_advise_mr_advice;

/// A function of which only its being one is known.
type AnyFn = unsafe extern "C" fn();

/// One entry of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Op {
    /// Name in `driver.h`.
    pub name: &'static str,
    /// The first layout that has it. None was ever taken away.
    pub since: Layout,
}

macro_rules! ops {
    ($($since:ident $name:ident: fn($($arg:ident: $type:ty),* $(,)?) $(-> $ret:ty)?;)*) => {
        /// Ops that a provider implements: every op of every version, with its C signature. `None` leaves libibverbs' own
        /// function in place, which says EOPNOTSUPP.
        ///
        /// [`ContextOps::table`] makes the table of the version at hand of it.
        #[derive(Clone, Copy)]
        pub struct ContextOps {
            $(
                #[doc = concat!("Since ", stringify!($since), ".")]
                pub $name: Option<unsafe extern "C" fn($($arg: $type),*) $(-> $ret)?>,
            )*
        }

        impl ContextOps {
            /// Table without any function.
            pub const NONE: Self = Self { $($name: None),* };

            fn erased(&self) -> [Option<AnyFn>; OPS.len()] {
                [$(
                    self.$name.map(|op| {
                        // SAFETY: from one function pointer to another, never called as this one.
                        unsafe {
                            core::mem::transmute::<unsafe extern "C" fn($($arg: $type),*) $(-> $ret)?, AnyFn>(op)
                        }
                    }),
                )*]
            }
        }

        /// Every op, sorted by name as `driver.h` sorts them.
        pub const OPS: [Op; [$(stringify!($name)),*].len()] = [
            $(Op { name: stringify!($name), since: Layout::$since }),*
        ];
    };
}

ops! {
    V34 advise_mr: fn(
        pd: *mut ibv_pd, advice: ibv_advise_mr_advice, flags: u32, sg_list: *mut ibv_sge,
        num_sges: u32,
    ) -> c_int;
    V64 alloc_buf: fn(pd: *mut ibv_pd, size: usize, buf: *mut *mut ibv_buf) -> *mut c_void;
    V34 alloc_dm: fn(context: *mut ibv_context, attr: *mut ibv_alloc_dm_attr) -> *mut ibv_dm;
    V59 alloc_dmah: fn(context: *mut ibv_context, attr: *mut ibv_dmah_init_attr) -> *mut ibv_dmah;
    V34 alloc_mw: fn(pd: *mut ibv_pd, type_: ibv_mw_type) -> *mut ibv_mw;
    V34 alloc_null_mr: fn(pd: *mut ibv_pd) -> *mut ibv_mr;
    V34 alloc_parent_domain: fn(
        context: *mut ibv_context, attr: *mut ibv_parent_domain_init_attr,
    ) -> *mut ibv_pd;
    V34 alloc_pd: fn(context: *mut ibv_context) -> *mut ibv_pd;
    V34 alloc_td: fn(context: *mut ibv_context, init_attr: *mut ibv_td_init_attr) -> *mut ibv_td;
    V34 async_event: fn(context: *mut ibv_context, event: *mut ibv_async_event);
    V34 attach_counters_point_flow: fn(
        counters: *mut ibv_counters, attr: *mut ibv_counter_attach_attr, flow: *mut ibv_flow,
    ) -> c_int;
    V34 attach_mcast: fn(qp: *mut ibv_qp, gid: *const ibv_gid, lid: u16) -> c_int;
    V34 bind_mw: fn(qp: *mut ibv_qp, mw: *mut ibv_mw, mw_bind: *mut ibv_mw_bind) -> c_int;
    V34 close_xrcd: fn(xrcd: *mut ibv_xrcd) -> c_int;
    V34 cq_event: fn(cq: *mut ibv_cq);
    V34 create_ah: fn(pd: *mut ibv_pd, attr: *mut ibv_ah_attr) -> *mut ibv_ah;
    V65 create_comp_cntr: fn(
        context: *mut ibv_context, attr: *mut ibv_comp_cntr_init_attr,
    ) -> *mut ibv_comp_cntr;
    V34 create_counters: fn(
        context: *mut ibv_context, init_attr: *mut ibv_counters_init_attr,
    ) -> *mut ibv_counters;
    V34 create_cq: fn(
        context: *mut ibv_context, cqe: c_int, channel: *mut ibv_comp_channel, comp_vector: c_int,
    ) -> *mut ibv_cq;
    V34 create_cq_ex: fn(context: *mut ibv_context, init_attr: *mut ibv_cq_init_attr_ex) -> *mut ibv_cq_ex;
    V34 create_flow: fn(qp: *mut ibv_qp, flow_attr: *mut ibv_flow_attr) -> *mut ibv_flow;
    V34 create_flow_action_esp: fn(
        context: *mut ibv_context, attr: *mut ibv_flow_action_esp_attr,
    ) -> *mut ibv_flow_action;
    V34 create_qp: fn(pd: *mut ibv_pd, attr: *mut ibv_qp_init_attr) -> *mut ibv_qp;
    V34 create_qp_ex: fn(context: *mut ibv_context, qp_init_attr_ex: *mut ibv_qp_init_attr_ex) -> *mut ibv_qp;
    V34 create_rwq_ind_table: fn(
        context: *mut ibv_context, init_attr: *mut ibv_rwq_ind_table_init_attr,
    ) -> *mut ibv_rwq_ind_table;
    V34 create_srq: fn(pd: *mut ibv_pd, srq_init_attr: *mut ibv_srq_init_attr) -> *mut ibv_srq;
    V34 create_srq_ex: fn(
        context: *mut ibv_context, srq_init_attr_ex: *mut ibv_srq_init_attr_ex,
    ) -> *mut ibv_srq;
    V34 create_wq: fn(context: *mut ibv_context, wq_init_attr: *mut ibv_wq_init_attr) -> *mut ibv_wq;
    V59 dealloc_dmah: fn(dmah: *mut ibv_dmah) -> c_int;
    V34 dealloc_mw: fn(mw: *mut ibv_mw) -> c_int;
    V34 dealloc_pd: fn(pd: *mut ibv_pd) -> c_int;
    V34 dealloc_td: fn(td: *mut ibv_td) -> c_int;
    V34 dereg_mr: fn(vmr: *mut verbs_mr) -> c_int;
    V34 destroy_ah: fn(ah: *mut ibv_ah) -> c_int;
    V65 destroy_comp_cntr: fn(comp_cntr: *mut ibv_comp_cntr) -> c_int;
    V34 destroy_counters: fn(counters: *mut ibv_counters) -> c_int;
    V34 destroy_cq: fn(cq: *mut ibv_cq) -> c_int;
    V34 destroy_flow: fn(flow: *mut ibv_flow) -> c_int;
    V34 destroy_flow_action: fn(action: *mut ibv_flow_action) -> c_int;
    V34 destroy_qp: fn(qp: *mut ibv_qp) -> c_int;
    V34 destroy_rwq_ind_table: fn(rwq_ind_table: *mut ibv_rwq_ind_table) -> c_int;
    V34 destroy_srq: fn(srq: *mut ibv_srq) -> c_int;
    V34 destroy_wq: fn(wq: *mut ibv_wq) -> c_int;
    V34 detach_mcast: fn(qp: *mut ibv_qp, gid: *const ibv_gid, lid: u16) -> c_int;
    V62 dm_export_dmabuf_fd: fn(dm: *mut ibv_dm) -> c_int;
    V64 free_buf: fn(buf: *mut ibv_buf);
    V34 free_context: fn(context: *mut ibv_context);
    V34 free_dm: fn(dm: *mut ibv_dm) -> c_int;
    V34 get_srq_num: fn(srq: *mut ibv_srq, srq_num: *mut u32) -> c_int;
    V35 import_dm: fn(context: *mut ibv_context, dm_handle: u32) -> *mut ibv_dm;
    V34 import_mr: fn(pd: *mut ibv_pd, mr_handle: u32) -> *mut ibv_mr;
    V34 import_pd: fn(context: *mut ibv_context, pd_handle: u32) -> *mut ibv_pd;
    V65 inc_comp_cntr: fn(comp_cntr: *mut ibv_comp_cntr, amount: u64) -> c_int;
    V65 inc_err_comp_cntr: fn(comp_cntr: *mut ibv_comp_cntr, amount: u64) -> c_int;
    V34 modify_cq: fn(cq: *mut ibv_cq, attr: *mut ibv_modify_cq_attr) -> c_int;
    V34 modify_flow_action_esp: fn(
        action: *mut ibv_flow_action, attr: *mut ibv_flow_action_esp_attr,
    ) -> c_int;
    V34 modify_qp: fn(qp: *mut ibv_qp, attr: *mut ibv_qp_attr, attr_mask: c_int) -> c_int;
    V34 modify_qp_rate_limit: fn(qp: *mut ibv_qp, attr: *mut ibv_qp_rate_limit_attr) -> c_int;
    V34 modify_srq: fn(srq: *mut ibv_srq, srq_attr: *mut ibv_srq_attr, srq_attr_mask: c_int) -> c_int;
    V34 modify_wq: fn(wq: *mut ibv_wq, wq_attr: *mut ibv_wq_attr) -> c_int;
    V34 open_qp: fn(context: *mut ibv_context, attr: *mut ibv_qp_open_attr) -> *mut ibv_qp;
    V34 open_xrcd: fn(context: *mut ibv_context, xrcd_init_attr: *mut ibv_xrcd_init_attr) -> *mut ibv_xrcd;
    V34 poll_cq: fn(cq: *mut ibv_cq, num_entries: c_int, wc: *mut ibv_wc) -> c_int;
    V34 post_recv: fn(qp: *mut ibv_qp, wr: *mut ibv_recv_wr, bad_wr: *mut *mut ibv_recv_wr) -> c_int;
    V34 post_send: fn(qp: *mut ibv_qp, wr: *mut ibv_send_wr, bad_wr: *mut *mut ibv_send_wr) -> c_int;
    V34 post_srq_ops: fn(srq: *mut ibv_srq, op: *mut ibv_ops_wr, bad_op: *mut *mut ibv_ops_wr) -> c_int;
    V34 post_srq_recv: fn(
        srq: *mut ibv_srq, recv_wr: *mut ibv_recv_wr, bad_recv_wr: *mut *mut ibv_recv_wr,
    ) -> c_int;
    V65 qp_attach_comp_cntr: fn(
        qp: *mut ibv_qp, comp_cntr: *mut ibv_comp_cntr, attr: *mut ibv_qp_attach_comp_cntr_attr,
    ) -> c_int;
    V65 query_comp_cntr_caps: fn(
        context: *mut ibv_context, caps: *mut ibv_comp_cntr_caps, caps_size: usize,
    ) -> c_int;
    V34 query_device_ex: fn(
        context: *mut ibv_context, input: *const ibv_query_device_ex_input,
        attr: *mut ibv_device_attr_ex, attr_size: usize,
    ) -> c_int;
    V34 query_ece: fn(qp: *mut ibv_qp, ece: *mut ibv_ece) -> c_int;
    V34 query_port: fn(context: *mut ibv_context, port_num: u8, port_attr: *mut ibv_port_attr) -> c_int;
    V62 query_port_speed: fn(context: *mut ibv_context, port_num: u32, speed: *mut u64) -> c_int;
    V34 query_qp: fn(
        qp: *mut ibv_qp, attr: *mut ibv_qp_attr, attr_mask: c_int, init_attr: *mut ibv_qp_init_attr,
    ) -> c_int;
    V36 query_qp_data_in_order: fn(qp: *mut ibv_qp, op: ibv_wr_opcode, flags: u32) -> c_int;
    V34 query_rt_values: fn(context: *mut ibv_context, values: *mut ibv_values_ex) -> c_int;
    V34 query_srq: fn(srq: *mut ibv_srq, srq_attr: *mut ibv_srq_attr) -> c_int;
    V65 read_comp_cntr: fn(comp_cntr: *mut ibv_comp_cntr, value: *mut u64) -> c_int;
    V34 read_counters: fn(
        counters: *mut ibv_counters, counters_value: *mut u64, ncounters: u32, flags: u32,
    ) -> c_int;
    V65 read_err_comp_cntr: fn(comp_cntr: *mut ibv_comp_cntr, value: *mut u64) -> c_int;
    V34 reg_dm_mr: fn(
        pd: *mut ibv_pd, dm: *mut ibv_dm, dm_offset: u64, length: usize, access: c_uint,
    ) -> *mut ibv_mr;
    V34 reg_dmabuf_mr: fn(
        pd: *mut ibv_pd, offset: u64, length: usize, iova: u64, fd: c_int, access: c_int,
    ) -> *mut ibv_mr;
    V34 reg_mr: fn(
        pd: *mut ibv_pd, addr: *mut c_void, length: usize, hca_va: u64, access: c_int,
    ) -> *mut ibv_mr;
    V59 reg_mr_ex: fn(pd: *mut ibv_pd, mr_init_attr: *mut ibv_mr_init_attr) -> *mut ibv_mr;
    V34 req_notify_cq: fn(cq: *mut ibv_cq, solicited_only: c_int) -> c_int;
    V34 rereg_mr: fn(
        vmr: *mut verbs_mr, flags: c_int, pd: *mut ibv_pd, addr: *mut c_void, length: usize,
        access: c_int,
    ) -> c_int;
    V34 resize_cq: fn(cq: *mut ibv_cq, cqe: c_int) -> c_int;
    V65 set_comp_cntr: fn(comp_cntr: *mut ibv_comp_cntr, value: u64) -> c_int;
    V34 set_ece: fn(qp: *mut ibv_qp, ece: *mut ibv_ece) -> c_int;
    V65 set_err_comp_cntr: fn(comp_cntr: *mut ibv_comp_cntr, value: u64) -> c_int;
    V35 unimport_dm: fn(dm: *mut ibv_dm);
    V34 unimport_mr: fn(mr: *mut ibv_mr);
    V34 unimport_pd: fn(pd: *mut ibv_pd);
}

/// `verbs_context_ops` of one [`Layout`], to be handed to `verbs_set_ops`.
pub struct OpTable {
    slots: Vec<Option<AnyFn>>,
}

impl OpTable {
    /// Argument of `verbs_set_ops`. Valid as long as `self`; libibverbs copies it.
    pub fn as_ptr(&self) -> *const c_void {
        self.slots.as_ptr().cast()
    }

    /// Number of ops of the version.
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// No version is without ops.
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }
}

impl ContextOps {
    /// The table of `layout`. Ops that it does not have are left out.
    pub fn table(&self, layout: Layout) -> OpTable {
        let slots = OPS.iter().zip(self.erased()).filter(|(op, _)| op.since <= layout).map(|(_, slot)| slot);
        OpTable { slots: slots.collect() }
    }
}

impl Layout {
    /// The ops it has, in their order.
    pub fn ops(self) -> impl Iterator<Item = &'static str> {
        OPS.iter().filter(move |op| op.since <= self).map(|op| op.name)
    }

    /// Index of an op in the table, if it is there.
    pub fn op_index(self, name: &str) -> Option<usize> {
        self.ops().position(|op| op == name)
    }
}

#[cfg(test)]
mod tests;
