//! Room for messages of which segments have come.

use super::*;

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
