//! Carrying out a script.

use std::collections::HashMap;
use std::time::{Duration, Instant as Moment};

use urxe_wire::opcode::HeaderSet;
use urxe_wire::{Aeth, AtomicAckEth, AtomicEth, Credits, Ieth, ImmDt, Msn, Opcode};
use urxe_wire::{Ext, Feth, FlushLevel, Operation, Psn, RKey, Reth, SelectiveAck, SelectiveOffer, Syndrome};

use crate::Error;
use crate::arrived::Arrived;
use crate::peer::Peer;
use crate::script::{Expected, Numbered, Part, Step, Value, number_bytes};

/// A script under way.
pub struct Player<'p, 'a> {
    peer: &'p mut Peer<'a>,
    names: HashMap<String, u64>,
    /// Payload that came last; before the first the other end's private data.
    last: Vec<u8>,
    /// Highest PSN that an ACK had.
    acked: Option<Psn>,
    random: u64,
}

impl<'p, 'a> Player<'p, 'a> {
    /// A player of scripts over a connected peer.
    pub fn new(peer: &'p mut Peer<'a>) -> Self {
        let random = peer.settings.seed;
        let qp = peer.target.map_or(0, |target| target.qpn.get());
        let names = [("qp", qp), ("psn", peer.first_psn.get())].map(|(name, number)| (name.to_owned(), number.into()));
        let last = peer.private_data.clone();
        Self { peer, names: names.into(), last, acked: None, random }
    }

    /// Carries out all steps.
    ///
    /// # Errors
    /// [`Error::Invalid`] names the line; so does [`Error::Refused`], if what must come did not.
    pub fn play(&mut self, steps: &[Numbered]) -> Result<(), Error> {
        for (line, step) in steps {
            self.step(step).map_err(|error| match error {
                Error::Invalid(what) => Error::Invalid(format!("line {line}: {what}")),
                Error::Refused(what) => Error::Refused(format!("line {line}: {what}")),
                other => other,
            })?;
        }
        Ok(())
    }

    fn step(&mut self, step: &Step) -> Result<(), Error> {
        match step {
            Step::Send(parts) => {
                let message = self.bytes(parts)?;
                self.peer.send_message(&message)
            }
            Step::Raw(parts) => {
                let packet = self.bytes(parts)?;
                self.peer.send(&packet, 0)
            }
            Step::Packet(operation, fields, parts) => self.packet(*operation, fields, parts),
            Step::Wait(time) => {
                let until = Moment::now() + *time;
                while let Some(arrived) = self.peer.receive(until)? {
                    self.keep(&arrived);
                }
                Ok(())
            }
            Step::Expect(expected, within) => self.expect(*expected, *within),
            Step::Let(name, bytes, is_big, offset) => {
                let part = offset.checked_add(*bytes).and_then(|end| self.last.get(*offset..end));
                let part = part.ok_or_else(|| {
                    Error::Refused(format!("{name} is beyond the payload that came last, of {} bytes", self.last.len()))
                })?;
                let join = |number: u64, byte: &u8| number << 8 | u64::from(*byte);
                let number = if *is_big { part.iter().fold(0, join) } else { part.iter().rev().fold(0, join) };
                self.names.insert(name.clone(), number);
                Ok(())
            }
            Step::Repeat(times, steps) => {
                for _ in 0..*times {
                    steps.iter().try_for_each(|step| self.step(step))?;
                }
                Ok(())
            }
        }
    }

    fn keep(&mut self, arrived: &Arrived) {
        if let Some((psn, Syndrome::Ack(_))) = arrived.acknowledgement()
            && self.acked.is_none_or(|acked| psn.distance_from(acked) > 0)
        {
            self.acked = Some(psn);
        }
        if let Some(packet) = arrived.packet()
            && !packet.payload.is_empty()
        {
            self.last = packet.payload.to_vec();
        }
    }

    fn expect(&mut self, expected: Expected, within: Duration) -> Result<(), Error> {
        let until = Moment::now() + within;
        let last = self.peer.psn.sub(1);
        // One ACK may be for several messages, and a message may have more than one.
        if expected == Expected::Ack && self.acked.is_some_and(|acked| acked.distance_from(last) >= 0) {
            return Ok(());
        }
        while let Some(arrived) = self.peer.receive(until)? {
            self.keep(&arrived);
            let acknowledgement = arrived.acknowledgement().map(|(_, syndrome)| syndrome);
            let fits = match expected {
                Expected::Nothing => return Err(Error::Refused(format!("nothing was expected: {}", arrived.text()))),
                Expected::Ack => self.acked.is_some_and(|acked| acked.distance_from(last) >= 0),
                Expected::Nak => matches!(acknowledgement, Some(Syndrome::Nak(_) | Syndrome::RnrNak(_))),
                Expected::Operation(operation) => {
                    arrived.packet().is_some_and(|packet| packet.bth().opcode.operation() == operation)
                }
            };
            if fits {
                return Ok(());
            }
        }
        match expected {
            Expected::Nothing => Ok(()),
            _ => Err(Error::Refused(format!("{expected:?} was expected within {within:?}"))),
        }
    }

    fn value(&self, value: &Value, usual: u64) -> Result<u64, Error> {
        Ok(match value {
            Value::Number(number) => *number,
            Value::Relative(by) => usual.wrapping_add_signed(*by),
            Value::Name(name, add) => {
                let known = self.names.get(name).ok_or_else(|| Error::Invalid(format!("no `let {name}` before")))?;
                known.wrapping_add(*add)
            }
        })
    }

    fn bytes(&mut self, parts: &[Part]) -> Result<Vec<u8>, Error> {
        let mut bytes = Vec::new();
        for part in parts {
            match part {
                Part::Bytes(these) => bytes.extend_from_slice(these),
                Part::Number(value, width, is_big) => {
                    bytes.extend(number_bytes(self.value(value, 0)?, *width, *is_big));
                }
                Part::Random(count) => {
                    for _ in 0..*count {
                        // Knuth's MMIX.
                        self.random =
                            self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                        bytes.push(self.random.to_be_bytes()[0]);
                    }
                }
            }
        }
        Ok(bytes)
    }

    fn packet(&mut self, operation: Operation, fields: &[(String, Value)], parts: &[Part]) -> Result<(), Error> {
        let payload = self.bytes(parts)?;
        let next = u64::from(self.peer.psn.get());
        let given = |name: &str, usual: u64| match fields.iter().find(|(known, _)| known == name) {
            Some((_, value)) => self.value(value, usual).map(Some),
            None => Ok(None),
        };
        let or = |name: &str, usual: u64| given(name, usual).map(|value| value.unwrap_or(usual));
        let opcode = Opcode::new(self.peer.settings.transport, operation)
            .ok_or_else(|| Error::Invalid(format!("{:?} has no {operation:?}", self.peer.settings.transport)))?;
        let low = |value: u64| u32::try_from(value & 0xFFFF_FFFF).unwrap_or(0);
        let dma_len = low(or("len", payload.len() as u64)?);
        let reth = Reth { va: or("va", 0)?, r_key: RKey(low(or("rkey", 0)?)), dma_len };
        let imm = ImmDt(low(or("imm", 0)?).to_be_bytes());
        let aeth = Aeth { syndrome: Syndrome::Ack(Credits::INVALID), msn: Msn::new(low(or("msn", 0)?)) };
        let feth = Feth { global_visibility: true, persistence: false, level: FlushLevel::Range };
        let ext = match opcode.info().headers {
            HeaderSet::None => Ext::None,
            HeaderSet::Reth => Ext::Reth(reth),
            HeaderSet::RethImmDt => Ext::RethImmDt(reth, imm),
            HeaderSet::ImmDt => Ext::ImmDt(imm),
            HeaderSet::Ieth => Ext::Ieth(Ieth { r_key: reth.r_key }),
            HeaderSet::AtomicEth => Ext::AtomicEth(AtomicEth {
                va: reth.va,
                r_key: reth.r_key,
                swap_add: or("swap", 0)?,
                compare: or("compare", 0)?,
            }),
            HeaderSet::Aeth => Ext::Aeth(aeth),
            HeaderSet::AethAtomicAckEth => Ext::AethAtomicAckEth(aeth, AtomicAckEth { original: or("original", 0)? }),
            HeaderSet::FethReth => Ext::FethReth(feth, reth),
            HeaderSet::CnpReserved => Ext::CnpReserved,
            HeaderSet::SelectiveOffer => Ext::SelectiveOffer(SelectiveOffer {
                answer: or("answer", 0)? != 0,
                window: u16::try_from(or("window", 0)? & 0xFFFF).unwrap_or(0),
            }),
            HeaderSet::SelectiveAck => Ext::SelectiveAck(SelectiveAck { duplicates: low(or("duplicates", 0)?) }),
        };
        let psn = given("psn", next)?;
        let psn_used = Psn::new(low(psn.unwrap_or(next)));
        let mut bytes = self.peer.build(operation, ext, psn_used, &payload)?;
        let byte = |value: u64| u8::try_from(value & 0xFF).unwrap_or(0);
        if let Some(opcode) = given("opcode", 0)? {
            bytes[0] = byte(opcode);
        }
        for (name, shift, mask) in [("se", 7, 0x80), ("m", 6, 0x40), ("pad", 4, 0x30), ("tver", 0, 0x0F)] {
            if let Some(value) = given(name, 0)? {
                bytes[1] = bytes[1] & !mask | byte(value << shift) & mask;
            }
        }
        if let Some(pkey) = given("pkey", 0)? {
            bytes[2..4].copy_from_slice(&number_bytes(pkey, 2, true));
        }
        if let Some(qp) = given("qp", 0)? {
            bytes[5..8].copy_from_slice(&number_bytes(qp, 3, true));
        }
        if let Some(ackreq) = given("ackreq", 0)? {
            bytes[8] = bytes[8] & 0x7F | byte(ackreq << 7);
        }
        let after_bth = 12;
        let lacks = |name: &str| {
            let transport = self.peer.settings.transport;
            Error::Invalid(format!("{name}: {operation:?} of {transport:?} has no such field"))
        };
        if let Some(syndrome) = given("syndrome", 0)? {
            if !matches!(ext, Ext::Aeth(_) | Ext::AethAtomicAckEth(..)) {
                return Err(lacks("syndrome"));
            }
            bytes[after_bth] = byte(syndrome);
        }
        for (name, offset) in [("qkey", 0), ("srcqp", 4)] {
            if let Some(value) = given(name, 0)? {
                if self.peer.settings.transport != urxe_wire::Transport::Ud {
                    return Err(lacks(name));
                }
                bytes[after_bth + offset..after_bth + offset + 4].copy_from_slice(&number_bytes(value, 4, true));
            }
        }
        let damage = low(or("icrc", 0)?);
        self.peer.send(&bytes, damage)?;
        if psn.is_none() && opcode.info().role == urxe_wire::opcode::Role::Request {
            let packets =
                if operation == Operation::ReadRequest { self.peer.settings.mtu.packets(dma_len).max(1) } else { 1 };
            self.peer.psn = self.peer.psn.add(packets);
        }
        Ok(())
    }
}
