//! A device whose packets meet with faults that somebody asked for ([`crate::interceptor`]).

use std::sync::Arc;

use urxe_engine::Instant;
use urxe_net::{Datagram, RxBatch};
use urxe_wire::opcode::Role;
use urxe_wire::{Opcode, Transport};

use super::{Device, TxContext};
use crate::counters::bump;
use crate::interceptor::{DeviceEvent, Interceptor, Verdict};
use crate::progress::delayed_ack::AckMode;

impl Device {
    /// Shows a packet that has come to the interceptor. `None`: it is not to be taken. `room` is for what may come in its
    /// place. A packet that is not `fresh` has been through this before.
    pub(super) fn intercept<'a>(
        &self,
        interceptor: &Arc<dyn Interceptor>,
        datagram: Datagram<'a>,
        fresh: bool,
        room: &'a mut Vec<u8>,
    ) -> Option<Datagram<'a>> {
        interceptor.received(&datagram, &|| self.qp(datagram.dest_qpn()).is_some());
        if !fresh {
            interceptor.is_late();
            return Some(datagram);
        }
        match interceptor.verdict(&datagram) {
            Verdict::Accept => Some(datagram),
            Verdict::Drop => None,
            Verdict::Corrupt => {
                bump(&self.counters().icrc_err);
                if let Some(qp) = self.qp(datagram.dest_qpn()) {
                    qp.damaged();
                }
                None
            }
            Verdict::Replace(packet) => {
                *room = packet;
                Some(Datagram { payload: room, ..datagram })
            }
        }
    }

    /// Returns the interceptor if it touches packets.
    #[inline]
    pub(crate) fn packet_interceptor(&self) -> Option<&Arc<dyn Interceptor>> {
        if self.touches_packets { self.interceptor() } else { None }
    }

    /// Returns when the interceptor has something to do.
    pub(super) fn intercept_due(&self) -> Option<Instant> {
        self.packet_interceptor().and_then(|interceptor| interceptor.next_due())
    }

    /// Carries out the wishes of an interceptor that touches packets, after a call into an engine.
    #[cold]
    pub(super) fn attend(&self, interceptor: &Arc<dyn Interceptor>, work: &mut TxContext) {
        for qpn in interceptor.take_broken() {
            if let Some(qp) = self.qp(qpn) {
                qp.drive(work, |engine, io| engine.fail(io));
                qp.raise(urxe_engine::AsyncEvent::QpFatal);
            }
        }
        if let Some(at) = interceptor.next_due() {
            self.wake_for(at);
        }
    }

    /// Sends the packets that the interceptor held back and that are due, and lets its events happen.
    pub(super) fn release_held(&self, interceptor: &Arc<dyn Interceptor>, now: Instant) {
        if interceptor.next_due().is_none_or(|at| at > now) {
            return;
        }
        self.with_work(|work| work.sender.send_due(now));
        for event in interceptor.device_events(now) {
            match event {
                DeviceEvent::Event(event_type) => self.listeners.pretend(event_type),
                DeviceEvent::Removal => {
                    interceptor.removed();
                    self.with_work(|work| self.leave(work));
                    self.listeners.take_out();
                }
            }
        }
        // What arrives late arrives in there.
        self.progress(AckMode::Immediate, &now.into());
    }

    /// The application has opened the device.
    pub(super) fn opened(&self) {
        if let Some(interceptor) = self.interceptor() {
            interceptor.opened();
            self.wake();
        }
    }
}

/// Whether the first packet of a run tells an interceptor that only looks what it needs: the run is of a connected service,
/// and begins with a request or has none.
pub(crate) fn is_seen_by_its_first(run: &RxBatch<'_>) -> bool {
    let is_request = |opcode: Opcode| opcode.info().role == Role::Request;
    let mut opcodes = run.datagrams().map(|datagram| Opcode::from_u8(*datagram.payload.first()?));
    let Some(Some(first)) = opcodes.next() else { return false };
    first.transport() != Transport::Ud
        && (is_request(first) || opcodes.all(|opcode| opcode.is_some_and(|opcode| !is_request(opcode))))
}
