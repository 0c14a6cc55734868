//! Datagrams that arrive: to whom they go, and what RMPP makes of them.

use urxe_wire::Gid;
use urxe_wire::mad::{MAD_LEN, Mad, Rmpp, has_rmpp};

use super::rmpp::{self, Acked, LINGER, LONGEST, SegmentReceiver, TOTAL_TIME, Taken};
use super::types::{Address, AgentId, Delivery, Refusal, Transmit};
use super::{MEMORY, MadPort, ReceiveKey, Receiving, SendKey, Timer, answer_to_unclaimed};
use crate::time::Instant;

/// Messages of which segments may have arrived; complete ones are remembered among them.
const RECEIVING: usize = 1024;

impl<C> MadPort<C> {
    /// Takes a datagram.
    ///
    /// # Errors
    /// Why it is of no use to anybody. What is to be said about it is among the datagrams to send.
    pub fn handle(&mut self, now: Instant, from: &Address, datagram: &[u8; MAD_LEN]) -> Result<(), Refusal> {
        let header = Mad::of(datagram).ok_or(Refusal::Malformed)?;
        let Some(agent) = self.agents.addressee(&header, datagram) else {
            if let Some(payload) = answer_to_unclaimed(datagram) {
                self.transmits.push_back(Transmit { to: *from, payload });
            }
            return Err(Refusal::NoAgent);
        };
        let rmpp = Rmpp::of(datagram);
        let is_rmpp = has_rmpp(header.class) && rmpp.is_active();
        if !is_rmpp {
            return self.deliver(agent, &header, from, datagram.to_vec());
        }
        if self.agents.has_rmpp(agent) == Some(true) {
            return self.handle_rmpp(now, agent, &header, from, datagram, &rmpp);
        }
        // The program does RMPP itself: segments and ACKs are its own business.
        match self.deliver(agent, &header, from, datagram.to_vec()) {
            Err(Refusal::NoRequest) => {
                self.give(agent, from, datagram.to_vec());
                Ok(())
            }
            done => done,
        }
    }

    fn give(&mut self, agent: AgentId, from: &Address, message: alloc::vec::Vec<u8>) {
        self.deliveries.push_back((agent, Delivery::Received { from: *from, message }));
    }

    /// Gives a whole message to its agent. A response ends what waits for it. Its sender is not compared: a peer may answer
    /// from another of its GIDs, as a default GID stands for any address.
    fn deliver(
        &mut self,
        agent: AgentId,
        header: &Mad,
        from: &Address,
        message: alloc::vec::Vec<u8>,
    ) -> Result<(), Refusal> {
        if header.is_response() {
            let request = SendKey {
                agent,
                transaction_id: header.transaction_id,
                class: header.class,
                is_response: false,
                remote: Gid::UNSPECIFIED,
            };
            self.take_sending(&request).ok_or(Refusal::NoRequest)?;
        }
        self.give(agent, from, message);
        Ok(())
    }

    fn reply(&mut self, to: &Address, payload: [u8; MAD_LEN]) {
        self.transmits.push_back(Transmit { to: *to, payload });
    }

    /// Says that a packet breaks the rules.
    fn abort(&mut self, to: &Address, about: &[u8; MAD_LEN], status: u8) -> Result<(), Refusal> {
        self.reply(to, rmpp::control(about, Rmpp::ABORT, status, 0, 0));
        Err(Refusal::Rmpp)
    }

    /// `ib_process_rmpp_recv_wc` of the kernel's mad_rmpp.c.
    fn handle_rmpp(
        &mut self,
        now: Instant,
        agent: AgentId,
        header: &Mad,
        from: &Address,
        datagram: &[u8; MAD_LEN],
        rmpp: &Rmpp,
    ) -> Result<(), Refusal> {
        if rmpp.version != Rmpp::VERSION {
            self.give_up_sending(agent, header, from);
            return self.abort(from, datagram, Rmpp::BAD_VERSION);
        }
        match rmpp.kind {
            Rmpp::DATA if rmpp.status != 0 => self.abort(from, datagram, Rmpp::BAD_STATUS),
            Rmpp::DATA if rmpp.segment == 0 || (rmpp.segment == 1) != rmpp.is_first() => {
                self.abort(from, datagram, Rmpp::BAD_SEGMENT)
            }
            Rmpp::DATA => self.take_segment(now, agent, header, from, datagram, rmpp),
            Rmpp::ACK => self.take_ack(now, agent, header, from, datagram, rmpp),
            Rmpp::STOP if rmpp.status == Rmpp::RESOURCES_EXHAUSTED => {
                self.give_up_sending(agent, header, from);
                Ok(())
            }
            // The largest status of an ABORT is "unspecified".
            Rmpp::ABORT if matches!(rmpp.status, Rmpp::TOO_LONG..=127) => {
                self.give_up_sending(agent, header, from);
                Ok(())
            }
            Rmpp::STOP | Rmpp::ABORT => {
                self.give_up_sending(agent, header, from);
                self.abort(from, datagram, Rmpp::BAD_STATUS)
            }
            _ => {
                self.give_up_sending(agent, header, from);
                self.abort(from, datagram, Rmpp::BAD_TYPE)
            }
        }
    }

    /// The message in segments that an ACK, STOP or ABORT is about: these have the response bit that it has not.
    fn sending_of(&self, agent: AgentId, header: &Mad, from: &Address) -> Option<SendKey> {
        let is_response = header.method & Mad::RESPONSE == 0;
        let remote = if is_response { from.remote } else { Gid::UNSPECIFIED };
        let key = SendKey { agent, transaction_id: header.transaction_id, class: header.class, is_response, remote };
        let exact = self.sending.contains_key(&key).then_some(key);
        // From another GID of the same peer, if there is one message that it can be about, and no other GID has acknowledged
        // any of that.
        let only = || {
            let (first, last) =
                (SendKey { remote: Gid::UNSPECIFIED, ..key }, SendKey { remote: Gid::new([0xFF; 16]), ..key });
            let mut candidates = self.sending.range(first..=last);
            let (key, sending) = candidates.next().filter(|_| candidates.next().is_none())?;
            sending.acked_by.is_none_or(|gid| gid == from.remote).then_some(*key)
        };
        exact.or_else(only).filter(|key| self.sending.get(key).is_some_and(|sending| sending.segments.is_some()))
    }

    /// The peer takes no more segments: as in the kernel, nobody is told (`abort_send` of its mad_rmpp.c).
    fn give_up_sending(&mut self, agent: AgentId, header: &Mad, from: &Address) {
        if let Some(key) = self.sending_of(agent, header, from)
            && !self
                .sending
                .get(&key)
                .and_then(|sending| sending.segments.as_ref())
                .is_some_and(|one| one.is_complete())
        {
            self.take_sending(&key);
        }
    }

    fn take_ack(
        &mut self,
        now: Instant,
        agent: AgentId,
        header: &Mad,
        from: &Address,
        datagram: &[u8; MAD_LEN],
        ack: &Rmpp,
    ) -> Result<(), Refusal> {
        let Some(key) = self.sending_of(agent, header, from) else {
            // The requester turns the direction (IBA 13.6.6.3); the response needs no invitation here.
            return if ack.segment == 0 { Ok(()) } else { Err(Refusal::NoRequest) };
        };
        let Some(sending) = self.sending.get_mut(&key) else { return Err(Refusal::NoRequest) };
        let Some(segments) = &mut sending.segments else { return Err(Refusal::NoRequest) };
        let was_complete = segments.is_complete();
        let timeout = sending.outgoing.timeout;
        match segments.acknowledge(ack) {
            Acked::Old => Ok(()),
            Acked::Abort(status) => {
                self.give_up_sending(agent, header, from);
                self.abort(from, datagram, status)
            }
            Acked::Window => {
                self.send_segments(now, &key);
                Ok(())
            }
            Acked::Progress => {
                sending.acked_by = Some(from.remote);
                sending.retries_left = sending.outgoing.retries;
                sending.patience_end = None;
                self.send_segments(now, &key);
                Ok(())
            }
            Acked::Complete => {
                sending.acked_by = Some(from.remote);
                let Some(timeout) = timeout else {
                    self.take_sending(&key);
                    return Ok(());
                };
                if !was_complete {
                    sending.pauses = false;
                    self.await_until(&key, now + timeout);
                }
                // The turn is the responder's (IBA 13.6.6.3 "direction switch").
                self.reply(from, rmpp::control(datagram, Rmpp::ACK, 0, 0, 1));
                Ok(())
            }
        }
    }

    fn take_segment(
        &mut self,
        now: Instant,
        agent: AgentId,
        header: &Mad,
        from: &Address,
        datagram: &[u8; MAD_LEN],
        rmpp: &Rmpp,
    ) -> Result<(), Refusal> {
        let key = ReceiveKey {
            agent,
            remote: from.remote,
            qpn: from.qpn,
            transaction_id: header.transaction_id,
            class: header.class,
            version: header.class_version,
            method: header.method,
        };
        if !self.receiving.contains_key(&key) {
            if !rmpp.is_first() {
                return Err(Refusal::Rmpp);
            }
            if !self.has_room() {
                self.reply(from, rmpp::control(datagram, Rmpp::STOP, Rmpp::RESOURCES_EXHAUSTED, 0, 0));
                return Err(Refusal::Rmpp);
            }
            let (deadline, segments) = (now + TOTAL_TIME, SegmentReceiver::new(header.class));
            self.deadlines.insert((deadline, Timer::Receive(key)));
            self.receiving.insert(key, Receiving { from: *from, first: *datagram, segments, deadline });
        }
        let Some(receiving) = self.receiving.get_mut(&key) else { return Err(Refusal::Rmpp) };
        let before = receiving.segments.memory();
        let taken = receiving.segments.take(datagram, rmpp.segment);
        self.memory = self.memory + receiving.segments.memory() - before;
        let (segment, window) = (receiving.segments.segment, receiving.segments.window);
        match taken {
            Taken::Quietly if self.memory <= MEMORY => Ok(()),
            Taken::Ack if self.memory <= MEMORY => {
                self.reply(from, rmpp::control(datagram, Rmpp::ACK, 0, segment, window));
                Ok(())
            }
            Taken::Complete(message) => {
                self.reply(from, rmpp::control(datagram, Rmpp::ACK, 0, segment, window));
                let old = receiving_deadline(&mut self.receiving, &key, now + LINGER);
                self.deadlines.remove(&(old, Timer::Receive(key)));
                self.deadlines.insert((now + LINGER, Timer::Receive(key)));
                self.deliver(agent, header, from, message)
            }
            Taken::TooLong | Taken::Quietly | Taken::Ack => {
                self.take_receiving(&key);
                self.reply(from, rmpp::control(datagram, Rmpp::STOP, Rmpp::RESOURCES_EXHAUSTED, 0, 0));
                Err(Refusal::Rmpp)
            }
        }
    }

    /// Makes room for another message in segments: complete ones, which are kept for copies of their segments only, go first.
    fn has_room(&mut self) -> bool {
        if self.receiving.len() >= RECEIVING {
            let complete = self.receiving.iter().find(|(_, receiving)| receiving.segments.is_complete);
            let Some(key) = complete.map(|(key, _)| *key) else { return false };
            self.take_receiving(&key);
        }
        self.memory + LONGEST / 64 <= MEMORY
    }
}

/// Sets a message's deadline, and returns the one it had.
fn receiving_deadline(
    receiving: &mut alloc::collections::BTreeMap<ReceiveKey, Receiving>,
    key: &ReceiveKey,
    at: Instant,
) -> Instant {
    receiving.get_mut(key).map_or(at, |receiving| core::mem::replace(&mut receiving.deadline, at))
}
