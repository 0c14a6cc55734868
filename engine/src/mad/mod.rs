//! Management datagrams (MADs), for agents: transactions with timeout and retries, and RMPP.
//!
//! A [`MadPort`] is what the kernel's `ib_mad` keeps for a port: agents send messages and take those that their class,
//! version, vendor and method claim, and responses to their own. Sans-IO, as the rest of this crate:
//!
//! | | |
//! |---|---|
//! | commands | [`MadPort::register`], [`unregister`](MadPort::unregister), [`send`](MadPort::send) |
//! | input | [`MadPort::handle`], [`handle_timeout`](MadPort::handle_timeout) |
//! | output | [`MadPort::poll_transmit`], [`poll_delivery`](MadPort::poll_delivery), [`poll_timeout`](MadPort::poll_timeout) |
//!
//! [`perf`] answers for a port's counters. A RoCE port has neither subnet management (QP0) nor subnet administration; those of
//! a port of InfiniBand are in [`crate::subnet`].

mod agents;
pub mod perf;
mod reassembly;
mod receive;
mod rmpp;
mod types;

use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::vec::Vec;
use core::time::Duration;

use urxe_wire::Gid;
use urxe_wire::mad::{MAD_LEN, Mad, Rmpp, data_offset, has_rmpp};

use crate::time::Instant;
use agents::Agents;
use reassembly::{GivenUp, Reassembly};
use rmpp::{ACK_TIMEOUT, PAUSE, SegmentSender};
pub use types::{Address, AgentId, Claim, Delivery, Outgoing, Refusal, RegisterError, SendError, Transmit};

/// Bytes of messages that wait for responses or ACKs, of all agents together. Agents alone make these grow; what peers send
/// has room of its own.
const MEMORY: usize = 64 << 20;

/// Name of a message that was sent.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct SendKey {
    agent: AgentId,
    transaction_id: u64,
    class: u8,
    is_response: bool,
    /// Responses with one id may go to several peers.
    remote: Gid,
}

impl SendKey {
    /// Name of an agent's request, by the header of the request or of its response.
    const fn of_request(agent: AgentId, header: &Mad) -> Self {
        let Mad { transaction_id, class, .. } = *header;
        Self { agent, transaction_id, class, is_response: false, remote: Gid::UNSPECIFIED }
    }
}

/// A message that waits for its response, or for ACKs of its segments.
#[derive(Debug)]
struct Sending<C> {
    outgoing: Outgoing<C>,
    /// The only GID whose response counts; `None` for any.
    responder: Option<Gid>,
    retries_left: u32,
    segments: Option<SegmentSender>,
    /// GID that ACKs of the segments come from.
    acked_by: Option<Gid>,
    /// End of the time for an ACK of more segments, once they have left: ACKs that say nothing new do not move it.
    ack_deadline: Option<Instant>,
    deadline: Instant,
    /// The deadline is the end of a pause between segments, and not of the time for an answer.
    pauses: bool,
}

/// Agents of a port, and what they wait for: see the [module documentation](self).
#[derive(Debug)]
pub struct MadPort<C> {
    agents: Agents,
    compares_responders: bool,
    sending: BTreeMap<SendKey, Sending<C>>,
    deadlines: BTreeSet<(Instant, SendKey)>,
    memory: usize,
    reassembly: Reassembly,
    transmits: VecDeque<Transmit>,
    deliveries: VecDeque<(AgentId, Delivery<C>)>,
}

impl<C> Default for MadPort<C> {
    fn default() -> Self {
        Self {
            agents: Agents::default(),
            compares_responders: false,
            sending: BTreeMap::new(),
            deadlines: BTreeSet::new(),
            memory: 0,
            reassembly: Reassembly::default(),
            transmits: VecDeque::new(),
            deliveries: VecDeque::new(),
        }
    }
}

/// Answer to a `Get()` or `Set()` that no agent takes: not supported (`generate_unmatched_resp` of the kernel's mad.c).
#[must_use]
pub fn answer_to_unclaimed(datagram: &[u8; MAD_LEN]) -> Option<[u8; MAD_LEN]> {
    let mut header = Mad::of(datagram)?;
    if !matches!(header.method, Mad::METHOD_GET | Mad::METHOD_SET) {
        return None;
    }
    header.method = Mad::METHOD_GET | Mad::RESPONSE;
    header.status = Mad::STATUS_BAD_METHOD_ATTRIBUTE;
    let mut answer = *datagram;
    header.put(&mut answer);
    Some(answer)
}

impl<C> MadPort<C> {
    /// A port without agents.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether an agent takes a datagram with this header.
    #[must_use]
    pub fn takes(&self, header: &Mad, datagram: &[u8; MAD_LEN]) -> bool {
        self.agents.addressee(header, datagram).is_some()
    }

    /// Number of agents.
    #[must_use]
    pub fn agents(&self) -> usize {
        self.agents.len()
    }

    /// Sets whether a response counts only if it comes from where its request went. Without, a peer may respond from another of its
    /// GIDs, as a default GID stands for any address. Requests that wait already are not affected.
    pub const fn compare_responders(&mut self, compares: bool) {
        self.compares_responders = compares;
    }

    /// Names the GID that the request in this datagram really went to, where its address stands for another node: its
    /// response is to come from there.
    pub fn expect_response(&mut self, datagram: &[u8; MAD_LEN], responder: Gid) {
        let Some(header) = Mad::of(datagram).filter(|header| !header.is_response()) else { return };
        let agent = AgentId::of(header.transaction_id);
        if let Some(sending) = self.sending.get_mut(&SendKey::of_request(agent, &header)) {
            sending.responder = sending.responder.map(|_| responder);
        }
    }

    /// Bytes of messages that wait.
    #[must_use]
    pub const fn memory(&self) -> usize {
        self.memory + self.reassembly.memory()
    }

    /// Makes an agent. `does_rmpp`: messages of classes with RMPP are cut and put together here.
    ///
    /// # Errors
    /// If the claim is out of range, or another agent's.
    pub fn register(&mut self, id: AgentId, claim: Option<Claim>, does_rmpp: bool) -> Result<(), RegisterError> {
        self.agents.register(id, claim, does_rmpp)
    }

    /// Whether the agent is registered.
    #[must_use]
    pub fn has_agent(&self, id: AgentId) -> bool {
        self.agents.has_rmpp(id).is_some()
    }

    /// Ends an agent, and all that it waits for. Returns whether there was one.
    pub fn unregister(&mut self, id: AgentId) -> bool {
        let sending: Vec<_> = self.sending.keys().filter(|key| key.agent == id).copied().collect();
        for key in sending {
            self.take_sending(&key);
        }
        self.reassembly.unregister(id);
        self.deliveries.retain(|(agent, _)| *agent != id);
        self.agents.unregister(id)
    }

    /// Sends an agent's message. A request gets the agent's id as the upper half of its transaction id.
    ///
    /// # Errors
    /// If the message does not fit the agent or its class, or repeats one that waits.
    pub fn send(&mut self, now: Instant, agent: AgentId, mut outgoing: Outgoing<C>) -> Result<(), SendError> {
        let does_rmpp = self.agents.has_rmpp(agent).ok_or(SendError::NoAgent)?;
        let header = outgoing.message.first_chunk().and_then(Mad::parse).ok_or(SendError::Length)?;
        let length = outgoing.message.len();
        if length < data_offset(header.class) {
            return Err(SendError::Length);
        }
        // Classes without RMPP have plain datagrams, whoever sends them (`ib_umad_write` of the kernel's user_mad.c).
        let does_rmpp = does_rmpp && has_rmpp(header.class);
        let is_response = header.is_response();
        let mut transaction_id = header.transaction_id;
        if !is_response {
            transaction_id = u64::from(agent.0) << 32 | transaction_id & 0xFFFF_FFFF;
            Mad::put_transaction_id(&mut outgoing.message, transaction_id);
        }
        let first = first_datagram(&outgoing.message);
        let rmpp = Rmpp::of(&first);
        // The rest of the header is written here, whatever the program says (`alloc_send_rmpp_list` of the kernel's mad.c).
        let is_cut = does_rmpp && rmpp.is_active();
        if !is_cut && length > MAD_LEN {
            return Err(SendError::Length);
        }
        let remote = if is_response { outgoing.to.remote } else { Gid::UNSPECIFIED };
        let key = SendKey { agent, transaction_id, class: header.class, is_response, remote };
        let is_own_rmpp = !does_rmpp && has_rmpp(header.class) && rmpp.is_active();
        if self.sending.contains_key(&key) {
            if !is_own_rmpp {
                return Err(SendError::Duplicate);
            }
            // Of a program that does RMPP itself, all segments have one id.
            self.take_sending(&key);
        }
        if self.memory.saturating_add(length) > MEMORY {
            return Err(SendError::Memory);
        }
        if !is_cut {
            self.transmit(&outgoing.to, first);
            let Some(timeout) = outgoing.timeout else { return Ok(()) };
            self.put_sending(key, now + timeout, outgoing, None);
            return Ok(());
        }
        let segments = SegmentSender::new(&outgoing.message);
        self.put_sending(key, now, outgoing, Some(segments));
        self.send_segments(now, &key);
        Ok(())
    }

    /// Handles the deadlines that have passed.
    pub fn handle_timeout(&mut self, now: Instant) {
        while let Some(&(at, key)) = self.deadlines.first()
            && at <= now
        {
            self.retry(now, &key);
        }
        while let Some(expired) = self.reassembly.expired(now) {
            if let Some(GivenUp { from, first }) = expired {
                self.transmit(&from, rmpp::control(&first, Rmpp::ABORT, Rmpp::TOO_LONG, 0, 0));
            }
        }
    }

    /// The next datagram to send.
    pub fn poll_transmit(&mut self) -> Option<Transmit> {
        self.transmits.pop_front()
    }

    /// The next thing for an agent.
    pub fn poll_delivery(&mut self) -> Option<(AgentId, Delivery<C>)> {
        self.deliveries.pop_front()
    }

    /// Time at which [`handle_timeout`](Self::handle_timeout) wants to be called.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        let sending = self.deadlines.first().map(|(at, _)| *at);
        sending.into_iter().chain(self.reassembly.poll_timeout()).min()
    }

    fn transmit(&mut self, to: &Address, payload: [u8; MAD_LEN]) {
        self.transmits.push_back(Transmit { to: *to, payload });
    }

    fn put_sending(&mut self, key: SendKey, deadline: Instant, outgoing: Outgoing<C>, segments: Option<SegmentSender>) {
        self.memory += outgoing.message.len();
        self.deadlines.insert((deadline, key));
        let retries_left = outgoing.retries;
        let responder = self.compares_responders.then_some(outgoing.to.remote);
        let (acked_by, ack_deadline, pauses) = (None, None, false);
        let sending = Sending { outgoing, responder, retries_left, segments, acked_by, ack_deadline, deadline, pauses };
        self.sending.insert(key, sending);
    }

    fn take_sending(&mut self, key: &SendKey) -> Option<Sending<C>> {
        let sending = self.sending.remove(key)?;
        self.memory -= sending.outgoing.message.len();
        self.deadlines.remove(&(sending.deadline, *key));
        Some(sending)
    }

    /// Moves the deadline of a message.
    fn await_until(&mut self, key: &SendKey, at: Instant) {
        if let Some(sending) = self.sending.get_mut(key) {
            self.deadlines.remove(&(sending.deadline, *key));
            sending.deadline = at;
            self.deadlines.insert((at, *key));
        }
    }

    /// Sends segments of the window, and waits for an ACK of them.
    fn send_segments(&mut self, now: Instant, key: &SendKey) {
        let Some(sending) = self.sending.get_mut(key) else { return };
        let Some(segments) = &mut sending.segments else { return };
        let to = sending.outgoing.to;
        let burst = segments.burst(&sending.outgoing.message);
        self.transmits.extend(burst.into_iter().map(|payload| Transmit { to, payload }));
        sending.pauses = segments.has_more();
        let timeout = sending.outgoing.timeout.map_or(ACK_TIMEOUT, |timeout| timeout.min(ACK_TIMEOUT));
        let until = if sending.pauses { now + PAUSE } else { *sending.ack_deadline.get_or_insert(now + timeout) };
        self.await_until(key, until);
    }

    /// The time for an answer is over: sends a message again, or gives up (`timeout_sends` and `retry_send` of the kernel's
    /// mad.c).
    fn retry(&mut self, now: Instant, key: &SendKey) {
        let Some(sending) = self.sending.get_mut(key) else { return };
        if sending.pauses {
            return self.send_segments(now, key);
        }
        // A message that has arrived whole is not sent again: its response is on the way or will not come.
        let has_arrived = sending.segments.as_ref().is_some_and(SegmentSender::is_complete);
        if sending.retries_left == 0 || has_arrived {
            let Some(Sending { outgoing, .. }) = self.take_sending(key) else { return };
            let header = outgoing.message.first_chunk().copied().unwrap_or([0; Mad::LEN]);
            self.deliveries.push_back((key.agent, Delivery::TimedOut { context: outgoing.context, header }));
            return;
        }
        sending.retries_left -= 1;
        if let Some(segments) = &mut sending.segments {
            segments.go_back();
            sending.ack_deadline = None;
            return self.send_segments(now, key);
        }
        let (to, timeout) = (sending.outgoing.to, sending.outgoing.timeout.unwrap_or(Duration::ZERO));
        let payload = first_datagram(&sending.outgoing.message);
        self.transmit(&to, payload);
        self.await_until(key, now + timeout);
    }
}

/// The first bytes of a message, with zeros behind a short one.
fn first_datagram(message: &[u8]) -> [u8; MAD_LEN] {
    let mut datagram = [0; MAD_LEN];
    for (to, from) in datagram.iter_mut().zip(message) {
        *to = *from;
    }
    datagram
}

#[cfg(test)]
mod tests;
