//! Communication management: how queue pairs get connected (IBA chapter 12).
//!
//! A [`Cm`] holds the connections of one port. It knows no queue pair and no socket:
//!
//! | | |
//! |---|---|
//! | commands | [`Cm::connect`], [`accept`](Cm::accept), [`establish`](Cm::establish), [`reject`](Cm::reject), [`disconnect`](Cm::disconnect), [`resolve_service`](Cm::resolve_service), [`answer_service`](Cm::answer_service), [`release`](Cm::release) |
//! | input | [`Cm::handle`], [`handle_timeout`](Cm::handle_timeout) |
//! | output | [`Cm::poll_transmit`], [`poll_event`](Cm::poll_event), [`poll_will`](Cm::poll_will), [`poll_timeout`](Cm::poll_timeout) |
//!
//! The caller names connections by [`CommId`]s that are unique on its host, and has them back with [`Event::Gone`].

mod connection;

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use core::time::Duration;

use urxe_wire::cm::{
    Apr, CmMad, CommId, Dreq, Ids, Message, Mra, Plain, Rej, RejReason, Rejected, Rep, Req, SidrRep, SidrReq,
    SidrStatus,
};
use urxe_wire::mad::MAD_LEN;
use urxe_wire::{Gid, QKey, Qpn};

use crate::time::Instant;
use connection::{Connection, State};

/// After the last packet of a connection may have arrived, its names may be used again (IBA 12.9.8.4).
const TIME_WAIT: Duration = Duration::from_secs(1);
/// The first wait for an answer. It doubles until [`SLOWEST`]: a peer on the same host answers at once or never.
const FIRST_TRY: Duration = Duration::from_millis(100);
/// What the kernel waits each time: 4.096 µs · 2^20 (`CMA_CM_RESPONSE_TIMEOUT`).
pub const SLOWEST: Duration = Duration::from_nanos(4096 << 20);
/// The exponent of it, as messages carry it.
pub const RESPONSE_TIMEOUT: u8 = 20;
/// How often a message is sent again (`CMA_MAX_CM_RETRIES`).
//= spec/connections.md#cm-003
//# A message without an answer MUST be sent again 15 times, a DREQ 4 times, and the connection then be given up.
pub const MAX_RETRIES: u8 = 15;
/// How often a DREQ is: three seconds in all. A kernel answers it for a process that is gone; here nobody may be left to,
/// and whoever ends a connection waits for the answer (qperf does so after each test).
const DREQ_RETRIES: u8 = 4;
/// Exponent of the time that a MRA asks for (`CMA_CM_MRA_SETTING`).
const MRA_TIMEOUT: u8 = 24;

/// Two ports that exchange messages.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Ends {
    /// The GID of this end.
    pub local: Gid,
    /// The GID of the peer.
    pub remote: Gid,
}

/// A datagram to the peer's QP1.
#[derive(Clone, Debug)]
pub struct Transmit {
    /// Between whom.
    pub ends: Ends,
    /// The payload.
    pub payload: [u8; MAD_LEN],
}

/// What the caller says to a new request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// It is told to whoever listens, and will be answered under this name.
    Take(CommId),
    /// Nobody listens.
    Refuse,
    /// Nobody can take it now: it is ignored, so that it comes again.
    Ignore,
}

/// Why a connection has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Disconnect {
    /// The peer wants to.
    Asked,
    /// The peer agrees.
    Agreed,
    /// The peer does not answer.
    Unanswered,
}

/// What has happened to a connection.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// A peer asks for a connection, which `handle` was told to take.
    Request(Box<Req>),
    /// A peer looks for a service, which `handle` was told to take.
    ServiceRequest(Box<SidrReq>),
    /// The peer has accepted: to be followed by `establish` or `reject`.
    Reply(Box<Rep>),
    /// The peer is ready to use the connection.
    Established(Box<[u8; 224]>),
    /// The peer has answered about a service.
    ServiceReply(Box<SidrRep>),
    /// The peer has rejected.
    Rejected(Box<Rej>),
    /// The peer does not answer.
    Unreachable,
    /// The connection has ended; with the peer's private data.
    Disconnected(Disconnect, Box<[u8; 224]>),
    /// No packet of the connection is under way any more.
    TimeWaitExit,
    /// Nothing is known under this name any more: the last event.
    Gone,
}

/// A command does not fit the connection's state, or there is no such connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WrongState;

/// The connections of a port: see the [module documentation](self).
#[derive(Debug, Default)]
pub struct Cm {
    connections: BTreeMap<CommId, Connection>,
    /// Those that peers began, by the peer and its name for them.
    by_peer: BTreeMap<(Ends, CommId), CommId>,
    deadlines: BTreeSet<(Instant, CommId)>,
    transmits: VecDeque<Transmit>,
    events: VecDeque<(CommId, Event)>,
    wills: VecDeque<(CommId, Option<Transmit>)>,
}

impl Cm {
    /// No connections.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    // --- commands --------------------------------------------------------------------------------------------

    /// Asks for a connection. `req.local_id` is its name.
    ///
    /// # Errors
    /// If the name is in use.
    pub fn connect(&mut self, now: Instant, ends: Ends, req: &Req, attribute_modifier: u32) -> Result<(), WrongState> {
        self.begin(now, ends, req.local_id, State::ReqSent, Message::Req(*req), attribute_modifier)
    }

    /// Asks for a datagram service. `req.request_id` is the name of the exchange.
    ///
    /// # Errors
    /// If the name is in use.
    pub fn resolve_service(&mut self, now: Instant, ends: Ends, req: &SidrReq) -> Result<(), WrongState> {
        self.begin(now, ends, req.request_id, State::SidrReqSent, Message::SidrReq(*req), 0)
    }

    fn begin(
        &mut self,
        now: Instant,
        ends: Ends,
        id: CommId,
        state: State,
        message: Message,
        attribute_modifier: u32,
    ) -> Result<(), WrongState> {
        if self.connections.contains_key(&id) {
            return Err(WrongState);
        }
        let mut connection = Connection::new(ends, CommId(0), state, u64::from(id.0));
        connection.send_until_answered(now, message, attribute_modifier);
        self.put(id, connection);
        Ok(())
    }

    /// Answers a request with yes. The ids of `rep` are filled in here.
    ///
    /// # Errors
    /// If no request waits for an answer.
    pub fn accept(&mut self, now: Instant, id: CommId, rep: &Rep, attribute_modifier: u32) -> Result<(), WrongState> {
        self.change(id, |connection, ids| {
            connection.expect(State::ReqRcvd)?;
            connection.state = State::RepSent;
            connection.peer_qpn.get_or_insert_default();
            connection.send_until_answered(now, Message::Rep(Rep { ids, ..*rep }), attribute_modifier);
            Ok(())
        })
    }

    /// Says that the connection is ready, after a [`Event::Reply`].
    ///
    /// # Errors
    /// If no reply waits for this.
    pub fn establish(&mut self, id: CommId) -> Result<(), WrongState> {
        self.change(id, |connection, ids| {
            connection.expect(State::RepRcvd)?;
            connection.state = State::Established;
            connection.say(Message::Rtu(Plain { ids, private_data: [0; 224] }));
            Ok(())
        })
    }

    /// The queue pair has received something on a connection whose peer has not said that it is ready
    /// (IBA 12.9.7.2 "communication established").
    ///
    /// # Errors
    /// If that is not so.
    pub fn notice_communication(&mut self, id: CommId) -> Result<(), WrongState> {
        self.change(id, |connection, _| {
            connection.expect(State::RepSent)?;
            connection.stop_sending();
            connection.state = State::Established;
            connection.tell(Event::Established(Box::new([0; 224])));
            Ok(())
        })
    }

    /// Answers a request or a reply with no.
    ///
    /// # Errors
    /// If nothing waits for an answer.
    pub fn reject(
        &mut self,
        id: CommId,
        reason: RejReason,
        info: &[u8],
        private_data: &[u8; 148],
    ) -> Result<(), WrongState> {
        self.change(id, |connection, ids| {
            let message = match connection.state {
                State::ReqRcvd => Rejected::Req,
                State::RepRcvd | State::RepSent => Rejected::Rep,
                _ => return Err(WrongState),
            };
            let mut rej = plain_rej(ids, message, reason);
            //= spec/connections.md#cm-007
            //# A rejection MUST bring the reason and private data that were given.
            rej.private_data = *private_data;
            let len = info.len().min(rej.info.len());
            rej.info[..len].copy_from_slice(&info[..len]);
            rej.info_len = u8::try_from(len).unwrap_or_default();
            connection.stop_sending();
            connection.state = State::Idle;
            connection.say(Message::Rej(rej));
            Ok(())
        })
    }

    /// Ends the connection, or agrees that the peer does.
    ///
    /// # Errors
    /// If it is neither established nor being ended by the peer.
    pub fn disconnect(&mut self, now: Instant, id: CommId) -> Result<(), WrongState> {
        self.change(id, |connection, ids| match connection.state {
            State::Established | State::RepSent => {
                connection.stop_sending();
                connection.state = State::DreqSent;
                let remote_qpn = connection.peer_qpn.unwrap_or_default();
                connection.send_until_answered(now, Message::Dreq(Dreq { ids, remote_qpn, private_data: [0; 220] }), 0);
                Ok(())
            }
            State::DreqRcvd => {
                connection.say(Message::Drep(Plain { ids, private_data: [0; 224] }));
                connection.wait(now);
                Ok(())
            }
            _ => Err(WrongState),
        })
    }

    /// Answers a request for a service.
    ///
    /// # Errors
    /// If none waits for an answer.
    pub fn answer_service(
        &mut self,
        id: CommId,
        status: SidrStatus,
        qpn: Qpn,
        q_key: QKey,
        private_data: &[u8; 136],
    ) -> Result<(), WrongState> {
        self.change(id, |connection, ids| {
            connection.expect(State::SidrReqRcvd)?;
            connection.state = State::SidrAnswered;
            let mut rep = plain_sidr_rep(ids.remote, connection.service_id, status);
            (rep.qpn, rep.q_key, rep.private_data) = (qpn, q_key, *private_data);
            connection.say(Message::SidrRep(rep));
            Ok(())
        })
    }

    /// The caller has no more use for the connection: whatever the peer must still be told is told, and
    /// [`Event::Gone`] follows now or later, and nothing else.
    pub fn release(&mut self, now: Instant, id: CommId) {
        let _ = self.change(id, |connection, ids| {
            connection.release(now, ids);
            Ok(())
        });
    }

    // --- input -----------------------------------------------------------------------------------------------

    /// Takes a message. `decide` is asked about a request that is new.
    pub fn handle(&mut self, now: Instant, ends: Ends, mad: &CmMad, decide: &mut dyn FnMut(&Message) -> Verdict) {
        match &mad.message {
            Message::Req(req) => self.handle_request(now, ends, mad, req.local_id, decide),
            Message::SidrReq(req) => self.handle_request(now, ends, mad, req.request_id, decide),
            message => {
                let receiver = message.receiver_id().map(|id| match message {
                    // Who withdraws a request may not know yet what its peer calls it.
                    //= spec/connections.md#cm-012
                    //# A request that its sender withdraws MUST be told as rejected to whoever was asked.
                    Message::Rej(rej) if id == CommId(0) => {
                        self.by_peer.get(&(ends, rej.ids.local)).copied().unwrap_or(id)
                    }
                    _ => id,
                });
                let known = receiver.filter(|id| {
                    let fits = |connection: &Connection| connection.is_with(ends, message);
                    self.connections.get(id).is_some_and(fits)
                });
                match known {
                    Some(id) => {
                        let _ = self.change(id, |connection, ids| {
                            connection.handle(now, ids, message);
                            Ok(())
                        });
                    }
                    None => self.answer_stranger(ends, mad),
                }
            }
        }
    }

    fn handle_request(
        &mut self,
        now: Instant,
        ends: Ends,
        mad: &CmMad,
        peer_id: CommId,
        decide: &mut dyn FnMut(&Message) -> Verdict,
    ) {
        if let Some(&id) = self.by_peer.get(&(ends, peer_id)) {
            let _ = self.change(id, |connection, ids| {
                connection.handle_duplicate(ids, &mad.message);
                Ok(())
            });
            return;
        }
        let id = match decide(&mad.message) {
            Verdict::Take(id) => id,
            Verdict::Refuse => return self.answer_stranger(ends, mad),
            Verdict::Ignore => return,
        };
        let (state, event) = match &mad.message {
            Message::Req(req) => (State::ReqRcvd, Event::Request(Box::new(*req))),
            Message::SidrReq(req) => (State::SidrReqRcvd, Event::ServiceRequest(Box::new(*req))),
            _ => return,
        };
        let mut connection = Connection::new(ends, peer_id, state, mad.transaction_id);
        match &mad.message {
            Message::Req(req) => connection.peer_qpn = Some(req.qpn),
            Message::SidrReq(req) => {
                connection.service_id = req.service_id;
                // Nobody says when such an exchange is over; the asker gives up after this.
                connection.deadline = Some(now + SLOWEST * u32::from(MAX_RETRIES));
            }
            _ => {}
        }
        connection.attribute_modifier = mad.attribute_modifier;
        connection.tell(event);
        self.by_peer.insert((ends, peer_id), id);
        self.put(id, connection);
    }

    /// Says to a peer what it must know when nothing is known of what it means.
    fn answer_stranger(&mut self, ends: Ends, mad: &CmMad) {
        if let Some(answer) = answer_to_unknown(mad) {
            self.transmits.push_back(Transmit { ends, payload: answer.to_bytes() });
        }
    }

    /// Does what is due.
    pub fn handle_timeout(&mut self, now: Instant) {
        while let Some(&(at, id)) = self.deadlines.first() {
            if at > now {
                return;
            }
            let _ = self.change(id, |connection, _| {
                connection.handle_timeout(now);
                Ok(())
            });
        }
    }

    // --- output ----------------------------------------------------------------------------------------------

    /// The next datagram to send.
    pub fn poll_transmit(&mut self) -> Option<Transmit> {
        self.transmits.pop_front()
    }

    /// The next event.
    pub fn poll_event(&mut self) -> Option<(CommId, Event)> {
        self.events.pop_front()
    }

    /// The next connection whose will has changed: what [`release`](Self::release) would say to its peer now, for
    /// somebody else to say should this end perish.
    pub fn poll_will(&mut self) -> Option<(CommId, Option<Transmit>)> {
        self.wills.pop_front()
    }

    /// When [`handle_timeout`](Self::handle_timeout) wants to be called.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.deadlines.first().map(|(at, _)| *at)
    }

    /// The modifier of the MAD that brought the last REQ or REP: ECE options.
    #[must_use]
    pub fn attribute_modifier(&self, id: CommId) -> u32 {
        self.connections.get(&id).map_or(0, |connection| connection.attribute_modifier)
    }

    // --- inside ----------------------------------------------------------------------------------------------

    fn put(&mut self, id: CommId, mut connection: Connection) {
        self.collect(id, &mut connection);
        if let Some(at) = connection.deadline {
            self.deadlines.insert((at, id));
        }
        self.connections.insert(id, connection);
    }

    /// Moves what the connection has to say to where it is fetched.
    fn collect(&mut self, id: CommId, connection: &mut Connection) {
        let ends = connection.ends;
        self.transmits.extend(connection.outbox.drain(..).map(|payload| Transmit { ends, payload }));
        let released = connection.released;
        self.events.extend(connection.news.drain(..).filter(|_| !released).map(|event| (id, event)));
        if connection.willed != Some(connection.state) {
            connection.willed = Some(connection.state);
            let message = connection.will(Ids { local: id, remote: connection.peer_id });
            self.wills.push_back((id, message.map(|payload| Transmit { ends, payload })));
        }
    }

    fn change(
        &mut self,
        id: CommId,
        act: impl FnOnce(&mut Connection, Ids) -> Result<(), WrongState>,
    ) -> Result<(), WrongState> {
        let mut connection = self.connections.remove(&id).ok_or(WrongState)?;
        if let Some(at) = connection.deadline {
            self.deadlines.remove(&(at, id));
        }
        let ids = Ids { local: id, remote: connection.peer_id };
        let result = act(&mut connection, ids);
        self.collect(id, &mut connection);
        if connection.released && connection.state == State::Idle {
            self.by_peer.remove(&(connection.ends, connection.peer_id));
            self.events.push_back((id, Event::Gone));
        } else {
            self.put(id, connection);
        }
        result
    }
}

/// What to say to a message about something that nobody here knows: a request is refused, a release agreed to
/// (IBA 12.9.8.6), so that the peer need not wait in vain.
#[must_use]
pub fn answer_to_unknown(mad: &CmMad) -> Option<CmMad> {
    let message = match &mad.message {
        Message::Req(req) => {
            let ids = Ids { local: CommId(0), remote: req.local_id };
            //= spec/connections.md#cm-004
            //# A request for a service that nobody serves MUST be rejected as an invalid service id.
            Message::Rej(plain_rej(ids, Rejected::Req, RejReason::INVALID_SERVICE_ID))
        }
        // Whoever asked is gone: the one that has accepted need not find out by silence.
        Message::Rep(rep) => {
            let ids = Ids { local: rep.ids.remote, remote: rep.ids.local };
            Message::Rej(plain_rej(ids, Rejected::Rep, RejReason::INVALID_COMM_ID))
        }
        Message::SidrReq(req) => {
            Message::SidrRep(plain_sidr_rep(req.request_id, req.service_id, SidrStatus::UNSUPPORTED))
        }
        //= spec/connections.md#cm-005
        //# A disconnect of an unknown connection MUST be agreed to.
        Message::Dreq(dreq) => {
            let ids = Ids { local: dreq.ids.remote, remote: dreq.ids.local };
            Message::Drep(Plain { ids, private_data: [0; 224] })
        }
        Message::Lap(lap) => {
            let ids = Ids { local: lap.ids.remote, remote: lap.ids.local };
            Message::Apr(Apr {
                ids,
                info_len: 0,
                status: Apr::NOT_SUPPORTED,
                reserved: 0,
                info: [0; 72],
                private_data: [0; 148],
            })
        }
        _ => return None,
    };
    Some(CmMad { transaction_id: mad.transaction_id, attribute_modifier: 0, message })
}

fn plain_rej(ids: Ids, message: Rejected, reason: RejReason) -> Rej {
    Rej { ids, message, info_len: 0, reason, info: [0; 72], private_data: [0; 148] }
}

fn plain_sidr_rep(request_id: CommId, service_id: u64, status: SidrStatus) -> SidrRep {
    SidrRep {
        request_id,
        status,
        info_len: 0,
        reserved: 0,
        qpn: Qpn::default(),
        service_id,
        q_key: QKey(0),
        info: [0; 72],
        private_data: [0; 136],
    }
}

fn mra(ids: Ids, message: Rejected) -> Message {
    Message::Mra(Mra { ids, message, service_timeout: MRA_TIMEOUT, private_data: [0; 222] })
}
