//! Communication management: how queue pairs get connected (IBA chapter 12).
//!
//! A [`Cm`] holds the connections of one port. It knows no queue pair and no socket:
//!
//! | | |
//! |---|---|
//! | commands | [`Cm::connect`], [`accept`](Cm::accept), [`establish`](Cm::establish), [`reject`](Cm::reject), [`disconnect`](Cm::disconnect), [`resolve_service`](Cm::resolve_service), [`answer_service`](Cm::answer_service), [`release`](Cm::release) |
//! | input | [`Cm::handle`], [`handle_timeout`](Cm::handle_timeout) |
//! | output | [`Cm::poll_transmit`], [`poll_event`](Cm::poll_event), [`poll_last_will`](Cm::poll_last_will), [`poll_timeout`](Cm::poll_timeout) |
//!
//! The caller names connections by [`CommId`]s that are unique on its host, and has them back with [`Event::Gone`].

mod answer;
mod connection;
mod timing;
mod types;

use alloc::boxed::Box;
use alloc::collections::btree_map::{BTreeMap, Entry};
use alloc::collections::{BTreeSet, VecDeque};

use urxe_wire::cm::{CmMad, CommId, Dreq, Ids, Message, Plain, RejReason, Rejected, Rep, Req, SidrReq, SidrStatus};
use urxe_wire::{QKey, Qpn};

use crate::time::Instant;
pub use answer::answer_to_unknown;
use answer::{plain_rej, plain_sidr_rep};
use connection::{Connection, State};
pub use timing::{MAX_RETRIES, RESPONSE_TIMEOUT, SLOWEST};
pub use types::{Disconnect, Ends, Event, Transmit, Verdict, WrongState};

/// The connections of a port: see the [module documentation](self).
#[derive(Debug, Default)]
pub struct Cm {
    connections: BTreeMap<CommId, Connection>,
    /// Connections that peers began, by the peer and its name for them.
    by_peer: BTreeMap<(Ends, CommId), CommId>,
    deadlines: BTreeSet<(Instant, CommId)>,
    transmits: VecDeque<Transmit>,
    events: VecDeque<(CommId, Event)>,
    last_wills: VecDeque<(CommId, Option<Transmit>)>,
}

impl Cm {
    /// Returns a communication manager without connections.
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
                            connection.handle(now, ids, mad);
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
            // Two connections of one name: the deadline of the first would never be taken out.
            Verdict::Take(id) if self.connections.contains_key(&id) => return,
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

    /// Handles the deadlines that have passed.
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

    /// The next connection whose last will has changed: what [`release`](Self::release) would say to its peer now, for
    /// somebody else to say should this end perish.
    pub fn poll_last_will(&mut self) -> Option<(CommId, Option<Transmit>)> {
        self.last_wills.pop_front()
    }

    /// Time at which [`handle_timeout`](Self::handle_timeout) wants to be called.
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
        if connection.last_will_of != Some(connection.state) {
            connection.last_will_of = Some(connection.state);
            let message = connection.last_will(Ids { local: id, remote: connection.peer_id });
            self.last_wills.push_back((id, message.map(|payload| Transmit { ends, payload })));
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
            if let Entry::Occupied(request) = self.by_peer.entry((connection.ends, connection.peer_id))
                && *request.get() == id
            {
                request.remove();
            }
            self.events.push_back((id, Event::Gone));
        } else {
            self.put(id, connection);
        }
        result
    }
}
