//! Messages by a seed, one after the other, until the other end is no more.

use std::time::{Duration, Instant as Moment};

use urxe_faults::{Dictionary, Mutation};
use urxe_wire::{Ext, Operation, Psn, Syndrome, Transport};

use crate::Error;
use crate::arrived::hex;
use crate::handshake::Handshake;
use crate::peer::Peer;

/// Part of packets that changes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Aim {
    /// Messages: packets are well-formed.
    Payload,
    /// All bytes of a packet behind its destination QP, and its opcode.
    Headers,
}

/// Settings of a campaign.
#[derive(Clone, Debug)]
pub struct Campaign {
    /// Number of executions.
    pub executions: u64,
    /// Decides everything.
    pub seed: u64,
    /// Part that changes.
    pub aim: Aim,
    /// Well-formed messages, from which others are made.
    pub corpus: Vec<Vec<u8>>,
    /// Texts that mean something to the other end.
    pub dictionary: Dictionary,
    /// Most bytes of a message.
    pub most: usize,
    /// Executions of one connection.
    pub per_connection: u64,
    /// Longest time for an answer.
    pub timeout: Duration,
}

/// Result of a campaign.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Executions.
    pub executions: u64,
    /// Connections.
    pub connections: u32,
    /// Messages that were acknowledged.
    pub acks: u64,
    /// Messages that were refused.
    pub naks: u64,
    /// Messages that nobody answered while the other end lived on, or that need no answer.
    pub unanswered: u64,
    /// Reason why the other end is thought to be no more, and what its last connection was sent, oldest first.
    pub found: Option<(String, Vec<Sent>)>,
}

/// Message or packet of an execution.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Sent {
    /// A message by SEND.
    Message(Vec<u8>),
    /// One packet, from the BTH to the padding.
    Packet {
        /// Bytes, with the changes.
        bytes: Vec<u8>,
        /// PSN of the connection's first request.
        first_psn: Psn,
    },
}

/// Outcome of an execution.
enum Outcome {
    Acked,
    Refused,
    Unanswered,
    Gone,
}

impl Campaign {
    /// The message or packet of an execution.
    fn message(&self, execution: u64) -> Vec<u8> {
        let index = usize::try_from(execution % self.corpus.len().max(1) as u64).unwrap_or(0);
        let mut message = self.corpus.get(index).cloned().unwrap_or_default();
        // The corpus comes first, as it is.
        if execution >= self.corpus.len() as u64 && self.aim == Aim::Payload {
            self.mutation(execution).edit_message(&mut message, self.most);
        }
        message
    }

    const fn mutation(&self, execution: u64) -> Mutation<'_> {
        Mutation::new(
            &self.dictionary,
            self.seed.wrapping_mul(0x9E37_79B9_7F4A_7C15).wrapping_add(execution.wrapping_mul(0x1_0001)),
        )
    }

    /// Runs until all executions are done or the other end is no more.
    ///
    /// # Errors
    /// [`Error`]: the first connection cannot be made, or the system refuses something.
    pub fn run(&self, peer: &mut Peer<'_>, handshake: Handshake) -> Result<Report, Error> {
        let mut report = Report::default();
        let mut log = Vec::new();
        let mut left = 0;
        while report.executions < self.executions {
            if left == 0 {
                if let Err(error) = self.connect(peer, handshake, report.connections) {
                    match error {
                        Error::Refused(why) | Error::Silent(_, why) if report.connections > 0 => {
                            report.found = Some((format!("no other connection can be made: {why}"), log));
                            return Ok(report);
                        }
                        error => return Err(error),
                    }
                }
                report.connections += 1;
                left = self.per_connection;
                log.clear();
            }
            let message = self.message(report.executions);
            let (outcome, sent) = self.execute(peer, report.executions, message)?;
            log.push(sent);
            report.executions += 1;
            left -= 1;
            match outcome {
                Outcome::Acked => report.acks += 1,
                Outcome::Refused => (report.naks, left) = (report.naks + 1, 0),
                Outcome::Unanswered => report.unanswered += 1,
                Outcome::Gone => left = 0,
            }
            if left == 0 {
                peer.disconnect()?;
            }
        }
        // Whether the last ones ended it.
        if let Err(error) = self.connect(peer, handshake, report.connections)
            && report.connections > 0
        {
            report.found = Some((format!("no other connection can be made: {error}"), log));
            return Ok(report);
        }
        peer.disconnect()?;
        Ok(report)
    }

    /// Connects; one end may need time to be ready for the next connection.
    fn connect(&self, peer: &mut Peer<'_>, handshake: Handshake, count: u32) -> Result<(), Error> {
        const TRIES: u32 = 3;
        let mut tries = if count == 0 { TRIES } else { 0 };
        loop {
            match peer.shake(handshake, count, self.timeout) {
                Err(Error::Refused(_)) if tries < TRIES => {
                    tries += 1;
                    std::thread::sleep(self.timeout / 10);
                }
                result => return result,
            }
        }
    }

    fn execute(&self, peer: &mut Peer<'_>, execution: u64, message: Vec<u8>) -> Result<(Outcome, Sent), Error> {
        let sent = match self.aim {
            Aim::Payload => Sent::Message(message),
            Aim::Headers => {
                let bytes = self.packet(peer, execution, &message)?;
                Sent::Packet { bytes, first_psn: peer.first_psn }
            }
        };
        Ok((self.send(peer, &sent)?, sent))
    }

    /// A packet with changes of an execution, for the queue pair that it would be for without.
    fn packet(&self, peer: &Peer<'_>, execution: u64, message: &[u8]) -> Result<Vec<u8>, Error> {
        let mut packet = peer.build(Operation::SendOnly, Ext::None, peer.psn, message)?;
        let (mut opcode, qpn): ([u8; 2], _) = ([packet[0], packet[1]], packet[4..8].to_vec());
        self.mutation(execution).edit(&mut opcode);
        self.mutation(execution ^ 1 << 63).edit(&mut packet[2..]);
        packet[..2].copy_from_slice(&opcode);
        packet[4..8].copy_from_slice(&qpn);
        Ok(packet)
    }

    fn send(&self, peer: &mut Peer<'_>, sent: &Sent) -> Result<Outcome, Error> {
        // Most is answered at once; a receiver that is not ready, and a lost packet, cost another try.
        const TRIES: u32 = 4;
        let before = peer.psn;
        let (tries, timeout, without_answer) = match sent {
            Sent::Message(_) => (TRIES, self.timeout / TRIES, Outcome::Gone),
            Sent::Packet { .. } => (1, HEADERS_TIMEOUT, Outcome::Unanswered),
        };
        for _ in 0..tries {
            peer.psn = before;
            match sent {
                Sent::Message(message) => peer.send_message(message)?,
                Sent::Packet { bytes, .. } => {
                    peer.psn = peer.psn.next();
                    peer.send(bytes, 0)?;
                }
            }
            let last = peer.psn.sub(1);
            if peer.settings.transport != Transport::Rc {
                return Ok(Outcome::Unanswered);
            }
            let until = Moment::now() + timeout;
            while Moment::now() < until {
                let Some(arrived) = peer.receive(until.min(Moment::now() + Duration::from_millis(10)))? else {
                    if peer.is_disconnected(Moment::now())? {
                        return Ok(Outcome::Gone);
                    }
                    continue;
                };
                match arrived.acknowledgement() {
                    Some((psn, Syndrome::Ack(_))) if psn.distance_from(last) >= 0 => return Ok(Outcome::Acked),
                    Some((_, Syndrome::Nak(_))) => return Ok(Outcome::Refused),
                    _ => {}
                }
            }
        }
        if matches!(sent, Sent::Packet { .. }) {
            peer.psn = before;
        }
        Ok(without_answer)
    }
}

/// How long an answer to a packet with changed headers may take: to most of them none comes.
const HEADERS_TIMEOUT: Duration = Duration::from_millis(5);

/// A script that sends these again. Packets go to the queue pair of its connection, with PSNs as far from its first.
#[must_use]
pub fn script_of(sent: &[Sent]) -> String {
    let line = |sent: &Sent| match sent {
        Sent::Message(message) => format!("send hex:{}\nexpect ack\n", hex(message)),
        Sent::Packet { bytes, first_psn } => {
            let psn = bytes.get(8..12).and_then(|word| word.try_into().ok()).map_or(0, u32::from_be_bytes);
            let ahead = psn.wrapping_sub(first_psn.get());
            let part = |range| hex(bytes.get::<std::ops::Range<usize>>(range).unwrap_or_default());
            let (before, after) = (part(0..4), part(12..bytes.len()));
            format!("raw hex:{before} be32:$qp be32:$psn+{ahead} hex:{after}\nwait 5ms\n")
        }
    };
    sent.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::script;

    #[test]
    fn sent_packets_make_a_script() {
        let bytes = [&[0x04, 0x40, 0xff, 0xff, 0, 0, 0, 7, 0x80, 0, 0x20, 5][..], b"abc"].concat();
        let text = script_of(&[Sent::Message(b"hi".to_vec()), Sent::Packet { bytes, first_psn: Psn::new(0x2000) }]);
        assert_eq!(
            text,
            format!(
                "send hex:6869\nexpect ack\nraw hex:0440ffff be32:$qp be32:$psn+{} hex:616263\nwait 5ms\n",
                0x8000_0005_u32
            )
        );
        assert_eq!(script::parse(&text).map(|steps| steps.len()), Ok(4));
    }
}
