//! One side of a capture, played to a live program.
//!
//! What depends on the connection is rewritten: queue pair numbers and PSNs by the handshake; keys and addresses of the other
//! end's memory by what its messages, and its private data of rdma_cm, say now in the places where they said the captured ones.

use std::collections::{HashMap, HashSet, VecDeque};
use std::time::{Duration, Instant as Moment};

use urxe_faults::{Dictionary, Mutation};
use urxe_wire::opcode::{Position, Role};
use urxe_wire::{Ext, Header, Mtu, Operation, Psn, RKey, Reth, Syndrome, Transport};

use crate::Error;
use crate::arrived::Arrived;
use crate::handshake::{Handshake, mtu_of};
use crate::peer::Peer;

/// A packet of the capture.
#[derive(Clone, Debug)]
pub struct Recorded {
    /// Sent by the side that is played.
    pub is_ours: bool,
    /// Headers.
    pub header: Header,
    /// Payload.
    pub payload: Vec<u8>,
}

/// The payload of full packets of a capture: that of a First or Middle packet. None if all messages fit into a packet.
#[must_use]
pub fn mtu(packets: &[Recorded]) -> Option<Mtu> {
    let is_full =
        |packet: &&Recorded| matches!(packet.header.bth.opcode.info().position, Position::First | Position::Middle);
    let full = packets.iter().filter(is_full).map(|packet| packet.payload.len()).max()?;
    mtu_of(u32::try_from(full).ok()?)
}

/// Settings of a replay.
#[derive(Clone, Debug)]
pub struct Replay {
    /// The conversation, in its order.
    pub packets: Vec<Recorded>,
    /// Captured private data of the live end, by rdma_cm, which may tell keys.
    pub private_data: Vec<u8>,
    /// Longest time for an answer.
    pub timeout: Duration,
    /// Rounds after the first in which payloads change.
    pub rounds: u64,
    /// Decides the changes.
    pub seed: u64,
    /// Texts that mean something to the other end.
    pub dictionary: Dictionary,
}

/// Result of a replay.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Packets that were sent, in all rounds.
    pub sent: u64,
    /// Rounds that were played.
    pub rounds: u64,
    /// Differences of the live end's answers from the capture, in the first round.
    pub differences: Vec<String>,
    /// Reason why the other end is thought to be no more, and the round.
    pub found: Option<(String, u64)>,
}

/// A key of the other end's memory: captured, and live.
#[derive(Clone, Copy, Debug)]
struct Known {
    captured: u32,
    live: u32,
    /// Distance of live addresses from captured ones, if the message has an address that fits.
    delta: Option<u64>,
}

/// A round under way.
struct Round<'r> {
    replay: &'r Replay,
    /// PSN of the first captured request, and of the first live one.
    origin: Option<(Psn, Psn)>,
    requests: VecDeque<Arrived>,
    /// PSNs and opcodes of the other end's requests on RC.
    known: HashSet<(u32, u8)>,
    responses: Vec<Arrived>,
    /// Private data and payloads of the other end's messages: captured, and live.
    messages: Vec<(Vec<u8>, Vec<u8>)>,
    keys: Vec<Known>,
    sent: Vec<(Psn, Vec<u8>)>,
    differences: Vec<String>,
    is_over: bool,
}

impl Replay {
    /// Plays all rounds.
    ///
    /// # Errors
    /// [`Error`]: the first connection cannot be made, or the system refuses something.
    pub fn run(&self, peer: &mut Peer<'_>, handshake: Handshake) -> Result<Report, Error> {
        self.fill(peer, 0);
        let mut report = Report::default();
        for round in 0..=self.rounds {
            let count = u32::try_from(round).unwrap_or(u32::MAX);
            let mut tries = 0;
            while let Err(error) = peer.shake(handshake, count, self.timeout) {
                tries += 1;
                match error {
                    Error::Refused(_) if tries < 3 => std::thread::sleep(self.timeout / 10),
                    Error::Silent(..) if tries < 3 && round == 0 => std::thread::sleep(self.timeout / 10),
                    Error::Refused(why) | Error::Silent(_, why) if round > 0 => {
                        let last = round - 1;
                        report.found =
                            Some((format!("no other connection can be made after round {last}: {why}"), last));
                        return Ok(report);
                    }
                    error => return Err(error),
                }
            }
            let mut player = Round::new(self, &peer.private_data);
            player.play(peer, round)?;
            report.sent += player.sent.len() as u64;
            report.rounds += 1;
            if round == 0 {
                report.differences = player.differences;
            }
            peer.disconnect()?;
        }
        // Whether the last round ended it.
        if self.rounds > 0
            && let Err(error) = peer.shake(handshake, u32::try_from(self.rounds + 1).unwrap_or(0), self.timeout)
        {
            report.found = Some((format!("no other connection can be made: {error}"), self.rounds));
            return Ok(report);
        }
        peer.disconnect()?;
        Ok(report)
    }

    /// Puts into memory what the other end read there, from this packet of the capture on until the next request of ours.
    fn fill(&self, peer: &Peer<'_>, from: usize) {
        let mut reads: Vec<(Psn, u64)> = Vec::new();
        let role = |packet: &Recorded| packet.header.bth.opcode.info().role;
        let is_next = |packet: &&Recorded| !packet.is_ours || role(packet) != Role::Request;
        for packet in self.packets.iter().skip(from).take_while(is_next) {
            let bth = &packet.header.bth;
            match (packet.is_ours, bth.opcode.operation(), packet.header.ext) {
                (false, Operation::ReadRequest, Ext::Reth(reth)) => reads.push((bth.psn, reth.va)),
                (true, ..) if !packet.payload.is_empty() => {
                    let asked = reads.iter().rev().find(|(psn, _)| bth.psn.distance_from(*psn) >= 0);
                    if let Some((psn, va)) = asked {
                        let mtu = peer.settings.mtu.bytes() as u64;
                        let offset = u64::try_from(bth.psn.distance_from(*psn)).unwrap_or(0) * mtu;
                        // The bound is that of what the other end writes: a capture that reads more finds zeros.
                        let _ = peer.memory().put(va.wrapping_add(offset), &packet.payload);
                    }
                }
                _ => {}
            }
        }
    }
}

impl<'r> Round<'r> {
    fn new(replay: &'r Replay, private_data: &[u8]) -> Self {
        Self {
            replay,
            origin: None,
            requests: VecDeque::new(),
            known: HashSet::new(),
            responses: Vec::new(),
            messages: vec![(replay.private_data.clone(), private_data.to_vec())],
            keys: Vec::new(),
            sent: Vec::new(),
            differences: Vec::new(),
            is_over: false,
        }
    }

    fn play(&mut self, peer: &mut Peer<'_>, round: u64) -> Result<(), Error> {
        let mut seen: HashSet<(bool, u32, u8)> = HashSet::new();
        let mut silences: HashMap<bool, u32> = HashMap::new();
        for (index, recorded) in self.replay.packets.iter().enumerate() {
            let bth = &recorded.header.bth;
            let is_request = bth.opcode.info().role == Role::Request;
            // What was sent again comes once.
            if !seen.insert((recorded.is_ours, bth.psn.get(), bth.opcode.to_u8())) || self.is_over {
                continue;
            }
            match (recorded.is_ours, is_request) {
                (true, true) => {
                    self.replay.fill(peer, index + 1);
                    self.send(peer, recorded, index, round)?;
                }
                // The peer answers by itself.
                (true, false) => {}
                (false, _) => {
                    let came = if is_request {
                        self.compare_request(peer, recorded)?
                    } else {
                        self.compare_response(peer, recorded)?
                    };
                    let silent = silences.entry(is_request).or_default();
                    *silent = if came { 0 } else { *silent + 1 };
                    // Others will not come either.
                    self.is_over |= *silent == 3 || (!came && round > 0);
                }
            }
        }
        Ok(())
    }

    fn send(&mut self, peer: &mut Peer<'_>, recorded: &Recorded, index: usize, round: u64) -> Result<(), Error> {
        let mut header = recorded.header;
        let (first, live) = *self.origin.get_or_insert((header.bth.psn, peer.psn));
        let ahead = u32::try_from(header.bth.psn.distance_from(first)).unwrap_or(0);
        header.bth.psn = live.add(ahead);
        header.bth.dest_qp = peer.target()?.qpn;
        match &mut header.ext {
            Ext::Reth(reth) | Ext::RethImmDt(reth, _) | Ext::FethReth(_, reth) => self.rewrite(reth),
            Ext::AtomicEth(atomic) => {
                let mut reth = Reth { va: atomic.va, r_key: atomic.r_key, dma_len: 8 };
                self.rewrite(&mut reth);
                (atomic.va, atomic.r_key) = (reth.va, reth.r_key);
            }
            _ => {}
        }
        let mut payload = recorded.payload.clone();
        let number = self.replay.seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ round << 24 ^ index as u64;
        if round > 0 && number.wrapping_mul(0xD6E8_FEB8_6659_FD93) >> 63 == 0 {
            Mutation::new(&self.replay.dictionary, number).edit(&mut payload);
        }
        let mut bytes = vec![0; header.len()];
        header.emit(&mut bytes);
        bytes.extend_from_slice(&payload);
        bytes.resize(bytes.len() + usize::from(header.bth.pad_count), 0);
        peer.send(&bytes, 0)?;
        self.sent.push((header.bth.psn, bytes));
        Ok(())
    }

    /// Puts the live key and address in the place of captured ones.
    fn rewrite(&mut self, reth: &mut Reth) {
        let mut known = self.keys.iter().find(|known| known.captured == reth.r_key.0).copied();
        if known.is_none() {
            let found = self.messages.iter().rev().filter_map(|(captured, live)| learn(captured, live, reth));
            // A message may name the key with another part of the region only, behind the address.
            let with_base = found.clone().find(|found| found.delta.is_some());
            self.keys.extend(with_base);
            known = with_base.or_else(|| found.clone().next());
        }
        if let Some(known) = known {
            reth.r_key = RKey(known.live);
            reth.va = reth.va.wrapping_add(known.delta.unwrap_or(0));
        }
    }

    /// Takes what comes, until `found` has what it looks for. False if nothing does.
    fn wait(&mut self, peer: &mut Peer<'_>, mut found: impl FnMut(&mut Self) -> bool) -> Result<bool, Error> {
        let until = Moment::now() + self.replay.timeout;
        loop {
            if found(self) {
                return Ok(true);
            }
            let Some(arrived) = peer.receive(until.min(Moment::now() + Duration::from_millis(20)))? else {
                if Moment::now() >= until || peer.is_disconnected(Moment::now())? {
                    return Ok(false);
                }
                continue;
            };
            let role = arrived.packet().map(|packet| packet.bth().opcode.info().role);
            match (role, arrived.acknowledgement()) {
                (_, Some((psn, Syndrome::RnrNak(timer)))) => {
                    std::thread::sleep(timer.duration().min(self.replay.timeout));
                    for (_, bytes) in self.sent.iter().filter(|(sent, _)| sent.distance_from(psn) >= 0) {
                        peer.send(bytes, 0)?;
                    }
                }
                (Some(Role::Request), _) if self.is_new(&arrived) => self.requests.push_back(arrived),
                (Some(Role::Response), _) => self.responses.push(arrived),
                _ => {}
            }
        }
    }

    /// Whether a request of the other end comes for the first time. On RC it is sent again when its ACK is late.
    fn is_new(&mut self, arrived: &Arrived) -> bool {
        let Some(bth) = arrived.packet().map(|packet| *packet.bth()) else { return false };
        bth.opcode.transport() != Transport::Rc || self.known.insert((bth.psn.get(), bth.opcode.to_u8()))
    }

    fn compare_request(&mut self, peer: &mut Peer<'_>, recorded: &Recorded) -> Result<bool, Error> {
        let came = self.wait(peer, |round| !round.requests.is_empty())?;
        let Some(arrived) = self.requests.pop_front() else {
            self.differ(recorded, "nothing comes");
            return Ok(came);
        };
        let Some(packet) = arrived.packet() else { return Ok(true) };
        if packet.bth().opcode != recorded.header.bth.opcode || packet.payload.len() != recorded.payload.len() {
            self.differ(recorded, &packet.to_string());
        } else if packet.payload != recorded.payload {
            let at = packet.payload.iter().zip(&recorded.payload).position(|(live, captured)| live != captured);
            self.differ(recorded, &format!("{packet}, with another payload from byte {} on", at.unwrap_or(0)));
        }
        self.messages.push((recorded.payload.clone(), packet.payload.to_vec()));
        Ok(true)
    }

    fn compare_response(&mut self, peer: &mut Peer<'_>, recorded: &Recorded) -> Result<bool, Error> {
        let Some((first, live)) = self.origin else { return Ok(true) };
        let ahead = u32::try_from(recorded.header.bth.psn.distance_from(first)).unwrap_or(0);
        let psn = live.add(ahead);
        let is_ack = recorded.header.bth.opcode.operation() == Operation::Acknowledge;
        let fits = |arrived: &Arrived| {
            let Some(packet) = arrived.packet() else { return false };
            // Acknowledgements may be for several requests; a NAK ends everything.
            let distance = packet.bth().psn.distance_from(psn);
            let is_nak = matches!(arrived.acknowledgement(), Some((_, Syndrome::Nak(_))));
            is_nak || if is_ack { distance >= 0 } else { distance == 0 }
        };
        if !self.wait(peer, |round| round.responses.iter().any(fits))? {
            self.differ(recorded, "nothing comes");
            return Ok(false);
        }
        let Some(arrived) = self.responses.iter().find(|arrived| fits(arrived)).cloned() else { return Ok(false) };
        let Some(packet) = arrived.packet() else { return Ok(true) };
        let syndrome = |ext: &Ext| match ext {
            Ext::Aeth(aeth) | Ext::AethAtomicAckEth(aeth, _) => Some(std::mem::discriminant(&aeth.syndrome)),
            _ => None,
        };
        let is_refusal = matches!(arrived.acknowledgement(), Some((_, Syndrome::Nak(_))));
        let differs = if is_refusal || is_ack {
            syndrome(&packet.header.ext) != syndrome(&recorded.header.ext)
        } else {
            packet.bth().opcode != recorded.header.bth.opcode || packet.payload != recorded.payload
        };
        if differs {
            self.differ(recorded, &packet.to_string());
        }
        self.is_over |= is_refusal;
        Ok(true)
    }

    fn differ(&mut self, recorded: &Recorded, live: &str) {
        let length = recorded.payload.len();
        self.differences.push(format!("captured: {} Len={length}; now: {live}", recorded.header));
    }
}

/// Looks for the key of `reth`, and the address before which it lies, in a captured payload; the live payload has the live ones
/// in the same places.
fn learn(captured: &[u8], live: &[u8], reth: &Reth) -> Option<Known> {
    let places = |bytes: &[u8]| -> Vec<usize> {
        captured.windows(bytes.len()).enumerate().filter(|(_, part)| *part == bytes).map(|(at, _)| at).collect()
    };
    let key = reth.r_key.0;
    let big = places(&key.to_be_bytes()).into_iter().map(|at| (at, true));
    let (at, is_big) = big.chain(places(&key.to_le_bytes()).into_iter().map(|at| (at, false))).next()?;
    let word: [u8; 4] = live.get(at..at + 4)?.try_into().ok()?;
    let live_key = if is_big { u32::from_be_bytes(word) } else { u32::from_le_bytes(word) };
    // The nearest address at or below the one asked for, within what a region is likely to have.
    const REGION: u64 = 1 << 32;
    let number = |bytes: &[u8], at: usize, is_big: bool| -> Option<u64> {
        let word: [u8; 8] = bytes.get(at..at + 8)?.try_into().ok()?;
        Some(if is_big { u64::from_be_bytes(word) } else { u64::from_le_bytes(word) })
    };
    let bases = (0..captured.len()).flat_map(|at| [(at, is_big), (at, !is_big)]).filter_map(|(at, big)| {
        let base =
            number(captured, at, big).filter(|base| *base <= reth.va && reth.va - base < REGION && *base > REGION)?;
        Some((base, number(live, at, big)?))
    });
    let delta = bases.max_by_key(|(base, _)| *base).map(|(base, now)| now.wrapping_sub(base));
    Some(Known { captured: key, live: live_key, delta })
}

#[cfg(test)]
mod tests {
    use urxe_wire::icrc::Check;
    use urxe_wire::{Bth, ICRC_LEN, Opcode, Qpn};

    use super::*;

    /// The message of rping: address, key and length, in network order.
    fn rping(va: u64, key: u32) -> Vec<u8> {
        [&va.to_be_bytes()[..], &key.to_be_bytes(), &64_u32.to_be_bytes()].concat()
    }

    fn without_packets(private_data: Vec<u8>) -> Replay {
        Replay {
            packets: Vec::new(),
            private_data,
            rounds: 0,
            seed: 0,
            dictionary: Dictionary::default(),
            timeout: Duration::ZERO,
        }
    }

    /// On RC a request whose ACK is late comes again; on UC each packet is another one.
    #[test]
    fn requests_that_come_again_are_not_new() {
        let replay = without_packets(Vec::new());
        let mut round = Round::new(&replay, &[]);
        let mut is_new = |transport, operation, psn| {
            let bth = Bth::new(Opcode::new(transport, operation).unwrap(), Qpn::new(7), Psn::new(psn));
            let header = Header::new(bth, Ext::None);
            let mut bytes = vec![0; header.len() + ICRC_LEN];
            header.emit(&mut bytes);
            round.is_new(&Arrived { bytes, check: Check::Exact })
        };
        let (rc, uc) = (Transport::Rc, Transport::Uc);
        assert_eq!([1, 1, 2, 1].map(|psn| is_new(rc, Operation::SendOnly, psn)), [true, false, true, false]);
        assert!(is_new(rc, Operation::SendFirst, 1), "another request");
        assert_eq!([1, 1].map(|psn| is_new(uc, Operation::SendOnly, psn)), [true, true]);
    }

    #[test]
    fn keys_and_addresses_are_learnt_from_messages() {
        let reth = Reth { va: 0x7F00_1234_5010, r_key: RKey(0xABCD_EF01), dma_len: 64 };
        let (captured, live) = (rping(0x7F00_1234_5000, 0xABCD_EF01), rping(0x5566_0000_1000, 0x42));
        let known = learn(&captured, &live, &reth).unwrap();
        assert_eq!((known.live, reth.va.wrapping_add(known.delta.unwrap())), (0x42, 0x5566_0000_1010));
        assert!(learn(&live, &captured, &reth).is_none());
    }

    /// A socket over RDMA tells its buffer in private data, and then the second half of it, with its key, in a message.
    #[test]
    fn an_address_is_learnt_from_the_message_that_has_one_below() {
        let (whole, half) = (rping(0x7F00_1234_0000, 0x3D1), rping(0x7F00_1235_0000, 0x3D1));
        let replay = without_packets(whole);
        let mut round = Round::new(&replay, &rping(0x5566_0000_0000, 0x309));
        round.messages.push((half, rping(0x5566_0001_0000, 0x309)));
        for offset in [0x10, 0x1_0020] {
            let mut reth = Reth { va: 0x7F00_1234_0000 + offset, r_key: RKey(0x3D1), dma_len: 16 };
            round.rewrite(&mut reth);
            assert_eq!((reth.va, reth.r_key), (0x5566_0000_0000 + offset, RKey(0x309)));
        }
    }
}
