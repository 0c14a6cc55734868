//! Faults on demand (`URXE_FAULTS`): packets that are lost, doubled, damaged, late or refused, completions and
//! asynchronous events that nobody deserved. What happens when is the script's to say ([`urxe_faults`]); here it is done.

mod delay_queue;
mod rewrite;

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

use urxe_engine::{Cqe, Instant, WcStatus};
use urxe_faults::{Announcement, Direction, Qp, Script, Sight, Verdict};
use urxe_net::{Datagram, Port, Route, TxBatch};
use urxe_wire::{Bth, ICRC_LEN, Qpn};

use super::Observer;
use delay_queue::{DelayQueue, Delayed};
use rewrite::{payload_mut, refusal, with_icrc, with_new_icrc};
use urxe_runtime::interceptor::{HeldPacket, Verdict as Decision};
use urxe_runtime::{clock, lock};

/// Cause and remedy of what a script has done.
const ASKED: &str = "URXE_FAULTS asks for it";
const SEE: &str = "see how the program takes it";

/// Carries out the fault script.
#[derive(Debug)]
pub(super) struct FaultInjector {
    script: Mutex<Script>,
    delayed: DelayQueue,
    broken: Mutex<Vec<Qpn>>,
    made: Mutex<Made>,
    /// When the device was opened, with which the script's clock starts.
    opened: OnceLock<Instant>,
    /// Scripted device events, with the time when each is due.
    announcements: Mutex<Vec<(Instant, Announcement)>>,
    /// The device was removed by the script.
    removed: AtomicBool,
}

/// In which order queue pairs were made.
#[derive(Debug, Default)]
struct Made {
    count: u32,
    by_number: HashMap<Qpn, u32>,
}

impl FaultInjector {
    pub(super) fn new(script: Script) -> Self {
        Self {
            script: Mutex::new(script),
            delayed: DelayQueue::new(),
            broken: Mutex::default(),
            made: Mutex::default(),
            opened: OnceLock::new(),
            announcements: Mutex::default(),
            removed: AtomicBool::new(false),
        }
    }

    fn verdict(&self, direction: Direction, qpn: Qpn, peer: SocketAddr, packet: &[u8], len: usize) -> Verdict {
        let Some(bth) = packet.first_chunk().and_then(|bytes| Bth::parse(bytes).ok()) else { return Verdict::Pass };
        if self.removed.load(Ordering::Relaxed) {
            return Verdict::Drop;
        }
        let sight = Sight { direction, opcode: bth.opcode, qp: self.qp(qpn), peer: peer.ip(), len };
        let verdict = self.script().packet(&sight);
        self.announce();
        verdict
    }

    fn qp(&self, qpn: Qpn) -> Qp {
        Qp { qpn, made: lock(&self.made).by_number.get(&qpn).copied() }
    }

    /// The script, at the present time.
    fn script(&self) -> MutexGuard<'_, Script> {
        let mut script = lock(&self.script);
        if let Some(opened) = self.opened.get() {
            script.at(clock::now().since(*opened));
        }
        script
    }

    /// Notes what the steps that have begun announce.
    fn announce(&self) {
        let Some(opened) = self.opened.get() else { return };
        let begun = self.script().take_announcements();
        lock(&self.announcements).extend(begun.into_iter().map(|it| (*opened + it.after, it)));
    }
}

impl Observer {
    /// A queue pair was made.
    pub(super) fn made(&self, qpn: Qpn) {
        if let Some(faults) = &self.faults {
            let mut made = lock(&faults.made);
            made.count += 1;
            let nth = made.count;
            made.by_number.insert(qpn, nth);
        }
    }

    /// A queue pair is no more.
    pub(super) fn unmade(&self, qpn: Qpn) {
        if let Some(faults) = &self.faults {
            lock(&faults.made).by_number.remove(&qpn);
        }
    }

    /// The packet that `batch` has pending is about to be sent for `qpn`.
    #[inline(never)]
    pub(super) fn commit_or_fault(&self, qpn: Qpn, batch: &mut TxBatch, port: &Port) {
        let Some(faults) = &self.faults else { return self.commit(batch, None) };
        let Some((route, packet)) = batch.pending() else { return };
        let route = Arc::clone(route);
        let verdict = faults.verdict(Direction::Sent, qpn, route.remote(), packet, packet.len() + ICRC_LEN);
        match verdict {
            Verdict::Pass => self.commit(batch, None),
            Verdict::BreakQp => {
                self.break_qp(faults, qpn);
                self.commit(batch, None);
            }
            Verdict::Corrupt(bit) => {
                self.spoilt_sent(qpn, &route);
                self.commit(batch, Some(bit));
            }
            Verdict::Drop => {
                self.spoilt_sent(qpn, &route);
                if self.capture.is_some() {
                    self.lost(&route, &with_icrc(&route, packet));
                }
                batch.forget();
            }
            Verdict::Mutate(id) => {
                if let Some(payload) = payload_mut(packet) {
                    faults.script().mutate(id, payload);
                }
                self.note_to_peer(qpn, route.local().ip(), route.remote(), ASKED, SEE);
                self.commit(batch, None);
            }
            Verdict::Duplicate => {
                let copy = packet.to_vec();
                self.commit(batch, None);
                self.follow(batch, port, &route, &copy);
            }
            Verdict::Delay(by) => {
                self.spoilt_sent(qpn, &route);
                let copy = packet.to_vec();
                batch.forget();
                faults.delayed.hold_for(by, Delayed::Sent(route, copy));
            }
            Verdict::Reorder(behind) => {
                let copy = packet.to_vec();
                batch.forget();
                faults.delayed.hold_behind(behind, Delayed::Sent(route, copy));
                return;
            }
            Verdict::Refuse(syndrome) => match refusal(packet, syndrome) {
                Some(refusal) => {
                    self.note_to_peer(qpn, route.local().ip(), route.remote(), ASKED, SEE);
                    batch.forget();
                    self.follow(batch, port, &route, &refusal);
                }
                None => self.commit(batch, None),
            },
        }
        for held in faults.delayed.take_overtaken(true) {
            self.resend(batch, port, held);
        }
    }

    /// A packet of `qpn` is lost, damaged or late. Returns whether it is the first.
    fn spoilt(&self, qpn: Qpn) -> bool {
        self.has_blame.store(true, Ordering::Relaxed);
        lock(&self.peers).get_mut(qpn).is_some_and(|known| {
            known.spoilt += 1;
            known.spoilt == 1
        })
    }

    /// A packet that `qpn` sends is lost, damaged or late: its peer may wait in vain.
    fn spoilt_sent(&self, qpn: Qpn, route: &Route) {
        if self.spoilt(qpn) {
            self.note_to_peer(
                qpn,
                route.local().ip(),
                route.remote(),
                "URXE_FAULTS loses, damages or holds back packets",
                SEE,
            );
        }
    }

    /// Has `qpn` go to ERR.
    fn break_qp(&self, faults: &FaultInjector, qpn: Qpn) {
        if let Some(known) = lock(&self.peers).get_mut(qpn) {
            known.is_asked_for = true;
        }
        lock(&faults.broken).push(qpn);
    }

    fn commit(&self, batch: &mut TxBatch, bit: Option<usize>) {
        let Some(committed) = batch.commit() else { return };
        if let Some(bit) = bit
            && let Some(byte) = committed.bytes.get_mut(bit / 8)
        {
            *byte ^= 0x80 >> (bit % 8);
        }
        self.sent(&committed);
    }

    fn follow(&self, batch: &mut TxBatch, port: &Port, route: &Arc<Route>, packet: &[u8]) {
        batch.packet(port, route, packet.len()).copy_from_slice(packet);
        self.commit(batch, None);
    }

    fn resend(&self, batch: &mut TxBatch, port: &Port, held: Delayed) {
        if let Delayed::Sent(route, packet) = held {
            self.follow(batch, port, &route, &packet);
        }
    }

    /// Sends what was held back and is due.
    pub(super) fn resend_due(&self, now: Instant, batch: &mut TxBatch, port: &Port) {
        let Some(faults) = &self.faults else { return };
        for held in faults.delayed.take_due(now, true) {
            self.resend(batch, port, held);
        }
    }

    /// Decides about a received packet.
    pub fn action(&self, datagram: &Datagram<'_>) -> Decision {
        let Some(faults) = &self.faults else { return Decision::Accept };
        let (qpn, payload) = (datagram.dest_qpn(), datagram.payload);
        let verdict = faults.verdict(Direction::Received, qpn, datagram.headers.peer, payload, payload.len());
        let (action, what) = match verdict {
            Verdict::Pass => (Decision::Accept, None),
            Verdict::BreakQp => {
                self.break_qp(faults, qpn);
                (Decision::Accept, Some("its queue pair goes to ERR"))
            }
            Verdict::Drop => {
                self.spoilt(qpn);
                (Decision::Drop, Some("dropped"))
            }
            Verdict::Corrupt(_) => {
                self.spoilt(qpn);
                (Decision::Corrupt, Some("damaged, so its ICRC is wrong: dropped"))
            }
            Verdict::Duplicate => {
                faults.delayed.hold_briefly(Delayed::Received(HeldPacket::of(datagram)));
                (Decision::Accept, Some("comes twice"))
            }
            Verdict::Delay(by) => {
                self.spoilt(qpn);
                faults.delayed.hold_for(by, Delayed::Received(HeldPacket::of(datagram)));
                (Decision::Drop, Some("delayed"))
            }
            Verdict::Reorder(behind) => {
                faults.delayed.hold_behind(behind, Delayed::Received(HeldPacket::of(datagram)));
                self.remark("URXE_FAULTS: held back until others have overtaken it");
                return Decision::Drop;
            }
            Verdict::Mutate(id) => {
                let mut packet = payload.get(..payload.len() - ICRC_LEN).unwrap_or_default().to_vec();
                if let Some(payload) = payload_mut(&mut packet) {
                    faults.script().mutate(id, payload);
                }
                (Decision::Replace(with_new_icrc(datagram, packet)), Some("payload changed"))
            }
            Verdict::Refuse(syndrome) => match refusal(payload, syndrome) {
                Some(packet) => {
                    let packet = with_new_icrc(datagram, packet);
                    super::packet_context::with(|context| context.asked_for = Some(qpn));
                    (Decision::Replace(packet), Some("taken for a refusal"))
                }
                None => (Decision::Accept, None),
            },
        };
        if let Some(what) = what {
            self.remark(&format!("URXE_FAULTS: {what}"));
        }
        for held in faults.delayed.take_overtaken(false) {
            faults.delayed.hold_briefly(held);
        }
        action
    }

    /// Packets that had been held back and arrive now.
    pub(super) fn due_arrivals(&self, now: Instant) -> Vec<HeldPacket> {
        let Some(faults) = &self.faults else { return Vec::new() };
        let arrived = faults.delayed.take_due(now, false);
        arrived.into_iter().filter_map(|held| if let Delayed::Received(it) = held { Some(it) } else { None }).collect()
    }

    /// Returns when the next held packet, step or event of the script is due.
    pub(super) fn next_fault(&self) -> Option<Instant> {
        let faults = self.faults.as_ref()?;
        let held = faults.delayed.deadline();
        let step = faults.opened.get().and_then(|opened| Some(*opened + lock(&faults.script).next_step()?));
        held.into_iter().chain(step).chain(lock(&faults.announcements).iter().map(|(at, _)| *at)).min()
    }

    /// Makes a completion an error, if a rule says so. Returns true then: its queue pair goes to ERR.
    pub fn spoil(&self, cqe: &mut Cqe) -> bool {
        let Some(faults) = &self.faults else { return false };
        if cqe.status != WcStatus::Success {
            return false;
        }
        let direction = if (cqe.opcode as u32) < 128 { Direction::Sent } else { Direction::Received };
        let asked = faults.script().completion(faults.qp(cqe.qpn), direction);
        let Some(status) = asked.and_then(|refused| WcStatus::from_u32(refused.0)) else { return false };
        cqe.status = status;
        super::packet_context::with(|context| context.asked_for = Some(cqe.qpn));
        // The event of the broken queue pair follows when its turn is over.
        self.break_qp(faults, cqe.qpn);
        true
    }

    /// Queue pairs that are to go to ERR.
    pub(super) fn broken(&self) -> Vec<Qpn> {
        self.faults.as_ref().map_or(Vec::new(), |faults| std::mem::take(&mut *lock(&faults.broken)))
    }

    /// The application has opened the device; with the first time, the script's clock starts.
    pub(super) fn start_script(&self) {
        let Some(faults) = &self.faults else { return };
        faults.opened.get_or_init(clock::now);
        super::explain::begin_faults();
        faults.announce();
    }

    /// Takes what is due to happen to the device.
    pub fn announcements(&self, now: Instant) -> Vec<Announcement> {
        let Some(faults) = &self.faults else { return Vec::new() };
        faults.announce();
        let mut announcements = lock(&faults.announcements);
        let mut due: Vec<_> = announcements.extract_if(.., |(at, _)| *at <= now).collect();
        due.sort_by_key(|(at, _)| *at);
        due.into_iter().map(|(_, announcement)| announcement).collect()
    }

    /// Takes the device out: packets to and from it are dropped from now on.
    pub fn take_out(&self) {
        if let Some(faults) = &self.faults {
            faults.removed.store(true, Ordering::Relaxed);
            super::armed::devices_are_taken_out();
        }
    }
}
