//! Packets from one queue pair to another of the same process.
//!
//! They pass no socket and no ring, and nobody needs the receive token for them. The sender's turn puts them into the inbox of
//! their queue pair while it has the sender's lock, so they keep their order; when that lock is free, the same thread gives the
//! receiver its turns, and those whom the receiver answers theirs. Each turn of a queue pair begins with the first run of its inbox,
//! whichever thread gives it: so no packet waits for a certain thread, and none overtakes another.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};

use urxe_net::{InsideRun, RxBatch};
use urxe_wire::{Opcode, Qpn, Transport};

use super::{Inner, Qp};
use crate::clock::LazyInstant;
use crate::device::is_seen_by_its_first;
use crate::host::{Inside, Sender, Turn, TxContext};
use crate::lock;

/// Runs that a turn takes at most.
const RUNS: usize = 8;

/// Bytes that may wait in an inbox before packets of an unreliable service are lost there. A reliable one waits for ACKs.
const ROOM: usize = 2 << 20;

/// Packets that wait for their queue pair. Its lock is below the lock of any queue pair's engine.
#[derive(Debug, Default)]
pub(super) struct Inbox {
    runs: Mutex<Runs>,
    has_any: AtomicBool,
}

#[derive(Debug, Default)]
struct Runs {
    queue: VecDeque<InsideRun>,
    bytes: usize,
}

impl Inbox {
    /// Whether nothing waits. Who has put something in afterwards sees to the queue pair's turn.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        !self.has_any.load(Ordering::Acquire)
    }

    /// Puts a run in. False if it is lost: unreliable, and there is no room.
    fn put(&self, run: InsideRun) -> bool {
        let mut runs = lock(&self.runs);
        if runs.bytes >= ROOM && is_unreliable(&run) {
            return false;
        }
        runs.bytes += run.len();
        runs.queue.push_back(run);
        self.has_any.store(true, Ordering::Release);
        true
    }

    fn take(&self) -> Option<InsideRun> {
        let mut runs = lock(&self.runs);
        let run = runs.queue.pop_front();
        runs.bytes -= run.as_ref().map_or(0, InsideRun::len);
        self.has_any.store(!runs.queue.is_empty(), Ordering::Relaxed);
        run
    }
}

fn is_unreliable(run: &InsideRun) -> bool {
    let first = run.batch().datagrams().next().and_then(|datagram| Opcode::from_u8(*datagram.payload.first()?));
    first.is_some_and(|opcode| opcode.transport() == Transport::Uc)
}

impl Turn for Qp {
    fn qpn(&self) -> Qpn {
        self.qpn
    }

    fn turn(&self, work: &mut TxContext) {
        self.drive(work, |_, _| ());
    }
}

impl Qp {
    /// Gives the engine, which is locked, the first runs of the inbox, as long as it owes no more than one ACK for them: so a
    /// message of many packets has one. What else is owed is sent before the next run is looked at, as with packets of
    /// rings, so that a WRITE behind a READ that fails does nothing.
    ///
    /// What is reported until the [end](Self::end_inbox) of the turn belongs to these packets, though the turn may be part of the
    /// handling of another one.
    #[inline(never)]
    pub(super) fn take_inbox(&self, inner: &mut Inner, work: &mut TxContext, clock: &LazyInstant) {
        if let Some(interceptor) = self.device.interceptor() {
            interceptor.suspend();
        }
        for _ in 0..RUNS {
            let Some(run) = self.inbox.take() else { return };
            self.take_run(inner, work, clock, &run.batch());
            if inner.engine.has_output() && !inner.engine.owes_only_ack() {
                return;
            }
        }
    }

    /// Ends a turn that took packets of the inbox.
    pub(super) fn end_inbox(&self) {
        if let Some(interceptor) = self.device.interceptor() {
            interceptor.resume();
        }
    }

    fn take_run(&self, inner: &mut Inner, work: &mut TxContext, clock: &LazyInstant, batch: &RxBatch<'_>) {
        let Some(interceptor) = self.device.interceptor() else {
            self.receive_inside(inner, work, clock, batch);
            return;
        };
        if is_seen_by_its_first(batch) {
            batch.datagrams().take(1).for_each(|first| interceptor.received(&first, &|| true));
            self.receive_inside(inner, work, clock, batch);
        } else {
            for datagram in batch.datagrams() {
                interceptor.received(&datagram, &|| true);
                self.receive_inside(inner, work, clock, &RxBatch::from(datagram));
            }
        }
    }

    #[inline(never)]
    fn receive_inside(&self, inner: &mut Inner, work: &mut TxContext, clock: &LazyInstant, batch: &RxBatch<'_>) {
        self.receive_locked(inner, work, clock, batch);
    }

    /// Drops a run for a queue pair that does not exist.
    #[cold]
    fn drop_unknown(&self, run: &InsideRun) {
        self.device.count_unknown(run.packets());
        if let Some(interceptor) = self.device.interceptor() {
            let batch = run.batch();
            let shown = if is_seen_by_its_first(&batch) { 1 } else { usize::MAX };
            interceptor.suspend();
            batch.datagrams().take(shown).for_each(|datagram| interceptor.received(&datagram, &|| false));
            interceptor.resume();
        }
    }

    /// Puts what the turn has sent to queue pairs of this process into their inboxes. The queue pair is locked: nobody sends for
    /// it meanwhile.
    #[inline(never)]
    pub(super) fn hand_over(&self, sender: &mut Sender, inside: &mut Inside, neighbor: &mut Weak<Self>) {
        let Inside { due, traffic, .. } = inside;
        let Some(runs) = sender.inside() else { return };
        for run in runs {
            traffic.add(run.packets(), run.len());
            let to = run.dest_qpn();
            let known = neighbor.upgrade().filter(|qp| qp.qpn() == to && !qp.is_retired());
            // Packets of an XRC target come by the receive token.
            let takes_part = |qp: &Arc<Self>| qp.xrc_target().is_none();
            let Some(qp) = known.or_else(|| self.device.qp(to)).filter(takes_part) else {
                self.drop_unknown(&run);
                continue;
            };
            if !std::ptr::eq(Weak::as_ptr(neighbor), Arc::as_ptr(&qp)) {
                *neighbor = Arc::downgrade(&qp);
            }
            let packets = run.packets();
            if !qp.inbox.put(run) {
                self.device.net().counters().tx_no_buffer.fetch_add(packets.into(), Ordering::Relaxed);
                continue;
            }
            if let Err(qp) = due.add(qp) {
                self.device.finish_later(qp.qpn());
            }
        }
    }

    /// Whether packets of this process wait for the queue pair.
    pub(crate) fn has_inside(&self) -> bool {
        !self.inbox.is_empty()
    }

    /// The queue pair has more to send when what it has sent is taken.
    pub(super) fn go_on_soon(&self, work: &mut TxContext) {
        if let Some(qp) = self.device.qp(self.qpn)
            && let Err(qp) = work.inside.due.add(qp)
        {
            self.device.finish_later(qp.qpn());
        }
    }
}
