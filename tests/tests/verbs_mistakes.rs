//! Wrong use of a connected queue pair: completion status, asynchronous event and errno of each mistake.
//!
//! Statuses: IBA 11.6.2 and ibv_poll_cq(3). What the responder says and what becomes of its own receive: IBA 9.9.3.

use std::time::Duration;

use anyhow::{Result, ensure};
use urxe_ffi::verbs as v;
use urxe_tests::in_world;
use urxe_tests::verbs::memory::{ALL_ACCESS, PAGE, pattern};
use urxe_tests::verbs::mistake::{Far, LEN, Mistake, Scene, make_all};
use urxe_tests::verbs::{Change, Mr, Op, Options, Pages, Pair, Pd, RecvWr, Remote, SendWr, Status};

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

/// Local protection errors (IBA 11.6.2 "Local Protection Error"): the peer hears nothing of them.
//= spec/requester.md#req-017
//= type=test
//# A request whose local buffers no L_Key gives MUST fail in its turn with IBV_WC_LOC_PROT_ERR.
#[test]
fn local_memory_that_is_not_allowed() {
    const fn local(name: &'static str, wr: fn(&Scene) -> Result<SendWr>) -> Mistake {
        Mistake::new(name, Status::LOC_PROT_ERR, Far::Nothing, wr)
    }
    in_world(|| {
        make_all(&[
            local("SEND from another PD's MR", |s| Ok(SendWr::new(Op::Send, &[other_local(s)?]))),
            local("WRITE from another PD's MR", |s| Ok(SendWr::new(Op::Write(s.remote.at(0)), &[other_local(s)?]))),
            local("SEND with an L_Key that nobody has", |s| {
                let sge = s.local.sge(0, 8);
                Ok(SendWr::new(Op::Send, &[v::ibv_sge { lkey: !sge.lkey, ..sge }]))
            }),
            local("SEND with an L_Key of which the tag is wrong", |s| {
                let sge = s.local.sge(0, 8);
                Ok(SendWr::new(Op::Send, &[v::ibv_sge { lkey: sge.lkey ^ 1, ..sge }]))
            }),
            local("SEND from a deregistered MR", |s| {
                let mr = s.near_region(ALL_ACCESS)?;
                let sge = mr.sge(0, 8);
                mr.dereg()?;
                Ok(SendWr::new(Op::Send, &[sge]))
            }),
            local("SEND from beyond the end", |s| Ok(SendWr::new(Op::Send, &[s.local.sge(LEN - 7, 8)]))),
            local("SEND from before the start", |s| {
                let sge = s.local.sge(0, 8);
                Ok(SendWr::new(Op::Send, &[v::ibv_sge { addr: sge.addr - 1, ..sge }]))
            }),
            local("SEND from an address that wraps around", |s| {
                Ok(SendWr::new(Op::Send, &[v::ibv_sge { addr: u64::MAX - 3, ..s.local.sge(0, 8) }]))
            }),
            local("SEND whose second SGE is bad", |s| {
                Ok(SendWr::new(Op::Send, &[s.local.sge(0, 3000), s.local.sge(LEN, 8)]))
            }),
            local("WRITE whose last packet is bad", |s| {
                Ok(SendWr::new(Op::Write(s.remote.at(0)), &[s.local.sge(0, 3000), s.local.sge(LEN - 500, 1000)]))
            }),
            local("READ into another PD's MR", |s| Ok(SendWr::new(Op::Read(s.remote.at(0)), &[other_local(s)?]))),
            local("READ into memory without local write", |s| {
                Ok(SendWr::new(Op::Read(s.remote.at(0)), &[read_only_local(s, LEN)?]))
            }),
            local("READ beyond the end", |s| Ok(SendWr::new(Op::Read(s.remote.at(0)), &[s.local.sge(8, LEN)]))),
            local("atomic into memory without local write", |s| {
                Ok(SendWr::new(atomic(s.remote.at(0)), &[read_only_local(s, 8)?]))
            }),
            local("atomic into another PD's MR", |s| {
                let sge = other_local(s)?;
                Ok(SendWr::new(atomic(s.remote.at(0)), &[v::ibv_sge { length: 8, ..sge }]))
            }),
        ])
    });
}

/// Remote access errors (IBA 9.7.4.1.5, 11.6.2 "Remote Access Error"): R_Key, PD, bounds, rights of the region.
//= spec/memory.md#mem-003
//= type=test
//# An access MUST be one that the region was registered for.
//= spec/memory.md#mem-002
//= type=test
//# A key MUST NOT give access through another protection domain.
#[test]
fn remote_memory_that_is_not_allowed() {
    const fn remote(name: &'static str, wr: fn(&Scene) -> Result<SendWr>) -> Mistake {
        Mistake::new(name, Status::REM_ACCESS_ERR, ACCESS_ERROR, wr)
    }
    fn write(s: &Scene, to: Remote, len: usize) -> Result<SendWr> {
        Ok(SendWr::new(Op::Write(to), &[s.local.sge(0, len)]))
    }
    fn read(s: &Scene, from: Remote, len: usize) -> Result<SendWr> {
        Ok(SendWr::new(Op::Read(from), &[s.local.sge(0, len)]))
    }
    fn far_without(s: &Scene, right: u32) -> Result<Remote> {
        let mr = s.far_region(ALL_ACCESS & !right)?;
        Ok(s.keep(mr, |mr| mr.at(0)))
    }
    in_world(|| {
        make_all(&[
            remote("WRITE to another PD's MR", |s| write(s, other_remote(s)?, 8)),
            remote("READ from another PD's MR", |s| read(s, other_remote(s)?, 8)),
            remote("atomic on another PD's MR", |s| Ok(SendWr::new(atomic(other_remote(s)?), &[s.local.sge(0, 8)]))),
            remote("WRITE with an R_Key that nobody has", |s| {
                write(s, Remote { rkey: !s.remote.rkey(), ..s.remote.at(0) }, 8)
            }),
            remote("READ with an R_Key of which the tag is wrong", |s| {
                read(s, Remote { rkey: s.remote.rkey() ^ 1, ..s.remote.at(0) }, 8)
            }),
            remote("WRITE to a deregistered MR", |s| {
                let mr = s.far_region(ALL_ACCESS)?;
                let at = mr.at(0);
                mr.dereg()?;
                write(s, at, 8)
            }),
            remote("WRITE beyond the end", |s| write(s, s.remote.at(LEN - 7), 8)),
            remote("WRITE of which only the last packet is beyond the end", |s| write(s, s.remote.at(8), LEN)),
            remote("WRITE before the start", |s| {
                let at = s.remote.at(0);
                write(s, Remote { addr: at.addr - 1, ..at }, 8)
            }),
            remote("WRITE to an address that wraps around", |s| {
                write(s, Remote { addr: u64::MAX - 3, ..s.remote.at(0) }, 8)
            }),
            remote("long WRITE to an address that wraps around", |s| {
                write(s, Remote { addr: u64::MAX - 2047, ..s.remote.at(0) }, LEN)
            }),
            remote("READ beyond the end", |s| read(s, s.remote.at(8), LEN)),
            remote("READ from an address that wraps around", |s| {
                read(s, Remote { addr: u64::MAX - 3, ..s.remote.at(0) }, 8)
            }),
            remote("atomic beyond the end", |s| Ok(SendWr::new(atomic(s.remote.at(LEN)), &[s.local.sge(0, 8)]))),
            remote("WRITE to an MR without remote write", |s| write(s, far_without(s, v::IBV_ACCESS_REMOTE_WRITE)?, 8)),
            remote("READ from an MR without remote read", |s| read(s, far_without(s, v::IBV_ACCESS_REMOTE_READ)?, 8)),
            remote("FETCH_ADD on an MR without remote atomic", |s| {
                Ok(SendWr::new(atomic(far_without(s, v::IBV_ACCESS_REMOTE_ATOMIC)?), &[s.local.sge(0, 8)]))
            }),
            remote("CMP_SWP on an MR without remote atomic", |s| {
                let remote = far_without(s, v::IBV_ACCESS_REMOTE_ATOMIC)?;
                Ok(SendWr::new(Op::CmpSwp { remote, compare: 0, swap: 1 }, &[s.local.sge(0, 8)]))
            }),
        ])
    });
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

/// Memory that the application takes away after registering it: a card has it pinned, and a program that does so is
/// wrong, but neither end may crash or hang.
//= spec/memory.md#mem-008
//= type=test
//# Memory that was unmapped while registered MUST fail the work request, not the process.
//= spec/responder.md#rsp-024
//= type=test
//# Memory that is gone MUST be refused as a remote operational error.
#[test]
fn memory_that_is_gone() {
    const GONE: Far = Far::Event(v::IBV_EVENT_QP_ACCESS_ERR);
    fn near_gone(s: &Scene, len: usize) -> Result<v::ibv_sge> {
        let mr = s.near_region(ALL_ACCESS)?;
        mr.pages().unmap();
        Ok(s.keep(mr, |mr| mr.sge(0, len)))
    }
    fn far_gone(s: &Scene) -> Result<Remote> {
        let mr = s.far_region(ALL_ACCESS)?;
        mr.pages().unmap();
        Ok(s.keep(mr, |mr| mr.at(0)))
    }
    /// Two pages, of which the second is gone.
    fn near_half_gone(s: &Scene) -> Result<v::ibv_sge> {
        let mr = Mr::alloc(&s.pair.near.pd, 2 * PAGE, ALL_ACCESS)?;
        mr.pages().unmap_from(PAGE);
        Ok(s.keep(mr, |mr| mr.sge(PAGE - 100, 200)))
    }
    in_world(|| {
        make_all(&[
            Mistake::new("SEND from it", Status::LOC_PROT_ERR, Far::Nothing, |s| {
                Ok(SendWr::new(Op::Send, &[near_gone(s, 8)?]))
            }),
            Mistake::new("SEND from half of it", Status::LOC_PROT_ERR, Far::Nothing, |s| {
                Ok(SendWr::new(Op::Send, &[near_half_gone(s)?]))
            }),
            Mistake::new("WRITE from it", Status::LOC_PROT_ERR, Far::Nothing, |s| {
                Ok(SendWr::new(Op::Write(s.remote.at(0)), &[near_gone(s, LEN)?]))
            }),
            Mistake::new("READ into it", Status::LOC_PROT_ERR, Far::Nothing, |s| {
                Ok(SendWr::new(Op::Read(s.remote.at(0)), &[near_gone(s, LEN)?]))
            }),
            Mistake::new("atomic into it", Status::LOC_PROT_ERR, Far::Nothing, |s| {
                Ok(SendWr::new(atomic(s.remote.at(0)), &[near_gone(s, 8)?]))
            }),
            Mistake::new("receive into it", Status::REM_OP_ERR, Far::Recv(Status::LOC_PROT_ERR), |s| {
                Ok(SendWr::new(Op::Send, &[s.local.sge(0, LEN)]))
            })
            .received_by(|s| {
                let mr = s.far_region(ALL_ACCESS)?;
                mr.pages().unmap();
                Ok(RecvWr::new(0, &[s.keep(mr, |mr| mr.sge(0, LEN))]))
            }),
            Mistake::new("WRITE to it", Status::REM_OP_ERR, GONE, |s| {
                Ok(SendWr::new(Op::Write(far_gone(s)?), &[s.local.sge(0, LEN)]))
            }),
            Mistake::new("READ from it", Status::REM_OP_ERR, GONE, |s| {
                Ok(SendWr::new(Op::Read(far_gone(s)?), &[s.local.sge(0, LEN)]))
            }),
            Mistake::new("FETCH_ADD on it", Status::REM_OP_ERR, GONE, |s| {
                Ok(SendWr::new(atomic(far_gone(s)?), &[s.local.sge(0, 8)]))
            }),
        ])
    });
}

/// Memory of a file that was cut off: SIGBUS instead of SIGSEGV.
#[test]
fn a_file_that_is_gone() {
    fn cut(pd: &std::sync::Arc<Pd>) -> Result<Mr> {
        let (pages, file) = Pages::of_file(LEN);
        let mr = Mr::of(pd, &pages, 0, LEN, ALL_ACCESS)?;
        file.set_len(0)?;
        Ok(mr)
    }
    fn remote(s: &Scene) -> Result<Remote> {
        Ok(s.keep(cut(&s.pair.far.pd)?, |mr| mr.at(0)))
    }
    const GONE: Far = Far::Event(v::IBV_EVENT_QP_ACCESS_ERR);
    in_world(|| {
        make_all(&[
            Mistake::new("SEND from it", Status::LOC_PROT_ERR, Far::Nothing, |s| {
                Ok(SendWr::new(Op::Send, &[s.keep(cut(&s.pair.near.pd)?, |mr| mr.sge(0, LEN))]))
            }),
            Mistake::new("READ into it", Status::LOC_PROT_ERR, Far::Nothing, |s| {
                let into = s.keep(cut(&s.pair.near.pd)?, |mr| mr.sge(0, LEN));
                Ok(SendWr::new(Op::Read(s.remote.at(0)), &[into]))
            }),
            Mistake::new("WRITE to it", Status::REM_OP_ERR, GONE, |s| {
                Ok(SendWr::new(Op::Write(remote(s)?), &[s.local.sge(0, LEN)]))
            }),
            Mistake::new("READ from it", Status::REM_OP_ERR, GONE, |s| {
                Ok(SendWr::new(Op::Read(remote(s)?), &[s.local.sge(0, LEN)]))
            }),
            Mistake::new("FETCH_ADD on it", Status::REM_OP_ERR, GONE, |s| {
                Ok(SendWr::new(atomic(remote(s)?), &[s.local.sge(0, 8)]))
            }),
        ])
    });
}

/// Worker threads of servers often block every signal; a fault in such a thread would end the process.
#[test]
fn memory_that_is_gone_in_a_thread_that_blocks_signals() {
    in_world(|| {
        let thread = std::thread::spawn(|| {
            // SAFETY: a local signal set.
            unsafe {
                let mut all = std::mem::zeroed();
                libc::sigfillset(&raw mut all);
                libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, std::ptr::null_mut());
            }
            make_all(&[
                Mistake::new("SEND from it", Status::LOC_PROT_ERR, Far::Nothing, |s| {
                    let mr = s.near_region(ALL_ACCESS)?;
                    mr.pages().unmap();
                    Ok(SendWr::new(Op::Send, &[s.keep(mr, |mr| mr.sge(0, LEN))]))
                }),
                Mistake::new("WRITE to it", Status::REM_OP_ERR, Far::Event(v::IBV_EVENT_QP_ACCESS_ERR), |s| {
                    let mr = s.far_region(ALL_ACCESS)?;
                    mr.pages().unmap();
                    Ok(SendWr::new(Op::Write(s.keep(mr, |mr| mr.at(0))), &[s.local.sge(0, LEN)]))
                }),
            ])
        });
        thread.join().expect("the thread")
    });
}

/// Inline data is copied when it is posted, so that is when the memory is missed.
#[test]
fn inline_data_that_is_gone() {
    in_world(|| {
        let pair = Pair::new(&Options::default())?;
        let mr = pair.near.region(PAGE)?;
        mr.pages().unmap();
        let wr = SendWr::new(Op::Send, &[mr.sge(0, 8)]).with(v::IBV_SEND_INLINE);
        let refused = pair.near.qp.post_send(&wr).expect_err("a post of inline data that is not there");
        ensure!(refused.errno.0 == libc::EFAULT && refused.bad == Some(0), "{refused:?}");
        ensure!(pair.near.qp.state()? == v::IBV_QPS_RTS);
        Ok(())
    });
}

/// IBA C9-88: a request without bytes needs no key.
//= spec/responder.md#rsp-010
//= type=test
//# A WRITE or READ of no bytes MUST succeed whatever its R_Key and address are.
#[test]
fn requests_without_bytes_need_no_keys() {
    in_world(|| {
        let Pair { near, far } = &Pair::new(&Options::default())?;
        let nowhere = Remote { addr: u64::MAX, rkey: 0xdead_beef };
        for op in [Op::Write(nowhere), Op::Read(nowhere)] {
            let wc = near.complete(&SendWr::new(op, &[]))?;
            ensure!(wc.status == Status::SUCCESS, "{op:?}: {wc:?}");
            let wc = near.complete(&SendWr::new(op, &[v::ibv_sge { addr: 0, length: 0, lkey: 0xdead_beef }]))?;
            ensure!(wc.status == Status::SUCCESS, "{op:?} with an empty SGE: {wc:?}");
        }
        far.qp.post_recv(&RecvWr::new(1, &[]))?;
        ensure!(near.complete(&SendWr::new(Op::Send, &[]))?.status == Status::SUCCESS);
        let wc = far.recv_cq.next()?;
        ensure!(wc.status == Status::SUCCESS && wc.byte_len == 0, "{wc:?}");
        Ok(())
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

/// Access flags of the far QP count from the moment that they are changed.
#[test]
fn rights_that_are_taken_away() {
    in_world(|| {
        let Pair { near, far } = &Pair::new(&Options::default())?;
        let (local, remote) = (near.region(LEN)?, far.region(LEN)?);
        let write = SendWr::new(Op::Write(remote.at(0)), &[local.sge(0, 8)]);
        let read = SendWr::new(Op::Read(remote.at(0)), &[local.sge(0, 8)]);
        ensure!(near.complete(&write)?.status == Status::SUCCESS);
        let read_only = |attr: &mut v::ibv_qp_attr| attr.qp_access_flags = v::IBV_ACCESS_REMOTE_READ;
        far.qp.modify(&Change::to(v::IBV_QPS_RTS).with(v::IBV_QP_ACCESS_FLAGS, read_only))?;
        ensure!(near.complete(&read)?.status == Status::SUCCESS);
        ensure!(near.complete(&write)?.status == Status::REM_INV_REQ_ERR);
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
