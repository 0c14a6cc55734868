//! How many packets it takes to carry a stream when some are lost: a retransmission storm would show here.

use std::time::Duration;

use urxe_engine::{Access, Data, Recipient, SendFlags, SendOp, SendWr, Sge, SgeList, WcStatus};
use urxe_sim::rule::{Chance, Drops};
use urxe_sim::{Connection, Fabric, NodeConfig};

const MESSAGES: u32 = 32;
const LENGTH: u32 = 64 * 1024;
const PACKETS: u64 = (MESSAGES * LENGTH / 1024) as u64;

/// Streams 2 MiB of WRITEs or READs; returns packets sent and the virtual time in microseconds.
fn stream(read: bool, loss: Chance, receive_buffer: usize) -> (u64, u64) {
    let mut fabric = Fabric::new();
    // In that time a sender fills several of the smaller buffers.
    let service_delay = Duration::from_micros(20);
    let config = NodeConfig { receive_buffer, service_delay, ..NodeConfig::default() };
    let (a, b) = (fabric.add_node(config), fabric.add_node(config));
    fabric.add_rule(Drops::new(42, loss));
    let (qp, _) = fabric.connect(a, b, &Connection::default());
    let local = fabric.node_mut(a).memory_mut().register_new(LENGTH as usize, Access::LOCAL_WRITE);
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
    let remote = fabric.node_mut(b).memory_mut().register_new(LENGTH as usize, access);
    for wr_id in 0..u64::from(MESSAGES) {
        let sge = Sge { addr: local.addr, length: LENGTH, l_key: local.key.0 };
        let op = if read { SendOp::Read(remote.remote()) } else { SendOp::Write(remote.remote()) };
        let flags = SendFlags { signaled: true, ..SendFlags::default() };
        fabric
            .post_send(
                a,
                qp,
                SendWr { wr_id, op, data: Data::Gather(SgeList::new(&[sge])), flags, to: Recipient::Peer },
            )
            .unwrap();
    }
    let cq = fabric.node(a).send_cq(qp);
    let (mut done, mut at) = (0, 0);
    while fabric.step().is_some() {
        while let Some(cqe) = fabric.node_mut(a).poll(cq) {
            assert_eq!((cqe.wr_id, cqe.status), (done, WcStatus::Success));
            done += 1;
            at = fabric.now().as_nanos() / 1000;
        }
    }
    assert_eq!(done, u64::from(MESSAGES));
    (fabric.counts().sent, at)
}

//= spec/requester.md#req-018
//= type=test
//# The packets in flight SHOULD become fewer by a loss, half as many if losses are frequent, and grow again slowly.
#[test]
fn packets_for_a_stream() {
    for read in [false, true] {
        for (per_mille, buffer, most_percent) in
            [(0, 4096, 20), (1, 4096, 60), (10, 4096, 120), (50, 4096, 250), (0, 24, 250)]
        {
            let (sent, micros) = stream(read, Chance::per_mille(per_mille), buffer);
            let extra = (sent - PACKETS) * 100 / PACKETS;
            let what = if read { "READ" } else { "WRITE" };
            println!(
                "{what}, {per_mille} in 1000 lost, buffers of {buffer}: {sent} packets for {PACKETS}, {micros} µs"
            );
            assert!(extra <= most_percent, "{what} with {per_mille} in 1000 lost takes {extra} % more packets");
        }
    }
}
