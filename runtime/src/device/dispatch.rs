//! Dispatch of received packets to queue pairs, handlers of management datagrams and XRC targets.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use urxe_engine::mad::Address;
use urxe_engine::{Clock as _, Instant};
use urxe_net::cancellation::CancelGuard;
use urxe_net::{BadPacket, Datagram, Destination, Headers, RxBatch};
use urxe_wire::mad::{MAD_LEN, Mad, smp, subnet_vendor};
use urxe_wire::packet::Service;
use urxe_wire::{Packet, Psn, Qpn};

use super::{Device, TxContext};
use crate::clock::LazyInstant;
use crate::counters::bump;
use crate::gsi::{self, Unfit};
use crate::host::Origin;
use crate::interceptor::Interceptor;
use crate::qp::Qp;
use crate::xrc::target::Target;

/// Queue pairs that got packets last, among which the next packet's is looked for first.
const NEAR: usize = 2;

/// Destination of received packets: the queue pairs, and the list of those to answer.
pub(super) struct Addressees<'a> {
    pub(super) work: &'a mut TxContext,
    pub(super) dirty: &'a mut Vec<Arc<Qp>>,
    pub(super) clock: &'a LazyInstant,
}

impl Addressees<'_> {
    /// The queue pair has got packets.
    pub(super) fn touch(&mut self, qp: Arc<Qp>) {
        if qp.mark_dirty() {
            self.dirty.push(qp);
        }
    }
}

impl Device {
    /// The queue pairs that a multicast datagram is for.
    fn attached(&self, datagram: &Datagram<'_>) -> Vec<Arc<Qp>> {
        self.groups.attached(datagram.headers.local.ip()).into_iter().filter_map(|qpn| self.qp(qpn)).collect()
    }

    /// Gives packets to those they are for. Returns whether a queue pair has accepted one.
    pub(super) fn take(&self, to: &mut Addressees<'_>, run: RxBatch<'_>) -> bool {
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

    /// Gives packets to their queue pairs, as the interceptor decides.
    pub(super) fn take_intercepted(
        &self,
        to: &mut Addressees<'_>,
        interceptor: &Arc<dyn Interceptor>,
        run: RxBatch<'_>,
    ) -> bool {
        let mut accepted = false;
        if !self.touches_packets
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
    pub(super) fn take_arrivals(&self, to: &mut Addressees<'_>, interceptor: &Arc<dyn Interceptor>) -> usize {
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
}
