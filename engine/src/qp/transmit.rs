//! Packets on their way out: the order of answers and requests, and questions about what waits.

use urxe_wire::Psn;

use super::recv::{Burst, Gone};
use super::send::SendSide;
use super::state::QpState;
use super::{Progress, QueuePair};
use crate::fault::ResponderFault;
use crate::host::{Host, Io, Network as _};
use crate::mr::Refusal;

/// Packets of READ responses in one `transmit`: so that a long READ does not keep its thread from receiving.
const RESPONSE_BURST: u32 = 64;

impl<H: Host> QueuePair<H> {
    /// Sends what is to be sent: answers first, then requests as far as the window, the peer's credits, and its
    /// responder resources allow. A lone ACK goes behind a single short request, where a network can take it as the
    /// short end of one run; there is no order between the two (IBA 9.7.2, 9.7.5).
    pub fn transmit(&mut self, io: &mut Io<'_, H>) -> Progress {
        if matches!(self.send, SendSide::Unreliable(_)) {
            return self.transmit_unreliable(io);
        }
        let keeps_back = self.keeps_back(io);
        let path = if keeps_back { 0 } else { self.answers_path() };
        self.tell_before_answers();
        if self.owes_selective()
            && !keeps_back
            && !self.responder.responses.has_refusal()
            && !self.transmit_selective(io, path)
        {
            return Progress::Blocked;
        }
        let SendSide::Reliable(requester) = &mut self.send else { return Progress::Idle };
        let request_first = !keeps_back
            && self.responder.responses.is_lone_ack()
            && self.state == QpState::Rts
            && requester.has_short_output(self.attr.path_mtu);
        let Some(route) = &self.route else { return Progress::Idle };
        // If it fails, that counts below: the ACK is of a message that was received.
        if request_first && requester.transmit(&self.config, &self.attr, route, io, true) == Progress::Blocked {
            return Progress::Blocked;
        }
        let answered = match keeps_back {
            true => Ok(Progress::Idle),
            false if path > 0 || (self.state.sends() && requester.is_limited()) => self.answer_apart(io, path),
            false => {
                let (posted, mut burst) = (self.rq.len(), Burst::of(RESPONSE_BURST));
                self.responder.responses.transmit(&self.config, &self.attr, posted, route, io, &mut burst)
            }
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
        if self.owes_selective() && !keeps_back && !self.transmit_selective(io, path) {
            return Progress::Blocked;
        }
        if !self.state.sends() {
            return answered;
        }
        let Some(route) = &self.route else { return Progress::Idle };
        let SendSide::Reliable(requester) = &mut self.send else { return Progress::Idle };
        let may_start = self.state == QpState::Rts;
        // What went first was mostly all: another attempt would only find that out, at a greater price.
        let requested = if request_first && !requester.has_output() {
            Progress::Idle
        } else {
            requester.transmit(&self.config, &self.attr, route, io, may_start)
        };
        if let Some(status) = requester.failed_front() {
            self.fail_send(io, status);
        }
        self.consider_offer(io);
        if requested == Progress::Idle { answered } else { requested }
    }

    /// Sends answers on `path`, and at a limited rate, which is that of READ responses as well.
    ///
    /// # Errors
    /// [`Gone`]; the answers are forgotten then.
    // Apart: mostly there is one path and no limit.
    #[inline(never)]
    fn answer_apart(&mut self, io: &mut Io<'_, H>, path: u8) -> Result<Progress, Gone> {
        let Some(route) = &self.route else { return Ok(Progress::Idle) };
        let SendSide::Reliable(requester) = &mut self.send else { return Ok(Progress::Idle) };
        let posted = self.rq.len();
        let other = (path > 0).then(|| H::Network::on_path(route, path));
        let route = other.as_ref().unwrap_or(route);
        let answers = &mut self.responder.responses;
        if !self.state.sends() || !requester.is_limited() {
            return answers.transmit(&self.config, &self.attr, posted, route, io, &mut Burst::of(RESPONSE_BURST));
        }
        let most = match requester.allowance(&self.attr, io) {
            Some(most) if !requester.takes_turn() => most.min(RESPONSE_BURST),
            Some(_) | None => 0,
        };
        let mut burst = Burst::of(most);
        let answered = answers.transmit(&self.config, &self.attr, posted, route, io, &mut burst);
        requester.charge(io, burst.sent);
        match answered {
            Ok(Progress::More) if requester.allowance(&self.attr, io).is_none() => Ok(Progress::Idle),
            answered => answered,
        }
    }

    /// Packets that it may have outstanding now.
    pub const fn window(&self) -> u32 {
        match &self.send {
            SendSide::Reliable(reliable) => reliable.window(),
            SendSide::Unreliable(_) => self.config.window,
        }
    }

    /// Whether all that a call of [`transmit`](Self::transmit) would send is an ACK, for which a short time does not
    /// matter: the next request could take it along.
    pub fn owes_only_ack(&self) -> bool {
        self.responder.responses.is_lone_ack() && !self.tells_first() && !(self.state.sends() && self.send.has_output())
    }

    /// Whether the queue pair owes its peer an acknowledgement or response that can leave now: READ responses may wait for their time
    /// at a limited rate.
    pub fn owes_answer(&self) -> bool {
        let responses = &self.responder.responses;
        let is_paced = matches!(&self.send, SendSide::Reliable(requester) if requester.waits_for_rate());
        let waits = responses.is_empty() || (is_paced && responses.has_responses());
        !waits || self.owes_selective()
    }

    /// The PSN of the ACK that is owed, if nothing else is.
    pub fn pending_ack(&self) -> Option<Psn> {
        self.responder.responses.lone_ack()
    }

    /// Whether the queue pair has refused a request and not said so yet: its peer sends in vain meanwhile.
    pub fn owes_refusal(&self) -> bool {
        self.responder.responses.has_refusal()
    }

    /// Whether the send queue is full of requests that complete without a word: nobody will learn when there is room.
    pub fn is_stuck(&self) -> bool {
        let SendSide::Reliable(reliable) = &self.send else { return false };
        reliable.queue.len() >= self.config.cap.max_send_wr as usize && reliable.queue.iter().all(|wqe| !wqe.signaled)
    }

    /// Whether a call of [`transmit`](Self::transmit) could send something.
    pub fn has_output(&self) -> bool {
        !self.responder.responses.is_empty() || self.owes_selective() || (self.state.sends() && self.send.has_output())
    }

    fn transmit_unreliable(&mut self, io: &mut Io<'_, H>) -> Progress {
        let SendSide::Unreliable(requester) = &mut self.send else { return Progress::Idle };
        if !self.state.sends() {
            return Progress::Idle;
        }
        let may_start = self.state == QpState::Rts;
        let route = self.route.as_ref();
        let progress = match requester.transmit(&self.config, &self.attr, route, io, may_start) {
            Ok(progress) => progress,
            Err(status) => {
                // Receiving goes on (IBA 10.3.1.6).
                requester.fail_front(&self.config, io, status);
                requester.flush(&self.config, io);
                self.drain_pending = false;
                self.set_state(io, QpState::Sqe);
                Progress::Idle
            }
        };
        self.check_drained(io);
        progress
    }
}
