//! Messages in segments.

use super::*;

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
