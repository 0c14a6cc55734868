//! Reactions of a responder to each fault: the NAK, the receive's status or the event, and ERR (IBA 9.7.5.2.4,
//! 9.9.3, 11.6.2).

use urxe_engine::{Access, AsyncEvent, Key, Pd, QpState, RecvWr, SendOp, Sge, SgeList, WcStatus};
use urxe_sim::NodeEvent;
use urxe_sim::single_qp::{MTU, SingleQp};
use urxe_wire::{AtomicEth, Ext, Feth, Ieth, ImmDt, Operation as O, RKey, Reth};

/// How the consumer learns of a fault.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum News {
    /// The receive of the message completes so.
    Recv(WcStatus),
    /// No receive completes: an asynchronous event tells.
    Async(AsyncEvent),
}

const REQUEST_ERROR: News = News::Async(AsyncEvent::QpRequestError);
const ACCESS_ERROR: News = News::Async(AsyncEvent::QpAccessError);

/// `make` has the queue pair meet a fault; two receives of 600 bytes and a send are there beforehand.
#[track_caller]
fn fault(nak: &str, news: News, make: impl FnOnce(&mut SingleQp)) {
    let mut qp = SingleQp::rts();
    qp.recv(1, 600);
    qp.recv(2, 600);
    fault_of(&mut qp, nak, news, make);
}

#[track_caller]
fn fault_of(qp: &mut SingleQp, nak: &str, news: News, make: impl FnOnce(&mut SingleQp)) {
    qp.post(9, SendOp::Send, 4);
    qp.sent();
    make(qp);
    let sent = qp.sent();
    assert_eq!(sent.last().map(ToString::to_string).as_deref(), Some(nak));
    assert_eq!(qp.state(), QpState::Err);

    let log = qp.log();
    let completed: Vec<_> = log
        .iter()
        .filter_map(|event| match event {
            NodeEvent::Completed(_, cqe) => Some((cqe.wr_id, cqe.status)),
            _ => None,
        })
        .filter(|&(_, status)| status != WcStatus::Success)
        .collect();
    let events: Vec<_> = log
        .iter()
        .filter_map(|event| match event {
            NodeEvent::Async(_, event) => Some(*event),
            _ => None,
        })
        .collect();
    let flushed = |wr_id| (wr_id, WcStatus::WrFlushError);
    match news {
        News::Recv(status) => {
            assert_eq!(completed, [(1, status), flushed(9), flushed(2)]);
            assert_eq!(events, []);
        }
        News::Async(event) => {
            assert_eq!(completed[0], flushed(9));
            assert!(completed[1..].iter().all(|&(wr_id, _)| completed[1..].contains(&flushed(wr_id))), "{completed:?}");
            assert_eq!(events, [event]);
        }
    }
    // Nothing more comes of it.
    qp.gets(O::SendOnly, 100, Ext::None, b"late");
    assert_eq!(qp.sent(), [""; 0]);
    assert_eq!(qp.completed(), []);
}

fn reth(qp: &SingleQp, dma_len: u32) -> Ext {
    reth_of(qp.remote.key, qp.remote.addr, dma_len)
}

fn reth_of(key: Key, va: u64, dma_len: u32) -> Ext {
    Ext::Reth(target(key, va, dma_len))
}

const fn target(key: Key, va: u64, dma_len: u32) -> Reth {
    Reth { va, r_key: RKey(key.0), dma_len }
}

fn atomic(key: Key, va: u64) -> Ext {
    Ext::AtomicEth(AtomicEth { va, r_key: RKey(key.0), swap_add: 1, compare: 0 })
}

// --- invalid request ---------------------------------------------------------------------------------------

//= spec/responder.md#rsp-006
//= type=test
//# First, Middle, Last and Only packets in an impossible order MUST be refused as an invalid request.
#[test]
fn opcodes_out_of_order_between_messages() {
    for operation in [O::SendMiddle, O::SendLast, O::WriteMiddle, O::WriteLast] {
        fault("NAK InvalidRequest 100", REQUEST_ERROR, |qp| qp.gets(operation, 100, Ext::None, &[0; MTU]));
    }
}

//= spec/responder.md#rsp-006
//= type=test
//# First, Middle, Last and Only packets in an impossible order MUST be refused as an invalid request.
#[test]
fn opcodes_out_of_order_within_a_send() {
    fn after_first(next: impl FnOnce(&mut SingleQp)) {
        fault("NAK InvalidRequest 101", News::Recv(WcStatus::RemoteInvalidRequestError), |qp| {
            qp.gets(O::SendFirst, 100, Ext::None, &[0; MTU]);
            next(qp);
        });
    }
    after_first(|qp| qp.gets(O::SendFirst, 101, Ext::None, &[0; MTU]));
    after_first(|qp| qp.gets(O::SendOnly, 101, Ext::None, &[]));
    after_first(|qp| qp.gets(O::WriteMiddle, 101, Ext::None, &[0; MTU]));
    after_first(|qp| qp.gets(O::WriteLast, 101, Ext::None, &[0; 1]));
    after_first(|qp| qp.gets(O::WriteOnly, 101, reth(qp, 1), &[0]));
    after_first(|qp| qp.gets(O::ReadRequest, 101, reth(qp, 1), &[]));
    after_first(|qp| qp.gets(O::FetchAdd, 101, atomic(qp.remote.key, qp.remote.addr), &[]));
}

//= spec/responder.md#rsp-006
//= type=test
//# First, Middle, Last and Only packets in an impossible order MUST be refused as an invalid request.
#[test]
fn opcodes_out_of_order_within_a_write() {
    for operation in [O::SendFirst, O::SendMiddle, O::SendLast] {
        fault("NAK InvalidRequest 101", REQUEST_ERROR, |qp| {
            qp.gets(O::WriteFirst, 100, reth(qp, 600), &[0; MTU]);
            qp.gets(operation, 101, Ext::None, &[0; MTU]);
        });
    }
}

//= spec/responder.md#rsp-025
//= type=test
//# A FLUSH of a type that the queue pair does not enable MUST be refused as an invalid request.
#[test]
fn a_flush_that_the_queue_pair_does_not_enable() {
    fault("NAK InvalidRequest 100", REQUEST_ERROR, |qp| {
        let reth = target(qp.remote.key, qp.remote.addr, 8);
        let feth = Feth::parse(&[0, 0, 0, 0x12]).unwrap();
        qp.gets(O::Flush, 100, Ext::FethReth(feth, reth), &[]);
    });
}

//= spec/responder.md#rsp-022
//= type=test
//# A SEND with invalidate MUST invalidate a type 2 window of this queue pair only.
#[test]
fn a_key_that_cannot_be_invalidated() {
    let news = News::Recv(WcStatus::RemoteInvalidRequestError);
    for key in [|_: &SingleQp| RKey(1), |qp: &SingleQp| RKey(qp.remote.key.0)] {
        fault("NAK RemoteAccessError 100", news, |qp| {
            qp.gets(O::SendOnlyWithInvalidate, 100, Ext::Ieth(Ieth { r_key: key(qp) }), &[]);
        });
    }
}

//= spec/responder.md#rsp-013
//= type=test
//# An ATOMIC WRITE MUST carry exactly eight bytes for an address that is a multiple of eight.
#[test]
fn an_atomic_write_that_is_not_eight_aligned_bytes() {
    fault("NAK InvalidRequest 100", REQUEST_ERROR, |qp| qp.gets(O::AtomicWrite, 100, reth(qp, 16), &[0; 8]));
    fault("NAK InvalidRequest 100", REQUEST_ERROR, |qp| qp.gets(O::AtomicWrite, 100, reth(qp, 8), &[0; 4]));
    fault("NAK InvalidRequest 100", REQUEST_ERROR, |qp| {
        qp.gets(O::AtomicWrite, 100, reth_of(qp.remote.key, qp.remote.addr + 4, 8), &[0; 8]);
    });
    fault("NAK RemoteAccessError 100", ACCESS_ERROR, |qp| {
        qp.gets(O::AtomicWrite, 100, reth_of(Key(1), qp.remote.addr, 8), &[0; 8]);
    });
}

//= spec/packets.md#pkt-012
//= type=test
//# First and Middle packets MUST have a payload of one path MTU, a Last one between 1 byte and that.
#[test]
fn payload_of_the_wrong_length_for_its_place() {
    for (operation, len) in [(O::SendFirst, MTU - 4), (O::SendFirst, MTU + 4), (O::SendOnly, MTU + 1)] {
        fault("NAK InvalidRequest 100", REQUEST_ERROR, |qp| qp.gets(operation, 100, Ext::None, &vec![0; len]));
    }
    for (operation, len) in [(O::SendMiddle, 1), (O::SendMiddle, MTU + 4), (O::SendLast, 0), (O::SendLast, MTU + 1)] {
        fault("NAK InvalidRequest 101", News::Recv(WcStatus::RemoteInvalidRequestError), |qp| {
            qp.gets(O::SendFirst, 100, Ext::None, &[0; MTU]);
            qp.gets(operation, 101, Ext::None, &vec![0; len]);
        });
    }
}

//= spec/responder.md#rsp-014
//= type=test
//# The payload of a WRITE MUST be as long as its RETH says.
#[test]
fn reth_that_disagrees_with_the_payload() {
    for (dma_len, len) in [(5, 4), (3, 4), (0, 4), (4, 0), (257, 256)] {
        fault("NAK InvalidRequest 100", REQUEST_ERROR, |qp| {
            qp.gets(O::WriteOnly, 100, reth(qp, dma_len), &vec![1; len]);
            assert_eq!(qp.node.memory().peek(qp.remote.addr, 300), [0; 300]);
        });
    }
    fault("NAK InvalidRequest 100", REQUEST_ERROR, |qp| qp.gets(O::WriteFirst, 100, reth(qp, 256), &[1; MTU]));
    for len in [1, 3, 200] {
        fault("NAK InvalidRequest 101", REQUEST_ERROR, |qp| {
            qp.gets(O::WriteFirst, 100, reth(qp, 258), &[1; MTU]);
            qp.gets(O::WriteLast, 101, Ext::None, &vec![1; len]);
        });
    }
    fault("NAK InvalidRequest 101", REQUEST_ERROR, |qp| {
        qp.gets(O::WriteFirst, 100, reth(qp, 512), &[1; MTU]);
        qp.gets(O::WriteMiddle, 101, Ext::None, &[1; MTU]);
    });
}

//= spec/responder.md#rsp-015
//= type=test
//# A message of more than 2^31 bytes MUST be refused as an invalid request.
#[test]
fn messages_longer_than_two_gigabytes() {
    for dma_len in [(1 << 31) + 1, u32::MAX] {
        fault("NAK InvalidRequest 100", REQUEST_ERROR, |qp| qp.gets(O::ReadRequest, 100, reth(qp, dma_len), &[]));
        fault("NAK InvalidRequest 100", REQUEST_ERROR, |qp| {
            qp.gets(O::WriteFirst, 100, reth(qp, dma_len), &[1; MTU]);
        });
    }
    // Of legal length, but there is not that much memory.
    fault("NAK RemoteAccessError 100", ACCESS_ERROR, |qp| qp.gets(O::ReadRequest, 100, reth(qp, 1 << 31), &[]));
}

//= spec/responder.md#rsp-011
//= type=test
//# More READs and atomics at once than responder resources MUST be refused as an invalid request.
#[test]
fn more_reads_and_atomics_than_responder_resources() {
    let mut qp = SingleQp::with(|attr| attr.max_dest_rd_atomic = 2);
    fault_of(&mut qp, "NAK InvalidRequest 102", REQUEST_ERROR, |qp| {
        qp.gets(O::ReadRequest, 100, reth(qp, 4), &[]);
        qp.gets(O::FetchAdd, 101, atomic(qp.remote.key, qp.remote.addr), &[]);
        qp.gets(O::ReadRequest, 102, reth(qp, 4), &[]);
    });
    let mut qp = SingleQp::with(|attr| attr.max_dest_rd_atomic = 0);
    fault_of(&mut qp, "NAK InvalidRequest 100", REQUEST_ERROR, |qp| {
        qp.gets(O::FetchAdd, 100, atomic(qp.remote.key, qp.remote.addr), &[]);
    });
}

//= spec/responder.md#rsp-008
//= type=test
//# An operation that the queue pair's access flags do not allow MUST be refused as an invalid request.
#[test]
fn operations_that_the_qp_does_not_allow() {
    let without = |right: Access| {
        let all = SingleQp::attr().access;
        SingleQp::with(|attr| attr.access = Access::from_bits(all.bits() & !right.bits()))
    };
    let nak = "NAK InvalidRequest 100";
    fault_of(&mut without(Access::REMOTE_WRITE), nak, REQUEST_ERROR, |qp| {
        qp.gets(O::WriteOnly, 100, reth(qp, 4), &[1; 4]);
    });
    fault_of(&mut without(Access::REMOTE_READ), nak, REQUEST_ERROR, |qp| {
        qp.gets(O::ReadRequest, 100, reth(qp, 4), &[]);
    });
    fault_of(&mut without(Access::REMOTE_ATOMIC), nak, REQUEST_ERROR, |qp| {
        qp.gets(O::FetchAdd, 100, atomic(qp.remote.key, qp.remote.addr), &[]);
    });
}

//= spec/responder.md#rsp-012
//= type=test
//# An atomic on an address that is no multiple of eight MUST be refused as an invalid request.
#[test]
fn misaligned_atomics() {
    for operation in [O::FetchAdd, O::CompareSwap] {
        for off in [1, 4, 7] {
            fault("NAK InvalidRequest 100", REQUEST_ERROR, |qp| {
                qp.gets(operation, 100, atomic(qp.remote.key, qp.remote.addr + off), &[]);
            });
        }
    }
    // The address is a multiple of eight, but what it names is not.
    fault("NAK InvalidRequest 100", REQUEST_ERROR, |qp| {
        let memory = qp.node.memory_mut();
        let key = memory.register_at(Pd(1), Access::REMOTE_ATOMIC, qp.remote.addr + 4, 64, 0);
        qp.gets(O::FetchAdd, 100, atomic(key, 8), &[]);
    });
}

// --- remote access -----------------------------------------------------------------------------------------

/// All three kinds of one-sided requests for 8 bytes at `va` of the region with `key`.
#[track_caller]
fn no_access(region: impl Fn(&mut SingleQp) -> (Key, u64)) {
    for operation in [O::WriteOnly, O::ReadRequest, O::CompareSwap] {
        fault("NAK RemoteAccessError 100", ACCESS_ERROR, |qp| {
            let (key, va) = region(qp);
            match operation {
                O::WriteOnly => qp.gets(operation, 100, reth_of(key, va, 8), &[1; 8]),
                O::ReadRequest => qp.gets(operation, 100, reth_of(key, va, 8), &[]),
                _ => qp.gets(operation, 100, atomic(key, va), &[]),
            }
            assert_eq!(qp.node.memory().violations(), []);
        });
    }
}

//= spec/responder.md#rsp-016
//= type=test
//# An R_Key that does not give the access MUST be refused as a remote access error, with an affiliated asynchronous
//# event.
#[test]
fn r_keys_that_do_not_give_access() {
    no_access(|qp| (Key(0), qp.remote.addr));
    no_access(|qp| (Key(qp.remote.key.0 ^ 1), qp.remote.addr));
    no_access(|qp| (qp.local.key, qp.local.addr));
    no_access(|qp| {
        qp.node.memory_mut().deregister(qp.remote.key);
        (qp.remote.key, qp.remote.addr)
    });
    no_access(|qp| {
        let access = Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
        (qp.node.memory_mut().register(Pd(2), access, qp.remote.addr, 64), qp.remote.addr)
    });
}

//= spec/responder.md#rsp-016
//= type=test
//# An R_Key that does not give the access MUST be refused as a remote access error, with an affiliated asynchronous
//# event.
#[test]
fn addresses_out_of_bounds() {
    no_access(|qp| (qp.remote.key, qp.remote.addr + qp.remote.length));
    no_access(|qp| (qp.remote.key, qp.remote.addr - 8));
    no_access(|qp| (qp.remote.key, u64::MAX - 7));
    no_access(|qp| (qp.remote.key, 0));
    // A region at the end of the address space.
    no_access(|qp| {
        let access = Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
        let at = u64::MAX - 15;
        (qp.node.memory_mut().register_at(Pd(1), access, qp.remote.addr, 8, at), at + 8)
    });
}

//= spec/responder.md#rsp-009
//= type=test
//# All of the memory that a WRITE names MUST be checked before its first byte is stored.
#[test]
fn a_write_is_checked_as_a_whole_before_its_first_byte() {
    fault("NAK RemoteAccessError 100", ACCESS_ERROR, |qp| {
        let va = qp.remote.addr + qp.remote.length - 256;
        qp.gets(O::WriteFirst, 100, reth_of(qp.remote.key, va, 257), &[1; MTU]);
        assert_eq!(qp.node.memory().peek(va, 256), [0; 256]);
    });
}

#[test]
fn a_write_whose_region_goes_away_midway() {
    fault("NAK RemoteAccessError 101", ACCESS_ERROR, |qp| {
        qp.gets(O::WriteFirst, 100, reth(qp, 512), &[1; MTU]);
        qp.node.memory_mut().deregister(qp.remote.key);
        qp.gets(O::WriteLast, 101, Ext::None, &[1; MTU]);
    });
}

#[test]
fn write_with_immediate_fails_its_receive() {
    fault("NAK RemoteAccessError 100", News::Recv(WcStatus::LocalAccessError), |qp| {
        let reth = Reth { va: 0, r_key: RKey(qp.remote.key.0), dma_len: 4 };
        qp.gets(O::WriteOnlyWithImmediate, 100, Ext::RethImmDt(reth, ImmDt([0; 4])), &[1; 4]);
    });
}

// --- memory that is gone -----------------------------------------------------------------------------------

//= spec/responder.md#rsp-024
//= type=test
//# Memory that is gone MUST be refused as a remote operational error.
#[test]
fn unmapped_memory_is_an_operational_error() {
    let nak = "NAK RemoteOperationalError 100";
    let unmap = |qp: &mut SingleQp| qp.node.memory_mut().unmap(qp.remote.addr);
    fault(nak, ACCESS_ERROR, |qp| {
        unmap(qp);
        qp.gets(O::WriteOnly, 100, reth(qp, 4), &[1; 4]);
    });
    fault(nak, ACCESS_ERROR, |qp| {
        unmap(qp);
        qp.gets(O::FetchAdd, 100, atomic(qp.remote.key, qp.remote.addr), &[]);
    });
    fault(nak, ACCESS_ERROR, |qp| {
        qp.gets(O::ReadRequest, 100, reth(qp, 4), &[]);
        unmap(qp);
    });
}

#[test]
fn a_read_that_can_only_be_answered_in_part() {
    // The READ and what follows it were accepted before the memory went away: the refusal is the READ's.
    let mut qp = SingleQp::rts();
    qp.gets(O::ReadRequest, 100, reth(&qp, 600), &[]);
    qp.node.nic().set_room(1);
    assert_eq!(qp.sent(), ["RDMA READ response First 100"]);
    qp.gets(O::WriteOnly, 103, reth_of(Key(0), 0, 0), &[]);
    qp.node.memory_mut().unmap(qp.remote.addr);
    qp.node.nic().set_room(100);
    assert_eq!(qp.sent(), ["NAK RemoteOperationalError 101"]);
    assert_eq!((qp.state(), qp.async_events()), (QpState::Err, vec![AsyncEvent::QpAccessError]));
}

// --- the receive's own fault -------------------------------------------------------------------------------

//= spec/responder.md#rsp-017
//= type=test
//# A message longer than the receive WQE MUST fail both: locally with a length error, at the peer as an invalid
//# request.
#[test]
fn receive_too_short() {
    fault("NAK InvalidRequest 102", News::Recv(WcStatus::LocalLengthError), |qp| {
        qp.gets(O::SendFirst, 100, Ext::None, &[0; MTU]);
        qp.gets(O::SendMiddle, 101, Ext::None, &[0; MTU]);
        qp.gets(O::SendLast, 102, Ext::None, &[0; 89]);
    });
    // To the byte, it fits.
    let mut qp = SingleQp::rts();
    qp.recv(1, 600);
    qp.gets(O::SendFirst, 100, Ext::None, &[0; MTU]);
    qp.gets(O::SendMiddle, 101, Ext::None, &[0; MTU]);
    qp.gets(O::SendLast, 102, Ext::None, &[0; 88]);
    assert_eq!(qp.completed(), [(1, WcStatus::Success)]);
}

#[test]
fn receive_buffers_that_l_keys_do_not_give() {
    let buffers: [fn(&mut SingleQp) -> Sge; 5] = [
        |qp| Sge { addr: qp.local.addr, length: 64, l_key: 0 },
        |qp| Sge { addr: qp.local.addr + qp.local.length - 63, length: 64, l_key: qp.local.key.0 },
        |qp| Sge { addr: u64::MAX, length: 64, l_key: qp.local.key.0 },
        |qp| {
            let read_only = qp.node.memory_mut().register(Pd(1), Access::REMOTE_READ, qp.local.addr, 64);
            Sge { addr: qp.local.addr, length: 64, l_key: read_only.0 }
        },
        |qp| {
            let foreign = qp.node.memory_mut().register(Pd(2), Access::LOCAL_WRITE, qp.local.addr, 64);
            Sge { addr: qp.local.addr, length: 64, l_key: foreign.0 }
        },
    ];
    for buffer in buffers {
        let mut qp = SingleQp::rts();
        let sge = buffer(&mut qp);
        qp.recv_wr(RecvWr { wr_id: 1, buffers: SgeList::new(&[sge]) }).unwrap();
        qp.recv(2, 4);
        let news = News::Recv(WcStatus::LocalProtectionError);
        fault_of(&mut qp, "NAK RemoteOperationalError 100", news, |qp| qp.gets(O::SendOnly, 100, Ext::None, &[1; 64]));
        assert_eq!(qp.node.memory().violations(), []);
    }
}

#[test]
fn bad_elements_behind_the_message_do_not_matter() {
    let mut qp = SingleQp::rts();
    let good = Sge { addr: qp.local.addr, length: 4, l_key: qp.local.key.0 };
    let bad = Sge { addr: 0, length: 100, l_key: 0 };
    qp.recv_wr(RecvWr { wr_id: 1, buffers: SgeList::new(&[good, bad]) }).unwrap();
    qp.gets(O::SendOnly, 100, Ext::None, b"four");
    assert_eq!(qp.completed(), [(1, WcStatus::Success)]);
}
