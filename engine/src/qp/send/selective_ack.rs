//! Acknowledgements and responses of selective repeat: the requester sends again what is missing, and nothing else.
//!
//! The responder acknowledges what it has behind a gap ([`urxe_wire::selective`]); the [scoreboard](super::scoreboard) knows
//! from that, and from responses, what is lost. READ responses may come in any order; what is missing of them is asked for
//! again, as a duplicate of a part of the READ (IBA 9.7.5.1.5).

use alloc::boxed::Box;

use urxe_wire::opcode::OpcodeInfo;
use urxe_wire::{Aeth, Bitmap, Psn, Syndrome};

use super::completer::{Failure, refusal};
use super::paths::Paths;
use super::reliable::Reliable;
use super::rtt::Rtt;
use super::scoreboard::{Scoreboard, Timing};
use super::selective::{Selective, UNKNOWN};
use crate::cq::WcStatus;
use crate::event::{DropReason, Event, RetryReason};
use crate::fault::ResponseFault;
use crate::host::{Consumer, Host, Io};
use crate::qp::QpConfig;
use crate::qp::attr::QpAttr;
use crate::time::Instant;

impl Reliable {
    /// The peer keeps so many packets behind a gap.
    pub(in crate::qp) fn set_selective<H: Host>(&mut self, config: &QpConfig<H>, window: u16) {
        let paths = config.paths();
        (self.selective.window, self.selective.most) = (window, config.window);
        self.probe.set_selective();
        if paths > 1 {
            self.selective.reordering.expect();
            self.selective.paths = Some(Box::new(Paths::new(paths)));
        }
    }

    pub(super) fn timing(&self, now: Instant) -> Timing {
        // The first round trips are those of one path: what the others add is variation at first.
        let takes_several = self.selective.reordering.takes_several();
        let known = self.probe.round_trip();
        let mean = known.map_or(UNKNOWN, |rtt| rtt.smoothed);
        Timing { now, round_trip: known.filter(|_| takes_several).map_or(mean, Rtt::longest), mean }
    }

    /// Returns the scoreboard, which begins now if there is none.
    pub(super) fn begin_selective(&mut self) -> &mut Scoreboard {
        if self.selective.board.is_none() {
            let mut board = self.selective.take_spare();
            let path = |psn| self.selective.path_of(psn);
            board.begin(self.snd_una, self.snd_nxt, self.snd_max, &self.reads, path);
            self.selective.board = Some(board);
            // What a probe has asked for is known to be lost.
            self.probe.gone_back();
            if self.snd_nxt != self.snd_max {
                self.skip_to_snd_max();
            }
            self.implied_nak_at = None;
        }
        self.selective.board.get_or_insert_default()
    }

    // --- news ----------------------------------------------------------------------------------------------

    /// Checks that a selective acknowledgement tells of requests that were sent and are not acknowledged yet.
    ///
    /// # Errors
    /// The reason for which it is dropped.
    //= spec/selective.md#sel-008
    //# A selective acknowledgement of what was never sent, or of a part of a READ, MUST change nothing and be counted.
    pub(in crate::qp) fn check_selective_ack(&self, missing: Psn, bitmap: Bitmap<'_>) -> Result<(), DropReason> {
        if missing.distance_from(self.snd_una) < 0 {
            // A later one has overtaken it.
            return Err(DropReason::GhostAck);
        }
        let sent = self.snd_max.distance_from(missing);
        let is_request =
            |psn: Psn| self.reads.iter().find(|chunk| chunk.contains(psn)).is_none_or(|chunk| chunk.first == psn);
        let is_sent = bitmap.last_arrived().is_none_or(|behind| i64::from(behind) < i64::from(sent));
        // Where nothing is read every PSN is a request's.
        let are_requests = self.reads.is_empty() || bitmap.arrived().all(|behind| is_request(missing.add(behind)));
        if sent < 0 || !is_sent || !is_request(missing) || !are_requests {
            return Err(DropReason::InvalidSelectiveAck);
        }
        Ok(())
    }

    /// Takes a selective acknowledgement that was [checked](Self::check_selective_ack).
    pub(in crate::qp) fn handle_selective_ack<H: Host>(
        &mut self,
        config: &QpConfig<H>,
        attr: &QpAttr,
        io: &mut Io<'_, H>,
        missing: Psn,
        bitmap: Bitmap<'_>,
        duplicates: u32,
    ) -> Result<(), Failure> {
        let timing = self.timing(io.now());
        self.count_duplicates(config, io, missing, duplicates, timing.round_trip);
        if bitmap.arrived().next().is_none() && self.selective.board.is_none() {
            let due = self.due().filter(|due| due.distance_from(missing) < 0).unwrap_or(missing);
            self.acknowledged_before(config, attr, io, due);
            return Ok(());
        }
        self.begin_selective();
        let Selective { board: Some(board), reordering, .. } = &mut self.selective else { return Ok(()) };
        board.carried_out(missing, &timing, reordering);
        let is_news = board.requests_kept(missing, bitmap, &timing, reordering);
        // It said once that it had this one.
        board.undeliver(missing);
        if is_news {
            self.restart_timer(attr, io.clock);
        }
        self.measure(io);
        self.advance_selective(config, attr, io)
    }

    /// Measures the round trip of a packet that arrived while one before it is missing.
    fn measure<H: Host>(&mut self, io: &Io<'_, H>) {
        let entry = self.probe.measured().and_then(|psn| self.selective.board()?.get(psn));
        if entry.is_some_and(|entry| entry.delivered) {
            self.probe.arrived(io.clock);
        }
    }

    /// Takes an acknowledgement, where some packets are missing.
    pub(super) fn handle_selective_acknowledge<H: Host>(
        &mut self,
        config: &QpConfig<H>,
        attr: &QpAttr,
        io: &mut Io<'_, H>,
        psn: Psn,
        before: Psn,
        aeth: &Aeth,
    ) -> Result<(), Failure> {
        let timing = self.timing(io.now());
        self.begin_selective();
        let is_last_rnr_nak = self.is_out_of_rnr_retries(attr);
        let Selective { board: Some(board), reordering, refused, .. } = &mut self.selective else { return Ok(()) };
        let is_oldest = || self.queue.front().and_then(|wqe| wqe.sent).is_some_and(|span| span.contains(psn));
        if matches!(aeth.syndrome, Syndrome::RnrNak(_)) && board.is_carried_out(psn) {
            // The request has found its receive WQE since.
            return Err(Failure::Dropped(DropReason::GhostAck));
        }
        board.carried_out_by_ack(before, &timing, reordering);
        board.responded(before.sub(1));
        match aeth.syndrome {
            Syndrome::Ack(_) => {
                self.advance_selective(config, attr, io)?;
                self.take_credits(aeth);
                Ok(())
            }
            // Nothing is outstanding that could be refused.
            _ if board.get(psn).is_none() => Err(Failure::Dropped(DropReason::GhostAck)),
            Syndrome::RnrNak(_) if is_last_rnr_nak && !is_oldest() => {
                // Responses before it may still be under way.
                board.undeliver(psn);
                *refused = Some((psn, WcStatus::RnrRetryExceededError));
                self.advance_selective(config, attr, io)
            }
            Syndrome::RnrNak(timer) => {
                board.undeliver(psn);
                board.lose_request(psn.advance_from(self.snd_una) as usize);
                self.advance_selective(config, attr, io)?;
                Ok(self.wait_for_receiver(config, attr, io, timer.duration())?)
            }
            Syndrome::Nak(code) => {
                let Some(status) = refusal(code) else {
                    self.advance_selective(config, attr, io)?;
                    return Ok(self.retry(config, attr, io, RetryReason::SequenceNak)?);
                };
                if is_oldest() {
                    return Err(Failure::Front(status));
                }
                // As above.
                *refused = Some((psn, status));
                self.advance_selective(config, attr, io)
            }
        }
    }

    /// Takes a response, in whatever order it comes.
    //= spec/selective.md#sel-009
    //# READ responses and results of atomics MUST be taken in any order, and requests complete in theirs.
    #[expect(clippy::too_many_arguments, reason = "a response's parts, and the surroundings")]
    pub(super) fn take_selective_response<H: Host>(
        &mut self,
        config: &QpConfig<H>,
        attr: &QpAttr,
        io: &mut Io<'_, H>,
        psn: Psn,
        info: &OpcodeInfo,
        aeth: Option<&Aeth>,
        payload: &[u8],
    ) -> Result<(), Failure> {
        let Some(chunk) = self.reads.iter().find(|chunk| chunk.contains(psn)).copied() else {
            return Err(Failure::Dropped(DropReason::UnexpectedResponse));
        };
        let timing = self.timing(io.now());
        self.begin_selective();
        let nth = self.request_of(psn);
        let is_here = self.selective.board().and_then(|board| board.get(psn)).is_none_or(|entry| entry.delivered);
        let Some(nth) = nth.filter(|_| !is_here) else {
            self.count_in_vain(config, io);
            return Err(Failure::Dropped(DropReason::GhostAck));
        };
        // What is wrong with a request that is not the oldest is told in its turn.
        let stored = self
            .check_kind(nth, info.kind, aeth)
            .and_then(|()| self.can_be(info.position, psn, chunk).then_some(()).ok_or(ResponseFault::Position))
            .map_err(Failure::from)
            .and_then(|()| self.store_response(config, attr, io, nth, psn, payload));
        let is_stored = match stored {
            Err(Failure::Front(status)) if nth > 0 => {
                if let Some(wqe) = self.queue.get_mut(nth) {
                    wqe.failed.get_or_insert(status);
                }
                false
            }
            stored => stored.map(|()| true)?,
        };
        let Selective { board: Some(board), reordering, .. } = &mut self.selective else { return Ok(()) };
        board.carried_out(psn, &timing, reordering);
        if is_stored {
            board.carried_out(chunk.last.next(), &timing, reordering);
            board.response_arrived(psn, &timing, reordering);
        }
        if psn.distance_from(self.selective.probed_at) >= 0 {
            // It has answered what was sent behind the probes, and so these as well.
            self.selective.probes = 0;
        }
        self.restart_timer(attr, io.clock);
        self.measure(io);
        self.advance_selective(config, attr, io)?;
        if let Some(aeth) = aeth {
            self.take_credits(aeth);
        }
        Ok(())
    }

    /// Moves `snd_una` over what is acknowledged and answered.
    fn advance_selective<H: Host>(
        &mut self,
        config: &QpConfig<H>,
        attr: &QpAttr,
        io: &mut Io<'_, H>,
    ) -> Result<(), Failure> {
        let acknowledged = self.selective.board().map_or(0, Scoreboard::acknowledged);
        let snd_una = self.snd_una.add(acknowledged);
        if let Some(board) = &mut self.selective.board {
            board.forget(acknowledged);
        }
        self.acknowledged_before(config, attr, io, snd_una);
        if let Some((_, status)) = self.selective.refused.filter(|(psn, _)| psn.distance_from(snd_una) <= 0) {
            return Err(Failure::Front(status));
        }
        // It counts what arrives on each of several paths.
        let counts_arrivals = self.selective.paths.is_some();
        // A refusal waits with it for the answers to the requests before.
        let is_over = |board: &Scoreboard| self.selective.refused.is_none() && board.is_over(counts_arrivals);
        if self.selective.board().is_some_and(is_over) {
            self.selective.end_board(config.selective.as_ref().map(|selective| &selective.memory), snd_una);
        }
        Ok(())
    }

    /// The peer has got `duplicates` requests more than once, and lacks the one at `missing`.
    fn count_duplicates<H: Host>(
        &mut self,
        config: &QpConfig<H>,
        io: &mut Io<'_, H>,
        missing: Psn,
        duplicates: u32,
        round_trip: u64,
    ) {
        let more = duplicates.wrapping_sub(self.selective.duplicates).cast_signed();
        if more > 0 {
            self.selective.duplicates = duplicates;
            self.sent_in_vain(config, io, more.unsigned_abs(), round_trip);
        }
        if missing.distance_from(self.selective.probed_at) > 0 {
            // It has got what was sent behind the probes, and so these as well.
            self.selective.probes = 0;
        }
    }

    /// The peer has got so many packets once more.
    fn sent_in_vain<H: Host>(&mut self, config: &QpConfig<H>, io: &mut Io<'_, H>, packets: u32, round_trip: u64) {
        let Selective { again, probes, reordering, .. } = &mut self.selective;
        let packets = packets.min(*again);
        if packets == 0 {
            return;
        }
        *again -= packets;
        // A probe in vain says that the peer was slow, and nothing of the order in which packets arrive (RFC 8985, 7.4).
        let of_probes = packets.min(*probes);
        *probes -= of_probes;
        if packets > of_probes {
            reordering.in_vain(round_trip);
        }
        io.consumer.trace(config.qpn, Event::SentInVain { packets });
    }

    /// A response came once more.
    pub(super) fn count_in_vain<H: Host>(&mut self, config: &QpConfig<H>, io: &mut Io<'_, H>) {
        let round_trip = self.timing(io.now()).round_trip;
        self.sent_in_vain(config, io, 1, round_trip);
    }

    /// READs and atomics outstanding. Those that are answered do not count, though one before them is not, as long as
    /// the peer remembers them.
    pub(super) fn reads_outstanding(&self) -> usize {
        const REMEMBERED: usize = 48;
        match self.selective.board() {
            Some(board) if self.reads.len() < REMEMBERED => {
                self.reads.iter().filter(|chunk| !board.is_delivered(chunk)).count()
            }
            Some(_) => usize::MAX,
            None => self.reads.len(),
        }
    }
}
