//! Receive buffers between post and completion: nobody may look at them or write to them.
//!
//! What they hold meanwhile is replaced by [`WORDS`], so that a program that looks too early sees what it does. Whether
//! the program writes there shows when the message has come, and whether it sends from there when it does. What no
//! message has overwritten is put back.
//!
//! Buffers that several requests have in common are left alone: programs that post one buffer many times, as benchmarks
//! do, do not care what is in there.

use std::collections::{BTreeMap, HashMap, VecDeque};

use urxe_engine::{Access, Cqe, Key, WcOpcode, WcStatus};
use urxe_wire::Qpn;

use urxe_runtime::memory::faultable_copy;
use urxe_runtime::memory::regions::Regions;

/// Pattern that fills a posted receive buffer.
pub(super) const WORDS: &[u8; 18] = b"not received yet; ";

/// Bytes of a request that are looked after.
const MOST: usize = 1 << 20;

/// Queue in which receive requests wait.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum RecvQueue {
    /// A queue pair's own receive queue.
    Own(Qpn),
    /// The SRQ at this address.
    Shared(u64),
}

/// A part of a receive request's buffers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part {
    pub(super) key: Key,
    pub(super) address: u64,
    pub(super) length: usize,
}

/// Contents of a part before the pattern was written; `None` if the part is left alone.
#[derive(Debug)]
struct Kept {
    part: Part,
    before: Option<Vec<u8>>,
}

#[derive(Debug)]
struct Posted {
    wr_id: u64,
    parts: Vec<Kept>,
}

/// All that are posted.
#[derive(Debug, Default)]
pub(super) struct Receives {
    queues: HashMap<RecvQueue, VecDeque<Posted>>,
    /// Buffers that are looked after, by address: their ends, and the requests.
    buffers: BTreeMap<u64, (u64, u64)>,
}

/// The words, as they stand in a buffer.
fn words(length: usize) -> Vec<u8> {
    WORDS.iter().copied().cycle().take(length).collect()
}

impl Receives {
    /// The request whose buffer these bytes are part of.
    pub(super) fn at(&self, address: u64, length: usize) -> Option<u64> {
        let end = address.saturating_add(length as u64);
        let (_, &(buffer_end, wr_id)) = self.buffers.range(..end).next_back()?;
        (buffer_end > address && length > 0).then_some(wr_id)
    }

    /// A request is posted with buffers at these places.
    pub(super) fn post(&mut self, queue: RecvQueue, wr_id: u64, parts: &[Part]) {
        let mut kept = Vec::new();
        for part in parts {
            let free = (1..=MOST).contains(&part.length) && self.at(part.address, part.length).is_none();
            let before = free.then(|| replace(part)).flatten();
            if before.is_some() {
                self.buffers.insert(part.address, (part.address + part.length as u64, wr_id));
            }
            kept.push(Kept { part: *part, before });
        }
        self.queues.entry(queue).or_default().push_back(Posted { wr_id, parts: kept });
    }

    /// The request posted last was refused.
    pub(super) fn refuse(&mut self, queue: RecvQueue, regions: &Regions) {
        let posted = self.queues.get_mut(&queue).and_then(VecDeque::pop_back);
        if let Some(posted) = posted {
            self.settle(&posted, 0, regions);
        }
    }

    /// A request has completed. True if the program has written to its buffers meanwhile.
    pub(super) fn complete(&mut self, cqe: &Cqe, regions: &Regions) -> bool {
        let Some(posted) = self.take(cqe) else { return false };
        let message = cqe.status == WcStatus::Success && cqe.opcode == WcOpcode::Recv;
        let received = if message { cqe.byte_len as usize } else { 0 };
        let dirty = self.settle(&posted, received, regions);
        // What failed may have been received in part.
        dirty && cqe.status == WcStatus::Success
    }

    /// The oldest of the queue pair's own; of those that are shared, the one of that number.
    fn take(&mut self, cqe: &Cqe) -> Option<Posted> {
        if let Some(own) = self.queues.get_mut(&RecvQueue::Own(cqe.qpn))
            && let Some(posted) = own.pop_front()
        {
            return Some(posted);
        }
        let shared = self.queues.iter_mut().filter(|(queue, _)| matches!(queue, RecvQueue::Shared(_)));
        let mut queues = shared.map(|(_, queue)| queue);
        queues.find_map(|queue| {
            let at = queue.iter().position(|posted| posted.wr_id == cqe.wr_id)?;
            queue.remove(at)
        })
    }

    /// A queue is no more, or empty.
    pub(super) fn forget(&mut self, queue: RecvQueue, regions: &Regions) {
        for posted in self.queues.remove(&queue).into_iter().flatten() {
            self.settle(&posted, 0, regions);
        }
    }

    /// A region is about to be deregistered: its memory is the program's own afterwards.
    pub(super) fn deregister(&mut self, key: Key, regions: &Regions) {
        for posted in self.queues.values_mut().flatten() {
            for kept in posted.parts.iter_mut().filter(|kept| kept.part.key == key) {
                if let Some(before) = kept.before.take() {
                    self.buffers.remove(&kept.part.address);
                    put_back(&kept.part, &before, 0, regions);
                }
            }
        }
    }

    /// Puts back what was not received. True if something else stands there.
    fn settle(&mut self, posted: &Posted, mut received: usize, regions: &Regions) -> bool {
        let mut dirty = false;
        for Kept { part, before } in &posted.parts {
            let here = received.min(part.length);
            received -= here;
            if let Some(before) = before {
                self.buffers.remove(&part.address);
                dirty |= put_back(part, before, here, regions);
            }
        }
        dirty
    }
}

/// Replaces what a buffer holds; `None` if that cannot be done.
fn replace(part: &Part) -> Option<Vec<u8>> {
    faultable_copy::admit();
    let mut before = vec![0; part.length];
    faultable_copy::load(part.address, &mut before).ok()?;
    // SAFETY: the caller has found it in a region that may be written to, and gives it away by posting it.
    unsafe { faultable_copy::store(part.address, &words(part.length)) }.ok()?;
    Some(before)
}

/// Puts back all but the first `received` bytes, where the words still stand. True if they do not everywhere.
fn put_back(part: &Part, before: &[u8], received: usize, regions: &Regions) -> bool {
    // What is not registered may be anybody's by now.
    let Some(region) = regions.region(part.key) else { return false };
    faultable_copy::admit();
    let mut now = vec![0; part.length];
    if !is_within(&region, part) || faultable_copy::load(part.address, &mut now).is_err() {
        return false;
    }
    let mut dirty = false;
    for ((byte, word), before) in now.iter_mut().zip(words(part.length)).zip(before).skip(received) {
        if *byte == word {
            *byte = *before;
        } else {
            dirty = true;
        }
    }
    // SAFETY: as above; the region is held meanwhile. Nothing is done about a failure: the memory is gone.
    let _ = unsafe { faultable_copy::store(part.address + received as u64, now.get(received..).unwrap_or_default()) };
    dirty
}

/// Whether a range is part of the region's memory, which may be written to.
pub(super) fn is_within(region: &urxe_engine::Region, part: &Part) -> bool {
    let end = part.address.checked_add(part.length as u64);
    region.access.contains(Access::LOCAL_WRITE)
        && part.address >= region.host
        && end.is_some_and(|end| end <= region.host.saturating_add(region.length))
}
