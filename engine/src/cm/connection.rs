//! One connection (IBA 12.9.7, the state machines).

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::time::Duration;

use urxe_wire::Qpn;
use urxe_wire::cm::{Apr, CmMad, CommId, Dreq, Ids, Message, Plain, RejReason, Rejected, SidrStatus};
use urxe_wire::mad::MAD_LEN;

use super::answer::{mra, plain_rej, plain_sidr_rep, refuse_path};
use super::timing::{DREQ_RETRIES, FIRST_TRY, MAX_RETRIES, SLOWEST, TIME_WAIT};
use super::types::{Disconnect, Ends, Event, WrongState};
use crate::time::Instant;

/// The states of the specification's machines; MRA only prolongs waiting here.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum State {
    /// Rejected, timed out, or done with.
    Idle,
    ReqSent,
    ReqRcvd,
    RepSent,
    RepRcvd,
    Established,
    DreqSent,
    DreqRcvd,
    TimeWait,
    SidrReqSent,
    SidrReqRcvd,
    /// Kept for requests that come again.
    SidrAnswered,
}

#[derive(Clone, Debug)]
pub(super) struct Connection {
    pub(super) ends: Ends,
    /// The peer's name for it; zero until it is known.
    pub(super) peer_id: CommId,
    pub(super) state: State,
    transaction_id: u64,
    /// The peer's QP, once it is known.
    pub(super) peer_qpn: Option<Qpn>,
    pub(super) service_id: u64,
    pub(super) attribute_modifier: u32,
    /// The caller has released the connection, and gets no more events.
    pub(super) released: bool,
    /// The state in which its [last will](Self::last_will) was last told.
    pub(super) last_will_of: Option<State>,
    pub(super) deadline: Option<Instant>,
    interval: Duration,
    tries_left: u8,
    /// The last REP, RTU or SIDR_REP or whatever is being repeated.
    last: Option<Box<[u8; MAD_LEN]>>,
    pub(super) outbox: Vec<[u8; MAD_LEN]>,
    pub(super) news: Vec<Event>,
}

impl Connection {
    pub(super) fn new(ends: Ends, peer_id: CommId, state: State, transaction_id: u64) -> Self {
        Self {
            ends,
            peer_id,
            state,
            transaction_id,
            peer_qpn: None,
            service_id: 0,
            attribute_modifier: 0,
            released: false,
            last_will_of: None,
            deadline: None,
            interval: FIRST_TRY,
            tries_left: 0,
            last: None,
            outbox: Vec::new(),
            news: Vec::new(),
        }
    }

    pub(super) fn expect(&self, state: State) -> Result<(), WrongState> {
        if self.state == state { Ok(()) } else { Err(WrongState) }
    }

    /// Whether a message comes from the peer of this connection. A REP or REJ may be the first to tell the peer's
    /// name, and comes from an address that the request went to.
    //= spec/connections.md#cm-008
    //# A message about a connection MUST come from its peer, or be ignored.
    pub(super) fn is_with(&self, ends: Ends, message: &Message) -> bool {
        let sender = match message {
            Message::Rep(rep) => rep.ids.local,
            Message::Mra(mra) => mra.ids.local,
            Message::Rej(rej) => rej.ids.local,
            Message::Rtu(plain) | Message::Drep(plain) => plain.ids.local,
            Message::Dreq(dreq) => dreq.ids.local,
            Message::Lap(lap) => lap.ids.local,
            Message::Apr(apr) => apr.ids.local,
            Message::Req(_) | Message::SidrReq(_) | Message::SidrRep(_) => CommId(0),
        };
        self.ends == ends && (self.peer_id == CommId(0) || sender == CommId(0) || sender == self.peer_id)
    }

    pub(super) fn tell(&mut self, event: Event) {
        self.news.push(event);
    }

    fn encode(&self, message: Message, attribute_modifier: u32) -> [u8; MAD_LEN] {
        CmMad { transaction_id: self.transaction_id, attribute_modifier, message }.to_bytes()
    }

    /// Sends a message and remembers it.
    pub(super) fn say(&mut self, message: Message) {
        let bytes = self.encode(message, 0);
        self.outbox.push(bytes);
        self.last = Some(Box::new(bytes));
    }

    /// Sends a message, and again until there is an answer or no hope.
    pub(super) fn send_until_answered(&mut self, now: Instant, message: Message, attribute_modifier: u32) {
        let bytes = self.encode(message, attribute_modifier);
        self.outbox.push(bytes);
        self.last = Some(Box::new(bytes));
        self.interval = FIRST_TRY;
        self.tries_left = if matches!(message, Message::Dreq(_)) { DREQ_RETRIES } else { MAX_RETRIES };
        self.deadline = Some(now + self.interval);
    }

    pub(super) fn stop_sending(&mut self) {
        self.deadline = None;
    }

    /// Enters TIME WAIT.
    pub(super) fn wait(&mut self, now: Instant) {
        self.state = State::TimeWait;
        self.deadline = Some(now + TIME_WAIT);
    }

    /// Releases the connection: the peer is told what it must be.
    pub(super) fn release(&mut self, now: Instant, ids: Ids) {
        self.released = true;
        match self.state {
            State::ReqSent => self.reject(ids, Rejected::None, RejReason::TIMEOUT),
            State::ReqRcvd => self.reject(ids, Rejected::Req, RejReason::CONSUMER_DEFINED),
            State::RepRcvd => self.reject(ids, Rejected::Rep, RejReason::CONSUMER_DEFINED),
            // As the kernel's `cm_destroy_id`: a peer that waits to be asked whether it is ready takes no DREQ.
            State::RepSent => self.reject(ids, Rejected::None, RejReason::CONSUMER_DEFINED),
            State::Established => {
                self.state = State::DreqSent;
                let remote_qpn = self.peer_qpn.unwrap_or_default();
                self.send_until_answered(now, Message::Dreq(Dreq { ids, remote_qpn, private_data: [0; 220] }), 0);
            }
            State::DreqRcvd => {
                self.say(Message::Drep(Plain { ids, private_data: [0; 224] }));
                self.wait(now);
            }
            State::SidrReqRcvd => {
                let rep = plain_sidr_rep(ids.remote, self.service_id, SidrStatus::REJECT);
                self.say(Message::SidrRep(rep));
                self.state = State::Idle;
            }
            State::SidrReqSent | State::SidrAnswered => {
                self.stop_sending();
                self.state = State::Idle;
            }
            //= spec/connections.md#cm-011
            //# A DREQ that is not answered when its program lets go of the connection MUST be sent once more.
            State::DreqSent => self.repeat(),
            State::Idle | State::TimeWait => {}
        }
    }

    fn reject(&mut self, ids: Ids, message: Rejected, reason: RejReason) {
        self.stop_sending();
        self.say(Message::Rej(plain_rej(ids, message, reason)));
        self.state = State::Idle;
    }

    /// The message that [`release`](Self::release) would send now, if any.
    //= spec/connections.md#cm-010
    //# The peer of a process that was killed MUST be told what it would be told if the process had let go of its connections.
    pub(super) fn last_will(&self, ids: Ids) -> Option<[u8; MAD_LEN]> {
        let mut copy = self.clone();
        copy.release(Instant::from_nanos(0), ids);
        copy.outbox.pop()
    }

    fn repeat(&mut self) {
        if let Some(last) = &self.last {
            self.outbox.push(**last);
        }
    }

    pub(super) fn handle_timeout(&mut self, now: Instant) {
        match self.state {
            State::ReqSent | State::RepSent | State::DreqSent | State::SidrReqSent if self.tries_left > 0 => {
                self.tries_left -= 1;
                self.repeat();
                self.interval = (self.interval * 2).min(SLOWEST);
                self.deadline = Some(now + self.interval);
            }
            State::ReqSent | State::RepSent | State::SidrReqSent => {
                self.deadline = None;
                self.state = State::Idle;
                self.tell(Event::Unreachable);
            }
            State::DreqSent => {
                self.tell(Event::Disconnected(Disconnect::Unanswered, Box::new([0; 224])));
                self.wait(now);
            }
            State::TimeWait => {
                self.deadline = None;
                self.state = State::Idle;
                self.tell(Event::TimeWaitExit);
            }
            State::SidrAnswered | State::SidrReqRcvd => {
                self.deadline = None;
                self.state = State::Idle;
            }
            State::Idle | State::ReqRcvd | State::RepRcvd | State::Established | State::DreqRcvd => {
                self.deadline = None;
            }
        }
    }

    /// A request that has come before: the answer is not there yet, or was lost (IBA 12.9.8.3).
    //= spec/connections.md#cm-002
    //# A request that comes again MUST be answered as before, and not be told twice.
    pub(super) fn handle_duplicate(&mut self, ids: Ids, message: &Message) {
        match self.state {
            State::ReqRcvd => {
                let message = mra(ids, Rejected::Req);
                self.outbox.push(self.encode(message, 0));
            }
            State::RepSent | State::SidrAnswered => self.repeat(),
            // A rejection was lost: its last message says so again.
            State::Idle if matches!(message, Message::Req(_)) => self.repeat(),
            _ => {}
        }
    }

    pub(super) fn handle(&mut self, now: Instant, ids: Ids, mad: &CmMad) {
        let message = &mad.message;
        match (message, self.state) {
            (Message::Rep(rep), State::ReqSent) => {
                self.stop_sending();
                self.peer_id = rep.ids.local;
                self.peer_qpn = Some(rep.qpn);
                self.state = State::RepRcvd;
                self.tell(Event::Reply(Box::new(*rep)));
            }
            (Message::Rep(_), State::RepRcvd) => {
                let message = mra(ids, Rejected::Rep);
                self.outbox.push(self.encode(message, 0));
            }
            // Our RTU was lost.
            (Message::Rep(_), State::Established) => {
                let rtu = Message::Rtu(Plain { ids, private_data: [0; 224] });
                self.outbox.push(self.encode(rtu, 0));
            }
            (Message::Rtu(rtu), State::RepSent) => {
                self.stop_sending();
                self.state = State::Established;
                self.tell(Event::Established(Box::new(rtu.private_data)));
            }
            (Message::Mra(mra), State::ReqSent | State::RepSent) => {
                let timeout = Duration::from_nanos(4096 << (mra.service_timeout & 31));
                self.deadline = Some(now + timeout.max(SLOWEST));
            }
            // Established here, while our RTU was lost or is under way.
            (
                Message::Rej(rej),
                State::ReqSent | State::RepSent | State::RepRcvd | State::ReqRcvd | State::Established,
            ) => {
                self.stop_sending();
                self.state = State::Idle;
                self.last = None;
                self.tell(Event::Rejected(Box::new(*rej)));
            }
            // The peer may have ended the connection already when its RTU was lost, or before ours was sent.
            //= spec/connections.md#cm-013
            //# Who is disconnected before it has said that it is ready MUST be told.
            (Message::Dreq(dreq), State::RepSent | State::RepRcvd | State::Established) => {
                self.stop_sending();
                self.state = State::DreqRcvd;
                self.tell(Event::Disconnected(Disconnect::Asked, widen(&dreq.private_data)));
            }
            // Both want to.
            //= spec/connections.md#cm-006
            //# When both sides disconnect at once, each MUST answer the other and end.
            (Message::Dreq(dreq), State::DreqSent) => {
                self.say(Message::Drep(Plain { ids, private_data: [0; 224] }));
                self.tell(Event::Disconnected(Disconnect::Asked, widen(&dreq.private_data)));
                self.wait(now);
            }
            // Also when all is over: the peer has not heard it, and asks again for longer than we wait.
            (Message::Dreq(_), State::TimeWait | State::Idle) => {
                let drep = Message::Drep(Plain { ids, private_data: [0; 224] });
                self.outbox.push(self.encode(drep, 0));
            }
            (Message::Drep(drep), State::DreqSent) => {
                self.tell(Event::Disconnected(Disconnect::Agreed, Box::new(drep.private_data)));
                self.wait(now);
            }
            (Message::SidrRep(rep), State::SidrReqSent) => {
                self.stop_sending();
                self.state = State::Idle;
                self.tell(Event::ServiceReply(Box::new(*rep)));
            }
            // rdma_cm has nobody to ask for an alternate path.
            //= spec/connections.md#cm-017
            //# A request to load an alternate path MUST be answered: it is not supported, or the connection is unknown.
            (Message::Lap(_), State::Established) => {
                self.outbox.push(refuse_path(ids, mad.transaction_id, Apr::NOT_SUPPORTED).to_bytes());
            }
            _ => {}
        }
    }
}

fn widen(private_data: &[u8; 220]) -> Box<[u8; 224]> {
    let mut wide = Box::new([0; 224]);
    wide[..220].copy_from_slice(private_data);
    wide
}
