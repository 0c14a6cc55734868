//! The scripts that programs meet with (`URXE_FAULTS`), on the simulated network.

use urxe_engine::{
    Access, Data, Event, Recipient, Remote, SendFlags, SendOp, SendWr, Sge, SgeList, WcStatus, event::RetryReason,
};
use urxe_faults::Script;
use urxe_sim::{Connection, Fabric, NodeConfig, NodeEvent};

/// Runs 40 WRITEs of several packets; returns the digest of every packet and event, and how often something was sent
/// again.
fn run(script: &str) -> (u64, usize) {
    let mut fabric = Fabric::new();
    let (a, b) = (fabric.add_node(NodeConfig::default()), fabric.add_node(NodeConfig::default()));
    fabric.add_rule(script.parse::<Script>().unwrap());
    let from = fabric.node_mut(a).memory_mut().register_new(20_000, Access::LOCAL_WRITE);
    let to = fabric.node_mut(b).memory_mut().register_new(20_000, Access::LOCAL_WRITE | Access::REMOTE_WRITE);
    let (qp, _) = fabric.connect(a, b, &Connection::default());
    let flags = SendFlags { signaled: true, ..SendFlags::default() };
    for wr_id in 0..40 {
        let data = Data::Gather(SgeList::new(&[Sge { addr: from.addr, length: 20_000, l_key: from.key.0 }]));
        let Remote { addr, r_key } = to.remote();
        let write = SendOp::Write(Remote { addr, r_key });
        fabric.post_send(a, qp, SendWr { wr_id, op: write, data, flags, to: Recipient::Peer }).unwrap();
    }
    fabric.run();
    let cq = fabric.node(a).send_cq(qp);
    for wr_id in 0..40 {
        let cqe = fabric.node_mut(a).poll(cq).unwrap();
        assert_eq!((cqe.wr_id, cqe.status), (wr_id, WcStatus::Success), "{script}");
    }
    let retried = |event: &NodeEvent| {
        matches!(
            event,
            NodeEvent::Trace(_, Event::Retry { reason: RetryReason::SequenceNak | RetryReason::AckTimeout, .. })
        )
    };
    let retries = fabric.journal().iter().filter(|(_, _, event)| retried(event)).count();
    (fabric.digest(), retries)
}

#[test]
fn the_same_seed_gives_the_same_run_packet_by_packet() {
    for faults in
        ["drop=1%", "dup=2%", "corrupt=1%", "reorder=1%/8", "delay=1us..20us", "drop=0.5%,reorder=1%/3,dup=1%"]
    {
        let with = |seed: u32| run(&format!("{faults},seed={seed}"));
        let (first, retries) = with(42);
        assert!(first == with(42).0, "{faults}: two runs differ");
        assert!(first != with(43).0, "{faults}: another seed, the same run");
        assert!(retries > 0 || !faults.contains("drop"), "{faults}: nothing was sent again");
    }
}
