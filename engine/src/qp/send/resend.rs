//! Packets that are lost while others arrive: found, and sent again alone.

use urxe_wire::Psn;

use super::packets::{Unsent, send_data};
use super::reliable::Reliable;
use super::scoreboard::Answered;
use super::selective::Selective;
use crate::congestion::Sent;
use crate::event::{Event, RetryReason};
use crate::host::{Consumer, Host, Io, Network as _};
use crate::qp::attr::QpAttr;
use crate::qp::{Progress, QpConfig, Route};
use crate::time::Instant;

/// Probes without an answer after which the paths that rest are used again: those in use may be broken, and the ACK timeout be
/// the last. Some 60 round trips, for a peer may be off its processor for a while.
const SILENT: u32 = 10;

impl Reliable {
    /// Place in the queue of the request that this PSN is of.
    pub(super) fn request_of(&self, psn: Psn) -> Option<usize> {
        // Requests take PSNs in their order, local operations none. PSNs are compared by their distance from the oldest request: the last
        // packet of a message of 2^31 bytes is 2^23 behind what is before the message, which a signed distance takes for before it.
        let oldest = self.queue.front()?.sent?.first;
        let distance = psn.advance_from(oldest);
        let nth = self
            .queue
            .partition_point(|wqe| wqe.sent.is_some_and(|span| span.last.next().advance_from(oldest) <= distance));
        self.queue.get(nth)?.sent?.contains(psn).then_some(nth)
    }

    /// Time at which overtaken packets count as lost.
    pub(super) fn selective_deadline(&self) -> Option<Instant> {
        self.selective.board()?.deadline()
    }

    /// Whether the response that is measured waits for a request at `psn`, which is sent again.
    fn waits_for(&self, psn: Psn) -> bool {
        let Some((board, measured)) = self.selective.board().zip(self.probe.measured()) else { return false };
        let is_response = board.get(measured).is_some_and(|entry| entry.answered != Answered::No);
        is_response && measured.distance_from(psn) > 0 && !board.is_carried_out(psn)
    }

    /// Looks at [`selective_deadline`](Self::selective_deadline) whether packets are lost.
    pub(super) fn handle_selective_timeout(&mut self, now: Instant) {
        if let Some(board) = &mut self.selective.board {
            board.handle_timeout(now);
        }
    }

    /// Sends the oldest packet alone again, as nothing was heard for several round trips.
    pub(super) fn probe_selectively<H: Host>(&mut self, config: &QpConfig<H>, io: &mut Io<'_, H>, now: Instant) {
        io.consumer
            .trace(config.qpn, Event::Retry { reason: RetryReason::TailLossProbe, psn: self.snd_una, left: None });
        self.begin_selective().lose_front();
        self.selective.probes = self.selective.probes.saturating_add(1);
        self.selective.probed_at = self.snd_max;
        self.probe.probe_silently(now);
        if self.probe.unanswered() == SILENT {
            self.selective.use_all_paths(io.clock);
        }
    }

    /// The peer had no receive WQE for the oldest packet, and has kept those behind it.
    pub(super) fn lose_refused(&mut self) {
        if self.selective.board.is_none() {
            self.begin_selective().lose_request(0);
        }
    }

    /// Sends again what is lost, while less than `room` packets are outstanding.
    //= spec/selective.md#sel-007
    //# Only what is missing MUST be sent again.
    #[cold]
    pub(super) fn resend<H: Host>(
        &mut self,
        config: &QpConfig<H>,
        attr: &QpAttr,
        route: &Route<H>,
        io: &mut Io<'_, H>,
        room: u32,
    ) -> (Sent, Progress) {
        let now = io.now();
        let timing = self.timing(now);
        let Selective { board: Some(board), reordering, paths, .. } = &mut self.selective else {
            return (Sent::default(), Progress::Idle);
        };
        if board.has_news() {
            let lost = board.find_lost(&timing, reordering);
            if let Some(paths) = paths {
                let (arrived, lost) = board.take_paths();
                if let Some(path) = paths.note(now, &arrived, &lost) {
                    io.consumer.trace(config.qpn, Event::LeftPath { path });
                }
            }
            if lost > 0 {
                self.probe.lost();
                self.congestion.on_selective_loss(lost, self.snd_max);
                io.consumer.trace(config.qpn, Event::Lost { packets: lost });
            }
        }
        let mut all = Sent::default();
        while let Some(board) = &mut self.selective.board {
            let Some((psn, psns)) = board.next_lost() else { break };
            // Without the oldest nothing goes on, however few may be in flight.
            if psn != self.snd_una && board.in_flight() >= room {
                break;
            }
            let before = board.path(psn);
            let Some(nth) = self.request_of(psn) else { break };
            let wqe = self.queue.get(nth).filter(|wqe| wqe.failed.is_none());
            let Some((wqe, span)) = wqe.and_then(|wqe| Some((wqe, wqe.sent?))) else { break };
            let path = self.selective.paths.as_mut().map_or(0, |paths| paths.another(before));
            let other = (path > 0).then(|| H::Network::on_path(route, path));
            let route = other.as_ref().unwrap_or(route);
            let sent = match wqe.wr.op.takes_responder_resource() {
                true => self.send_answered(config, attr, route, io, nth, psn, psn.add(psns - 1)),
                false => send_data(config, attr, route, io, wqe, span, psn, true),
            };
            match sent {
                Ok(length) => {
                    all.add(length);
                    self.untimed |= self.ack_deadline.is_none();
                    self.selective.again = self.selective.again.saturating_add(1);
                    if let Some(board) = &mut self.selective.board {
                        board.sent_again(psn, psns, now, path);
                    }
                    self.probe.sent_again(psn, psns);
                    if self.waits_for(psn) {
                        self.probe.forget_sample();
                    }
                    io.consumer.trace(config.qpn, Event::SentAgain { psn });
                }
                Err(Unsent::NoRoom) => return (all, Progress::Blocked),
                Err(Unsent::Refused(status)) => {
                    if let Some(wqe) = self.queue.get_mut(nth) {
                        wqe.failed = Some(status);
                        let wr_id = wqe.wr.wr_id;
                        io.consumer.trace(config.qpn, Event::SendRefused { wr_id, status });
                    }
                    break;
                }
            }
        }
        (all, Progress::Idle)
    }
}
