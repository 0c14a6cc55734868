//! Diagnostics of a device, as one layer around it: captures, explanations, strict mode, fault injection.
//!
//! A device whose environment asks for none of it ([`settings`]) has no layer. Otherwise its [`Observer`] is the
//! [`Interceptor`](urxe_runtime::interceptor::Interceptor) of its [`Device`], and is told of packets, the engine's events and
//! completions by the thread at work.
//!
//! | module | holds |
//! |---|---|
//! | `capture` | packets with comments, as pcapng |
//! | [`explain`] | a line for each failed verb, completion and event |
//! | `strict` | what works here and may fail on a card |
//! | `fault_injector`, [`verbs`] | packets and verbs that fail as a script says |
//! | [`quirks`] | rare but legal behaviour, by seed |
//! | `packet_context`, `arrived`, [`fmt`] | what belongs to one packet, and its words |
//! | `peers`, `notes` | what is known of the other ends, and what those on this host say |

mod armed;
mod arrived;
mod capture;
pub mod explain;
mod fault_injector;
pub mod fmt;
mod intercept;
mod notes;
mod packet_context;
mod peers;
pub mod quirks;
pub mod settings;
mod strict;
pub mod verbs;

use std::any::Any;
use std::fmt::Display;
use std::io::Write;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use urxe_engine::event::Nak;
use urxe_engine::{AsyncEvent, Cqe, Denied, DropReason, Event, QpState, QpType, Refusal, Region, WcStatus};
use urxe_net::cancellation::CancelGuard;
use urxe_net::{CommittedPacket, Datagram, Interface, Port, Route};
use urxe_options::Format;
use urxe_wire::icrc::Check;
use urxe_wire::opcode::Role;
use urxe_wire::{NakCode, Packet, Psn, Qpn};

use arrived::Arrived;
use capture::Received;
use fault_injector::FaultInjector;
use fmt::Refused;
use notes::{Note, NoteBox};
use packet_context::PacketContext;
pub use peers::Peer;
use peers::Peers;
use strict::Strict;
pub use strict::{RecvQueue, Sender};
use urxe_runtime::device::Device;
use urxe_runtime::memory::regions::Regions;
use urxe_runtime::{clock, lock};

pub use urxe_runtime::interceptor::UNOBSERVED;

/// Returns the observer of a device, if the environment asks for one.
#[inline]
pub fn of(port: &Device) -> Option<&Observer> {
    let interceptor: &dyn Any = &**port.interceptor()?;
    interceptor.downcast_ref()
}

/// Says something to the person in front of the program: one line.
pub fn complain(what: &dyn Display) {
    let _guard = CancelGuard::new();
    // Nothing can be done about a closed stderr.
    let _ = writeln!(std::io::stderr(), "urxe: {what}");
}

/// Sees one device of this process.
#[derive(Debug)]
pub struct Observer {
    device: String,
    interface: Interface,
    regions: Arc<Regions>,
    capture: Option<capture::Interface>,
    explain: Option<Format>,
    faults: Option<FaultInjector>,
    strict: Option<Strict>,
    peers: Mutex<Peers>,
    /// Comments for packets that will be sent.
    announced: Mutex<Vec<Announced>>,
    notes: NoteBox,
    /// When notes about datagrams are looked for next, in nanoseconds; never without UD queue pairs.
    look_for_notes: AtomicU64,
}

/// How long notes about datagrams may lie, in nanoseconds.
const NOTES_LIE: u64 = 10_000_000;

/// A comment for the packet with this PSN to this queue pair.
#[derive(Debug)]
struct Announced {
    to: Qpn,
    psn: Psn,
    text: String,
}

/// Comments waiting for packets that may never be sent.
const MOST_ANNOUNCED: usize = 64;

impl Observer {
    /// The observer of the device `name`, if there is anything to be seen.
    pub fn new(name: &str, interface: &Interface, regions: &Arc<Regions>) -> Option<Arc<Self>> {
        let settings = settings::get().as_ref().ok()?;
        let capture = settings.capture.as_ref().and_then(|capture| {
            let opened = capture::Interface::open(capture, name, interface.name());
            opened.map_err(|error| complain(&format_args!("no capture: {}: {error}", capture.path.display()))).ok()
        });
        let faults = settings.faults.clone().map(FaultInjector::new);
        let strict = settings.strict.map(|strictness| Strict::new(strictness.with_sites));
        if capture.is_none() && settings.explain.is_none() && faults.is_none() && strict.is_none() {
            return None;
        }
        Some(Arc::new(Self {
            device: name.to_owned(),
            interface: interface.clone(),
            regions: Arc::clone(regions),
            capture,
            explain: settings.explain,
            faults,
            strict,
            peers: Mutex::default(),
            announced: Mutex::default(),
            notes: NoteBox::default(),
            look_for_notes: AtomicU64::new(u64::MAX),
        }))
    }

    fn device(&self) -> &str {
        &self.device
    }

    /// The application has connected or changed a queue pair.
    pub fn connected(&self, port: &Port, qpn: Qpn, peer: Peer) {
        if self.explain.is_some() && peer.state != QpState::Reset {
            self.notes.listen(port, qpn);
            if peer.qp_type == QpType::Ud {
                self.look_for_notes.store(0, Ordering::Relaxed);
            }
        }
        if peer.state == QpState::Reset {
            self.forget_sent(qpn);
            self.forget_recvs(RecvQueue::Own(qpn));
        }
        lock(&self.peers).set(qpn, peer);
    }

    /// A queue pair is no more.
    pub(crate) fn forgotten(&self, qpn: Qpn) {
        lock(&self.peers).remove(qpn);
        self.unmade(qpn);
        self.forget_sent(qpn);
        self.forget_recvs(RecvQueue::Own(qpn));
        self.forget_qp(qpn);
    }

    // --- packets ---------------------------------------------------------------------------------------------

    /// A packet has come. What is told from now on belongs to it, until another comes or [`settle`](Self::settle).
    /// `known`: its queue pair is there.
    fn show_received(&self, datagram: &Datagram<'_>, known: bool) {
        self.end_packet();
        let arrived = Arrived::of(datagram);
        if self.capture.is_none() {
            packet_context::with(|scene| {
                *scene = PacketContext { arrived, receiving: true, ..PacketContext::default() }
            });
            if let Some(arrived) = arrived {
                self.hear(&arrived, known);
            }
            return;
        }
        let check = datagram.verify();
        let mut comments = Vec::new();
        if check == Check::Bad {
            comments.push("dropped: the ICRC is wrong, the packet was damaged on its way".to_owned());
        } else {
            match Packet::parse(datagram.payload) {
                Err(malformed) => comments.push(format!("dropped: not RoCE v2: {malformed:?}")),
                Ok(packet) => {
                    let qpn = packet.bth().dest_qp;
                    if let Some(arrived) = arrived {
                        self.hear(&arrived, known);
                    }
                    if qpn != Qpn::GSI && qpn != Qpn::MULTICAST && !known {
                        comments.push(format!("dropped: there is no QP {qpn} (any more)"));
                    }
                }
            }
        }
        let packet = self.capture.is_some().then(|| Received {
            from: datagram.headers.peer,
            to: datagram.headers.local,
            tclass: datagram.headers.tclass,
            hop_limit: datagram.headers.hop_limit,
            expected_id: datagram.expected_id,
            check,
            at: capture::now(),
            bytes: datagram.payload.to_vec(),
        });
        packet_context::with(|scene| {
            *scene = PacketContext { packet, arrived, comments, receiving: true, ..PacketContext::default() }
        });
    }

    fn hear(&self, arrived: &Arrived, known: bool) {
        let qpn = arrived.dest;
        if known {
            lock(&self.peers).heard(qpn, arrived.is_request.then_some(arrived.psn));
        } else if let Some(format) = self.explain
            && qpn != Qpn::GSI
            && qpn != Qpn::MULTICAST
        {
            explain::drops::astray(self, format, arrived);
        }
    }

    /// Explains what peers on this host say that they have dropped, and keeps what they say that they have refused.
    fn take_notes(&self) {
        for note in self.notes.receive() {
            if note.is_drop {
                if let Some(format) = self.explain {
                    explain::drops::noted(self, format, &note);
                }
            } else if let Some(known) = lock(&self.peers).get_mut(note.to)
                && known.peer.qpn == note.from
                && known.peer.address == Some(note.address)
            {
                known.note = Some(note);
            }
        }
    }

    /// Tells the peer of `qpn`, if that is on this host, why a request of its is refused.
    fn note_refusal(&self, qpn: Qpn, why: &str, remedy: &str) {
        if let Some(arrived) = packet_context::with(|scene| scene.arrived) {
            self.note_to_peer(qpn, arrived.to, why, remedy);
        }
    }

    /// Sends the peer of `qpn`, which is at `address`, a note.
    fn note_to_peer(&self, qpn: Qpn, address: IpAddr, why: &str, remedy: &str) {
        let Some(to) = lock(&self.peers).get(qpn).map(|known| known.peer.qpn) else { return };
        let (why, remedy) = (why.to_owned(), remedy.to_owned());
        self.notes.send(&Note { to, from: qpn, address, is_drop: false, why, remedy });
    }

    /// Ends the context of the packet received last and writes it to the capture: later reports of this thread belong
    /// to no packet.
    fn end_packet(&self) {
        let (packet, comments) = packet_context::with(|scene| {
            scene.receiving = false;
            (scene.packet.take(), std::mem::take(&mut scene.comments))
        });
        if let (Some(capture), Some(packet)) = (&self.capture, packet) {
            capture.received(&packet, &comments);
        }
    }

    /// A packet is about to be sent.
    fn sent(&self, sealed: &CommittedPacket<'_>) {
        let Some(capture) = &self.capture else { return };
        self.end_packet();
        let mut comments = Vec::new();
        let mut announced = lock(&self.announced);
        if !announced.is_empty()
            && let Ok(packet) = Packet::parse(sealed.bytes)
        {
            let bth = packet.bth();
            announced.retain(|note| {
                let mine = note.to == bth.dest_qp && note.psn == bth.psn;
                if mine {
                    comments.push(note.text.clone());
                }
                !mine
            });
        }
        drop(announced);
        capture.sent(sealed.route.local(), sealed.route.remote(), sealed.identification, sealed.bytes, &comments);
    }

    /// A packet was about to be sent to where `route` leads, and was lost.
    fn lost(&self, route: &Route, packet: &[u8]) {
        if let Some(capture) = &self.capture {
            self.end_packet();
            let comment = "URXE_FAULTS: dropped, it never left".to_owned();
            capture.sent(route.local(), route.remote(), 0, packet, &[comment]);
        }
    }

    /// Something else is to be said about the packet that has come.
    pub fn remark(&self, what: &str) {
        if self.capture.is_some() {
            packet_context::with(|scene| scene.comments.push(what.to_owned()));
        }
    }

    /// A burst is through.
    fn flush_capture(&self) {
        if let Some(capture) = &self.capture {
            capture.flush();
        }
        let due = self.look_for_notes.load(Ordering::Relaxed);
        if due != u64::MAX {
            let now = clock::now().as_nanos();
            if now >= due {
                self.look_for_notes.store(now + NOTES_LIE, Ordering::Relaxed);
                self.take_notes();
            }
        }
    }

    /// The next packet of `qpn` to its peer with this PSN has a comment.
    fn announce(&self, qpn: Qpn, psn: Psn, text: String) {
        if self.capture.is_none() {
            return;
        }
        let Some(to) = lock(&self.peers).get(qpn).map(|known| known.peer.qpn) else { return };
        let mut announced = lock(&self.announced);
        if announced.len() == MOST_ANNOUNCED {
            announced.remove(0);
        }
        announced.push(Announced { to, psn, text });
    }

    // --- events ----------------------------------------------------------------------------------------------

    /// The engine reports something about `qpn`.
    fn engine_event(&self, qpn: Qpn, event: &Event) {
        let refused = packet_context::with(|scene| {
            // What stands in the scene is what was refused just now, or earlier in the same call.
            let refused = scene.refused.clone();
            if scene.receiving
                && let Some(text) = fmt::event(event, refused.as_ref())
            {
                scene.comments.push(text);
            }
            if let Event::ResponderFault { fault, .. } = event {
                scene.fault = Some((*fault, fmt::fault(*fault, refused.as_ref())));
            }
            if let Event::SendFailed { op, length, status, .. } = event {
                scene.failed = Some((*op, *length, *status));
            }
            refused
        });
        if let (Some(refused), Event::ResponderFault { .. } | Event::SendRefused { .. }) = (&refused, event)
            && refused.denied.refusal == Refusal::NoSuchKey
        {
            self.check_dead(qpn, refused);
        }
        match *event {
            Event::WriteOvertaken { va, .. } => self.overtaken(qpn, va),
            Event::SentNak { nak, psn } => {
                if nak == Nak::Code(NakCode::PsnSequenceError) {
                    self.explain_drop(qpn, event);
                }
                let why = packet_context::with(|scene| scene.fault.as_ref().map(|(_, why)| why.clone()));
                let why = why.map_or(String::new(), |why| format!(": {why}"));
                self.announce(qpn, psn, format!("{}{why}", fmt::nak(nak)));
            }
            Event::Retry { reason, psn, left } => {
                self.announce(qpn, psn, format!("sent again: {}{}", fmt::retry(reason), fmt::Left(left)));
                lock(&self.peers).retried(qpn, reason, psn);
            }
            Event::ResponderFault { .. } => {
                let told = packet_context::with(|scene| {
                    let (fault, why) = scene.fault.clone()?;
                    Some((why, fmt::fault_remedy(fault, scene.refused.as_ref())))
                });
                if let Some((why, remedy)) = told.filter(|_| self.explain.is_some()) {
                    self.note_refusal(qpn, &why, remedy);
                }
            }
            Event::Dropped { reason: DropReason::GhostAck, psn, .. } => {
                if let Some(known) = lock(&self.peers).get_mut(qpn) {
                    known.ghost = Some(psn);
                }
            }
            Event::Dropped { .. } | Event::Duplicate { .. } | Event::DatagramTooLong { .. } => {
                self.explain_drop(qpn, event);
            }
            Event::SendRefused { wr_id, .. } => {
                if let Some(refused) = refused {
                    lock(&self.peers).refused(qpn, wr_id, refused);
                }
            }
            _ => {}
        }
    }

    /// A packet is dropped, or taken for a duplicate, or not sent.
    fn explain_drop(&self, qpn: Qpn, event: &Event) {
        let Some(format) = self.explain else { return };
        match *event {
            Event::Dropped { reason, opcode, psn } => {
                let request = (opcode.info().role == Role::Request).then_some(psn);
                explain::drops::dropped(self, format, qpn, reason, request);
            }
            Event::SentNak { .. } => {
                let request = packet_context::with(|scene| Some(scene.arrived?.psn));
                explain::drops::dropped(self, format, qpn, DropReason::OutOfSequence, request);
            }
            // Of a request that never came before.
            Event::Duplicate { psn, .. } => {
                explain::drops::dropped(self, format, qpn, DropReason::StaleDuplicate, Some(psn));
            }
            Event::DatagramTooLong { wr_id, length } => explain::drops::too_long(self, format, qpn, wr_id, length),
            _ => {}
        }
    }

    /// A completion is about to be seen by the application.
    fn show_completion(&self, cqe: &Cqe) {
        self.check_buffers(cqe);
        if cqe.status != WcStatus::Success
            && let Some(format) = self.explain
        {
            self.take_notes();
            explain::completion(self, format, cqe);
        }
    }

    /// An asynchronous event is about to be seen by the application.
    fn explain_async_event(&self, qpn: Qpn, event: AsyncEvent) {
        if let Some(format) = self.explain {
            explain::async_event(self, format, qpn, event);
        }
    }

    /// A completion queue has lost a completion.
    fn explain_overrun(&self, cqe: &Cqe, capacity: usize) {
        if let Some(format) = self.explain {
            explain::overrun(self, format, cqe, capacity);
        }
    }
}

/// An access was refused; the event that comes of it follows in the same call. For [`Memory`](urxe_engine::Memory).
pub(crate) fn refused(denied: &Denied, region: Option<&Region>) {
    if is_on() {
        let refused = Refused { denied: *denied, region: region.cloned() };
        packet_context::with(|scene| scene.refused = Some(refused));
    }
}

/// A memory window could not be bound.
pub(crate) fn unbound(error: urxe_engine::BindError) {
    if is_on() {
        packet_context::with(|scene| scene.unbound = Some(error));
    }
}

/// Whether there is anything to be seen in this process.
fn is_on() -> bool {
    settings::get()
        .as_ref()
        .is_ok_and(|settings| settings.capture.is_some() || settings.explain.is_some() || settings.strict.is_some())
}
