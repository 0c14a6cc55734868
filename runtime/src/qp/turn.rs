//! Turns of a queue pair: requests, timers, answers and transmission under one lock.

use std::sync::MutexGuard;
use std::sync::atomic::Ordering;
use std::time::Duration;

use urxe_engine::{Clock as _, Io, Memory as _, Progress, QueuePair};

use super::{Inner, Qp};
use crate::clock::{LazyInstant, is_virtual};
use crate::counters::Traffic;
use crate::host::{DeviceHost, TxContext};
use crate::progress::delayed_ack::AckMode;
use crate::progress::policy::ProgressPolicy;
use crate::progress::tuning::TUNING;
use crate::xrc::target::Target;
use crate::{lock, try_lock};

/// How many rounds of READ responses are sent before others get a turn.
const ROUNDS: usize = 8;

/// Effect of an operation on a delayed ACK.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Act {
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
    fn lets_ack_wait(&mut self, clock: &LazyInstant, acks: AckMode, policy: &ProgressPolicy) -> bool {
        let Self { engine, delayed_ack, sleeps, last_ack, .. } = self;
        if !engine.owes_only_ack() {
            return false;
        }
        // Ends of a connection mostly have the same ACK timeout. It must not expire, whoever forgets the ACK: two looks may pass before it is
        // noticed, and the request may have waited for this process as long as the ACK waits for the answer.
        let ack_timeout = engine.ack_timeout().unwrap_or(Duration::MAX);
        let impatient = ack_timeout < 4 * TUNING.watchdog_last;
        let timeout = policy.delayed_ack_timeout().min(ack_timeout.saturating_sub(2 * TUNING.watchdog_last) / 2);
        // Asked in any case: whether answers are prompt says whether the application loses its processor.
        let lets_wait = delayed_ack.lets_wait(clock, acks, timeout);
        // Nor is it lost if the process ends meanwhile.
        lets_wait && !*sleeps && !impatient && last_ack.is_current
    }
}

impl Qp {
    /// Runs the timers that are due, and sends what comes of it.
    pub(crate) fn handle_timeout(&self, work: &mut TxContext) {
        self.turn(work, Act::Aside, |engine, io| engine.handle_timeout(io));
    }

    /// Runs the timers that are due unless the ACK timeout is over: then nothing is done, and true returned. The question and
    /// the deed have one time: a thread that loses its processor between two looks at the clock would find it over only then.
    pub(crate) fn handle_timeout_before_ack_timeout(&self, work: &mut TxContext) -> bool {
        self.timeout_of(lock(&self.inner), work)
    }

    /// Runs the timers as [`handle_timeout_before_ack_timeout`](Self::handle_timeout_before_ack_timeout) does, unless another thread is at work on
    /// the queue pair, and makes progress: then nothing is done, and `None` returned.
    /// After some such looks in a row the other thread is waited for.
    pub(crate) fn try_timeout_before_ack_timeout(&self, work: &mut TxContext) -> Option<bool> {
        let inner = match try_lock(&self.inner) {
            // The thread of XRC targets may be asking another process, which is stopped.
            None if self.xrc_target().is_some_and(Target::is_busy) => return None,
            // Virtual time does not pass while a thread is at work.
            None if !is_virtual() && self.busy_looks.fetch_add(1, Ordering::Relaxed) < TUNING.busy_looks => {
                return None;
            }
            None => lock(&self.inner),
            Some(inner) => inner,
        };
        self.busy_looks.store(0, Ordering::Relaxed);
        Some(self.timeout_of(inner, work))
    }

    fn timeout_of(&self, inner: MutexGuard<'_, Inner>, work: &mut TxContext) -> bool {
        self.turn_of(inner, work, Act::Aside, &LazyInstant::default(), |engine, io| {
            let is_over = engine.ack_deadline().is_some_and(|at| at <= io.clock.now());
            if is_over {
                engine.tell_in_time(io.clock.now());
            } else {
                engine.handle_timeout(io);
            }
            is_over
        })
    }

    /// Runs `act` on the engine, transmits what results, and sets timers and raises events.
    pub fn drive<T>(
        &self,
        work: &mut TxContext,
        act: impl FnOnce(&mut QueuePair<DeviceHost>, &mut Io<'_, DeviceHost>) -> T,
    ) -> T {
        self.turn(work, Act::Other, act)
    }

    /// Changes the state of the queue pair. Acknowledgements and responses that it owes leave before: the new state may forget them.
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
    pub(crate) fn answer(&self, work: &mut TxContext, clock: &LazyInstant, acks: AckMode) -> bool {
        let mut inner = lock(&self.inner);
        let waits = acks != AckMode::Immediate && inner.lets_ack_wait(clock, acks, &self.device.policy);
        if !waits {
            self.turn_of(inner, work, Act::Other, clock, |_, _| ());
        }
        waits
    }

    pub(super) fn turn<T>(
        &self,
        work: &mut TxContext,
        kind: Act,
        act: impl FnOnce(&mut QueuePair<DeviceHost>, &mut Io<'_, DeviceHost>) -> T,
    ) -> T {
        let inner = lock(&self.inner);
        self.turn_of(inner, work, kind, &LazyInstant::default(), act)
    }

    #[inline]
    pub(super) fn turn_of<T>(
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
        let Inner { engine, delayed_ack, counters, unacknowledged, sides, neighbor, .. } = &mut *inner;
        if let (Some(sides), Some(reach)) = (&mut *sides, self.device.direct()) {
            work.memory.set_peer(sides.take_peer(reach, engine, kind == Act::Send));
        }
        work.sender.speak_for(self.qpn);
        *work.sender.sent() = Traffic::default();
        work.notifications.queue_behind(unacknowledged);
        let turn = work.memory.turn();
        let mut io = Io { clock, memory: &work.memory, network: &mut work.sender, consumer: &mut work.notifications };
        if let (Some(sides), Some(reach)) = (&mut *sides, self.device.direct()) {
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
        let has_nothing = |engine: &QueuePair<_>| !engine.has_output() || (waits && engine.owes_only_ack());
        if !(kind == Act::Aside && has_nothing(engine) && !is_due(engine)) {
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
        if work.sender.has_inside() {
            self.hand_over(&mut work.sender, &mut work.inside, neighbor);
        }
        if let (Some(sides), Some(reach)) = (sides, self.device.direct()) {
            sides.give_peer(work.memory.take_peer());
            sides.update(reach, engine);
        }
        // What the engine keeps back it keeps back from a peer that is to see what happens then.
        if !engine.owes_answer() || engine.kept_until().is_some() {
            work.notifications.complete_unacknowledged(engine.config().recv_cq.as_ref());
        }
        work.notifications.give_unacknowledged(unacknowledged);
        work.notifications.release();
        counters.sent.take(work.sender.sent());
        work.notifications.count(counters);
        counters.count_out_of_order(self.device.counters());
        // The clock is looked at when the packets have left: their receiver need not wait for that.
        if kind == Act::Send {
            // Both ends know which of them has the smaller number.
            let spins = self.qpn < engine.dest_qpn();
            delayed_ack.answered(clock, |now| self.device.policy.answers_late(now, spins));
        }
        let deadline = engine.poll_timeout(clock);
        let is_full = work.sender.take_full();
        if has_packets {
            self.end_inbox();
        }
        drop(turn);
        drop(inner);
        if let Some(at) = deadline {
            self.device.set_timer(self, at);
        }
        match progress {
            Progress::Idle => {}
            Progress::Blocked if is_full => self.go_on_soon(work),
            Progress::Blocked => self.device.wait_for_room(self.qpn),
            Progress::More => self.device.finish_later(self.qpn),
        }
        self.device.deliver_notifications(work);
        if !self.inbox.is_empty() {
            self.go_on_soon(work);
        }
        if !work.inside.due.is_empty() {
            self.device.deliver_inside(work);
        }
        result
    }
}
