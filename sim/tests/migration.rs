//! Connections whose primary path dies: they go on over the alternate one, and nothing is lost or carried out twice.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use urxe_engine::attr::{AttrMask, QpAttr};
use urxe_engine::endpoint::{Event as NodeEvent, Route};
use urxe_engine::rng::Rng;
use urxe_engine::time::Instant;
use urxe_engine::{
    Access, AsyncEvent, Data, Event, MigrationState, Paths, QpState, Recipient, RecvWr, SendFlags, SendOp, SendWr, Sge,
    SgeList, WcStatus,
};
use urxe_sim::memory::Buffer;
use urxe_sim::rule::{Chance, Drops, Flight, Verdict};
use urxe_sim::{Connection, Fabric, NodeConfig, NodeId};
use urxe_wire::Qpn;

/// Packets of the alternate path come from this UDP source port on, with several paths of selective repeat from some behind it.
const ALTERNATE: u16 = 0x8000;
const LENGTH: u32 = 10_000;
const MESSAGES: u64 = 40;
const NEVER: Duration = Duration::from_secs(1 << 30);

fn at(time: Duration) -> Instant {
    Instant::from_nanos(0) + time
}

/// Two queue pairs, each with an alternate path that differs in its UDP source port, and the path that works.
struct Ends {
    fabric: Fabric,
    nodes: [NodeId; 2],
    qps: [Qpn; 2],
    local: [Buffer; 2],
    remote: [Buffer; 2],
    /// Bit 0: the first path is dead; bit 1: the second.
    dead: Rc<Cell<u8>>,
    posted: [u64; 2],
    done: [u64; 2],
    received: [u64; 2],
    attr: QpAttr,
}

impl Ends {
    fn new(seed: u64) -> Self {
        /// Paths of selective repeat of each end.
        const SELECTIVE: [[u8; 2]; 4] = [[0, 0], [1, 1], [1, 0], [4, 4]];
        let mut fabric = Fabric::new();
        let nodes = [(); 2].map(|()| fabric.add_node(NodeConfig::default()));
        let dead = Rc::<Cell<u8>>::default();
        let broken = Rc::clone(&dead);
        fabric.add_rule(move |flight: &Flight<'_>| {
            let path = u8::from(flight.source_port < 0xC000);
            if broken.get() >> path & 1 == 1 { Verdict::Drop } else { Verdict::Pass }
        });
        fabric.add_rule(Drops::new(seed, Chance::per_mille(5)));
        let selective_paths = SELECTIVE[usize::try_from(seed % 4).unwrap()];
        let mut connection = Connection { selective_paths, ..Connection::default() };
        // 4.2 ms and 3 tries: a path that is alive loses no packet that often.
        (connection.attr.timeout, connection.attr.retry_cnt) = (10, 5);
        let (a, b) = fabric.connect(nodes[0], nodes[1], &connection);
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
        let mut region = |id: NodeId| fabric.node_mut(id).memory_mut().register_new(LENGTH as usize * 4, access);
        let (local, remote) = (nodes.map(&mut region), nodes.map(&mut region));
        let (posted, done, received) = ([0; 2], [0; 2], [0; 2]);
        let mut ends =
            Self { fabric, nodes, qps: [a, b], local, remote, dead, posted, done, received, attr: connection.attr };
        for (end, id) in nodes.into_iter().enumerate() {
            let first = [0, 0x55][end];
            let bytes: Vec<u8> = (0..LENGTH).map(|nth| (nth.wrapping_mul(31) >> 3).to_le_bytes()[0] ^ first).collect();
            let addr = ends.local[end].addr;
            ends.fabric.node_mut(id).memory_mut().poke(addr, &bytes);
            (0..32).for_each(|_| ends.receive(end));
        }
        ends
    }

    fn rearm(&mut self) {
        for end in 0..2 {
            let there = self.fabric.node(self.nodes[1 - end]).address();
            // The path that is left later is the first one again.
            let has_swapped = self.fabric.node(self.nodes[end]).qp(self.qps[end]).has_swapped_paths();
            let source_port = if has_swapped { 0xC001 } else { ALTERNATE };
            let paths = Paths { primary: None, alternate: Some(Route { to: there, source_port }) };
            let attr = QpAttr { path_mig_state: MigrationState::Rearm, alt_timeout: 10, ..self.attr };
            let now = self.fabric.now();
            let node = self.fabric.node_mut(self.nodes[end]);
            node.modify(now, self.qps[end], QpState::Rts, AttrMask::PATH_MIG_STATE, &attr, paths).unwrap();
        }
    }

    fn receive(&mut self, end: usize) {
        let sge = Sge { addr: self.remote[end].addr + 20_000, length: LENGTH, l_key: self.remote[end].key.0 };
        let wr = RecvWr { wr_id: 0, buffers: SgeList::new(&[sge]) };
        self.fabric.post_recv(self.nodes[end], self.qps[end], wr).unwrap();
    }

    fn post(&mut self, end: usize) {
        let wr_id = self.posted[end];
        self.posted[end] += 1;
        let peer = self.remote[1 - end].remote();
        let op = match wr_id % 3 {
            0 => SendOp::Write(peer),
            1 => SendOp::Send,
            _ => SendOp::Read(peer),
        };
        // A READ brings back what the WRITE before it has stored.
        let offset = if wr_id % 3 == 2 { 20_000 } else { 0 };
        let sge = Sge { addr: self.local[end].addr + offset, length: LENGTH, l_key: self.local[end].key.0 };
        let flags = SendFlags { signaled: true, ..SendFlags::default() };
        let data = Data::Gather(SgeList::new(&[sge]));
        let wr = SendWr { wr_id, op, data, flags, to: Recipient::Peer };
        self.fabric.post_send(self.nodes[end], self.qps[end], wr).unwrap();
    }

    /// Exchanges messages both ways; paths die as `dead` says when `until` is over.
    fn exchange(&mut self, until: Instant, dead: u8) {
        let goal = self.done.map(|done| done + MESSAGES);
        self.fabric.alarm(until.max(self.fabric.now() + Duration::from_nanos(1)), 0);
        while self.done != goal {
            for (end, goal) in goal.into_iter().enumerate() {
                while self.posted[end] < goal && self.posted[end] < self.done[end] + 8 {
                    self.post(end);
                }
            }
            assert!(self.fabric.step().is_some(), "{:?} of {goal:?}", self.done);
            if self.fabric.now() >= until {
                self.dead.set(dead);
            }
            for end in 0..2 {
                let (id, qp) = (self.nodes[end], self.qps[end]);
                let (sends, receives) = (self.fabric.node(id).send_cq(qp), self.fabric.node(id).recv_cq(qp));
                while let Some(cqe) = self.fabric.node_mut(id).poll(sends) {
                    assert_eq!((cqe.wr_id, cqe.status), (self.done[end], WcStatus::Success), "{:?}", self.fabric.now());
                    self.done[end] += 1;
                }
                while let Some(cqe) = self.fabric.node_mut(id).poll(receives) {
                    assert_eq!((cqe.status, cqe.byte_len), (WcStatus::Success, LENGTH));
                    self.received[end] += 1;
                    self.receive(end);
                }
            }
        }
    }

    /// How often each end was told that it has migrated.
    fn migrations(&self) -> [usize; 2] {
        self.nodes.map(|id| {
            let told = |(_, at, event): &&(Instant, NodeId, NodeEvent)| {
                *at == id && matches!(event, NodeEvent::Async(_, AsyncEvent::PathMigrated))
            };
            self.fabric.journal().iter().filter(told).count()
        })
    }

    /// How many ends repeat selectively.
    fn repeats_selectively(&self) -> usize {
        let agreed = |(_, _, event): &&(Instant, NodeId, NodeEvent)| {
            matches!(event, NodeEvent::Trace(_, Event::SelectiveRepeat { .. }))
        };
        self.fabric.journal().iter().filter(agreed).count()
    }

    fn check_data(&self) {
        for end in 0..2 {
            let peek = |id: NodeId, addr| self.fabric.node(id).memory().peek(addr, LENGTH as usize);
            let sent = peek(self.nodes[end], self.local[end].addr);
            let there = self.remote[1 - end].addr;
            assert_eq!(peek(self.nodes[1 - end], there), sent, "WRITE");
            assert_eq!(peek(self.nodes[1 - end], there + 20_000), sent, "SEND");
            assert_eq!(peek(self.nodes[end], self.local[end].addr + 20_000), sent, "READ");
        }
    }
}

#[test]
fn a_connection_outlives_its_paths_by_turns() {
    let mut agreed = [0; 4];
    for seed in 0..100 {
        let mut rng = Rng::new(seed);
        let mut ends = Ends::new(seed);
        ends.rearm();
        let mut total = 0;
        // The first path dies, then the second with the first alive again, then the first once more.
        for (turn, dead) in [1, 2, 1].into_iter().enumerate() {
            ends.exchange(at(NEVER), 0);
            assert_eq!(ends.migrations(), [turn; 2], "seed {seed}: nothing was broken");
            let until = ends.fabric.now() + Duration::from_nanos(rng.below(2_000_000));
            ends.exchange(until, dead);
            ends.dead.set(dead);
            ends.exchange(until, dead);
            assert_eq!(ends.migrations(), [turn + 1; 2], "seed {seed}, turn {turn}");
            ends.dead.set(0);
            ends.rearm();
            total += 3 * MESSAGES;
        }
        ends.check_data();
        assert_eq!(ends.done, [total; 2]);
        let sends = (0..total).filter(|nth| nth % 3 == 1).count() as u64;
        assert_eq!(ends.received, [sends; 2], "each SEND once");
        agreed[usize::try_from(seed % 4).unwrap()] += ends.repeats_selectively();
    }
    assert!(agreed[0] == 0 && agreed[1] > 0 && agreed[2] == 0 && agreed[3] > 0, "{agreed:?}");
}

/// An end that is told that its path is down does not wait for its tries, and the other end follows.
#[test]
fn a_path_that_is_known_to_be_down_is_left_at_once() {
    let mut ends = Ends::new(1);
    ends.rearm();
    ends.exchange(at(NEVER), 0);
    ends.dead.set(1);
    let now = ends.fabric.now();
    assert!(ends.fabric.node_mut(ends.nodes[0]).path_failed(now, ends.qps[0]));
    ends.exchange(at(Duration::ZERO), 1);
    assert_eq!(ends.migrations(), [1; 2]);
    ends.check_data();
}

/// A peer that has no alternate path does not hear what comes by it.
#[test]
fn a_peer_without_an_alternate_path_is_not_reached() {
    let mut ends = Ends::new(2);
    let there = ends.fabric.node(ends.nodes[1]).address();
    let attr = QpAttr { path_mig_state: MigrationState::Rearm, alt_timeout: 10, ..ends.attr };
    let paths = Paths { primary: None, alternate: Some(Route { to: there, source_port: ALTERNATE }) };
    let now = ends.fabric.now();
    let (a, qp) = (ends.nodes[0], ends.qps[0]);
    ends.fabric.node_mut(a).modify(now, qp, QpState::Rts, AttrMask::PATH_MIG_STATE, &attr, paths).unwrap();
    ends.exchange(at(NEVER), 0);
    // Both paths are the same addresses to the peer, so that only a dead network tells.
    ends.dead.set(3);
    ends.post(0);
    let cq = ends.fabric.node(a).send_cq(qp);
    let failed = loop {
        if let Some(cqe) = ends.fabric.node_mut(a).poll(cq) {
            break cqe.status;
        }
        assert!(ends.fabric.step().is_some());
    };
    assert_eq!(failed, WcStatus::RetryExceededError);
    assert_eq!(ends.migrations(), [1, 0]);
}
