//! Many nodes, each connected to each: connections do not get into each other's way.

use std::time::Duration;

use urxe_engine::{
    Access, Data, Event, Recipient, RecvWr, SendFlags, SendOp, SendWr, Sge, SgeList, WcOpcode, WcStatus,
};
use urxe_sim::rule::{Chance, Delays, Drops, Duplicates};
use urxe_sim::{Connection, Fabric, NodeConfig, NodeEvent, NodeId, Verdict};
use urxe_wire::Qpn;

const NODES: usize = 6;
const ROUNDS: u64 = 20;
/// Lets the first node's receive buffer overflow now and then.
const RECEIVE_BUFFER: usize = 24;

struct End {
    node: NodeId,
    qp: Qpn,
    peer: usize,
}

#[test]
fn meshed_nodes_count_and_send_to_each_other() {
    let mut fabric = Fabric::new();
    let nodes: Vec<_> = (0..NODES as u64)
        .map(|seed| fabric.add_node(NodeConfig { seed, receive_buffer: RECEIVE_BUFFER, ..NodeConfig::default() }))
        .collect();
    fabric.add_rule(Drops::new(1, Chance::percent(2)));
    fabric.add_rule(Duplicates::new(2, Chance::percent(2), Duration::from_micros(100)));
    fabric.add_rule(Delays::new(3, Chance::percent(2), Duration::from_micros(30)));
    let counters: Vec<_> = nodes
        .iter()
        .map(|&node| {
            let memory = fabric.node_mut(node).memory_mut();
            memory.register_new(8, Access::LOCAL_WRITE | Access::REMOTE_ATOMIC)
        })
        .collect();
    let buffers: Vec<_> =
        nodes.iter().map(|&node| fabric.node_mut(node).memory_mut().register_new(8192, Access::LOCAL_WRITE)).collect();

    let mut ends = Vec::new();
    for a in 0..NODES {
        for b in a + 1..NODES {
            let (qp_a, qp_b) = fabric.connect(nodes[a], nodes[b], &Connection::default());
            ends.push(End { node: nodes[a], qp: qp_a, peer: b });
            ends.push(End { node: nodes[b], qp: qp_b, peer: a });
        }
    }
    for End { node, qp, peer } in &ends {
        let own = nodes.iter().position(|id| id == node).unwrap();
        let sge =
            |length| Data::Gather(SgeList::new(&[Sge { addr: buffers[own].addr, length, l_key: buffers[own].key.0 }]));
        let flags = SendFlags { signaled: true, ..SendFlags::default() };
        for round in 0..ROUNDS {
            let count = SendOp::FetchAdd { remote: counters[*peer].remote(), add: 1 };
            fabric
                .post_send(*node, *qp, SendWr { wr_id: 2 * round, op: count, data: sge(8), flags, to: Recipient::Peer })
                .unwrap();
            let send = SendWr { wr_id: 2 * round + 1, op: SendOp::Send, data: sge(3000), flags, to: Recipient::Peer };
            fabric.post_send(*node, *qp, send).unwrap();
            let Data::Gather(buffers) = sge(4000) else { unreachable!() };
            fabric.post_recv(*node, *qp, RecvWr { wr_id: round, buffers }).unwrap();
        }
    }
    fabric.run();

    for End { node, qp, .. } in &ends {
        let (send_cq, recv_cq) = (fabric.node(*node).send_cq(*qp), fabric.node(*node).recv_cq(*qp));
        let node = fabric.node_mut(*node);
        for wr_id in 0..2 * ROUNDS {
            let cqe = node.poll(send_cq).unwrap();
            assert_eq!((cqe.wr_id, cqe.status), (wr_id, WcStatus::Success));
        }
        for wr_id in 0..ROUNDS {
            let cqe = node.poll(recv_cq).unwrap();
            assert_eq!((cqe.wr_id, cqe.status, cqe.opcode), (wr_id, WcStatus::Success, WcOpcode::Recv));
        }
        assert_eq!((node.poll(send_cq), node.poll(recv_cq)), (None, None));
    }
    for (node, counter) in nodes.iter().zip(&counters) {
        let memory = fabric.node(*node).memory();
        let word = u64::from_ne_bytes(memory.peek(counter.addr, 8).try_into().unwrap());
        assert_eq!((word, memory.violations()), ((NODES as u64 - 1) * ROUNDS, vec![]));
    }
    assert!(fabric.counts().overflowed > 0, "receive buffers were to be too small: {:?}", fabric.counts());
}

#[test]
fn the_death_of_a_queue_pair_is_noticed_in_time() {
    let mut fabric = Fabric::new();
    let (a, b) = (fabric.add_node(NodeConfig::default()), fabric.add_node(NodeConfig::default()));
    let mut connection = Connection::default();
    // 67 ms, and three tries more, each for four times as long.
    (connection.attr.timeout, connection.attr.retry_cnt) = (14, 3);
    let (qp_a, qp_b) = fabric.connect(a, b, &connection);
    fabric.node_mut(b).destroy_qp(qp_b);
    for wr_id in 0..3 {
        let data = Data::Inline([7].into());
        fabric
            .post_send(
                a,
                qp_a,
                SendWr { wr_id, op: SendOp::Send, data, flags: SendFlags::default(), to: Recipient::Peer },
            )
            .unwrap();
    }
    fabric.run();
    assert_eq!(fabric.now().as_nanos(), (1 + 3 * 4) * 67_108_864);
    let cq = fabric.node(a).send_cq(qp_a);
    let statuses: Vec<_> = std::iter::from_fn(|| fabric.node_mut(a).poll(cq)).map(|cqe| cqe.status).collect();
    assert_eq!(statuses, [WcStatus::RetryExceededError, WcStatus::WrFlushError, WcStatus::WrFlushError]);
}

#[test]
fn any_closure_is_a_rule() {
    let mut fabric = Fabric::new();
    let (a, b) = (fabric.add_node(NodeConfig::default()), fabric.add_node(NodeConfig::default()));
    let (qp, _) = fabric.connect(a, b, &Connection::default());
    // The first packet is lost, the second damaged.
    fabric.add_rule(|flight: &urxe_sim::Flight<'_>| match flight.number {
        0 => Verdict::Drop,
        1 => Verdict::Corrupt(100),
        _ => Verdict::Pass,
    });
    let data = Data::Gather(SgeList::new(&[]));
    let write = SendOp::Write(urxe_engine::Remote { addr: 0, r_key: urxe_wire::RKey(0) });
    let flags = SendFlags { signaled: true, ..SendFlags::default() };
    fabric.post_send(a, qp, SendWr { wr_id: 1, op: write, data, flags, to: Recipient::Peer }).unwrap();
    fabric.run();
    let counts = fabric.counts();
    assert_eq!((counts.sent, counts.dropped, counts.bad_icrc, counts.delivered), (4, 1, 1, 2));
    let retries =
        fabric.journal().iter().filter(|(_, _, event)| matches!(event, NodeEvent::Trace(_, Event::Retry { .. })));
    assert_eq!(retries.count(), 2);
}
