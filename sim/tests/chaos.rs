//! What the specification allows and devices rarely show ([`urxe_engine::chaos`]): the oracle finds nothing to complain
//! about, and each behaviour shows.

use std::time::Duration;

use urxe_engine::chaos::{Behaviour, CreditPolicy, TABLE};
use urxe_engine::{Access, Chaos, Data, Event, Recipient, RecvWr, SendFlags, SendOp, SendWr, Sge, SgeList, WcStatus};
use urxe_sim::oracle::{Profile, Scenario};
use urxe_sim::rule::{Chance, Drops};
use urxe_sim::{Connection, Fabric, Happening, NodeConfig, NodeId, QpSetup};
use urxe_wire::{Operation, Packet, Qpn, Syndrome};

fn check(scenario: &Scenario) {
    if let Err(complaint) = scenario.run(&mut Fabric::new()) {
        panic!("seed {} ({:?}, {:?}): {}", scenario.seed, scenario.profile, scenario.node.chaos, complaint.0);
    }
}

/// Whatever the network does as well.
#[test]
fn nothing_is_wrong_with_any_seed() {
    for seed in 0..1500 {
        let mut scenario = Scenario::from_seed(5_000_000 + seed);
        scenario.node.chaos = Some(Chaos::new(seed));
        check(&scenario);
    }
}

/// Each alone, in each kind of weather.
#[test]
fn nothing_is_wrong_with_any_behaviour() {
    for row in &TABLE {
        for (seed, profile) in (6_000_000..).zip(Profile::ALL) {
            for nth in 0..6 {
                let mut scenario = Scenario::new(seed + 1000 * nth, profile);
                scenario.node.chaos = Some(Chaos::of(nth, &[row.behaviour]));
                check(&scenario);
            }
        }
    }
}

#[test]
fn same_seed_same_bytes() {
    let run = |seed| {
        let mut scenario = Scenario::new(7_000_000, Profile::Mixed);
        scenario.node.chaos = Some(Chaos::of(seed, &TABLE.map(|row| row.behaviour)));
        scenario.run(&mut Fabric::new()).expect("it goes well").digest
    };
    assert_eq!(run(1), run(1));
    assert_ne!(run(1), run(2));
}

/// Two nodes with one behaviour, and a queue pair on each.
struct Two {
    fabric: Fabric,
    ends: [(NodeId, Qpn); 2],
}

impl Two {
    fn new(seed: u64, behaviour: Behaviour) -> Self {
        let chaos = Some(Chaos::of(seed, &[behaviour]));
        let mut fabric = Fabric::new();
        fabric.start_capture();
        let [a, b] = [1, 2].map(|seed| fabric.add_node(NodeConfig { seed, chaos, ..NodeConfig::default() }));
        let (near, far) = fabric.connect(a, b, &Connection::default());
        Self { fabric, ends: [(a, near), (b, far)] }
    }

    fn write(&mut self, length: u32) -> u64 {
        let [(a, qp), (b, _)] = self.ends;
        let from = self.fabric.node_mut(a).memory_mut().register_new(length as usize, Access::NONE);
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let to = self.fabric.node_mut(b).memory_mut().register_new(length as usize, access);
        self.fabric.node_mut(a).memory_mut().poke(from.addr, &vec![7; length as usize]);
        let sge = Sge { addr: from.addr, length, l_key: from.key.0 };
        let data = Data::Gather(SgeList::new(&[sge]));
        let flags = SendFlags { signaled: true, ..SendFlags::default() };
        let wr = SendWr { wr_id: 1, op: SendOp::Write(to.remote()), data, flags, to: Recipient::Peer };
        self.fabric.post_send(a, qp, wr).expect("there is room");
        to.addr
    }

    /// The syndromes of all ACKs so far.
    fn acks(&self) -> Vec<Syndrome> {
        let packets = self.fabric.capture().expect("it was started").datagrams();
        let ack = |bytes: &[u8]| {
            let packet = Packet::parse(bytes).ok()?;
            let is_ack = packet.bth().opcode.operation() == Operation::Acknowledge;
            is_ack.then(|| packet.aeth().map(|aeth| aeth.syndrome)).flatten()
        };
        packets.filter_map(ack).collect()
    }
}

//= spec/completions.md#cq-010
//= type=test
//# The bytes of a WRITE MUST all be stored before it is acknowledged, and before what follows it is carried out.
#[test]
fn the_last_bytes_of_a_write_come_first() {
    let mut two = Two::new(1, Behaviour::WriteOrder);
    let at = two.write(3000);
    let (b, _) = two.ends[1];
    let (mut torn, mut whole) = (false, false);
    while two.fabric.step().is_some() {
        let bytes = two.fabric.node(b).memory().peek(at, 3000);
        torn |= bytes[2999] == 7 && bytes[0] == 0;
        whole = bytes.iter().all(|&byte| byte == 7);
        if !whole {
            assert!(two.acks().is_empty(), "acknowledged before it was there");
        }
    }
    assert!(torn && whole);
}
