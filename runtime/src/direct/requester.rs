//! The requester's side: a request carried out at the peer's memory.

use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use urxe_engine::{
    Access, Accessor, Data, DirectOutcome, DirectRequest, Key, Memory, Pd, Region, RegionKind, Remote, SendOp, Sge,
    WcStatus,
};
use urxe_net::direct::{Found, Import, Message, Seen, SharedQp, SharedRegion, Visit};
use urxe_wire::{FlushLevel, Qpn};

use super::{PSN, RECEIVES, region, split};
use crate::memory::faultable_copy;

/// Requests between two questions to the system whether the peer is there: a program that finds its completions at once never looks
/// at sockets, where it would be told.
const PROBE_INTERVAL: u32 = 256;
/// Bytes between two looks whether the region is still what it was.
const CHUNK: u64 = 256 << 10;

/// The peer of a queue pair, and its memory.
#[derive(Debug)]
pub(crate) struct Attachment {
    visit: Visit,
    /// The peer.
    dest: Qpn,
    /// The peer as an accessor of its regions.
    by: Accessor,
    /// Rights that it gives to this queue pair.
    access: Access,
    /// READs and atomics that it takes.
    resources: u32,
    /// The region of the last request.
    region: Option<(Region, Found)>,
    /// The region of the receive buffer that was filled last.
    buffers: Option<Found>,
    /// Requests until the next question whether the peer is there.
    unasked: u32,
}

impl Attachment {
    /// The peer of a queue pair with this number, if it is there.
    pub(super) fn new(import: Arc<Import>, dest: Qpn, seen: &Seen<SharedQp>) -> Option<Self> {
        let (pd, access) = split(seen.value.rights);
        let (resources, _) = split(seen.value.limits);
        let (_, kind) = split(seen.value.limits);
        Some(Self {
            visit: Visit::new(import, dest, seen, kind & RECEIVES != 0)?,
            by: Accessor::Remote(Pd(pd), dest),
            access: Access::from_bits(access),
            region: None,
            buffers: None,
            unasked: PROBE_INTERVAL,
            dest,
            resources,
        })
    }

    /// Whether the peer is shown as it was.
    #[inline]
    pub(super) fn is_current(&self) -> bool {
        self.visit.is_current()
    }

    /// Whether receive buffers may be within reach.
    #[inline]
    pub(crate) const fn shows_receives(&self) -> bool {
        self.visit.shows_receives()
    }

    /// Carries a request out, if the peer's responder would. The peer may wait until [`leave`](Self::leave).
    #[inline]
    pub(crate) fn carry_out(&mut self, memory: &impl Memory, request: &DirectRequest<'_>) -> DirectOutcome {
        self.try_to(memory, request).unwrap_or(DirectOutcome::ByPackets)
    }

    #[inline]
    fn try_to(&mut self, memory: &impl Memory, request: &DirectRequest<'_>) -> Option<DirectOutcome> {
        let DirectRequest { pd, dest_qpn, op, data, length, psn, packets, .. } = *request;
        let is_next = self.visit.expected_psn() & PSN == u64::from(psn.get());
        if dest_qpn != self.dest || !is_next || !self.is_there() {
            return None;
        }
        if op.is_plain_send() {
            return self.send(memory, request);
        }
        let (remote, access, length) = self.asks(op, length)?;
        if !self.region.as_ref().is_some_and(|(_, found)| found.is(remote.r_key.0)) {
            self.find_region(remote.r_key.0)?;
        }
        let (region, found) = self.region.as_ref()?;
        let (va, length) = match op {
            SendOp::Flush { how, .. } if how.level == FlushLevel::Region => (region.iova, region.length),
            _ => (remote.addr, length),
        };
        let offset = region.check(self.by, access, va, length).ok()?;
        let at = self.visit.address(offset, length)?;
        if op.is_eight_bytes() && !at.is_multiple_of(8) {
            return None;
        }
        let visit = &mut self.visit;
        let outcome = visit.enter(found).then(|| {
            let outcome = Local { memory, pd, data }.carry_out(op, at, length, || visit.goes_on(found))?;
            // What cannot be done twice is done, whatever has been hidden meanwhile.
            (op.is_eight_bytes() || visit.goes_on(found)).then_some(outcome)
        });
        let Some(outcome) = outcome.flatten() else {
            // Its memory may have been closed for the sake of others.
            self.region = None;
            return None;
        };
        visit.took(packets, length);
        Some(outcome)
    }

    /// Puts a message into the peer's next receive buffer, if it is there and large enough.
    #[inline]
    fn send(&mut self, memory: &impl Memory, request: &DirectRequest<'_>) -> Option<DirectOutcome> {
        let DirectRequest { pd, op, data, length, solicited, packets, .. } = *request;
        let receive = self.visit.receive().filter(|receive| length <= receive.length)?;
        if !self.buffers.as_ref().is_some_and(|found| found.holds(&receive)) {
            self.buffers = self.visit.find(receive.key).filter(|found| found.holds(&receive));
        }
        let found = self.buffers.as_ref()?;
        let at = self.visit.address(receive.at, length.into())?;
        let visit = &mut self.visit;
        let is_done = visit.enter(found) && {
            let goes_on = || visit.goes_on(found);
            Local { memory, pd, data }.write(at, length.into(), goes_on).is_some() && goes_on()
        };
        if !is_done {
            self.buffers = None;
            return None;
        }
        let imm = if let SendOp::SendWithImmediate(imm) = op { Some(u32::from_ne_bytes(imm.0)) } else { None };
        visit.put(&Message { length, imm, solicited });
        visit.took(packets, length.into());
        Some(DirectOutcome::Done)
    }

    /// Leaves the peer's memory: nobody waits for this any more. Returns the requests carried out since the last time, and their bytes.
    #[inline]
    pub(crate) fn leave(&mut self) -> (u64, u64) {
        self.visit.leave()
    }

    /// Whether the peer is there: asked of the system now and then.
    #[inline]
    fn is_there(&mut self) -> bool {
        self.unasked = self.unasked.saturating_sub(1);
        self.unasked > 0 || self.look()
    }

    #[cold]
    fn look(&mut self) -> bool {
        self.unasked = PROBE_INTERVAL;
        self.visit.look()
    }

    /// The memory, rights and bytes that a request asks for. `None`: it goes by packets.
    #[inline]
    fn asks(&self, op: &SendOp, length: u32) -> Option<(Remote, Access, u64)> {
        let (remote, access, length) = match *op {
            SendOp::Write(remote) => (remote, Access::REMOTE_WRITE, length),
            SendOp::Read(remote) => (remote, Access::REMOTE_READ, length),
            SendOp::CompareSwap { remote, .. } | SendOp::FetchAdd { remote, .. } => (remote, Access::REMOTE_ATOMIC, 8),
            SendOp::AtomicWrite(remote) => (remote, Access::REMOTE_WRITE, 8),
            SendOp::Flush { remote, length, how } if how.global_visibility && !how.persistence => {
                (remote, Access::FLUSH_GLOBAL, length)
            }
            _ => return None,
        };
        let has_resources = self.resources > 0 || !op.takes_responder_resource();
        let is_aligned = !op.is_eight_bytes() || remote.addr.is_multiple_of(8);
        let is_something = length > 0 || matches!(op, SendOp::Flush { .. });
        (has_resources && is_aligned && is_something && self.access.contains(access)).then_some((
            remote,
            access,
            u64::from(length),
        ))
    }

    /// Finds the region that a request names. It may be hidden meanwhile.
    #[cold]
    fn find_region(&mut self, key: u32) -> Option<()> {
        let found = self.visit.find(key)?;
        let SharedRegion { name, rights, iova, length, at } = found.value;
        let ((key, pd), (access, user)) = (split(name), split(rights));
        let access = Access::from_bits(access);
        // `host` is the region's offset in the shared file.
        let region = Region { key: Key(key), pd: Pd(pd), access, iova, length, host: at, kind: region::kind(user) };
        self.region = Some((region, found));
        Some(())
    }
}

/// The local end of a request.
struct Local<'a, M> {
    memory: &'a M,
    pd: Pd,
    data: &'a Data,
}

impl<M: Memory> Local<'_, M> {
    /// Copies between the local buffers and `[at, at + length)`, which is the peer's. `None`: not, or not all of it.
    #[inline]
    fn carry_out(&self, op: &SendOp, at: u64, length: u64, goes_on: impl Fn() -> bool) -> Option<DirectOutcome> {
        match *op {
            SendOp::Write(_) => self.write(at, length, goes_on)?,
            SendOp::Read(_) => self.read(at, length, goes_on)?,
            SendOp::CompareSwap { compare, swap, .. } => {
                let to = self.result()?;
                // SAFETY: memory that the peer has shared for that, of a file that is mapped here.
                let original = unsafe { faultable_copy::compare_swap(at, compare, swap) }.ok()?;
                return Some(self.store_result(to, original));
            }
            SendOp::FetchAdd { add, .. } => {
                let to = self.result()?;
                // SAFETY: as above.
                let original = unsafe { faultable_copy::fetch_add(at, add) }.ok()?;
                return Some(self.store_result(to, original));
            }
            SendOp::AtomicWrite(_) => {
                let mut word = [0; 8];
                urxe_engine::copy_payload(self.memory, self.pd, self.data, 0, &mut word).ok()?;
                // SAFETY: as above.
                unsafe { faultable_copy::store(at, &word) }.ok()?;
            }
            // What is stored in order is seen in order.
            SendOp::Flush { .. } => fence(Ordering::SeqCst),
            _ => return None,
        }
        Some(DirectOutcome::Done)
    }

    /// The address of a local buffer, if it may be accessed.
    #[inline]
    fn buffer(&self, sge: &Sge, access: Access) -> Option<u64> {
        let region = self.memory.region(sge.key())?;
        let host = region.check(Accessor::Local(self.pd), access, sge.addr, sge.length.into()).ok()?;
        (region.kind != RegionKind::Null).then_some(host)
    }

    #[inline]
    fn write(&self, at: u64, length: u64, goes_on: impl Fn() -> bool) -> Option<()> {
        match self.data {
            // SAFETY: memory that the peer has shared for that, of a file that is mapped here.
            Data::Inline(bytes) if bytes.len() as u64 == length => unsafe { faultable_copy::store(at, bytes) }.ok(),
            Data::Inline(_) => None,
            Data::Gather(list) => {
                let mut to = at;
                for sge in list.as_slice().iter().filter(|sge| sge.length > 0) {
                    copy(to, self.buffer(sge, Access::NONE)?, sge.length.into(), &goes_on)?;
                    to += u64::from(sge.length);
                }
                (to - at == length).then_some(())
            }
        }
    }

    #[inline]
    fn read(&self, at: u64, length: u64, goes_on: impl Fn() -> bool) -> Option<()> {
        let Data::Gather(list) = self.data else { return None };
        let mut from = at;
        for sge in list.as_slice().iter().filter(|sge| sge.length > 0) {
            copy(self.buffer(sge, Access::LOCAL_WRITE)?, from, sge.length.into(), &goes_on)?;
            from += u64::from(sge.length);
        }
        (from - at == length).then_some(())
    }

    /// Where the result of an atomic operation goes, which cannot be done twice: seen to be writable before.
    fn result(&self) -> Option<u64> {
        let Data::Gather(list) = self.data else { return None };
        let [sge] = list.as_slice() else { return None };
        let to = self.buffer(sge, Access::LOCAL_WRITE).filter(|_| sge.length == 8)?;
        let mut before = [0; 8];
        faultable_copy::load(to, &mut before).ok()?;
        Some(to)
    }

    /// Stores the result of an atomic operation that was done, whatever protects the buffer, which is cached.
    fn store_result(&self, to: u64, original: u64) -> DirectOutcome {
        match self.memory.write(to, &original.to_ne_bytes()) {
            Ok(()) => DirectOutcome::Done,
            Err(_) => DirectOutcome::Failed(WcStatus::LocalProtectionError),
        }
    }
}

/// Copies bytes, as long as that is allowed.
#[inline]
fn copy(mut to: u64, mut from: u64, mut length: u64, goes_on: impl Fn() -> bool) -> Option<()> {
    while length > CHUNK {
        // SAFETY: one is a local buffer that is registered for it, the other the peer's memory, shared for that.
        unsafe { faultable_copy::copy(to, from, CHUNK) }.ok()?;
        (to, from, length) = (to + CHUNK, from + CHUNK, length - CHUNK);
        if !goes_on() {
            return None;
        }
    }
    // SAFETY: as above.
    unsafe { faultable_copy::copy(to, from, length) }.ok()
}
