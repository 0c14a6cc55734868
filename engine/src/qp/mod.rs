//! The queue pair.

pub mod attr;
mod config;
mod post;
mod recv;
mod send;
pub(crate) mod sge;
pub mod state;

use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::time::Duration;

use urxe_wire::opcode::{OpcodeInfo, Role};
use urxe_wire::{Opcode, Operation, PKey, Packet, Psn, Qpn, Transport};

use crate::counter::{AttachError, CountedOps};
use crate::cq::{Cqe, WcOpcode, WcStatus};
use crate::event::{AsyncEvent, DropReason, Event};
use crate::fault::ResponderFault;
use crate::host::{Consumer, Host, Io, Network};
use crate::memory::Refusal;
use crate::time::Instant;
use crate::work::RecvWr;
use attr::{AttrMask, ModifyError, QpAttr};
pub use config::{PostError, Progress, QpCap, QpConfig, QpType};
use recv::responder::Responder;
use send::reliable::Requester;
use send::unreliable::Unreliable;
use state::QpState;

type Cq<H> = <<H as Host>::Consumer as Consumer>::Cq;
type Counter<H> = <<H as Host>::Consumer as Consumer>::Counter;
type Srq<H> = <<H as Host>::Consumer as Consumer>::Srq;
type Route<H> = <<H as Host>::Network as Network>::Route;
type Origin<H> = <<H as Host>::Network as Network>::Origin;

/// Packets of READ responses in one `transmit`: so that a long READ does not keep its thread from receiving.
const RESPONSE_BURST: u32 = 64;

/// A queue pair: see the [crate documentation](crate) for how to drive it.
pub struct QueuePair<H: Host> {
    config: QpConfig<H>,
    state: QpState,
    attr: QpAttr,
    route: Option<Route<H>>,
    rq: VecDeque<RecvWr>,
    /// The SRQ of the XRC request being carried out, or the last one, and its number.
    xrc_srq: Option<(Qpn, Srq<H>)>,
    requester: Requester,
    responder: Responder,
    /// Takes the requester's place on UC and UD.
    unreliable: Option<Unreliable<H>>,
    /// `SQ_DRAINED` is owed.
    drain_pending: bool,
}

impl<H: Host> QueuePair<H> {
    /// A queue pair in RESET.
    #[must_use]
    pub fn new(config: QpConfig<H>) -> Self {
        let requester = Requester::new(config.window);
        Self {
            unreliable: Unreliable::new(&config),
            state: QpState::Reset,
            attr: initial_attr(&config),
            config,
            route: None,
            rq: VecDeque::new(),
            xrc_srq: None,
            requester,
            responder: Responder::default(),
            drain_pending: false,
        }
    }

    /// What it is made of.
    pub const fn config(&self) -> &QpConfig<H> {
        &self.config
    }

    /// Its state.
    pub const fn state(&self) -> QpState {
        self.state
    }

    /// Its attributes. PSNs are those that would be sent and expected next.
    pub fn attr(&self) -> QpAttr {
        let sq_psn = match &self.unreliable {
            Some(unreliable) => unreliable.requester.psn(),
            None => self.requester.snd_max(),
        };
        QpAttr { rq_psn: self.responder.expected_psn(), sq_psn, ..self.attr }
    }

    /// The queue pair at the other end, as far as it is connected.
    pub const fn dest_qpn(&self) -> Qpn {
        self.attr.dest_qpn
    }

    /// Its ACK timeout; `None` is none.
    pub fn ack_timeout(&self) -> Option<Duration> {
        self.attr.ack_timeout()
    }

    /// The way to its peer, once it has one.
    pub const fn route(&self) -> Option<&<<H as Host>::Network as Network>::Route> {
        self.route.as_ref()
    }

    /// Whether a modify to SQD has let everything outstanding complete (`ibv_query_qp(3)`, `sq_draining`).
    pub const fn is_draining(&self) -> bool {
        self.drain_pending
    }

    /// Changes state and attributes (`ibv_modify_qp(3)`, IBA 11.2.5.2). `route` must be given with
    /// [`AttrMask::AV`]. To change attributes only, `to` is the present state.
    ///
    /// # Errors
    /// Says what is wrong; nothing is changed then.
    //= spec/states.md#qps-010
    //# Destroying or modifying a queue pair at work MUST be safe, whatever is arriving for it.
    pub fn modify(
        &mut self,
        io: &mut Io<'_, H>,
        to: QpState,
        mask: AttrMask,
        given: &QpAttr,
        route: Option<Route<H>>,
    ) -> Result<(), ModifyError> {
        let from = self.state;
        attr::check(self.config.qp_type, from, to, mask)?;
        for (bit, bad) in [
            (AttrMask::TIMEOUT, given.timeout > 31),
            (AttrMask::RETRY_CNT, given.retry_cnt > 7),
            (AttrMask::RNR_RETRY, given.rnr_retry > 7),
            (AttrMask::AV, route.is_none()),
        ] {
            if mask.contains(bit) && bad {
                //= spec/states.md#qps-003
                //# An attribute whose value is out of range MUST be refused with EINVAL.
                return Err(ModifyError::Value(bit));
            }
        }
        self.attr = self.attr.overlaid(given, mask);
        if mask.contains(AttrMask::AV) {
            self.route = route;
        }
        match to {
            QpState::Reset => self.reset(io),
            QpState::Err => {
                self.responder.clear();
                self.enter_error(io);
            }
            QpState::Rtr => self.responder.start(self.attr.rq_psn),
            QpState::Rts if from == QpState::Rtr => match &mut self.unreliable {
                Some(unreliable) => unreliable.requester.start(&self.attr),
                None => self.requester.start(&self.attr),
            },
            QpState::Sqd if from != QpState::Sqd => {
                self.drain_pending = true;
                // Asked for each time anew: it is about this change of state.
                self.attr.sqd_notify &= mask.contains(AttrMask::EN_SQD_ASYNC_NOTIFY);
            }
            QpState::Rts => self.drain_pending = false,
            QpState::Sqd | QpState::Init | QpState::Sqe => {}
        }
        self.set_state(io, to);
        self.requester.attributes_changed(&self.attr);
        self.check_drained(io);
        Ok(())
    }

    /// Has a completion counter count operations from now on (`ibv_qp_attach_comp_cntr(3)`).
    ///
    /// # Errors
    /// Says what is wrong; nothing is attached then.
    pub fn attach_counter(&mut self, ops: CountedOps, counter: Counter<H>) -> Result<(), AttachError> {
        if !matches!(self.state, QpState::Reset | QpState::Init) {
            return Err(AttachError::State(self.state));
        }
        if self.config.is_counted(ops) {
            return Err(AttachError::Overlap);
        }
        self.config.counters.push((ops, counter));
        Ok(())
    }

    /// Lets go of all completion counters.
    pub fn detach_counters(&mut self) {
        self.config.counters = Vec::new();
    }

    /// Puts the QP into ERR because its surroundings failed, such as a CQ that overran (IBA 10.3.1.7).
    pub fn fail(&mut self, io: &mut Io<'_, H>) {
        if self.state != QpState::Reset {
            self.responder.clear();
            self.enter_error(io);
        }
    }

    /// Posts a receive request (`ibv_post_recv(3)`).
    ///
    /// # Errors
    /// Says what is wrong; the request is not queued then.
    pub fn post_recv(&mut self, io: &mut Io<'_, H>, wr: RecvWr) -> Result<(), PostError> {
        if !self.config.has_recv_queue() {
            return Err(PostError::NoRecvQueue);
        }
        if self.state == QpState::Reset {
            return Err(PostError::State(self.state));
        }
        if self.rq.len() >= self.config.cap.max_recv_wr as usize {
            return Err(PostError::QueueFull);
        }
        if wr.buffers.as_slice().len() > self.config.cap.max_recv_sge as usize {
            return Err(PostError::TooManySge);
        }
        self.rq.push_back(wr);
        if self.state == QpState::Err {
            self.flush_recv(io);
        } else if self.state.receives() {
            self.responder.receive_posted(self.rq.len());
        }
        Ok(())
    }

    /// Takes a packet whose ICRC was found right and whose destination is this QP (IBA 9.6, 9.7). Returns whether it was
    /// accepted: it passed the checks, and was the next request, a response to one that is outstanding, or a datagram.
    /// Duplicates and refused requests are not, though they may be answered.
    pub fn handle_packet(&mut self, io: &mut Io<'_, H>, packet: &Packet<'_>, origin: &Origin<H>) -> bool {
        let info = packet.bth().opcode.info();
        if let Err(reason) = self.admit(packet, info, origin) {
            self.drop_packet(io, packet, reason);
            return false;
        }
        match info.role {
            Role::Request => match self.config.qp_type {
                QpType::Uc => self.handle_unacknowledged(io, packet, info),
                QpType::Ud => self.handle_datagram(io, packet, origin),
                QpType::Rc | QpType::XrcSend | QpType::XrcRecv => self.handle_request(io, packet, info),
            },
            Role::Response => self.handle_response(io, packet),
            Role::Notification => {
                self.drop_packet(io, packet, DropReason::CongestionNotification);
                false
            }
        }
    }

    /// Does what is due now: ACK timeouts, ends of RNR waits.
    pub fn handle_timeout(&mut self, io: &mut Io<'_, H>) {
        if !self.state.sends() {
            return;
        }
        if let Some(unreliable) = &mut self.unreliable {
            unreliable.requester.handle_timeout(io.now());
            return;
        }
        if let Err(status) = self.requester.handle_timeout(&self.config, &self.attr, io) {
            self.fail_send(io, status);
        }
    }

    /// When [`handle_timeout`](Self::handle_timeout) wants to be called. What was sent since this was asked last has left
    /// now: answers are waited for from now on.
    pub fn poll_timeout(&mut self, clock: &H::Clock) -> Option<Instant> {
        self.requester.start_timers(&self.attr, clock);
        let requests = match &self.unreliable {
            _ if !self.state.sends() => None,
            Some(unreliable) => unreliable.requester.deadline(),
            None => self.requester.deadline(),
        };
        match self.kept_until() {
            None => requests,
            Some(at) => Some(requests.map_or(at, |other| other.min(at))),
        }
    }

    /// From when on [`handle_timeout`](Self::handle_timeout) takes its peer for silent, and counts a try. Whoever may have
    /// packets that it was not given yet should give it these before.
    pub fn ack_deadline(&self) -> Option<Instant> {
        self.requester.ack_deadline()
    }

    /// Until when it keeps something back because it may ([`crate::quirks`]): then it leaves with [`transmit`](Self::transmit).
    pub fn kept_until(&self) -> Option<Instant> {
        self.responder.kept_until()
    }

    /// What it keeps back because it may ([`crate::quirks`]) leaves with the next [`transmit`](Self::transmit): there may
    /// be no other.
    pub fn flush_delayed(&mut self, io: &Io<'_, H>) {
        self.responder.flush_delayed(self.config.quirks().acks, io.clock);
    }

    /// Sends what is to be sent: answers first, then requests as far as the window, the peer's credits, and its
    /// responder resources allow. A lone ACK goes behind a single short request, where a network can take it as the
    /// short end of one run; there is no order between the two (IBA 9.7.2, 9.7.5).
    pub fn transmit(&mut self, io: &mut Io<'_, H>) -> Progress {
        if self.unreliable.is_some() {
            return self.transmit_unreliable(io);
        }
        let keeps_back = self.keeps_back(io);
        let request_first = !keeps_back
            && self.responder.responses.is_lone_ack()
            && self.state == QpState::Rts
            && self.requester.has_short_output(self.attr.path_mtu);
        let Some(route) = &self.route else { return Progress::Idle };
        // If it fails, that counts below: the ACK is of a message that was received.
        if request_first && self.requester.transmit(&self.config, &self.attr, route, io, true) == Progress::Blocked {
            return Progress::Blocked;
        }
        let posted = self.rq.len();
        let answers = &mut self.responder.responses;
        let answered = match keeps_back {
            true => Ok(Progress::Idle),
            false => answers.transmit(&self.config, &self.attr, posted, route, io, RESPONSE_BURST),
        };
        let answered = match answered {
            Ok(Progress::Blocked) => return Progress::Blocked,
            Ok(progress) => progress,
            // The peer asks for the rest again.
            Err(gone) if gone.refusal == Refusal::Silent => return Progress::Idle,
            // In ERR nobody needs to be told any more.
            Err(_) if self.state == QpState::Err => return Progress::Idle,
            Err(gone) => {
                self.responder_fault(io, ResponderFault::remote(gone.refusal), None, gone.psn);
                return Progress::More;
            }
        };
        if !self.state.sends() {
            return answered;
        }
        let may_start = self.state == QpState::Rts;
        // What went first was mostly all: another attempt would only find that out, at a greater price.
        let requested = if request_first && !self.requester.has_output() {
            Progress::Idle
        } else {
            self.requester.transmit(&self.config, &self.attr, route, io, may_start)
        };
        if let Some(status) = self.requester.failed_front() {
            self.fail_send(io, status);
        }
        if requested == Progress::Idle { answered } else { requested }
    }

    /// Packets that it may have outstanding now.
    pub const fn window(&self) -> u32 {
        self.requester.window()
    }

    /// Whether all that a call of [`transmit`](Self::transmit) would send is an ACK, for which a short time does not
    /// matter: the next request could take it along.
    pub fn owes_only_ack(&self) -> bool {
        self.responder.responses.is_lone_ack() && !(self.state.sends() && self.requester.has_output())
    }

    /// Whether it owes its peer an acknowledgement or response.
    pub fn owes_answer(&self) -> bool {
        !self.responder.responses.is_empty()
    }

    /// The PSN of the ACK that is owed, if nothing else is.
    pub fn pending_ack(&self) -> Option<Psn> {
        self.responder.responses.lone_ack()
    }

    /// Whether it has refused a request and not said so yet: its peer sends in vain meanwhile.
    pub fn owes_refusal(&self) -> bool {
        self.responder.responses.has_refusal()
    }

    /// Whether the send queue is full of requests that complete without a word: nobody will learn when there is room.
    pub fn is_stuck(&self) -> bool {
        let full = self.config.cap.max_send_wr as usize;
        self.unreliable.is_none()
            && self.requester.len() >= full
            && self.requester.queue.iter().all(|wqe| !wqe.signaled)
    }

    /// Whether a call of [`transmit`](Self::transmit) could send something.
    pub fn has_output(&self) -> bool {
        match &self.unreliable {
            Some(unreliable) => self.state.sends() && unreliable.requester.has_output(),
            None => !self.responder.responses.is_empty() || (self.state.sends() && self.requester.has_output()),
        }
    }

    /// The checks that come before requester and responder (IBA 9.6.1).
    //= spec/packets.md#pkt-013
    //# A packet of another transport, partition or peer than the queue pair's MUST be dropped without an answer.
    fn admit(&self, packet: &Packet<'_>, info: &OpcodeInfo, origin: &Origin<H>) -> Result<(), DropReason> {
        let bth = packet.bth();
        //= spec/states.md#qps-008
        //# Packets MUST be dropped in the states that do not receive.
        if !self.state.receives() {
            return Err(DropReason::State(self.state));
        }
        let transport = bth.opcode.transport();
        // XRC is one way: the initiator takes only responses.
        let backwards = self.config.qp_type == QpType::XrcSend && info.role == Role::Request;
        if backwards || (transport != self.config.qp_type.transport() && transport != Transport::Cnp) {
            return Err(DropReason::Transport);
        }
        if !bth.p_key.matches(PKey::DEFAULT) {
            return Err(DropReason::PKey);
        }
        match &self.route {
            Some(route) if !H::Network::is_from(route, origin) => Err(DropReason::Stranger),
            Some(_) | None => Ok(()),
        }
    }

    fn drop_packet(&self, io: &mut Io<'_, H>, packet: &Packet<'_>, reason: DropReason) {
        let (opcode, psn) = (packet.bth().opcode, packet.bth().psn);
        io.consumer.trace(self.config.qpn, Event::Dropped { opcode, psn, reason });
    }

    fn handle_response(&mut self, io: &mut Io<'_, H>, packet: &Packet<'_>) -> bool {
        if !self.state.sends() {
            self.drop_packet(io, packet, DropReason::State(self.state));
            return false;
        }
        match self.requester.handle_response(&self.config, &self.attr, io, packet) {
            Ok(()) => {
                if let Some(status) = self.requester.failed_front() {
                    self.fail_send(io, status);
                }
                self.check_drained(io);
                return true;
            }
            Err(send::Failure::Dropped(reason)) => self.drop_packet(io, packet, reason),
            Err(send::Failure::Front(status)) => self.fail_send(io, status),
        }
        false
    }

    /// The oldest send request failed: it completes with `status`, and everything behind it is flushed.
    fn fail_send(&mut self, io: &mut Io<'_, H>, status: WcStatus) {
        self.responder.clear();
        self.requester.fail_front(&self.config, io, status);
        self.enter_error(io);
    }

    /// To ERR: everything queued completes as flushed, sends first (IBA 10.3.1.7, 10.8.3.1).
    //= spec/states.md#qps-004
    //# In ERR every work request, posted before or then, MUST complete as flushed, in order.
    fn enter_error(&mut self, io: &mut Io<'_, H>) {
        let was_in_error = self.state == QpState::Err;
        self.set_state(io, QpState::Err);
        self.flush_send(io);
        self.flush_recv(io);
        self.drain_pending = false;
        // It takes nothing from the SRQ any more (IBA 11.6.3.1 "Last WQE Reached").
        if self.config.srq.is_some() && !was_in_error {
            io.consumer.async_event(self.config.qpn, AsyncEvent::LastWqeReached);
        }
    }

    fn flush_send(&mut self, io: &mut Io<'_, H>) {
        match &mut self.unreliable {
            Some(unreliable) => unreliable.requester.flush(&self.config, io),
            None => self.requester.flush(&self.config, io),
        }
    }

    fn flush_recv(&mut self, io: &mut Io<'_, H>) {
        let unfinished = self.responder.take_inbound_recv();
        let queued = core::mem::take(&mut self.rq);
        for wr in unfinished.into_iter().chain(queued) {
            let cqe = Cqe {
                wr_id: wr.wr_id,
                status: WcStatus::WrFlushError,
                opcode: WcOpcode::Recv,
                qpn: self.config.qpn,
                byte_len: 0,
                imm: None,
                invalidated: None,
                at: io.now(),
                src_qp: Qpn::default(),
                solicited: false,
                grh: None,
            };
            self.complete_recv(io, cqe);
        }
    }

    /// To RESET: everything is forgotten, without completions (IBA 10.3.1.1).
    //= spec/states.md#qps-005
    //# RESET MUST forget everything without completions.
    fn reset(&mut self, io: &Io<'_, H>) {
        self.requester.undo_binds(&self.config, io);
        self.requester = Requester::new(self.config.window);
        self.responder = Responder::default();
        self.unreliable = Unreliable::new(&self.config);
        self.rq.clear();
        self.xrc_srq = None;
        self.attr = initial_attr(&self.config);
        self.route = None;
        self.drain_pending = false;
    }

    fn set_state(&mut self, io: &mut Io<'_, H>, to: QpState) {
        let from = core::mem::replace(&mut self.state, to);
        if from != to {
            io.consumer.trace(self.config.qpn, Event::State { from, to });
        }
    }

    /// In SQD, tells the consumer once nothing is outstanding (IBA 10.3.1.5).
    //= spec/states.md#qps-006
    //# In SQD no new request MUST be begun, and SQ_DRAINED be raised when asked for and all begun have completed.
    fn check_drained(&mut self, io: &mut Io<'_, H>) {
        let drained = match &self.unreliable {
            Some(unreliable) => unreliable.requester.is_drained(),
            None => self.requester.is_drained(),
        };
        if self.state == QpState::Sqd && self.drain_pending && drained {
            self.drain_pending = false;
            if self.attr.sqd_notify {
                io.consumer.async_event(self.config.qpn, AsyncEvent::SqDrained);
            }
        }
    }
}

/// Attributes before any is set. UD has no path MTU of its own: the port's is its limit.
fn initial_attr<H: Host>(config: &QpConfig<H>) -> QpAttr {
    match config.qp_type {
        QpType::Ud => QpAttr { path_mtu: config.port_mtu, ..QpAttr::default() },
        _ => QpAttr::default(),
    }
}

/// The opcode of `operation` in packets of a QP of this type.
///
/// # Panics
/// If its transport does not have the operation, which `post_send` refuses.
#[inline]
fn opcode(qp_type: QpType, operation: Operation) -> Opcode {
    Opcode::new(qp_type.transport(), operation).expect("post_send let only operations of the transport in")
}
