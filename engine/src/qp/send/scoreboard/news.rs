//! News of the peer: requests that have come, and answers.

use urxe_wire::{Bitmap, Psn};

use super::entry::{Answered, Timing};
use super::{Scoreboard, is_before};
use crate::qp::psn_bits::ones;
use crate::qp::send::reordering::Reordering;

impl Scoreboard {
    /// All requests before `psn` were carried out, by news that tell of those behind as well.
    pub(in crate::qp::send) fn carried_out(&mut self, psn: Psn, timing: &Timing, reordering: &mut Reordering) {
        self.carried_out_by(psn, timing, reordering, true);
    }

    /// All requests before `psn` were carried out, by an ACK, which tells nothing of those behind: that one which was sent again has come
    /// does not say that those sent before it have not.
    pub(in crate::qp::send) fn carried_out_by_ack(&mut self, psn: Psn, timing: &Timing, reordering: &mut Reordering) {
        self.carried_out_by(psn, timing, reordering, false);
    }

    fn carried_out_by(&mut self, psn: Psn, timing: &Timing, reordering: &mut Reordering, tells_all: bool) {
        let ahead = psn.distance_from(self.cumulative).max(0).unsigned_abs();
        let at = self.cumulative.advance_from(self.snd_una) as usize;
        let mut news = self.entries.iter().skip(at).take(ahead as usize);
        let with_others = news.any(|entry| entry.again.is_none() && entry.awaits_request());
        let mut rest = ahead;
        while rest > 0 {
            // Where no response waits for another request, those that selective acknowledgements told of are passed by.
            let is_told = self.waiting == 0 && self.is_told_by_bits();
            let told = if is_told { self.come.run(self.cumulative).min(rest) } else { 0 };
            if told == 0 {
                self.note_request(self.cumulative, timing, reordering, with_others, tells_all);
                if let Some(entry) = self.entries.get_mut(self.cumulative.advance_from(self.snd_una) as usize) {
                    self.waiting -= u32::from(core::mem::take(&mut entry.waits));
                }
            }
            let passed = told.max(1);
            self.cumulative = self.cumulative.add(passed);
            rest -= passed;
        }
    }

    /// An acknowledgement of `psn` left behind all responses asked for before it.
    pub(in crate::qp::send) fn responded(&mut self, psn: Psn) {
        let at = psn.advance_from(self.snd_una) as usize;
        if let Some(entry) = self.entries.get_mut(at).filter(|entry| entry.again.is_none()) {
            let number = entry.number;
            self.responses.came(psn, number);
            self.answer_came(number);
        }
    }

    /// The responder keeps those requests of `bitmap`, which are behind `missing`. Returns whether any is news.
    pub(in crate::qp::send) fn requests_kept(
        &mut self,
        missing: Psn,
        bitmap: Bitmap<'_>,
        timing: &Timing,
        reordering: &mut Reordering,
    ) -> bool {
        let mut is_news = false;
        for (word, nth) in bitmap.words().zip(0..) {
            let first = missing.add(1 + 32 * nth);
            // Each acknowledgement tells everything anew.
            let known = if self.is_told_by_bits() { self.come.word(first) } else { 0 };
            for bit in ones(word & !known) {
                is_news |= self.request_kept(first.add(bit), timing, reordering);
            }
        }
        is_news
    }

    /// The responder keeps the request at `psn`, which is behind a missing one. Returns whether that is news.
    fn request_kept(&mut self, psn: Psn, timing: &Timing, reordering: &mut Reordering) -> bool {
        let is_news = self.request_arrived(psn, timing, reordering);
        let at = psn.advance_from(self.snd_una) as usize;
        let is_read = self.entries.get(at).is_some_and(|entry| entry.answered == Answered::First);
        if is_news && is_read && !self.is_carried_out(psn) {
            let behind =
                self.entries.iter().skip(at + 1).take_while(|entry| entry.answered == Answered::Behind).count();
            for entry in self.entries.iter_mut().skip(at).take(1 + behind) {
                let waits = !entry.delivered && !entry.lost && !entry.waits;
                entry.waits |= waits;
                self.waiting += u32::from(waits);
            }
        }
        is_news
    }

    /// The responder has the request at `psn`. Returns whether that is news.
    pub(in crate::qp::send) fn request_arrived(
        &mut self,
        psn: Psn,
        timing: &Timing,
        reordering: &mut Reordering,
    ) -> bool {
        self.note_request(psn, timing, reordering, false, true)
    }

    fn note_request(
        &mut self,
        psn: Psn,
        timing: &Timing,
        reordering: &mut Reordering,
        with_others: bool,
        tells_all: bool,
    ) -> bool {
        let at = psn.advance_from(self.snd_una) as usize;
        let Some(entry) = self.entries.get_mut(at) else { return false };
        let is_first = entry.again.is_none() && entry.awaits_request();
        let path = entry.path;
        if let Some(arrived) = self.arrived_by.get_mut(usize::from(path)).filter(|_| is_first) {
            *arrived += 1;
            reordering.hear_of(path);
        }
        match entry.answered {
            Answered::No if !entry.delivered => {
                let is_original = entry.is_original(timing, reordering, with_others);
                let (number, again, resent) = (entry.number, entry.again, entry.resent);
                // A probe leaves when nothing is heard: if others had come, too, they would be told of.
                let tells = tells_all || !resent || entry.probed;
                self.deliver(at);
                self.come.set(psn, true);
                if is_original == again.is_none() && tells {
                    self.request_came(psn, number, path, resent);
                }
                true
            }
            Answered::First if !entry.requested => {
                entry.requested = true;
                let (number, again, resent) = (entry.number, entry.again, entry.resent);
                self.come.set(psn, true);
                // What answers it may have been queued behind other responses, so no other is lost because one that was
                // asked for again has come.
                if again.is_none() {
                    self.request_came(psn, number, path, resent);
                }
                true
            }
            _ => false,
        }
    }

    /// The response at `psn` is here. Returns whether that is news.
    pub(in crate::qp::send) fn response_arrived(
        &mut self,
        psn: Psn,
        timing: &Timing,
        reordering: &mut Reordering,
    ) -> bool {
        let at = psn.advance_from(self.snd_una) as usize;
        let Some(entry) = self.entries.get_mut(at).filter(|entry| !entry.delivered) else { return false };
        let is_original = entry.is_original(timing, reordering, false);
        let (number, responded) = (entry.number, is_original == entry.again.is_none());
        self.has_news = true;
        if responded {
            self.responses.came(psn, number);
            self.answer_came(number);
        }
        self.deliver(at);
        true
    }

    /// Notes an answer to the packet of this number.
    const fn answer_came(&mut self, number: u32) {
        self.has_news = true;
        if is_before(self.answered, number.wrapping_add(1)) {
            self.answered = number.wrapping_add(1);
        }
    }

    /// The request of this number arrived on a path, perhaps `resent`: those of lower numbers are overtaken.
    fn request_came(&mut self, psn: Psn, number: u32, path: u8, resent: bool) {
        let behind = number.wrapping_add(1);
        // Of one that was sent twice nobody knows which has come. The first took another path, and may be late by as much as paths
        // differ: it tells nothing of this one.
        if !resent
            && let Some(newest) = self.newest_on.get_mut(usize::from(path)).filter(|newest| is_before(**newest, behind))
        {
            *newest = behind;
            self.has_news = true;
        }
        if is_before(self.newest, behind) {
            self.newest = behind;
            self.has_news = true;
            // What is behind one that was sent once was sent behind it.
            self.newest_end = if resent { self.end() } else { psn.next() };
        }
    }
}
