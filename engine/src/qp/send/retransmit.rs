//! Acknowledgements, timers, and going back: the part of the requester that deals with what was sent (IBA 9.7.6, 9.7.7).

use core::time::Duration;

use urxe_wire::Psn;

use super::ack_timer::AckTimer;
use super::reliable::Reliable;
use super::wqe::{SendWqe, complete, succeed};
use crate::congestion::Acknowledged;
use crate::cq::WcStatus;
use crate::event::{Event, RetryReason};
use crate::host::{Consumer, Host, Io};
use crate::memory::Memory;
use crate::qp::QpConfig;
use crate::qp::attr::QpAttr;
use crate::time::{Clock, Instant};
use crate::work::SendOp;

/// An rnr_retry without end.
const FOR_EVER: u8 = 7;

impl Reliable {
    /// Starts timers: what was sent has left now.
    pub(in crate::qp) fn start_timers(&mut self, attr: &QpAttr, clock: &impl Clock) {
        // The wait for a receiver that is not ready has a time of its own.
        if self.rnr_deadline.is_some() || !core::mem::take(&mut self.untimed) {
            return;
        }
        let now = clock.now();
        self.probe.left(now);
        if self.ack_deadline.is_none() && self.snd_una != self.snd_max {
            self.ack_deadline = self.ack_timer.timeout(attr, self.timeouts).map(|timeout| now + timeout);
            self.start_probe(attr, now);
        }
    }

    /// Takes all before `snd_una` for acknowledged: WQEs complete, the window opens, the timer starts anew.
    /// The caller has seen that `snd_una` is not before the present one nor behind `snd_max`.
    //= spec/completer.md#cmp-002
    //# An acknowledgement MUST complete every request up to its PSN.
    pub(in crate::qp) fn acknowledged_before<H: Host>(
        &mut self,
        config: &QpConfig<H>,
        attr: &QpAttr,
        io: &mut Io<'_, H>,
        snd_una: Psn,
    ) {
        let count = snd_una.advance_from(self.snd_una);
        if count == 0 {
            return;
        }
        self.snd_una = snd_una;
        self.selective.rest(snd_una);
        self.retire_acknowledged(config, io);
        while self.reads.front().is_some_and(|chunk| chunk.last.distance_from(snd_una) < 0) {
            self.reads.pop_front();
            self.resumed_at = None;
        }
        if self.snd_nxt.distance_from(snd_una) < 0 {
            // What was about to be sent again has arrived after all.
            self.rewind();
        }
        let (answers_probe, round_trip) = self.probe.acknowledged(count, snd_una, io.clock);
        self.congestion.on_acknowledged(Acknowledged { count, snd_una, snd_max: self.snd_max, round_trip });
        if answers_probe && snd_una != self.snd_max {
            if count > 1 && self.reads.is_empty() {
                // More than the probe was taken, so that nothing was lost there: the peer was slow, or an ACK was lost.
                // What else is in flight still is.
                self.skip_to_snd_max();
            } else {
                // The probe was answered, and nothing behind it: that is lost.
                self.probe.lost();
                self.congestion.on_loss(self.snd_max);
            }
        }
        self.retries_left = attr.retry_cnt;
        self.rnr_retries_left = attr.rnr_retry;
        self.timeouts = 0;
        self.implied_nak_at = None;
        self.rnr_deadline = None;
        self.restart_timer(attr, io.clock);
    }

    /// The peer has receive WQEs for `wqes` messages beyond those before `snd_una`. If any, there is no need to wait
    /// for the end of an RNR timer; but for an answer to what is outstanding, if the window lets nothing more out.
    pub(in crate::qp) fn credits(&mut self, wqes: Option<u32>) {
        // A SEND acknowledged in part has its WQE already.
        let partial = self.queue.front().is_some_and(|wqe| {
            wqe.sent.is_some_and(|span| span.first != self.snd_una && span.contains(self.snd_una))
                && wqe.wr.op.is_send()
        });
        self.credit.promise(wqes, partial);
        if wqes.is_some_and(|wqes| wqes > 0) && self.rnr_deadline.is_some() {
            self.end_rnr_wait();
        }
    }

    /// Ends the wait for a receiver that was not ready, and has the ACK timeout begin anew. News of other packets may have started it
    /// during the wait, and a window that lets nothing out leaves no packet to start it.
    fn end_rnr_wait(&mut self) {
        self.rnr_deadline = None;
        self.ack_deadline = None;
        self.untimed = true;
    }

    /// Whether the requester has gone back, and sent nothing since.
    pub(super) fn is_back(&self) -> bool {
        self.snd_una != self.snd_max && self.snd_nxt == self.snd_una
    }

    /// Goes back to `snd_una` to send everything again, for a reason that counts as a try. News of the same loss
    /// before anything was sent again, such as a duplicate of a NAK, do not count.
    ///
    /// # Errors
    /// The status of the oldest WQE when no tries are left.
    pub(in crate::qp) fn retry<H: Host>(
        &mut self,
        config: &QpConfig<H>,
        attr: &QpAttr,
        io: &mut Io<'_, H>,
        reason: RetryReason,
    ) -> Result<(), WcStatus> {
        //= spec/requester.md#req-014
        //# Duplicates of a NAK, before anything was sent again, MUST count as one try.
        if reason != RetryReason::AckTimeout && self.is_back() {
            return Ok(());
        }
        //= spec/requester.md#req-010
        //# When retry_cnt tries in a row brought nothing, the oldest request MUST fail with IBV_WC_RETRY_EXC_ERR.
        let is_timeout = reason == RetryReason::AckTimeout;
        if is_timeout {
            self.timeouts = self.timeouts.saturating_add(1);
            if self.ack_timer.gives_up(attr, self.timeouts) {
                return Err(WcStatus::RetryExceededError);
            }
        }
        let left = match self.retries_left.checked_sub(1) {
            Some(left) => left,
            None if is_timeout && self.ack_timer.ignores_no_retries(attr) => 0,
            None => return Err(WcStatus::RetryExceededError),
        };
        self.retries_left = left;
        match reason {
            RetryReason::AckTimeout => {
                self.congestion.on_timeout();
                self.selective.use_all_paths(io.clock);
            }
            RetryReason::SequenceNak | RetryReason::ImpliedNak => {
                self.probe.lost();
                self.congestion.on_loss(self.snd_max);
            }
            RetryReason::Rnr | RetryReason::TailLossProbe | RetryReason::PathMigration => {}
        }
        self.go_back(config, io, reason, Some(left));
        self.restart_timer(attr, io.clock);
        Ok(())
    }

    /// Packets take another path now: everything unacknowledged is sent again there, with all tries.
    pub(in crate::qp) fn path_changed<H: Host>(&mut self, config: &QpConfig<H>, attr: &QpAttr, io: &mut Io<'_, H>) {
        self.attributes_changed(attr);
        self.implied_nak_at = None;
        self.selective.use_all_paths(io.clock);
        if self.snd_una != self.snd_max && self.rnr_deadline.is_none() {
            self.go_back(config, io, RetryReason::PathMigration, None);
            self.restart_timer(attr, io.clock);
        }
    }

    /// Whether the next RNR NAK is one too many.
    pub(super) const fn is_out_of_rnr_retries(&self, attr: &QpAttr) -> bool {
        attr.rnr_retry != FOR_EVER && self.rnr_retries_left == 0 && self.rnr_deadline.is_none()
    }

    /// Waits for `delay`, then sends everything from `snd_una` on again.
    ///
    /// # Errors
    /// The status of the oldest WQE when no tries are left.
    pub(in crate::qp) fn wait_for_receiver<H: Host>(
        &mut self,
        config: &QpConfig<H>,
        attr: &QpAttr,
        io: &mut Io<'_, H>,
        delay: Duration,
    ) -> Result<(), WcStatus> {
        if self.rnr_deadline.is_some() {
            // Nothing was sent since the last one: it refuses the same packets once more.
            return Ok(());
        }
        //= spec/requester.md#req-013
        //# An rnr_retry of 7 MUST be without end; fewer MUST be counted and end in IBV_WC_RNR_RETRY_EXC_ERR.
        let left = if attr.rnr_retry == FOR_EVER {
            None
        } else {
            let left = self.rnr_retries_left.checked_sub(1).ok_or(WcStatus::RnrRetryExceededError)?;
            self.rnr_retries_left = left;
            Some(left)
        };
        //= spec/requester.md#req-021
        //# An RNR NAK MUST give the tries of retry_cnt back: the responder is there, and got what it refuses.
        self.retries_left = attr.retry_cnt;
        self.timeouts = 0;
        if self.selective.is_on() {
            io.consumer.trace(config.qpn, Event::Retry { reason: RetryReason::Rnr, psn: self.snd_una, left });
            self.lose_refused();
        } else {
            self.go_back(config, io, RetryReason::Rnr, left);
        }
        //= spec/requester.md#req-012
        //# After an RNR NAK the requester MUST wait as long as it says before it sends the request again.
        self.rnr_deadline = Some(io.now() + delay);
        self.ack_deadline = None;
        Ok(())
    }

    /// Handles the deadlines that have passed.
    ///
    /// # Errors
    /// The status of the oldest WQE when no tries are left.
    pub(in crate::qp) fn handle_timeout<H: Host>(
        &mut self,
        config: &QpConfig<H>,
        attr: &QpAttr,
        io: &mut Io<'_, H>,
    ) -> Result<(), WcStatus> {
        let now = io.now();
        let held_back = self.is_held_back();
        self.paced_until = self.paced_until.filter(|at| *at > now);
        if let Some(deadline) = self.rnr_deadline {
            if deadline <= now {
                self.end_rnr_wait();
            }
            return Ok(());
        }
        if held_back {
            if self.paced_until.is_none() {
                // It leaves now; the time for an answer begins.
                self.restart_timer(attr, io.clock);
            }
            return Ok(());
        }
        self.handle_selective_timeout(now);
        if self.ack_deadline.is_some_and(|deadline| deadline > now)
            && self.probe.deadline().is_some_and(|deadline| deadline <= now)
        {
            //= spec/requester.md#req-022
            //# When nothing has come back for several round trips, the oldest packet MAY be sent again before the ACK
            //# timeout; that MUST NOT count as a try.
            if self.selective.is_on() {
                self.probe_selectively(config, io, now);
            } else {
                self.go_back(config, io, RetryReason::TailLossProbe, None);
                self.probe.probe(now);
            }
            if self.ack_timer != AckTimer::Specified {
                self.start_probe(attr, now);
            }
            return Ok(());
        }
        if self.ack_deadline.is_some_and(|deadline| deadline <= now) {
            self.ack_deadline = None;
            self.implied_nak_at = None;
            self.retry(config, attr, io, RetryReason::AckTimeout)?;
        }
        Ok(())
    }

    /// Completes the oldest WQE with an error.
    pub(in crate::qp) fn fail_front<H: Host>(&mut self, config: &QpConfig<H>, io: &mut Io<'_, H>, status: WcStatus) {
        if let Some(wqe) = self.queue.front() {
            complete(config, io, wqe, status);
            self.queue.pop();
        }
    }

    /// Completes all WQEs as flushed and forgets what was in flight.
    //= spec/requester.md#req-009
    //# After a request has failed, those behind it MUST be flushed in order and MUST NOT be executed.
    pub(in crate::qp) fn flush<H: Host>(&mut self, config: &QpConfig<H>, io: &mut Io<'_, H>) {
        self.undo_binds(config, io);
        while let Some(wqe) = self.queue.front() {
            complete(config, io, wqe, WcStatus::WrFlushError);
            self.queue.pop();
        }
        self.seg_wqe = 0;
        self.snd_nxt = self.snd_max;
        self.reads.clear();
        self.resumed_at = None;
        self.snd_una = self.snd_max;
        self.ack_deadline = None;
        self.rnr_deadline = None;
        self.paced_until = None;
        self.probe.gone_back();
        self.selective.forget();
    }

    /// Closes the windows that were bound by requests which will not complete with success: a request behind one that
    /// fails may have been carried out already.
    //= spec/memory.md#mem-013
    //# A window whose bind does not complete with success MUST be closed before that is told.
    pub(in crate::qp) fn undo_binds<H: Host>(&self, config: &QpConfig<H>, io: &Io<'_, H>) {
        for wqe in (0..self.queue.len()).rev().filter_map(|nth| self.queue.get(nth)).filter(|wqe| wqe.done) {
            if let SendOp::BindWindow(bind) = &wqe.wr.op {
                io.memory.undo_bind(config.qpn, bind);
            }
        }
    }

    /// Completes what is acknowledged; a local operation is, when everything before it is.
    //= spec/requester.md#req-007
    //# Requests MUST complete in the order in which they were posted.
    //= spec/requester.md#req-008
    //# Every signaled request MUST complete exactly once, whatever the network does.
    pub(super) fn retire_acknowledged<H: Host>(&mut self, config: &QpConfig<H>, io: &mut Io<'_, H>) {
        let mut retired = 0;
        while let Some(wqe) = self.queue.front()
            && (!wqe.wr.op.is_local() || wqe.done)
            && wqe.sent.is_some_and(|span| span.last.distance_from(self.snd_una) < 0)
        {
            if wqe.wr.op.consumes_recv() {
                self.credit.acknowledge();
            }
            succeed(config, io, wqe);
            self.queue.pop();
            retired += 1;
        }
        self.seg_wqe = self.seg_wqe.saturating_sub(retired);
    }

    fn go_back<H: Host>(&mut self, config: &QpConfig<H>, io: &mut Io<'_, H>, reason: RetryReason, left: Option<u8>) {
        io.consumer.trace(config.qpn, Event::Retry { reason, psn: self.snd_una, left });
        self.ask = true;
        self.probe.gone_back();
        self.selective.forget();
        self.selective.went_back |= reason != RetryReason::Rnr;
        self.rewind();
    }

    fn rewind(&mut self) {
        self.seg_wqe = 0;
        self.snd_nxt = self.snd_una;
    }

    /// Goes on with what was never sent, as if it had not gone back.
    pub(super) fn skip_to_snd_max(&mut self) {
        let snd_max = self.snd_max;
        let goes_on = |wqe: &SendWqe| match wqe.sent {
            Some(span) => wqe.failed.is_some() || (!wqe.done && span.last.distance_from(snd_max) >= 0),
            None => true,
        };
        self.seg_wqe = self.queue.iter().position(goes_on).unwrap_or(self.queue.len());
        self.snd_nxt = snd_max;
    }

    pub(super) fn restart_timer(&mut self, attr: &QpAttr, clock: &impl Clock) {
        // Nothing is waited for when nothing is outstanding; silence counts only while an answer is waited for.
        self.ack_deadline = None;
        if self.snd_una != self.snd_max {
            let now = clock.now();
            self.ack_deadline = self.ack_timer.timeout(attr, self.timeouts).map(|timeout| now + timeout);
            self.start_probe(attr, now);
        }
    }

    /// Starts the timer of tail loss probes; where ACK timeouts are a card's, it has the times of the card.
    fn start_probe(&mut self, attr: &QpAttr, now: Instant) {
        match self.ack_timer {
            AckTimer::Specified => self.probe.start(now),
            AckTimer::ConnectX => {
                let step = self.ack_timer.adaptive_step(attr, self.probe.unanswered());
                self.probe.start_at(step.map(|step| now + step));
            }
        }
    }
}
