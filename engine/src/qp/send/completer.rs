//! The completer: what responses mean for the requests outstanding (IBA 9.7.5, 9.7.6, 9.7.7).

use urxe_wire::opcode::{Kind, OpcodeInfo, Position};
use urxe_wire::{Aeth, Credits, Ext, NakCode, Packet, Psn, Syndrome};

use super::reliable::Reliable;
use super::wqe::Span;
use crate::cq::WcStatus;
use crate::event::{DropReason, Event, Nak, RetryReason};
use crate::fault::ResponseFault;
use crate::host::{Consumer, Host, Io};
use crate::qp::QpConfig;
use crate::qp::attr::QpAttr;
use crate::qp::sge::scatter;
use crate::work::{Data, SendOp};

/// A response that is not simply taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::qp) enum Failure {
    /// The response is thrown away.
    Dropped(DropReason),
    /// The oldest WQE completes with this status, and the QP goes to ERR.
    Front(WcStatus),
}

impl From<WcStatus> for Failure {
    fn from(status: WcStatus) -> Self {
        Self::Front(status)
    }
}

impl From<ResponseFault> for Failure {
    fn from(fault: ResponseFault) -> Self {
        Self::Front(fault.status())
    }
}

impl Reliable {
    /// Takes a response.
    // A part of the caller, as what follows is: handing over what an ACK needs would cost as much as it does.
    #[inline(always)]
    pub(in crate::qp) fn handle_response<H: Host>(
        &mut self,
        config: &QpConfig<H>,
        attr: &QpAttr,
        io: &mut Io<'_, H>,
        packet: &Packet<'_>,
    ) -> Result<(), Failure> {
        let psn = packet.bth().psn;
        let info = packet.bth().opcode.info();
        match (info.kind, packet.ext()) {
            (Kind::Acknowledge, Ext::Aeth(aeth)) => self.handle_acknowledge(config, attr, io, psn, aeth),
            (Kind::AtomicAcknowledge, Ext::AethAtomicAckEth(aeth, ack)) => {
                self.take_response(config, attr, io, psn, info, Some(aeth), &ack.original.to_ne_bytes())
            }
            (Kind::ReadResponse, ext) => {
                let aeth = if let Ext::Aeth(aeth) = ext { Some(aeth) } else { None };
                self.take_response(config, attr, io, psn, info, aeth, packet.payload)
            }
            _ => Err(Failure::Dropped(DropReason::UnexpectedResponse)),
        }
    }

    /// The PSN of the response that comes next, if any is outstanding.
    pub(super) fn due(&self) -> Option<Psn> {
        let chunk = self.reads.front()?;
        Some(if chunk.first.distance_from(self.snd_una) < 0 { self.snd_una } else { chunk.first })
    }

    #[inline(always)]
    fn handle_acknowledge<H: Host>(
        &mut self,
        config: &QpConfig<H>,
        attr: &QpAttr,
        io: &mut Io<'_, H>,
        psn: Psn,
        aeth: &Aeth,
    ) -> Result<(), Failure> {
        // An ACK names the last packet taken, a NAK the first one not taken.
        let before = match aeth.syndrome {
            Syndrome::Ack(_) => psn.next(),
            Syndrome::RnrNak(_) | Syndrome::Nak(_) => psn,
        };
        //= spec/completer.md#cmp-001
        //# An acknowledgement of what is not outstanding MUST change nothing.
        if before.distance_from(self.snd_una) < 0 || before.distance_from(self.snd_max()) > 0 {
            return Err(Failure::Dropped(DropReason::GhostAck));
        }
        self.trace_nak(config, io, psn, aeth);
        // Responses still missing mean that they were lost, however much is acknowledged.
        let implied_nak = self.due().filter(|missing| missing.distance_from(before) < 0);
        if self.selective.is_on() && (self.selective.board().is_some() || implied_nak.is_some()) {
            return self.handle_selective_acknowledge(config, attr, io, psn, before, aeth);
        }
        self.acknowledged_before(config, attr, io, implied_nak.unwrap_or(before));
        //= spec/completer.md#cmp-003
        //# An acknowledgement behind an unanswered READ or atomic MUST be taken as news that the response was lost.
        if let Some(at) = implied_nak {
            // The request that misses a response is the one refused: nothing still to come would make it whole, and who
            // has refused may answer no more.
            let is_same = self.queue.front().and_then(|wqe| wqe.sent).is_some_and(|span| span.contains(psn));
            let refused = match aeth.syndrome {
                Syndrome::Nak(code) if is_same => refusal(code),
                _ => None,
            };
            return match refused {
                Some(status) => Err(Failure::Front(status)),
                None => self.imply_nak(config, attr, io, at),
            };
        }
        match aeth.syndrome {
            Syndrome::Ack(_) => {
                self.take_credits(aeth);
                Ok(())
            }
            // Nothing is outstanding that could be refused.
            _ if self.snd_una == self.snd_max() => Err(Failure::Dropped(DropReason::GhostAck)),
            Syndrome::RnrNak(timer) => Ok(self.wait_for_receiver(config, attr, io, timer.duration())?),
            Syndrome::Nak(code) => match refusal(code) {
                //= spec/completer.md#cmp-004
                //# After a PSN sequence error NAK everything from the PSN it names on MUST be sent again.
                None => Ok(self.retry(config, attr, io, RetryReason::SequenceNak)?),
                //= spec/completer.md#cmp-005
                //# A NAK of an error MUST fail the request it names with the status of its code.
                Some(status) => Err(Failure::Front(status)),
            },
        }
    }

    /// Takes a response with its payload. At `psn` it acknowledges all before it (IBA 9.7.5.1.2).
    #[expect(clippy::too_many_arguments, reason = "a response's parts, and the surroundings")]
    fn take_response<H: Host>(
        &mut self,
        config: &QpConfig<H>,
        attr: &QpAttr,
        io: &mut Io<'_, H>,
        psn: Psn,
        info: &OpcodeInfo,
        aeth: Option<&Aeth>,
        payload: &[u8],
    ) -> Result<(), Failure> {
        //= spec/completer.md#cmp-007
        //# A duplicate of a response MUST change nothing.
        if psn.distance_from(self.snd_una) < 0 || psn.distance_from(self.snd_max()) >= 0 {
            if self.selective.is_on() && psn.distance_from(self.snd_una) < 0 {
                self.count_in_vain(config, io);
            }
            return Err(Failure::Dropped(DropReason::GhostAck));
        }
        //= spec/completer.md#cmp-008
        //# A response to what was never asked for MUST be dropped.
        let Some(due) = self.due() else {
            return Err(Failure::Dropped(DropReason::UnexpectedResponse));
        };
        if self.selective.is_on() && (psn != due || self.selective.board().is_some()) {
            return self.take_selective_response(config, attr, io, psn, info, aeth, payload);
        }
        if psn.distance_from(due) < 0 {
            // Within a SEND or WRITE: no response has this PSN.
            return Err(Failure::Dropped(DropReason::UnexpectedResponse));
        }
        self.acknowledged_before(config, attr, io, due);
        if psn != due {
            return self.imply_nak(config, attr, io, due);
        }
        self.check_kind(0, info.kind, aeth)?;
        //= spec/completer.md#cmp-010
        //# READ responses MUST be an Only, or a First, Middles and a Last, from the PSN of a READ request to the last PSN
        //# that it asks for; any others MUST fail the request with IBV_WC_BAD_RESP_ERR.
        if !self.reads.front().is_some_and(|chunk| self.can_be(info.position, psn, *chunk)) {
            return Err(ResponseFault::Position.into());
        }
        self.store_response(config, attr, io, 0, psn, payload)?;
        self.acknowledged_before(config, attr, io, psn.next());
        if let Some(aeth) = aeth {
            self.take_credits(aeth);
        }
        Ok(())
    }

    /// Whether `chunk` can have a response of this position at `psn`. The oldest may have been asked for again from its middle
    /// on, and the old responses still be under way. With selective repeat any part of each may have been, so only its first
    /// and last PSN tell.
    pub(super) fn can_be(&self, position: Position, psn: Psn, chunk: Span) -> bool {
        if self.selective.is_on() {
            //= spec/selective.md#sel-012
            //# The response at the first PSN of a READ request MUST be an Only or a First, and the one at its last PSN an Only or
            //# a Last; others MUST fail the request with IBV_WC_BAD_RESP_ERR.
            return (psn != chunk.first || position.starts()) && (psn != chunk.last || position.ends());
        }
        let begins = psn == chunk.first || self.resumed_at == Some(psn);
        let goes_on = psn != chunk.first;
        (if position.starts() { begins } else { goes_on }) && position.ends() == (psn == chunk.last)
    }

    /// A response before this one is missing: ask again, once.
    fn imply_nak<H: Host>(
        &mut self,
        config: &QpConfig<H>,
        attr: &QpAttr,
        io: &mut Io<'_, H>,
        at: Psn,
    ) -> Result<(), Failure> {
        if self.implied_nak_at != Some(at) {
            self.retry(config, attr, io, RetryReason::ImpliedNak)?;
            self.implied_nak_at = Some(at);
        }
        Err(Failure::Dropped(DropReason::OutOfSequence))
    }

    /// Whether the `nth` request is answered by a response of this kind.
    pub(super) fn check_kind(&self, nth: usize, kind: Kind, aeth: Option<&Aeth>) -> Result<(), ResponseFault> {
        // A refusal has no data: an Acknowledge packet of its own carries it.
        if aeth.is_some_and(|aeth| !matches!(aeth.syndrome, Syndrome::Ack(_))) {
            return Err(ResponseFault::Refusal);
        }
        let wqe = self.queue.get(nth).ok_or(ResponseFault::Kind)?;
        match (&wqe.wr.op, kind) {
            // A FLUSH and an ATOMIC WRITE are answered by a READ response without data (IBA annex A19).
            (SendOp::Read(_) | SendOp::AtomicWrite(_) | SendOp::Flush { .. }, Kind::ReadResponse)
            | (SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. }, Kind::AtomicAcknowledge) => Ok(()),
            _ => Err(ResponseFault::Kind),
        }
    }

    /// Stores the payload of the response at `psn` to the `nth` request.
    pub(super) fn store_response<H: Host>(
        &self,
        config: &QpConfig<H>,
        attr: &QpAttr,
        io: &Io<'_, H>,
        nth: usize,
        psn: Psn,
        payload: &[u8],
    ) -> Result<(), Failure> {
        let wqe = self.queue.get(nth).ok_or(ResponseFault::Kind)?;
        let span = wqe.sent.ok_or(ResponseFault::Kind)?;
        let mtu = attr.path_mtu.bytes();
        let offset = psn.advance_from(span.first) as usize * mtu;
        // Chunks end at multiples of the MTU, so what a response must hold follows from its PSN alone; its
        // position may be that of an earlier request for the same bytes.
        let expected = match &wqe.wr.op {
            SendOp::Read(_) => (wqe.length as usize).checked_sub(offset).ok_or(ResponseFault::Length)?.min(mtu),
            SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. } => 8,
            _ => 0,
        };
        //= spec/completer.md#cmp-006
        //# A response whose kind or length is not what its PSN demands MUST fail the request with IBV_WC_BAD_RESP_ERR.
        if payload.len() != expected {
            return Err(ResponseFault::Length.into());
        }
        match &wqe.wr.data {
            //= spec/completer.md#cmp-009
            //# A response MUST be stored only where an L_Key allows local writing.
            Data::Gather(list) => scatter(io.memory, config.pd, list, offset, payload)
                .map_err(|_| Failure::Front(WcStatus::LocalProtectionError))?,
            Data::Inline(_) if payload.is_empty() => {}
            Data::Inline(_) => return Err(ResponseFault::NoBuffer.into()),
        }
        Ok(())
    }

    pub(super) fn take_credits(&mut self, aeth: &Aeth) {
        if let Syndrome::Ack(credits) = aeth.syndrome {
            self.credits(Credits::wqes(credits));
        }
    }

    fn trace_nak<H: Host>(&self, config: &QpConfig<H>, io: &mut Io<'_, H>, psn: Psn, aeth: &Aeth) {
        let nak = match aeth.syndrome {
            Syndrome::Ack(_) => return,
            Syndrome::RnrNak(timer) => Nak::Rnr(timer),
            Syndrome::Nak(code) => Nak::Code(code),
        };
        io.consumer.trace(config.qpn, Event::ReceivedNak { nak, psn });
    }
}

/// Status with which the request fails that a NAK names; `None` if it is to be sent again.
pub(super) const fn refusal(code: NakCode) -> Option<WcStatus> {
    match code {
        NakCode::PsnSequenceError => None,
        NakCode::RemoteAccessError => Some(WcStatus::RemoteAccessError),
        NakCode::RemoteOperationalError => Some(WcStatus::RemoteOperationError),
        NakCode::InvalidRequest | NakCode::InvalidRdRequest => Some(WcStatus::RemoteInvalidRequestError),
    }
}
