//! Agents in virtual time.

mod segments;
mod shares;

use core::time::Duration;
use std::vec;
use std::vec::Vec;

use urxe_wire::mad::{MAD_LEN, Mad, Rmpp};
use urxe_wire::{Gid, Qpn};

use super::*;
use crate::time::Instant;

const VENDOR: u8 = 0x32;
const OUI: [u8; 3] = [0, 0x14, 5];
const CLIENT: AgentId = AgentId(0x0100_0001);
const SERVER: AgentId = AgentId(0x0200_0002);
const A: Gid = Gid::new([0xA; 16]);
const B: Gid = Gid::new([0xB; 16]);
const TIMEOUT: Duration = Duration::from_millis(100);

type Port = MadPort<u32>;

fn address(local: Gid, remote: Gid) -> Address {
    Address { local, remote, qpn: Qpn::GSI, flow_label: 0, traffic_class: 0, hop_limit: 64 }
}

fn claim(methods: u128) -> Claim {
    Claim { class: VENDOR, version: 1, oui: OUI, methods }
}

/// A message of the vendor class with so many bytes of data.
fn message(method: u8, transaction_id: u64, flags: u8, data: usize) -> Vec<u8> {
    let header = Mad { transaction_id, ..Mad::new(VENDOR, 1, method, 0) };
    let mut message = vec![0; 40];
    header.emit(message.first_chunk_mut().unwrap());
    (message[24], message[25], message[26]) = (1, Rmpp::DATA, flags);
    message[37..40].copy_from_slice(&OUI);
    message.extend((0..data).map(|at| u8::try_from(at % 251).unwrap()));
    message
}

fn request(data: usize) -> Outgoing<u32> {
    let flags = if data > 216 { Rmpp::ACTIVE } else { 0 };
    let message = message(Mad::METHOD_GET, 7, flags, data);
    Outgoing { to: address(A, B), message, timeout: Some(TIMEOUT), retries: 2, context: 99 }
}

/// Two ports, and a network between them that loses what it is told to.
struct Pair {
    ports: [Port; 2],
    now: Instant,
    carried: usize,
    loses: fn(usize) -> bool,
}

impl Pair {
    fn new(loses: fn(usize) -> bool) -> Self {
        let mut ports = [Port::new(), Port::new()];
        ports[0].register(CLIENT, Some(claim(0)), true).unwrap();
        ports[1].register(SERVER, Some(claim(u128::MAX)), true).unwrap();
        Self { ports, now: Instant::default(), carried: 0, loses }
    }

    /// Carries everything, and lets time pass where nothing moves, until something is delivered at `side`.
    fn deliver(&mut self, side: usize) -> Delivery<u32> {
        for _ in 0..100_000 {
            if let Some((_, delivery)) = self.ports[side].poll_delivery() {
                return delivery;
            }
            let mut moved = false;
            for from in 0..2 {
                while let Some(transmit) = self.ports[from].poll_transmit() {
                    moved = true;
                    self.carried += 1;
                    let to = address(transmit.to.remote, transmit.to.local);
                    if !(self.loses)(self.carried) {
                        let _ = self.ports[1 - from].handle(self.now, &to, &transmit.payload);
                    }
                }
            }
            if !moved {
                self.now = self.ports.iter().filter_map(Port::poll_timeout).min().expect("something is waited for");
                self.ports.iter_mut().for_each(|port| port.handle_timeout(self.now));
            }
        }
        panic!("nothing comes");
    }

    fn message(&mut self, side: usize) -> Vec<u8> {
        match self.deliver(side) {
            Delivery::Received { message, .. } => message,
            Delivery::TimedOut { .. } => panic!("timed out at {:?}, {} datagrams", self.now, self.carried),
        }
    }

    /// Waits until nothing is kept any more.
    fn rest(&mut self) {
        while let Some(at) = self.ports.iter().filter_map(Port::poll_timeout).min() {
            self.now = at;
            self.ports.iter_mut().for_each(|port| port.handle_timeout(at));
        }
        for port in &self.ports {
            assert_eq!((port.memory(), port.sending.len(), port.reassembly.len()), (0, 0, 0));
        }
    }
}

/// The answer to a message: with the same transaction id, and so much data.
fn answer(request: &[u8], data: usize) -> Outgoing<u32> {
    let header = Mad::parse(request.first_chunk().unwrap()).unwrap();
    let flags = if data > 216 { Rmpp::ACTIVE } else { 0 };
    let message = message(Mad::METHOD_GET | Mad::RESPONSE, header.transaction_id, flags, data);
    Outgoing { to: address(B, A), message, timeout: None, retries: 5, context: 0 }
}

#[test]
fn a_response_reaches_the_agent_whose_transaction_id_it_has() {
    let mut pair = Pair::new(|_| false);
    pair.ports[0].send(pair.now, CLIENT, request(10)).unwrap();
    assert_eq!(pair.ports[0].send(pair.now, CLIENT, request(10)), Err(SendError::Duplicate));
    let asked = pair.message(1);
    assert_eq!(asked.len(), MAD_LEN);
    assert_eq!(asked[8..16], (u64::from(CLIENT.0) << 32 | 7).to_be_bytes());
    let now = pair.now;
    pair.ports[1].send(now, SERVER, answer(&asked, 20)).unwrap();
    assert_eq!(pair.message(0)[40..60], answer(&asked, 20).message[40..60]);
    pair.rest();
}

/// Where responders are compared, another host's response to the same transaction is none, nor is one of before the request really
/// went there.
#[test]
fn only_whoever_was_asked_responds() {
    const STAND_IN: Gid = Gid::new([0xC; 16]);
    let mut port = Port::new();
    port.compare_responders(true);
    port.register(CLIENT, None, false).unwrap();
    port.send(Instant::default(), CLIENT, Outgoing { to: address(A, STAND_IN), ..request(10) }).unwrap();
    let asked = port.poll_transmit().unwrap().payload;
    let response = first_datagram(&answer(&asked, 20).message);
    let respond = |port: &mut Port, from| port.handle(Instant::default(), &address(A, from), &response);
    assert_eq!(respond(&mut port, B), Err(Refusal::NoRequest));
    port.expect_response(&asked, B);
    assert_eq!(respond(&mut port, STAND_IN), Err(Refusal::NoRequest));
    assert!(port.poll_delivery().is_none());
    assert_eq!(respond(&mut port, B), Ok(()));
    assert!(matches!(port.poll_delivery(), Some((CLIENT, Delivery::Received { .. }))));
    assert_eq!(respond(&mut port, B), Err(Refusal::NoRequest), "once");
}

#[test]
fn request_without_answer_comes_back_after_the_last_attempt() {
    let mut port = Port::new();
    port.register(CLIENT, None, false).unwrap();
    port.send(Instant::default(), CLIENT, request(10)).unwrap();
    let mut sent = 0;
    loop {
        sent += core::iter::from_fn(|| port.poll_transmit()).count();
        let Some(at) = port.poll_timeout() else { break };
        assert_eq!(at.since(Instant::default()), TIMEOUT * u32::try_from(sent).unwrap());
        port.handle_timeout(at);
    }
    assert_eq!(sent, 3);
    let Some((CLIENT, Delivery::TimedOut { context: 99, header })) = port.poll_delivery() else { panic!() };
    assert_eq!(header[8..16], (u64::from(CLIENT.0) << 32 | 7).to_be_bytes());
    assert_eq!(port.memory(), 0);
}

/// Trap 144 of a port whose own agent does RMPP: where a class with RMPP has its header, this one has the M_Key.
#[test]
fn classes_without_rmpp_are_sent_as_they_are() {
    let mut port = Port::new();
    port.register(CLIENT, None, true).unwrap();
    let mut message = vec![0xFF; MAD_LEN];
    let header = Mad { transaction_id: 7, ..Mad::new(Mad::CLASS_SUBN_LID, 1, Mad::METHOD_TRAP, 2) };
    header.emit(message.first_chunk_mut().unwrap());
    port.send(Instant::default(), CLIENT, Outgoing { message: message.clone(), ..request(10) }).unwrap();
    for attempt in 1..=3 {
        let sent: Vec<_> = core::iter::from_fn(|| port.poll_transmit()).collect();
        let [sent] = &sent[..] else { panic!("{attempt}: {} datagrams", sent.len()) };
        assert_eq!(sent.payload[24..], message[24..], "{attempt}");
        port.handle_timeout(port.poll_timeout().unwrap());
    }
    assert!(matches!(port.poll_delivery(), Some((CLIENT, Delivery::TimedOut { .. }))));
}

#[test]
fn a_method_of_a_class_has_one_agent() {
    let mut port = Port::new();
    let mut register = |id, claim: Claim, rmpp| port.register(AgentId(id), Some(claim), rmpp);
    assert_eq!(register(1, claim(0b0110), true), Ok(()));
    assert_eq!(register(2, claim(0b0100), true), Err(RegisterError::InUse));
    assert_eq!(register(3, claim(0b1000), true), Ok(()));
    assert_eq!(register(4, Claim { oui: [1, 2, 3], ..claim(0b0100) }, true), Ok(()), "another vendor");
    assert_eq!(register(5, Claim { version: 2, ..claim(0b0100) }, true), Ok(()), "another version");
    assert_eq!(register(6, claim(0), true), Ok(()), "it only asks");
    for (wrong, rmpp, error) in [
        (Claim { class: 0, ..claim(1) }, false, RegisterError::Class),
        (Claim { class: 80, ..claim(1) }, false, RegisterError::Class),
        (Claim { version: 0x83, ..claim(1) }, false, RegisterError::Version),
        (Claim { oui: [0; 3], ..claim(1) }, false, RegisterError::Vendor),
        (Claim { class: Mad::CLASS_PERF, ..claim(1) }, true, RegisterError::Rmpp),
    ] {
        assert_eq!(register(7, wrong, rmpp), Err(error), "{wrong:?}");
    }
    for class in [Mad::CLASS_SUBN_LID, Mad::CLASS_SUBN_DIRECTED] {
        assert_eq!(
            register(100 + u32::from(class), Claim { class, ..claim(1) }, false),
            Ok(()),
            "of QP0, where there is one"
        );
    }
    assert!(port.unregister(AgentId(1)) && !port.unregister(AgentId(1)));
    assert_eq!(port.register(AgentId(8), Some(claim(0b0110)), true), Ok(()));
}

#[test]
fn a_request_that_nobody_takes_is_refused_if_it_is_a_get_or_a_set() {
    let mut port = Port::new();
    for (method, is_answered) in [(Mad::METHOD_GET, true), (Mad::METHOD_SET, true), (Mad::METHOD_SEND, false)] {
        let datagram = first_datagram(&message(method, 5, 0, 10));
        assert_eq!(port.handle(Instant::default(), &address(B, A), &datagram), Err(Refusal::NoAgent));
        let answer = port.poll_transmit().map(|transmit| Mad::of(&transmit.payload).unwrap());
        assert_eq!(answer.is_some(), is_answered);
        assert!(answer.is_none_or(|answer| answer.method == 0x81 && answer.status == 0x0C));
    }
}

#[test]
fn malformed_sends_are_refused_as_by_the_kernel() {
    let mut port = Port::new();
    port.register(CLIENT, None, true).unwrap();
    port.register(SERVER, None, false).unwrap();
    let mut send =
        |agent, message: Vec<u8>| port.send(Instant::default(), agent, Outgoing { message, ..request(0) }).err();
    assert_eq!(send(AgentId(77), request(0).message), Some(SendError::NoAgent));
    assert_eq!(send(CLIENT, message(1, 1, 0, 217)), Some(SendError::Length), "too long for a datagram");
    assert_eq!(send(SERVER, message(1, 1, Rmpp::ACTIVE, 217)), Some(SendError::Length), "without RMPP here");
    assert_eq!(send(CLIENT, message(1, 1, 0, 0)[..39].to_vec()), Some(SendError::Length));
    let mut perf = message(1, 1, 0, 216);
    perf[1] = Mad::CLASS_PERF;
    assert_eq!(send(CLIENT, perf), None, "a class without RMPP has plain datagrams");
}

#[test]
fn an_agent_that_goes_takes_everything_along() {
    let mut port = Port::new();
    port.register(CLIENT, Some(claim(u128::MAX)), true).unwrap();
    port.send(Instant::default(), CLIENT, request(5000)).unwrap();
    let mut datagram = first_datagram(&message(2, 1, Rmpp::ACTIVE | Rmpp::FIRST, 216));
    datagram[31] = 1;
    port.handle(Instant::default(), &address(B, A), &datagram).unwrap();
    assert!(port.memory() > 5000 && port.poll_timeout().is_some());
    assert!(port.unregister(CLIENT));
    assert_eq!((port.memory(), port.poll_timeout(), port.agents()), (0, None, 0));
}
