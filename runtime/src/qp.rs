//! A queue pair that several threads may use.

mod direct;
mod handles;
mod inside;
mod last_ack;
mod unread;

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};

use urxe_engine::congestion::Marks;
use urxe_engine::endpoint::TimerSlot;
use urxe_engine::{AttachError, Clock as _, CountedOps, Io, Memory as _, Progress, QpConfig, QpType, QueuePair};
use urxe_net::{BadPacket, RxBatch};
use urxe_wire::{Opcode, Packet, Qpn};

use super::async_events::AsyncEvents;
use super::clock::LazyInstant;
use super::counter::CompletionCounter;
use super::cq::Cq;
use super::device::Device;
use super::host::{DeviceHost, Origin, TxContext, Unacknowledged};
use super::lock;
use super::progress::delayed_ack::{AckMode, DelayedAck};
use super::progress::tuning::TUNING;
use crate::counters::{Tally, Traffic};
use crate::direct::Sides;
use crate::xrc::rx_queue;
use crate::xrc::target::Target;
use inside::Inbox;
use last_ack::LastAck;
use unread::UnreadByPeer;

/// How many rounds of READ responses are sent before others get a turn.
const ROUNDS: usize = 8;

/// A queue pair.
pub struct Qp {
    qpn: Qpn,
    inner: Mutex<Inner>,
    port: Arc<Device>,
    /// Packets of queue pairs of this process.
    inbox: Inbox,
    pub(super) timer: TimerSlot,
    /// Whether the queue pair is in the receive token's `dirty` list. Changed only by the holder of the receive token.
    dirty: AtomicBool,
    /// No packet reaches it any more.
    retired: AtomicBool,
    /// `None`: no XRC target.
    xrc_target: Option<Target>,
    /// Events of each `ibv_qp` by which the application knows it: one, or several of an XRC target (`ibv_open_qp(3)`).
    listeners: Mutex<Vec<Arc<AsyncEvents>>>,
}

struct Inner {
    engine: QueuePair<DeviceHost>,
    delayed_ack: DelayedAck,
    /// A completion queue has a channel: the application may sleep until an event, and ACKs are not delayed.
    sleeps: bool,
    tally: Tally,
    /// Completions that the application sees when the ACK of their messages has left.
    unacknowledged: Vec<Unacknowledged>,
    last_ack: LastAck,
    unread: UnreadByPeer,
    /// Sides of direct requests: shown to the peer, and of the peer; `None` on a device without them.
    sides: Option<Box<Sides>>,
    /// The queue pair of this process that got packets last.
    neighbor: Weak<Qp>,
}

/// Has a queue pair answer the congestion marks of a run, of which `packets` are packets. The CNP leaves now: an ACK might
/// wait.
#[cold]
#[inline(never)]
fn answer_marks(
    engine: &mut QueuePair<DeviceHost>,
    io: &mut Io<'_, DeviceHost>,
    tally: &mut Tally,
    run: &RxBatch<'_>,
    marks: Marks,
    packets: u32,
) {
    // No CNP answers a CNP.
    let cnps = run.datagrams().filter(|datagram| datagram.payload.first() == Some(&Opcode::CNP.to_u8())).count();
    let packets = packets.saturating_sub(u32::try_from(cnps).unwrap_or(u32::MAX));
    io.network.speak_for(engine.config().qpn);
    *io.network.sent() = Traffic::default();
    if engine.handle_marks(io, &Origin::from(run.headers()), marks, packets) {
        io.network.flush();
        tally.sent.take(io.network.sent());
    }
}

/// Outcome of handing packets to a queue pair.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Taken {
    /// The queue pair accepted one ([`QueuePair::handle_packet`]).
    pub(super) accepted: bool,
    /// The queue pair should be driven soon.
    pub(super) is_urgent: bool,
}

/// Effect of an operation on a delayed ACK.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Act {
    /// A send request is posted: the ACK leaves with it.
    Send,
    /// A receive request is posted, or a timer is due: the ACK waits on.
    Aside,
    /// Work of another kind: the ACK leaves first, since the next state may forget it.
    Other,
    /// The state changes: as for anything else, and before that the peer's direct requests end.
    Modify,
}

impl Inner {
    /// Whether an ACK is all that there is to send, and should wait for a request to go with.
    fn lets_ack_wait(&mut self, clock: &LazyInstant, acks: AckMode) -> bool {
        let Self { engine, delayed_ack, sleeps, last_ack, .. } = self;
        if !engine.owes_only_ack() {
            return false;
        }
        // Ends of a connection mostly have the same ACK timeout. It must not expire, whoever forgets the ACK.
        let impatient = engine.ack_timeout().is_some_and(|timeout| timeout < 4 * TUNING.watchdog_last);
        // Nor is it lost if the process ends meanwhile.
        !*sleeps && !impatient && last_ack.is_current && delayed_ack.lets_wait(clock, acks)
    }
}

impl fmt::Debug for Qp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Qp").field("qpn", &self.qpn).finish_non_exhaustive()
    }
}

impl Qp {
    /// Makes a queue pair and lets packets reach it. `events` are those of its `ibv_qp`.
    pub fn new(port: &Arc<Device>, config: QpConfig<DeviceHost>, events: AsyncEvents) -> Arc<Self> {
        let xrc_target = (config.qp_type == QpType::XrcRecv).then(Target::default);
        if config.xrcd.is_some_and(|domain| port.xrc_srqs().client().is_shared(domain)) {
            rx_queue::start(port);
        }
        let is_connected = matches!(config.qp_type, QpType::Rc | QpType::Uc);
        let sleeps = [&config.send_cq, &config.recv_cq].into_iter().flatten().any(|cq| cq.has_channel());
        let qp = Arc::new_cyclic(|qp| Self {
            qpn: config.qpn,
            inner: Mutex::new(Inner {
                sleeps,
                engine: QueuePair::new(config),
                delayed_ack: DelayedAck::default(),
                unacknowledged: Vec::new(),
                last_ack: LastAck::default(),
                unread: None,
                sides: (port.gives_direct_access() && is_connected)
                    .then(|| Box::new(Sides::new(Weak::<Self>::clone(qp)))),
                neighbor: Weak::new(),
                tally: Tally::default(),
            }),
            port: Arc::clone(port),
            inbox: Inbox::default(),
            timer: TimerSlot::default(),
            dirty: AtomicBool::new(false),
            retired: AtomicBool::new(false),
            xrc_target,
            listeners: Mutex::new(vec![Arc::new(events)]),
        });
        port.add_qp(Arc::clone(&qp));
        qp
    }

    /// Returns the queue pair's number.
    pub const fn qpn(&self) -> Qpn {
        self.qpn
    }

    /// Returns the state of an XRC target for whoever receives; `None` if the queue pair is not one.
    pub(crate) const fn xrc_target(&self) -> Option<&Target> {
        self.xrc_target.as_ref()
    }

    /// The device it is on.
    pub const fn port(&self) -> &Arc<Device> {
        &self.port
    }

    /// Looks at the engine without driving it.
    pub fn inspect<T>(&self, look: impl FnOnce(&QueuePair<DeviceHost>) -> T) -> T {
        let Inner { engine, sides, .. } = &mut *lock(&self.inner);
        if let (Some(sides), Some(reach)) = (sides, self.port.direct()) {
            sides.absorb(reach, engine);
        }
        look(engine)
    }

    /// Has a completion counter count operations from now on.
    pub fn attach_counter(&self, ops: CountedOps, counter: Arc<CompletionCounter>) -> Result<(), AttachError> {
        lock(&self.inner).engine.attach_counter(ops, counter)
    }

    /// Runs the timers that are due, and sends what comes of it.
    pub(super) fn handle_timeout(&self, work: &mut TxContext) {
        self.turn(work, Act::Aside, |engine, io| engine.handle_timeout(io));
    }

    /// Runs the timers that are due unless the ACK timeout is over: then nothing is done, and true returned. The question and
    /// the deed have one time: a thread that loses its processor between two looks at the clock would find it over only then.
    pub(super) fn handle_timeout_before_ack_timeout(&self, work: &mut TxContext) -> bool {
        self.turn(work, Act::Aside, |engine, io| {
            let is_over = engine.ack_deadline().is_some_and(|at| at <= io.clock.now());
            if !is_over {
                engine.handle_timeout(io);
            }
            is_over
        })
    }

    /// Lets `act` at the engine, sends what comes of it, and sees to timers and events.
    pub fn drive<T>(
        &self,
        work: &mut TxContext,
        act: impl FnOnce(&mut QueuePair<DeviceHost>, &mut Io<'_, DeviceHost>) -> T,
    ) -> T {
        self.turn(work, Act::Other, act)
    }

    /// Changes its state. What it owes its peer leaves before: in the state that comes it may be forgotten.
    pub fn modify<T>(
        &self,
        work: &mut TxContext,
        act: impl FnOnce(&mut QueuePair<DeviceHost>, &mut Io<'_, DeviceHost>) -> T,
    ) -> T {
        self.turn(work, Act::Modify, |engine, io| {
            // An ACK may be owed for a message that the application has polled already.
            engine.flush_delayed(io);
            engine.transmit(io);
            act(engine, io)
        })
    }

    /// Sends what is to be sent after packets were taken. True: it is but an ACK, which is to wait for a request to go with,
    /// as it may.
    pub(super) fn answer(&self, work: &mut TxContext, clock: &LazyInstant, acks: AckMode) -> bool {
        let mut inner = lock(&self.inner);
        let waits = acks != AckMode::Immediate && inner.lets_ack_wait(clock, acks);
        if !waits {
            self.turn_of(inner, work, Act::Other, clock, |_, _| ());
        }
        waits
    }

    fn turn<T>(
        &self,
        work: &mut TxContext,
        kind: Act,
        act: impl FnOnce(&mut QueuePair<DeviceHost>, &mut Io<'_, DeviceHost>) -> T,
    ) -> T {
        let inner = lock(&self.inner);
        self.turn_of(inner, work, kind, &LazyInstant::default(), act)
    }

    fn turn_of<T>(
        &self,
        mut inner: MutexGuard<'_, Inner>,
        work: &mut TxContext,
        kind: Act,
        clock: &LazyInstant,
        act: impl FnOnce(&mut QueuePair<DeviceHost>, &mut Io<'_, DeviceHost>) -> T,
    ) -> T {
        let has_packets = !self.inbox.is_empty();
        if has_packets {
            self.take_inbox(&mut inner, work, clock);
        }
        let Inner { engine, delayed_ack, tally, unacknowledged, sides, neighbor, .. } = &mut *inner;
        if let (Some(sides), Some(reach)) = (&mut *sides, self.port.direct()) {
            work.memory.set_peer(sides.take_peer(reach, engine, kind == Act::Send));
        }
        work.sender.speak_for(self.qpn);
        *work.sender.sent() = Traffic::default();
        work.notifications.queue_behind(unacknowledged);
        let turn = work.memory.turn();
        let mut io = Io { clock, memory: &work.memory, network: &mut work.sender, consumer: &mut work.notifications };
        if let (Some(sides), Some(reach)) = (&mut *sides, self.port.direct()) {
            if kind == Act::Modify {
                // Packets show the queue pair again: those that have come are taken by now, and others wait for the lock.
                sides.hide(reach, engine, &mut io);
            }
            sides.absorb(reach, engine);
            sides.complete(engine, &mut io);
        }
        let waits = delayed_ack.waits();
        match kind {
            Act::Send => {
                // One that is about to leave stays first: perftest with events takes an event of a message that comes
                // before that of its own SEND for the latter.
                if !waits && engine.owes_only_ack() {
                    engine.transmit(&mut io);
                }
            }
            Act::Other | Act::Modify if waits => {
                delayed_ack.gave_up();
                engine.transmit(&mut io);
            }
            Act::Aside | Act::Other | Act::Modify => {}
        }
        let result = act(engine, &mut io);
        if io.memory.reaches_peer() {
            engine.end_posting();
            io.memory.leave_peer();
        }
        let mut progress = Progress::Idle;
        // What the engine itself keeps back (`urxe_engine::quirks`) leaves when its time has come, all the same.
        let is_due = |engine: &QueuePair<_>| engine.kept_until().is_some_and(|at| at <= clock.now());
        let has_nothing = !engine.has_output() || (waits && engine.owes_only_ack());
        if !(kind == Act::Aside && has_nothing && !is_due(engine)) {
            for _ in 0..ROUNDS {
                progress = engine.transmit(&mut io);
                if progress != Progress::More {
                    break;
                }
            }
        }
        if io.consumer.take_broken() {
            engine.fail(&mut io);
        }
        // Before anybody else may send for this queue pair: packets must not overtake one another.
        work.sender.flush();
        self.hand_over(&mut work.sender, &mut work.inside, neighbor);
        if let (Some(sides), Some(reach)) = (sides, self.port.direct()) {
            sides.give_peer(work.memory.take_peer());
            sides.update(reach, engine);
        }
        // What the engine keeps back it keeps back from a peer that is to see what happens then.
        if !engine.owes_answer() || engine.kept_until().is_some() {
            work.notifications.complete_unacknowledged(engine.config().recv_cq.as_ref());
        }
        work.notifications.give_unacknowledged(unacknowledged);
        work.notifications.release();
        tally.sent.take(work.sender.sent());
        work.notifications.count(tally);
        // The clock is looked at when the packets have left: their receiver need not wait for that.
        if kind == Act::Send {
            delayed_ack.answered(clock);
        }
        let deadline = engine.poll_timeout(clock);
        let is_full = work.sender.take_full();
        if has_packets {
            self.end_inbox();
        }
        drop(turn);
        drop(inner);
        if let Some(at) = deadline {
            self.port.set_timer(self, at);
        }
        match progress {
            Progress::Idle => {}
            Progress::Blocked if is_full => self.go_on_soon(work),
            Progress::Blocked => self.port.wait_for_room(self.qpn),
            Progress::More => self.port.finish_later(self.qpn),
        }
        self.port.deliver_notifications(work);
        if !self.inbox.is_empty() {
            self.go_on_soon(work);
        }
        if !work.inside.due.is_empty() {
            self.port.deliver_inside(work);
        }
        result
    }

    /// Gives the engine packets of one peer. What comes of them is sent by a later [`answer`](Self::answer) or
    /// [`drive`](Self::drive).
    pub(super) fn receive(&self, work: &mut TxContext, clock: &LazyInstant, run: &RxBatch<'_>) -> Taken {
        self.receive_locked(&mut lock(&self.inner), work, clock, run)
    }

    fn receive_locked(&self, inner: &mut Inner, work: &mut TxContext, clock: &LazyInstant, run: &RxBatch<'_>) -> Taken {
        let (mut accepted, origin) = (false, Origin::from(run.headers()));
        let (mut marks, mut packets) = (Marks::of_class(run.headers().tclass), 0);
        let Inner { engine, tally, unacknowledged, last_ack, sides, .. } = inner;
        work.notifications.queue_behind(unacknowledged);
        let _turn = work.memory.turn();
        let mut io = Io { clock, memory: &work.memory, network: &mut work.sender, consumer: &mut work.notifications };
        if let (Some(sides), Some(reach)) = (&mut *sides, self.port.direct()) {
            sides.absorb(reach, engine);
            sides.complete(engine, &mut io);
        }
        io.consumer.hold_received();
        for datagram in run.datagrams() {
            match &datagram.packet() {
                Ok(packet) => {
                    tally.received.add(datagram.payload.len());
                    let taken = engine.handle_packet(&mut io, packet, &origin);
                    marks.add(taken & packet.bth().fecn, taken & packet.bth().becn);
                    packets += 1;
                    accepted |= taken;
                }
                Err(bad) => {
                    if *bad == BadPacket::Damaged {
                        tally.damaged();
                    }
                    self.port.count_bad(*bad);
                }
            }
        }
        if marks.any() {
            answer_marks(engine, &mut io, tally, run, marks, packets);
        }
        if io.consumer.take_broken() {
            engine.fail(&mut io);
        }
        if let (Some(sides), Some(reach)) = (sides, self.port.direct()) {
            sides.update(reach, engine);
        }
        work.notifications.count(tally);
        // Nothing is owed, or the peer's process has the ACK, whatever becomes of this one.
        if !engine.owes_answer() || last_ack.leave(engine) {
            work.notifications.complete_unacknowledged(engine.config().recv_cq.as_ref());
        }
        work.notifications.give_unacknowledged(unacknowledged);
        Taken { accepted, is_urgent: engine.owes_refusal() }
    }

    /// Gives the engine of an XRC target a packet and its length in bytes, ICRC included; `None` for a damaged one. Its completions
    /// are held back until it has answered.
    pub(super) fn receive_xrc(
        &self,
        work: &mut TxContext,
        origin: &Origin,
        packet: Option<(&Packet<'_>, usize)>,
    ) -> bool {
        let Some((packet, length)) = packet else {
            self.damaged();
            return false;
        };
        lock(&self.inner).tally.received.add(length);
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
    pub(super) fn damaged(&self) {
        lock(&self.inner).tally.damaged();
    }

    /// Returns the queue pair's counters by name.
    pub fn counted(&self) -> Vec<(&'static str, u64)> {
        lock(&self.inner).tally.named().collect()
    }

    /// Whether its completions go to `cq`.
    pub(super) fn uses(&self, cq: &Arc<Cq>) -> bool {
        self.inspect(|engine| {
            let config = engine.config();
            [&config.send_cq, &config.recv_cq].into_iter().flatten().any(|mine| Arc::ptr_eq(mine, cq))
        })
    }

    /// Marks the queue pair as one that has got packets and not been answered for. Returns whether it was not marked
    /// before.
    pub(super) fn mark_dirty(&self) -> bool {
        let before = self.dirty.load(Ordering::Relaxed);
        self.dirty.store(true, Ordering::Relaxed);
        !before
    }

    /// Clears the mark of [`mark_dirty`](Self::mark_dirty).
    pub(super) fn clear_dirty(&self) {
        self.dirty.store(false, Ordering::Relaxed);
    }

    /// Whether packets to its number are not for it any more.
    pub fn is_retired(&self) -> bool {
        self.retired.load(Ordering::Relaxed)
    }
}
