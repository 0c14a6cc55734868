//! Posting work requests: the checks, and the way into the queues.
//!
//! Posting sends is inlined into the loop over a list: the calls would cost as much as what they do.

use alloc::vec::Vec;

use super::{QpConfig, QpState, QpType, QueuePair, Route, SendSide};
use crate::host::{Host, Io};
use crate::memory::Memory as _;
use crate::work::{Data, PostError, Recipient, RecvWr, SendOp, SendWr, UdRecipient};

impl<H: Host> QueuePair<H> {
    /// Posts a send request (`ibv_post_send(3)`), on UD with a recipient. It leaves in the next
    /// [`transmit`](Self::transmit).
    ///
    /// # Errors
    /// Says what is wrong; the request is not queued then.
    pub fn post_send(
        &mut self,
        io: &mut Io<'_, H>,
        wr: SendWr,
        to: Option<UdRecipient<Route<H>>>,
    ) -> Result<(), PostError> {
        self.post_send_with(io, |place| {
            *place = wr;
            Ok(to)
        })
    }

    /// Posts the send request that `write` writes, all of it, in its place in the send queue. What is there before means
    /// nothing.
    ///
    /// # Errors
    /// [`PostError`] as [`post_send`](Self::post_send), or the error of `write`; the request is not queued then.
    #[inline(always)]
    pub fn post_send_with<E: From<PostError>>(
        &mut self,
        io: &mut Io<'_, H>,
        write: impl FnOnce(&mut SendWr) -> Result<Option<UdRecipient<Route<H>>>, E>,
    ) -> Result<(), E> {
        self.check_queue(1)?;
        let wqe = self.send.vacant();
        let to = write(&mut wqe.wr)?;
        let length = self.config.check_send(&wqe.wr, to.is_some())?;
        wqe.begin(length, self.config.sq_sig_all);
        // Written here and not passed on: a move of the `Option` reads it in other sizes than it was stored in, and waits for those stores.
        if let Some(to) = to {
            self.send.address(to);
        }
        self.take_in(io);
        Ok(())
    }

    /// Whether a host that reaches the peer could carry out a request at once that is posted now, and nothing would be left to do, since
    /// nothing is queued, outstanding, owed or kept back.
    pub fn goes_straight(&mut self) -> bool {
        let SendSide::Reliable(requester) = &mut self.send else { return false };
        self.state == QpState::Rts
            && requester.is_idle()
            && self.responder.responses.is_empty()
            && !self.owes_selective()
            && self.kept_until().is_none()
    }

    /// Ends a call that posts requests, on a host that reaches the peer: what it has carried out takes no room in the queue any more.
    pub const fn end_posting(&mut self) {
        if let SendSide::Reliable(requester) = &mut self.send {
            requester.posted = 0;
        }
    }

    /// Posts several send requests, or none (`ibv_wr_complete(3)`); those on UD with a recipient. `wrs` is empty
    /// afterwards.
    ///
    /// # Errors
    /// [`PostError`] of the first request that cannot be posted; none is queued then.
    pub fn post_send_all(
        &mut self,
        io: &mut Io<'_, H>,
        wrs: &mut Vec<(SendWr, Option<UdRecipient<Route<H>>>)>,
    ) -> Result<(), PostError> {
        let checked = wrs.iter().zip(1..).try_for_each(|((wr, to), count)| {
            self.check_queue(count)?;
            self.config.check_send(wr, to.is_some()).map(drop)
        });
        for (wr, to) in wrs.drain(..) {
            if checked.is_ok() {
                let length = u32::try_from(wr.data.length()).map_err(|_| PostError::Length)?;
                let wqe = self.send.vacant();
                wqe.wr = wr;
                wqe.begin(length, self.config.sq_sig_all);
                if let Some(to) = to {
                    self.send.address(to);
                }
                self.take_in(io);
            }
        }
        checked
    }

    /// Posts a receive request (`ibv_post_recv(3)`).
    ///
    /// # Errors
    /// Says what is wrong; the request is not queued then.
    #[inline]
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
        self.rq_posted += 1;
        if self.state == QpState::Err {
            self.flush_recv(io);
        } else if self.state.receives() {
            self.responder.receive_posted(self.rq.len());
        }
        Ok(())
    }

    /// Queues the request that was written in the vacant place, unless the host carries it out.
    #[inline(always)]
    fn take_in(&mut self, io: &mut Io<'_, H>) {
        if io.memory.reaches_peer() && self.carry_out_posted(io) {
            return;
        }
        self.send.push();
        if matches!(self.state, QpState::Err | QpState::Sqe) {
            self.send.flush(&self.config, io);
        }
    }

    /// Whether the host has carried out the request that was written in the vacant place.
    #[inline]
    fn carry_out_posted(&mut self, io: &mut Io<'_, H>) -> bool {
        let Self { config, attr, send: SendSide::Reliable(requester), state: QpState::Rts, .. } = self else {
            return false;
        };
        requester.carry_out_posted(config, attr, io)
    }

    /// Whether `count` send requests could be queued now.
    #[inline(always)]
    fn check_queue(&self, count: usize) -> Result<(), PostError> {
        match self.state {
            QpState::Rts | QpState::Sqd | QpState::Sqe | QpState::Err => {}
            //= spec/states.md#qps-007
            //# Send requests MUST be refused with EINVAL in RESET, INIT and RTR; receive requests in RESET.
            QpState::Reset | QpState::Init | QpState::Rtr => return Err(PostError::State(self.state)),
        }
        // It has no send queue that could be full.
        if self.config.qp_type == QpType::XrcRecv {
            return Err(PostError::Operation);
        }
        if self.send.len() + count > self.config.cap.max_send_wr as usize { Err(PostError::QueueFull) } else { Ok(()) }
    }
}

impl<H: Host> QpConfig<H> {
    /// Whether `wr` is one that such a queue pair carries out, addressed as UD wants it or not; its length.
    #[inline(always)]
    fn check_send(&self, wr: &SendWr, addressed: bool) -> Result<u32, PostError> {
        match &wr.data {
            Data::Gather(list) if list.as_slice().len() > self.cap.max_send_sge as usize => {
                return Err(PostError::TooManySge);
            }
            // The eight bytes of an ATOMIC WRITE are always inline in `ibv_wr_atomic_write`.
            Data::Inline(bytes) if bytes.len() > self.cap.max_inline_data as usize && !wr.op.is_eight_bytes() => {
                //= spec/requester.md#req-020
                //# A work request with more elements or inline data than the queue pair was made for MUST be refused
                //# when posted.
                return Err(PostError::InlineTooLong);
            }
            Data::Gather(_) | Data::Inline(_) => {}
        }
        let length = u32::try_from(wr.data.length()).ok().filter(|&length| length <= 1 << 31);
        let length = length.ok_or(PostError::Length)?;
        // A FLUSH has no bytes of its own, whose PSNs its peer would not count.
        if (wr.op.is_eight_bytes() && length != 8) || (matches!(wr.op, SendOp::Flush { .. }) && length != 0) {
            return Err(PostError::Length);
        }
        // There is no place inline for what comes back (`ibv_post_send(3)`).
        let nowhere = wr.op.is_response_bearing() && matches!(wr.data, Data::Inline(_));
        let astray = matches!(wr.to, Recipient::XrcSrq(_)) != (self.qp_type == QpType::XrcSend);
        let astray = astray && !wr.op.is_local();
        let astray = astray || addressed != (self.qp_type == QpType::Ud);
        if nowhere || astray || !self.qp_type.carries(&wr.op) {
            return Err(PostError::Operation);
        }
        Ok(length)
    }
}
