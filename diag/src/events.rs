//! Reports of the engine: comments for captures, and explanations.

use std::sync::atomic::Ordering;

use urxe_engine::event::Nak;
use urxe_engine::{AsyncEvent, Cqe, DropReason, Event, Refusal, WcOpcode, WcStatus};
use urxe_wire::opcode::Role;
use urxe_wire::{NakCode, Qpn};

use super::{Observer, explain, fmt, packet_context};
use urxe_runtime::lock;

impl Observer {
    /// The engine reports something about `qpn`.
    pub(super) fn engine_event(&self, qpn: Qpn, event: &Event) {
        // Behind a gap there is one for each packet, and a capture alone shows it.
        if self.capture.is_none() && matches!(event, Event::OutOfOrder { .. }) {
            return;
        }
        let refused = packet_context::with(|context| {
            // What stands in the context is what was refused just now, or earlier in the same call.
            let refused = context.refused.clone();
            if context.receiving
                && let Some(text) = fmt::event(event, refused.as_ref())
            {
                context.comments.push(text);
            }
            if let Event::ResponderFault { fault, .. } = event {
                context.fault = Some((*fault, fmt::fault(*fault, refused.as_ref())));
            }
            if let Event::SendFailed { op, length, status, .. } = event {
                context.failed = Some((*op, *length, *status));
            }
            refused
        });
        if let (Some(refused), Event::ResponderFault { .. } | Event::SendRefused { .. }) = (&refused, event)
            && refused.denied.refusal == Refusal::NoSuchKey
        {
            self.check_dead(qpn, refused);
        }
        match *event {
            Event::WriteOvertaken { va, .. } => self.overtaken(qpn, va),
            Event::SentNak { nak, psn } => {
                if nak == Nak::Code(NakCode::PsnSequenceError) {
                    self.explain_drop(qpn, event);
                }
                let why = packet_context::with(|context| context.fault.as_ref().map(|(_, why)| why.clone()));
                let why = why.map_or(String::new(), |why| format!(": {why}"));
                self.announce(qpn, psn, format!("{}{why}", fmt::nak(nak)));
            }
            Event::Retry { reason, psn, left } => {
                self.announce(qpn, psn, format!("sent again: {}{}", fmt::retry(reason), fmt::Left(left)));
                lock(&self.peers).retried(qpn, reason, psn);
            }
            Event::ResponderFault { .. } => {
                let told = packet_context::with(|context| {
                    let (fault, why) = context.fault.clone()?;
                    Some((why, fmt::fault_remedy(fault, context.refused.as_ref())))
                });
                if let Some((why, remedy)) = told.filter(|_| self.explain.is_some()) {
                    self.note_refusal(qpn, &why, remedy);
                }
            }
            Event::Dropped { reason: DropReason::GhostAck, psn, .. } => {
                if let Some(known) = lock(&self.peers).get_mut(qpn) {
                    known.ghost = Some(psn);
                }
            }
            Event::Dropped { .. } | Event::Duplicate { .. } | Event::DatagramTooLong { .. } => {
                self.explain_drop(qpn, event);
            }
            Event::SendRefused { wr_id, .. } => {
                if let Some(refused) = refused {
                    lock(&self.peers).refused(qpn, wr_id, refused);
                }
            }
            _ => {}
        }
    }

    /// A packet is dropped, or taken for a duplicate, or not sent.
    pub(super) fn explain_drop(&self, qpn: Qpn, event: &Event) {
        let Some(format) = self.explain else { return };
        match *event {
            Event::Dropped { reason, opcode, psn } => {
                let request = (opcode.info().role == Role::Request).then_some(psn);
                explain::drops::dropped(self, format, qpn, reason, request);
            }
            Event::SentNak { .. } => {
                let request = packet_context::with(|context| Some(context.arrived?.psn));
                explain::drops::dropped(self, format, qpn, DropReason::OutOfSequence, request);
            }
            // Of a request that never came before.
            Event::Duplicate { psn, .. } => {
                explain::drops::dropped(self, format, qpn, DropReason::StaleDuplicate, Some(psn));
            }
            Event::DatagramTooLong { wr_id, length } => explain::drops::too_long(self, format, qpn, wr_id, length),
            _ => {}
        }
    }

    /// A completion is about to be seen by the application.
    pub(super) fn show_completion(&self, cqe: &Cqe) {
        self.check_buffers(cqe);
        let Some(format) = self.explain else { return };
        if cqe.status != WcStatus::Success {
            self.take_notes();
            explain::completion(self, format, cqe);
        } else if self.has_blame.load(Ordering::Relaxed)
            && !matches!(cqe.opcode, WcOpcode::Recv | WcOpcode::RecvRdmaWithImm)
        {
            lock(&self.peers).progressed(cqe.qpn);
        }
    }

    /// An asynchronous event is about to be seen by the application.
    pub(super) fn explain_async_event(&self, qpn: Qpn, event: AsyncEvent) {
        if let Some(format) = self.explain {
            explain::async_event(self, format, qpn, event);
        }
    }

    /// A completion queue has lost a completion.
    pub(super) fn explain_overrun(&self, cqe: &Cqe, capacity: usize) {
        if let Some(format) = self.explain {
            explain::overrun(self, format, cqe, capacity);
        }
    }
}
