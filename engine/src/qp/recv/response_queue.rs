//! Answers of the responder on their way out: acknowledgements, READ responses, atomic results.
//!
//! Answers leave in the order of their PSNs, but for those to duplicates, which leave in their turn, and before all others with
//! selective repeat. At most one acknowledgement waits, behind everything else, because a later one says all that an earlier one did,
//! and so does a response (IBA 9.7.5.1.2). The responder resources bound READs and atomics, and so everything.

use alloc::collections::VecDeque;

use urxe_wire::packet::pad_count;
use urxe_wire::{Aeth, AtomicAckEth, Credits, Ext, Header, Msn, NakCode, Operation, Psn, Reth, Syndrome};

use crate::access::Access;
use crate::congestion::Sent;
use crate::event::{Event, Nak};
use crate::fault::ResponderFault;
use crate::host::{Consumer, Host, Io, Network};
use crate::key::Key;
use crate::memory::{self, AccessRequest, MemoryOp};
use crate::mr::{Pd, Refusal};
use crate::qp::attr::QpAttr;
use crate::qp::{Progress, QpConfig, Route, opcode};
use crate::quirks::{AckPolicy, CreditPolicy, Quirks as _};
use crate::time::{Clock, Instant};

/// The answers waiting.
#[derive(Debug, Default)]
pub(in crate::qp) struct ResponseQueue {
    responses: VecDeque<Response>,
    /// Leaves when the responses have.
    acknowledgement: Option<Acknowledgement>,
    /// ACKs that leave before that, though it says all that they do: none without it.
    apart: VecDeque<Acknowledgement>,
    /// The acknowledgement does not leave before.
    not_before: Option<Instant>,
    /// The last packet sent said that there is no receive WQE.
    advertised_none: bool,
}

#[derive(Clone, Copy, Debug)]
struct Acknowledgement {
    psn: Psn,
    /// `None` is an ACK, with the credits there are when it leaves.
    refusal: Option<Syndrome>,
    msn: Msn,
}

/// The answer to a READ or atomic.
#[derive(Clone, Copy, Debug)]
pub(in crate::qp) enum Response {
    Atomic {
        psn: Psn,
        original: u64,
        msn: Msn,
        replayed: bool,
    },
    Read(ReadResponse),
    /// A duplicate READ cannot be answered any more.
    Refusal {
        psn: Psn,
        nak: NakCode,
        msn: Msn,
    },
}

/// A READ response being sent.
#[derive(Clone, Copy, Debug)]
pub(in crate::qp) struct ReadResponse {
    pub(in crate::qp) first: Psn,
    pub(in crate::qp) next: Psn,
    pub(in crate::qp) last: Psn,
    pub(in crate::qp) reth: Reth,
    pub(in crate::qp) msn: Msn,
    /// Protection domain of the memory.
    pub(in crate::qp) pd: Pd,
    /// The response answers a duplicate, and takes no responder resource.
    pub(in crate::qp) replayed: bool,
}

impl Response {
    const fn is_replayed(&self) -> bool {
        match self {
            Self::Atomic { replayed, .. } => *replayed,
            Self::Read(read) => read.replayed,
            Self::Refusal { .. } => true,
        }
    }
}

/// Place of an answer to a duplicate among the responses that wait.
#[derive(Clone, Copy, Debug)]
pub(in crate::qp) enum Turn {
    /// Place behind all of them.
    Last,
    /// Place behind other duplicates, before what was never answered.
    BeforeFirstAnswers,
}

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
    pub(in crate::qp) fn is_empty(&self) -> bool {
        self.responses.is_empty() && self.acknowledgement.is_none()
    }

    /// Whether more than an acknowledgement waits.
    pub(in crate::qp) fn has_responses(&self) -> bool {
        !self.responses.is_empty()
    }

    /// Whether a refusal waits.
    pub(in crate::qp) fn has_refusal(&self) -> bool {
        self.acknowledgement.is_some_and(|waiting| waiting.refusal.is_some())
    }

    /// Whether all that waits is an ACK.
    pub(in crate::qp) fn is_lone_ack(&self) -> bool {
        self.responses.is_empty() && self.acknowledgement.is_some_and(|waiting| waiting.refusal.is_none())
    }

    /// The PSN of the ACK that waits, if it is all.
    pub(in crate::qp) fn lone_ack(&self) -> Option<Psn> {
        match self.acknowledgement {
            Some(Acknowledgement { psn, refusal: None, .. }) if self.responses.is_empty() => Some(psn),
            _ => None,
        }
    }

    pub(in crate::qp) fn clear(&mut self) {
        self.responses.clear();
        self.acknowledgement = None;
        self.apart.clear();
        self.not_before = None;
    }

    /// Whether there is but an ACK, and it does not leave yet.
    pub(in crate::qp) fn keeps_back(&mut self, policy: AckPolicy, clock: &impl Clock) -> bool {
        let AckPolicy::Delayed(by) = policy else { return false };
        if !self.is_lone_ack() {
            self.not_before = None;
            return false;
        }
        let now = clock.now();
        let at = *self.not_before.get_or_insert(now + by);
        if at <= now {
            self.not_before = None;
        }
        now < at
    }

    /// Time at which an ACK that is kept back leaves.
    pub(in crate::qp) const fn kept_until(&self) -> Option<Instant> {
        self.not_before
    }

    /// Has the acknowledgement leave now at the latest.
    pub(in crate::qp) fn flush_delayed(&mut self, policy: AckPolicy, clock: &impl Clock) {
        if matches!(policy, AckPolicy::Delayed(_)) && self.is_lone_ack() {
            self.not_before = Some(clock.now());
        }
    }

    /// Acknowledges everything before `expected`.
    pub(in crate::qp) fn acknowledge(&mut self, expected: Psn, msn: Msn) {
        let stands = |waiting: &Acknowledgement| waiting.refusal.is_some() && waiting.psn == expected;
        if !self.acknowledgement.as_ref().is_some_and(stands) {
            self.acknowledgement = Some(Acknowledgement { psn: expected.sub(1), refusal: None, msn });
        }
    }

    /// Acknowledges everything before `expected`, by an ACK besides those that wait.
    pub(in crate::qp) fn acknowledge_apart(&mut self, expected: Psn, msn: Msn) {
        const MOST: usize = 64;
        if let Some(waiting) = self.acknowledgement.filter(|waiting| waiting.refusal.is_none())
            && waiting.psn != expected.sub(1)
            && self.apart.len() < MOST
        {
            self.apart.push_back(waiting);
        }
        self.acknowledge(expected, msn);
    }

    /// Refuses the request at `psn`, which acknowledges everything before it.
    pub(in crate::qp) fn refuse(&mut self, psn: Psn, syndrome: Syndrome, msn: Msn) {
        self.acknowledgement = Some(Acknowledgement { psn, refusal: Some(syndrome), msn });
    }

    /// Answers a request that was just carried out, and thereby acknowledges all before it.
    pub(in crate::qp) fn respond(&mut self, response: Response) {
        self.acknowledgement = None;
        self.apart.clear();
        self.responses.push_back(response);
    }

    /// Answers a duplicate again, before what is acknowledged behind it. `false` if `most` duplicates wait
    /// already: the requester will ask again.
    pub(in crate::qp) fn replay(&mut self, response: Response, turn: Turn, most: u8) -> bool {
        let waiting = self.responses.iter().filter(|response| response.is_replayed()).count();
        //= spec/responder.md#rsp-023
        //# A flood of duplicates MUST NOT make anything grow.
        if waiting >= usize::from(most) {
            return false;
        }
        let before = match turn {
            Turn::Last => self.responses.len(),
            Turn::BeforeFirstAnswers => self.responses.iter().take_while(|response| response.is_replayed()).count(),
        };
        self.responses.insert(before, response);
        true
    }

    /// Whether one of the responses waiting is so.
    pub(in crate::qp) fn is_coming(&self, wanted: impl Fn(&Response) -> bool) -> bool {
        self.responses.iter().any(wanted)
    }

    /// Has the first answer to a READ, of which part has left, that at `psn`, and not that at `last`, go on from `psn`. False if there is
    /// none such.
    pub(in crate::qp) fn rewind(&mut self, psn: Psn, last: Psn) -> bool {
        let leaving = self.responses.iter_mut().find_map(|response| match response {
            Response::Read(read) if !read.replayed && psn.distance_from(read.first) >= 0 => {
                (psn.distance_from(read.next) < 0 && last.distance_from(read.next) >= 0).then_some(read)
            }
            _ => None,
        });
        leaving.is_some_and(|read| {
            read.next = psn;
            true
        })
    }

    /// Responder resources in use: READs and atomics not answered yet.
    pub(in crate::qp) fn unanswered(&self) -> usize {
        self.responses.iter().filter(|response| !response.is_replayed()).count()
    }

    /// Whether the peer was told that there is no receive WQE; forgets it.
    pub(in crate::qp) const fn take_advertised_none(&mut self) -> bool {
        core::mem::replace(&mut self.advertised_none, false)
    }

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
