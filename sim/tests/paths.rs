//! Paths that lose for a while or for ever, in virtual time: a path that was left is used again when it is good, or needed.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use urxe_engine::endpoint::Event as NodeEvent;
use urxe_engine::time::Instant;
use urxe_engine::{Access, Data, Event, Recipient, SendFlags, SendOp, SendWr, Sge, SgeList, WcStatus};
use urxe_sim::rule::{Chance, Drops, Flight, Rule as _, Verdict};
use urxe_sim::{Connection, Fabric, NodeConfig, Step};

const LENGTH: u32 = 64 * 1024;
/// Time between messages: each has arrived long before the next, so that a good path neither loses nor reorders.
const INTERVAL: Duration = Duration::from_millis(2);
/// The second path loses packets until then.
const LOSSY: Duration = Duration::from_millis(100);

fn at(time: Duration) -> Instant {
    Instant::from_nanos(0) + time
}

/// Outcome of a stream of messages.
struct Outcome {
    /// When packets of requests left on the first path, and on the second.
    sent: [Vec<Instant>; 2],
    /// When a path was left.
    left: Vec<Instant>,
    /// When packets were sent again.
    again: Vec<Instant>,
}

impl Outcome {
    /// Packets that left on `path` from one time until another.
    fn packets(&self, path: usize, from: Duration, until: Duration) -> usize {
        self.sent[path].iter().filter(|time| (at(from)..at(until)).contains(time)).count()
    }
}

/// Sends a message every 2 ms until `end` on two paths, with `retry_cnt` tries. The second one loses for 100 ms, the first all
/// from `broken` on.
fn stream(retry_cnt: u8, broken: Duration, end: Duration) -> Outcome {
    let mut fabric = Fabric::new();
    let config = NodeConfig { service_delay: Duration::from_micros(5), ..NodeConfig::default() };
    let (a, b) = (fabric.add_node(config), fabric.add_node(config));
    let sent = Rc::new(RefCell::new([Vec::new(), Vec::new()]));
    let (noted, mut losses, mut first) = (Rc::clone(&sent), Drops::new(7, Chance::percent(30)), None);
    fabric.add_rule(move |flight: &Flight<'_>| {
        if flight.from != a {
            return Verdict::Pass;
        }
        // Nothing takes the second before selective repeat is agreed.
        let is_first = *first.get_or_insert(flight.source_port) == flight.source_port;
        noted.borrow_mut()[usize::from(!is_first)].push(flight.now);
        match is_first {
            true if flight.now >= at(broken) => Verdict::Drop,
            false if flight.now < at(LOSSY) => losses.on_packet(flight),
            _ => Verdict::Pass,
        }
    });
    let mut connection = Connection { selective_paths: [2; 2], window: 256, ..Connection::default() };
    (connection.attr.timeout, connection.attr.retry_cnt) = (14, retry_cnt);
    let (qp, _) = fabric.connect(a, b, &connection);
    let local = fabric.node_mut(a).memory_mut().register_new(LENGTH as usize, Access::LOCAL_WRITE);
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    let remote = fabric.node_mut(b).memory_mut().register_new(LENGTH as usize, access);
    let cq = fabric.node(a).send_cq(qp);
    let (mut posted, mut done) = (0, 0);
    fabric.alarm(at(INTERVAL), 0);
    while let Some(step) = fabric.step() {
        while let Some(cqe) = fabric.node_mut(a).poll(cq) {
            assert_eq!((cqe.wr_id, cqe.status), (done, WcStatus::Success), "at {:?}", fabric.now());
            done += 1;
        }
        if step == Step::Alarm(0) && fabric.now() < at(end) {
            let next = fabric.now() + INTERVAL;
            fabric.alarm(next, 0);
            // As many as the send queue takes while nothing arrives.
            if posted < done + 32 {
                let sge = Sge { addr: local.addr, length: LENGTH, l_key: local.key.0 };
                let flags = SendFlags { signaled: true, ..SendFlags::default() };
                let (op, data) = (SendOp::Write(remote.remote()), Data::Gather(SgeList::new(&[sge])));
                fabric.post_send(a, qp, SendWr { wr_id: posted, op, data, flags, to: Recipient::Peer }).unwrap();
                posted += 1;
            }
        }
    }
    assert_eq!(done, posted);
    let times = |is: fn(&Event) -> bool| {
        let events = fabric.journal().iter();
        let found = events.filter(|(_, _, event)| matches!(event, NodeEvent::Trace(_, event) if is(event)));
        found.map(|(time, ..)| *time).collect::<Vec<_>>()
    };
    Outcome {
        sent: sent.take(),
        left: times(|event| matches!(event, Event::LeftPath { .. })),
        again: times(|event| matches!(event, Event::SentAgain { .. })),
    }
}

#[test]
fn a_path_that_was_left_is_used_again_though_the_other_loses_nothing() {
    let (broken, end) = (Duration::from_millis(2000), Duration::from_millis(2500));
    let outcome = stream(7, broken, end);
    let (left, calm) = (Duration::from_millis(150), Duration::from_millis(1200));
    assert!(outcome.left.first().is_some_and(|time| *time < at(LOSSY)), "{:?}", outcome.left);
    assert_eq!(outcome.packets(1, left, Duration::from_millis(900)), 0, "it rests");
    assert!(!outcome.again.iter().any(|time| (at(left)..at(broken)).contains(time)), "nothing is lost");
    let [first, second] = [0, 1].map(|path| outcome.packets(path, calm, broken));
    assert!(second * 3 >= first, "{first} packets on the first path, {second} on the second");
    // Then the first one loses all.
    let second = outcome.packets(1, broken, end + Duration::from_secs(1));
    assert!(second >= 200 * LENGTH as usize / 1024, "{second} packets");
}

#[test]
fn a_path_that_rests_is_used_when_the_other_breaks() {
    let (broken, end) = (Duration::from_millis(200), Duration::from_millis(600));
    // Without tries the first ACK timeout is the last.
    for retry_cnt in [7, 0] {
        let outcome = stream(retry_cnt, broken, end);
        assert_eq!(outcome.packets(1, Duration::from_millis(150), broken), 0, "it rests");
        let second = outcome.packets(1, broken, Duration::from_millis(900));
        assert!(second >= 64 * LENGTH as usize / 1024, "{second} packets before the rest is over");
    }
}
