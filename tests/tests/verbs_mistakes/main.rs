//! Wrong use of a connected queue pair: completion status, asynchronous event and errno of each mistake.
//!
//! Statuses: IBA 11.6.2 and ibv_poll_cq(3). What the responder says and what becomes of its own receive: IBA 9.9.3.

mod keys;
mod vanished_memory;

use std::time::Duration;

use anyhow::{Result, ensure};
use urxe_ffi::verbs as v;
use urxe_tests::in_world;
use urxe_tests::verbs::memory::{ALL_ACCESS, pattern};
use urxe_tests::verbs::mistake::{Far, LEN, Mistake, Scene, make_all};
use urxe_tests::verbs::{Change, Mr, Op, Options, Pair, Pd, RecvWr, Remote, SendWr, Status};

const REMOTE_RIGHTS: u32 = v::IBV_ACCESS_REMOTE_WRITE | v::IBV_ACCESS_REMOTE_READ | v::IBV_ACCESS_REMOTE_ATOMIC;

/// The responder refused the R_Key, and had no receive to say so with.
const ACCESS_ERROR: Far = Far::Event(v::IBV_EVENT_QP_ACCESS_ERR);
/// The responder refused the request itself.
const REQUEST_ERROR: Far = Far::Event(v::IBV_EVENT_QP_REQ_ERR);

fn atomic(remote: Remote) -> Op {
    Op::FetchAdd { remote, add: 1 }
}

/// A region of another protection domain at the near end.
fn other_local(scene: &Scene) -> Result<v::ibv_sge> {
    let mr = Mr::alloc(&Pd::new(&scene.pair.near.context)?, LEN, ALL_ACCESS)?;
    Ok(scene.keep(mr, |mr| mr.sge(0, LEN)))
}

/// A region of another protection domain at the far end.
fn other_remote(scene: &Scene) -> Result<Remote> {
    let mr = Mr::alloc(&Pd::new(&scene.pair.far.context)?, LEN, ALL_ACCESS)?;
    Ok(scene.keep(mr, |mr| mr.at(0)))
}

fn read_only_local(scene: &Scene, len: usize) -> Result<v::ibv_sge> {
    let mr = scene.near_region(REMOTE_RIGHTS & v::IBV_ACCESS_REMOTE_READ)?;
    Ok(scene.keep(mr, |mr| mr.sge(0, len)))
}

/// Requests that the far QP does not take (IBA 9.7.4.1.1, C9-222 class C; on the kernel's rxe `check_op_valid` and
/// `RESPST_ERR_MISALIGNED_ATOMIC`): invalid request.
//= spec/responder.md#rsp-008
//= type=test
//# An operation that the queue pair's access flags do not allow MUST be refused as an invalid request.
#[test]
fn requests_that_the_far_qp_refuses() {
    const fn refused(name: &'static str, missing: u32, wr: fn(&Scene) -> Result<SendWr>) -> Mistake {
        Mistake::new(name, Status::REM_INV_REQ_ERR, REQUEST_ERROR, wr).at_qp_with(ALL_ACCESS & !missing)
    }
    in_world(|| {
        make_all(&[
            refused("WRITE to a QP without remote write", v::IBV_ACCESS_REMOTE_WRITE, |s| {
                Ok(SendWr::new(Op::Write(s.remote.at(0)), &[s.local.sge(0, 8)]))
            }),
            refused("WRITE with immediate to a QP without remote write", v::IBV_ACCESS_REMOTE_WRITE, |s| {
                Ok(SendWr::new(Op::WriteImm(s.remote.at(0), 5), &[s.local.sge(0, 8)]))
            }),
            refused("READ from a QP without remote read", v::IBV_ACCESS_REMOTE_READ, |s| {
                Ok(SendWr::new(Op::Read(s.remote.at(0)), &[s.local.sge(0, 8)]))
            }),
            refused("FETCH_ADD at a QP without remote atomic", v::IBV_ACCESS_REMOTE_ATOMIC, |s| {
                Ok(SendWr::new(atomic(s.remote.at(0)), &[s.local.sge(0, 8)]))
            }),
            refused("CMP_SWP at a QP without remote atomic", v::IBV_ACCESS_REMOTE_ATOMIC, |s| {
                let op = Op::CmpSwp { remote: s.remote.at(0), compare: 0, swap: 1 };
                Ok(SendWr::new(op, &[s.local.sge(0, 8)]))
            }),
            refused("misaligned FETCH_ADD", 0, |s| Ok(SendWr::new(atomic(s.remote.at(4)), &[s.local.sge(0, 8)]))),
            refused("misaligned CMP_SWP", 0, |s| {
                let op = Op::CmpSwp { remote: s.remote.at(1), compare: 0, swap: 1 };
                Ok(SendWr::new(op, &[s.local.sge(0, 8)]))
            }),
        ])
    });
}

/// The far end's receive is at fault, and completes so. "Local Length Error" and "Remote Invalid Request Error":
/// ibv_poll_cq(3), IBA 11.6.2. A bad receive buffer is the responder's own fault: "Remote Operation Error".
//= spec/responder.md#rsp-017
//= type=test
//# A message longer than the receive WQE MUST fail both: locally with a length error, at the peer as an invalid
//# request.
#[test]
fn receives_that_do_not_fit() {
    fn send(s: &Scene, len: usize) -> Result<SendWr> {
        Ok(SendWr::new(Op::Send, &[s.local.sge(0, len)]))
    }
    const fn short(name: &'static str, wr: fn(&Scene) -> Result<SendWr>) -> Mistake {
        Mistake::new(name, Status::REM_INV_REQ_ERR, Far::Recv(Status::LOC_LEN_ERR), wr)
    }
    const fn bad(name: &'static str, recv: fn(&Scene) -> Result<RecvWr>) -> Mistake {
        Mistake::new(name, Status::REM_OP_ERR, Far::Recv(Status::LOC_PROT_ERR), |s| send(s, 8)).received_by(recv)
    }
    in_world(|| {
        make_all(&[
            short("SEND one byte longer than the receive", |s| send(s, 8))
                .received_by(|s| Ok(RecvWr::new(0, &[s.remote.sge(0, 7)]))),
            short("SEND with immediate longer than the receive", |s| {
                Ok(SendWr::new(Op::SendImm(1), &[s.local.sge(0, 8)]))
            })
            .received_by(|s| Ok(RecvWr::new(0, &[s.remote.sge(0, 3), s.remote.sge(8, 4)]))),
            short("SEND to a receive without buffers", |s| send(s, 1)).received_by(|_| Ok(RecvWr::new(0, &[]))),
            short("SEND of which only the last packet is too long", |s| send(s, LEN))
                .received_by(|s| Ok(RecvWr::new(0, &[s.remote.sge(0, LEN - 1)]))),
            bad("receive with an L_Key that nobody has", |s| {
                let sge = s.remote.sge(0, 8);
                Ok(RecvWr::new(0, &[v::ibv_sge { lkey: !sge.lkey, ..sge }]))
            }),
            bad("receive into another PD's MR", |s| Ok(RecvWr::new(0, &[other_local(s)?]))),
            bad("receive into memory without local write", |s| {
                let mr = s.far_region(v::IBV_ACCESS_REMOTE_READ)?;
                Ok(RecvWr::new(0, &[s.keep(mr, |mr| mr.sge(0, 8))]))
            }),
            bad("receive into a deregistered MR", |s| {
                let mr = s.far_region(ALL_ACCESS)?;
                let sge = mr.sge(0, 8);
                mr.dereg()?;
                Ok(RecvWr::new(0, &[sge]))
            }),
            bad("receive beyond the end", |s| Ok(RecvWr::new(0, &[s.remote.sge(LEN - 7, 8)]))),
            // "a protection error occurred on a local data buffer during the processing of a RDMA Write with
            // Immediate": ibv_poll_cq(3) of IBV_WC_LOC_ACCESS_ERR.
            Mistake::new(
                "WRITE with immediate beyond the end",
                Status::REM_ACCESS_ERR,
                Far::Recv(Status::LOC_ACCESS_ERR),
                |s| Ok(SendWr::new(Op::WriteImm(s.remote.at(LEN - 7), 5), &[s.local.sge(0, 8)])),
            ),
        ])
    });
}

/// Requests posted before a mistake complete first, with success.
#[test]
fn requests_before_a_mistake_succeed() {
    in_world(|| {
        let Pair { near, far } = &Pair::new(&Options::default())?;
        let (local, remote) = (near.region(LEN)?, far.region(LEN)?);
        local.pages().write(0, &pattern(3, LEN));
        let good = SendWr::new(Op::Write(remote.at(0)), &[local.sge(0, LEN)]);
        let bad = SendWr::new(Op::Write(remote.at(LEN)), &[local.sge(0, 8)]);
        let list = [good.clone().id(1), good.clone().unsignaled().id(2), bad.id(3), good.clone().id(4), good.id(5)];
        near.qp.post_sends(&list)?;
        let found: Vec<_> = near.send_cq.take(4)?.iter().map(|wc| (wc.wr_id, wc.status)).collect();
        let flushed = Status::WR_FLUSH_ERR;
        let expected = [(1, Status::SUCCESS), (3, Status::REM_ACCESS_ERR), (4, flushed), (5, flushed)];
        ensure!(found == expected, "{found:?}");
        ensure!(remote.pages().read(0, LEN) == pattern(3, LEN));
        Ok(())
    });
}

/// Unsignaled requests complete when they fail, and when they are flushed (IBA 10.7.3.1).
#[test]
fn unsignaled_requests_complete_when_they_fail() {
    in_world(|| {
        let Pair { near, far } = &Pair::new(&Options::default())?;
        let (local, remote) = (near.region(LEN)?, far.region(LEN)?);
        let wr = |id, offset| SendWr::new(Op::Write(remote.at(offset)), &[local.sge(0, 8)]).unsignaled().id(id);
        near.qp.post_sends(&[wr(1, 0), wr(2, LEN), wr(3, 0)])?;
        let found: Vec<_> = near.send_cq.take(2)?.iter().map(|wc| (wc.wr_id, wc.status)).collect();
        ensure!(found == [(2, Status::REM_ACCESS_ERR), (3, Status::WR_FLUSH_ERR)], "{found:?}");
        Ok(())
    });
}

/// ibv_modify_qp(3): `rnr_retry` is the number of tries after RNR NAKs. Zero tries is none.
#[test]
fn no_receive_and_no_patience() {
    in_world(|| {
        for rnr_retry in [0, 3] {
            let Pair { near, far } = &Pair::new(&Options { rnr_retry, ..Options::default() })?;
            let local = near.region(LEN)?;
            let wc = near.complete(&SendWr::new(Op::Send, &[local.sge(0, 8)]))?;
            ensure!(wc.status == Status::RNR_RETRY_EXC_ERR, "rnr_retry {rnr_retry}: {wc:?}");
            ensure!(near.qp.state()? == v::IBV_QPS_ERR && far.qp.state()? == v::IBV_QPS_RTS);
        }
        Ok(())
    });
}

/// `rnr_retry` 7 waits for ever.
#[test]
fn no_receive_and_all_patience() {
    in_world(|| {
        let Pair { near, far } = &Pair::new(&Options { rnr_retry: 7, ..Options::default() })?;
        let (local, remote) = (near.region(LEN)?, far.region(LEN)?);
        local.pages().write(0, &pattern(4, LEN));
        near.qp.post_sends(&[
            SendWr::new(Op::Send, &[local.sge(0, LEN)]).id(1),
            SendWr::new(Op::WriteImm(remote.at(0), 9), &[local.sge(0, 0)]).id(2),
        ])?;
        // Hundreds of times the RNR timer.
        std::thread::sleep(Duration::from_millis(100));
        ensure!(near.send_cq.poll(1)?.is_empty() && far.recv_cq.poll(1)?.is_empty(), "completed without a receive");
        far.qp.post_recv(&RecvWr::new(5, &[remote.sge(0, LEN)]))?;
        let wc = far.recv_cq.next()?;
        ensure!(wc.wr_id == 5 && wc.status == Status::SUCCESS && wc.opcode == v::IBV_WC_RECV, "{wc:?}");
        ensure!(remote.pages().read(0, LEN) == pattern(4, LEN));
        let wc = near.send_cq.next()?;
        ensure!(wc.wr_id == 1 && wc.status == Status::SUCCESS, "{wc:?}");
        ensure!(near.send_cq.poll(1)?.is_empty(), "completed without a receive");
        far.qp.post_recv(&RecvWr::new(6, &[]))?;
        let wc = far.recv_cq.next()?;
        ensure!(wc.wr_id == 6 && wc.opcode == v::IBV_WC_RECV_RDMA_WITH_IMM && wc.imm == 9, "{wc:?}");
        ensure!(near.send_cq.next()?.status == Status::SUCCESS);
        Ok(())
    });
}

/// A QP that does not receive answers nothing (IBA 10.3.1): the peer runs out of tries.
#[test]
fn a_peer_in_another_state() {
    in_world(|| {
        for state in [v::IBV_QPS_RESET, v::IBV_QPS_INIT, v::IBV_QPS_ERR] {
            let Pair { near, far } = &Pair::new(&Options { timeout: 8, retry_cnt: 2, ..Options::default() })?;
            let remote = far.region(LEN)?;
            if state == v::IBV_QPS_INIT {
                far.qp.modify(&Change::to(v::IBV_QPS_RESET))?;
                far.qp.modify(&Change::init(ALL_ACCESS))?;
            } else {
                far.qp.modify(&Change::to(state))?;
            }
            let wc = near.complete(&SendWr::new(Op::Write(remote.at(0)), &[]))?;
            ensure!(wc.status == Status::RETRY_EXC_ERR, "far QP in state {state}: {wc:?}");
            ensure!(far.qp.state()? == state, "state {state} became {}", far.qp.state()?);
        }
        Ok(())
    });
}

/// A peer that is not there: retry_cnt tries, each after the ACK timeout (IBA 9.7.6.1.3).
#[test]
fn no_peer() {
    in_world(|| {
        let options = Options { timeout: 8, retry_cnt: 2, ..Options::default() };
        let Pair { near, far } = &Pair::new(&options)?;
        let local = near.region(LEN)?;
        far.qp.destroy()?;
        let wr = SendWr::new(Op::Send, &[local.sge(0, 8)]);
        near.qp.post_sends(&[wr.clone().id(1), wr.id(2)])?;
        let found: Vec<_> = near.send_cq.take(2)?.iter().map(|wc| (wc.wr_id, wc.status)).collect();
        ensure!(found == [(1, Status::RETRY_EXC_ERR), (2, Status::WR_FLUSH_ERR)], "{found:?}");
        Ok(())
    });
}
