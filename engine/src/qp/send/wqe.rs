//! Send work queue elements.

use urxe_wire::{Lid, Psn, Qpn};

use super::send_queue::Entry;
use crate::access::Access;
use crate::counter::CountedOps;
use crate::cq::{Cqe, FrameCompletion, WcOpcode, WcStatus};
use crate::event::Event;
use crate::host::{Consumer, Host, Io};
use crate::memory::{Invalidation, Memory};
use crate::mr::{Accessor, Refusal};
use crate::qp::QpConfig;
use crate::work::{Data, SendOp, SendWr};

/// A send WQE.
#[derive(Debug, Default)]
pub(in crate::qp) struct SendWqe {
    pub(in crate::qp) wr: SendWr,
    /// Bytes of the message.
    pub(in crate::qp) length: u32,
    pub(in crate::qp) signaled: bool,
    /// Set when the first packet is cut.
    pub(in crate::qp) sent: Option<Span>,
    /// The host does not carry it out without packets.
    pub(in crate::qp) by_packets: bool,
    /// A local operation that is done: not to be done again after going back.
    pub(in crate::qp) done: bool,
    /// The request cannot be carried out; it completes so when it is the oldest.
    pub(in crate::qp) failed: Option<WcStatus>,
}

impl SendWqe {
    /// `wr` has just been written: nothing of it is sent yet.
    #[inline]
    pub(in crate::qp) const fn begin(&mut self, length: u32, sq_sig_all: bool) {
        self.length = length;
        self.signaled = self.wr.flags.signaled || sq_sig_all;
        self.sent = None;
        self.by_packets = false;
        self.done = false;
        self.failed = None;
    }
}

impl Entry for SendWqe {
    #[inline]
    fn clear(&mut self) {
        self.wr.data.clear();
    }
}

/// The PSNs of a WQE's packets; for a READ, of the responses. That of a local operation is empty: its last PSN is before its
/// first.
#[derive(Clone, Copy, Debug)]
pub(in crate::qp) struct Span {
    pub(in crate::qp) first: Psn,
    pub(in crate::qp) last: Psn,
}

impl Span {
    pub(in crate::qp) fn contains(self, psn: Psn) -> bool {
        psn.advance_from(self.first) < self.last.next().advance_from(self.first)
    }
}

/// Tells the consumer of a WQE that was carried out; of one that is not signaled, its counter alone.
#[inline]
pub(in crate::qp) fn succeed<H: Host>(config: &QpConfig<H>, io: &mut Io<'_, H>, wqe: &SendWqe) {
    if wqe.signaled {
        complete(config, io, wqe, WcStatus::Success);
    } else if !config.counters.is_empty() {
        count(config, io, wqe, true);
    }
}

/// Counts the end of a WQE.
fn count<H: Host>(config: &QpConfig<H>, io: &mut Io<'_, H>, wqe: &SendWqe, succeeded: bool) {
    let op = match wqe.wr.op {
        SendOp::Send | SendOp::SendWithImmediate(_) | SendOp::SendWithInvalidate(_) => CountedOps::SEND,
        SendOp::Write(_) | SendOp::WriteWithImmediate(..) => CountedOps::RDMA_WRITE,
        SendOp::Read(_) => CountedOps::RDMA_READ,
        // libibverbs has no counters of these.
        SendOp::CompareSwap { .. }
        | SendOp::FetchAdd { .. }
        | SendOp::AtomicWrite(_)
        | SendOp::Flush { .. }
        | SendOp::LocalInvalidate(_)
        | SendOp::BindWindow(_) => return,
    };
    config.count(io, op, succeeded);
}

/// Tells the consumer how a WQE ended.
pub(in crate::qp) fn complete<H: Host>(config: &QpConfig<H>, io: &mut Io<'_, H>, wqe: &SendWqe, status: WcStatus) {
    let (opcode, byte_len) = match wqe.wr.op {
        SendOp::Send | SendOp::SendWithImmediate(_) | SendOp::SendWithInvalidate(_) => (WcOpcode::Send, 0),
        SendOp::Write(_) | SendOp::WriteWithImmediate(..) => (WcOpcode::RdmaWrite, 0),
        SendOp::Read(_) => (WcOpcode::RdmaRead, wqe.length),
        SendOp::CompareSwap { .. } => (WcOpcode::CompSwap, 8),
        SendOp::FetchAdd { .. } => (WcOpcode::FetchAdd, 8),
        SendOp::AtomicWrite(_) => (WcOpcode::AtomicWrite, 0),
        SendOp::Flush { .. } => (WcOpcode::Flush, 0),
        SendOp::LocalInvalidate(_) => (WcOpcode::LocalInv, 0),
        SendOp::BindWindow(_) => (WcOpcode::BindMw, 0),
    };
    if !matches!(status, WcStatus::Success | WcStatus::WrFlushError) {
        let (wr_id, op, length) = (wqe.wr.wr_id, wqe.wr.op, wqe.length);
        io.consumer.trace(config.qpn, Event::SendFailed { wr_id, op, length, status });
    }
    if !config.counters.is_empty() {
        count(config, io, wqe, status == WcStatus::Success);
    }
    let cqe = Cqe {
        wr_id: wqe.wr.wr_id,
        status,
        opcode,
        qpn: config.qpn,
        byte_len,
        imm: None,
        invalidated: None,
        at: io.time_for(config.send_cq.as_ref()),
        src_qp: Qpn::default(),
        solicited: false,
        grh: None,
        slid: Lid::NONE,
        frame: FrameCompletion::default(),
        refusal: if status == WcStatus::LocalProtectionError { refusal(config, io, wqe) } else { None },
    };
    if let Some(cq) = &config.send_cq {
        io.consumer.complete(cq, cqe);
    }
}

/// Returns the first rule that a request's buffers break.
#[cold]
fn refusal<H: Host>(config: &QpConfig<H>, io: &Io<'_, H>, wqe: &SendWqe) -> Option<Refusal> {
    let Data::Gather(list) = &wqe.wr.data else { return None };
    let stores = matches!(wqe.wr.op, SendOp::Read(_) | SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. });
    let access = if stores { Access::LOCAL_WRITE } else { Access::NONE };
    list.as_slice().iter().find_map(|sge| match io.memory.region(sge.key()) {
        None => Some(Refusal::NoSuchKey),
        Some(region) => region.check(Accessor::Local(config.pd), access, sge.addr, sge.length.into()).err(),
    })
}

/// Carries out an operation that needs no packet.
pub(in crate::qp) fn execute_local<H: Host>(config: &QpConfig<H>, io: &Io<'_, H>, op: &SendOp) -> Result<(), WcStatus> {
    match op {
        SendOp::LocalInvalidate(key) => {
            let invalidated = io.memory.invalidate(config.pd, config.qpn, *key, Invalidation::Local);
            invalidated.map_err(|_| WcStatus::LocalQpOperationError)
        }
        SendOp::BindWindow(bind) => io.memory.bind(config.pd, config.qpn, bind).map_err(|_| WcStatus::MwBindError),
        _ => Ok(()),
    }
}
