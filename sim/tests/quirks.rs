//! Behaviour that the specification allows and devices rarely show ([`urxe_engine::quirks`]): the oracle accepts every
//! quirk, and each quirk shows.

use std::cell::RefCell;
use std::rc::Rc;

use urxe_engine::quirks::{AckPolicy, CreditPolicy, Quirk, TABLE};
use urxe_engine::{
    Access, Data, Instant, QpQuirks, QuirkSet, Recipient, RecvWr, Remote, SendFlags, SendOp, SendWr, Sge, SgeList,
    WcStatus,
};
use urxe_sim::memory::DEFAULT_PD;
use urxe_sim::oracle::{Profile, Scenario};
use urxe_sim::{Connection, Fabric, Flight, NodeConfig, NodeId, Verdict};
use urxe_wire::{Credits, Ext, Qpn, Syndrome};

fn check(scenario: &Scenario) {
    if let Err(complaint) = scenario.run(&mut Fabric::new()) {
        panic!("seed {} ({:?}, {:?}): {}", scenario.seed, scenario.profile, scenario.node.quirks, complaint.0);
    }
}

/// Runs 400 seeds of quirks on a network that loses, duplicates, delays and corrupts.
#[test]
fn nothing_is_wrong_with_any_seed() {
    for seed in 0..400 {
        let mut scenario = Scenario::from_seed(5_000_000 + seed);
        scenario.node.quirks = Some(QuirkSet::new(seed));
        check(&scenario);
    }
}

/// Each alone, on each kind of network.
#[test]
fn nothing_is_wrong_with_any_behaviour() {
    for row in &TABLE {
        for (seed, profile) in (6_000_000..).zip(Profile::ALL) {
            for nth in 0..2 {
                let mut scenario = Scenario::new(seed + 1000 * nth, profile);
                scenario.node.quirks = Some(QuirkSet::of(nth, &[row.quirk]));
                check(&scenario);
            }
        }
    }
}

#[test]
fn same_seed_same_bytes() {
    let run = |seed| {
        let mut scenario = Scenario::new(7_000_000, Profile::Mixed);
        scenario.node.quirks = Some(QuirkSet::of(seed, &TABLE.map(|row| row.quirk)));
        scenario.run(&mut Fabric::new()).expect("it goes well").digest
    };
    assert_eq!(run(1), run(1));
    assert_ne!(run(1), run(2));
}

/// Two nodes with one quirk, and a queue pair on each.
struct Two {
    fabric: Fabric,
    ends: [(NodeId, Qpn); 2],
    acks: Rc<RefCell<Vec<(Instant, Syndrome)>>>,
}

impl Two {
    fn new(quirks: QuirkSet) -> Self {
        let mut fabric = Fabric::new();
        let config = |seed| NodeConfig { seed, quirks: Some(quirks), ..NodeConfig::default() };
        let [a, b] = [1, 2].map(|seed| fabric.add_node(config(seed)));
        let (near, far) = fabric.connect(a, b, &Connection::default());
        let acks = Rc::<RefCell<Vec<_>>>::default();
        let seen = Rc::clone(&acks);
        fabric.add_rule(move |flight: &Flight<'_>| {
            if let (true, Ext::Aeth(aeth)) = (flight.from == b, flight.packet.ext()) {
                seen.borrow_mut().push((flight.now, aeth.syndrome));
            }
            Verdict::Pass
        });
        Self { fabric, ends: [(a, near), (b, far)], acks }
    }

    /// Posts `count` requests of so many bytes each; returns where WRITEs go to.
    fn post(&mut self, count: u64, length: u32, op: impl Fn(Remote) -> SendOp) -> u64 {
        let [(a, qp), (b, _)] = self.ends;
        let from = self.fabric.node_mut(a).memory_mut().register_new(length as usize, Access::NONE);
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let to = self.fabric.node_mut(b).memory_mut().register_new(length as usize, access);
        self.fabric.node_mut(a).memory_mut().poke(from.addr, &vec![7; length as usize]);
        let sge = Sge { addr: from.addr, length, l_key: from.key.0 };
        for wr_id in 0..count {
            let data = Data::Gather(SgeList::new(&[sge]));
            let flags = SendFlags { signaled: true, ..SendFlags::default() };
            let wr = SendWr { wr_id, op: op(to.remote()), data, flags, to: Recipient::Peer };
            self.fabric.post_send(a, qp, wr).expect("there is room");
        }
        to.addr
    }

    fn post_recvs(&mut self, count: u64) {
        let (b, qp) = self.ends[1];
        for wr_id in 0..count {
            self.fabric.post_recv(b, qp, RecvWr { wr_id, buffers: SgeList::new(&[]) }).expect("there is room");
        }
    }

    /// Completions of the sender, all of which must be good.
    fn completed(&mut self) -> usize {
        let (a, qp) = self.ends[0];
        let cq = self.fabric.node(a).send_cq(qp);
        let all: Vec<_> = std::iter::from_fn(|| self.fabric.node_mut(a).poll(cq)).collect();
        assert!(all.iter().all(|cqe| cqe.status == WcStatus::Success), "{all:?}");
        all.len()
    }
}

/// The first seed with which a quirk has this extreme.
fn find(quirk: Quirk, wanted: impl Fn(&QpQuirks) -> bool) -> QuirkSet {
    let mut all = (0..).map(|seed| QuirkSet::of(seed, &[quirk]));
    all.find(|quirks| wanted(&quirks.queue_pair(0))).expect("there are many seeds")
}

//= spec/responder.md#rsp-027
//= type=test
//# All bytes of a WRITE MUST be stored before it is acknowledged and before what follows it is carried out.
#[test]
fn the_last_bytes_of_a_write_come_first() {
    let mut two = Two::new(QuirkSet::of(1, &[Quirk::WriteOrder]));
    let at = two.post(1, 3000, SendOp::Write);
    let (b, _) = two.ends[1];
    let (mut torn, mut whole) = (false, false);
    while two.fabric.step().is_some() {
        let bytes = two.fabric.node(b).memory().peek(at, 3000);
        torn |= bytes[2999] == 7 && bytes[0] == 0;
        whole = bytes.iter().all(|&byte| byte == 7);
        assert!(whole || two.acks.borrow().is_empty(), "acknowledged before it was there");
    }
    assert!(torn && whole && two.completed() == 1);
}

#[test]
fn credits_are_held_back() {
    for (policy, told) in [
        (CreditPolicy::AtMost(0), Credits::from_wqes(0)),
        (CreditPolicy::AtMost(1), Credits::from_wqes(1)),
        (CreditPolicy::Uncounted, Credits::INVALID),
    ] {
        let mut two = Two::new(find(Quirk::Credits, |its| its.credits == policy));
        two.post_recvs(20);
        two.post(20, 0, |_| SendOp::Send);
        two.fabric.run();
        assert_eq!(two.completed(), 20, "{policy:?}");
        let acks = two.acks.borrow();
        let least = acks.iter().all(|(_, syndrome)| match *syndrome {
            Syndrome::Ack(credits) => credits == told || credits.wqes() == Some(0),
            _ => false,
        });
        assert!(least && !acks.is_empty(), "{policy:?}: {acks:?}");
    }
}

#[test]
fn each_packet_has_its_ack() {
    let mut two = Two::new(find(Quirk::Acks, |its| its.acks == AckPolicy::PerPacket));
    two.post(3, 10 * 1024, SendOp::Write);
    two.fabric.run();
    assert_eq!((two.completed(), two.acks.borrow().len()), (3, 30));
}

#[test]
fn acks_come_late_and_for_all() {
    let quirks = find(Quirk::Acks, |its| matches!(its.acks, AckPolicy::Delayed(_)));
    let AckPolicy::Delayed(by) = quirks.queue_pair(0).acks else { unreachable!() };
    let mut two = Two::new(quirks);
    two.post(30, 8, SendOp::Write);
    two.fabric.run();
    let acks = two.acks.borrow().clone();
    assert_eq!((two.completed(), acks.len()), (30, 1), "{acks:?}");
    assert!(acks[0].0 >= Instant::from_nanos(0) + by);
}

#[test]
fn messages_take_any_receive_of_an_srq() {
    let mut fabric = Fabric::new();
    let quirks = Some(QuirkSet::of(1, &[Quirk::SrqOrder]));
    let node = fabric.add_node(NodeConfig { quirks, ..NodeConfig::default() });
    let mut verbs = fabric.node_mut(node).verbs();
    let srq = verbs.create_srq(DEFAULT_PD, 32);
    for wr_id in 0..32 {
        verbs.srq(srq).post(RecvWr { wr_id, buffers: SgeList::new(&[]) }).expect("there is room");
    }
    let taken: Vec<_> = std::iter::from_fn(|| verbs.srq(srq).take()).map(|taken| taken.wr.wr_id).collect();
    assert!(taken.len() == 32 && !taken.is_sorted(), "{taken:?}");
}
