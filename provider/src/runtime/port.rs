//! What a device is in this process: its sockets, queue pairs, regions and timers.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use urxe_engine::{Consumer as _, Cqe, Instant};
use urxe_net::{Change, Datagram, Interface, Port, PortError, Receiver};
use urxe_wire::icrc::Check;
use urxe_wire::{Packet, Psn, Qpn};

use super::changes::Listeners;
use super::cq::Cq;
use super::crammed::Crammed;
use super::crowd::Crowd;
use super::groups::Groups;
use super::gsi::{self, Gsi};
use super::habit;
use super::host::{Origin, Sender, Upcalls};
use super::moderation::Moderated;
use super::qp::Qp;
use super::srq::{Srq, XrcSrqs};
use super::timers::Timers;
use super::watch::Watch;
use super::{clock, lock};
use crate::counters::{Counters, bump};
use crate::device;
use crate::kernel::event_file::EventFile;
use crate::limits;
use crate::memory::regions::Regions;
use crate::observe::{Observer, chaos};
use crate::status::ledger;
use crate::xrc::neighbours::Neighbours;
use crate::xrc::owner::{self, Reception};

/// Datagrams (GRO runs) taken before answering: a run can be 15 packets of 4096 bytes, and a peer waits for the
/// answer to keep its window moving.
const BUDGET: usize = 4;
/// Packets received at once that are not a burst: a request, and the ACK that came with it.
const FEW: usize = 2;

/// A device in this process.
pub(crate) struct NetPort {
    name: String,
    port: Arc<Port>,
    /// The receive token: who holds it receives for everybody.
    token: Mutex<Token>,
    qps: RwLock<HashMap<Qpn, Arc<Qp>>>,
    regions: Arc<Regions>,
    groups: Groups,
    timers: Timers,
    moderated: Moderated,
    /// Queue pairs with more to send than one turn allows.
    unfinished: Mutex<Vec<Qpn>>,
    has_unfinished: AtomicBool,
    /// Queue pairs whose packets found no room.
    pub(super) crammed: Crammed,
    spare: Mutex<Vec<Work>>,
    counters: Arc<Counters>,
    /// What they have counted is in the ledger.
    is_settled: AtomicBool,
    /// Somebody wants to see what happens.
    observer: Option<Arc<Observer>>,
    pub(super) listeners: Arc<Listeners>,
    xrc_srqs: Arc<XrcSrqs>,
    /// Who answers other processes that ask for them.
    reception: Reception,
    /// Completion queues that overran by a message for such a process.
    overran: Mutex<Vec<Arc<Cq>>>,
    has_overran: AtomicBool,
    /// Who takes datagrams to QP1.
    pub(super) gsi: RwLock<Option<Arc<dyn Gsi>>>,
    /// When it wants to be woken, in nanoseconds; `u64::MAX` for never.
    gsi_timer: AtomicU64,
    /// Wakes the background thread (eventfd).
    kick: OwnedFd,
    /// Until when the background thread sleeps, in nanoseconds; 0 while it is awake.
    pub(super) sleeps_until: AtomicU64,
    /// When the application last polled in vain, in nanoseconds.
    pub(super) polled_at: AtomicU64,
    /// Who else is on the processor of those who poll.
    pub(super) crowd: Crowd,
    /// The background thread sees to ACKs that wait, though pollers receive.
    pub(super) watch: Watch,
    /// The program ends: no ACK waits any more.
    exits: AtomicBool,
    pub(super) stop: AtomicBool,
}

/// What sending and completing need besides a queue pair.
#[derive(Debug)]
pub(crate) struct Work {
    pub(super) sender: Sender,
    pub(super) upcalls: Upcalls,
}

/// The receive side's state.
pub(super) struct Token {
    receiver: Receiver,
    work: Option<Work>,
    /// Queue pairs that have got packets and not been answered for; between drains, those whose ACK waits.
    touched: Vec<Arc<Qp>>,
    /// Until when the first of these ACKs waits.
    waits_until: Option<Instant>,
}

/// What the background thread found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Drained {
    /// Packets that came at once, at most.
    pub(super) most: usize,
    /// They concerned nobody but us: no completion came of them.
    pub(super) one_sided: bool,
    /// ACKs wait.
    pub(super) acks_wait: bool,
}

/// Whether ACKs may wait ([`habit`](super::habit)).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Acks {
    /// Somebody will look after them in time.
    MayWait,
    /// All leave.
    Leave,
}

impl NetPort {
    /// Opens the device's sockets.
    pub(crate) fn open(name: &str, interface: Interface, seed: u64) -> Result<Self, PortError> {
        let open = if device::shares_memory() { Port::open_sharing_memory } else { Port::open };
        let (port, receiver) = open(interface)?;
        let port = Arc::new(port);
        let xrc_srqs = Arc::new(XrcSrqs::new(Neighbours::new(&port)));
        let regions = Arc::new(Regions::new(limits::MAX_MR, seed).with(xrc_srqs.neighbours()));
        let observer = Observer::new(name, &port.interface(), &regions);
        if observer.is_some() {
            port.keep_icrcs();
        }
        let kick = eventfd().map_err(|source| PortError::os("make an eventfd", source))?;
        let watch = Watch::new().map_err(|source| PortError::os("make a timer", source))?;
        let counters = Arc::new(Counters::default());
        let new = Self {
            name: name.to_owned(),
            token: Mutex::new(Token { receiver, work: None, touched: Vec::new(), waits_until: None }),
            port,
            qps: RwLock::new(HashMap::new()),
            regions,
            groups: Groups::default(),
            timers: Timers::new(),
            moderated: Moderated::new(),
            unfinished: Mutex::new(Vec::new()),
            has_unfinished: AtomicBool::new(false),
            crammed: Crammed::default(),
            spare: Mutex::new(Vec::new()),
            is_settled: AtomicBool::new(false),
            counters,
            observer,
            listeners: Listeners::new(),
            xrc_srqs,
            reception: Reception::default(),
            overran: Mutex::default(),
            has_overran: AtomicBool::new(false),
            gsi: RwLock::new(None),
            gsi_timer: AtomicU64::new(u64::MAX),
            kick,
            sleeps_until: AtomicU64::new(0),
            polled_at: AtomicU64::new(0),
            crowd: Crowd::default(),
            watch,
            exits: AtomicBool::new(false),
            stop: AtomicBool::new(false),
        };
        lock(&new.token).work = Some(new.new_work());
        Ok(new)
    }

    fn new_work(&self) -> Work {
        let observer = self.observer.clone();
        let upcalls = Upcalls::new(Arc::clone(&self.counters), Arc::clone(&self.xrc_srqs), observer.clone());
        Work { sender: Sender::new(Arc::clone(&self.port), observer), upcalls }
    }

    /// Packets a peer may be thought to hold in its receive buffer, from what ours holds: the bound of windows.
    pub(crate) fn window(&self) -> u32 {
        // Half of it, at what a packet of 4096 bytes costs the kernel in a run.
        u32::try_from(self.port.receive_buffer() / 2 / 4608).unwrap_or(u32::MAX).clamp(16, 256)
    }

    /// Sockets, addresses, queue pair numbers.
    pub(crate) fn net(&self) -> &Port {
        &self.port
    }

    /// Whether the device can do nothing any more.
    pub(crate) fn has_failed(&self) -> bool {
        self.listeners.has_failed()
    }

    /// Has events of the port told in this file.
    pub(crate) fn tell_changes(&self, file: &Arc<EventFile>) {
        self.listeners.add(file);
        self.opened();
    }

    /// A completion channel, which ends when the device is taken out.
    pub(crate) fn listen(&self, channel: &Arc<EventFile>) {
        self.listeners.add_channel(channel);
    }

    /// Multicast groups.
    pub(crate) const fn groups(&self) -> &Groups {
        &self.groups
    }

    /// What went wrong, and how often.
    pub(crate) fn counters(&self) -> &Counters {
        &self.counters
    }

    /// All counters, those of the sockets first.
    pub(crate) fn all_counters(&self) -> impl Iterator<Item = (&'static str, u64)> {
        self.port.counters().named().chain(self.counters.named())
    }

    /// The device is about to go, and its counters with it: those who look at sysfs want to see them still.
    pub(crate) fn settle(&self) {
        if !self.is_settled.swap(true, Ordering::Relaxed) {
            ledger::add(&self.name, self.all_counters());
        }
    }

    /// Who sees what happens, if anybody wants to.
    pub(crate) const fn observer(&self) -> Option<&Arc<Observer>> {
        self.observer.as_ref()
    }

    /// Registered memory.
    pub(crate) fn regions(&self) -> &Regions {
        &self.regions
    }

    pub(super) fn kick_fd(&self) -> RawFd {
        self.kick.as_raw_fd()
    }

    /// Lends what sending needs.
    pub(crate) fn with_work<T>(&self, then: impl FnOnce(&mut Work) -> T) -> T {
        let spare = lock(&self.spare).pop();
        let mut work = spare.unwrap_or_else(|| self.new_work());
        let result = then(&mut work);
        lock(&self.spare).push(work);
        result
    }

    // --- queue pairs -----------------------------------------------------------------------------------------

    pub(super) fn add_qp(&self, qp: Arc<Qp>) {
        self.qps.write().unwrap_or_else(PoisonError::into_inner).insert(qp.qpn(), qp);
    }

    pub(super) fn remove_qp(&self, qpn: Qpn) {
        self.qps.write().unwrap_or_else(PoisonError::into_inner).remove(&qpn);
        self.port.free_qpn(qpn);
        if let Some(observer) = &self.observer {
            observer.forgotten(qpn);
        }
    }

    /// All of them.
    pub(crate) fn queue_pairs(&self) -> Vec<Arc<Qp>> {
        self.qps.read().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }

    /// The queue pair of this number.
    pub(crate) fn qp(&self, qpn: Qpn) -> Option<Arc<Qp>> {
        self.qps.read().unwrap_or_else(PoisonError::into_inner).get(&qpn).cloned()
    }

    /// Lets messages reach an XRC SRQ, also those of other processes that have the domain's file.
    ///
    /// # Errors
    /// What the system refuses that these need; nothing is changed then.
    pub(crate) fn add_srq(self: &Arc<Self>, srq: &Arc<Srq>) -> io::Result<()> {
        if let Some(xrc) = srq.xrc() {
            self.xrc_srqs.add(srq);
            if self.xrc_srqs.neighbours().is_shared(xrc.domain) {
                owner::receive(self, xrc.number).inspect_err(|_| self.xrc_srqs.remove(xrc))?;
            }
        }
        Ok(())
    }

    /// Ends that, and gives its number back.
    pub(crate) fn remove_srq(&self, srq: &Srq) {
        if let Some(xrc) = srq.xrc() {
            self.xrc_srqs.remove(xrc);
            if self.xrc_srqs.neighbours().is_shared(xrc.domain) {
                owner::turn_away(self, xrc.number);
            }
            self.port.free_qpn(xrc.number);
        }
    }

    /// The XRC SRQs within reach.
    pub(crate) const fn xrc_srqs(&self) -> &Arc<XrcSrqs> {
        &self.xrc_srqs
    }

    /// Who answers other processes.
    pub(crate) const fn reception(&self) -> &Reception {
        &self.reception
    }

    // --- receiving -------------------------------------------------------------------------------------------

    /// Receives and answers, unless somebody else is at it. Returns how many packets that were.
    pub(super) fn progress(&self, acks: Acks) -> usize {
        let Ok(mut token) = self.token.try_lock() else { return 0 };
        // Asked with the token in hand: who ceases to watch sends what waits with the token in hand, afterwards.
        let acks = if self.watch.is_on() { acks } else { Acks::Leave };
        self.drain(&mut token, acks)
    }

    /// Receives and answers until nothing is there; for the background thread, when the sockets are readable.
    pub(super) fn drain_all(&self, acks: Acks) -> Drained {
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
    pub(super) fn look_once(&self) -> Option<Drained> {
        let mut token = self.token.try_lock().ok()?;
        Some(self.drain_once(&mut token, Acks::Leave))
    }

    fn drain_once(&self, token: &mut Token, acks: Acks) -> Drained {
        let completions = |token: &Token| token.work.as_ref().map_or(0, |work| work.upcalls.completions);
        let before = completions(token);
        let most = self.drain(token, acks);
        Drained { most, one_sided: completions(token) == before, acks_wait: token.waits_until.is_some() }
    }

    /// Sends the ACKs that have waited long enough, unless somebody receives, who does the same.
    pub(super) fn send_overdue_acks(&self) {
        if let Ok(mut token) = self.token.try_lock() {
            self.answer(&mut token, clock::now(), Acks::MayWait);
        }
    }

    /// Sends all ACKs that wait.
    pub(super) fn send_acks(&self) {
        self.answer(&mut lock(&self.token), clock::now(), Acks::Leave);
    }

    /// The queue pairs that a multicast datagram is for.
    fn attached(&self, datagram: &Datagram<'_>) -> Vec<Arc<Qp>> {
        self.groups.attached(datagram.local.ip()).into_iter().filter_map(|qpn| self.qp(qpn)).collect()
    }

    /// Takes what is in any socket now; waits for whoever is at it.
    pub(crate) fn look(&self) {
        let mut token = lock(&self.token);
        token.receiver.woken();
        self.drain(&mut token, Acks::Leave);
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
                self.drain(&mut token, Acks::Leave);
            }
            return;
        }
    }

    /// Receives some packets and answers them. Returns how many.
    fn drain(&self, token: &mut Token, acks: Acks) -> usize {
        let Token { receiver, work, touched, .. } = token;
        let Some(work) = work else { return 0 };
        let now = clock::now();
        let mut last: Option<Arc<Qp>> = None;
        let mut take = |datagram: Datagram<'_>, fresh: bool| {
            let mut room = Vec::new();
            let datagram = match &self.observer {
                None => datagram,
                Some(observer) => match self.observe(observer, datagram, fresh, &mut room) {
                    Some(datagram) => datagram,
                    None => return,
                },
            };
            //= spec/packets.md#pkt-010
            //# A packet whose ICRC is wrong MUST be counted and dropped without an answer.
            if datagram.verify() == Check::Bad {
                bump(&self.counters.icrc_err);
                if let Some(qp) = self.qp(datagram.dest_qpn()) {
                    qp.damaged();
                }
                return;
            }
            let packet = match Packet::parse(datagram.payload) {
                Ok(packet) => packet,
                Err(_) => {
                    bump(&self.counters.malformed);
                    return;
                }
            };
            let qpn = packet.bth().dest_qp;
            if qpn == Qpn::MULTICAST {
                for qp in self.attached(&datagram) {
                    qp.receive(work, now, &packet, &Origin::from(&datagram));
                    if !qp.touched.swap(true, Ordering::Relaxed) {
                        touched.push(qp);
                    }
                }
                return;
            }
            if qpn == Qpn::GSI {
                self.receive_gsi(work, now, &datagram, &packet);
                return;
            }
            if last.as_ref().is_none_or(|qp| qp.qpn() != qpn) {
                last = self.qp(qpn);
            }
            let Some(qp) = &last else {
                bump(&self.counters.unknown_qp);
                return;
            };
            qp.receive(work, now, &packet, &Origin::from(&datagram));
            if !qp.touched.swap(true, Ordering::Relaxed) {
                touched.push(Arc::clone(qp));
            }
        };
        let mut received = self.port.receive(receiver, BUDGET, &mut |datagram| take(datagram, true));
        if let Some(observer) = &self.observer {
            for arrival in observer.arrivals(now) {
                take(arrival.datagram(), false);
                received += 1;
            }
            observer.settle();
            observer.flush();
            self.attend(observer, work);
        }
        for change in self.port.take_changes() {
            if change == Change::Down {
                bump(&self.counters.link_downed);
            }
            self.listeners.tell(change);
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

    /// Sends the answers of queue pairs that have got packets.
    fn answer(&self, token: &mut Token, now: Instant, acks: Acks) {
        let Token { work: Some(work), touched, waits_until, .. } = token else { return };
        if touched.is_empty() {
            return;
        }
        let may_wait = acks == Acks::MayWait && !self.exits.load(Ordering::Relaxed);
        touched.retain(|qp| {
            let waits = may_wait && qp.lets_ack_wait(now);
            if !waits {
                qp.untouch();
                qp.drive(work, |_, _| ());
            }
            waits
        });
        *waits_until = match *waits_until {
            _ if touched.is_empty() => None,
            Some(at) if at > now => Some(at),
            _ => Some(now + habit::PATIENCE),
        };
    }

    /// The queue pair has more to send.
    pub(super) fn finish_later(&self, qpn: Qpn) {
        lock(&self.unfinished).push(qpn);
        self.has_unfinished.store(true, Ordering::Relaxed);
        self.wake();
    }

    pub(super) fn has_unfinished(&self) -> bool {
        self.has_unfinished.load(Ordering::Relaxed)
    }

    // --- timers ----------------------------------------------------------------------------------------------

    pub(super) fn set_timer(&self, qp: &Qp, at: Instant) {
        if self.timers.set(&qp.timer, qp.qpn(), at) && self.sleeps_until.load(Ordering::SeqCst) > at.as_nanos() {
            self.wake();
        }
    }

    pub(super) fn next_timer(&self) -> Option<Instant> {
        let gsi = self.gsi_timer.load(Ordering::Acquire);
        let gsi = (gsi != u64::MAX).then(|| Instant::from_nanos(gsi));
        let observer = self.observer.as_ref().and_then(|observer| observer.next_due());
        let crammed = self.crammed.next_look();
        self.timers.next().into_iter().chain(self.moderated.next()).chain(gsi).chain(observer).chain(crammed).min()
    }

    /// When QP1 wants to be woken.
    pub(crate) fn set_gsi_timer(&self, at: Option<Instant>) {
        let at = at.map_or(u64::MAX, Instant::as_nanos);
        self.gsi_timer.store(at, Ordering::SeqCst);
        if at != u64::MAX && self.sleeps_until.load(Ordering::SeqCst) > at {
            self.wake();
        }
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

    /// Does what is due.
    pub(super) fn run_timers(&self, now: Instant) {
        self.moderated.expire(now);
        if self.has_overran.swap(false, Ordering::Acquire) {
            let overran = std::mem::take(&mut *lock(&self.overran));
            self.with_work(|work| overran.iter().for_each(|cq| self.overrun(cq, work)));
        }
        if let Some(observer) = &self.observer {
            self.release_held(observer, now);
        }
        if self.gsi_timer.load(Ordering::Acquire) <= now.as_nanos()
            && let Some(gsi) = self.gsi()
        {
            gsi.handle_timeout(now);
        }
        if self.crammed.next_look().is_some_and(|at| at <= now) {
            self.with_work(|work| self.squeeze_in(work));
        }
        while let Some((at, qpn)) = self.timers.expired(now) {
            let Some(qp) = self.qp(qpn).filter(|qp| qp.timer.take(at)) else { continue };
            self.with_work(|work| qp.handle_timeout(work));
        }
    }

    /// Wakes the background thread.
    pub(super) fn wake(&self) {
        let one = 1_u64.to_ne_bytes();
        // SAFETY: eight bytes to our eventfd. It can only fail by being full, and then it is readable already.
        unsafe { libc::write(self.kick.as_raw_fd(), one.as_ptr().cast(), one.len()) };
    }

    /// Ends the background thread.
    pub(crate) fn request_stop(&self) {
        self.stop.store(true, Ordering::Release);
        self.wake();
    }

    // --- events ----------------------------------------------------------------------------------------------

    /// Tells the application what the engine left to be told. No lock but the receive token is held.
    pub(super) fn deliver_upcalls(&self, work: &mut Work) {
        self.moderate(work);
        while let Some(cq) = work.upcalls.overruns.pop() {
            self.overrun(&cq, work);
        }
        for (qpn, event) in work.upcalls.events.drain(..) {
            if let Some(qp) = self.qp(qpn) {
                qp.raise(event);
            }
        }
        if let Some(observer) = &self.observer {
            self.attend(observer, work);
        }
    }

    fn moderate(&self, work: &mut Work) {
        for (at, cq) in work.upcalls.moderated.drain(..) {
            self.moderated.add(at, &cq);
            if self.sleeps_until.load(Ordering::SeqCst) > at.as_nanos() {
                self.wake();
            }
        }
    }

    /// Adds a completion for a message that has come by a queue pair of another process. That of a queue that overruns
    /// is left to the background thread: no queue pair's engine is taken here.
    pub(crate) fn complete_for_other(&self, cq: &Arc<Cq>, cqe: Cqe) {
        self.with_work(|work| {
            work.upcalls.complete(cq, cqe);
            self.moderate(work);
            if !work.upcalls.overruns.is_empty() {
                lock(&self.overran).append(&mut work.upcalls.overruns);
                self.has_overran.store(true, Ordering::Release);
                self.wake();
            }
        });
    }

    /// A completion was lost: the queue is of no use any more, and neither are the queue pairs that complete there
    /// (IBA 11.6.3.2, 11.6.3.3).
    fn overrun(&self, cq: &Arc<Cq>, work: &mut Work) {
        cq.raise_error();
        for qp in self.queue_pairs().into_iter().filter(|qp| qp.uses(cq)) {
            qp.drive(work, |engine, io| engine.fail(io));
            qp.raise(urxe_engine::AsyncEvent::QpFatal);
        }
    }

    /// For a forked child: closes the child's copies of the sockets. Takes no lock, allocates nothing.
    pub(super) fn close_in_child(&self) {
        self.port.close_in_child();
        self.watch.close_in_child();
        // SAFETY: this process will not use it: the device is dead here, and this structure is never dropped.
        unsafe { libc::close(self.kick.as_raw_fd()) };
    }
}

fn eventfd() -> io::Result<OwnedFd> {
    // SAFETY: no pointers.
    let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: new, and ours.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}
