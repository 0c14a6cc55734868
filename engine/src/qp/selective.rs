//! Selective repeat: agreeing on it with the peer, and acknowledging what came out of order.

use core::time::Duration;

use urxe_wire::{Bitmap, Ext, Header, Opcode, Packet, Psn, SelectiveAck, SelectiveOffer};

use super::agreement::{Agreement, Announced};
use super::attr::QpAttr;
use super::recv::kept::{Kept, WINDOW};
use super::recv::kept_packet::Keeping;
use super::send::SendSide;
use super::{QpType, QueuePair, Route};
use crate::event::{DropReason, Event};
use crate::host::{Consumer, Host, Io, Network};
use crate::selective::SelectiveRepeat;
use crate::time::Instant;

/// Packets in flight from which on it is worth while to agree: fewer are soon sent again.
const WORTH_WHILE: u32 = 16;
/// Offers at most.
const MOST_OFFERS: u8 = 8;
/// Packets between the first offer and the second; four times as many before each further one.
const FIRST_INTERVAL: u32 = 64;
/// Requests out of order that one selective acknowledgement tells of.
const TOGETHER: u8 = 16;
/// Requests behind a new gap of which the last is told of at once: as many as make the requester take what is missing for lost.
const ENOUGH: u8 = 3;
/// Time within which a request out of order is told of, whatever comes: the requester takes for lost what it hears nothing of.
const TELL_WITHIN: Duration = Duration::from_micros(100);

impl<H: Host> QueuePair<H> {
    /// Selective repeat, if this queue pair may have it.
    fn selective(&self) -> Option<&SelectiveRepeat> {
        self.config.selective.as_ref().filter(|_| self.config.qp_type == QpType::Rc)
    }

    /// Whether an offer, an answer or a selective acknowledgement is to be sent.
    #[inline]
    pub(super) const fn owes_selective(&self) -> bool {
        self.agreement.owes_ack || self.agreement.owes_answer
    }

    /// Whether a selective packet goes with an ACK that leaves now.
    #[inline]
    pub(super) const fn tells_first(&self) -> bool {
        self.owes_selective() || self.agreement.untold > 0
    }

    /// Has what came out of order be told before the answers that leave now: what these tell alone is that a packet arrived that was
    /// sent again, and all that were sent before it, and whose arrival is not told yet, would seem to be overtaken.
    #[inline]
    pub(super) fn tell_before_answers(&mut self) {
        if self.agreement.untold > 0 && !self.responder.responses.is_empty() {
            self.agreement.owes_ack = true;
        }
    }

    /// Takes an offer or a selective acknowledgement of the peer. Returns whether it changed anything.
    //= spec/selective.md#sel-003
    //# Where selective repeat is off, offers and selective acknowledgements MUST change nothing and not be answered.
    pub(super) fn handle_selective(&mut self, io: &mut Io<'_, H>, packet: &Packet<'_>) -> bool {
        match packet.ext() {
            _ if self.selective().is_none() => {
                self.drop_packet(io, packet, DropReason::Transport);
                false
            }
            Ext::SelectiveOffer(offer) => {
                self.handle_offer(io, *offer);
                true
            }
            Ext::SelectiveAck(ack) => self.handle_selective_ack(io, packet, ack.duplicates),
            _ => false,
        }
    }

    fn handle_offer(&mut self, io: &mut Io<'_, H>, offer: SelectiveOffer) {
        self.agreement.peer_listens = true;
        //= spec/selective.md#sel-001
        //# An offer MUST be answered by one that says it is the answer, which is not answered.
        self.agreement.owes_answer |= !offer.answer;
        if !offer.answer {
            // A requester offers until it has heard: an earlier answer was lost.
            self.agreement.announced = Announced::No;
        }
        if offer.answer && offer.window > 0 {
            self.begin_selective(io, offer.window);
        }
    }

    /// Whether selective acknowledgements are the peer's to send: one that was never offered to acknowledge so has nothing to say.
    pub(super) fn takes_selective_acks(&self) -> bool {
        self.selective().is_some() && (self.agreement.offers > 0 || self.agreement.peer_listens)
    }

    fn handle_selective_ack(&mut self, io: &mut Io<'_, H>, packet: &Packet<'_>, duplicates: u32) -> bool {
        if !self.state.sends() {
            self.drop_packet(io, packet, DropReason::State(self.state));
            return false;
        }
        let bitmap = Some(packet.payload).filter(|_| packet.bth().pad_count == 0).and_then(Bitmap::new);
        let bitmap = bitmap.filter(|_| self.takes_selective_acks());
        let Some(bitmap) = bitmap else {
            self.drop_packet(io, packet, DropReason::InvalidSelectiveAck);
            return false;
        };
        let missing = packet.bth().psn;
        let SendSide::Reliable(requester) = &self.send else { return false };
        if let Err(reason) = requester.check_selective_ack(missing, bitmap) {
            self.drop_packet(io, packet, reason);
            return false;
        }
        // If it comes first, its answer to the offer was lost.
        self.begin_selective(io, WINDOW);
        let SendSide::Reliable(requester) = &mut self.send else { return false };
        let handled = requester.handle_selective_ack(&self.config, &self.attr, io, missing, bitmap, duplicates);
        if handled.is_ok() {
            io.consumer.trace(self.config.qpn, Event::ReceivedSelectiveAck);
        }
        self.settle_sends(io, packet, handled)
    }

    /// The peer keeps `window` packets behind a gap: its requester, if it has not heard of that yet, repeats selectively.
    fn begin_selective(&mut self, io: &mut Io<'_, H>, window: u16) {
        if let SendSide::Reliable(requester) = &mut self.send
            && !requester.selective.is_on()
        {
            requester.set_selective(&self.config, window.min(WINDOW));
            io.consumer.trace(self.config.qpn, Event::SelectiveRepeat { window });
        }
    }

    // --- responder -----------------------------------------------------------------------------------------

    /// Whether packets behind a gap are kept, and acknowledged selectively.
    pub(super) fn keeps_packets(&self) -> bool {
        self.agreement.peer_listens && self.selective().is_some()
    }

    /// Duplicates that wait for their answer at most. Of a READ of whose responses several were lost, each gap is asked
    /// for.
    pub(super) fn most_replays(&self) -> u8 {
        const SELECTIVE: u8 = 64;
        let most = self.attr.max_dest_rd_atomic;
        if self.keeps_packets() { most.max(SELECTIVE) } else { most }
    }

    /// Keeps a request that came behind a gap.
    //= spec/selective.md#sel-004
    //# A request behind a gap MUST be kept, carried out in its turn, and acknowledged by a selective acknowledgement as long as
    //# one before it is missing.
    pub(super) fn keep_request(&mut self, io: &mut Io<'_, H>, packet: &Packet<'_>) -> bool {
        let Some(selective) = &self.config.selective else { return false };
        let expected = self.responder.expected_psn();
        let mut kept = self.responder.kept.take().unwrap_or_else(|| Kept::new(&selective.memory).into());
        kept.advance(expected);
        let place = self.early_place(io, &mut kept, packet);
        let store = || place.is_some_and(|place| self.store_early(io, &place, packet.payload));
        let keeping = kept.keep(expected, packet, store);
        self.responder.kept = Some(kept);
        let (opcode, psn) = (packet.bth().opcode, packet.bth().psn);
        self.note_gap(psn);
        self.note_untold(io, packet.bth().ack_req);
        if keeping == Keeping::Duplicate {
            self.note_duplicate();
            io.consumer.trace(self.config.qpn, Event::Duplicate { opcode, psn });
        } else {
            let kept = keeping == Keeping::Kept;
            io.consumer.trace(self.config.qpn, Event::OutOfOrder { opcode, psn, kept });
        }
        keeping == Keeping::Kept
    }

    /// Notes that a request arrived once more.
    pub(super) const fn note_duplicate(&mut self) {
        self.agreement.duplicates = self.agreement.duplicates.wrapping_add(1);
        self.agreement.owes_ack = self.agreement.peer_listens;
    }

    /// Notes a new gap in front of `psn`, or that it fills one. Over several paths there is one all the time.
    fn note_gap(&mut self, psn: Psn) {
        if self.config.paths() > 1 {
            return;
        }
        let agreement = &mut self.agreement;
        let expected = self.responder.expected_psn();
        // One from before the last gap was filled says nothing, nor one further away than is kept.
        let is_near = |behind: &Psn| behind.advance_from(expected) <= u32::from(WINDOW) + 1;
        let behind = agreement.behind.filter(is_near).unwrap_or(expected);
        let ahead = psn.distance_from(behind);
        if ahead >= 0 {
            agreement.behind = Some(psn.next());
        }
        if ahead > 0 {
            agreement.until_told = ENOUGH;
        } else if ahead < 0 {
            agreement.until_told = 1;
        }
    }

    /// Notes that a request came out of order, or filled a part of a gap. The peer is told at once when enough have come behind a new gap
    /// and where the request asks for it, and else of several together.
    fn note_untold(&mut self, io: &Io<'_, H>, is_asked: bool) {
        let agreement = &mut self.agreement;
        agreement.untold = agreement.untold.saturating_add(1);
        agreement.owes_ack |= is_asked || agreement.until_told == 1 || agreement.untold >= TOGETHER;
        agreement.until_told = agreement.until_told.saturating_sub(1);
        if !agreement.owes_ack && agreement.tell_by.is_none() {
            agreement.tell_by = Some(io.now() + TELL_WITHIN);
        }
    }

    /// Time by which requests that came out of order are to be told of.
    #[inline]
    pub(super) const fn tell_by(&self) -> Option<Instant> {
        self.agreement.tell_by
    }

    /// Has the peer be told of requests that came out of order, if it is time: a part of [`handle_timeout`](Self::handle_timeout), for who
    /// puts that off.
    pub fn tell_in_time(&mut self, now: Instant) {
        if self.agreement.tell_by.is_some_and(|at| at <= now) {
            (self.agreement.owes_ack, self.agreement.tell_by) = (true, None);
        }
    }

    /// Carries out what was kept and is expected now.
    pub(super) fn execute_kept(&mut self, io: &mut Io<'_, H>) {
        loop {
            if self.pass_stored(io) {
                continue;
            }
            let Some(kept) = self.responder.take_kept() else { break };
            let packet = kept.packet();
            self.responder.is_stored = kept.is_stored();
            let goes_on = self.state.receives() && self.handle_expected(io, &packet, packet.bth().opcode.info());
            self.responder.is_stored = false;
            self.responder.recycle_kept(kept);
            if !goes_on {
                break;
            }
        }
        if self.responder.kept.as_ref().is_some_and(|kept| !kept.is_empty()) {
            // What is told of the rest tells how far the requester is, too.
            self.note_untold(io, self.config.paths() < 2);
        } else {
            self.agreement.told();
            self.responder.acknowledge();
            self.responder.rest_kept();
        }
    }

    /// The path of the answers that leave now. It is another each time: nothing tells the responder which ones lose. Until the
    /// requester has heard that it may take them in any order it is the first: it would go back for those that are late.
    #[inline]
    pub(super) fn answers_path(&mut self) -> u8 {
        if self.config.paths() < 2 { 0 } else { self.next_path() }
    }

    // Apart: mostly there is one path.
    #[inline(never)]
    fn next_path(&mut self) -> u8 {
        let has_answers = !self.responder.responses.is_empty() || self.owes_selective();
        if !has_answers {
            return 0;
        }
        if let Announced::At(psn) = self.agreement.announced
            && self.responder.expected_psn().advance_from(psn) >= WINDOW.into()
        {
            self.agreement.announced = Announced::Heard;
        }
        if self.agreement.announced != Announced::Heard {
            return 0;
        }
        self.agreement.answers_path = (self.agreement.answers_path + 1) % self.config.paths();
        self.agreement.answers_path
    }

    // --- packets -------------------------------------------------------------------------------------------

    /// Sends what is owed on `path`: an answer to an offer, a selective acknowledgement. False if there is no room.
    #[cold]
    pub(super) fn transmit_selective(&mut self, io: &mut Io<'_, H>, path: u8) -> bool {
        let Some(route) = &self.route else { return true };
        let other = (path > 0).then(|| H::Network::on_path(route, path));
        let route = other.as_ref().unwrap_or(route);
        if self.agreement.owes_answer {
            if !offer(route, io, &self.attr, true) {
                return false;
            }
            self.agreement.owes_answer = false;
            self.agreement.announced_at(self.responder.expected_psn());
        }
        if self.agreement.owes_ack {
            let missing = self.responder.expected_psn();
            let header = Header::new(
                self.attr.bth(Opcode::SELECTIVE_ACK, missing),
                Ext::SelectiveAck(SelectiveAck { duplicates: self.agreement.duplicates }),
            );
            let kept = self.responder.kept.as_ref();
            let len = kept.map_or(0, |kept| kept.bitmap_len());
            let Some(packet) = io.network.packet(route, header.len() + len) else { return false };
            header.emit(packet);
            if let Some(kept) = kept {
                kept.emit(packet.get_mut(header.len()..).unwrap_or_default());
            }
            io.network.commit();
            self.agreement.told();
            self.agreement.announced_at(self.responder.expected_psn());
            io.consumer.trace(self.config.qpn, Event::SentSelectiveAck);
        }
        true
    }

    /// Offers selective repeat, if that is worth while: when many packets are in flight, or some were lost, and the last
    /// offer is long ago.
    //= spec/selective.md#sel-005
    //# Offers MUST be few, and none be sent where nothing is lost or selective repeat is off.
    #[inline]
    pub(super) fn consider_offer(&mut self, io: &mut Io<'_, H>) {
        if self.agreement.offers < MOST_OFFERS
            && let SendSide::Reliable(requester) = &self.send
            && !requester.selective.is_on()
            && (requester.in_flight() >= WORTH_WHILE || requester.selective.went_back)
        {
            self.offer(io);
        }
    }

    #[cold]
    #[inline(never)]
    fn offer(&mut self, io: &mut Io<'_, H>) {
        let psn = self.send.psn();
        let Agreement { offers, offered_at, .. } = self.agreement;
        let interval = FIRST_INTERVAL << (2 * u32::from(offers.saturating_sub(1)));
        let SendSide::Reliable(requester) = &mut self.send else { return };
        let went_back = core::mem::take(&mut requester.selective.went_back);
        if self.selective().is_none() {
            self.agreement.offers = MOST_OFFERS;
            return;
        }
        let Some(route) = self.route.as_ref().filter(|route| io.network.may_lose(route)) else { return };
        let is_time = offers == 0 || went_back || psn.advance_from(offered_at) >= interval;
        if is_time && offer(route, io, &self.attr, false) {
            self.agreement.offers += 1;
            self.agreement.offered_at = psn;
        }
    }
}

/// Sends an offer. False if there is no room.
fn offer<H: Host>(route: &Route<H>, io: &mut Io<'_, H>, attr: &QpAttr, answer: bool) -> bool {
    let bth = attr.bth(Opcode::SELECTIVE_OFFER, Psn::new(0));
    let header = Header::new(bth, Ext::SelectiveOffer(SelectiveOffer { answer, window: WINDOW }));
    let Some(packet) = io.network.packet(route, header.len()) else { return false };
    header.emit(packet);
    io.network.commit();
    true
}
