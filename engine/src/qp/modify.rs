//! State changes: `modify`, errors that end in ERR or SQE, RESET, and the end of draining in SQD.

use core::mem;

use urxe_wire::{Lid, Qpn};

use super::agreement::Agreement;
use super::attr::{AttrMask, QpAttr};
use super::migration::{Migration, Paths};
use super::recv::responder::Responder;
use super::send::SendSide;
use super::state::QpState;
use super::transition::{ModifyError, check};
use super::{QueuePair, Route, initial_attr};
use crate::async_event::AsyncEvent;
use crate::congestion::NotificationPoint;
use crate::cq::{Cqe, FrameCompletion, WcOpcode, WcStatus};
use crate::event::Event;
use crate::host::{Consumer, Host, Io};

impl<H: Host> QueuePair<H> {
    /// Changes state and attributes (`ibv_modify_qp(3)`, IBA 11.2.5.2). `paths`, or but a route to the peer, must have the
    /// primary path with [`AttrMask::AV`] and the alternate one with [`AttrMask::ALT_PATH`]. To change attributes only, `to` is the
    /// present state.
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
        paths: impl Into<Paths<Route<H>>>,
    ) -> Result<(), ModifyError> {
        let from = self.state;
        let Paths { primary, alternate } = paths.into();
        check(self.config.qp_type, from, to, mask)?;
        for (bit, bad) in [
            (AttrMask::TIMEOUT, given.timeout > 31),
            (AttrMask::RETRY_CNT, given.retry_cnt > 7),
            (AttrMask::RNR_RETRY, given.rnr_retry > 7),
            (AttrMask::AV, primary.is_none()),
        ] {
            if mask.contains(bit) && bad {
                //= spec/states.md#qps-003
                //# An attribute whose value is out of range MUST be refused with EINVAL.
                return Err(ModifyError::Value(bit));
            }
        }
        self.check_migration(mask, given, alternate.is_some())?;
        self.attr = self.attr.overlaid(given, mask);
        if mask.contains(AttrMask::AV) {
            self.route = primary;
        }
        self.modify_migration(io, mask, given, alternate);
        match to {
            QpState::Reset => self.reset(io),
            QpState::Err => {
                self.responder.clear();
                self.enter_error(io);
            }
            QpState::Rtr => self.responder.start(self.attr.rq_psn),
            QpState::Rts if from == QpState::Rtr => self.send.start(&self.attr),
            QpState::Sqd if from != QpState::Sqd => {
                self.drain_pending = true;
                // Asked for each time anew: it is about this change of state.
                self.attr.sqd_notify &= mask.contains(AttrMask::EN_SQD_ASYNC_NOTIFY);
            }
            QpState::Rts => self.drain_pending = false,
            QpState::Sqd | QpState::Init | QpState::Sqe => {}
        }
        self.set_state(io, to);
        if let SendSide::Reliable(reliable) = &mut self.send {
            reliable.attributes_changed(&self.attr);
        }
        self.check_drained(io);
        Ok(())
    }

    /// Puts the QP into ERR because its surroundings failed, such as a CQ that overran (IBA 10.3.1.7).
    pub fn fail(&mut self, io: &mut Io<'_, H>) {
        if self.state != QpState::Reset {
            self.responder.clear();
            self.enter_error(io);
        }
    }

    /// The oldest send request failed: it completes with `status`, and everything behind it is flushed; unless another path is left
    /// to try.
    pub(super) fn fail_send(&mut self, io: &mut Io<'_, H>, status: WcStatus) {
        if status == WcStatus::RetryExceededError && self.survives_retries(io) {
            return;
        }
        self.responder.clear();
        if let SendSide::Reliable(reliable) = &mut self.send {
            reliable.fail_front(&self.config, io, status);
        }
        self.enter_error(io);
    }

    /// Enters ERR: everything queued completes as flushed, sends first (IBA 10.3.1.7, 10.8.3.1).
    //= spec/states.md#qps-004
    //# In ERR every work request, posted before or then, MUST complete as flushed, in order.
    pub(super) fn enter_error(&mut self, io: &mut Io<'_, H>) {
        let was_in_error = self.state == QpState::Err;
        self.set_state(io, QpState::Err);
        self.send.flush(&self.config, io);
        self.flush_recv(io);
        self.responder.kept = None;
        self.agreement.owe_nothing();
        self.drain_pending = false;
        // It takes nothing from the SRQ any more (IBA 11.6.3.1 "Last WQE Reached").
        if self.config.srq.is_some() && !was_in_error {
            io.consumer.async_event(self.config.qpn, AsyncEvent::LastWqeReached);
        }
    }

    pub(super) fn flush_recv(&mut self, io: &mut Io<'_, H>) {
        let unfinished = self.responder.take_inbound_recv();
        let queued = mem::take(&mut self.rq);
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
                slid: Lid::NONE,
                frame: FrameCompletion::default(),
                refusal: None,
            };
            self.complete_recv(io, cqe);
        }
    }

    /// To RESET: everything is forgotten, without completions (IBA 10.3.1.1).
    //= spec/states.md#qps-005
    //# RESET MUST forget everything without completions.
    fn reset(&mut self, io: &Io<'_, H>) {
        if let SendSide::Reliable(reliable) = &self.send {
            reliable.undo_binds(&self.config, io);
        }
        self.send = SendSide::new(&self.config);
        self.responder = Responder::default();
        self.rq.clear();
        self.xrc_srq = None;
        self.attr = initial_attr(&self.config);
        self.route = None;
        self.drain_pending = false;
        self.notification = NotificationPoint::default();
        self.agreement = Agreement::default();
        self.migration = Migration::default();
    }

    pub(super) fn set_state(&mut self, io: &mut Io<'_, H>, to: QpState) {
        let from = mem::replace(&mut self.state, to);
        if from != to {
            io.consumer.trace(self.config.qpn, Event::State { from, to });
        }
    }

    /// Tells the consumer, in SQD, once nothing is outstanding (IBA 10.3.1.5).
    //= spec/states.md#qps-006
    //# In SQD no new request MUST be begun, and SQ_DRAINED be raised when asked for and all begun have completed.
    pub(super) fn check_drained(&mut self, io: &mut Io<'_, H>) {
        if self.state == QpState::Sqd && self.drain_pending && self.send.is_drained() {
            self.drain_pending = false;
            if self.attr.sqd_notify {
                io.consumer.async_event(self.config.qpn, AsyncEvent::SqDrained);
            }
        }
    }
}
