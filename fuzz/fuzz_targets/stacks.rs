#![no_main]
//! Two stacks, and somebody on the way who loses, delays, repeats, and rewrites packets with a right ICRC: data may be
//! wrong then, but nothing panics, every request completes once and in order, and no memory is touched but that of the
//! regions.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use libfuzzer_sys::arbitrary::{Result, Unstructured};
use libfuzzer_sys::fuzz_target;
use urxe_engine::congestion::{Algorithm, CongestionSettings};
use urxe_engine::{Access, Data, Instant, Recipient, RecvWr, Remote, SendFlags, SendOp, SendWr, Sge, SgeList};
use urxe_sim::{Connection, Fabric, Flight, NodeConfig, Verdict};

const SIZE: usize = 8192;
const RECVS: u64 = 1 << 32;

fn verdict(u: &mut Unstructured<'_>) -> Result<Verdict> {
    let late = |u: &mut Unstructured<'_>| Ok(Duration::from_micros(u.int_in_range(1..=20_000)?));
    Ok(match u.int_in_range(0..=7)? {
        0 => Verdict::Drop,
        1 => Verdict::Duplicate(late(u)?),
        2 => Verdict::Delay(late(u)?),
        // Mostly the headers.
        3 | 4 => Verdict::Forge(u.int_in_range(0..=31)?, u.arbitrary()?),
        5 => Verdict::Forge(u.int_in_range(0..=1100)?, u.arbitrary()?),
        _ => Verdict::Pass,
    })
}

fn run(bytes: &[u8]) -> Result<()> {
    let mut u = Unstructured::new(bytes);
    let mut fabric = Fabric::new();
    let nodes = [fabric.add_node(NodeConfig::default()), fabric.add_node(NodeConfig::default())];
    let mut connection = Connection::default();
    // Somebody who has no receives may be waited for without end otherwise.
    connection.attr.rnr_retry = 6;
    connection.selective_paths = [u.int_in_range(0..=4)?, u.int_in_range(0..=4)?];
    let (_, algorithm) = *u.choose(&Algorithm::ALL)?;
    connection.congestion =
        CongestionSettings { ecn: u.arbitrary()?, algorithm, line_rate: 1000, ..CongestionSettings::NONE };
    let (a, b) = fabric.connect(nodes[0], nodes[1], &connection);
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
    let buffers = nodes.map(|node| fabric.node_mut(node).memory_mut().register_new(SIZE, access));
    let outside = nodes.map(|node| fabric.node_mut(node).memory_mut().map(4096));
    let qps = [a, b];
    let sges =
        |end: usize, length: u32| SgeList::new(&[Sge { addr: buffers[end].addr, length, l_key: buffers[end].key.0 }]);
    for end in 0..2 {
        for recv in 0..8 {
            let wr = RecvWr { wr_id: RECVS + recv, buffers: sges(end, 4096) };
            let _ = fabric.post_recv(nodes[end], qps[end], wr);
        }
    }
    let mut posted = [0; 2];
    for _ in 0..u.int_in_range(1..=12)? {
        let end = usize::from(u.arbitrary::<bool>()?);
        let remote = Remote { addr: buffers[1 - end].addr, r_key: buffers[1 - end].remote().r_key };
        let ops = [SendOp::Send, SendOp::Write(remote), SendOp::Read(remote), SendOp::FetchAdd { remote, add: 1 }];
        let op = u.choose(&ops)?.clone();
        let length = if op.is_atomic() { 8 } else { u.int_in_range(0..=4096)? };
        let flags = SendFlags { signaled: true, ..SendFlags::default() };
        let data = Data::Gather(sges(end, length));
        let wr = SendWr { wr_id: posted[end], op, data, flags, to: Recipient::Peer };
        if fabric.post_send(nodes[end], qps[end], wr).is_ok() {
            posted[end] += 1;
        }
    }
    // What is left of the bytes decides about packets; when they are at an end, the network is perfect.
    let rest = Rc::new(RefCell::new(u.take_rest().to_vec()));
    fabric.add_rule(move |_: &Flight<'_>| {
        let mut rest = rest.borrow_mut();
        let mut u = Unstructured::new(&rest);
        let verdict = if u.is_empty() { Verdict::Pass } else { verdict(&mut u).unwrap_or(Verdict::Pass) };
        let left = u.len();
        let used = rest.len() - left;
        rest.drain(..used);
        verdict
    });
    fabric.run_until(Instant::default() + Duration::from_secs(60));
    for end in 0..2 {
        let node = fabric.node_mut(nodes[end]);
        for (cq, first, past) in [(node.send_cq(qps[end]), 0, posted[end]), (node.recv_cq(qps[end]), RECVS, RECVS + 8)]
        {
            let mut next = first;
            while let Some(cqe) = node.poll(cq) {
                assert!((next..past).contains(&cqe.wr_id), "{cqe:?} again, or out of order");
                next = cqe.wr_id + 1;
            }
            assert!(first != 0 || next == past, "{} of {past} requests completed", next);
        }
        assert_eq!(node.memory().violations(), []);
        assert!(node.memory().holds(outside[end], &[0; 4096]));
    }
    Ok(())
}

fuzz_target!(|bytes: &[u8]| {
    let _ = run(bytes);
});
