//! The queue pair.

mod admit;
mod agreement;
pub mod attr;
mod config;
mod congestion;
pub mod migration;
mod modify;
mod post;
mod psn_bits;
mod qp_type;
mod recv;
mod selective;
mod send;
pub(crate) mod sge;
pub mod state;
mod transition;
mod transmit;

use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::time::Duration;

use urxe_wire::{Opcode, Operation, Psn, Qpn};

use crate::congestion::NotificationPoint;
use crate::counter::{AttachError, CountedOps};
use crate::host::{Consumer, Host, Io, Network};
use crate::quirks::Quirks as _;
use crate::time::Instant;
use crate::work::RecvWr;
use agreement::Agreement;
use attr::QpAttr;
pub use config::{Progress, QpCap, QpConfig};
use migration::Migration;
pub use qp_type::QpType;
use recv::responder::Responder;
pub use send::AckTimer;
use send::SendSide;
use state::QpState;
pub use transition::{ModifyError, Transition, check, transition};

type Cq<H> = <<H as Host>::Consumer as Consumer>::Cq;
type Counter<H> = <<H as Host>::Consumer as Consumer>::Counter;
type Srq<H> = <<H as Host>::Consumer as Consumer>::Srq;
type Route<H> = <<H as Host>::Network as Network>::Route;
type Origin<H> = <<H as Host>::Network as Network>::Origin;

/// A queue pair: see the [crate documentation](crate) for how to drive it.
pub struct QueuePair<H: Host> {
    config: QpConfig<H>,
    state: QpState,
    attr: QpAttr,
    route: Option<Route<H>>,
    rq: VecDeque<RecvWr>,
    /// Receive requests posted to it so far.
    rq_posted: u64,
    /// The SRQ of the XRC request being carried out, or the last one, and its number.
    xrc_srq: Option<(Qpn, Srq<H>)>,
    send: SendSide<H>,
    responder: Responder,
    notification: NotificationPoint,
    agreement: Agreement,
    migration: Migration<Route<H>>,
    /// `SQ_DRAINED` is owed.
    drain_pending: bool,
}

impl<H: Host> QueuePair<H> {
    /// A queue pair in RESET.
    #[must_use]
    pub fn new(config: QpConfig<H>) -> Self {
        Self {
            send: SendSide::new(&config),
            state: QpState::Reset,
            attr: initial_attr(&config),
            config,
            route: None,
            rq: VecDeque::new(),
            rq_posted: 0,
            xrc_srq: None,
            responder: Responder::default(),
            notification: NotificationPoint::default(),
            agreement: Agreement::default(),
            migration: Migration::default(),
            drain_pending: false,
        }
    }

    /// The configuration.
    pub const fn config(&self) -> &QpConfig<H> {
        &self.config
    }

    /// The state.
    pub const fn state(&self) -> QpState {
        self.state
    }

    /// The attributes. PSNs are those that would be sent and expected next.
    pub fn attr(&self) -> QpAttr {
        QpAttr { rq_psn: self.responder.expected_psn(), sq_psn: self.send.psn(), ..self.attr }
    }

    /// The PSN that its responder expects.
    pub const fn expected_psn(&self) -> Psn {
        self.responder.expected_psn()
    }

    /// Takes note of requests that the peer has carried out itself ([`crate::direct`]), with as many PSNs and messages as they
    /// would have had.
    pub fn skip_requests(&mut self, psns: u32, messages: u32) {
        self.responder.skip(psns, messages);
    }

    /// Whether the peer may carry out requests itself ([`crate::direct`]): the responder takes requests, and would raise no
    /// event at the next one. Path migration needs packets.
    pub fn may_be_skipped(&self) -> bool {
        let is_known = self.state != QpState::Rtr || self.responder.is_established();
        self.state.receives() && is_known && !self.attr.has_alternate
    }

    /// The queue pair at the other end, as far as it is connected.
    pub const fn dest_qpn(&self) -> Qpn {
        self.attr.dest_qpn
    }

    /// The ACK timeout, of several in a row the shortest; `None` is none.
    #[inline]
    pub fn ack_timeout(&self) -> Option<Duration> {
        self.config.ack_timer.shortest(&self.attr)
    }

    /// The ACK timeout, of several in a row the last; `None` is none.
    pub fn last_ack_timeout(&self) -> Option<Duration> {
        self.config.ack_timer.timeout(&self.attr, u8::MAX)
    }

    /// The way to its peer, once it has one.
    pub const fn route(&self) -> Option<&<<H as Host>::Network as Network>::Route> {
        self.route.as_ref()
    }

    /// Whether a modify to SQD has let everything outstanding complete (`ibv_query_qp(3)`, `sq_draining`).
    pub const fn is_draining(&self) -> bool {
        self.drain_pending
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

    /// Handles the deadlines that have passed: ACK timeouts, ends of RNR waits, acknowledgements that waited.
    pub fn handle_timeout(&mut self, io: &mut Io<'_, H>) {
        self.tell_in_time(io.now());
        if !self.state.sends() {
            return;
        }
        match &mut self.send {
            SendSide::Reliable(reliable) => {
                if let Err(status) = reliable.handle_timeout(&self.config, &self.attr, io) {
                    self.fail_send(io, status);
                }
            }
            SendSide::Unreliable(unreliable) => unreliable.handle_timeout(io.now()),
        }
    }

    /// Time at which [`handle_timeout`](Self::handle_timeout) wants to be called. What was sent since this was asked last has left
    /// now: answers are waited for from now on.
    pub fn poll_timeout(&mut self, clock: &H::Clock) -> Option<Instant> {
        if let SendSide::Reliable(reliable) = &mut self.send {
            reliable.start_timers(&self.attr, clock);
        }
        let requests = if self.state.sends() { self.send.deadline() } else { None };
        let others = [self.kept_until(), self.tell_by()].into_iter().flatten();
        others.fold(requests, |first, at| Some(first.map_or(at, |first| first.min(at))))
    }

    /// Time from which on [`handle_timeout`](Self::handle_timeout) takes its peer for silent, and counts a try. Whoever may have
    /// packets that it was not given yet should give it these before.
    pub fn ack_deadline(&self) -> Option<Instant> {
        match &self.send {
            SendSide::Reliable(reliable) => reliable.ack_deadline(),
            SendSide::Unreliable(_) => None,
        }
    }

    /// Time until which it keeps something back because it may ([`crate::quirks`]): then it leaves with [`transmit`](Self::transmit).
    pub fn kept_until(&self) -> Option<Instant> {
        self.responder.kept_until()
    }

    /// Ends delays by [`crate::quirks`]: what is kept back leaves with the next [`transmit`](Self::transmit); there may
    /// be no other.
    pub fn flush_delayed(&mut self, io: &Io<'_, H>) {
        self.responder.flush_delayed(self.config.quirks.acks(), io.clock);
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
