//! Work requests that complete with an error, and datagrams that are dropped.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use urxe_ffi::verbs as v;
use urxe_tests::GID_IPV4;
use urxe_tests::verbs::datagram::{Ah, Mouth, Q_KEY, towards};
use urxe_tests::verbs::memory::{ALL_ACCESS, PAGE};
use urxe_tests::verbs::pair::rts;
use urxe_tests::verbs::{Change, Context, End, Mr, Op, Options, PATIENCE, Pair, Pd, RecvWr, Remote, SendWr, Status};

use crate::{Case, case, pair};

/// The near end of a pair posts what completes with `status`.
fn complete(
    context: &Arc<Context>,
    options: &Options,
    status: Status,
    wr: impl FnOnce(&Pair, &Mr, &Mr) -> Result<SendWr>,
) -> Result<()> {
    let pair = Pair::on(context, options)?;
    let (local, remote) = (pair.near.region(PAGE)?, pair.far.region(PAGE)?);
    let wc = pair.near.complete(&wr(&pair, &local, &remote)?)?;
    ensure!(wc.status == status, "{wc:?}");
    Ok(())
}

const PROTECTED: Status = Status::LOC_PROT_ERR;

/// A far region is misused, and both ends say so.
fn remote(context: &Arc<Context>, op: impl FnOnce(&Pair, &Mr) -> Result<Op>) -> Result<()> {
    complete(context, &Options::default(), Status::REM_ACCESS_ERR, |pair, local, remote| {
        Ok(SendWr::new(op(pair, remote)?, &[local.sge(0, 8)]))
    })
}

/// A SEND of 64 bytes meets this receive at the far end.
fn send_to(context: &Arc<Context>, status: Status, recv: impl FnOnce(&Pair, &Mr) -> Result<RecvWr>) -> Result<()> {
    complete(context, &Options::default(), status, |pair, local, remote| {
        pair.far.qp.post_recv(&recv(pair, remote)?)?;
        Ok(SendWr::new(Op::Send, &[local.sge(0, 64)]))
    })
}

/// The near end's first PSN is not the one that the far end expects.
fn psns_differ(context: &Arc<Context>, by: u32) -> Result<()> {
    let options = impatient();
    let (near, far) = (End::new(context, &options)?, End::new(context, &options)?);
    far.connect(near.qp.number(), near.gid(&options)?, &options)?;
    near.init(&options)?;
    near.ready_to_receive(far.qp.number(), far.gid(&options)?, &options)?;
    near.qp.modify(&rts(&options).with(0, |attr| attr.sq_psn = (attr.sq_psn + by) & 0x00ff_ffff))?;
    let (local, remote) = (near.region(PAGE)?, far.region(PAGE)?);
    let wc = near.complete(&SendWr::new(Op::Write(remote.at(0)), &[local.sge(0, 8)]))?;
    ensure!(wc.status == Status::RETRY_EXC_ERR, "{wc:?}");
    Ok(())
}

/// A datagram completes well and does not arrive; whoever polls hears why.
fn unheard(context: &Arc<Context>, near: &Mouth, len: usize, number: u32, q_key: u32) -> Result<()> {
    let ah = Ah::new(&near.pd, towards(context.query_gid(1, 1)?, GID_IPV4))?;
    near.post(&SendWr::new(Op::Send, &[near.out.sge(0, len)]), &ah, number, q_key)?;
    ensure!(near.cq.next()?.status == Status::SUCCESS);
    for _ in 0..40 {
        std::thread::sleep(Duration::from_millis(5));
        ensure!(near.cq.poll(1)?.is_empty());
    }
    Ok(())
}

fn impatient() -> Options {
    // A few milliseconds: there is no answer to wait for.
    Options { timeout: 8, retry_cnt: 1, ..Options::default() }
}

pub(crate) const CASES: &[Case] = &[
    // --- completions: local
    case("an L_Key that nobody has", "is no key of this device", "mr->lkey of a live MR", |c| {
        complete(c, &Options::default(), PROTECTED, |_, local, _| {
            let sge = local.sge(0, 8);
            Ok(SendWr::new(Op::Send, &[v::ibv_sge { lkey: !sge.lkey, ..sge }]))
        })
    }),
    case("a deregistered MR", "or deregistered since", "do not deregister before the completion", |c| {
        complete(c, &Options::default(), PROTECTED, |pair, _, _| {
            let mr = pair.near.region(PAGE)?;
            let sge = mr.sge(0, 8);
            mr.dereg()?;
            Ok(SendWr::new(Op::Send, &[sge]))
        })
    }),
    case(
        "an MR of another PD",
        "is of another protection domain",
        "with the protection domain of the queue pair",
        |c| {
            let other = Mr::alloc(&Pd::new(c)?, PAGE, ALL_ACCESS)?;
            complete(c, &Options::default(), PROTECTED, |_, _, _| Ok(SendWr::new(Op::Send, &[other.sge(0, 8)])))
        },
    ),
    case("sending beyond the end", ", +4096), the request asks for [", "keep addr and length within the MR", |c| {
        complete(c, &Options::default(), PROTECTED, |_, local, _| Ok(SendWr::new(Op::Send, &[local.sge(4090, 8)])))
    }),
    case("reading into what may not be written", "needs IBV_ACCESS_LOCAL_WRITE", "register with", |c| {
        let pair = pair(c)?;
        let (local, remote) = (Mr::alloc(&pair.near.pd, PAGE, 0)?, pair.far.region(PAGE)?);
        let wc = pair.near.complete(&SendWr::new(Op::Read(remote.at(0)), &[local.sge(0, 8)]))?;
        ensure!(wc.status == PROTECTED, "{wc:?}");
        Ok(())
    }),
    case("memory unmapped since registration", "unmapped, protected or truncated since", "keep memory mapped", |c| {
        complete(c, &Options::default(), PROTECTED, |_, local, remote| {
            local.pages().unmap();
            Ok(SendWr::new(Op::Write(remote.at(0)), &[local.sge(0, 8)]))
        })
    }),
    case("READ without initiator depth", "max_rd_atomic of this queue pair is 0", "IBV_QP_MAX_QP_RD_ATOMIC", |c| {
        let options = Options { rd_atomic: 0, ..Options::default() };
        complete(c, &options, Status::LOC_QP_OP_ERR, |_, local, remote| {
            Ok(SendWr::new(Op::Read(remote.at(0)), &[local.sge(0, 8)]))
        })
    }),
    case("no peer", "which is this host: urxe0 is on lo", "start both ends with --netdev", |c| {
        complete(c, &impatient(), Status::RETRY_EXC_ERR, |pair, local, _| {
            pair.far.qp.destroy()?;
            Ok(SendWr::new(Op::Send, &[local.sge(0, 8)]))
        })
    }),
    case("a peer that goes away", "though it has answered before", "been destroyed or gone to ERR", |c| {
        complete(c, &impatient(), Status::RETRY_EXC_ERR, |pair, local, remote| {
            let write = SendWr::new(Op::Write(remote.at(0)), &[local.sge(0, 8)]);
            ensure!(pair.near.complete(&write)?.status == Status::SUCCESS);
            pair.far.qp.destroy()?;
            Ok(write)
        })
    }),
    case("no receive", "had no receive posted, and rnr_retry 0", "post receives there before sending", |c| {
        let options = Options { rnr_retry: 0, ..Options::default() };
        complete(c, &options, Status::RNR_RETRY_EXC_ERR, |_, local, _| Ok(SendWr::new(Op::Send, &[local.sge(0, 8)])))
    }),
    case("moved to ERR", "moved to ERR without an error of its own", "nothing if that was meant", |c| {
        let pair = pair(c)?;
        pair.near.qp.post_recvs(&[RecvWr::new(1, &[]), RecvWr::new(2, &[])])?;
        pair.near.qp.modify(&Change::to(v::IBV_QPS_ERR))?;
        ensure!(pair.near.recv_cq.take(2)?.iter().all(|wc| wc.status == Status::WR_FLUSH_ERR));
        Ok(())
    }),
    // --- completions: the peer refuses
    case(
        "an R_Key that nobody has",
        "at the peer: remote access: R_Key",
        "there: tell the peer mr->rkey of a live MR",
        |c| remote(c, |_, mr| Ok(Op::Write(Remote { rkey: !mr.rkey(), ..mr.at(0) }))),
    )
    .and_far("is no key of this device"),
    case(
        "WRITE beyond the end",
        "at the peer: remote access: R_Key",
        "there: keep addr and length within the MR",
        |c| remote(c, |_, mr| Ok(Op::Write(mr.at(4090)))),
    )
    .and_far(", +4096), the request asks for ["),
    case("READ without the right", "at the peer: remote access: R_Key", "there: register the MR with the right", |c| {
        let pair = pair(c)?;
        let (local, remote) = (pair.near.region(PAGE)?, Mr::alloc(&pair.far.pd, PAGE, v::IBV_ACCESS_LOCAL_WRITE)?);
        let wc = pair.near.complete(&SendWr::new(Op::Read(remote.at(0)), &[local.sge(0, 8)]))?;
        ensure!(wc.status == Status::REM_ACCESS_ERR, "{wc:?}");
        Ok(())
    })
    .and_far("needs IBV_ACCESS_REMOTE_READ"),
    case("a QP that allows nothing", "at the peer: qp_access_flags", "there: add the right to qp_access_flags", |c| {
        let options = Options { access: 0, ..Options::default() };
        complete(c, &options, Status::REM_INV_REQ_ERR, |_, local, remote| {
            Ok(SendWr::new(Op::Write(remote.at(0)), &[local.sge(0, 8)]))
        })
    })
    .and_far("qp_access_flags of this queue pair do not allow"),
    case("a misaligned atomic", "at the peer: the address of an atomic", "there: align it", |c| {
        complete(c, &Options::default(), Status::REM_INV_REQ_ERR, |_, local, remote| {
            Ok(SendWr::new(Op::FetchAdd { remote: remote.at(4), add: 1 }, &[local.sge(0, 8)]))
        })
    })
    .and_far("must be a multiple of 8"),
    case("a receive too short", "at the peer: the message is longer", "there: post receives as long", |c| {
        send_to(c, Status::REM_INV_REQ_ERR, |_, mr| Ok(RecvWr::new(5, &[mr.sge(0, 8)])))
    })
    .and_far("longer than the receive"),
    case("a receive into another PD's MR", "at the peer: the receive's own buffer", "there: register the MR", |c| {
        let other = Mr::alloc(&Pd::new(c)?, PAGE, ALL_ACCESS)?;
        send_to(c, Status::REM_OP_ERR, |_, _| Ok(RecvWr::new(5, &[other.sge(0, 64)])))
    })
    .and_far("the receive's own buffer: L_Key"),
    // --- PSNs
    case(
        "a peer that sends from a later PSN",
        "but the peer sends from",
        "set rq_psn here to the peer's sq_psn",
        |c| psns_differ(c, 5000),
    )
    .and_far("at the peer: rq_psn is"),
    case(
        "a peer that sends from an earlier PSN",
        "but the peer sends from",
        "set rq_psn here to the peer's sq_psn",
        |c| psns_differ(c, 0x00ff_0000),
    )
    .and_far("at the peer: rq_psn is"),
    // --- datagrams
    case(
        "another Q_Key",
        "Q_Key 0x22222222 is not that of the queue pair, 0x11111111",
        "give wr.ud.remote_qkey",
        |c| {
            let (near, far) = (Mouth::new(c)?, Mouth::new(c)?);
            far.listen(1, 64)?;
            unheard(c, &near, 64, far.qp.number(), 0x2222_2222)
        },
    )
    .and_far("at the peer: Q_Key"),
    case(
        "a datagram without a receive",
        "no receive is posted, and UD sends nothing again",
        "post receives before",
        |c| {
            let (near, far) = (Mouth::new(c)?, Mouth::new(c)?);
            unheard(c, &near, 64, far.qp.number(), Q_KEY)
        },
    )
    .and_far("at the peer: no receive"),
    case(
        "a receive without room for the GRH",
        "104 bytes: 40 for the GRH and 64 of the message",
        "40 bytes longer",
        |c| {
            let (near, far) = (Mouth::new(c)?, Mouth::new(c)?);
            far.qp.post_recv(&RecvWr::new(1, &[far.room.sge(0, 64)]))?;
            unheard(c, &near, 64, far.qp.number(), Q_KEY)
        },
    )
    .and_far("at the peer: the receive is shorter"),
    case(
        "a datagram longer than the MTU",
        "a datagram of 5000 bytes is not sent: the port's MTU is 4096",
        "active_mtu",
        |c| {
            let (near, far) = (Mouth::new(c)?, Mouth::new(c)?);
            unheard(c, &near, 5000, far.qp.number(), Q_KEY)
        },
    ),
    case("a completion queue too small", "2 completions were in the queue already", "make the CQ as large", |c| {
        let pair = Pair::on(c, &Options { cqe: 2, ..Options::default() })?;
        let (local, remote) = (pair.near.region(PAGE)?, pair.far.region(PAGE)?);
        let write = SendWr::new(Op::Write(remote.at(0)), &[local.sge(0, 8)]);
        pair.near.qp.post_sends(&vec![write; 4])?;
        let event = c.async_event(PATIENCE)?.context("no event")?;
        ensure!(event.kind() == v::IBV_EVENT_CQ_ERR, "{}", event.name());
        drop(event);
        while let Some(event) = c.async_event(Duration::from_millis(100))? {
            ensure!(event.kind() == v::IBV_EVENT_QP_FATAL, "{}", event.name());
        }
        Ok(())
    }),
];
