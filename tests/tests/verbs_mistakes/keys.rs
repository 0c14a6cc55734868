//! Keys, bounds and rights of memory.

use anyhow::{Result, ensure};
use urxe_ffi::verbs as v;
use urxe_tests::in_world;
use urxe_tests::verbs::memory::ALL_ACCESS;
use urxe_tests::verbs::mistake::{Far, LEN, Mistake, Scene, make_all};
use urxe_tests::verbs::{Change, Op, Options, Pair, RecvWr, Remote, SendWr, Status};

use crate::{ACCESS_ERROR, atomic, other_local, other_remote, read_only_local};

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
