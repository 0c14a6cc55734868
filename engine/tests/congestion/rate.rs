//! The rate of a requester that CNPs have slowed, and what it holds back.

use std::time::Duration;

use urxe_engine::congestion::Algorithm;
use urxe_engine::endpoint::Event as NodeEvent;
use urxe_engine::{Event, QpState, QpType, Remote, SendOp};
use urxe_sim::single_qp::{MTU, RQ_PSN, SQ_PSN, SingleQp};
use urxe_wire::{
    Bth, Ext, Header, Mtu, Opcode, Operation as O, Psn, RKey, Reth, RnrTimer, SelectiveAck, SelectiveOffer, Syndrome,
};

use super::{cnp, settings, with};

/// Bytes that a requester gets out in so many microseconds, to a peer that acknowledges at once.
fn throughput(qp: &mut SingleQp, micros: u64) -> u64 {
    let end = qp.now + Duration::from_micros(micros);
    let (mut bytes, mut posted) = (0, 0);
    while qp.now < end {
        while posted < 32 {
            qp.post(posted, SendOp::Write(Remote { addr: 0, r_key: RKey(0) }), 4096);
            posted += 1;
        }
        let sent = qp.sent();
        bytes += sent.iter().map(|packet| packet.payload.len() as u64).sum::<u64>();
        if let Some(last) = sent.last().filter(|last| last.header.bth.opcode != Opcode::CNP) {
            qp.gets_ack(last.header.bth.psn.get());
        }
        posted -= u64::try_from(qp.completed().len()).unwrap();
        let next = qp.timeout().unwrap_or_default().clamp(Duration::from_micros(1), Duration::from_micros(10));
        qp.elapse(next);
    }
    bytes
}

//= spec/congestion.md#ecn-004
//= type=test
//# A rate that is limited MUST stay between rpg_min_rate and the speed of the interface, and hold back no ACK.
#[test]
fn a_limited_rate_holds_back_requests_and_no_acks() {
    let mut fixed = settings(Algorithm::Dcqcn);
    fixed.parameters.rate_to_set_on_first_cnp = 100;
    fixed.parameters.rpg_time_reset = 131_071;
    fixed.parameters.rpg_byte_reset = 0;
    let mut qp = with(fixed, QpType::Rc);
    qp.gets_from("10.0.0.2".parse().unwrap(), &cnp(&qp), &[]);
    // 100 Mbit/s for 20 ms are 250 kB on the link, of which the headers of packets of 256 bytes are a fourth.
    let bytes = throughput(&mut qp, 20_000);
    assert!((170_000..230_000).contains(&bytes), "{bytes}");
    // The next request waits; an ACK does not.
    qp.recv(99, 64);
    qp.gets(O::SendOnly, RQ_PSN, Ext::None, b"x");
    assert_eq!(qp.sent().first().map(ToString::to_string).as_deref(), Some("ACK 100"));
}

/// A flood of CNPs leaves the least rate, and when it ends the rate comes back.
#[test]
fn a_flood_of_cnps_does_not_stop_the_requester() {
    let mut qp = with(settings(Algorithm::Dcqcn), QpType::Rc);
    for _ in 0..1000 {
        qp.elapse(Duration::from_micros(4));
        qp.gets_from("10.0.0.2".parse().unwrap(), &cnp(&qp), &[]);
    }
    assert!(throughput(&mut qp, 10_000) > 0);
    qp.elapse(Duration::from_secs(10));
    // Nothing limits it: a window each time.
    assert!(throughput(&mut qp, 1000) > 200_000);
}

/// A queue pair that a CNP has slowed to so many Mbit/s, for some 130 ms.
fn slowed(megabits: u32) -> SingleQp {
    let mut fixed = settings(Algorithm::Dcqcn);
    fixed.parameters.rate_to_set_on_first_cnp = megabits;
    fixed.parameters.rpg_time_reset = 131_071;
    fixed.parameters.rpg_byte_reset = 0;
    let mut qp = with(fixed, QpType::Rc);
    qp.gets_from("10.0.0.2".parse().unwrap(), &cnp(&qp), &[]);
    qp
}

/// Asks for `packets` packets.
fn asks_to_read(qp: &mut SingleQp, packets: usize) {
    let reth =
        Reth { va: qp.remote.addr, r_key: RKey(qp.remote.key.0), dma_len: u32::try_from(packets * MTU).unwrap() };
    qp.gets(O::ReadRequest, RQ_PSN, Ext::Reth(reth), &[]);
}

fn write() -> SendOp {
    SendOp::Write(Remote { addr: 0, r_key: RKey(0) })
}

/// Lets it send for so long, to a peer that says nothing.
fn sends_for(qp: &mut SingleQp, time: Duration) -> Vec<String> {
    let end = qp.now + time;
    let mut sent = Vec::new();
    while qp.now < end {
        sent.extend(qp.sent().iter().map(ToString::to_string));
        let wait = qp.timeout().unwrap_or(time).clamp(Duration::from_nanos(1), end.since(qp.now));
        qp.elapse(wait);
    }
    sent
}

/// A duplicate READ that is refused is one packet, and not all those that it would have been.
#[test]
fn responses_that_never_leave_take_nothing_of_the_rate() {
    let mut qp = slowed(1);
    asks_to_read(&mut qp, 16);
    assert_eq!(sends_for(&mut qp, Duration::from_millis(60)).len(), 16);
    qp.node.memory_mut().deregister(qp.remote.key);
    asks_to_read(&mut qp, 16);
    assert_eq!(qp.sent(), ["NAK RemoteAccessError 100"]);
    qp.post(1, write(), 256);
    assert_eq!(qp.sent(), ["RDMA WRITE Only 200 ?"]);
}

/// The last packet before a pause asks for an ACK: a peer that owes none would seem dead.
#[test]
fn a_long_message_at_a_low_rate_is_not_sent_twice() {
    let mut qp = slowed(10);
    qp.post(1, write(), 16 * 1024);
    let (end, mut packets) = (qp.now + Duration::from_millis(120), 0);
    while qp.now < end {
        for packet in qp.sent() {
            packets += 1;
            qp.elapse(Duration::from_micros(20));
            if packet.header.bth.ack_req {
                qp.gets_ack(packet.header.bth.psn.get());
            }
        }
        let wait = qp.timeout().unwrap_or_default().clamp(Duration::from_micros(1), Duration::from_millis(1));
        qp.elapse(wait);
    }
    let is_retry = |event: &NodeEvent| matches!(event, NodeEvent::Trace(_, Event::Retry { .. }));
    assert_eq!(qp.log().iter().filter(|event| is_retry(event)).count(), 0);
    assert_eq!(packets, 64);
}

/// Tries count from when the packet leaves, not while it waits for that.
#[test]
fn no_try_is_counted_while_a_retransmission_waits() {
    let mut attr = SingleQp::attr();
    (attr.timeout, attr.path_mtu) = (6, Mtu::Mtu1024);
    let mut fixed = settings(Algorithm::Dcqcn);
    fixed.parameters.rate_to_set_on_first_cnp = 1;
    fixed.parameters.rpg_time_reset = 131_071;
    fixed.parameters.rpg_byte_reset = 0;
    let mut qp = SingleQp::reset(|setup, _| setup.congestion = fixed);
    qp.go_to(QpState::Rts, &attr);
    qp.gets_from("10.0.0.2".parse().unwrap(), &cnp(&qp), &[]);
    // A packet takes 8.7 ms of the link, the first ACK timeout 2 ms, those that follow 8 ms.
    qp.post(1, write(), 1024);
    let sent = sends_for(&mut qp, Duration::from_millis(30));
    assert_eq!(sent.len(), 4, "{sent:?}");
    assert_eq!(qp.completed(), []);
}

/// READ responses leave at their time, whatever requests wait for.
#[test]
fn responses_do_not_wait_for_the_rnr_timer() {
    let mut qp = slowed(10);
    qp.post(1, SendOp::Send, 256);
    assert_eq!(qp.sent().len(), 1);
    qp.gets_aeth(200, Syndrome::RnrNak(RnrTimer::new(0)));
    asks_to_read(&mut qp, 16);
    let sent = sends_for(&mut qp, Duration::from_millis(20));
    assert_eq!(sent.iter().filter(|packet| packet.starts_with("RDMA READ response")).count(), 16, "{sent:?}");
}

/// READ responses and requests take turns at a limited rate.
#[test]
fn responses_leave_requests_half_of_the_rate() {
    let mut qp = slowed(10);
    asks_to_read(&mut qp, 16);
    for n in 0..8 {
        qp.post(n, write(), 256);
    }
    let sent = sends_for(&mut qp, Duration::from_millis(3));
    let writes = sent.iter().filter(|packet| packet.starts_with("RDMA WRITE")).count();
    assert!((4..=8).contains(&writes) && sent.len() - writes >= 4, "{sent:?}");
}

/// A READ request is one packet, however long the response.
#[test]
fn a_read_request_takes_one_packet_of_the_rate() {
    let mut qp = slowed(10);
    qp.post(1, SendOp::Read(Remote { addr: 0, r_key: RKey(0) }), u32::try_from(16 * MTU).unwrap());
    qp.post(2, write(), 256);
    let sent = sends_for(&mut qp, Duration::from_micros(500));
    assert_eq!(sent.last().map(String::as_str), Some("RDMA WRITE Only 216 ?"), "{sent:?}");
}

/// READ responses are data as well: what is asked for comes at the rate.
#[test]
fn read_responses_are_limited_too() {
    let mut qp = slowed(10);
    asks_to_read(&mut qp, 16);
    let mut responses = qp.sent().len();
    assert!(responses < 16, "{responses} at once");
    let mut waits = 0;
    while responses < 16 {
        let wait = qp.timeout().expect("it waits for its time");
        qp.elapse(wait);
        responses += qp.sent().len();
        waits += 1;
        assert!(waits < 100);
    }
    assert!(waits > 4, "10 Mbit/s are a packet in a quarter of a millisecond");
}

/// Completions of received messages do not wait for READ responses at a limited rate.
#[test]
fn completions_do_not_wait_for_the_rate() {
    let mut qp = slowed(1);
    qp.recv(1, 64);
    asks_to_read(&mut qp, 16);
    qp.gets(O::SendOnly, RQ_PSN + 16, Ext::None, b"x");
    assert!(qp.sent().len() < 16);
    assert!(!qp.node.qp(qp.qpn).owes_answer(), "the rest leaves in milliseconds");
    let sent = sends_for(&mut qp, Duration::from_millis(60));
    assert_eq!(sent.last().map(String::as_str), Some("ACK 116"));
}

/// Bytes raise the rate of UC again, as they do that of RC.
#[test]
fn bytes_raise_the_rate_of_uc() {
    let micros = |reset: u32| {
        let mut by_bytes = settings(Algorithm::Window);
        by_bytes.parameters.rpg_time_reset = 131_071;
        by_bytes.parameters.rate_to_set_on_first_cnp = 10;
        by_bytes.parameters.rpg_byte_reset = reset;
        by_bytes.parameters.rpg_hai_rate = 500;
        by_bytes.parameters.rpg_ai_rate = 500;
        let mut qp = with(by_bytes, QpType::Uc);
        qp.gets_from("10.0.0.2".parse().unwrap(), &cnp(&qp), &[]);
        for n in 0..60 {
            qp.post(n, SendOp::Send, 256);
        }
        let begin = qp.now;
        let mut sent = qp.sent().len();
        while sent < 60 {
            let wait = qp.timeout().unwrap();
            qp.elapse(wait);
            sent += qp.sent().len();
        }
        qp.now.since(begin).as_micros()
    };
    let (never, often) = (micros(0), micros(1024));
    assert!(2 * often < never, "{often} µs instead of {never} µs");
}

/// Whether packets are lost is looked at when they could be sent again, and not all the time until then.
#[test]
fn overtaken_packets_wait_for_the_rate() {
    let mut fixed = settings(Algorithm::Dcqcn);
    fixed.parameters.rate_to_set_on_first_cnp = 1;
    let mut qp = SingleQp::reset(|setup, _| (setup.congestion, setup.selective_paths) = (fixed, 1));
    qp.go_to(QpState::Rts, &SingleQp::attr());
    let peer = "10.0.0.2".parse().unwrap();
    let own = |opcode, psn: u32, ext| Header::new(Bth::new(opcode, qp.qpn, Psn::new(psn)), ext);
    let answer = Ext::SelectiveOffer(SelectiveOffer { answer: true, window: 64 });
    let offer = own(Opcode::SELECTIVE_OFFER, 0, answer);
    let sack = own(Opcode::SELECTIVE_ACK, SQ_PSN, Ext::SelectiveAck(SelectiveAck { duplicates: 0 }));
    qp.gets_from(peer, &offer, &[]);
    let remote = Remote { addr: 0, r_key: RKey(0) };
    qp.post(1, SendOp::Write(remote), 3 * 256);
    assert_eq!(qp.sent().len(), 3);
    qp.gets_from(peer, &sack, &[0xC0, 0, 0, 0]);
    assert_eq!(qp.sent(), [""; 0], "two may have overtaken the first one");
    qp.gets_from(peer, &cnp(&qp), &[]);
    qp.post(2, SendOp::Write(remote), 16 * 256);
    assert!(qp.sent().len() < 16);
    let (mut wakes, end) = (0, qp.now + Duration::from_millis(10));
    while let Some(wait) = qp.timeout().filter(|wait| qp.now + *wait < end) {
        qp.elapse(wait);
        qp.sent();
        wakes += 1;
        assert!(wakes < 100, "it wakes up for nothing");
    }
}

/// UC has no window: DCQCN slows it, whatever the algorithm.
#[test]
fn uc_is_slowed_by_cnps() {
    let paced = |notify: bool| {
        let mut qp = with(settings(Algorithm::Window), QpType::Uc);
        if notify {
            for _ in 0..40 {
                qp.elapse(Duration::from_micros(4));
                qp.gets_from("10.0.0.2".parse().unwrap(), &cnp(&qp), &[]);
            }
        }
        for n in 0..40 {
            qp.post(n, SendOp::Send, 256);
        }
        let (begin, mut sent) = (qp.now, qp.sent().len());
        while sent < 40 {
            let wait = qp.timeout().unwrap();
            qp.elapse(wait);
            sent += qp.sent().len();
        }
        qp.now.since(begin)
    };
    assert!(paced(true) > 2 * paced(false));
}
