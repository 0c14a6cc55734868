//! Receiving: who holds the token takes what is in the sockets, and gives it to those it is for.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use urxe_engine::Instant;
use urxe_net::{Change, Datagram, Receiver, Run};
use urxe_wire::icrc::Check;
use urxe_wire::{Packet, Psn, Qpn};

use super::{NetPort, Work};
use crate::counters::bump;
use crate::observe::chaos;
use crate::runtime::gsi;
use crate::runtime::host::Origin;
use crate::runtime::qp::Qp;
use crate::runtime::{clock, lock};

/// Datagrams (GRO runs) taken before answering: a run can be 15 packets of 4096 bytes, and a peer waits for the
/// answer to keep its window moving.
const BUDGET: usize = 4;
/// Packets received at once that are not a burst: a request, and the ACK that came with it.
const FEW: usize = 2;

/// The receive side's state.
pub(super) struct Token {
    receiver: Receiver,
    pub(super) work: Option<Work>,
    /// Queue pairs that have got packets and not been answered for; between drains, those whose ACK waits.
    pub(super) touched: Vec<Arc<Qp>>,
    /// Until when the first of these ACKs waits.
    pub(super) waits_until: Option<Instant>,
}

impl Token {
    pub(super) const fn new(receiver: Receiver) -> Self {
        Self { receiver, work: None, touched: Vec::new(), waits_until: None }
    }
}

/// What the background thread found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::runtime) struct Drained {
    /// Packets that came at once, at most.
    pub(in crate::runtime) most: usize,
    /// They concerned nobody but us: no completion came of them.
    pub(in crate::runtime) one_sided: bool,
    /// ACKs wait.
    pub(in crate::runtime) acks_wait: bool,
}

/// Whether ACKs may wait ([`habit`](crate::runtime::habit)).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::runtime) enum Acks {
    /// Somebody will look after them in time.
    MayWait,
    /// All leave.
    Leave,
}

/// Why a packet is not taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::runtime) enum Unfit {
    /// Its ICRC is wrong.
    Damaged,
    /// It is none.
    Malformed,
}

/// Those who get packets.
struct Addressee<'a> {
    work: &'a mut Work,
    touched: &'a mut Vec<Arc<Qp>>,
    now: Instant,
    /// Whose packets came last.
    last: Option<Arc<Qp>>,
}

impl Addressee<'_> {
    /// The queue pair has got packets.
    fn touch(&mut self, qp: &Arc<Qp>) {
        if !qp.touched.swap(true, Ordering::Relaxed) {
            self.touched.push(Arc::clone(qp));
        }
    }
}

impl NetPort {
    /// Receives and answers, unless somebody else is at it. Returns how many packets that were, and when it began.
    pub(in crate::runtime) fn progress(&self, acks: Acks) -> (usize, Instant) {
        let Ok(mut token) = self.token.try_lock() else { return (0, clock::now()) };
        let now = clock::now();
        // Asked with the token in hand: who ceases to watch sends what waits with the token in hand, afterwards.
        let acks = if self.watch.is_on() { acks } else { Acks::Leave };
        (self.drain(&mut token, acks, now), now)
    }

    /// Receives and answers until nothing is there; for the background thread, when the sockets are readable.
    pub(in crate::runtime) fn drain_all(&self, acks: Acks) -> Drained {
        let mut token = lock(&self.token);
        token.receiver.woken();
        let mut all = Drained { most: 0, one_sided: true, acks_wait: false };
        while !self.stop.load(Ordering::Relaxed) {
            let drained = self.drain_once(&mut token, acks);
            all.most = all.most.max(drained.most);
            all.one_sided &= drained.one_sided;
            if drained.most == 0 && token.receiver.prepare_to_wait() {
                break;
            }
        }
        Drained { acks_wait: token.waits_until.is_some(), ..all }
    }

    /// Receives and answers what is there, unless somebody else is at it; for the background thread, while it keeps its
    /// eyes open.
    pub(in crate::runtime) fn look_once(&self) -> Option<Drained> {
        let mut token = self.token.try_lock().ok()?;
        Some(self.drain_once(&mut token, Acks::Leave))
    }

    fn drain_once(&self, token: &mut Token, acks: Acks) -> Drained {
        let completions = |token: &Token| token.work.as_ref().map_or(0, |work| work.upcalls.completions);
        let before = completions(token);
        let most = self.drain(token, acks, clock::now());
        Drained { most, one_sided: completions(token) == before, acks_wait: token.waits_until.is_some() }
    }

    /// The queue pairs that a multicast datagram is for.
    fn attached(&self, datagram: &Datagram<'_>) -> Vec<Arc<Qp>> {
        self.groups.attached(datagram.local.ip()).into_iter().filter_map(|qpn| self.qp(qpn)).collect()
    }

    /// Takes what is in any socket now; waits for whoever is at it.
    pub(crate) fn look(&self) {
        let mut token = lock(&self.token);
        token.receiver.woken();
        self.drain(&mut token, Acks::Leave, clock::now());
    }

    /// Looks at the sockets a last time: a port owner has other processes' packets in there.
    pub(crate) fn pass_on(&self) {
        const ROUNDS: usize = 64;
        const ATTEMPTS: usize = 100;
        self.exits.store(true, Ordering::Relaxed);
        for _ in 0..ATTEMPTS {
            // Not `lock`: a signal handler that exits may have interrupted who has it.
            let Ok(mut token) = self.token.try_lock() else {
                std::thread::sleep(Duration::from_micros(10));
                continue;
            };
            if chaos::is_on() {
                for qp in self.queue_pairs() {
                    self.with_work(|work| qp.drive(work, |engine, io| engine.hurry(io)));
                }
            }
            for _ in 0..ROUNDS {
                token.receiver.woken();
                self.drain(&mut token, Acks::Leave, clock::now());
            }
            return;
        }
    }

    /// Receives some packets and answers them. Returns how many.
    fn drain(&self, token: &mut Token, acks: Acks, now: Instant) -> usize {
        let Token { receiver, work, touched, .. } = token;
        let Some(work) = work else { return 0 };
        let mut to = Addressee { work, touched, now, last: None };
        let mut received = self.port.receive(receiver, BUDGET, &mut |run| match self.observer() {
            None => self.take(&mut to, run),
            Some(observer) => {
                for datagram in run.datagrams() {
                    let mut room = Vec::new();
                    if let Some(datagram) = self.observe(observer, datagram, true, &mut room) {
                        self.take(&mut to, datagram.into());
                    }
                }
            }
        });
        if let Some(observer) = self.observer() {
            for arrival in observer.arrivals(now) {
                let mut room = Vec::new();
                if let Some(datagram) = self.observe(observer, arrival.datagram(), false, &mut room) {
                    self.take(&mut to, datagram.into());
                }
                received += 1;
            }
            observer.settle();
            observer.flush();
            self.attend(observer, to.work);
        }
        let work = to.work;
        for change in self.port.take_changes() {
            if change == Change::Down {
                bump(&self.counters.link_downed);
            }
            self.listeners.tell(change);
            if change == Change::Gone {
                self.tell_gsi_removed(work);
            }
        }
        for will in self.port.take_due_wills() {
            gsi::send(work, &self.port, Psn::default(), will.local, will.remote, &will.message);
        }
        if received > 0 || token.waits_until.is_some_and(|at| at <= now || acks == Acks::Leave) {
            // A burst is acknowledged at once: its sender keeps more in flight than one message.
            let acks = if received <= FEW { acks } else { Acks::Leave };
            self.answer(token, now, acks);
        }
        let Some(work) = &mut token.work else { return received };
        if self.has_unfinished.swap(false, Ordering::Relaxed) {
            let unfinished = std::mem::take(&mut *lock(&self.unfinished));
            for qpn in unfinished {
                if let Some(qp) = self.qp(qpn) {
                    qp.drive(work, |_, _| ());
                }
            }
        }
        self.squeeze_in(work);
        received
    }

    /// Gives packets to those they are for.
    fn take(&self, to: &mut Addressee<'_>, run: Run<'_>) {
        let qpn = run.dest_qpn();
        if qpn == Qpn::MULTICAST || qpn == Qpn::GSI {
            for datagram in run.datagrams() {
                let Ok(packet) = self.examine(&datagram) else { continue };
                if qpn == Qpn::GSI {
                    self.receive_gsi(to.work, to.now, &datagram, &packet);
                    continue;
                }
                for qp in self.attached(&datagram) {
                    qp.receive(to.work, to.now, &Origin::from(&datagram), core::iter::once(Ok(packet)));
                    to.touch(&qp);
                }
            }
            return;
        }
        if to.last.as_ref().is_none_or(|qp| qp.qpn() != qpn) {
            to.last = self.qp(qpn);
        }
        let Some(qp) = to.last.take() else {
            let fit = run.datagrams().filter(|datagram| self.examine(datagram).is_ok()).count();
            self.counters.unknown_qp.fetch_add(fit as u64, Ordering::Relaxed);
            return;
        };
        // Made here, as they are taken: of many packets each is touched once.
        let mut datagrams = run.datagrams();
        let packets = core::iter::from_fn(|| datagrams.next().map(|datagram| self.examine(&datagram)));
        let is_urgent = qp.receive(to.work, to.now, &Origin::from(run.headers()), packets);
        if is_urgent {
            // Not after what else is in the socket: all that its peer sends meanwhile is thrown away.
            qp.drive(to.work, |_, _| ());
        } else {
            to.touch(&qp);
        }
        to.last = Some(qp);
    }

    /// Sees whether a packet is whole, and one at all.
    fn examine<'a>(&self, datagram: &Datagram<'a>) -> Result<Packet<'a>, Unfit> {
        //= spec/packets.md#pkt-010
        //# A packet whose ICRC is wrong MUST be counted and dropped without an answer.
        if datagram.verify() == Check::Bad {
            bump(&self.counters.icrc_err);
            return Err(Unfit::Damaged);
        }
        Packet::parse(datagram.payload).map_err(|_| {
            bump(&self.counters.malformed);
            Unfit::Malformed
        })
    }

    fn receive_gsi(&self, work: &mut Work, now: Instant, datagram: &Datagram<'_>, packet: &Packet<'_>) {
        let Some(mad) = gsi::message(packet) else { return };
        let (local, peer) = (gsi::gid(datagram.local.ip()), gsi::gid(datagram.peer.ip()));
        if let Some(gsi) = self.gsi() {
            gsi.receive(work, now, local, peer, &mad);
        } else if let Some(answer) = urxe_engine::cm::answer_to_unknown(&mad) {
            gsi::send(work, &self.port, Psn::default(), local, peer, &answer.to_bytes());
        }
    }
}
