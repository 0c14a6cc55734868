//! Which packets are lost, and which of them are sent again next.

use urxe_wire::Psn;

use super::entry::{Answered, Entry, Overtaken, Timing};
use super::{Scoreboard, is_before};
use crate::qp::psn_bits::{PsnBits, ones};
use crate::qp::send::paths::ByPath;
use crate::qp::send::reordering::Reordering;
use crate::time::Instant;

impl Scoreboard {
    /// Whether there is news for [`find_lost`](Self::find_lost).
    pub(in crate::qp::send) const fn has_news(&self) -> bool {
        self.has_news
    }

    /// Has [`find_lost`](Self::find_lost) look again, if it is time.
    pub(in crate::qp::send) fn handle_timeout(&mut self, now: Instant) {
        self.has_news |= self.deadline().is_some_and(|at| at <= now);
    }

    /// Time at which [`find_lost`](Self::find_lost) is to look again, if it does not with the next packet that may leave.
    pub(in crate::qp::send) fn deadline(&self) -> Option<Instant> {
        self.due.filter(|_| !self.has_news)
    }

    /// Finds packets that are overtaken for too long: these are lost. Returns how many packets.
    pub(in crate::qp::send) fn find_lost(&mut self, timing: &Timing, reordering: &mut Reordering) -> u32 {
        let mut packets = 0;
        self.has_news = false;
        self.due = None;
        let suspects = self.suspects();
        for nth in 0..suspects.div_ceil(32) {
            for bit in ones(self.missing(nth, suspects)) {
                packets += self.judge((32 * nth + bit) as usize, timing, reordering);
            }
        }
        // Where packets take several paths, many together may be one that was slow.
        let losses = if reordering.takes_several() { packets.min(1) } else { packets };
        (0..losses).for_each(|_| reordering.lost());
        packets
    }

    /// Number of the oldest PSNs, behind which nothing is overtaken.
    fn suspects(&self) -> u32 {
        let answered = self.responses.last().unwrap_or(self.snd_una);
        let ends = [self.newest_end, self.repeated_end, answered];
        let most = ends.into_iter().map(|end| end.distance_from(self.snd_una)).max().unwrap_or(0);
        most.max(0).unsigned_abs().min(u32::try_from(self.entries.len()).unwrap_or(u32::MAX))
    }

    /// Bits of the `nth` 32 of the oldest `count` PSNs: those that are not delivered.
    fn missing(&self, nth: u32, count: u32) -> u32 {
        let rest = count - 32 * nth;
        if self.is_told_by_bits() {
            self.here.clear_word(self.snd_una.add(32 * nth), rest)
        } else {
            PsnBits::first(rest)
        }
    }

    /// Count of numbers between the packet at `at` and one that overtook it.
    fn overtaking(&self, at: usize) -> i32 {
        let Some(entry) = self.entries.get(at) else { return 0 };
        let responded = self.responses.behind(self.snd_una.add(u32::try_from(at).unwrap_or(u32::MAX)));
        entry.overtaking(self.newest, self.answered, responded)
    }

    /// Whether what some PSN waits for is overtaken.
    pub(super) fn is_any_overtaken(&self) -> bool {
        let suspects = self.suspects();
        (0..suspects.div_ceil(32))
            .any(|nth| ones(self.missing(nth, suspects)).any(|bit| self.overtaking((32 * nth + bit) as usize) > 0))
    }

    /// Finds out whether what a PSN waits for is overtaken, and lost. Returns how many packets are.
    #[inline]
    fn judge(&mut self, at: usize, timing: &Timing, reordering: &Reordering) -> u32 {
        let overtaking = self.overtaking(at);
        let Some(entry) = self.entries.get_mut(at) else { return 0 };
        if overtaking <= 0 {
            // One that seems lost, and comes before it is sent again, was late.
            if !entry.lost {
                entry.overtaken = None;
            }
            return 0;
        }
        let newest = self.newest_on.get(usize::from(entry.path)).copied().unwrap_or_default();
        // Nobody knows which of several paths a response takes.
        let on_path =
            !reordering.takes_several() || (entry.awaits_request() && is_before(entry.number.wrapping_add(1), newest));
        let known = entry.overtaken.filter(|known| known.on_path == on_path);
        let Overtaken { since, .. } =
            *entry.overtaken.insert(known.unwrap_or(Overtaken { since: timing.now, on_path }));
        let window = if on_path {
            reordering.window(timing.round_trip)
        } else {
            reordering.window_across(timing.round_trip, entry.path)
        };
        if timing.now.since(since).as_nanos() < u128::from(window) && !reordering.is_lost_at_once(overtaking) {
            let at = Instant::from_nanos(since.as_nanos().saturating_add(window));
            self.due = Some(self.due.map_or(at, |due| due.min(at)));
            return 0;
        }
        if let Some(lost) = self.lost_by.get_mut(usize::from(entry.path)).filter(|_| entry.awaits_request()) {
            *lost += 1;
        }
        // All responses to a request that is lost are asked for again, but one packet was lost.
        if entry.awaits_request() {
            self.lose_request(at);
        } else {
            self.lose(at);
        }
        1
    }

    /// Requests that arrived and that were lost on each path since the last call.
    pub(in crate::qp::send) fn take_paths(&mut self) -> (ByPath, ByPath) {
        (core::mem::take(&mut self.arrived_by), core::mem::take(&mut self.lost_by))
    }

    /// Has the oldest PSN be sent again, whatever is known of it.
    pub(in crate::qp::send) fn lose_front(&mut self) {
        self.undeliver(self.snd_una);
        if let Some(front) = self.entries.front().filter(|front| front.awaits_request())
            && let Some(lost) = self.lost_by.get_mut(usize::from(front.path))
        {
            *lost += 1;
        }
        self.lose_request(0);
        if let Some(front) = self.entries.front_mut() {
            front.probed = true;
        }
    }

    /// Has a request be sent again, with all responses of its that are not here.
    pub(in crate::qp::send) fn lose_request(&mut self, at: usize) {
        let behind = self.entries.iter().skip(at + 1).take_while(|entry| entry.answered == Answered::Behind).count();
        (at..=at + behind).for_each(|at| self.lose(at));
    }

    pub(super) fn lose(&mut self, at: usize) {
        let Some(entry) = self.entries.get_mut(at).filter(|entry| !entry.lost && !entry.delivered) else { return };
        entry.lost = true;
        entry.probed = false;
        let psn = self.snd_una.add(u32::try_from(at).unwrap_or(u32::MAX));
        if self.lost == 0 || psn.distance_from(self.lost_from) < 0 {
            self.lost_from = psn;
        }
        self.lost += 1;
        self.again -= u32::from(entry.again.take().is_some());
        self.waiting -= u32::from(core::mem::take(&mut entry.waits));
    }

    /// The oldest PSNs to be sent again in one packet: one, or those of a READ that are next to one another.
    pub(in crate::qp::send) fn next_lost(&mut self) -> Option<(Psn, u32)> {
        if self.lost == 0 {
            return None;
        }
        // Those before `snd_una` are forgotten.
        let from = self.lost_from.distance_from(self.snd_una).max(0).unsigned_abs() as usize;
        let at = from + self.entries.iter().skip(from).position(|entry| entry.lost)?;
        self.lost_from = self.snd_una.add(u32::try_from(at).unwrap_or(0));
        let run = self.entries.iter().skip(at + 1).take_while(|entry| entry.lost && entry.answered == Answered::Behind);
        let is_answered = self.entries.get(at).is_some_and(|entry| entry.answered != Answered::No);
        let psns = if is_answered { 1 + u32::try_from(run.count()).unwrap_or(0) } else { 1 };
        Some((self.lost_from, psns))
    }

    /// Notes that the `psns` from `psn` on were sent again in one packet, on `path`.
    pub(in crate::qp::send) fn sent_again(&mut self, psn: Psn, psns: u32, now: Instant, path: u8) {
        let at = psn.advance_from(self.snd_una) as usize;
        let is_answered = self.entries.get(at).is_some_and(|entry| entry.answered != Answered::No);
        let repeated = is_answered && self.is_carried_out(psn);
        self.wants_pilot |= is_answered && !repeated;
        for entry in self.entries.iter_mut().skip(at).take(psns as usize).filter(|entry| entry.lost) {
            let (number, again) = (self.next, Some(now));
            *entry = Entry { lost: false, overtaken: None, again, resent: true, number, repeated, path, ..*entry };
            self.next = self.next.wrapping_add(1);
            self.lost -= 1;
            self.again += 1;
        }
        let end = psn.add(psns);
        if repeated && end.distance_from(self.repeated_end) > 0 {
            self.repeated_end = end;
        }
    }
}
