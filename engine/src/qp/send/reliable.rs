//! The requester: cuts send requests into packets, and sends them again when they were lost (IBA 9.7.2, 9.7.3).
//!
//! Send WQEs stand in a queue, oldest first. Three positions, all PSNs, move along it:
//! `snd_una` (oldest unacknowledged) ≤ `snd_nxt` (sent next) ≤ `snd_max` (never sent before). Going back is setting
//! `snd_nxt` to `snd_una`.
//!
//! A long READ is asked for in *chunks*, each a READ request of its own, so that responses in flight count
//! against the window like requests do and no receive buffer is flooded. A responder cannot tell this from several
//! READs; PSNs are those of one long READ. A chunk that is asked for again keeps its end, because a responder
//! must find a duplicate READ within the request it repeats (IBA 9.7.5.1.5).

use alloc::collections::VecDeque;

use urxe_wire::{Mtu, Psn};

use super::ack_timer::AckTimer;
use super::credit::Credit;
use super::drain::Drain;
use super::packets::{Unsent, send_data};
use super::selective::Selective;
use super::send_queue::SendQueue;
use super::tail_loss_probe::TailLossProbe;
use super::wqe::{SendWqe, Span, execute_local};
use crate::congestion::{CongestionControl, CongestionSettings, Sent};
use crate::cq::WcStatus;
use crate::event::Event;
use crate::host::{Consumer, Host, Io, Network as _};
use crate::memory::Memory as _;
use crate::qp::attr::QpAttr;
use crate::qp::{Progress, QpConfig, Route};
use crate::time::Instant;
use crate::work::SendOp;

/// The requester of one queue pair.
#[derive(Debug)]
pub(in crate::qp) struct Reliable {
    pub(in crate::qp) queue: SendQueue<SendWqe>,
    pub(in crate::qp) snd_una: Psn,
    pub(super) snd_nxt: Psn,
    /// Index in `queue` of the WQE that `snd_nxt` is in: cut into segments next.
    pub(super) seg_wqe: usize,
    pub(super) snd_max: Psn,
    /// READ chunks and atomics not answered yet, oldest first.
    pub(in crate::qp) reads: VecDeque<Span>,
    /// PSN from which on the oldest of these was asked for last, if not from its first PSN.
    pub(in crate::qp) resumed_at: Option<Psn>,
    pub(super) congestion: CongestionControl,
    /// Time before which no packet leaves: the rate is limited.
    pub(super) paced_until: Option<Instant>,
    /// Packets since the last one with AckReq.
    pub(super) unasked: u32,
    /// The next packet asks for an ACK: it is the first after going back.
    pub(super) ask: bool,
    pub(super) ack_deadline: Option<Instant>,
    pub(super) rnr_deadline: Option<Instant>,
    pub(super) probe: TailLossProbe,
    /// A timer is to start ([`start_timers`](Self::start_timers)): a packet was sent, or the wait for a receiver that was not ready is over.
    pub(super) untimed: bool,
    pub(super) ack_timer: AckTimer,
    /// ACK timeouts since the last answer.
    pub(super) timeouts: u8,
    pub(super) retries_left: u8,
    pub(super) rnr_retries_left: u8,
    pub(super) credit: Credit,
    /// Going back to this PSN because of an implied NAK has been done; once is enough.
    pub(in crate::qp) implied_nak_at: Option<Psn>,
    pub(in crate::qp) selective: Selective,
    pub(super) drain: Drain,
    /// Requests of one call that the host has [carried out when they were posted](Self::carry_out_posted): as many fewer may be queued.
    pub(in crate::qp) posted: u32,
}

impl Reliable {
    /// Packets that may be outstanding now.
    pub(in crate::qp) const fn window(&self) -> u32 {
        self.congestion.packets()
    }

    pub(in crate::qp) fn new(window: u32, settings: &CongestionSettings, ack_timer: AckTimer) -> Self {
        Self {
            queue: SendQueue::default(),
            snd_una: Psn::default(),
            snd_nxt: Psn::default(),
            seg_wqe: 0,
            snd_max: Psn::default(),
            reads: VecDeque::new(),
            resumed_at: None,
            congestion: CongestionControl::new(window, settings),
            paced_until: None,
            unasked: 0,
            ask: false,
            ack_deadline: None,
            rnr_deadline: None,
            probe: TailLossProbe::default(),
            untimed: false,
            ack_timer,
            timeouts: 0,
            retries_left: 0,
            rnr_retries_left: 0,
            credit: Credit::default(),
            implied_nak_at: None,
            selective: Selective::default(),
            drain: Drain::default(),
            posted: 0,
        }
    }

    /// RTR → RTS.
    pub(in crate::qp) fn start(&mut self, attr: &QpAttr) {
        self.snd_una = attr.sq_psn;
        self.snd_nxt = attr.sq_psn;
        self.snd_max = attr.sq_psn;
    }

    pub(in crate::qp) fn attributes_changed(&mut self, attr: &QpAttr) {
        self.retries_left = attr.retry_cnt;
        self.timeouts = 0;
        self.rnr_retries_left = attr.rnr_retry;
    }

    /// The PSN of the next packet never sent before.
    pub(in crate::qp) const fn snd_max(&self) -> Psn {
        self.snd_max
    }

    /// Whether every request begun has completed. One may have its PSNs and wait for a responder resource, or for room,
    /// before its first packet.
    pub(in crate::qp) fn is_drained(&self) -> bool {
        let has_begun = |span: Span| span.first != self.snd_max;
        self.snd_una == self.snd_max && self.queue.front().is_none_or(|wqe| !wqe.sent.is_some_and(has_begun))
    }

    /// Whether there may be something to send.
    pub(in crate::qp) fn has_output(&self) -> bool {
        self.rnr_deadline.is_none()
            && self.paced_until.is_none()
            && (self.seg_wqe < self.queue.len() || self.selective.has_output())
            && !self.awaits_probe()
    }

    /// Packets in flight; so many that no other may leave, if the peer would not keep it.
    #[inline]
    pub(in crate::qp) fn in_flight(&self) -> u32 {
        match self.selective.in_flight() {
            None => self.snd_nxt.advance_from(self.snd_una),
            Some(packets) => packets,
        }
    }

    /// Whether the packet that asks whether the peer is there has been sent, and not been answered.
    fn awaits_probe(&self) -> bool {
        self.probe.is_probing() && self.snd_nxt != self.snd_una
    }

    /// Whether what there is to send is one packet, or one READ request.
    pub(in crate::qp) fn has_short_output(&self, mtu: Mtu) -> bool {
        let last = self.queue.back().filter(|_| self.seg_wqe + 1 == self.queue.len() && self.has_output());
        let last = last.filter(|_| !self.selective.has_output());
        last.is_some_and(|wqe| wqe.length as usize <= mtu.bytes())
    }

    //= spec/states.md#qps-009
    //# A timer MUST NOT outlive the state that it was set in.
    pub(in crate::qp) fn deadline(&self) -> Option<Instant> {
        let probe = self.probe.deadline().filter(|_| self.ack_deadline.is_some());
        let answers = match self.rnr_deadline {
            Some(at) => Some(at),
            None if self.is_held_back() => None,
            None => probe.into_iter().chain(self.ack_deadline).chain(self.selective_deadline()).min(),
        };
        answers.into_iter().chain(self.paced_until).min()
    }

    /// Whether what is outstanding waits for its time to be sent again: no answer can come.
    pub(super) fn is_held_back(&self) -> bool {
        self.paced_until.is_some() && self.is_back()
    }

    /// Time at which the ACK timeout is over.
    pub(in crate::qp) fn ack_deadline(&self) -> Option<Instant> {
        self.ack_deadline.filter(|_| self.rnr_deadline.is_none() && !self.is_held_back())
    }

    /// The status of the oldest WQE, if it is one that failed here.
    pub(in crate::qp) fn failed_front(&self) -> Option<WcStatus> {
        self.queue.front().and_then(|wqe| wqe.failed)
    }

    /// Sends what may be sent. New WQEs are begun only if `may_start` (not in SQD).
    pub(in crate::qp) fn transmit<H: Host>(
        &mut self,
        config: &QpConfig<H>,
        attr: &QpAttr,
        route: &Route<H>,
        io: &mut Io<'_, H>,
        may_start: bool,
    ) -> Progress {
        if self.rnr_deadline.is_some() {
            return Progress::Idle;
        }
        self.probe.may_lose(io.network.may_lose(route));
        self.selective.refresh_paths(io.clock);
        // A probe is the oldest packet alone.
        let room = if self.probe.is_probing() { 1 } else { self.congestion.packets() };
        if self.is_limited() {
            return self.transmit_paced(config, attr, route, io, may_start, room);
        }
        self.burst(config, attr, route, io, may_start, room).1
    }

    /// Sends while less than `room` packets are outstanding. Returns what was sent as well.
    #[inline(always)]
    pub(super) fn burst<H: Host>(
        &mut self,
        config: &QpConfig<H>,
        attr: &QpAttr,
        route: &Route<H>,
        io: &mut Io<'_, H>,
        may_start: bool,
        mut room: u32,
    ) -> (Sent, Progress) {
        let mut all = Sent::default();
        if self.selective.has_output() {
            let (again, progress) = self.resend(config, attr, route, io, room);
            all = again;
            // What was lost has made the window smaller.
            room = room.min(self.congestion.packets());
            if progress != Progress::Idle {
                return (all, progress);
            }
        }
        if self.avoids_silly_window(attr, room) {
            return (all, Progress::Idle);
        }
        loop {
            let in_flight = self.in_flight();
            let is_pilot = self.selective.wants_pilot();
            if in_flight >= room && !is_pilot {
                break;
            }
            if may_start && io.memory.reaches_peer() {
                if !self.carry_out(config, attr, io) {
                    return (all, Progress::More);
                }
                if self.awaits_host(io.memory, attr) {
                    break;
                }
            }
            let Some(wqe) = self.queue.get_mut(self.seg_wqe).filter(|wqe| wqe.failed.is_none()) else { break };
            let span = match wqe.sent {
                Some(span) if may_start || span.first != self.snd_max => span,
                None if may_start
                    && may_begin(wqe, !self.reads.is_empty(), self.snd_una == self.snd_max, &mut self.credit) =>
                {
                    *wqe.sent.insert(span(wqe, self.snd_max, attr.path_mtu))
                }
                Some(_) | None => break,
            };
            let psn = self.snd_nxt;
            let path = self.selective.path_of(psn);
            let is_answered = wqe.wr.op.takes_responder_resource();
            let sent = match wqe.wr.op {
                // It would wait for ever.
                _ if is_answered && attr.max_rd_atomic == 0 => Err(Unsent::Refused(WcStatus::LocalQpOperationError)),
                SendOp::Read(_)
                | SendOp::CompareSwap { .. }
                | SendOp::FetchAdd { .. }
                | SendOp::AtomicWrite(_)
                | SendOp::Flush { .. } => {
                    let Some(last) = self.chunk(span, psn, in_flight, attr, is_pilot) else { break };
                    let other = (path > 0).then(|| H::Network::on_path(route, path));
                    let route = other.as_ref().unwrap_or(route);
                    self.send_answered(config, attr, route, io, self.seg_wqe, psn, last).map(|length| (length, last))
                }
                SendOp::LocalInvalidate(_) | SendOp::BindWindow(_) => {
                    if let Err(status) = self.execute_local(config, io) {
                        Err(Unsent::Refused(status))
                    } else {
                        self.seg_wqe += 1;
                        self.retire_acknowledged(config, io);
                        continue;
                    }
                }
                SendOp::Send
                | SendOp::SendWithImmediate(_)
                | SendOp::SendWithInvalidate(_)
                | SendOp::Write(_)
                | SendOp::WriteWithImmediate(..) => {
                    // Ask at the end of a message, before waiting for the window or the rate, and now and then to keep it
                    // moving.
                    //= spec/requester.md#req-004
                    //# The last packet of a message, and the last that the window lets out, MUST ask for an
                    //# acknowledgement.
                    let ack_req = psn == span.last
                        || self.ask
                        || in_flight + 1 >= room
                        || self.unasked + 1 >= (self.congestion.packets() / 4).max(1);
                    // Mostly there is one path, and no other to be dropped.
                    let sent = if path > 0 {
                        send_data(config, attr, &H::Network::on_path(route, path), io, wqe, span, psn, ack_req)
                    } else {
                        send_data(config, attr, route, io, wqe, span, psn, ack_req)
                    };
                    if sent.is_ok() {
                        self.ask = false;
                        self.unasked = if ack_req { 0 } else { self.unasked + 1 };
                    }
                    sent.map(|length| (length, psn))
                }
            };
            match sent {
                Ok((length, last)) => {
                    all.add(length);
                    self.selective.sent(last.advance_from(psn) + 1, is_answered, path);
                    self.advance(span, last);
                    if self.seg_wqe >= self.queue.len() && !io.memory.reaches_peer() {
                        // Another round would find that nothing is left, at a greater price.
                        break;
                    }
                }
                Err(Unsent::NoRoom) => return (all, Progress::Blocked),
                Err(Unsent::Refused(status)) => {
                    // The WQEs before it complete first.
                    if let Some(wqe) = self.queue.get_mut(self.seg_wqe) {
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

    /// Moves `snd_nxt` behind `last`, which was just sent.
    #[inline]
    fn advance(&mut self, span: Span, last: Psn) {
        self.snd_nxt = last.next();
        if last == span.last {
            self.seg_wqe += 1;
        }
        if self.snd_nxt.distance_from(self.snd_max) > 0 {
            self.snd_max = self.snd_nxt;
            self.untimed |= self.probe.sent(last, self.congestion.wants_round_trips);
        }
        self.untimed |= self.ack_deadline.is_none();
    }

    /// Carries out the local operation at `snd_nxt`, unless that was done before going back.
    fn execute_local<H: Host>(&mut self, config: &QpConfig<H>, io: &Io<'_, H>) -> Result<(), WcStatus> {
        let Some(wqe) = self.queue.get_mut(self.seg_wqe).filter(|wqe| !wqe.done) else { return Ok(()) };
        execute_local(config, io, &wqe.wr.op)?;
        wqe.done = true;
        Ok(())
    }
}

/// Whether a request can be begun, of which nothing is sent yet: `reading` tells whether READs or atomics are outstanding,
/// `idle` whether nothing is. Takes the credit that it needs.
#[inline]
fn may_begin(wqe: &SendWqe, reading: bool, idle: bool, credit: &mut Credit) -> bool {
    //= spec/requester.md#req-006
    //# A fenced request MUST wait until all READs and atomics before it have completed.
    let waits = wqe.wr.flags.fence && reading;
    !waits && (!wqe.wr.op.consumes_recv() || credit.take(idle))
}

/// The PSNs of a request of which nothing is sent yet.
//= spec/requester.md#req-001
//# Each request packet MUST have the next PSN of 24 bits; a READ takes one for each packet of its response.
fn span(wqe: &SendWqe, first: Psn, mtu: Mtu) -> Span {
    let packets = if wqe.wr.op.is_local() { 0 } else { mtu.packets(wqe.length) };
    Span { first, last: first.add(packets).sub(1) }
}
