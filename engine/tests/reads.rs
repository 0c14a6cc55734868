//! READs and atomics as the requester sees them: chunks, responses, lost responses, fence, limits.

use urxe_engine::attr::QpAttr;
use urxe_engine::{
    Access, Data, DropReason, Pd, QpState, Recipient, Remote, SendFlags, SendOp, SendWr, Sge, SgeList, WcOpcode,
    WcStatus,
};
use urxe_sim::single_qp::{MTU, SQ_PSN, Sent, SingleQp};
use urxe_wire::{Aeth, AtomicAckEth, Credits, Ext, Msn, NakCode, Operation as O, RKey, Reth, RnrTimer, Syndrome};

const REMOTE: Remote = Remote { addr: 0x1234_5678_9A00, r_key: RKey(0x77) };
const OK: WcStatus = WcStatus::Success;
const ACK: Aeth = Aeth { syndrome: Syndrome::Ack(Credits::INVALID), msn: Msn::new(0) };

fn reth(sent: &Sent) -> (u64, u32) {
    match sent.header.ext {
        Ext::Reth(Reth { va, r_key, dma_len }) => {
            assert_eq!(r_key, REMOTE.r_key);
            (va - REMOTE.addr, dma_len)
        }
        ext => panic!("no RETH: {ext:?}"),
    }
}

/// A response of 256 bytes in the middle of a READ.
fn middle(qp: &mut SingleQp, psn: u32) {
    qp.gets(O::ReadResponseMiddle, psn, Ext::None, &[psn.to_le_bytes()[0]; MTU]);
}

/// A full response at `psn` to the request for the PSNs from `first` to `last`.
fn part(qp: &mut SingleQp, psn: u32, first: u32, last: u32) {
    let (operation, ext) = match (psn == first, psn == last) {
        (true, true) => (O::ReadResponseOnly, Ext::Aeth(ACK)),
        (true, false) => (O::ReadResponseFirst, Ext::Aeth(ACK)),
        (false, true) => (O::ReadResponseLast, Ext::Aeth(ACK)),
        (false, false) => (O::ReadResponseMiddle, Ext::None),
    };
    qp.gets(operation, psn, ext, &[psn.to_le_bytes()[0]; MTU]);
}

fn atomic_ack(qp: &mut SingleQp, psn: u32, original: u64) {
    qp.gets(O::AtomicAcknowledge, psn, Ext::AethAtomicAckEth(ACK, AtomicAckEth { original }), &[]);
}

#[test]
fn responses_go_where_the_elements_say() {
    let mut qp = SingleQp::rts();
    let sge = |offset, length| Sge { addr: qp.local.addr + offset, length, l_key: qp.local.key.0 };
    let data = Data::Gather(SgeList::new(&[sge(1000, 250), sge(0, 20), sge(2000, 30)]));
    let flags = SendFlags { signaled: true, ..SendFlags::default() };
    qp.post_wr(SendWr { wr_id: 1, op: SendOp::Read(REMOTE), data, flags, to: Recipient::Peer }).unwrap();
    let sent = qp.sent();
    assert_eq!(sent, ["RDMA READ Request 200 ?"]);
    assert_eq!(reth(&sent[0]), (0, 300));
    qp.gets(O::ReadResponseFirst, 200, Ext::Aeth(ACK), &[1; MTU]);
    qp.gets(O::ReadResponseLast, 201, Ext::Aeth(ACK), &[2; 44]);
    let [cqe] = qp.cqes().try_into().unwrap();
    assert_eq!((cqe.wr_id, cqe.status, cqe.opcode, cqe.byte_len), (1, OK, WcOpcode::RdmaRead, 300));
    let peek = |offset, len| qp.node.memory().peek(qp.local.addr + offset, len);
    assert_eq!(peek(999, 252), [&[0][..], &[1; 250], &[0]].concat());
    assert_eq!(peek(0, 21), [&[1; 6][..], &[2; 14], &[0]].concat());
    assert_eq!(peek(2000, 31), [&[2; 30][..], &[0]].concat());
}

#[test]
fn atomics_bring_back_what_was_there() {
    let mut qp = SingleQp::rts();
    qp.post(1, SendOp::CompareSwap { remote: REMOTE, compare: 1, swap: 2 }, 8);
    qp.post(2, SendOp::FetchAdd { remote: REMOTE, add: 3 }, 8);
    let sent = qp.sent();
    assert_eq!(sent, ["CmpSwap 200 ?", "FetchAdd 201 ?"]);
    let Ext::AtomicEth(cmp_swap) = sent[0].header.ext else { panic!("no AtomicETH") };
    assert_eq!((cmp_swap.va, cmp_swap.r_key, cmp_swap.compare, cmp_swap.swap_add), (REMOTE.addr, REMOTE.r_key, 1, 2));
    let Ext::AtomicEth(fetch_add) = sent[1].header.ext else { panic!("no AtomicETH") };
    assert_eq!((fetch_add.swap_add, fetch_add.compare), (3, 0));
    atomic_ack(&mut qp, 200, 0x0102_0304_0506_0708);
    let bytes = qp.node.memory().peek(qp.local.addr, 8);
    assert_eq!(bytes, 0x0102_0304_0506_0708_u64.to_ne_bytes());
    atomic_ack(&mut qp, 201, 1);
    let cqes = qp.cqes();
    assert_eq!(
        cqes.iter().map(|cqe| (cqe.wr_id, cqe.opcode, cqe.byte_len)).collect::<Vec<_>>(),
        [(1, WcOpcode::CompSwap, 8), (2, WcOpcode::FetchAdd, 8)]
    );
}

#[test]
fn nothing_is_read_without_a_key() {
    let mut qp = SingleQp::rts();
    let flags = SendFlags { signaled: true, ..SendFlags::default() };
    let data = Data::Gather(SgeList::new(&[]));
    qp.post_wr(SendWr { wr_id: 1, op: SendOp::Read(REMOTE), data, flags, to: Recipient::Peer }).unwrap();
    assert_eq!(reth(&qp.sent()[0]), (0, 0));
    qp.gets(O::ReadResponseOnly, 200, Ext::Aeth(ACK), &[]);
    assert_eq!(qp.completed(), [(1, OK)]);
}

// --- chunks and limits -------------------------------------------------------------------------------------

//= spec/requester.md#req-001
//= type=test
//# Each request packet MUST have the next PSN of 24 bits; a READ takes one for each packet of its response.
#[test]
fn a_long_read_is_asked_for_in_chunks() {
    let mut qp = SingleQp::rts();
    qp.post(1, SendOp::Read(REMOTE), 60 * 256 + 1);
    // A window of 32 packets in four chunks of 8.
    let sent = qp.sent();
    assert_eq!(sent.iter().map(|sent| sent.header.bth.psn.get()).collect::<Vec<_>>(), [200, 208, 216, 224]);
    assert_eq!(sent.iter().map(reth).collect::<Vec<_>>(), [(0, 2048), (2048, 2048), (4096, 2048), (6144, 2048)]);
    for psn in 200..207 {
        part(&mut qp, psn, 200, 207);
    }
    assert_eq!(qp.sent(), [""; 0], "the first chunk is not complete");
    part(&mut qp, 207, 200, 207);
    let sent = qp.sent();
    assert_eq!(sent, ["RDMA READ Request 232 ?"]);
    let (offset, len) = reth(&sent[0]);
    assert!(offset == 8192 && len >= 2048, "{offset} {len}");
    // The chunks asked for, by their first PSNs; the last ends with the READ.
    let mut chunks = vec![208, 216, 224, 232, 261];
    let grow = |chunks: &mut Vec<u32>, sent: &[Sent]| {
        chunks.pop();
        chunks.extend(sent.iter().map(|sent| sent.header.bth.psn.get()));
        chunks.push(261);
    };
    for psn in 208..260 {
        let at = chunks.iter().rposition(|first| *first <= psn).unwrap();
        let (first, last) = (chunks[at], chunks[at + 1] - 1);
        part(&mut qp, psn, first, last);
        let sent = qp.sent();
        grow(&mut chunks, &sent);
    }
    assert_eq!(qp.completed(), []);
    qp.gets(O::ReadResponseLast, 260, Ext::Aeth(ACK), &[9]);
    assert_eq!(qp.completed(), [(1, OK)]);
    assert_eq!(qp.node.memory().peek(qp.local.addr + 60 * 256 - 1, 3), [3, 9, 0], "259 is 0x103");
}

//= spec/requester.md#req-005
//= type=test
//# READs and atomics outstanding MUST NOT be more than max_rd_atomic.
#[test]
fn no_more_reads_and_atomics_than_the_responder_takes() {
    let mut qp = SingleQp::with(|attr| attr.max_rd_atomic = 2);
    for wr_id in 1..=3 {
        qp.post(wr_id, SendOp::FetchAdd { remote: REMOTE, add: 1 }, 8);
    }
    qp.post(4, SendOp::Send, 4);
    assert_eq!(qp.sent(), ["FetchAdd 200 ?", "FetchAdd 201 ?"], "and nothing overtakes");
    atomic_ack(&mut qp, 200, 0);
    assert_eq!(qp.sent(), ["FetchAdd 202 ?", "SEND Only 203 ?"]);
}

#[test]
fn reads_and_atomics_that_can_never_be_sent_fail() {
    for op in [SendOp::Read(REMOTE), SendOp::FetchAdd { remote: REMOTE, add: 1 }] {
        let mut qp = SingleQp::with(|attr| attr.max_rd_atomic = 0);
        qp.post(1, SendOp::Write(REMOTE), 4);
        qp.post(2, op, 8);
        assert_eq!(qp.sent(), ["RDMA WRITE Only 200 ?"]);
        qp.gets_ack(200);
        assert_eq!(qp.completed(), [(1, OK), (2, WcStatus::LocalQpOperationError)]);
    }
}

//= spec/requester.md#req-006
//= type=test
//# A fenced request MUST wait until all READs and atomics before it have completed.
#[test]
fn a_fence_waits_for_reads_and_atomics_only() {
    let mut qp = SingleQp::rts();
    let fenced = |wr_id, qp: &SingleQp| SendWr {
        wr_id,
        op: SendOp::Send,
        data: Data::Gather(qp.sges(4)),
        flags: SendFlags { fence: true, signaled: true, solicited: false },
        to: Recipient::Peer,
    };
    qp.post(1, SendOp::Write(REMOTE), 4);
    qp.post_wr(fenced(2, &qp)).unwrap();
    assert_eq!(qp.sent(), ["RDMA WRITE Only 200 ?", "SEND Only 201 ?"]);
    qp.post(3, SendOp::Read(REMOTE), 4);
    qp.post_wr(fenced(4, &qp)).unwrap();
    assert_eq!(qp.sent(), ["RDMA READ Request 202 ?"]);
    qp.gets_ack(201);
    assert_eq!(qp.sent(), [""; 0]);
    qp.gets(O::ReadResponseOnly, 202, Ext::Aeth(ACK), b"read");
    let sent = qp.sent();
    assert_eq!(sent, ["SEND Only 203 ?"]);
    assert_eq!(sent[0].payload, b"read");
}

// --- lost responses ----------------------------------------------------------------------------------------

//= spec/requester.md#req-016
//= type=test
//# A READ that is asked for again MUST stay within the PSNs of the request that it repeats.
#[test]
fn a_lost_response_is_asked_for_again() {
    let mut qp = SingleQp::rts();
    qp.post(1, SendOp::Read(REMOTE), 1000);
    qp.sent();
    qp.gets(O::ReadResponseFirst, 200, Ext::Aeth(ACK), &[1; MTU]);
    middle(&mut qp, 202);
    let sent = qp.sent();
    assert_eq!(sent, ["RDMA READ Request 201 ?"]);
    assert_eq!(reth(&sent[0]), (256, 744), "only what is missing");
    assert_eq!(qp.drops(), [DropReason::OutOfSequence]);
    // The rest of the old answer, still under way.
    qp.gets(O::ReadResponseLast, 203, Ext::Aeth(ACK), &[1; 232]);
    assert_eq!(qp.sent(), [""; 0], "it has been asked for again already");
    qp.gets(O::ReadResponseFirst, 201, Ext::Aeth(ACK), &[7; MTU]);
    qp.gets(O::ReadResponseMiddle, 202, Ext::None, &[8; MTU]);
    qp.gets(O::ReadResponseLast, 203, Ext::Aeth(ACK), &[9; 232]);
    assert_eq!(qp.completed(), [(1, OK)]);
    let bytes = qp.node.memory().peek(qp.local.addr, 1000);
    assert_eq!((bytes[255], bytes[256], bytes[512], bytes[768], bytes[999]), (1, 7, 8, 9, 9));
}

//= spec/completer.md#cmp-003
//= type=test
//# An acknowledgement behind an unanswered READ or atomic MUST be taken as news that the response was lost.
#[test]
fn an_ack_of_later_requests_implies_that_a_response_was_lost() {
    for op in [SendOp::Read(REMOTE), SendOp::FetchAdd { remote: REMOTE, add: 1 }] {
        let mut qp = SingleQp::rts();
        qp.post(1, SendOp::Send, 4);
        qp.post(2, op, 8);
        qp.post(3, SendOp::Send, 4);
        let sent = qp.sent();
        qp.gets_ack(202);
        assert_eq!(qp.completed(), [(1, OK)], "what is before the lost response is acknowledged");
        assert_eq!(qp.sent(), sent[1..]);
        qp.gets_ack(202);
        assert_eq!(qp.sent(), [""; 0], "once");
    }
}

#[test]
fn a_refusal_behind_a_lost_response_waits() {
    let mut qp = SingleQp::rts();
    qp.post(1, SendOp::Read(REMOTE), 4);
    qp.post(2, SendOp::Write(REMOTE), 4);
    qp.sent();
    qp.gets_aeth(201, Syndrome::Nak(NakCode::RemoteAccessError));
    assert_eq!((qp.completed(), qp.sent().len()), (vec![], 2));
    qp.gets(O::ReadResponseOnly, 200, Ext::Aeth(ACK), b"read");
    qp.gets_aeth(201, Syndrome::Nak(NakCode::RemoteAccessError));
    assert_eq!(qp.completed(), [(1, OK), (2, WcStatus::RemoteAccessError)]);
}

/// The responder has refused the rest of a READ, and is in ERR: it would not answer if asked for the lost response.
#[test]
fn a_refusal_of_the_request_whose_response_was_lost_does_not_wait() {
    let mut qp = SingleQp::rts();
    qp.post(1, SendOp::Read(REMOTE), 1000);
    qp.sent();
    qp.gets(O::ReadResponseFirst, 200, Ext::Aeth(ACK), &[1; MTU]);
    qp.gets_aeth(202, Syndrome::Nak(NakCode::RemoteAccessError));
    assert_eq!(qp.completed(), [(1, WcStatus::RemoteAccessError)]);
}

#[test]
fn an_rnr_nak_behind_a_lost_response_waits_too() {
    let mut qp = SingleQp::rts();
    qp.post(1, SendOp::Read(REMOTE), 4);
    qp.post(2, SendOp::Send, 4);
    let sent = qp.sent();
    let not_ready = Syndrome::RnrNak(RnrTimer::new(1));
    qp.gets_aeth(201, not_ready);
    assert_eq!(qp.sent(), sent, "the response first, at once");
    qp.gets(O::ReadResponseOnly, 200, Ext::Aeth(ACK), b"read");
    qp.gets_aeth(201, not_ready);
    assert_eq!(qp.sent(), [""; 0]);
    qp.elapse(qp.timeout().unwrap());
    assert_eq!(qp.sent(), ["SEND Only 201 ?"]);
    qp.gets_ack(201);
    assert_eq!(qp.completed(), [(1, OK), (2, OK)]);
}

#[test]
fn a_read_request_that_was_lost() {
    let mut qp = SingleQp::rts();
    qp.post(1, SendOp::Read(REMOTE), 1000);
    qp.post(2, SendOp::Send, 4);
    let sent = qp.sent();
    qp.gets_aeth(200, Syndrome::Nak(NakCode::PsnSequenceError));
    assert_eq!(qp.sent(), sent);
    // The peer is in the middle of answering, and misses the SEND.
    qp.gets(O::ReadResponseFirst, 200, Ext::Aeth(ACK), &[1; MTU]);
    qp.gets_aeth(204, Syndrome::Nak(NakCode::PsnSequenceError));
    let sent = qp.sent();
    assert_eq!(sent, ["RDMA READ Request 201 ?", "SEND Only 204 ?"]);
    assert_eq!(reth(&sent[0]), (256, 744));
}

#[test]
fn a_read_whose_responses_stop_coming() {
    let mut qp = SingleQp::rts();
    qp.post(1, SendOp::Read(REMOTE), 1000);
    qp.sent();
    qp.gets(O::ReadResponseFirst, 200, Ext::Aeth(ACK), &[1; MTU]);
    // The timeouts differ.
    let expire = |qp: &mut SingleQp| {
        let wait = qp.timeout().unwrap();
        qp.elapse(wait);
    };
    for _ in 0..3 {
        expire(&mut qp);
        assert_eq!(qp.sent(), ["RDMA READ Request 201 ?"]);
    }
    middle(&mut qp, 201);
    expire(&mut qp);
    assert_eq!(qp.sent(), ["RDMA READ Request 202 ?"], "each response is progress");
    for _ in 0..3 {
        expire(&mut qp);
        qp.sent();
    }
    assert_eq!(qp.completed(), [(1, WcStatus::RetryExceededError)]);
}

#[test]
fn a_read_may_be_refused_midway() {
    let mut qp = SingleQp::rts();
    qp.post(1, SendOp::Read(REMOTE), 600);
    qp.sent();
    qp.gets(O::ReadResponseFirst, 200, Ext::Aeth(ACK), &[1; MTU]);
    qp.gets_aeth(201, Syndrome::Nak(NakCode::RemoteOperationalError));
    assert_eq!(qp.completed(), [(1, WcStatus::RemoteOperationError)]);
}

//= spec/completer.md#cmp-007
//= type=test
//# A duplicate of a response MUST change nothing.
#[test]
fn duplicate_responses_change_nothing() {
    let mut qp = SingleQp::rts();
    qp.post(1, SendOp::FetchAdd { remote: REMOTE, add: 1 }, 8);
    qp.sent();
    atomic_ack(&mut qp, 200, 5);
    qp.log();
    atomic_ack(&mut qp, 200, 6);
    assert_eq!(qp.drops(), [DropReason::GhostAck]);
    assert_eq!(qp.node.memory().peek(qp.local.addr, 8), 5_u64.to_ne_bytes());
}

// --- responses that cannot be ------------------------------------------------------------------------------

//= spec/completer.md#cmp-006
//= type=test
//# A response whose kind or length is not what its PSN demands MUST fail the request with IBV_WC_BAD_RESP_ERR.
#[test]
fn responses_of_the_wrong_kind_or_length() {
    let bad = |op: SendOp, len, respond: &dyn Fn(&mut SingleQp)| {
        let mut qp = SingleQp::rts();
        qp.post(1, op, len);
        qp.post(2, SendOp::Send, 4);
        qp.sent();
        respond(&mut qp);
        assert_eq!(qp.completed(), [(1, WcStatus::BadResponseError), (2, WcStatus::WrFlushError)]);
        assert_eq!(qp.node.memory().peek(qp.local.addr, 600), [0; 600], "nothing is stored");
    };
    let read = SendOp::Read(REMOTE);
    for len in [0, 4, 252] {
        bad(read, 600, &|qp| qp.gets(O::ReadResponseFirst, 200, Ext::Aeth(ACK), &vec![1; len]));
    }
    bad(read, 4, &|qp| qp.gets(O::ReadResponseOnly, 200, Ext::Aeth(ACK), &[1; 8]));
    bad(read, 8, &|qp| atomic_ack(qp, 200, 1));
    bad(SendOp::FetchAdd { remote: REMOTE, add: 1 }, 8, &|qp| {
        qp.gets(O::ReadResponseOnly, 200, Ext::Aeth(ACK), &[1; 8]);
    });
    for syndrome in [Syndrome::RnrNak(RnrTimer::new(1)), Syndrome::Nak(NakCode::RemoteAccessError)] {
        let refusal = Aeth { syndrome, ..ACK };
        bad(read, 8, &|qp| qp.gets(O::ReadResponseOnly, 200, Ext::Aeth(refusal), &[1; 8]));
    }
}

/// Sends a READ of three packets, lets `before` come, and returns how it ends when the response `operation` comes at `psn`.
fn read_ends_by(before: &[(O, u32)], operation: O, psn: u32) -> Vec<(u64, WcStatus)> {
    let mut qp = SingleQp::rts();
    qp.post(1, SendOp::Read(REMOTE), 3 * 256);
    qp.sent();
    for &(operation, psn) in before.iter().chain(&[(operation, psn)]) {
        let ext = if operation == O::ReadResponseMiddle { Ext::None } else { Ext::Aeth(ACK) };
        qp.gets(operation, psn, ext, &[1; MTU]);
    }
    qp.completed()
}

//= spec/completer.md#cmp-010
//= type=test
//# READ responses MUST be an Only, or a First, Middles and a Last, from the PSN of a READ request to the last PSN
//# that it asks for; any others MUST fail the request with IBV_WC_BAD_RESP_ERR.
#[test]
fn responses_of_a_read_in_an_impossible_order() {
    const ALL: [O; 4] = [O::ReadResponseFirst, O::ReadResponseMiddle, O::ReadResponseLast, O::ReadResponseOnly];
    let right = [(O::ReadResponseFirst, 200), (O::ReadResponseMiddle, 201), (O::ReadResponseLast, 202)];
    for (count, &(expected, psn)) in right.iter().enumerate() {
        for operation in ALL {
            let ended = read_ends_by(&right[..count], operation, psn);
            if operation != expected {
                assert_eq!(ended, [(1, WcStatus::BadResponseError)], "{operation:?} at {psn}");
            } else if psn == 202 {
                assert_eq!(ended, [(1, OK)]);
            } else {
                assert_eq!(ended, []);
            }
        }
    }
    // One packet.
    for operation in ALL {
        let mut qp = SingleQp::rts();
        qp.post(1, SendOp::Read(REMOTE), 4);
        qp.sent();
        let ext = if operation == O::ReadResponseMiddle { Ext::None } else { Ext::Aeth(ACK) };
        qp.gets(operation, 200, ext, b"read");
        let expected = if operation == O::ReadResponseOnly { OK } else { WcStatus::BadResponseError };
        assert_eq!(qp.completed(), [(1, expected)], "{operation:?}");
    }
}

/// A READ that is asked for again from its middle on begins anew there; what comes of the first time is taken as well.
#[test]
fn responses_of_a_read_that_was_resumed() {
    let resumed = || {
        let mut qp = SingleQp::rts();
        qp.post(1, SendOp::Read(REMOTE), 4 * 256);
        qp.sent();
        part(&mut qp, 200, 200, 203);
        part(&mut qp, 202, 200, 203);
        assert_eq!(qp.sent(), ["RDMA READ Request 201 ?"]);
        qp
    };
    for (first, last) in [(201, 203), (200, 203)] {
        let mut qp = resumed();
        for psn in 201..=203 {
            part(&mut qp, psn, first, last);
        }
        assert_eq!(qp.completed(), [(1, OK)]);
    }
    // Old and new mixed.
    let mut qp = resumed();
    part(&mut qp, 201, 200, 203);
    part(&mut qp, 201, 201, 203);
    part(&mut qp, 202, 201, 203);
    part(&mut qp, 203, 200, 203);
    assert_eq!(qp.completed(), [(1, OK)]);
    // It does not begin where it was not asked for.
    let mut qp = resumed();
    part(&mut qp, 201, 201, 203);
    part(&mut qp, 202, 202, 203);
    assert_eq!(qp.completed(), [(1, WcStatus::BadResponseError)]);
    // Of the packet that is left alone, an Only or the old Last.
    for (first, last) in [(203, 203), (200, 203)] {
        let mut qp = resumed();
        part(&mut qp, 201, 201, 203);
        part(&mut qp, 202, 201, 203);
        qp.elapse(qp.timeout().unwrap());
        assert_eq!(qp.sent(), ["RDMA READ Request 203 ?"]);
        part(&mut qp, 203, first, last);
        assert_eq!(qp.completed(), [(1, OK)]);
    }
}

//= spec/completer.md#cmp-008
//= type=test
//# A response to what was never asked for MUST be dropped.
#[test]
fn responses_to_what_was_never_asked_for() {
    let mut qp = SingleQp::rts();
    qp.post(1, SendOp::Read(REMOTE), 60 * 256);
    qp.sent();
    // Asked for are 200 to 231.
    for psn in [199, 232, 259, 260, 0] {
        middle(&mut qp, psn);
    }
    assert_eq!(qp.drops(), [DropReason::GhostAck; 5]);
    assert_eq!(qp.state(), QpState::Rts);
}

//= spec/completer.md#cmp-009
//= type=test
//# A response MUST be stored only where an L_Key allows local writing.
#[test]
fn buffers_that_may_not_be_written() {
    for (pd, access) in [(Pd(1), Access::NONE), (Pd(2), Access::LOCAL_WRITE)] {
        let mut qp = SingleQp::rts();
        let key = qp.node.memory_mut().register(pd, access, qp.local.addr, 64);
        let data = Data::Gather(SgeList::new(&[Sge { addr: qp.local.addr, length: 8, l_key: key.0 }]));
        let flags = SendFlags::default();
        qp.post_wr(SendWr { wr_id: 1, op: SendOp::Read(REMOTE), data, flags, to: Recipient::Peer }).unwrap();
        qp.sent();
        qp.gets(O::ReadResponseOnly, 200, Ext::Aeth(ACK), &[1; 8]);
        assert_eq!(qp.completed(), [(1, WcStatus::LocalProtectionError)]);
        assert_eq!(qp.node.memory().peek(qp.local.addr, 8), [0; 8]);
    }
}

/// A READ that is a little longer than a chunk takes equal ones, none of which is longer than the window.
#[test]
fn chunks_fit_the_window() {
    for (window, max_rd_atomic, packets, lengths) in
        [(32, 4, 9, &[9][..]), (32, 4, 12, &[6, 6]), (32, 1, 40, &[32, 8]), (3, 1, 4, &[3, 1])]
    {
        let mut qp = SingleQp::reset(|setup, _| setup.window = window);
        qp.go_to(QpState::Rts, &QpAttr { max_rd_atomic, ..SingleQp::attr() });
        qp.post(1, SendOp::Read(REMOTE), packets * 256);
        let mut asked = vec![];
        let mut first = SQ_PSN;
        while asked.iter().sum::<u32>() < packets {
            let chunks: Vec<_> = qp.sent().iter().map(|sent| reth(sent).1 / 256).collect();
            assert!(!chunks.is_empty(), "{window}: {asked:?} and no more");
            asked.extend(&chunks);
            for length in chunks {
                let last = first + length - 1;
                (first..=last).for_each(|psn| part(&mut qp, psn, first, last));
                first = last + 1;
            }
        }
        assert_eq!(asked, lengths, "a window of {window}");
        assert_eq!(qp.completed(), [(1, OK)]);
    }
}
