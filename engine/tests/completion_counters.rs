//! Completion counters: what counts, when, and as what.

use urxe_engine::{AttachError, CountedOps, Data, QpState, QpType, Recipient, Remote, SendFlags, SendOp, SendWr};
use urxe_sim::single_qp::{MTU, RQ_PSN, SingleQp};
use urxe_sim::{CounterId, NodeEvent};
use urxe_wire::{Aeth, Credits, Ext, ImmDt, Msn, NakCode, Operation as O, RKey, Reth, Syndrome};

const REMOTE: Remote = Remote { addr: 0x1234_5678_9A00, r_key: RKey(0x77) };
const FIRST: CounterId = CounterId(0);
const SECOND: CounterId = CounterId(1);

/// A queue pair in RTS with `counters` attached.
fn counted(qp_type: QpType, counters: &[(CountedOps, CounterId)]) -> SingleQp {
    let mut qp = SingleQp::reset(|setup, _| setup.qp_type = qp_type);
    for (ops, counter) in counters {
        qp.node.attach_counter(qp.qpn, *ops, *counter).unwrap();
    }
    qp.go_to(QpState::Rts, &SingleQp::attr());
    qp
}

/// A queue pair of RC, with all that is counted in one counter.
fn all() -> SingleQp {
    counted(QpType::Rc, &[(CountedOps::ALL, FIRST)])
}

/// Takes the counts since the last call, and the requests that have completed.
fn news(qp: &mut SingleQp) -> (Vec<(CounterId, bool)>, Vec<u64>) {
    let (mut counts, mut completed) = (Vec::new(), Vec::new());
    for event in qp.node.verbs().take_log() {
        match event {
            NodeEvent::Counted(counter, succeeded) => counts.push((counter, succeeded)),
            NodeEvent::Completed(_, cqe) => completed.push(cqe.wr_id),
            _ => {}
        }
    }
    (counts, completed)
}

fn counts(qp: &mut SingleQp) -> Vec<(CounterId, bool)> {
    news(qp).0
}

fn post_quietly(qp: &mut SingleQp, wr_id: u64, op: SendOp, len: u32) {
    let data = Data::Gather(qp.sges(len));
    qp.post_wr(SendWr { wr_id, op, data, flags: SendFlags::default(), to: Recipient::Peer }).unwrap();
}

fn reth(qp: &SingleQp, dma_len: u32) -> Reth {
    Reth { va: qp.remote.addr, r_key: RKey(qp.remote.key.0), dma_len }
}

#[test]
fn each_request_counts_once_signaled_or_not() {
    let ops = CountedOps::SEND | CountedOps::RDMA_WRITE;
    let mut qp = counted(QpType::Rc, &[(ops, FIRST), (CountedOps::RDMA_READ, SECOND)]);
    post_quietly(&mut qp, 1, SendOp::Send, 600);
    qp.post(2, SendOp::Write(REMOTE), 10);
    post_quietly(&mut qp, 3, SendOp::Read(REMOTE), 10);
    // None of the operations that have a counter.
    qp.post(4, SendOp::FetchAdd { remote: REMOTE, add: 1 }, 8);
    assert_eq!(qp.sent().len(), 6);
    qp.gets_ack(201);
    assert_eq!(counts(&mut qp), [], "a part of a message");
    qp.gets_ack(203);
    assert_eq!(news(&mut qp), (vec![(FIRST, true), (FIRST, true)], vec![2]));
    qp.gets_ack(203);
    assert_eq!(counts(&mut qp), [], "a duplicate");
    let ack = Aeth { syndrome: Syndrome::Ack(Credits::INVALID), msn: Msn::default() };
    qp.gets(O::ReadResponseOnly, 204, Ext::Aeth(ack), &[7; 10]);
    assert_eq!(news(&mut qp), (vec![(SECOND, true)], vec![]));
    qp.gets(O::AtomicAcknowledge, 205, Ext::AethAtomicAckEth(ack, urxe_wire::AtomicAckEth { original: 1 }), &[]);
    assert_eq!(news(&mut qp), (vec![], vec![4]));
}

#[test]
fn the_count_comes_before_the_completion() {
    let mut qp = all();
    qp.post(1, SendOp::Send, 1);
    qp.sent();
    qp.gets_ack(200);
    let order: Vec<_> = qp
        .node
        .verbs()
        .take_log()
        .iter()
        .filter_map(|event| match event {
            NodeEvent::Counted(..) => Some("counted"),
            NodeEvent::Completed(..) => Some("completed"),
            _ => None,
        })
        .collect();
    assert_eq!(order, ["counted", "completed"]);
}

#[test]
fn failed_and_flushed_requests_count_as_errors() {
    let mut qp = all();
    qp.recv(1, 64);
    post_quietly(&mut qp, 2, SendOp::Write(REMOTE), 10);
    post_quietly(&mut qp, 3, SendOp::Send, 10);
    qp.sent();
    qp.gets_aeth(200, Syndrome::Nak(NakCode::RemoteAccessError));
    assert_eq!(qp.state(), QpState::Err);
    assert_eq!(counts(&mut qp), [(FIRST, false); 3]);
}

#[test]
fn messages_received_count() {
    let mut qp = counted(QpType::Rc, &[(CountedOps::RECV, FIRST), (CountedOps::REMOTE_RDMA_WRITE, SECOND)]);
    qp.recv(1, 1000);
    qp.recv(2, 1000);
    qp.gets(O::SendFirst, RQ_PSN, Ext::None, &[1; MTU]);
    assert_eq!(counts(&mut qp), []);
    qp.gets(O::SendLast, RQ_PSN + 1, Ext::None, &[1; 4]);
    assert_eq!(counts(&mut qp), [(FIRST, true)]);
    qp.gets(O::SendLast, RQ_PSN + 1, Ext::None, &[1; 4]);
    assert_eq!(counts(&mut qp), [], "a duplicate");
    // A WRITE with immediate is both: the WRITE, and the receive request that it takes.
    let reth = reth(&qp, 4);
    qp.gets(O::WriteOnlyWithImmediate, RQ_PSN + 2, Ext::RethImmDt(reth, ImmDt([5; 4])), b"four");
    assert_eq!(news(&mut qp), (vec![(SECOND, true), (FIRST, true)], vec![2]));
    // Put off: it counts when it is taken.
    qp.gets(O::WriteOnlyWithImmediate, RQ_PSN + 3, Ext::RethImmDt(reth, ImmDt([5; 4])), b"four");
    assert_eq!(qp.sent().last().unwrap(), &"RNR NAK 103");
    assert_eq!(counts(&mut qp), []);
    qp.recv(3, 1);
    qp.gets(O::WriteOnlyWithImmediate, RQ_PSN + 3, Ext::RethImmDt(reth, ImmDt([5; 4])), b"four");
    assert_eq!(counts(&mut qp), [(SECOND, true), (FIRST, true)]);
}

#[test]
fn writes_of_the_peer_count_when_they_are_whole_and_when_they_are_refused() {
    for qp_type in [QpType::Rc, QpType::Uc] {
        let mut qp = counted(qp_type, &[(CountedOps::REMOTE_RDMA_WRITE, FIRST)]);
        let whole = reth(&qp, 260);
        qp.gets(O::WriteFirst, RQ_PSN, Ext::Reth(whole), &[1; MTU]);
        assert_eq!(counts(&mut qp), []);
        qp.gets(O::WriteLast, RQ_PSN + 1, Ext::None, &[2; 4]);
        assert_eq!(counts(&mut qp), [(FIRST, true)]);
        assert_eq!(qp.node.memory().peek(qp.remote.addr + 256, 4), [2; 4]);
        let foreign = Reth { r_key: RKey(0x0BAD), dma_len: 4, ..whole };
        qp.gets(O::WriteOnly, RQ_PSN + 2, Ext::Reth(foreign), &[3; 4]);
        assert_eq!(counts(&mut qp), [(FIRST, false)]);
    }
}

#[test]
fn datagrams_count() {
    let mut qp = counted(QpType::Ud, &[(CountedOps::SEND, FIRST), (CountedOps::RECV, SECOND)]);
    post_quietly(&mut qp, 1, SendOp::Send, 10);
    qp.sent();
    assert_eq!(counts(&mut qp), [(FIRST, true)]);
    qp.recv(2, 100);
    qp.gets(O::SendOnly, 7, Ext::None, b"hello");
    assert_eq!(counts(&mut qp), [(SECOND, true)]);
}

#[test]
fn a_counter_is_attached_before_anything_can_arrive_and_no_operation_has_two() {
    let mut qp = SingleQp::reset(|_, _| {});
    qp.node.attach_counter(qp.qpn, CountedOps::SEND | CountedOps::RECV, FIRST).unwrap();
    let attach = |qp: &mut SingleQp, ops| qp.node.attach_counter(qp.qpn, ops, SECOND);
    assert_eq!(attach(&mut qp, CountedOps::RECV | CountedOps::RDMA_READ), Err(AttachError::Overlap));
    qp.go_to(QpState::Init, &SingleQp::attr());
    assert_eq!(attach(&mut qp, CountedOps::RDMA_READ), Ok(()));
    assert_eq!(attach(&mut qp, CountedOps::RDMA_READ), Err(AttachError::Overlap));
    let mut qp = SingleQp::reset(|_, _| {});
    qp.go_to(QpState::Rtr, &SingleQp::attr());
    assert_eq!(attach(&mut qp, CountedOps::SEND), Err(AttachError::State(QpState::Rtr)));
    // RESET forgets work requests, and no counter.
    let mut qp = all();
    post_quietly(&mut qp, 1, SendOp::Send, 10);
    qp.modify(QpState::Reset, urxe_engine::attr::AttrMask::STATE, &SingleQp::attr()).unwrap();
    assert_eq!(counts(&mut qp), []);
    assert_eq!(attach(&mut qp, CountedOps::SEND), Err(AttachError::Overlap));
}

#[test]
fn incoming_reads_and_what_nobody_knows_cannot_be_counted() {
    assert_eq!(CountedOps::from_bits(0x37), Some(CountedOps::ALL));
    assert_eq!(CountedOps::from_bits(1 << 3), None, "IBV_QP_ATTACH_COMP_CNTR_OP_REMOTE_RDMA_READ");
    assert_eq!(CountedOps::from_bits(1 << 6), None);
}
