//! Duplicate requests: answered again, never carried out again (IBA 9.7.5.1.5, 9.7.5.2.3).

use urxe_engine::{DropReason, QpState, WcStatus};
use urxe_sim::single_qp::{MTU, Sent, SingleQp};
use urxe_wire::{Aeth, AtomicEth, Ext, Operation as O, RKey, Reth};

fn part(qp: &SingleQp, offset: u64, dma_len: u32) -> Ext {
    Ext::Reth(Reth { va: qp.remote.addr + offset, r_key: RKey(qp.remote.key.0), dma_len })
}

fn fetch_add(qp: &SingleQp, add: u64) -> Ext {
    Ext::AtomicEth(AtomicEth { va: qp.remote.addr, r_key: RKey(qp.remote.key.0), swap_add: add, compare: 0 })
}

fn word(qp: &SingleQp) -> u64 {
    u64::from_ne_bytes(qp.node.memory().peek(qp.remote.addr, 8).try_into().unwrap())
}

fn original(sent: &Sent) -> u64 {
    match sent.header.ext {
        Ext::AethAtomicAckEth(_, ack) => ack.original,
        ext => panic!("no AtomicAckETH: {ext:?}"),
    }
}

//= spec/responder.md#rsp-002
//= type=test
//# A duplicate SEND or WRITE MUST be acknowledged again and MUST NOT be executed.
#[test]
fn send_is_acknowledged_and_not_received_again() {
    let mut qp = SingleQp::rts();
    qp.recv(1, 64);
    qp.recv(2, 64);
    qp.gets(O::SendOnly, 100, Ext::None, b"once");
    assert_eq!(qp.sent(), ["ACK 100"]);
    qp.gets(O::SendOnly, 100, Ext::None, b"once");
    let sent = qp.sent();
    assert_eq!(sent, ["ACK 100"]);
    assert!(matches!(sent[0].header.ext, Ext::Aeth(Aeth { msn, .. }) if msn.get() == 1));
    assert_eq!(qp.completed(), [(1, WcStatus::Success)]);
}

//= spec/responder.md#rsp-002
//= type=test
//# A duplicate SEND or WRITE MUST be acknowledged again and MUST NOT be executed.
#[test]
fn write_does_not_write() {
    let mut qp = SingleQp::rts();
    qp.gets(O::WriteOnly, 100, part(&qp, 0, 4), b"told");
    assert_eq!(qp.sent(), ["ACK 100"]);
    qp.node.memory_mut().poke(qp.remote.addr, b"mine");
    qp.gets(O::WriteOnly, 100, part(&qp, 0, 4), b"told");
    assert_eq!(qp.sent(), ["ACK 100"]);
    assert_eq!(qp.node.memory().peek(qp.remote.addr, 4), b"mine");
}

#[test]
fn a_message_under_way_is_not_disturbed() {
    let mut qp = SingleQp::rts();
    qp.recv(1, 1024);
    qp.gets(O::SendFirst, 100, Ext::None, &[1; MTU]);
    qp.gets(O::SendFirst, 100, Ext::None, &[1; MTU]);
    qp.gets(O::SendLast, 101, Ext::None, &[2; 4]);
    assert_eq!(qp.sent(), ["ACK 101"]);
    assert_eq!(qp.cqes()[0].byte_len, 260);
}

//= spec/responder.md#rsp-003
//= type=test
//# A duplicate READ MUST be answered from memory as it is, if it lies within the request it repeats.
#[test]
fn read_is_read_again() {
    let mut qp = SingleQp::rts();
    qp.node.memory_mut().poke(qp.remote.addr, &[1; 3 * MTU]);
    qp.gets(O::ReadRequest, 100, part(&qp, 0, 700), &[]);
    let first = qp.sent();
    assert_eq!(first, ["RDMA READ response First 100", "RDMA READ response Middle 101", "RDMA READ response Last 102"]);
    assert_eq!(first.iter().map(|sent| sent.payload.len()).collect::<Vec<_>>(), [256, 256, 188]);
    qp.node.memory_mut().poke(qp.remote.addr, &[2; 3 * MTU]);
    qp.gets(O::ReadRequest, 100, part(&qp, 0, 700), &[]);
    let again = qp.sent();
    assert_eq!((again.len(), &again[0].payload[..]), (3, &[2; 256][..]));
    qp.recv(1, 64);
    qp.gets(O::SendOnly, 103, Ext::None, b"goes on");
    assert_eq!(qp.sent(), ["ACK 103"]);
}

//= spec/responder.md#rsp-003
//= type=test
//# A duplicate READ MUST be answered from memory as it is, if it lies within the request it repeats.
#[test]
fn read_may_ask_for_the_rest_only() {
    let mut qp = SingleQp::rts();
    qp.gets(O::ReadRequest, 100, part(&qp, 0, 700), &[]);
    qp.sent();
    qp.gets(O::ReadRequest, 102, part(&qp, 512, 188), &[]);
    let sent = qp.sent();
    assert_eq!(sent, ["RDMA READ response Only 102"]);
    assert_eq!(sent[0].payload.len(), 188);

    qp.log();
    qp.gets(O::ReadRequest, 102, part(&qp, 512, 600), &[]);
    assert_eq!(qp.sent(), [""; 0], "for no more than the original");
    assert_eq!(qp.drops(), [DropReason::StaleDuplicate]);
}

#[test]
fn read_still_being_answered_is_not_answered_twice() {
    let mut qp = SingleQp::rts();
    qp.gets(O::ReadRequest, 100, part(&qp, 0, 700), &[]);
    qp.gets(O::ReadRequest, 100, part(&qp, 0, 700), &[]);
    qp.gets(O::ReadRequest, 101, part(&qp, 256, 444), &[]);
    assert_eq!(qp.sent().len(), 3);
}

#[test]
fn read_in_place_of_a_send_is_dropped() {
    let mut qp = SingleQp::rts();
    qp.recv(1, 64);
    qp.gets(O::SendOnly, 100, Ext::None, b"x");
    qp.sent();
    qp.gets(O::ReadRequest, 100, part(&qp, 0, 4), &[]);
    assert_eq!(qp.sent(), [""; 0]);
    assert_eq!(qp.drops(), [DropReason::StaleDuplicate]);
}

/// Answers a duplicate READ of deregistered memory by a NAK: a requester that still waits for the data must learn
/// that none will come, one that has the data ignores the NAK.
//= spec/responder.md#rsp-028
//= type=test
//# A duplicate READ of memory that is gone MUST be refused, and MUST NOT end the connection.
#[test]
fn read_of_memory_that_has_been_deregistered_is_refused() {
    let mut qp = SingleQp::rts();
    qp.gets(O::ReadRequest, 100, part(&qp, 0, 700), &[]);
    qp.sent();
    qp.node.memory_mut().deregister(qp.remote.key);
    for _ in 0..2 {
        qp.gets(O::ReadRequest, 101, part(&qp, 256, 444), &[]);
        assert_eq!(qp.sent(), ["NAK RemoteAccessError 101"]);
    }
    assert_eq!(qp.state(), QpState::Rts, "an old request is no reason to fail");
    qp.recv(1, 64);
    qp.gets(O::SendOnly, 103, Ext::None, b"goes on");
    assert_eq!(qp.sent(), ["ACK 103"]);
}

/// The memory goes while the answer is under way.
//= spec/responder.md#rsp-028
//= type=test
//# A duplicate READ of memory that is gone MUST be refused, and MUST NOT end the connection.
#[test]
fn read_of_memory_that_goes_while_it_is_read_again_is_refused() {
    let mut qp = SingleQp::rts();
    qp.gets(O::ReadRequest, 100, part(&qp, 0, 700), &[]);
    qp.sent();
    qp.gets(O::ReadRequest, 100, part(&qp, 0, 700), &[]);
    qp.node.memory_mut().deregister(qp.remote.key);
    assert_eq!(qp.sent(), ["NAK RemoteAccessError 100"]);
    assert_eq!(qp.state(), QpState::Rts);
}

//= spec/responder.md#rsp-004
//= type=test
//# A duplicate atomic MUST be answered with the first result and MUST NOT be executed.
#[test]
fn atomic_is_answered_from_memory_of_its_result() {
    let mut qp = SingleQp::rts();
    qp.gets(O::FetchAdd, 100, fetch_add(&qp, 10), &[]);
    qp.gets(O::FetchAdd, 101, fetch_add(&qp, 100), &[]);
    assert_eq!(qp.sent(), ["ATOMIC Acknowledge 100", "ATOMIC Acknowledge 101"]);
    qp.gets(O::FetchAdd, 101, fetch_add(&qp, 100), &[]);
    let sent = qp.sent();
    assert_eq!(sent, ["ATOMIC Acknowledge 101"]);
    assert_eq!((original(&sent[0]), word(&qp)), (10, 110));
}

//= spec/responder.md#rsp-005
//= type=test
//# The answers kept for duplicates MUST be as many as responder resources.
#[test]
fn results_are_kept_as_long_as_responder_resources_last() {
    let mut qp = SingleQp::with(|attr| attr.max_dest_rd_atomic = 2);
    for psn in 100..103 {
        qp.gets(O::FetchAdd, psn, fetch_add(&qp, 1), &[]);
        qp.sent();
    }
    qp.log();
    qp.gets(O::FetchAdd, 100, fetch_add(&qp, 1), &[]);
    assert_eq!(qp.sent(), [""; 0]);
    assert_eq!(qp.drops(), [DropReason::StaleDuplicate]);
    qp.gets(O::FetchAdd, 101, fetch_add(&qp, 1), &[]);
    assert_eq!(qp.sent(), ["ATOMIC Acknowledge 101"]);
    assert_eq!(word(&qp), 3);
}

#[test]
fn duplicates_take_no_responder_resources() {
    let mut qp = SingleQp::with(|attr| attr.max_dest_rd_atomic = 1);
    qp.gets(O::FetchAdd, 100, fetch_add(&qp, 1), &[]);
    assert_eq!(qp.sent(), ["ATOMIC Acknowledge 100"]);
    // A late duplicate, and before that is answered, a new request.
    qp.gets(O::FetchAdd, 100, fetch_add(&qp, 1), &[]);
    qp.gets(O::FetchAdd, 101, fetch_add(&qp, 1), &[]);
    assert_eq!(qp.sent(), ["ATOMIC Acknowledge 100", "ATOMIC Acknowledge 101"]);
    assert_eq!((qp.state(), word(&qp)), (QpState::Rts, 2));
}

//= spec/responder.md#rsp-023
//= type=test
//# A flood of duplicates MUST NOT make anything grow.
#[test]
fn a_flood_makes_nothing_grow() {
    let mut qp = SingleQp::with(|attr| attr.max_dest_rd_atomic = 4);
    let packets = 60;
    qp.gets(O::ReadRequest, 100, part(&qp, 0, packets * 256), &[]);
    assert_eq!(qp.sent().len(), 60);
    for round in 0..100 {
        // Each begins before the last one, so that none is contained in what is being answered.
        for first in (0..packets).rev() {
            qp.gets(O::ReadRequest, 100 + first, part(&qp, u64::from(first) * 256, (packets - first) * 256), &[]);
            qp.gets(O::SendOnly, 90, Ext::None, &[]);
            qp.gets(O::SendOnly, 200 + round, Ext::None, &[]);
        }
    }
    let sent = qp.sent();
    assert!(sent.len() <= 4 * 60 + 1, "{} packets", sent.len());
}

#[test]
fn an_ack_survives_the_replay_of_an_earlier_read() {
    let mut qp = SingleQp::rts();
    qp.gets(O::ReadRequest, 100, part(&qp, 0, 4), &[]);
    qp.sent();
    qp.gets(O::WriteOnly, 101, part(&qp, 0, 4), b"data");
    qp.gets(O::ReadRequest, 100, part(&qp, 0, 4), &[]);
    assert_eq!(qp.sent(), ["RDMA READ response Only 100", "ACK 101"]);
}
