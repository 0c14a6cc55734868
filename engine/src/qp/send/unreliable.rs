//! The requester of UC and UD: a request is complete when its last packet is sent (IBA 9.8.2, 9.8.3).

use alloc::boxed::Box;
use core::time::Duration;

use urxe_wire::packet::Service;
use urxe_wire::{Bth, Deth, Header, Psn, packet::pad_count};

use super::direct::{DIRECT_BURST, ask_host};
use super::pace::Pace;
use super::segment::data_packet;
use super::send_queue::{Entry, SendQueue};
use super::wqe::{SendWqe, complete, execute_local, succeed};
use crate::congestion::ReactionPoint;
use crate::cq::WcStatus;
use crate::direct::DirectOutcome;
use crate::event::Event;
use crate::host::{Consumer, Host, Io, Network};
use crate::memory::Memory as _;
use crate::qp::attr::QpAttr;
use crate::qp::sge::copy_payload;
use crate::qp::{Progress, QpConfig, QpType, Route, opcode};
use crate::time::Instant;
use crate::work::UdRecipient;

/// A peer of our own kind answers the first packet of a flow by opening a socket for it, and what comes on that socket
/// may overtake what came before. Datagrams do not mind, but a message of several packets would be lost. So the first
/// such message, once in a queue pair's life, pauses behind its first packet.
const INTRODUCTION: Duration = Duration::from_millis(4);

/// A send WQE.
pub(super) struct Wqe<H: Host> {
    pub(super) request: SendWqe,
    /// The recipient, on UD.
    pub(super) to: Option<UdRecipient<Route<H>>>,
}

impl<H: Host> Default for Wqe<H> {
    fn default() -> Self {
        Self { request: SendWqe::default(), to: None }
    }
}

impl<H: Host> Entry for Wqe<H> {
    #[inline]
    fn clear(&mut self) {
        self.request.clear();
        self.to = None;
    }
}

/// The requester of one queue pair.
pub(in crate::qp) struct Unreliable<H: Host> {
    pub(super) queue: SendQueue<Wqe<H>>,
    /// Packets of the oldest WQE that are sent.
    sent: u32,
    psn: Psn,
    pace: Pace,
    /// The rate since the first CNP.
    reaction: Option<Box<ReactionPoint>>,
    /// When the first packet was sent.
    began: Option<Instant>,
    waits_until: Option<Instant>,
}

/// Why the oldest WQE's next packet was not sent.
enum Unsent {
    NoRoom,
    Failed(WcStatus),
}

impl<H: Host> Unreliable<H> {
    pub(in crate::qp) fn new(window: u32) -> Self {
        Self {
            queue: SendQueue::default(),
            sent: 0,
            psn: Psn::default(),
            pace: Pace::new(window),
            reaction: None,
            began: None,
            waits_until: None,
        }
    }

    /// RTR → RTS.
    pub(in crate::qp) const fn start(&mut self, attr: &QpAttr) {
        self.psn = attr.sq_psn;
    }

    /// The PSN of the next packet.
    pub(in crate::qp) const fn psn(&self) -> Psn {
        self.psn
    }

    /// Whether no request is half sent.
    pub(in crate::qp) const fn is_drained(&self) -> bool {
        self.sent == 0
    }

    pub(in crate::qp) fn has_output(&self) -> bool {
        self.queue.len() > 0 && self.waits_until.is_none()
    }

    pub(in crate::qp) const fn deadline(&self) -> Option<Instant> {
        self.waits_until
    }

    pub(in crate::qp) fn handle_timeout(&mut self, now: Instant) {
        self.waits_until = self.waits_until.filter(|until| *until > now);
    }

    /// Sends what may be sent. New WQEs are begun only if `may_start` (not in SQD).
    ///
    /// # Errors
    /// The status of the oldest WQE, which cannot be carried out.
    pub(in crate::qp) fn transmit(
        &mut self,
        config: &QpConfig<H>,
        attr: &QpAttr,
        route: Option<&Route<H>>,
        io: &mut Io<'_, H>,
        may_start: bool,
    ) -> Result<Progress, WcStatus> {
        if self.reaction.is_some() {
            self.follow_rate(io.now());
        }
        let mut left = DIRECT_BURST;
        while let Some(wqe) = self.queue.front() {
            if self.sent == 0 && !may_start {
                break;
            }
            //= spec/unreliable.md#unr-008
            //# A datagram longer than the port's MTU MUST NOT be sent.
            // C10-93.1.1: a UD message longer than the port's MTU emits nothing, and is no error either.
            let unsendable = config.qp_type == QpType::Ud && wqe.request.length as usize > attr.path_mtu.bytes();
            let length = wqe.request.length;
            let may_reach = self.sent == 0
                && io.memory.reaches_peer()
                && self.reaction.is_none()
                && config.qp_type == QpType::Uc
                && wqe.request.wr.op.is_one_sided()
                && length <= DIRECT_BURST;
            if may_reach && length > left {
                return Ok(Progress::More);
            }
            if may_reach && ask_host(config, attr, io, &wqe.request, self.psn) == DirectOutcome::Done {
                left -= length;
                self.psn = self.psn.add(attr.path_mtu.packets(length));
            } else if wqe.request.wr.op.is_local() {
                execute_local(config, io, &wqe.request.wr.op)?;
            } else if unsendable {
                let (wr_id, length) = (wqe.request.wr.wr_id, wqe.request.length);
                io.consumer.trace(config.qpn, Event::DatagramTooLong { wr_id, length });
            } else {
                let now = io.now();
                self.waits_until = self.pace.wait(now).max(self.introduction(now));
                if self.waits_until.is_some() {
                    break;
                }
                match send_packet(config, attr, route, io, wqe, self.sent, self.psn) {
                    Ok(length) => {
                        if let Some(point) = &mut self.reaction {
                            point.sent(now, length as u64);
                            self.pace.limit(Some(point.rate()));
                        }
                        self.pace.sent(now, length);
                        self.began.get_or_insert(now);
                    }
                    Err(Unsent::NoRoom) => return Ok(Progress::Blocked),
                    Err(Unsent::Failed(status)) => return Err(status),
                }
                self.psn = self.psn.next();
                self.sent += 1;
                if self.sent < attr.path_mtu.packets(wqe.request.length) {
                    continue;
                }
            }
            self.sent = 0;
            succeed(config, io, &wqe.request);
            self.queue.pop();
        }
        Ok(Progress::Idle)
    }

    /// A CNP came: packets leave more slowly.
    pub(in crate::qp) fn handle_notification(&mut self, config: &QpConfig<H>, now: Instant) {
        match &mut self.reaction {
            Some(point) => point.notified(now),
            None => self.reaction = Some(Box::new(ReactionPoint::new(&config.congestion, now))),
        }
    }

    /// Has packets leave at the rate of the reaction point, until that is the link's.
    #[cold]
    fn follow_rate(&mut self, now: Instant) {
        self.reaction.take_if(|point| {
            point.advance(now);
            point.is_at_line_rate()
        });
        self.pace.limit(self.reaction.as_ref().map(|point| point.rate()));
    }

    /// Until when the second packet of a message waits for what the very first one sets off at the peer.
    fn introduction(&self, now: Instant) -> Option<Instant> {
        let until = self.began.filter(|_| self.sent > 0)? + INTRODUCTION;
        (until > now).then_some(until)
    }

    /// Completes the oldest WQE with an error.
    pub(in crate::qp) fn fail_front(&mut self, config: &QpConfig<H>, io: &mut Io<'_, H>, status: WcStatus) {
        self.sent = 0;
        if let Some(wqe) = self.queue.front() {
            complete(config, io, &wqe.request, status);
            self.queue.pop();
        }
    }

    /// Completes all WQEs as flushed.
    pub(in crate::qp) fn flush(&mut self, config: &QpConfig<H>, io: &mut Io<'_, H>) {
        while self.queue.len() > 0 {
            self.fail_front(config, io, WcStatus::WrFlushError);
        }
        self.waits_until = None;
    }
}

/// Sends the packet behind the `sent` first ones of `wqe`; returns its length.
fn send_packet<H: Host>(
    config: &QpConfig<H>,
    attr: &QpAttr,
    route: Option<&Route<H>>,
    io: &mut Io<'_, H>,
    wqe: &Wqe<H>,
    sent: u32,
    psn: Psn,
) -> Result<usize, Unsent> {
    let mtu = attr.path_mtu.bytes();
    let Wqe { request, to } = wqe;
    let length = request.length as usize;
    let offset = sent as usize * mtu;
    let payload_len = (length - offset.min(length)).min(mtu);
    let (first, last) = (sent == 0, offset + payload_len >= length);
    let (operation, ext) = data_packet(&request.wr.op, request.length, first, last);
    let (route, dest_qpn, service) = match to {
        Some(to) => (
            &to.route,
            to.qpn,
            Service::Datagram(Deth { q_key: q_key(to, attr), src_qp: config.qpn, lid_routed: to.lid_routed }),
        ),
        // A connected queue pair has had its route since RTR.
        None => (route.ok_or(Unsent::NoRoom)?, attr.dest_qpn, Service::Connected),
    };
    //= spec/unreliable.md#unr-006
    //# A request on UC or UD MUST complete when its last packet is sent, and no acknowledgement be asked for.
    // AckReq stays clear: there is nobody to acknowledge (IBA 9.8.2, 9.8.3).
    let mut bth = Bth::new(opcode(config.qp_type, operation), dest_qpn, psn);
    bth.mig_req = attr.mig_req();
    bth.pad_count = pad_count(payload_len);
    bth.solicited_event = last && request.wr.flags.solicited && request.wr.op.consumes_recv();
    let header = Header { bth, service, ext };
    let header_len = header.len();
    let packet_len = header_len + payload_len + usize::from(bth.pad_count);
    let packet = io.network.packet(route, packet_len).ok_or(Unsent::NoRoom)?;
    header.emit(packet);
    let (payload, pad) = packet.get_mut(header_len..).unwrap_or_default().split_at_mut(payload_len);
    pad.fill(0);
    copy_payload(io.memory, config.pd, &request.wr.data, offset, payload)
        .map_err(|_| Unsent::Failed(WcStatus::LocalProtectionError))?;
    io.network.commit();
    Ok(packet_len)
}

/// The Q_Key of a request; one with the high bit set stands for the queue pair's own (IBA 10.2.5, C10-15).
//= spec/unreliable.md#unr-004
//# A Q_Key with the high bit set MUST stand for the queue pair's own.
const fn q_key<R>(to: &UdRecipient<R>, attr: &QpAttr) -> urxe_wire::QKey {
    if to.q_key.0 >> 31 == 1 { attr.q_key } else { to.q_key }
}
