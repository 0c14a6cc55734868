//! Regions of dma-bufs (`ibv_reg_mr(3)`): any that mmap(2) takes, such as udmabuf's.

use std::ffi::c_int;
use std::sync::Arc;

use urxe_engine::Access;
use urxe_explain::Verb;
use urxe_ffi::driver::objects::IBV_MR_TYPE_DMABUF_MR;
use urxe_ffi::verbs as v;

use super::{mr, ptr_verb};
use crate::kernel::Errno;
use crate::verbs::diagnostics;
use crate::verbs::objects::Registration;
use urxe_runtime::limits;
use urxe_runtime::memory::mapping::Mapping;

const EINVAL: Errno = Errno(libc::EINVAL);

pub(super) unsafe extern "C" fn reg_dmabuf_mr(
    pd: *mut v::ibv_pd,
    offset: u64,
    length: usize,
    iova: u64,
    fd: c_int,
    access: c_int,
) -> *mut v::ibv_mr {
    ptr_verb(Verb::RegDmabufMr, || {
        let page = limits::page();
        if length == 0 {
            return Err(diagnostics::wrong(EINVAL, "length is 0", "register at least one byte"));
        }
        // As the kernel demands of dma-bufs.
        if !(offset ^ iova).is_multiple_of(page) {
            return Err(diagnostics::wrong(
                EINVAL,
                "offset and iova are different bytes of a page",
                "choose an iova with the low bits of the offset",
            ));
        }
        let access = access.cast_unsigned();
        // From its beginning on: exporters with drm_gem_shmem_fault of Linux 6.1, such as vgem, map that whatever the offset is.
        let whole = usize::try_from(offset).ok().and_then(|offset| offset.checked_add(length)).ok_or(EINVAL)?;
        let write = Access::from_bits(access).intersects(Access::ANY_WRITE);
        let mapping = Mapping::shared(fd, 0, whole, write).map_err(|error| match error.raw_os_error() {
            Some(libc::ENODEV) => diagnostics::wrong(
                EINVAL,
                "mmap(2) does not take the descriptor: it is no dma-buf, or one that its exporter lets nobody map",
                "pass memory that the processor reaches, such as the application's: urxe has no device that would read that of another",
            ),
            Some(libc::EACCES) => diagnostics::wrong(
                Errno(libc::EACCES),
                "the descriptor is open for reading only, and access has a right to write",
                "open or export it for writing (O_RDWR, DRM_RDWR), or take the rights to write out",
            ),
            errno => Errno(errno.unwrap_or(libc::EINVAL)),
        })?;
        let asked = Registration { address: mapping.address() + offset, length: length as u64, iova, access };
        let addr = std::ptr::with_exposed_provenance_mut(usize::try_from(offset).map_err(|_| EINVAL)?);
        // SAFETY: the caller's domain.
        unsafe { mr::register(pd, &asked, addr, IBV_MR_TYPE_DMABUF_MR, Some(Arc::new(mapping))) }
    })
}
