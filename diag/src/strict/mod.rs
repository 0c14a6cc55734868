//! Strict mode (`URXE_STRICT`): tells of what works here, by luck or by the emulator's kindness, and will not everywhere.
//! Each rule is reported once for each object.
//!
//! [`rules`] lists them. Here are those about work requests and queues; [`receives`] looks after receive buffers, [`keys`] after keys,
//! [`objects`] has the rules about what is made and destroyed, [`dedup`] knows the rules that were reported, [`call_site`] says where in the
//! program a call was made.

mod call_site;
mod dedup;
mod keys;
mod objects;
mod receives;
mod rules;

use std::collections::hash_map::DefaultHasher;
use std::collections::{HashMap, VecDeque};
use std::hash::Hasher;
use std::sync::Mutex;

use urxe_engine::{Cqe, Data, QpState, QpType, RecvWr, RegionKind, SendOp, SendWr, SgeList, WcStatus};
use urxe_wire::{Qpn, grh};

use super::explain::advise;
use super::{Observer, fmt};
use dedup::{Object, Reported};
use keys::Keys;
pub use receives::RecvQueue;
use receives::{Part, Receives};
use rules::{Rule, Text};
use urxe_runtime::lock;
use urxe_runtime::memory::faultable_copy;
use urxe_runtime::memory::regions::Regions;

/// State of strict mode for a device.
#[derive(Debug, Default)]
pub(super) struct Strict {
    reported: Mutex<Reported>,
    /// Requests whose buffers must stay as they are, by queue pair, oldest first.
    sent: Mutex<HashMap<Qpn, VecDeque<Sent>>>,
    received: Mutex<Receives>,
    keys: Mutex<Keys>,
    /// Lines say where in the program.
    with_sites: bool,
}

/// Content of a report.
#[derive(Clone, Copy, Debug)]
struct Advice<'a> {
    qpn: Qpn,
    what: &'a str,
    /// Where in the program: empty if nobody knows, `None` for the place of the present call.
    site: Option<&'a str>,
}

/// A send request under way, and what its buffers held when it was posted, if they may not change.
#[derive(Debug)]
struct Sent {
    signaled: bool,
    parts: Vec<Part>,
    digest: u64,
    site: Option<String>,
}

/// Attributes of a queue pair that the checks of posted requests need.
#[derive(Clone, Copy, Debug)]
pub struct Sender {
    /// Queue pair number.
    pub qpn: Qpn,
    /// READs and atomics that it may have outstanding.
    pub max_rd_atomic: u8,
    /// Every send request gives a completion.
    pub sq_sig_all: bool,
    /// Current state.
    pub state: QpState,
}

/// Bytes of a buffer that are looked at.
const MOST: usize = 1 << 20;

impl Strict {
    pub(super) fn new(with_sites: bool) -> Self {
        Self { with_sites, ..Self::default() }
    }

    /// Where in the program the present call was made, if that is to be told.
    fn site(&self) -> Option<String> {
        self.with_sites.then(call_site::here)
    }

    /// Whether a finding has not been reported yet.
    fn first(&self, rule: Rule, object: Object) -> bool {
        lock(&self.reported).first(rule, object)
    }

    /// The object is no more.
    fn forget(&self, object: Object) {
        lock(&self.reported).forget(object);
    }
}

/// A digest of the bytes at some addresses; `None` if they are not there.
fn digest(parts: &[Part]) -> Option<u64> {
    faultable_copy::admit();
    let mut hasher = DefaultHasher::new();
    for part in parts {
        let mut bytes = vec![0; part.length.min(MOST)];
        faultable_copy::load(part.address, &mut bytes).ok()?;
        hasher.write(&bytes);
    }
    Some(hasher.finish())
}

/// Where the buffers of a list are in the application's memory.
fn places(list: &SgeList, regions: &Regions) -> Option<Vec<Part>> {
    let place = |sge: &urxe_engine::Sge| {
        let region = regions.region(sge.key()).filter(|region| region.kind == RegionKind::Memory)?;
        let offset = sge.addr.checked_sub(region.iova)?;
        let inside = offset.checked_add(sge.length.into()).is_some_and(|end| end <= region.length);
        let (key, address) = (sge.key(), region.host.wrapping_add(offset));
        inside.then_some(Part { key, address, length: sge.length as usize })
    };
    list.as_slice().iter().map(place).collect()
}

impl Observer {
    /// Tells it once for each object.
    fn tell(&self, strict: &Strict, rule: Rule, object: Object, advice: Advice<'_>) {
        if strict.first(rule, object) {
            let Advice { qpn, what, site } = advice;
            let Text { why, remedy } = rule.text();
            let site = site.map(ToOwned::to_owned).or_else(|| strict.site());
            advise(self.device(), qpn, what, why, remedy, site.as_deref());
        }
    }

    /// A send request is about to be posted.
    pub fn posting_send(&self, sender: Sender, request: &SendWr) {
        let Some(strict) = &self.strict else { return };
        let Sender { qpn, max_rd_atomic, sq_sig_all, state } = sender;
        let wr_id = request.wr_id;
        if matches!(state, QpState::Reset | QpState::Init | QpState::Rtr) {
            let what = format!("send request, wr_id {wr_id}, on QP {qpn} in {}", fmt::state(state));
            let advice = Advice { qpn, what: &what, site: None };
            self.tell(strict, Rule::SendState, Object::Qp(qpn), advice);
        }
        if request.op.takes_responder_resource() && max_rd_atomic == 0 {
            let what = format!("READ or atomic, wr_id {wr_id}, on QP {qpn}");
            let advice = Advice { qpn, what: &what, site: None };
            self.tell(strict, Rule::ReadWithoutDepth, Object::Qp(qpn), advice);
        }
        if let SendOp::BindWindow(bind) = &request.op {
            self.binding(strict, qpn, wr_id, bind.new_key);
        }
        let sends = request.op.is_send() || matches!(request.op, SendOp::Write(_) | SendOp::WriteWithImmediate(..));
        let parts = match &request.data {
            Data::Gather(list) if sends => places(list, &self.regions),
            Data::Gather(_) | Data::Inline(_) => None,
        };
        let parts = parts.unwrap_or_default();
        let early = parts.iter().find_map(|part| lock(&strict.received).at(part.address, part.length));
        if let Some(posted) = early {
            let what = format!("send request, wr_id {wr_id}, on QP {qpn}, from the buffer of receive wr_id {posted}");
            let advice = Advice { qpn, what: &what, site: None };
            self.tell(strict, Rule::RecvBufferSent, Object::Qp(qpn), advice);
        }
        let (signaled, digest) = (request.flags.signaled || sq_sig_all, digest(&parts).unwrap_or_default());
        let site = if parts.is_empty() { None } else { strict.site() };
        lock(&strict.sent).entry(qpn).or_default().push_back(Sent { signaled, parts, digest, site });
    }

    /// A list of `count` requests is about to be posted to a queue of `room`.
    pub fn posting_list(&self, qpn: Qpn, queue: &'static str, count: usize, room: u32) {
        let Some(strict) = &self.strict else { return };
        if count > room as usize {
            let what = format!("a list of {count} requests for a {queue} queue of {room}");
            let advice = Advice { qpn, what: &what, site: None };
            self.tell(strict, Rule::ListTooLong(queue), Object::Qp(qpn), advice);
        }
    }

    /// The last `count` requests were refused.
    pub fn refused_send(&self, qpn: Qpn, count: usize) {
        let Some(strict) = &self.strict else { return };
        if let Some(queue) = lock(&strict.sent).get_mut(&qpn) {
            queue.truncate(queue.len().saturating_sub(count));
        }
    }

    /// Send requests have been posted. `stuck`: the queue is full, and none of them is signaled.
    pub fn posted_send(&self, qpn: Qpn, stuck: bool) {
        let Some(strict) = &self.strict else { return };
        if stuck {
            let what = format!("the send queue of QP {qpn} is full of unsignaled requests");
            let advice = Advice { qpn, what: &what, site: None };
            self.tell(strict, Rule::NothingSignaled, Object::Qp(qpn), advice);
        }
    }

    /// A receive request is about to be posted to a queue pair in this state.
    pub fn posting_recv(&self, qpn: Qpn, qp_type: QpType, state: QpState, request: &RecvWr) {
        let Some(strict) = &self.strict else { return };
        let (length, wr_id) = (request.buffers.length(), request.wr_id);
        if state == QpState::Reset {
            let what = format!("receive request, wr_id {wr_id}, on QP {qpn} in RESET");
            let advice = Advice { qpn, what: &what, site: None };
            self.tell(strict, Rule::RecvState, Object::Qp(qpn), advice);
        }
        if qp_type == QpType::Ud && length <= grh::LEN as u64 {
            let what = format!("receive of {length} bytes, wr_id {wr_id}, on UD QP {qpn}");
            let advice = Advice { qpn, what: &what, site: None };
            self.tell(strict, Rule::DatagramTooShort, Object::Qp(qpn), advice);
        }
        self.posting_buffers(RecvQueue::Own(qpn), request);
    }

    /// The buffers of a receive request are about to be given away.
    pub fn posting_buffers(&self, queue: RecvQueue, request: &RecvWr) {
        let Some(strict) = &self.strict else { return };
        let parts = places(&request.buffers, &self.regions).unwrap_or_default();
        let writable =
            |part: &Part| self.regions.region(part.key).is_some_and(|region| receives::is_within(&region, part));
        let parts: &[Part] = if parts.iter().all(writable) { &parts } else { &[] };
        lock(&strict.received).post(queue, request.wr_id, parts);
    }

    /// The receive request posted last was refused.
    pub fn refused_recv(&self, queue: RecvQueue) {
        if let Some(strict) = &self.strict {
            lock(&strict.received).refuse(queue, &self.regions);
        }
    }

    /// A receive queue is no more, or empty.
    pub fn forget_recvs(&self, queue: RecvQueue) {
        if let Some(strict) = &self.strict {
            lock(&strict.received).forget(queue, &self.regions);
        }
    }

    /// A work request has completed.
    pub(super) fn check_buffers(&self, cqe: &Cqe) {
        let Some(strict) = &self.strict else { return };
        if cqe.opcode as u32 >= 128 {
            return self.check_received(strict, cqe);
        }
        let mut sent = lock(&strict.sent);
        let Some(queue) = sent.get_mut(&cqe.qpn) else { return };
        if cqe.status != WcStatus::Success {
            queue.clear();
            return;
        }
        // Completions come in the order of the requests that are signaled; whatever was posted before has completed too.
        let Some(at) = queue.iter().position(|request| request.signaled) else { return };
        let mut done = queue.drain(..=at);
        let changed = done.find(|it| !it.parts.is_empty() && digest(&it.parts) != Some(it.digest));
        drop(done);
        drop(sent);
        if let Some(Sent { site, .. }) = changed {
            let (wr_id, qpn) = (cqe.wr_id, cqe.qpn);
            let what = format!("send buffer changed before its completion, wr_id {wr_id} or earlier, on QP {qpn}");
            let advice = Advice { qpn, what: &what, site: Some(site.as_deref().unwrap_or_default()) };
            self.tell(strict, Rule::SendBufferChanged, Object::Qp(qpn), advice);
        }
    }

    fn check_received(&self, strict: &Strict, cqe: &Cqe) {
        if lock(&strict.received).complete(cqe, &self.regions) {
            let (wr_id, qpn) = (cqe.wr_id, cqe.qpn);
            let what = format!("receive buffer changed before its completion, wr_id {wr_id}, on QP {qpn}");
            let advice = Advice { qpn, what: &what, site: Some("") };
            self.tell(strict, Rule::RecvBufferChanged, Object::Qp(qpn), advice);
        }
    }

    /// The program has changed the last bytes of a WRITE, at `va`, before the first ones were stored.
    pub(super) fn overtaken(&self, qpn: Qpn, va: u64) {
        let Some(strict) = &self.strict else { return };
        let what = format!("the end of a WRITE, at {va:#x}, was changed before its beginning was there, on QP {qpn}");
        let advice = Advice { qpn, what: &what, site: Some("") };
        self.tell(strict, Rule::WriteOrder, Object::Qp(qpn), advice);
    }

    /// A queue pair is no more, or as good as new.
    pub(crate) fn forget_sent(&self, qpn: Qpn) {
        if let Some(strict) = &self.strict {
            lock(&strict.sent).remove(&qpn);
        }
    }

    /// Whether any of this is wanted.
    pub const fn is_strict(&self) -> bool {
        self.strict.is_some()
    }
}
