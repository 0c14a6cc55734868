//! Receiving: who holds the token takes what is in the sockets, and gives it to those it is for.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use urxe_engine::mad::Address;
use urxe_engine::{Clock as _, Instant};
use urxe_net::cancellation::CancelGuard;
use urxe_net::{BadPacket, Datagram, Destination, Headers, LinkEvent, Receiver, RxBatch};
use urxe_wire::mad::{MAD_LEN, Mad, smp, subnet_vendor};
use urxe_wire::packet::Service;
use urxe_wire::{Packet, Psn, Qpn};

use super::{Device, TxContext};
use crate::clock::LazyInstant;
use crate::counters::bump;
use crate::gsi::{self, Unfit};
use crate::host::Origin;
use crate::interceptor::Interceptor;
use crate::progress::delayed_ack::AckMode;
use crate::progress::polls_in_vain;
use crate::progress::tuning::TUNING;
use crate::qp::Qp;
use crate::xrc::target::Target;
use crate::{clock, lock, try_lock};

/// Datagrams (GRO runs) taken before answering: a run can be 15 packets of 4096 bytes, and a peer waits for the
/// answer to keep its window moving.
const BUDGET: usize = 4;
/// Packets received at once that are not a burst: a request, and the ACK that came with it.
pub(crate) const FEW: usize = 2;
/// Queue pairs that got packets last, among which the next packet's is looked for first.
const NEAR: usize = 2;

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

/// Destination of received packets: the queue pairs, and the list of those to answer.
struct Addressees<'a> {
    work: &'a mut TxContext,
    dirty: &'a mut Vec<Arc<Qp>>,
    clock: &'a LazyInstant,
}

impl Addressees<'_> {
    /// The queue pair has got packets.
    fn touch(&mut self, qp: Arc<Qp>) {
        if qp.mark_dirty() {
            self.dirty.push(qp);
        }
    }
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
            leave_to_holder(clock);
            return 0;
        };
        // Asked with the token in hand: who ceases to watch sends what waits with the token in hand, afterwards.
        let acks = if self.policy.watchdog.is_on() { acks } else { AckMode::Immediate };
        self.drain(&mut token, acks, clock)
    }

    /// Receives and answers until nothing is there, or somebody polls who does the rest; for the background thread, when
    /// the sockets are readable.
    pub(crate) fn drain_all(&self, acks: AckMode) -> Drained {
        let mut token = lock(&self.token);
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
        Some(self.drain_once(&mut token, AckMode::Immediate, now))
    }

    fn drain_once(&self, token: &mut Token, acks: AckMode, now: Instant) -> Drained {
        let completions = |token: &Token| token.work.as_ref().map_or(0, |work| work.notifications.completions);
        let before = completions(token);
        let most = self.drain(token, acks, &LazyInstant::from(now));
        let one_sided = completions(token) == before;
        Drained { most, one_sided, acks_wait: token.waits_until.is_some(), is_left: false }
    }

    /// The queue pairs that a multicast datagram is for.
    fn attached(&self, datagram: &Datagram<'_>) -> Vec<Arc<Qp>> {
        self.groups.attached(datagram.headers.local.ip()).into_iter().filter_map(|qpn| self.qp(qpn)).collect()
    }

    /// Takes what is in any socket now; waits for whoever is at it.
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

    /// Looks at the sockets a last time: a port owner has other processes' packets in there.
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
    #[cold]
    fn receive_intercepted(
        &self,
        receiver: &mut Receiver,
        to: &mut Addressees<'_>,
        interceptor: &Arc<dyn Interceptor>,
    ) -> usize {
        let packets = receiver.receive(&self.port, BUDGET, &mut |run| self.take_intercepted(to, interceptor, run));
        if interceptor.touches_packets() {
            return packets + self.take_arrivals(to, interceptor);
        }
        interceptor.flush();
        packets
    }

    /// Gives packets to their queue pairs, as the interceptor decides.
    fn take_intercepted(&self, to: &mut Addressees<'_>, interceptor: &Arc<dyn Interceptor>, run: RxBatch<'_>) -> bool {
        let mut accepted = false;
        if !interceptor.touches_packets()
            && let Some(first) = run.datagrams().next()
            && super::intercept::is_seen_by_its_first(&run)
        {
            interceptor.received(&first, &|| self.qp(first.dest_qpn()).is_some());
            return self.take(to, run);
        }
        for datagram in run.datagrams() {
            let mut room = Vec::new();
            if let Some(datagram) = self.intercept(interceptor, datagram, true, &mut room) {
                accepted |= self.take(to, datagram.into());
            }
        }
        accepted
    }

    /// Gives out packets that were held back, and ends what there is to see of this drain. Returns how many.
    fn take_arrivals(&self, to: &mut Addressees<'_>, interceptor: &Arc<dyn Interceptor>) -> usize {
        let arrivals = interceptor.arrivals(to.clock.now());
        for arrival in &arrivals {
            let mut room = Vec::new();
            if let Some(datagram) = self.intercept(interceptor, arrival.datagram(), false, &mut room) {
                self.take(to, datagram.into());
            }
        }
        interceptor.settle();
        interceptor.flush();
        self.attend(interceptor, to.work);
        arrivals.len()
    }

    /// Handles news other than RoCE packets.
    #[cold]
    fn hear_news(&self, to: &mut Addressees<'_>) {
        let _guard = CancelGuard::new();
        let work = &mut *to.work;
        for change in self.port.take_link_events() {
            if change == LinkEvent::Down {
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

    /// Gives packets to those they are for. Returns whether a queue pair has accepted one.
    fn take(&self, to: &mut Addressees<'_>, run: RxBatch<'_>) -> bool {
        let clock = to.clock;
        let qpn = run.dest_qpn();
        if matches!(qpn, Qpn::MULTICAST | Qpn::GSI | Qpn::SMI) {
            for datagram in run.datagrams() {
                let Some(packet) = self.examine(&datagram) else { continue };
                match qpn {
                    // One to QP1 of a group is no connection's.
                    Qpn::GSI if datagram.headers.local.ip().is_multicast() => {
                        self.receive_mad(to.work, clock.now(), &datagram, &packet);
                        continue;
                    }
                    Qpn::GSI => {
                        self.receive_gsi(to.work, clock.now(), &datagram, &packet);
                        continue;
                    }
                    Qpn::SMI => {
                        self.receive_mad(to.work, clock.now(), &datagram, &packet);
                        continue;
                    }
                    _ => {}
                }
                for qp in self.attached(&datagram) {
                    // Its ICRC is right.
                    qp.receive(to.work, clock, &Datagram { flow: None, ..datagram }.into());
                    to.touch(qp);
                }
            }
            // No flow socket could take these: multicast has sockets of its own, and QP1 is everybody's.
            return false;
        }
        let near = to.dirty.iter().rev().take(NEAR).find(|qp| qp.qpn() == qpn && !qp.is_retired());
        let found = if near.is_none() { self.qp(qpn) } else { None };
        let Some(qp) = near.or(found.as_ref()) else {
            let fit = run.datagrams().filter(|datagram| self.examine(datagram).is_some()).count();
            self.counters.unknown_qp.fetch_add(fit as u64, Ordering::Relaxed);
            return false;
        };
        if let Some(target) = qp.xrc_target() {
            return self.take_xrc(to.work, qp, target, &run);
        }
        let taken = qp.receive(to.work, clock, &run);
        if taken.is_urgent {
            // Not after what else is in the socket: all that its peer sends meanwhile is thrown away.
            qp.drive(to.work, |_, _| ());
        } else if let Some(qp) = found {
            to.touch(qp);
        }
        taken.accepted
    }

    /// Gives packets to an XRC target, or leaves them to the thread that asks other processes: those for SRQs of theirs, and
    /// what comes behind. Each is answered there. Returns whether the queue pair has accepted a packet of this sender.
    fn take_xrc(&self, work: &mut TxContext, qp: &Arc<Qp>, target: &Target, run: &RxBatch<'_>) -> bool {
        let mut accepted = false;
        for datagram in run.datagrams() {
            let packet = datagram.packet().inspect_err(|bad| self.count_bad(*bad));
            if matches!(packet, Err(BadPacket::Malformed)) {
                continue;
            }
            let bytes = packet.is_ok().then_some(datagram.payload);
            let waits = target.is_busy() || packet.as_ref().is_ok_and(|packet| self.is_for_other(packet));
            let put = if waits { self.xrc_rx.put(qp, datagram.headers, bytes) } else { None };
            let here = || {
                let packet = packet.as_ref().ok().map(|packet| (packet, datagram.payload.len()));
                qp.receive_xrc(work, &Origin::from(datagram.headers), packet)
            };
            accepted |= put.unwrap_or_else(here);
        }
        accepted
    }

    /// Whether the XRC SRQ that a packet names may be another process's.
    fn is_for_other(&self, packet: &Packet<'_>) -> bool {
        let Service::Xrc(xrceth) = packet.header.service else { return false };
        !self.port.owns_qpn(xrceth.xrc_srq)
    }

    /// Returns the packet, if it is one.
    fn examine<'a>(&self, datagram: &Datagram<'a>) -> Option<Packet<'a>> {
        datagram.packet().inspect_err(|bad| self.count_bad(*bad)).ok()
    }

    /// Counts a datagram that is no packet.
    #[cold]
    pub(crate) fn count_bad(&self, bad: BadPacket) {
        bump(match bad {
            BadPacket::Damaged => &self.counters.icrc_err,
            BadPacket::Malformed => &self.counters.malformed,
        });
    }

    fn receive_gsi(&self, work: &mut TxContext, now: Instant, datagram: &Datagram<'_>, packet: &Packet<'_>) {
        let Some(mad) = gsi::message(packet) else { return self.receive_mad(work, now, datagram, packet) };
        let _guard = CancelGuard::new();
        let (local, peer) = (gsi::gid(datagram.headers.local.ip()), gsi::gid(datagram.headers.peer.ip()));
        if let Some(gsi) = self.gsi() {
            gsi.receive(work, now, local, peer, &mad, datagram.is_refused);
        } else if let Some(answer) = urxe_engine::cm::answer_to_unknown(&mad) {
            gsi::send(work, &self.port, Psn::default(), local, peer, &answer.to_bytes());
        }
    }

    /// Whether a datagram has come to the queue pair of its class: subnet management to QP0, which ports of Ethernet lack, and
    /// to a group nothing but announcements of a subnet. Messages of communication management have been taken before.
    fn is_in_its_place(&self, local: IpAddr, qpn: Qpn, mad: &[u8; MAD_LEN]) -> bool {
        let header = Mad::of(mad);
        let is_management = header.is_some_and(|header| smp::is_class(header.class));
        let is_announcement = header.is_some_and(|header| subnet_vendor::is_announcement(&header, mad));
        let has_subnet = self.port.interface().link_layer().is_infiniband();
        let is_cm = header.is_some_and(|header| header.class == Mad::CLASS_CM);
        is_management == (qpn == Qpn::SMI)
            && !is_cm
            && (has_subnet || !is_management)
            && (!local.is_multicast() || (has_subnet && is_announcement))
    }

    /// Takes a packet to QP0 or QP1 that is not of communication management.
    fn receive_mad(&self, work: &mut TxContext, now: Instant, datagram: &Datagram<'_>, packet: &Packet<'_>) {
        let (qpn, mad) = match gsi::datagram(packet) {
            Ok((_, mad)) if !self.is_in_its_place(datagram.headers.local.ip(), packet.bth().dest_qp, mad) => {
                return bump(&self.counters.mad_malformed);
            }
            Ok(fit) => fit,
            Err(Unfit::Transport) => return bump(&self.counters.drop_transport),
            Err(Unfit::PKey) => return bump(&self.counters.bad_pkey),
            Err(Unfit::QKey) => return bump(&self.counters.bad_qkey),
            Err(Unfit::Length) => return bump(&self.counters.mad_malformed),
        };
        let _guard = CancelGuard::new();
        let Headers { local, peer, tclass, hop_limit } = *datagram.headers;
        let (local, remote) = (gsi::gid(local.ip()), gsi::gid(peer.ip()));
        if let Some(mads) = self.mads() {
            let from = Address { local, remote, qpn, flow_label: 0, traffic_class: tclass, hop_limit };
            mads.receive(work, now, &from, mad);
            return;
        }
        bump(&self.counters.mad_no_agent);
        if let Some(answer) = urxe_engine::mad::answer_to_unclaimed(mad) {
            let to = Destination { local, remote, dest_qpn: qpn, flow_label: 0, tclass: 0, hop_limit: 0 };
            gsi::send_to(work, &self.port, Psn::default(), &to, &answer);
        }
    }
}
