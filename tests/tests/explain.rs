//! Explanations (`URXE_EXPLAIN`): each mistake is explained once, by its cause and its remedy, and not at all without it.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use urxe_ffi::{functions as f, verbs as v};
use urxe_tests::verbs::datagram::{Ah, Mouth, Q_KEY, towards};
use urxe_tests::verbs::memory::{ALL_ACCESS, PAGE};
use urxe_tests::verbs::pair::{connect_to, rtr, rts};
use urxe_tests::verbs::qp::{CAP, Init};
use urxe_tests::verbs::{
    Change, Context, Cq, End, Mr, Op, Options, PATIENCE, Pages, Pair, Pd, Qp, RecvWr, Remote, SendWr,
};
use urxe_tests::verbs::{Srq, Status};
use urxe_tests::{GID_IPV4, Stderr, in_world, in_world_with};

/// A mistake, and what is said about it.
struct Case {
    name: &'static str,
    act: fn(&Arc<Context>) -> Result<()>,
    /// Words of the line that explains it.
    cause: &'static str,
    remedy: &'static str,
    /// Words of the line by which the other end explains its part.
    far: Option<&'static str>,
}

const fn case(
    name: &'static str,
    cause: &'static str,
    remedy: &'static str,
    act: fn(&Arc<Context>) -> Result<()>,
) -> Case {
    Case { name, act, cause, remedy, far: None }
}

impl Case {
    const fn and_far(self, far: &'static str) -> Self {
        Self { far: Some(far), ..self }
    }
}

/// Expects a failure. An object made in spite of it is destroyed here.
#[expect(clippy::needless_pass_by_value, reason = "takes what calls return")]
fn refused<T, E>(result: Result<T, E>) -> Result<()> {
    ensure!(result.is_err(), "it was not refused");
    Ok(())
}

fn end(context: &Arc<Context>) -> Result<End> {
    End::new(context, &Options::default())
}

fn ready(context: &Arc<Context>) -> Result<End> {
    let end = end(context)?;
    end.init(&Options::default())?;
    Ok(end)
}

/// A change to RTR is refused that differs from a right one so.
fn to_rtr(context: &Arc<Context>, spoil: impl FnOnce(Change) -> Change) -> Result<()> {
    let end = ready(context)?;
    let options = Options::default();
    refused(end.qp.modify(&spoil(rtr(17, end.gid(&options)?, &options))))
}

fn to_rts(context: &Arc<Context>, options: &Options) -> Result<()> {
    let end = ready(context)?;
    end.ready_to_receive(17, end.gid(&Options::default())?, &Options::default())?;
    refused(end.qp.modify(&rts(options)))
}

fn create_qp(context: &Arc<Context>, init: &Init) -> Result<()> {
    let (pd, cq) = (Pd::new(context)?, Cq::new(context, 8, None)?);
    refused(Qp::new(&pd, &cq, &cq, init))
}

/// A region of a file as a dma-buf is refused.
fn reg_dmabuf(context: &Arc<Context>, file: &File, iova: u64, access: u32) -> Result<()> {
    let pd = Pd::new(context)?;
    let access = i32::try_from(access)?;
    // SAFETY: a live domain and descriptor.
    let mr = unsafe { f::ibv_reg_dmabuf_mr(pd.raw(), 0, PAGE, iova, file.as_raw_fd(), access) };
    ensure!(mr.is_null(), "it was not refused");
    Ok(())
}

fn pair(context: &Arc<Context>) -> Result<Pair> {
    Pair::on(context, &Options::default())
}

/// The near end of a pair posts what is refused.
fn post(context: &Arc<Context>, wr: impl FnOnce(&Mr) -> SendWr) -> Result<()> {
    let pair = pair(context)?;
    let mr = pair.near.region(PAGE)?;
    refused(pair.near.qp.post_send(&wr(&mr)))
}

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

const CASES: &[Case] = &[
    // --- ibv_modify_qp
    case("to RTR without an attribute", "Rc INIT->RTR: missing IBV_QP_MIN_RNR_TIMER", "set min_rnr_timer", |c| {
        to_rtr(c, |change| change.without(v::IBV_QP_MIN_RNR_TIMER))
    }),
    case("RESET to RTS", "RESET->RTS: there is no such transition", "RESET->INIT->RTR->RTS", |c| {
        refused(end(c)?.qp.modify(&rts(&Options::default())))
    }),
    case("to RTR without a GRH", "this is RoCE, which needs a GRH", "set is_global to 1", |c| {
        to_rtr(c, |change| change.with(0, |attr| attr.ah_attr.is_global = 0))
    }),
    case("an empty row of the GID table", "sgid_index 99 is an empty row", "take a row that is there", |c| {
        to_rtr(c, |change| change.with(0, |attr| attr.ah_attr.grh.sgid_index = 99))
    }),
    case("IPv4 to IPv6", "sgid_index 2 is ::1 (IPv6), dgid is 127.0.0.1 (IPv4)", "of the same kind", |c| {
        to_rtr(c, |change| change.with(0, |attr| attr.ah_attr.grh.sgid_index = 2))
    }),
    case("an impossible MTU", "path_mtu is out of range", "IBV_MTU_256 to IBV_MTU_4096", |c| {
        to_rtr(c, |change| change.with(0, |attr| attr.path_mtu = 77))
    }),
    case("too many READs", "max_dest_rd_atomic is out of range", "ibv_query_device", |c| {
        to_rtr(c, |change| change.with(0, |attr| attr.max_dest_rd_atomic = 255))
    }),
    case("a Q_Key on RC", "IBV_QP_QKEY cannot be given here", "leave the flags out", |c| {
        to_rtr(c, |change| change.with(v::IBV_QP_QKEY, |_| ()))
    }),
    case("an impossible timeout", "IBV_QP_TIMEOUT is out of range", "0 to 31", |c| {
        to_rts(c, &Options { timeout: 40, ..Options::default() })
    }),
    case("an impossible retry_cnt", "IBV_QP_RETRY_CNT is out of range", "0 to 7", |c| {
        to_rts(c, &Options { retry_cnt: 8, ..Options::default() })
    }),
    case("a port that is not there", "port_num is out of range", "port 1", |c| {
        refused(end(c)?.qp.modify(&Change::init(0).with(0, |attr| attr.port_num = 2)))
    }),
    // --- objects
    case("a queue too long", "cap.max_send_wr is 10000000, the device has at most", "ask for less", |c| {
        create_qp(c, &Init { cap: v::ibv_qp_cap { max_send_wr: 10_000_000, ..CAP }, ..Init::default() })
    }),
    case("too much inline data", "cap.max_inline_data is 100000, the device has at most", "ask for less", |c| {
        create_qp(c, &Init { cap: v::ibv_qp_cap { max_inline_data: 100_000, ..CAP }, ..Init::default() })
    }),
    case("a type that is not there", "qp_type is none that this device has", "IBV_QPT_RC", |c| {
        create_qp(c, &Init { qp_type: v::IBV_QPT_DRIVER, ..Init::default() })
    }),
    case("no completion queue elements", "cqe is not positive", "at least one", |c| refused(Cq::new(c, 0, None))),
    case("a completion queue too long", "cqe is 2000000000, the device has at most", "ask for less", |c| {
        refused(Cq::new(c, 2_000_000_000, None))
    }),
    case("an SRQ without work requests", "attr.max_wr is 0", "at least one", |c| refused(Srq::new(&Pd::new(c)?, 0, 1))),
    case("freeing a PD in use", "made from the PD", "destroy or detach these first", |c| {
        let pd = Pd::new(c)?;
        let _mr = Mr::alloc(&pd, PAGE, 0)?;
        refused(pd.dealloc())
    }),
    case("destroying a CQ in use", "queue pairs or XRC SRQs complete there", "destroy or detach these first", |c| {
        refused(end(c)?.send_cq.destroy())
    }),
    case("an address handle without a GRH", "this is RoCE, which needs a GRH", "set is_global to 1", |c| {
        let gid = c.query_gid(1, 1)?;
        refused(Ah::new(&Pd::new(c)?, v::ibv_ah_attr { is_global: 0, ..towards(gid, GID_IPV4) }))
    }),
    case(
        "an address handle from IPv6 to IPv4",
        "sgid_index 2 is ::1 (IPv6), dgid is 127.0.0.1 (IPv4)",
        "of the same kind",
        |c| refused(Ah::new(&Pd::new(c)?, towards(c.query_gid(1, 1)?, 2))),
    ),
    // --- ibv_reg_mr
    case("an MR of nothing", "length is 0", "at least one byte", |c| {
        refused(Mr::of_address(&Pd::new(c)?, Pages::new(PAGE).addr(), 0, 0))
    }),
    case("an MR where nothing is", "is not mapped", "allocate it first", |c| {
        let pages = Pages::new(PAGE);
        pages.unmap();
        refused(Mr::of_address(&Pd::new(c)?, pages.addr(), PAGE, 0))
    }),
    case("writing to read-only memory", "is read-only", "map it writable", |c| {
        let pages = Pages::new(PAGE);
        pages.protect(libc::PROT_READ);
        refused(Mr::of_address(&Pd::new(c)?, pages.addr(), PAGE, ALL_ACCESS))
    }),
    case("remote write without local write", "without IBV_ACCESS_LOCAL_WRITE", "add IBV_ACCESS_LOCAL_WRITE", |c| {
        refused(Mr::alloc(&Pd::new(c)?, PAGE, v::IBV_ACCESS_REMOTE_WRITE))
    }),
    case("a dma-buf that nobody may map", "mmap(2) does not take the descriptor", "that the processor reaches", |c| {
        reg_dmabuf(c, &File::open("/")?, 0, 0)
    }),
    case(
        "a dma-buf at another byte of a page",
        "are different bytes of a page",
        "with the low bits of the offset",
        |c| reg_dmabuf(c, &Pages::of_file(PAGE).1, 8, ALL_ACCESS),
    ),
    case("a dma-buf for reading only", "is open for reading only", "take the rights to write out", |c| {
        let (_pages, file) = Pages::of_file(PAGE);
        reg_dmabuf(c, &File::open(format!("/proc/self/fd/{}", file.as_raw_fd()))?, 0, ALL_ACCESS)
    }),
    // --- posting
    case("sending in INIT", "the queue pair is in INIT", "move it to RTS", |c| {
        let end = ready(c)?;
        refused(end.qp.post_send(&SendWr::new(Op::Send, &[])))
    }),
    case("receiving in RESET", "the queue pair is in RESET", "move it to INIT", |c| {
        let end = end(c)?;
        refused(end.qp.post_recv(&RecvWr::new(1, &[])))
    }),
    case("a full receive queue", "the queue is full", "make the queue larger", |c| {
        let end = ready(c)?;
        let list = vec![RecvWr::new(1, &[]); CAP.max_recv_wr as usize + 1];
        refused(end.qp.post_recvs(&list))
    }),
    case(
        "a full send queue of unsignaled requests",
        "all without IBV_SEND_SIGNALED: none ever completes",
        "signal at least one",
        |c| {
            let pair = pair(c)?;
            // No receive is posted, so none of them completes.
            let list = vec![SendWr::new(Op::Send, &[]).unsignaled(); CAP.max_send_wr as usize + 1];
            refused(pair.near.qp.post_sends(&list))
        },
    ),
    case(
        "a send queue that builders have filled",
        "all without IBV_SEND_SIGNALED: none ever completes (ibv_wr_complete",
        "signal at least one",
        |c| {
            let (pd, cq, far) = (Pd::new(c)?, Cq::new(c, 8, None)?, ready(c)?);
            let qp = Qp::with_builders(&pd, &cq, v::IBV_QP_EX_WITH_SEND)?;
            connect_to(&qp, far.qp.number(), far.gid(&Options::default())?, &Options::default())?;
            let ex = qp.raw().cast::<v::ibv_qp_ex>();
            // SAFETY: a live queue pair, which has these builders.
            let (start, send, complete) = unsafe { ((*ex).wr_start, (*ex).wr_send, (*ex).wr_complete) };
            let (start, send) = (start.context("start")?, send.context("send")?);
            let complete = complete.context("complete")?;
            let post = |count| {
                // SAFETY: as above, in the order that the man page asks for.
                unsafe {
                    start(ex);
                    (0..count).for_each(|_| send(ex));
                    complete(ex)
                }
            };
            ensure!((post(CAP.max_send_wr), post(1)) == (0, libc::ENOMEM));
            Ok(())
        },
    ),
    case("more sges than the queue takes", "num_sge is more than max_send_sge", "use fewer", |c| {
        post(c, |mr| SendWr::new(Op::Send, &[mr.sge(0, 8); 5]))
    }),
    case("more sges than the device has", "num_sge is 1000, the device has at most", "ask for less", |c| {
        post(c, |mr| SendWr::new(Op::Send, &[mr.sge(0, 8); 1000]))
    }),
    case("too much inline", "more bytes than max_inline_data", "without IBV_SEND_INLINE", |c| {
        post(c, |mr| SendWr::new(Op::Send, &[mr.sge(0, 1000)]).with(v::IBV_SEND_INLINE))
    }),
    case("inline data that is gone", "its memory is not mapped", "live memory", |c| {
        post(c, |mr| {
            mr.pages().unmap();
            SendWr::new(Op::Send, &[mr.sge(0, 8)]).with(v::IBV_SEND_INLINE)
        })
    }),
    case("an atomic of four bytes", "an atomic is 8 bytes", "correct the sge lengths", |c| {
        post(c, |mr| SendWr::new(Op::FetchAdd { remote: mr.at(0), add: 1 }, &[mr.sge(0, 4)]))
    }),
    case("UD without an address handle", "wr.ud.ah is null", "ibv_create_ah", |c| {
        let mouth = Mouth::new(c)?;
        refused(mouth.qp.post_send(&SendWr::new(Op::Send, &[mouth.out.sge(0, 8)])))
    }),
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

/// Makes every mistake; returns what was printed meanwhile, which is something if it `is_explained`.
fn make_all(is_explained: bool) -> Result<Vec<(&'static Case, Vec<String>)>> {
    let mut stderr = Stderr::catch()?;
    let context = Context::open()?;
    let mut made = Vec::new();
    for case in CASES {
        (case.act)(&context).with_context(|| case.name)?;
        while let Some(event) = context.async_event(Duration::ZERO)? {
            drop(event);
        }
        let mut lines = stderr.explanations()?;
        let wanted = 1 + usize::from(case.far.is_some());
        let deadline = Instant::now() + PATIENCE;
        // What another thread says may come later.
        while is_explained && lines.len() < wanted && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(5));
            lines.extend(stderr.explanations()?);
        }
        made.push((case, lines));
    }
    Ok(made)
}

impl Case {
    fn check(&self, lines: &[String]) -> Result<()> {
        let far = usize::from(self.far.is_some());
        ensure!(lines.len() == 1 + far, "{} lines, not {}", lines.len(), 1 + far);
        ensure!(lines.iter().all(|line| line.starts_with("urxe: ")), "not ours");
        let told = lines.iter().filter(|line| line.contains(self.cause) && line.contains(self.remedy)).count();
        ensure!(told >= 1, "{:?} and {:?} are in no line", self.cause, self.remedy);
        ensure!(self.far.is_none_or(|far| lines.iter().any(|line| line.contains(far))), "{:?} is in no line", self.far);
        ensure!(
            lines.iter().all(|line| lines.iter().filter(|other| *other == line).count() == 1),
            "a line comes twice"
        );
        Ok(())
    }
}

#[test]
fn every_mistake_is_explained_once() {
    let explain = |world: &urxe_tests::World| {
        world.host().set_env("URXE_EXPLAIN", "1");
        Ok(())
    };
    in_world_with(explain, || {
        ensure!(CASES.len() >= 40);
        let mut wrong = String::new();
        for (case, lines) in make_all(true)? {
            if let Err(error) = case.check(&lines) {
                wrong += &format!("{}: {error}\n    {}\n", case.name, lines.join("\n    "));
            }
        }
        if wrong.is_empty() { Ok(()) } else { bail!("{wrong}") }
    });
}

#[test]
fn nothing_is_said_unless_asked() {
    in_world(|| {
        for (case, lines) in make_all(false)? {
            ensure!(lines.is_empty(), "{}: {lines:?}", case.name);
        }
        Ok(())
    });
}

#[test]
fn explanations_for_machines() {
    let explain = |world: &urxe_tests::World| {
        world.host().set_env("URXE_EXPLAIN", "json");
        Ok(())
    };
    in_world_with(explain, || {
        for (case, lines) in make_all(true)? {
            for line in lines {
                let object: serde_json::Value =
                    serde_json::from_str(&line).with_context(|| format!("{}: {line}", case.name))?;
                for field in ["kind", "code", "what", "why", "do"] {
                    ensure!(object[field].as_str().is_some_and(|text| !text.is_empty()), "{field}: {line}");
                }
            }
        }
        Ok(())
    });
}

#[test]
fn a_setting_that_makes_no_sense_is_refused() -> Result<()> {
    let world = urxe_tests::World::new()?;
    for (variables, expected) in [
        (&[("URXE_EXPLAIN", "maybe")][..], "--explain or URXE_EXPLAIN=maybe: expected 0, 1, json or failure"),
        (
            &[("URXE_PCAP_ROTATE", "often"), ("URXE_PCAP", "/nowhere/it")],
            "--pcap-rotate or URXE_PCAP_ROTATE=often: expected SIZE or SIZE,FILES",
        ),
        (&[("URXE_PCAP_SNAPLEN", "96")], "--pcap-snaplen or URXE_PCAP_SNAPLEN=96: captures nothing by itself"),
    ] {
        let mut command = world.host().command("ibv_devinfo");
        command.args(["-d", "urxe0"]).envs(variables.iter().copied());
        let finished = world.host().start(command)?.finish(urxe_tests::TIMEOUT)?.failure()?;
        ensure!(finished.stderr.contains(&format!("urxe: {expected}")), "{finished}");
    }
    Ok(())
}
