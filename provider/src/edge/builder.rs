//! Posting send requests by `ibv_wr_*` (`ibv_wr_post(3)`): a builder for each operation, and setters of recipients. The rest is
//! in [`batch`](super::batch).

use std::ffi::{c_int, c_void};

use urxe_engine::{Data, Key, QpType, Recipient, Remote, SendFlags, SendOp, SendWr, SgeList};
use urxe_ffi::driver::QpLayout;
use urxe_ffi::driver::objects::verbs_qp;
use urxe_ffi::verbs as v;
use urxe_wire::{Feth, FlushLevel, ImmDt, Qpn, RKey};

use super::batch::{self, Batch, Builder, Building, SendRequest};
use super::buffers::copy;
use super::context::shared;
use super::qp_object::QpObject;
use super::work_requests::{bind, send_batch};
use super::{ah, reentrant};
use crate::kernel::Errno;

/// `IBV_QP_EX_WITH_FLUSH`, which the headers of rdma-core 44 do not have yet.
const WITH_FLUSH: u32 = 1 << 11;

/// Operations that peers see no difference in, by service.
const SENDS: u32 = v::IBV_QP_EX_WITH_SEND | v::IBV_QP_EX_WITH_SEND_WITH_IMM;
const WRITES: u32 = v::IBV_QP_EX_WITH_RDMA_WRITE | v::IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM;
const LOCAL: u32 = v::IBV_QP_EX_WITH_LOCAL_INV | v::IBV_QP_EX_WITH_BIND_MW;
const RELIABLE: u32 = v::IBV_QP_EX_WITH_RDMA_READ
    | v::IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP
    | v::IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD
    | v::IBV_QP_EX_WITH_SEND_WITH_INV
    | v::IBV_QP_EX_WITH_ATOMIC_WRITE
    | WITH_FLUSH;

/// The flags of `enum ibv_qp_create_send_ops_flags` that a service has (IBA 9.8).
pub(super) const fn operations(qp_type: QpType) -> u64 {
    (match qp_type {
        QpType::Rc | QpType::XrcSend => SENDS | WRITES | LOCAL | RELIABLE,
        QpType::Uc => SENDS | WRITES | LOCAL,
        QpType::Ud => SENDS,
        QpType::XrcRecv => 0,
    }) as u64
}

/// Fills in the builders that `operations` asks for.
pub(super) fn install(verbs: &mut verbs_qp, layout: QpLayout, qp_type: QpType, operations: u64) {
    let wants = |operation: u32| operations & u64::from(operation) != 0;
    let qp = &mut verbs.qp_ex;
    macro_rules! builders {
        ($($operation:ident $name:ident;)*) => {
            $(if wants(v::$operation) { qp.$name = Some($name); })*
        };
    }
    builders! {
        IBV_QP_EX_WITH_SEND wr_send;
        IBV_QP_EX_WITH_SEND_WITH_IMM wr_send_imm;
        IBV_QP_EX_WITH_SEND_WITH_INV wr_send_inv;
        IBV_QP_EX_WITH_RDMA_WRITE wr_rdma_write;
        IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM wr_rdma_write_imm;
        IBV_QP_EX_WITH_RDMA_READ wr_rdma_read;
        IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP wr_atomic_cmp_swp;
        IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD wr_atomic_fetch_add;
        IBV_QP_EX_WITH_LOCAL_INV wr_local_inv;
        IBV_QP_EX_WITH_BIND_MW wr_bind_mw;
    }
    batch::install::<QpObject>(qp);
    qp.wr_complete = Some(wr_complete);
    if qp_type == QpType::Ud {
        qp.wr_set_ud_addr = Some(wr_set_ud_addr);
    }
    if qp_type == QpType::XrcSend {
        qp.wr_set_xrc_srqn = Some(wr_set_xrc_srqn);
    }
    // Before rdma-core 44 the word of `wr_atomic_write` is the flag's.
    if wants(v::IBV_QP_EX_WITH_ATOMIC_WRITE) && layout >= QpLayout::V44 {
        verbs.qp_ex.wr_atomic_write = Some(wr_atomic_write);
    }
    if wants(WITH_FLUSH) {
        // Where the library has no such builder, nobody can call it.
        let _ = verbs.set_wr_flush(layout, wr_flush);
    }
    verbs.mark_ex(layout);
}

// SAFETY: `verbs` comes first.
unsafe impl Building for QpObject {
    type Request = SendRequest;

    fn builder(&self) -> &Builder<SendRequest> {
        &self.builder
    }

    fn max_inline(&self) -> u32 {
        self.max_inline
    }
}

/// Lets `act` at the requests being built.
///
/// # Safety
/// As for [`batch::build`].
unsafe fn build(qp: *mut v::ibv_qp_ex, act: impl FnOnce(&mut Batch<SendRequest>)) {
    // SAFETY: the caller's promise.
    unsafe { batch::build::<QpObject>(qp, act) };
}

/// Begins a request: `wr_id` and `wr_flags` are those of the queue pair now.
///
/// # Safety
/// As for [`build`].
unsafe fn begin(qp: *mut v::ibv_qp_ex, op: SendOp) {
    // SAFETY: the caller's queue pair.
    let (wr_id, flags) = unsafe { ((*qp).wr_id, (*qp).wr_flags) };
    let flag = |flag| flags & flag != 0;
    let flags = SendFlags {
        fence: flag(v::IBV_SEND_FENCE),
        signaled: flag(v::IBV_SEND_SIGNALED),
        solicited: flag(v::IBV_SEND_SOLICITED),
    };
    let data = Data::Gather(SgeList::new(&[]));
    // SAFETY: the caller's promise.
    unsafe { build(qp, |batch| batch.requests.push((SendWr { wr_id, op, data, flags, to: Recipient::Peer }, None))) };
}

unsafe extern "C" fn wr_complete(qp: *mut v::ibv_qp_ex) -> c_int {
    let post = |object: &QpObject, requests: &mut Vec<SendRequest>, is_nested| {
        if is_nested { reentrant::wr_complete(&object.qp, requests) } else { send_batch(&object.qp, requests) }
    };
    // SAFETY: the caller's queue pair, between `wr_start` and this.
    unsafe { batch::complete(qp, post) }
}

// --- builders ----------------------------------------------------------------------------------------------

const fn remote(addr: u64, r_key: u32) -> Remote {
    Remote { addr, r_key: RKey(r_key) }
}

/// Big-endian in memory.
const fn immediate(imm_data: u32) -> ImmDt {
    ImmDt(imm_data.to_ne_bytes())
}

unsafe extern "C" fn wr_send(qp: *mut v::ibv_qp_ex) {
    // SAFETY: the caller's queue pair.
    unsafe { begin(qp, SendOp::Send) };
}

unsafe extern "C" fn wr_send_imm(qp: *mut v::ibv_qp_ex, imm_data: u32) {
    // SAFETY: the caller's queue pair.
    unsafe { begin(qp, SendOp::SendWithImmediate(immediate(imm_data))) };
}

unsafe extern "C" fn wr_send_inv(qp: *mut v::ibv_qp_ex, invalidate_rkey: u32) {
    // SAFETY: the caller's queue pair.
    unsafe { begin(qp, SendOp::SendWithInvalidate(RKey(invalidate_rkey))) };
}

unsafe extern "C" fn wr_rdma_write(qp: *mut v::ibv_qp_ex, rkey: u32, remote_addr: u64) {
    // SAFETY: the caller's queue pair.
    unsafe { begin(qp, SendOp::Write(remote(remote_addr, rkey))) };
}

unsafe extern "C" fn wr_rdma_write_imm(qp: *mut v::ibv_qp_ex, rkey: u32, remote_addr: u64, imm_data: u32) {
    // SAFETY: the caller's queue pair.
    unsafe { begin(qp, SendOp::WriteWithImmediate(remote(remote_addr, rkey), immediate(imm_data))) };
}

unsafe extern "C" fn wr_rdma_read(qp: *mut v::ibv_qp_ex, rkey: u32, remote_addr: u64) {
    // SAFETY: the caller's queue pair.
    unsafe { begin(qp, SendOp::Read(remote(remote_addr, rkey))) };
}

unsafe extern "C" fn wr_atomic_cmp_swp(qp: *mut v::ibv_qp_ex, rkey: u32, remote_addr: u64, compare: u64, swap: u64) {
    // SAFETY: the caller's queue pair.
    unsafe { begin(qp, SendOp::CompareSwap { remote: remote(remote_addr, rkey), compare, swap }) };
}

unsafe extern "C" fn wr_atomic_fetch_add(qp: *mut v::ibv_qp_ex, rkey: u32, remote_addr: u64, add: u64) {
    // SAFETY: the caller's queue pair.
    unsafe { begin(qp, SendOp::FetchAdd { remote: remote(remote_addr, rkey), add }) };
}

/// The eight bytes are read here, as `IBV_SEND_INLINE` would.
unsafe extern "C" fn wr_atomic_write(qp: *mut v::ibv_qp_ex, rkey: u32, remote_addr: u64, atomic_wr: *const c_void) {
    // SAFETY: the caller's queue pair.
    unsafe { begin(qp, SendOp::AtomicWrite(remote(remote_addr, rkey))) };
    let bytes = copy(std::iter::once((atomic_wr as u64, 8)));
    // SAFETY: as above.
    unsafe { build(qp, |batch| batch.set_data(bytes.map(Data::Inline))) };
}

/// `type_` is of `enum ibv_placement_type`, `level` of `enum ibv_selectivity_level`.
unsafe extern "C" fn wr_flush(qp: *mut v::ibv_qp_ex, rkey: u32, remote_addr: u64, len: usize, type_: u8, level: u8) {
    let level_known = match level {
        0 => Some(FlushLevel::Range),
        1 => Some(FlushLevel::Region),
        _ => None,
    };
    let valid = type_ & !3 == 0 && type_ != 0;
    let (Some(level), Ok(length), true) = (level_known, u32::try_from(len), valid) else {
        // SAFETY: the caller's queue pair.
        unsafe { build(qp, |batch| batch.fail(Errno(libc::EINVAL))) };
        return;
    };
    let how = Feth { global_visibility: type_ & 1 != 0, persistence: type_ & 2 != 0, level };
    // SAFETY: as above.
    unsafe { begin(qp, SendOp::Flush { remote: remote(remote_addr, rkey), length, how }) };
}

unsafe extern "C" fn wr_local_inv(qp: *mut v::ibv_qp_ex, invalidate_rkey: u32) {
    // SAFETY: the caller's queue pair.
    unsafe { begin(qp, SendOp::LocalInvalidate(Key(invalidate_rkey))) };
}

unsafe extern "C" fn wr_bind_mw(
    qp: *mut v::ibv_qp_ex,
    mw: *mut v::ibv_mw,
    rkey: u32,
    bind_info: *const v::ibv_mw_bind_info,
) {
    // SAFETY: the caller's window and description.
    let bind = unsafe { bind(mw, rkey, &*bind_info) };
    // SAFETY: the caller's queue pair.
    unsafe { begin(qp, SendOp::BindWindow(bind)) };
}

// --- setters -----------------------------------------------------------------------------------------------

unsafe extern "C" fn wr_set_ud_addr(qp: *mut v::ibv_qp_ex, ah: *mut v::ibv_ah, remote_qpn: u32, remote_qkey: u32) {
    // SAFETY: the caller's queue pair and address handle.
    let recipient = unsafe { ah::recipient(shared((*qp).qp_base.context), ah, remote_qpn, remote_qkey) };
    let set = |batch: &mut Batch<SendRequest>| match recipient {
        Ok(recipient) => batch.set(|(_, to)| *to = Some(recipient)),
        Err(errno) => batch.fail(errno),
    };
    // SAFETY: as above.
    unsafe { build(qp, set) };
}

unsafe extern "C" fn wr_set_xrc_srqn(qp: *mut v::ibv_qp_ex, remote_srqn: u32) {
    // SAFETY: the caller's queue pair.
    unsafe { build(qp, |batch| batch.set(|(request, _)| request.to = Recipient::XrcSrq(Qpn::new(remote_srqn)))) };
}
