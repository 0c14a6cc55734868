//! The scoreboard: knowledge of each packet in flight while some are missing or out of order.
//!
//! There is one only then: while packets arrive in order, three PSNs say all ([`super::reliable`]).
//!
//! Packets are numbered in the order in which they were sent, those that were sent again anew. One is *overtaken* when a
//! packet of a higher number has arrived, and lost when it is so for longer than the [reordering window](super::reordering),
//! which is longer where only packets of other [paths](super::paths) have overtaken it.
//! READ responses and results of atomics are watched likewise. They leave in the order of their PSNs, and when they are asked
//! for again, in the order of that: one is overtaken by those that are behind it in both. A responder that has carried out a
//! request keeps no duplicate of it back: what is asked for again of that is overtaken by every response, or acknowledgement,
//! to what was sent later.
//!
//! `news` takes what arrives, `entry` has the knowledge of one PSN, `responses` which responses have come, and `losses` finds what is
//! lost.

mod entry;
mod losses;
mod news;
mod responses;

use alloc::collections::VecDeque;

use urxe_wire::Psn;

use super::paths::ByPath;
use super::wqe::Span;
use crate::qp::psn_bits::PsnBits;
use crate::time::Instant;
use entry::Entry;
pub(super) use entry::{Answered, Timing};
use responses::Responses;

/// Knowledge of the packets in flight, oldest first.
#[derive(Debug, Default)]
pub(super) struct Scoreboard {
    /// The oldest PSN that is not acknowledged.
    snd_una: Psn,
    /// PSNs from there on.
    entries: VecDeque<Entry>,
    /// PSNs whose requests have come, or that have none.
    come: PsnBits,
    /// PSNs delivered, so that the others are found without a look at these.
    here: PsnBits,
    /// PSN before which none is lost.
    lost_from: Psn,
    /// The number of the packet that is sent next.
    next: u32,
    /// PSNs delivered, lost, sent again without news, and of responses that wait for a request before theirs.
    delivered: u32,
    lost: u32,
    again: u32,
    waiting: u32,
    /// All requests before this PSN were carried out.
    cumulative: Psn,
    /// The number behind the youngest request that arrived, and that was answered.
    newest: u32,
    answered: u32,
    /// The PSN behind all that were sent before the youngest request that arrived.
    newest_end: Psn,
    /// Responses that have come.
    responses: Responses,
    /// The PSN behind all whose requests were carried out and whose responses are asked for again.
    repeated_end: Psn,
    /// `newest`, of each path.
    newest_on: ByPath,
    /// When the first of those that are overtaken, and not lost yet, will be.
    due: Option<Instant>,
    /// Set by news since [`find_lost`](Self::find_lost).
    has_news: bool,
    /// A READ or atomic that the peer may not have was sent again, and nothing new behind it.
    wants_pilot: bool,
    /// Requests that arrived or were lost on each path, since somebody asked.
    arrived_by: ByPath,
    lost_by: ByPath,
}

impl Scoreboard {
    /// Begins anew, when the first packet is missing: packets before `snd_max` were sent in order, and those from `snd_nxt` on
    /// are to be sent again. `reads` are answered by responses. Its room stays.
    pub(super) fn begin(
        &mut self,
        snd_una: Psn,
        snd_nxt: Psn,
        snd_max: Psn,
        reads: &VecDeque<Span>,
        path: impl Fn(Psn) -> u8,
    ) {
        let mut entries = core::mem::take(&mut self.entries);
        entries.clear();
        // Until the first is acknowledged, about as many more are sent.
        entries.reserve(2 * snd_max.advance_from(snd_una) as usize + 1);
        let cumulative = snd_una;
        *self = Self { snd_una, cumulative, newest_end: snd_una, repeated_end: snd_una, entries, ..Self::default() };
        let mut reads = reads.iter().peekable();
        for behind in 0..snd_max.advance_from(snd_una) {
            let psn = snd_una.add(behind);
            while reads.next_if(|chunk| chunk.last.distance_from(psn) < 0).is_some() {}
            let answered = match reads.peek().filter(|chunk| chunk.contains(psn)) {
                None => Answered::No,
                Some(chunk) if chunk.first == psn => Answered::First,
                Some(_) => Answered::Behind,
            };
            self.push(answered, path(psn));
        }
        let unsent = snd_nxt.advance_from(snd_una) as usize;
        (unsent..self.entries.len()).for_each(|at| self.lose(at));
    }

    /// Bytes that it takes.
    pub(super) fn size(&self) -> usize {
        size_of::<Self>() + self.entries.capacity() * size_of::<Entry>()
    }

    fn push(&mut self, answered: Answered, path: u8) {
        if answered == Answered::Behind {
            self.come.set(self.end(), true);
        }
        self.entries.push_back(Entry { number: self.next, answered, path, ..Entry::default() });
        self.next = self.next.wrapping_add(1);
    }

    /// Notes that a packet was sent on `path` whose PSNs are the next `psns`.
    pub(super) fn sent(&mut self, psns: u32, is_answered: bool, path: u8) {
        self.wants_pilot = false;
        if !is_answered {
            return self.push(Answered::No, path);
        }
        self.push(Answered::First, path);
        (1..psns).for_each(|_| self.push(Answered::Behind, path));
    }

    /// PSNs on their way.
    pub(super) fn in_flight(&self) -> u32 {
        self.awaited() - self.waiting
    }

    /// PSNs on their way, or of responses that wait for a request before theirs.
    pub(super) fn awaited(&self) -> u32 {
        u32::try_from(self.entries.len()).unwrap_or(u32::MAX) - self.delivered - self.lost
    }

    /// PSNs that are not acknowledged.
    pub(super) fn outstanding(&self) -> usize {
        self.entries.len()
    }

    /// Whether another request should leave, though there are enough in flight (limited transmit, RFC 3042). What the peer
    /// has behind a missing READ it does not answer before that: if the READ is lost once more, nothing else would tell.
    pub(super) const fn wants_pilot(&self) -> bool {
        self.wants_pilot
    }

    /// PSNs to be sent again.
    pub(super) const fn lost(&self) -> u32 {
        self.lost
    }

    /// Whether three PSNs say all again: nothing behind the oldest PSN has arrived, none is lost, and none was overtaken by what was
    /// sent again. News of arrivals alone keep no scoreboard: while packets stream, there always are some. If `counts_arrivals`, they do.
    pub(super) fn is_over(&self, counts_arrivals: bool) -> bool {
        let is_idle = self.delivered == 0 && self.lost == 0 && self.again == 0;
        self.entries.is_empty() || (is_idle && !(counts_arrivals && self.has_news) && !self.is_any_overtaken())
    }

    /// Returns the knowledge of a PSN that is not acknowledged.
    pub(super) fn get(&self, psn: Psn) -> Option<&Entry> {
        self.entries.get(psn.advance_from(self.snd_una) as usize)
    }

    /// Whether all PSNs of `span` are delivered or acknowledged.
    pub(super) fn is_delivered(&self, span: &Span) -> bool {
        let first = if span.first.distance_from(self.snd_una) < 0 { self.snd_una } else { span.first };
        let count = span.last.next().distance_from(first).max(0).unsigned_abs();
        if self.is_told_by_bits() {
            return self.here.run(first) >= count;
        }
        let entries = self.entries.iter().skip(first.advance_from(self.snd_una) as usize);
        entries.take(count as usize).all(|entry| entry.delivered)
    }

    /// The PSN behind all that were sent.
    fn end(&self) -> Psn {
        self.snd_una.add(u32::try_from(self.entries.len()).unwrap_or(u32::MAX))
    }

    /// Whether no two PSNs share a bit.
    fn is_told_by_bits(&self) -> bool {
        self.entries.len() <= PsnBits::PSNS
    }

    fn deliver(&mut self, at: usize) {
        let Some(entry) = self.entries.get_mut(at) else { return };
        self.lost -= u32::from(entry.lost);
        self.again -= u32::from(entry.again.take().is_some());
        self.waiting -= u32::from(core::mem::take(&mut entry.waits));
        entry.lost = false;
        entry.overtaken = None;
        entry.delivered = true;
        self.delivered += 1;
        self.here.set(self.snd_una.add(u32::try_from(at).unwrap_or(u32::MAX)), true);
    }

    /// Oldest PSNs that are acknowledged now: their requests were carried out, and their responses are here.
    pub(super) fn acknowledged(&self) -> u32 {
        let requests = self.cumulative.distance_from(self.snd_una).max(0).unsigned_abs() as usize;
        u32::try_from(self.entries.iter().take(requests).take_while(|entry| entry.delivered).count()).unwrap_or(0)
    }

    /// Forgets the oldest `count` PSNs, which are acknowledged.
    pub(super) fn forget(&mut self, count: u32) {
        let count = count.min(u32::try_from(self.entries.len()).unwrap_or(u32::MAX));
        for entry in self.entries.drain(..count as usize) {
            self.delivered -= u32::from(entry.delivered);
            self.lost -= u32::from(entry.lost);
            self.again -= u32::from(entry.again.is_some());
            self.waiting -= u32::from(entry.waits);
        }
        self.come.clear(self.snd_una, count);
        self.here.clear(self.snd_una, count);
        self.snd_una = self.snd_una.add(count);
        self.responses.forget_before(self.snd_una);
        if self.cumulative.distance_from(self.snd_una) < 0 {
            self.cumulative = self.snd_una;
        }
    }

    /// Whether the request at `psn` is known to be carried out.
    pub(super) fn is_carried_out(&self, psn: Psn) -> bool {
        psn.distance_from(self.cumulative) < 0
    }

    /// Forgets that a request arrived: its responder says that it does not have it. What was carried out stays so: the
    /// responder said this before.
    pub(super) fn undeliver(&mut self, psn: Psn) {
        if self.is_carried_out(psn) {
            return;
        }
        let at = psn.advance_from(self.snd_una) as usize;
        let Some(entry) = self.entries.get_mut(at) else { return };
        entry.requested = false;
        self.come.set(psn, false);
        if entry.delivered && entry.answered == Answered::No {
            entry.delivered = false;
            self.delivered -= 1;
            self.here.set(psn, false);
            // It may be overtaken already.
            self.has_news = true;
        }
    }

    /// The path of the packet that was sent last for a PSN.
    pub(super) fn path(&self, psn: Psn) -> u8 {
        self.get(psn).map_or(0, |entry| entry.path)
    }
}

/// Whether a packet was sent before another one.
const fn is_before(number: u32, other: u32) -> bool {
    number.wrapping_sub(other).cast_signed() < 0
}

#[cfg(test)]
mod tests;
