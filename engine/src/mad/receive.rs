//! Datagrams that arrive: to whom they go, and what RMPP makes of them.

use alloc::vec::Vec;

use urxe_wire::Gid;
use urxe_wire::mad::{MAD_LEN, Mad, Rmpp, has_rmpp};

use super::reassembly::{GivenUp, Reaction, ReceiveKey};
use super::rmpp::{self, Acked};
use super::types::{Address, AgentId, Delivery, Refusal};
use super::{MadPort, SendKey, Sending, answer_to_unclaimed};
use crate::time::Instant;

/// Sender of an ACK, STOP or ABORT, and the message that it is about.
struct Control {
    key: SendKey,
    /// The sender is where the message goes to, or has acknowledged segments of it. Others may be another GID of the same
    /// peer, and end nothing.
    is_from_peer: bool,
}

impl<C> MadPort<C> {
    /// Takes a datagram.
    ///
    /// # Errors
    /// Why it is of no use to anybody. What is to be said about it is among the datagrams to send.
    pub fn handle(&mut self, now: Instant, from: &Address, datagram: &[u8; MAD_LEN]) -> Result<(), Refusal> {
        let header = Mad::of(datagram).ok_or(Refusal::Malformed)?;
        let Some(agent) = self.agents.addressee(&header, datagram) else {
            if let Some(payload) = answer_to_unclaimed(datagram) {
                self.transmit(from, payload);
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

    fn give(&mut self, agent: AgentId, from: &Address, message: Vec<u8>) {
        self.deliveries.push_back((agent, Delivery::Received { from: *from, message }));
    }

    /// Gives a whole message to its agent. A response ends what waits for it.
    fn deliver(&mut self, agent: AgentId, header: &Mad, from: &Address, message: Vec<u8>) -> Result<(), Refusal> {
        if header.is_response() {
            let request = SendKey::of_request(agent, header);
            let sending = self.sending.get(&request).ok_or(Refusal::NoRequest)?;
            if sending.responder.is_some_and(|responder| responder != from.remote) {
                return Err(Refusal::NoRequest);
            }
            self.take_sending(&request);
        }
        self.give(agent, from, message);
        Ok(())
    }

    /// Says that a packet breaks the rules.
    fn abort(&mut self, to: &Address, about: &[u8; MAD_LEN], status: u8) -> Result<(), Refusal> {
        self.transmit(to, rmpp::control(about, Rmpp::ABORT, status, 0, 0));
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
            Rmpp::DATA => self.take_segment(now, agent, header, from, datagram),
            Rmpp::ACK => self.take_ack(now, agent, header, from, datagram, rmpp),
            kind => {
                self.give_up_sending(agent, header, from);
                match (kind, rmpp.status) {
                    // The largest status of an ABORT is "unspecified".
                    (Rmpp::STOP, Rmpp::RESOURCES_EXHAUSTED) | (Rmpp::ABORT, Rmpp::TOO_LONG..=127) => Ok(()),
                    (Rmpp::STOP | Rmpp::ABORT, _) => self.abort(from, datagram, Rmpp::BAD_STATUS),
                    _ => self.abort(from, datagram, Rmpp::BAD_TYPE),
                }
            }
        }
    }

    /// The message in segments that an ACK, STOP or ABORT is about: these have the response bit that it has not.
    fn sending_of(&self, agent: AgentId, header: &Mad, from: &Address) -> Option<Control> {
        let key = SendKey {
            agent,
            transaction_id: header.transaction_id,
            class: header.class,
            is_response: header.method & Mad::RESPONSE == 0,
            remote: Gid::UNSPECIFIED,
        };
        let candidates = || self.sending.range(key..=SendKey { remote: Gid::new([0xFF; 16]), ..key });
        let that =
            |is_peer: fn(&Sending<C>, Gid) -> bool| candidates().find(|(_, sending)| is_peer(sending, from.remote));
        let of_peer = that(|sending, gid| sending.outgoing.to.remote == gid)
            .or_else(|| that(|sending, gid| sending.acked_by == Some(gid)));
        // From another GID of the same peer, if there is one message that it can be about, and no GID has acknowledged any of
        // that.
        let only = || {
            let mut candidates = candidates();
            candidates.next().filter(|(_, sending)| candidates.next().is_none() && sending.acked_by.is_none())
        };
        let is_from_peer = of_peer.is_some();
        let (key, _) = of_peer.or_else(only).filter(|(_, sending)| sending.segments.is_some())?;
        Some(Control { key: *key, is_from_peer })
    }

    /// The peer takes no more segments: as in the kernel, nobody is told (`abort_send` of its mad_rmpp.c).
    fn give_up_sending(&mut self, agent: AgentId, header: &Mad, from: &Address) {
        let control = self.sending_of(agent, header, from).filter(|control| control.is_from_peer);
        let Some(Control { key, .. }) = control else { return };
        let segments = self.sending.get(&key).and_then(|sending| sending.segments.as_ref());
        if segments.is_some_and(|segments| !segments.is_complete()) {
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
        let Some(Control { key, .. }) = self.sending_of(agent, header, from) else {
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
                sending.ack_deadline = None;
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
                self.transmit(from, rmpp::control(datagram, Rmpp::ACK, 0, 0, 1));
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
    ) -> Result<(), Refusal> {
        let key = ReceiveKey {
            remote: from.remote,
            agent,
            qpn: from.qpn,
            transaction_id: header.transaction_id,
            class: header.class,
            version: header.class_version,
            method: header.method,
        };
        let mut given_up = Vec::new();
        let reaction = self.reassembly.take(now, key, from, datagram, &mut given_up);
        let stop = |about: &[u8; MAD_LEN]| rmpp::control(about, Rmpp::STOP, Rmpp::RESOURCES_EXHAUSTED, 0, 0);
        for GivenUp { from, first } in given_up {
            self.transmit(&from, stop(&first));
        }
        match reaction {
            Reaction::Quiet => Ok(()),
            Reaction::Ack { segment, window, message } => {
                self.transmit(from, rmpp::control(datagram, Rmpp::ACK, 0, segment, window));
                message.map_or(Ok(()), |message| self.deliver(agent, header, from, message))
            }
            Reaction::NoRoom => {
                self.transmit(from, stop(datagram));
                Err(Refusal::Rmpp)
            }
            Reaction::NotBegun => Err(Refusal::Rmpp),
        }
    }
}
