//! Receiving: who holds the token takes what is in the sockets.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use urxe_engine::{Clock as _, Instant};
use urxe_net::cancellation::CancelGuard;
use urxe_net::{LinkEvent, Receiver};
use urxe_wire::Psn;

use super::dispatch::Addressees;
use super::{Device, TxContext};
use crate::clock::LazyInstant;
use crate::counters::bump;
use crate::gsi;
use crate::interceptor::Interceptor;
use crate::progress::delayed_ack::AckMode;
use crate::progress::polls_in_vain;
use crate::progress::tuning::TUNING;
use crate::qp::Qp;
use crate::{clock, lock, try_lock};

/// Datagrams (GRO runs) taken before answering: a run can be 15 packets of 4096 bytes, and a peer waits for the
/// answer to keep its window moving.
const BUDGET: usize = 4;
/// Packets received at once that are not a burst: a request, and the ACK that came with it.
pub(crate) const FEW: usize = 2;
/// Looks in a row that find packets, after which the last ACKs of ended processes are taken all the same.
const LEFT_ACKS_WAIT: u32 = 64;

/// The receive side's state.
pub(super) struct Token {
    receiver: Receiver,
    pub(super) work: Option<TxContext>,
    /// Queue pairs that have got packets and not been answered for; between drains, those whose ACK waits.
    pub(super) dirty: Vec<Arc<Qp>>,
    /// Time until which the first of these ACKs waits.
    pub(super) waits_until: Option<Instant>,
    /// Looks since the last ACKs of ended processes have been there to be taken.
    left_acks_wait: u32,
}

impl Token {
    pub(super) const fn new(receiver: Receiver) -> Self {
        Self { receiver, work: None, dirty: Vec::new(), waits_until: None, left_acks_wait: 0 }
    }
}

/// Result of a drain by the background thread.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Drained {
    /// Most packets received in one drain.
    pub(crate) most: usize,
    /// Whether no packet led to a completion: one-sided operations of peers, or ACKs.
    pub(crate) one_sided: bool,
    /// ACKs wait.
    pub(crate) acks_wait: bool,
    /// Set if there may be more, of which no socket tells: it is left to somebody who polls, but has to be looked after.
    pub(crate) is_left: bool,
}

/// Another thread receives: lets it have the processor now and then.
#[cold]
fn leave_to_holder(clock: &LazyInstant) {
    if polls_in_vain::is_to_yield() {
        std::thread::yield_now();
        // Whoever ran meanwhile may have taken long.
        clock.renew();
    }
}

impl Device {
    /// Receives and answers, unless somebody else is at it. Returns how many packets came.
    #[inline]
    pub(crate) fn progress(&self, acks: AckMode, clock: &LazyInstant) -> usize {
        let Some(mut token) = try_lock(&self.token) else {
            // The progress thread is scheduled soon, without the processor of this one.
            if !(self.policy.is_contended() && self.policy.is_thread_receiving()) {
                leave_to_holder(clock);
            }
            return 0;
        };
        // Asked with the token in hand: who ceases to watch sends what waits with the token in hand, afterwards.
        let is_watched = self.policy.watchdog.is_on();
        let acks = if is_watched || self.policy.is_contended() { acks } else { AckMode::Immediate };
        let packets = self.drain(&mut token, acks, clock);
        if packets > 0 && !is_watched && token.waits_until.is_some() {
            drop(token);
            self.policy.leave_acks();
            self.wake();
        }
        packets
    }

    /// Receives and answers until nothing is there, or somebody polls who does the rest; for the background thread, when
    /// the sockets are readable.
    pub(crate) fn drain_all(&self, acks: AckMode) -> Drained {
        let mut token = lock(&self.token);
        self.policy.thread_receives(true);
        token.receiver.woken();
        let mut all = Drained { most: 0, one_sided: true, acks_wait: false, is_left: false };
        let mut began = None;
        while !self.stop.load(Ordering::Relaxed) {
            let now = clock::now();
            let drained = self.drain_once(&mut token, acks, now);
            all.most = all.most.max(drained.most);
            all.one_sided &= drained.one_sided;
            if drained.most == 0 && token.receiver.prepare_to_wait() {
                break;
            }
            // Otherwise a thread that was once quicker than a program that polls would do its work as long as packets come,
            // and take the processor from it.
            all.is_left = self.polled_since(*began.get_or_insert(now));
            if all.is_left {
                break;
            }
        }
        self.policy.thread_receives(false);
        Drained { acks_wait: token.waits_until.is_some(), ..all }
    }

    /// Has the sockets readable when anything comes. False if that is not to be waited for: something is there, or somebody
    /// receives.
    pub(crate) fn prepare_to_wait(&self) -> bool {
        // A device that was closed meanwhile has no descriptors: their numbers may be others' by now.
        try_lock(&self.token).is_some_and(|mut token| token.work.is_some() && token.receiver.prepare_to_wait())
    }

    /// The sockets were found readable: whoever receives next looks at all.
    pub(crate) fn woken(&self) {
        if let Some(mut token) = try_lock(&self.token) {
            token.receiver.woken();
        }
    }

    /// Receives and answers what is there, unless somebody else is at it; for the background thread, while it keeps its
    /// eyes open.
    pub(crate) fn look_once(&self, now: Instant) -> Option<Drained> {
        let mut token = try_lock(&self.token)?;
        self.policy.thread_receives(true);
        let drained = self.drain_once(&mut token, AckMode::Immediate, now);
        self.policy.thread_receives(false);
        Some(drained)
    }

    fn drain_once(&self, token: &mut Token, acks: AckMode, now: Instant) -> Drained {
        let completions = |token: &Token| token.work.as_ref().map_or(0, |work| work.notifications.completions);
        let before = completions(token);
        let most = self.drain(token, acks, &LazyInstant::from(now));
        let one_sided = completions(token) == before;
        Drained { most, one_sided, acks_wait: token.waits_until.is_some(), is_left: false }
    }

    /// Receives what is in the sockets now. Waits for the receive token if another thread has it.
    pub fn look(&self) {
        let mut token = lock(&self.token);
        token.receiver.woken();
        self.drain(&mut token, AckMode::Immediate, &LazyInstant::default());
    }

    /// Receives and answers until nothing is there. False if somebody else is at it, or there was too much.
    pub(super) fn catch_up(&self) -> bool {
        const TURNS: usize = 64;
        let Some(mut token) = try_lock(&self.token) else { return false };
        (0..TURNS).any(|_| {
            token.receiver.woken();
            self.drain(&mut token, AckMode::Immediate, &LazyInstant::default()) == 0 && token.receiver.is_done()
        })
    }

    /// Receives a last time before the process exits: the sockets of a port owner may hold packets of other processes, which get
    /// them.
    pub fn pass_on(&self) {
        const ROUNDS: usize = 64;
        const ATTEMPTS: usize = 100;
        self.exits.store(true, Ordering::Relaxed);
        for _ in 0..ATTEMPTS {
            // Not `lock`: a signal handler that exits may have interrupted who has it.
            let Some(mut token) = try_lock(&self.token) else {
                std::thread::sleep(TUNING.exit_retry);
                continue;
            };
            if self.has_quirks {
                for qp in self.queue_pairs() {
                    self.with_work(|work| qp.drive(work, |engine, io| engine.flush_delayed(io)));
                }
            }
            for _ in 0..ROUNDS {
                token.receiver.woken();
                self.drain(&mut token, AckMode::Immediate, &LazyInstant::default());
            }
            return;
        }
    }

    /// Receives some packets and answers them; returns how many. If nobody has looked at the clock yet, ACKs that wait are not
    /// looked after.
    fn drain(&self, token: &mut Token, acks: AckMode, clock: &LazyInstant) -> usize {
        let Token { receiver, work: Some(work), dirty, left_acks_wait, .. } = token else { return 0 };
        let mut to = Addressees { work, dirty, clock };
        let mut packets = match self.interceptor() {
            None => receiver.receive(&self.port, BUDGET, &mut |run| self.take(&mut to, run)),
            Some(interceptor) => self.receive_intercepted(receiver, &mut to, interceptor),
        };
        if self.port.has_news() {
            self.hear_news(&mut to);
        }
        if self.raw.is_active() {
            packets += self.look_at_raw(&mut to);
        }
        if self.port.has_left_acks() {
            *left_acks_wait += 1;
            if packets == 0 || *left_acks_wait > LEFT_ACKS_WAIT {
                *left_acks_wait = 0;
                packets += self.take_left_acks(&mut to);
            }
        }
        let is_overdue = |at| acks == AckMode::Immediate || clock.taken().is_some_and(|now| at <= now);
        if packets > 0 || token.waits_until.is_some_and(is_overdue) {
            // A burst is acknowledged at once: its sender keeps more in flight than one message.
            let acks = if packets <= FEW { acks } else { AckMode::Immediate };
            self.answer(token, clock, acks);
        }
        if self.has_unfinished() || self.backpressure.any() {
            self.go_on(token);
        }
        packets
    }

    /// Receives some packets by way of the interceptor, and those that it had held back; returns how many.
    fn receive_intercepted(
        &self,
        receiver: &mut Receiver,
        to: &mut Addressees<'_>,
        interceptor: &Arc<dyn Interceptor>,
    ) -> usize {
        let packets = receiver.receive(&self.port, BUDGET, &mut |run| self.take_intercepted(to, interceptor, run));
        if self.touches_packets {
            return packets + self.take_arrivals(to, interceptor);
        }
        interceptor.flush();
        packets
    }

    /// Handles news other than RoCE packets.
    #[cold]
    fn hear_news(&self, to: &mut Addressees<'_>) {
        let _guard = CancelGuard::new();
        let work = &mut *to.work;
        for change in self.port.take_link_events() {
            if change == LinkEvent::Down && !self.is_shard() {
                bump(&self.counters.link_downed);
            }
            if change == LinkEvent::Paths {
                self.leave_dead_paths(work);
            }
            if change == LinkEvent::Gone {
                self.leave(work);
            }
            self.listeners.tell(change);
        }
        if let Some(mads) = self.mads() {
            mads.port_changed(work, to.clock.now());
        }
        for will in self.port.take_due_last_wills() {
            gsi::send(work, &self.port, Psn::default(), will.local, will.remote, &will.message);
        }
        self.deliver_notifications(work);
    }

    /// Takes raw frames, and sends those that waited. Returns how many came.
    #[cold]
    fn look_at_raw(&self, to: &mut Addressees<'_>) -> usize {
        if !self.has_raw_work() {
            return 0;
        }
        let _guard = CancelGuard::new();
        let frames = self.receive_raw(to.work, to.clock);
        self.deliver_notifications(to.work);
        frames
    }

    /// Gives queue pairs the last ACKs of processes that have ended, when all that these have sent themselves has been taken:
    /// a look has found nothing, or [`LEFT_ACKS_WAIT`] looks in a row have found something.
    //= spec/hosts.md#net-034
    //# A message MUST be acknowledged, though its receiver ends as soon as it has polled it: before it can be polled, or by
    //# what the peer's process finds.
    #[cold]
    fn take_left_acks(&self, to: &mut Addressees<'_>) -> usize {
        let acks = self.port.take_left_acks();
        for ack in &acks {
            if let Some(qp) = self.qp(ack.to) {
                qp.receive_left_ack(to.work, to.clock, *ack);
                to.touch(qp);
            }
        }
        acks.len()
    }
}
