//! Packets, timers and completions of an endpoint: input and output.

use alloc::collections::BTreeSet;
use core::mem;

use urxe_wire::{Opcode, Packet, Qpn};

use super::outbox::{Datagram, Origin};
use super::queues::{CqId, Event};
use super::{Endpoint, EndpointHost, Error, Received};
use crate::congestion::Marks;
use crate::cq::Cqe;
use crate::host::Io;
use crate::memory::Memory;
use crate::qp::{Progress, QueuePair};
use crate::quirks::Quirks;
use crate::time::Instant;

impl<M: Memory, Q: Quirks> Endpoint<M, Q> {
    // --- input ---------------------------------------------------------------------------------------------

    /// Handles a datagram: checks its ICRC, which must be that of a packet with identification 0 and DF, and hands it to
    /// its queue pair.
    pub fn handle_datagram(&mut self, now: Instant, datagram: &Datagram) -> Received {
        if !datagram.has_right_icrc() {
            return Received::BadIcrc;
        }
        self.handle_packet(now, &datagram.origin(), &datagram.bytes)
    }

    /// Handles a packet, from the BTH to the ICRC, that came from `origin`, and whose ICRC was found right.
    pub fn handle_packet(&mut self, now: Instant, origin: &Origin, bytes: &[u8]) -> Received {
        let Ok(packet) = Packet::parse(bytes) else { return Received::Malformed };
        let qpn = packet.bth().dest_qp;
        let handled = self.drive(now, qpn, |qp, io| {
            let accepted = qp.handle_packet(io, &packet, origin);
            let bth = packet.bth();
            let is_cnp = bth.opcode == Opcode::CNP;
            let mut marks = Marks { forward: origin.is_marked && !is_cnp, backward: false };
            marks.add(accepted && bth.fecn, accepted && bth.becn);
            if marks.any() {
                qp.handle_marks(io, origin, marks, 1);
            }
        });
        match handled {
            Some(_) => Received::Delivered(qpn),
            None => Received::NoSuchQp,
        }
    }

    /// Handles the timers that are due.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.queues.handle_timeout(now);
        let mut due = BTreeSet::new();
        while let Some((at, qpn)) = self.timers.pop_due(now) {
            // A queue pair that was destroyed may have left its entry, and one that has put its timer off as well.
            let Some(slot) = self.qps.get(qpn).filter(|slot| slot.timer.take(at)) else { continue };
            match slot.deadline {
                Some(deadline) if deadline > now => drop(self.timers.set(&slot.timer, qpn, deadline)),
                Some(_) => drop(due.insert(qpn)),
                None => {}
            }
        }
        for qpn in due {
            self.drive(now, qpn, QueuePair::handle_timeout);
        }
    }

    // --- output --------------------------------------------------------------------------------------------

    /// The next datagram to send; `None` when there is none now.
    pub fn poll_transmit(&mut self, now: Instant) -> Option<Datagram> {
        if let Some(datagram) = self.outbox.pop() {
            return Some(datagram);
        }
        self.transmit(now);
        self.outbox.pop()
    }

    /// Lets all queue pairs write what they have to send into the outbox, each first in its turn. False if the outbox had
    /// no room for everything.
    pub fn transmit(&mut self, now: Instant) -> bool {
        let busy = mem::take(&mut self.busy);
        let first = self.turn;
        self.turn = busy.range(Qpn::new(first.get().saturating_add(1))..).next().copied().unwrap_or_default();
        let mut blocked = BTreeSet::new();
        for &qpn in busy.range(first..).chain(busy.range(..first)) {
            let progress = self.drive(now, qpn, |qp, io| {
                loop {
                    let progress = qp.transmit(io);
                    if progress != Progress::More {
                        return progress;
                    }
                }
            });
            blocked.extend((progress == Some(Progress::Blocked)).then_some(qpn));
        }
        let all = blocked.is_empty();
        // Those that have sent everything are not asked again until something is done with them.
        self.busy = blocked;
        all
    }

    /// Takes the oldest completion of a queue.
    pub fn poll_cq(&mut self, cq: CqId) -> Option<Cqe> {
        self.queues.cq(cq).poll()
    }

    /// Takes the oldest event.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.queues.poll_event()
    }

    /// The time at which [`handle_timeout`](Self::handle_timeout) is to be called.
    #[must_use]
    pub fn next_timeout(&self) -> Option<Instant> {
        self.timers.next().into_iter().chain(self.queues.next_timeout()).min()
    }

    // --- inside --------------------------------------------------------------------------------------------

    pub(super) fn command<T, E>(
        &mut self,
        now: Instant,
        qpn: Qpn,
        act: impl FnOnce(&mut QueuePair<EndpointHost<M, Q>>, &mut Io<'_, EndpointHost<M, Q>>) -> Result<T, E>,
    ) -> Result<T, Error<E>> {
        self.drive(now, qpn, act).ok_or(Error::NoSuchQp)?.map_err(Error::Refused)
    }

    /// Lets `act` at a queue pair, if there is one with this number, and sees to its timer.
    pub(super) fn drive<T>(
        &mut self,
        now: Instant,
        qpn: Qpn,
        act: impl FnOnce(&mut QueuePair<EndpointHost<M, Q>>, &mut Io<'_, EndpointHost<M, Q>>) -> T,
    ) -> Option<T> {
        let slot = self.qps.get_mut(qpn)?;
        let io = &mut Io { clock: &now, memory: &self.memory, network: &mut self.outbox, consumer: &mut self.queues };
        let result = act(&mut slot.qp, io);
        slot.deadline = slot.qp.poll_timeout(&now);
        if let Some(at) = slot.deadline {
            self.timers.set(&slot.timer, qpn, at);
        }
        self.busy.insert(qpn);
        self.settle_timers();
        Some(result)
    }

    /// Lets the earliest entry be one that its queue pair still wants: entries stay where they are when they are put off.
    pub(super) fn settle_timers(&mut self) {
        while let Some((at, &qpn)) = self.timers.peek() {
            let slot = self.qps.get(qpn);
            if slot.is_some_and(|slot| slot.deadline == Some(at)) {
                return;
            }
            self.timers.pop_due(at);
            if let Some(slot) = slot.filter(|slot| slot.timer.take(at))
                && let Some(deadline) = slot.deadline
            {
                self.timers.set(&slot.timer, qpn, deadline);
            }
        }
    }
}
