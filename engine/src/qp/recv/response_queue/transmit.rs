//! Sending of the answers that wait.

use urxe_wire::packet::pad_count;
use urxe_wire::{Aeth, AtomicAckEth, Credits, Ext, Header, Operation, Psn, Syndrome};

use super::{Acknowledgement, ReadResponse, Response, ResponseQueue};
use crate::access::Access;
use crate::congestion::Sent;
use crate::event::{Event, Nak};
use crate::fault::ResponderFault;
use crate::host::{Consumer, Host, Io, Network};
use crate::key::Key;
use crate::memory::{self, AccessRequest, MemoryOp};
use crate::mr::Refusal;
use crate::qp::attr::QpAttr;
use crate::qp::{Progress, QpConfig, Route, opcode};
use crate::quirks::{CreditPolicy, Quirks as _};

/// Packets of READ responses in one call of [`transmit`](ResponseQueue::transmit).
#[derive(Clone, Copy, Debug)]
pub(in crate::qp) struct Burst {
    most: u32,
    pub(in crate::qp) sent: Sent,
}

impl Burst {
    /// Burst of at most `most` packets.
    pub(in crate::qp) fn of(most: u32) -> Self {
        Self { most, sent: Sent::default() }
    }
}

/// The memory of a READ is gone since the request was checked.
#[derive(Clone, Copy, Debug)]
pub(in crate::qp) struct Gone {
    /// The packet that could not be made.
    pub(in crate::qp) psn: Psn,
    pub(in crate::qp) refusal: Refusal,
}

impl ResponseQueue {
    /// Sends answers; of READ responses as much as `burst` allows. `posted` receive WQEs are there for credits.
    ///
    /// # Errors
    /// [`Gone`]; the answers are forgotten then.
    pub(in crate::qp) fn transmit<H: Host>(
        &mut self,
        config: &QpConfig<H>,
        attr: &QpAttr,
        posted: usize,
        route: &Route<H>,
        io: &mut Io<'_, H>,
        burst: &mut Burst,
    ) -> Result<Progress, Gone> {
        if self.is_empty() {
            return Ok(Progress::Idle);
        }
        //= spec/responder.md#rsp-019
        //# An acknowledgement MUST tell how many receive WQEs are posted, or that they are not counted.
        let posted = u32::try_from(posted).unwrap_or(u32::MAX);
        let credits = match config.quirks.credits() {
            _ if !config.has_recv_queue() => Credits::INVALID,
            CreditPolicy::All => Credits::from_wqes(posted),
            CreditPolicy::AtMost(most) => Credits::from_wqes(posted.min(most)),
            CreditPolicy::Uncounted => Credits::INVALID,
        };
        let ack = Syndrome::Ack(credits);
        let none = credits.wqes() == Some(0);
        while let Some(response) = self.responses.front_mut() {
            let answered = match response {
                Response::Atomic { psn, original, msn, .. } => {
                    let ack = Aeth { syndrome: ack, msn: *msn };
                    let ext = Ext::AethAtomicAckEth(ack, AtomicAckEth { original: *original });
                    if !send(config, attr, route, io, Operation::AtomicAcknowledge, *psn, ext) {
                        return Ok(Progress::Blocked);
                    }
                    true
                }
                Response::Read(_) if burst.sent.packets >= burst.most => return Ok(Progress::More),
                Response::Read(read) => {
                    match send_read_response(config, attr, route, io, read, ack) {
                        Ok(length) => burst.sent.add(length),
                        Err(Stopped::NoRoom) => return Ok(Progress::Blocked),
                        Err(Stopped::Refused(refusal)) if read.replayed && refusal != Refusal::Silent => {
                            let nak = ResponderFault::remote(refusal).consequence().nak;
                            *response = Response::Refusal { psn: read.next, nak, msn: read.msn };
                            continue;
                        }
                        Err(Stopped::Refused(refusal)) => {
                            let psn = read.next;
                            self.clear();
                            return Err(Gone { psn, refusal });
                        }
                    }
                    read.next == read.last.next()
                }
                Response::Refusal { psn, nak, msn } => {
                    let ext = Ext::Aeth(Aeth { syndrome: Syndrome::Nak(*nak), msn: *msn });
                    if !send(config, attr, route, io, Operation::Acknowledge, *psn, ext) {
                        return Ok(Progress::Blocked);
                    }
                    io.consumer.trace(config.qpn, Event::SentNak { nak: Nak::Code(*nak), psn: *psn });
                    true
                }
            };
            self.advertised_none = none;
            if answered {
                self.responses.pop_front();
            }
        }
        while let Some(Acknowledgement { psn, msn, .. }) = self.apart.front().copied() {
            if !send(config, attr, route, io, Operation::Acknowledge, psn, Ext::Aeth(Aeth { syndrome: ack, msn })) {
                return Ok(Progress::Blocked);
            }
            self.apart.pop_front();
        }
        if let Some(Acknowledgement { psn, refusal, msn }) = self.acknowledgement {
            let ext = Ext::Aeth(Aeth { syndrome: refusal.unwrap_or(ack), msn });
            if !send(config, attr, route, io, Operation::Acknowledge, psn, ext) {
                return Ok(Progress::Blocked);
            }
            self.advertised_none = none;
            self.acknowledgement = None;
        }
        Ok(Progress::Idle)
    }
}

/// Sends a packet without payload; `false` if there is no room.
fn send<H: Host>(
    config: &QpConfig<H>,
    attr: &QpAttr,
    route: &Route<H>,
    io: &mut Io<'_, H>,
    operation: Operation,
    psn: Psn,
    ext: Ext,
) -> bool {
    let header = Header::new(attr.bth(opcode(config.qp_type, operation), psn), ext);
    let Some(packet) = io.network.packet(route, header.len()) else { return false };
    header.emit(packet);
    io.network.commit();
    true
}

enum Stopped {
    NoRoom,
    Refused(Refusal),
}

/// Sends the next packet of a READ response; returns its length.
fn send_read_response<H: Host>(
    config: &QpConfig<H>,
    attr: &QpAttr,
    route: &Route<H>,
    io: &mut Io<'_, H>,
    read: &mut ReadResponse,
    ack: Syndrome,
) -> Result<usize, Stopped> {
    let mtu = attr.path_mtu.bytes();
    let offset = read.next.advance_from(read.first) as usize * mtu;
    let len = (read.reth.dma_len as usize).saturating_sub(offset).min(mtu);
    let aeth = Ext::Aeth(Aeth { syndrome: ack, msn: read.msn });
    let (operation, ext) = match (read.next == read.first, read.next == read.last) {
        (true, true) => (Operation::ReadResponseOnly, aeth),
        (true, false) => (Operation::ReadResponseFirst, aeth),
        (false, false) => (Operation::ReadResponseMiddle, Ext::None),
        (false, true) => (Operation::ReadResponseLast, aeth),
    };
    let mut bth = attr.bth(opcode(config.qp_type, operation), read.next);
    bth.pad_count = pad_count(len);
    let header = Header::new(bth, ext);
    let header_len = header.len();
    let packet_len = header_len + len + usize::from(bth.pad_count);
    let packet = io.network.packet(route, packet_len).ok_or(Stopped::NoRoom)?;
    header.emit(packet);
    let (payload, pad) = packet.get_mut(header_len..).unwrap_or_default().split_at_mut(len);
    pad.fill(0);
    if len > 0 {
        let va = read.reth.va.wrapping_add(offset as u64);
        let key = Key(read.reth.r_key.0);
        let peer = config.peer_in(read.pd);
        let request = AccessRequest { by: peer, key, access: Access::REMOTE_READ, va, length: len as u64 };
        memory::access(io.memory, &request, MemoryOp::Read(payload)).map_err(Stopped::Refused)?;
    }
    io.network.commit();
    read.next = read.next.next();
    Ok(packet_len)
}
