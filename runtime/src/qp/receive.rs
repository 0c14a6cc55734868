//! Packets for a queue pair.

use urxe_engine::congestion::Marks;
use urxe_engine::{Io, QueuePair};
use urxe_net::{BadPacket, RxBatch};
use urxe_wire::{Opcode, Packet};

use super::{Inner, Qp};
use crate::clock::LazyInstant;
use crate::counters::{QpCounters, Traffic};
use crate::host::{DeviceHost, Origin, TxContext};
use crate::lock;

/// Has a queue pair answer the congestion marks of a run, of which `marked` packets have met congestion. The CNP leaves now: an ACK
/// might wait.
#[cold]
#[inline(never)]
fn answer_marks(
    engine: &mut QueuePair<DeviceHost>,
    io: &mut Io<'_, DeviceHost>,
    counters: &mut QpCounters,
    run: &RxBatch<'_>,
    marks: Marks,
    marked: u32,
) {
    // No CNP answers a CNP: CE counts those of the run, too.
    let all_are = Marks::of_class(run.headers().tclass).forward;
    let is_cnp = |payload: &[u8]| payload.first() == Some(&Opcode::CNP.to_u8());
    let cnps = run.datagrams().filter(|datagram| all_are && is_cnp(datagram.payload)).count();
    let marked = marked.saturating_sub(u32::try_from(cnps).unwrap_or(u32::MAX));
    io.network.speak_for(engine.config().qpn);
    *io.network.sent() = Traffic::default();
    if engine.handle_marks(io, &Origin::from(run.headers()), marks, marked) {
        io.network.flush();
        counters.sent.take(io.network.sent());
    }
}

/// Outcome of handing packets to a queue pair.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Taken {
    /// The queue pair accepted one ([`QueuePair::handle_packet`]).
    pub(crate) accepted: bool,
    /// The queue pair should be driven soon.
    pub(crate) is_urgent: bool,
}

impl Qp {
    /// Gives the engine packets of one peer. What comes of them is sent by a later [`answer`](Self::answer) or
    /// [`drive`](Self::drive).
    pub(crate) fn receive(&self, work: &mut TxContext, clock: &LazyInstant, run: &RxBatch<'_>) -> Taken {
        self.receive_locked(&mut lock(&self.inner), work, clock, run)
    }

    /// Gives the engine, which is locked, packets of one peer.
    // A part of the caller, of whom there are two.
    #[inline(always)]
    pub(super) fn receive_locked(
        &self,
        inner: &mut Inner,
        work: &mut TxContext,
        clock: &LazyInstant,
        run: &RxBatch<'_>,
    ) -> Taken {
        let (mut accepted, origin) = (false, Origin::from(run.headers()));
        let marks_of_all = Marks::of_class(run.headers().tclass);
        let (mut marks, mut marked) = (marks_of_all, 0);
        let Inner { engine, counters, unacknowledged, last_ack, sides, .. } = inner;
        work.notifications.queue_behind(unacknowledged);
        let _turn = work.memory.turn();
        let mut io = Io { clock, memory: &work.memory, network: &mut work.sender, consumer: &mut work.notifications };
        if let (Some(sides), Some(reach)) = (&mut *sides, self.device.direct()) {
            sides.absorb(reach, engine);
            sides.complete(engine, &mut io);
        }
        io.consumer.hold_received();
        for datagram in run.datagrams() {
            match &datagram.packet() {
                Ok(packet) => {
                    counters.received.add(datagram.payload.len());
                    let taken = engine.handle_packet(&mut io, packet, &origin);
                    let fecn = taken & packet.bth().fecn;
                    marks.add(fecn, taken & packet.bth().becn);
                    marked += u32::from(marks_of_all.forward | fecn);
                    accepted |= taken;
                }
                Err(bad) => {
                    if *bad == BadPacket::Damaged {
                        counters.damaged();
                    }
                    self.device.count_bad(*bad);
                }
            }
        }
        if marks.any() {
            answer_marks(engine, &mut io, counters, run, marks, marked);
        }
        if io.consumer.take_broken() {
            engine.fail(&mut io);
        }
        if let (Some(sides), Some(reach)) = (sides, self.device.direct()) {
            sides.update(reach, engine);
        }
        work.notifications.count(counters);
        // Nothing is owed, or the peer's process has the ACK, whatever becomes of this one.
        if !engine.owes_answer() || last_ack.leave(engine) {
            work.notifications.complete_unacknowledged(engine.config().recv_cq.as_ref());
        }
        work.notifications.give_unacknowledged(unacknowledged);
        Taken { accepted, is_urgent: engine.owes_refusal() }
    }

    /// Gives the engine of an XRC target a packet and its length in bytes, ICRC included; `None` for a damaged one. Its completions
    /// are held back until it has answered.
    pub(crate) fn receive_xrc(
        &self,
        work: &mut TxContext,
        origin: &Origin,
        packet: Option<(&Packet<'_>, usize)>,
    ) -> bool {
        let Some((packet, length)) = packet else {
            self.damaged();
            return false;
        };
        lock(&self.inner).counters.received.add(length);
        self.drive(work, |engine, io| {
            let accepted = engine.handle_packet(io, packet, origin);
            let bth = packet.bth();
            let mut marks = if bth.opcode == Opcode::CNP { Marks::default() } else { origin.marks() };
            marks.add(accepted & bth.fecn, accepted & bth.becn);
            if marks.any() {
                engine.handle_marks(io, origin, marks, 1);
            }
            accepted
        })
    }

    /// Counts a damaged packet that claims to be for the queue pair.
    pub(crate) fn damaged(&self) {
        lock(&self.inner).counters.damaged();
    }
}
