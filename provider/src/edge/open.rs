//! Opening and closing a device: the functions that libibverbs gets with it.

use std::ffi::{CStr, c_int, c_void};
use std::os::fd::{IntoRawFd, OwnedFd};
use std::sync::Arc;

use urxe_explain::Verb;
use urxe_ffi::driver::ContextOps;
use urxe_ffi::private::Libibverbs;
use urxe_ffi::verbs as v;

use super::context::{self, Extra};
use super::{
    ah, comp_cntr, cq, cq_ex, dm, dmabuf, dmah, domain, mcast, misc, mr, mw, opened, post, qp, raw, registrations, srq,
    xrcd,
};
use super::{int_verb, ptr_verb};
use crate::kernel::{Errno, hook};
use crate::verbs::context::Context;
use crate::verbs::shared_device::OpenError;
use crate::{device, kernel};
use urxe_diag::complain;
use urxe_runtime::limits;

const OPS: ContextOps = ContextOps {
    alloc_pd: Some(mr::alloc_pd),
    dealloc_pd: Some(mr::dealloc_pd),
    reg_mr: Some(mr::reg_mr),
    dereg_mr: Some(mr::dereg_mr),
    rereg_mr: Some(mr::rereg_mr),
    import_pd: Some(mr::import_pd),
    unimport_pd: Some(mr::unimport_pd),
    import_mr: Some(mr::import_mr),
    unimport_mr: Some(mr::unimport_mr),
    import_dm: Some(dm::import_dm),
    unimport_dm: Some(dm::unimport_dm),
    advise_mr: Some(mr::advise_mr),
    alloc_null_mr: Some(mr::alloc_null_mr),
    alloc_dm: Some(dm::alloc_dm),
    free_dm: Some(dm::free_dm),
    reg_dm_mr: Some(dm::reg_dm_mr),
    dm_export_dmabuf_fd: Some(dm::dm_export_dmabuf_fd),
    reg_dmabuf_mr: Some(dmabuf::reg_dmabuf_mr),
    alloc_mw: Some(mw::alloc_mw),
    bind_mw: Some(mw::bind_mw),
    dealloc_mw: Some(mw::dealloc_mw),
    alloc_td: Some(domain::alloc_td),
    dealloc_td: Some(domain::dealloc_td),
    alloc_parent_domain: Some(domain::alloc_parent_domain),
    query_rt_values: Some(misc::query_rt_values),
    query_qp_data_in_order: Some(misc::query_qp_data_in_order),
    create_cq: Some(cq::create_cq),
    create_cq_ex: Some(cq_ex::create_cq_ex),
    poll_cq: Some(cq::poll_cq),
    req_notify_cq: Some(cq::req_notify_cq),
    resize_cq: Some(cq::resize_cq),
    modify_cq: Some(cq::modify_cq),
    destroy_cq: Some(cq::destroy_cq),
    cq_event: Some(cq::cq_event),
    async_event: Some(context::async_event),
    create_qp: Some(qp::create_qp),
    modify_qp: Some(qp::modify_qp),
    modify_qp_rate_limit: Some(qp::modify_qp_rate_limit),
    query_qp: Some(qp::query_qp),
    destroy_qp: Some(qp::destroy_qp),
    post_send: Some(post::post_send),
    post_recv: Some(post::post_recv),
    create_qp_ex: Some(qp::create_qp_ex),
    open_qp: Some(qp::open_qp),
    create_srq: Some(srq::create_srq),
    create_srq_ex: Some(srq::create_srq_ex),
    modify_srq: Some(srq::modify_srq),
    query_srq: Some(srq::query_srq),
    get_srq_num: Some(srq::get_srq_num),
    destroy_srq: Some(srq::destroy_srq),
    post_srq_recv: Some(srq::post_srq_recv),
    open_xrcd: Some(xrcd::open_xrcd),
    close_xrcd: Some(xrcd::close_xrcd),
    create_counters: Some(raw::counters::create_counters),
    attach_counters_point_flow: Some(raw::counters::attach_counters_point_flow),
    read_counters: Some(raw::counters::read_counters),
    destroy_counters: Some(raw::counters::destroy_counters),
    create_flow: Some(raw::flow::create_flow),
    destroy_flow: Some(raw::flow::destroy_flow),
    create_wq: Some(raw::wq::create_wq),
    modify_wq: Some(raw::wq::modify_wq),
    destroy_wq: Some(raw::wq::destroy_wq),
    create_rwq_ind_table: Some(raw::rss::create_rwq_ind_table),
    destroy_rwq_ind_table: Some(raw::rss::destroy_rwq_ind_table),
    attach_mcast: Some(mcast::attach_mcast),
    detach_mcast: Some(mcast::detach_mcast),
    create_ah: Some(ah::create_ah),
    destroy_ah: Some(ah::destroy_ah),
    query_device_ex: Some(context::query_device_ex),
    query_port: Some(context::query_port),
    query_port_speed: Some(context::query_port_speed),
    alloc_dmah: Some(dmah::alloc_dmah),
    dealloc_dmah: Some(dmah::dealloc_dmah),
    reg_mr_ex: Some(dmah::reg_mr_ex),
    query_comp_cntr_caps: Some(comp_cntr::query_comp_cntr_caps),
    create_comp_cntr: Some(comp_cntr::create_comp_cntr),
    destroy_comp_cntr: Some(comp_cntr::destroy_comp_cntr),
    set_comp_cntr: Some(comp_cntr::set_comp_cntr),
    set_err_comp_cntr: Some(comp_cntr::set_err_comp_cntr),
    inc_comp_cntr: Some(comp_cntr::inc_comp_cntr),
    inc_err_comp_cntr: Some(comp_cntr::inc_err_comp_cntr),
    read_comp_cntr: Some(comp_cntr::read_comp_cntr),
    read_err_comp_cntr: Some(comp_cntr::read_err_comp_cntr),
    qp_attach_comp_cntr: Some(comp_cntr::qp_attach_comp_cntr),
    free_context: Some(free_context),
    ..ContextOps::NONE
};

pub(super) unsafe extern "C" fn alloc_context(
    device: *mut v::ibv_device,
    cmd_fd: c_int,
    _private_data: *mut c_void,
) -> *mut v::verbs_context {
    ptr_verb(Verb::OpenDevice, || {
        // It may have been loaded after us.
        kernel::ucma::hook::install_if_loaded();
        // SAFETY: libibverbs' own device.
        let opened = unsafe { registrations::library(device) }.ok_or(Errno(libc::ENOSYS)).and_then(|library| {
            // SAFETY: a device that libibverbs has named.
            let name = unsafe { CStr::from_ptr((&raw const (*device).name).cast()) };
            let name = name.to_str().map_err(|_| Errno(libc::ENODEV))?;
            let netdev = device::netdev_of(name).ok_or(Errno(libc::ENODEV))?;
            let (context, async_fd) = Context::open(name, &netdev).map_err(|error| refuse(name, &error))?;
            Ok((library, context, async_fd))
        });
        let (library, context, async_fd) = opened.inspect_err(|_| {
            // SAFETY: ours since the call.
            unsafe { libc::close(cmd_fd) };
        })?;
        // SAFETY: the arguments of this call.
        unsafe { introduce(library, device, cmd_fd, context, Some(async_fd)) }
    })
}

/// Makes the `verbs_context` of an open device. `cmd_fd` belongs to it, and is closed in case of failure.
///
/// # Safety
/// `device` is libibverbs', `cmd_fd` open and the caller's.
pub(super) unsafe fn introduce(
    library: &'static Libibverbs,
    device: *mut v::ibv_device,
    cmd_fd: c_int,
    context: Arc<Context>,
    async_fd: Option<OwnedFd>,
) -> Result<*mut v::verbs_context, Errno> {
    hook::attach(cmd_fd, Arc::clone(&context) as _);
    // SAFETY: the caller's promise.
    let verbs = unsafe { library.init_and_alloc_context(device, cmd_fd, size_of::<Extra>(), 0) };
    if verbs.is_null() {
        hook::detach(cmd_fd);
        return Err(Errno(libc::ENOMEM));
    }
    opened::remember(cmd_fd, &context, device);
    // SAFETY: a context of this library's version with `Extra` behind it; nobody else knows it yet.
    unsafe {
        let public = library.public(verbs);
        public.add(1).cast::<Extra>().write(Extra { context: Arc::into_raw(context), library });
        if let Some(async_fd) = async_fd {
            (*public).async_fd = async_fd.into_raw_fd();
        }
        (*public).num_comp_vectors = limits::COMP_VECTORS;
        library.set_ops(verbs, &OPS);
    }
    Ok(verbs)
}

/// Tells the person in front of the program why there is no device.
fn refuse(name: &str, error: &OpenError) -> Errno {
    match error {
        OpenError::Port(error) => {
            complain(error);
            Errno(libc::ENODEV)
        }
        OpenError::Settings(mistake) => {
            complain(mistake);
            Errno(libc::EINVAL)
        }
        OpenError::System(errno) => {
            complain(&format_args!("cannot open {name}: {errno}"));
            *errno
        }
    }
}

unsafe extern "C" fn free_context(context: *mut v::ibv_context) {
    let _ = int_verb(Verb::CloseDevice, || {
        // SAFETY: the last call for this context.
        unsafe {
            opened::forget((*context).cmd_fd);
            hook::detach((*context).cmd_fd);
            let Extra { context: open, library } = context.add(1).cast::<Extra>().read();
            let verbs = library.context(context);
            library.uninit_context(verbs);
            libc::free(verbs.cast());
            drop(Arc::from_raw(open));
        }
        Ok(())
    });
}
