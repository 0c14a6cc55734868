//! Packets that come and go: captured, with what is to be said about each.

use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::Ordering;

use urxe_net::{CommittedPacket, Datagram, Route};
use urxe_wire::icrc::Check;
use urxe_wire::{Packet, Psn, Qpn};

use super::arrived::Arrived;
use super::capture::{self, Received};
use super::notes::Note;
use super::packet_context::{self, PacketContext};
use super::peers::QpRecord;
use super::{Observer, explain};
use urxe_runtime::{clock, lock};

/// How long notes about datagrams may lie, in nanoseconds.
const NOTES_LIE: u64 = 10_000_000;

/// A comment for the packet with this PSN to this queue pair.
#[derive(Debug)]
pub(super) struct Announced {
    to: Qpn,
    psn: Psn,
    text: String,
}

/// Comments waiting for packets that may never be sent.
const MOST_ANNOUNCED: usize = 64;

impl Observer {
    /// A packet has come. What is told from now on belongs to it, until another comes or [`settle`](Self::settle).
    /// `known` looks whether its queue pair is there.
    pub(super) fn show_received(&self, datagram: &Datagram<'_>, known: &dyn Fn() -> bool) {
        let arrived = Arrived::of(datagram);
        if self.capture.is_none() {
            packet_context::with(|context| context.begin(arrived));
            if let Some(arrived) = arrived {
                self.hear(&arrived, known, || datagram.verify() != Check::Bad);
            }
            return;
        }
        self.end_packet();
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
                        self.hear(&arrived, known, || true);
                    }
                    if qpn != Qpn::GSI && qpn != Qpn::MULTICAST && !known() {
                        comments.push(format!("dropped: there is no QP {qpn} (any more)"));
                    }
                }
            }
        }
        let packet = Some(Received {
            from: datagram.headers.peer,
            to: datagram.headers.local,
            tclass: datagram.headers.tclass,
            hop_limit: datagram.headers.hop_limit,
            expected_id: datagram.expected_id,
            check,
            at: capture::now(),
            bytes: datagram.payload.to_vec(),
        });
        packet_context::with(|context| {
            *context = PacketContext { packet, arrived, comments, receiving: true, ..PacketContext::default() }
        });
    }

    /// Notes what a packet tells about its queue pair, if the packet `is_intact`. That costs an ICRC, and is asked only of
    /// packets that tell anything new.
    fn hear(&self, arrived: &Arrived, known: &dyn Fn() -> bool, is_intact: impl FnOnce() -> bool) {
        let (qpn, request) = (arrived.dest, arrived.is_request.then_some(arrived.psn));
        if self.told_all.contains(qpn, arrived.is_request) {
            return;
        }
        if let Some(format) = self.explain
            && (arrived.datagram.is_some() || arrived.is_request)
            && qpn != Qpn::GSI
            && qpn != Qpn::MULTICAST
            && !known()
        {
            if is_intact() {
                explain::drops::unknown_qp(self, format, arrived);
            }
            return;
        }
        let mut peers = lock(&self.peers);
        if peers.is_news(qpn, arrived.from.ip(), request) {
            // An ICRC takes longer than others should wait.
            drop(peers);
            if !is_intact() {
                return;
            }
            peers = lock(&self.peers);
            peers.heard(qpn, request);
        }
        if peers.get(qpn).is_some_and(|known| known.has_told_all(arrived.is_request)) {
            self.told_all.insert(qpn, arrived.is_request);
        }
    }

    /// Explains what peers on this host say that they have dropped, and keeps what they say that they have refused.
    pub(super) fn take_notes(&self) {
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
                self.has_blame.store(true, Ordering::Relaxed);
            }
        }
    }

    /// Tells the peer of `qpn`, if that is on this host, why a request of its is refused.
    pub(super) fn note_refusal(&self, qpn: Qpn, why: &str, remedy: &str) {
        if let Some(arrived) = packet_context::with(|context| context.arrived) {
            self.note_to_peer(qpn, arrived.to, arrived.from, why, remedy);
        }
    }

    /// Sends the peer of `qpn` a note, if it has one and that is on this host. Both addresses are those of the connection.
    pub(super) fn note_to_peer(&self, qpn: Qpn, local: IpAddr, remote: SocketAddr, why: &str, remedy: &str) {
        let has_peer = |known: &&QpRecord| known.peer.qp_type.is_reliable();
        let Some(to) = lock(&self.peers).get(qpn).filter(has_peer).map(|known| known.peer.qpn) else { return };
        let (why, remedy) = (why.to_owned(), remedy.to_owned());
        self.notes.send(remote, &Note { to, from: qpn, address: local, is_drop: false, why, remedy });
    }

    /// Ends the context of the packet received last and writes it to the capture: later reports of this thread belong
    /// to no packet.
    pub(super) fn end_packet(&self) {
        let (packet, comments) = packet_context::with(|context| {
            context.receiving = false;
            (context.packet.take(), std::mem::take(&mut context.comments))
        });
        if let (Some(capture), Some(packet)) = (&self.capture, packet) {
            capture.received(&packet, &comments);
        }
    }

    /// A packet is about to be sent.
    pub(super) fn sent(&self, committed: &CommittedPacket<'_>) {
        let Some(capture) = &self.capture else { return };
        self.end_packet();
        let mut comments = Vec::new();
        let mut announced = lock(&self.announced);
        if !announced.is_empty()
            && let Ok(packet) = Packet::parse(committed.bytes)
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
        capture.sent(
            committed.route.local(),
            committed.route.remote(),
            committed.identification,
            committed.bytes,
            &comments,
        );
    }

    /// A packet was about to be sent to where `route` leads, and was lost.
    pub(super) fn lost(&self, route: &Route, packet: &[u8]) {
        if let Some(capture) = &self.capture {
            self.end_packet();
            let comment = "URXE_FAULTS: dropped, it never left".to_owned();
            capture.sent(route.local(), route.remote(), 0, packet, &[comment]);
        }
    }

    /// Adds a remark to the packet that has come.
    pub fn remark(&self, what: &str) {
        if self.capture.is_some() {
            packet_context::with(|context| context.comments.push(what.to_owned()));
        }
    }

    /// Writes the packets of a burst to the capture.
    pub(super) fn flush_capture(&self) {
        if let Some(capture) = &self.capture {
            capture.flush();
        }
    }

    /// Takes notes about datagrams if they may have lain long enough: no completion asks for these.
    pub(super) fn take_due_notes(&self) {
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
    pub(super) fn announce(&self, qpn: Qpn, psn: Psn, text: String) {
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
}
