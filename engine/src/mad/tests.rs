//! Agents in virtual time.

use core::time::Duration;
use std::vec;
use std::vec::Vec;

use urxe_wire::mad::{MAD_LEN, Mad, Rmpp};
use urxe_wire::{Gid, Qpn};

use super::perf::{Performance, Values};
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
    let header = Mad {
        class: VENDOR,
        class_version: 1,
        method,
        status: 0,
        class_specific: 0,
        transaction_id,
        attribute_id: 0,
        attribute_modifier: 0,
    };
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

#[test]
fn who_is_not_answered_hears_it_after_the_last_attempt() {
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
    let header = Mad {
        class: Mad::CLASS_SUBN_LID,
        class_version: 1,
        method: Mad::METHOD_TRAP,
        status: 0,
        class_specific: 0,
        transaction_id: 7,
        attribute_id: 2,
        attribute_modifier: 0,
    };
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
fn messages_of_64_kib_go_both_ways_in_segments() {
    let losses: [fn(usize) -> bool; 3] = [|_| false, |carried| carried % 37 == 5, |carried| carried % 23 == 1];
    for loses in losses {
        let mut pair = Pair::new(loses);
        let mut large = request(65536);
        large.retries = 100;
        large.timeout = Some(Duration::from_secs(3600));
        pair.ports[0].send(pair.now, CLIENT, large.clone()).unwrap();
        let asked = pair.message(1);
        assert_eq!(asked.len(), large.message.len());
        assert_eq!(asked[40..], large.message[40..]);
        let now = pair.now;
        let back = Outgoing { retries: 100, ..answer(&asked, 65536 + 7) };
        pair.ports[1].send(now, SERVER, back.clone()).unwrap();
        assert_eq!(pair.message(0)[40..], back.message[40..]);
        pair.rest();
    }
}

#[test]
fn messages_of_every_length_arrive_as_they_were() {
    for data in (217..1100).step_by(31).chain([432, 648]) {
        let mut pair = Pair::new(|_| false);
        pair.ports[0].send(pair.now, CLIENT, request(data)).unwrap();
        let asked = pair.message(1);
        assert_eq!(asked.len(), 40 + data);
        assert_eq!(asked[40..], request(data).message[40..]);
    }
}

#[test]
fn what_the_kernel_refuses_to_send() {
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

/// ACKs, STOPs and ABORTs that lie end the message and are answered; nothing is kept.
#[test]
fn a_liar_is_told_why() {
    let lies = [
        (Rmpp::ACK, 0, 5, 4, Rmpp::WINDOW_TOO_SMALL),
        (Rmpp::ACK, 0, 5, 70, Rmpp::SEGMENT_TOO_BIG),
        (Rmpp::ACK, 3, 1, 70, Rmpp::BAD_STATUS),
        (Rmpp::STOP, 5, 0, 0, Rmpp::BAD_STATUS),
        (Rmpp::ABORT, 5, 0, 0, Rmpp::BAD_STATUS),
        (9, 0, 0, 0, Rmpp::BAD_TYPE),
    ];
    for (kind, status, segment, window, told) in lies {
        let mut port = Port::new();
        port.register(CLIENT, None, true).unwrap();
        port.send(Instant::default(), CLIENT, request(5000)).unwrap();
        let first = port.poll_transmit().unwrap();
        assert!(port.poll_transmit().is_none(), "one segment until there is an ACK");
        let lie = rmpp::control(&first.payload, kind, status, segment, window);
        assert_eq!(port.handle(Instant::default(), &address(A, B), &lie), Err(Refusal::Rmpp));
        let said = Rmpp::of(&port.poll_transmit().unwrap().payload);
        assert_eq!((said.kind, said.status), (Rmpp::ABORT, told));
        assert_eq!((port.memory(), port.poll_timeout()), (0, None));
    }
}

#[test]
fn an_endless_window_is_used_in_bursts() {
    let mut port = Port::new();
    port.register(CLIENT, None, true).unwrap();
    port.send(Instant::default(), CLIENT, request(1 << 20)).unwrap();
    let first = port.poll_transmit().unwrap();
    let ack = rmpp::control(&first.payload, Rmpp::ACK, 0, 1, u32::MAX);
    port.handle(Instant::default(), &address(A, B), &ack).unwrap();
    assert_eq!(core::iter::from_fn(|| port.poll_transmit()).count(), 16);
    port.handle_timeout(port.poll_timeout().unwrap());
    assert_eq!(core::iter::from_fn(|| port.poll_transmit()).count(), 16);
}

/// ACKs without end that tell of no further segment move no deadline: a peer cannot keep a message for ever.
#[test]
fn repeated_acks_do_not_keep_a_message() {
    let mut port = Port::new();
    port.register(CLIENT, None, true).unwrap();
    let started = Instant::default();
    port.send(started, CLIENT, request(1 << 20)).unwrap();
    let first = port.poll_transmit().unwrap();
    let (mut now, mut window) = (started, 20);
    while port.memory() > 0 {
        assert!(now.since(started) < Duration::from_secs(60), "{} bytes are kept", port.memory());
        now = now + TIMEOUT / 4;
        port.handle_timeout(now);
        window += 1;
        for window in [window, window] {
            let ack = rmpp::control(&first.payload, Rmpp::ACK, 0, 1, window);
            let _ = port.handle(now, &address(A, B), &ack);
        }
        while port.poll_transmit().is_some() {}
    }
    assert!(matches!(port.poll_delivery(), Some((CLIENT, Delivery::TimedOut { .. }))));
}

/// ABORTs, STOPs and ACKs that lie end a request from the GID that it goes to only, and from the one that acknowledges.
#[test]
fn a_third_host_does_not_end_a_request() {
    let (other, third) = (Gid::new([0xC; 16]), Gid::new([0xD; 16]));
    let now = Instant::default();
    let mut port = Port::new();
    port.register(CLIENT, None, true).unwrap();
    port.send(now, CLIENT, request(5000)).unwrap();
    let first = port.poll_transmit().unwrap();
    let abort = rmpp::control(&first.payload, Rmpp::ABORT, Rmpp::TOO_LONG, 0, 0);
    let stop = rmpp::control(&first.payload, Rmpp::STOP, Rmpp::RESOURCES_EXHAUSTED, 0, 0);
    let lie = rmpp::control(&first.payload, Rmpp::ACK, 0, 5, 4);
    for datagram in [&abort, &stop, &lie] {
        let _ = port.handle(now, &address(A, third), datagram);
        assert_eq!(port.sending.len(), 1);
    }
    while port.poll_transmit().is_some() {}
    let ack = rmpp::control(&first.payload, Rmpp::ACK, 0, 1, 17);
    port.handle(now, &address(A, other), &ack).unwrap();
    assert!(core::iter::from_fn(|| port.poll_transmit()).count() > 0, "another GID of the peer");
    let _ = port.handle(now, &address(A, third), &abort);
    assert_eq!(port.sending.len(), 1);
    port.handle(now, &address(A, other), &abort).unwrap();
    assert_eq!(port.sending.len(), 0);
}

/// ACKs and ABORTs about a response count from one GID of the peer only.
#[test]
fn a_third_host_does_not_end_anothers_message() {
    let mut port = Port::new();
    let message = message(Mad::METHOD_GET | Mad::RESPONSE, 7, Rmpp::ACTIVE, 5000);
    let answer = Outgoing { to: address(A, B), message, timeout: None, retries: 5, context: 0 };
    let (other, third) = (Gid::new([0xC; 16]), Gid::new([0xD; 16]));
    let now = Instant::default();
    let count = |port: &Port| port.sending.len();
    port.register(CLIENT, Some(claim(u128::MAX)), true).unwrap();
    port.send(now, CLIENT, answer.clone()).unwrap();
    let first = port.poll_transmit().unwrap();
    let ack = rmpp::control(&first.payload, Rmpp::ACK, 0, 1, 17);
    port.handle(now, &address(A, other), &ack).unwrap();
    assert!(core::iter::from_fn(|| port.poll_transmit()).count() > 0, "another GID of the peer");
    let abort = rmpp::control(&first.payload, Rmpp::ABORT, Rmpp::TOO_LONG, 0, 0);
    port.handle(now, &address(A, third), &abort).unwrap();
    assert_eq!(count(&port), 1, "a third host");
    port.send(now, CLIENT, Outgoing { to: address(A, third), ..answer }).unwrap();
    port.handle(now, &address(A, Gid::new([0xE; 16])), &abort).unwrap();
    assert_eq!(count(&port), 2, "of two, none is meant");
    port.handle(now, &address(A, other), &abort).unwrap();
    assert_eq!(count(&port), 1, "the one that it has acknowledged");
    port.handle(now, &address(A, B), &abort).unwrap();
    assert_eq!(count(&port), 1, "the other's");
    port.handle(now, &address(A, third), &abort).unwrap();
    assert_eq!(count(&port), 0);
}

#[test]
fn the_turn_of_the_direction_is_no_ack_of_nothing() {
    let mut port = Port::new();
    port.register(SERVER, Some(claim(u128::MAX)), true).unwrap();
    let datagram = first_datagram(&message(Mad::METHOD_GET | Mad::RESPONSE, 7, Rmpp::ACTIVE, 216));
    let turn = rmpp::control(&datagram, Rmpp::ACK, 0, 0, 1);
    assert_eq!(port.handle(Instant::default(), &address(B, A), &turn), Ok(()));
    let ack = rmpp::control(&datagram, Rmpp::ACK, 0, 1, 1);
    assert_eq!(port.handle(Instant::default(), &address(B, A), &ack), Err(Refusal::NoRequest));
}

#[test]
fn first_segments_without_end_are_bounded() {
    let mut port = Port::new();
    port.register(SERVER, Some(claim(u128::MAX)), true).unwrap();
    let (mut refused, mut now) = (0, Instant::default());
    for id in 0..5000 {
        let mut datagram = first_datagram(&message(1, id, Rmpp::ACTIVE | Rmpp::FIRST, 216));
        datagram[31] = 1;
        refused += u32::from(port.handle(now, &address(B, A), &datagram) == Err(Refusal::Rmpp));
        while port.poll_transmit().is_some() {}
    }
    assert_eq!((port.reassembly.len(), refused), (128, 5000 - 128), "a peer's share");
    while let Some(at) = port.poll_timeout() {
        now = at;
        port.handle_timeout(now);
    }
    assert_eq!((port.memory(), port.reassembly.len()), (0, 0));
    assert_eq!(now.since(Instant::default()), reassembly::TOTAL_TIME);
}

/// The first segment of message `id` of a peer, from a port that has a server.
fn begin(port: &mut Port, peer: Gid, id: u64) -> Result<(), Refusal> {
    let mut datagram = first_datagram(&message(1, id, Rmpp::ACTIVE | Rmpp::FIRST, 216));
    datagram[31] = 1;
    port.handle(Instant::default(), &address(B, peer), &datagram)
}

/// Eight peers that fill all room keep a ninth from nothing; one of their messages makes way, and its sender is told.
#[test]
fn peers_with_many_messages_make_way_for_one_with_few() {
    let mut port = Port::new();
    port.register(SERVER, Some(claim(u128::MAX)), true).unwrap();
    for peer in 1..=8 {
        for id in 0..128 {
            begin(&mut port, Gid::new([peer; 16]), id).unwrap();
        }
    }
    assert_eq!(port.reassembly.len(), 1024);
    while port.poll_transmit().is_some() {}
    begin(&mut port, A, 1).unwrap();
    assert_eq!(port.reassembly.len(), 1024);
    let stopped = port.poll_transmit().unwrap();
    assert_eq!(Rmpp::of(&stopped.payload).kind, Rmpp::STOP);
    assert!((1..=8).any(|peer| stopped.to.remote == Gid::new([peer; 16])));
    let acked = port.poll_transmit().unwrap();
    assert_eq!((Rmpp::of(&acked.payload).kind, acked.to.remote), (Rmpp::ACK, A));
    assert_eq!(begin(&mut port, Gid::new([1; 16]), 1000), Err(Refusal::Rmpp), "who has most gets no more");
}

/// Segments of one peer take its share of the bytes; what other peers and the own agents send has room beside it.
#[test]
fn a_peer_has_a_share_of_the_bytes() {
    let mut port = Port::new();
    port.register(SERVER, Some(claim(u128::MAX)), true).unwrap();
    let mut refused = 0;
    for id in 0..3 {
        for number in 1..35_000_u32 {
            let flags = Rmpp::ACTIVE | if number == 1 { Rmpp::FIRST } else { 0 };
            let mut datagram = first_datagram(&message(1, id, flags, 216));
            datagram[28..32].copy_from_slice(&number.to_be_bytes());
            if port.handle(Instant::default(), &address(B, A), &datagram).is_err() {
                refused += 1;
                break;
            }
            while port.poll_transmit().is_some() {}
        }
    }
    assert_eq!(refused, 1, "of three messages of 7 MiB two have room");
    assert!(port.memory() > 15_000_000 && port.memory() < 17 << 20, "{}", port.memory());
    begin(&mut port, B, 1).unwrap();
    port.register(CLIENT, None, true).unwrap();
    for id in 0..3 {
        let message = message(1, id, Rmpp::ACTIVE, 20 << 20);
        port.send(Instant::default(), CLIENT, Outgoing { message, ..request(0) }).unwrap();
    }
}

#[test]
fn lying_lengths_give_what_has_arrived() {
    for length in [0, 3, 221, u32::MAX] {
        let mut port = Port::new();
        port.register(SERVER, Some(claim(u128::MAX)), true).unwrap();
        let mut datagram = first_datagram(&message(1, 1, 0, 216));
        datagram[26] = Rmpp::ACTIVE | Rmpp::FIRST | Rmpp::LAST;
        datagram[31] = 1;
        datagram[32..36].copy_from_slice(&length.to_be_bytes());
        port.handle(Instant::default(), &address(B, A), &datagram).unwrap();
        let Some((SERVER, Delivery::Received { message, .. })) = port.poll_delivery() else { panic!() };
        assert_eq!(message.len(), MAD_LEN, "{length}");
    }
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

#[test]
fn performance_counters_start_again_where_they_are_set() {
    const PORT_COUNTERS: u16 = 0x12;
    let ask = |method, attribute_id, port, select: u16| {
        let mut datagram = [0; MAD_LEN];
        let header = Mad {
            class: Mad::CLASS_PERF,
            class_version: 1,
            method,
            status: 0,
            class_specific: 0,
            transaction_id: 1,
            attribute_id,
            attribute_modifier: 0,
        };
        header.emit(datagram.first_chunk_mut().unwrap());
        datagram[65] = port;
        datagram[66..68].copy_from_slice(&select.to_be_bytes());
        datagram
    };
    let packets = |answer: [u8; MAD_LEN]| u32::from_be_bytes(answer[64 + 36..64 + 40].try_into().unwrap());
    let status = |answer: [u8; MAD_LEN]| Mad::of(&answer).unwrap().status;
    let (mut performance, mut values) = (Performance::default(), [0; urxe_wire::mad::perf::COUNTERS]);
    values[urxe_wire::mad::perf::Counter::RcvPackets as usize] = 12;
    let mut answer = |datagram, values: &Values| performance.answer(&datagram, values).unwrap();
    assert_eq!(packets(answer(ask(1, PORT_COUNTERS, 1, 0), &values)), 12);
    assert_eq!(packets(answer(ask(2, PORT_COUNTERS, 1, 0x4000), &values)), 12, "not selected");
    assert_eq!(packets(answer(ask(2, PORT_COUNTERS, 1, 0x8000), &values)), 0);
    values[urxe_wire::mad::perf::Counter::RcvPackets as usize] = 15;
    assert_eq!(packets(answer(ask(1, PORT_COUNTERS, 255, 0), &values)), 3);
    let extended = answer(ask(1, 0x1D, 1, 0), &values);
    assert_eq!(extended[64 + 32..64 + 40], 3_u64.to_be_bytes());
    assert_eq!(packets(answer(ask(1, PORT_COUNTERS, 1, 0), &[0; 17])), 0, "a process has gone, with its counts");
    assert_eq!(status(answer(ask(1, 0x99, 1, 0), &values)), Mad::STATUS_BAD_METHOD_ATTRIBUTE);
    assert_eq!(status(answer(ask(1, PORT_COUNTERS, 2, 0), &values)), Mad::STATUS_INVALID_FIELD);
    let info = answer(ask(1, 1, 0, 0), &values);
    assert_eq!((info[3], info[64..68].to_vec()), (0x81, vec![1, 1, 0x15, 0]));
}
