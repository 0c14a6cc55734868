//! Strict mode (`URXE_STRICT`): tells of what works here, by luck or by the emulator's kindness, and will not everywhere.
//! Each rule is told once for each object.

use std::collections::hash_map::DefaultHasher;
use std::collections::{HashMap, HashSet, VecDeque};
use std::hash::Hasher;
use std::sync::Mutex;

use urxe_engine::{Cqe, Data, Memory, QpType, RecvWr, RegionKind, SendOp, SendWr, SgeList, WcStatus};
use urxe_wire::{Qpn, grh};

use super::Observer;
use super::explain::advise;
use crate::memory::guard;
use crate::memory::regions::Regions;
use crate::runtime::lock;

/// What strict mode remembers of a device.
#[derive(Debug, Default)]
pub(super) struct Strict {
    told: Mutex<HashSet<(Rule, u64)>>,
    /// Requests whose buffers must stay as they are, by queue pair, oldest first.
    sent: Mutex<HashMap<Qpn, VecDeque<Sent>>>,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Rule {
    SendBufferChanged,
    DatagramTooShort,
    ReadWithoutDepth,
    NothingSignaled,
    CqTooSmall,
    LeftOpen,
}

/// A send request under way, and what its buffers held when it was posted, if they may not change.
#[derive(Debug)]
struct Sent {
    signaled: bool,
    parts: Vec<(u64, usize)>,
    digest: u64,
}

/// What is to be known of a queue pair to which requests are posted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sender {
    pub(crate) qpn: Qpn,
    pub(crate) max_rd_atomic: u8,
    pub(crate) sq_sig_all: bool,
}

/// Bytes of a buffer that are looked at.
const MOST: usize = 1 << 20;

impl Strict {
    /// Whether this has not been told yet.
    fn first(&self, rule: Rule, object: u64) -> bool {
        lock(&self.told).insert((rule, object))
    }
}

/// A digest of the bytes at some addresses; `None` if they are not there.
fn digest(parts: &[(u64, usize)]) -> Option<u64> {
    let mut hasher = DefaultHasher::new();
    for &(addr, length) in parts {
        let mut bytes = vec![0; length.min(MOST)];
        guard::load(addr, &mut bytes).ok()?;
        hasher.write(&bytes);
    }
    Some(hasher.finish())
}

/// Where the buffers of a list are in the application's memory.
fn addresses(list: &SgeList, regions: &Regions) -> Option<Vec<(u64, usize)>> {
    let place = |sge: &urxe_engine::Sge| {
        let region = regions.region(sge.key()).filter(|region| region.kind == RegionKind::Memory)?;
        let offset = sge.addr.checked_sub(region.iova)?;
        let inside = offset.checked_add(sge.length.into()).is_some_and(|end| end <= region.length);
        inside.then_some((region.host.wrapping_add(offset), sge.length as usize))
    };
    list.as_slice().iter().map(place).collect()
}

impl Observer {
    /// A send request is about to be posted.
    pub(crate) fn posting_send(&self, sender: Sender, request: &SendWr, regions: &Regions) {
        let Some(strict) = &self.strict else { return };
        let Sender { qpn, max_rd_atomic, sq_sig_all } = sender;
        let wr_id = request.wr_id;
        if request.op.takes_responder_resource() && max_rd_atomic == 0 && strict.first(Rule::ReadWithoutDepth, key(qpn))
        {
            advise(
                self.device(),
                qpn,
                &format!("READ or atomic, wr_id {wr_id}, on QP {qpn}"),
                "max_rd_atomic is 0, so it may never be sent",
                "set IBV_QP_MAX_QP_RD_ATOMIC on the way to RTS",
            );
        }
        let sends = request.op.is_send() || matches!(request.op, SendOp::Write(_) | SendOp::WriteWithImmediate(..));
        let parts = match &request.data {
            Data::Gather(list) if sends => addresses(list, regions),
            Data::Gather(_) | Data::Inline(_) => None,
        };
        let parts = parts.unwrap_or_default();
        let (signaled, digest) = (request.flags.signaled || sq_sig_all, digest(&parts).unwrap_or_default());
        lock(&strict.sent).entry(qpn).or_default().push_back(Sent { signaled, parts, digest });
    }

    /// The last `count` requests were refused.
    pub(crate) fn refused_send(&self, qpn: Qpn, count: usize) {
        let Some(strict) = &self.strict else { return };
        if let Some(queue) = lock(&strict.sent).get_mut(&qpn) {
            queue.truncate(queue.len().saturating_sub(count));
        }
    }

    /// Send requests have been posted. `stuck`: the queue is full, and none of them is signaled.
    pub(crate) fn posted_send(&self, qpn: Qpn, stuck: bool) {
        let Some(strict) = &self.strict else { return };
        if stuck && strict.first(Rule::NothingSignaled, key(qpn)) {
            advise(
                self.device(),
                qpn,
                &format!("the send queue of QP {qpn} is full of unsignaled requests"),
                "cards free places only when a later signaled request completes: this queue would stall for ever",
                "set IBV_SEND_SIGNALED at least once in max_send_wr requests",
            );
        }
    }

    /// A receive request is about to be posted.
    pub(crate) fn posting_recv(&self, qpn: Qpn, qp_type: QpType, request: &RecvWr) {
        let Some(strict) = &self.strict else { return };
        let length = request.buffers.length();
        if qp_type == QpType::Ud && length <= grh::LEN as u64 && strict.first(Rule::DatagramTooShort, key(qpn)) {
            advise(
                self.device(),
                qpn,
                &format!("receive of {length} bytes, wr_id {}, on UD QP {qpn}", request.wr_id),
                "every datagram begins with 40 bytes of GRH, so no message fits",
                "post 40 bytes more than the longest message",
            );
        }
    }

    /// A work request has completed.
    pub(super) fn check_buffers(&self, cqe: &Cqe) {
        let Some(strict) = &self.strict else { return };
        if cqe.opcode as u32 >= 128 {
            return;
        }
        let mut sent = lock(&strict.sent);
        let Some(queue) = sent.get_mut(&cqe.qpn) else { return };
        if cqe.status != WcStatus::Success {
            queue.clear();
            return;
        }
        // Completions come in the order of the requests that are signaled; whatever was posted before has completed too.
        let Some(at) = queue.iter().position(|request| request.signaled) else { return };
        let changed =
            queue.drain(..=at).filter(|it| !it.parts.is_empty() && digest(&it.parts) != Some(it.digest)).count();
        drop(sent);
        if changed > 0 && strict.first(Rule::SendBufferChanged, key(cqe.qpn)) {
            advise(
                self.device(),
                cqe.qpn,
                &format!(
                    "send buffer changed before its completion, wr_id {} or earlier, on QP {}",
                    cqe.wr_id, cqe.qpn
                ),
                "a card reads it when it sends, and again when it sends again: the peer gets either contents, or a mixture",
                "leave buffers alone until their completion is polled",
            );
        }
    }

    /// A queue pair is no more, or as good as new.
    pub(crate) fn forget_sent(&self, qpn: Qpn) {
        if let Some(strict) = &self.strict {
            lock(&strict.sent).remove(&qpn);
        }
    }

    /// A completion queue of `capacity` now serves queues of `demand` requests.
    pub(crate) fn sized(&self, qpn: Qpn, cq: u64, capacity: usize, demand: u64) {
        let Some(strict) = &self.strict else { return };
        if demand > capacity as u64 && strict.first(Rule::CqTooSmall, cq) {
            advise(
                self.device(),
                qpn,
                &format!("a CQ of {capacity} elements serves queues of {demand} work requests"),
                "if they all complete before it is polled, it overruns, and takes its queue pairs with it",
                "make the CQ as large as its queues together, or never have more outstanding",
            );
        }
    }

    /// The device is closed; so many queue pairs and regions are still there.
    pub(crate) fn closed(&self, queue_pairs: usize, regions: usize) {
        let Some(strict) = &self.strict else { return };
        if queue_pairs + regions > 0 && strict.first(Rule::LeftOpen, 0) {
            advise(
                self.device(),
                Qpn::default(),
                &format!("ibv_close_device with {regions} MRs and {queue_pairs} queue pairs left"),
                "what is not destroyed is leaked, and keeps memory pinned on a card",
                "destroy queue pairs, then deregister MRs, then close",
            );
        }
    }

    /// Whether any of this is wanted.
    pub(crate) const fn is_strict(&self) -> bool {
        self.strict.is_some()
    }
}

fn key(qpn: Qpn) -> u64 {
    qpn.get().into()
}
