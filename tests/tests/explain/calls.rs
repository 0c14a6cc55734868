//! Calls that are refused.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::sync::Arc;

use anyhow::{Context as _, Result, ensure};
use urxe_ffi::{functions as f, verbs as v};
use urxe_tests::GID_IPV4;
use urxe_tests::verbs::datagram::{Ah, Mouth, towards};
use urxe_tests::verbs::memory::{ALL_ACCESS, PAGE};
use urxe_tests::verbs::pair::{connect_to, rtr, rts};
use urxe_tests::verbs::qp::{CAP, Init};
use urxe_tests::verbs::{Change, Context, Cq, End, Mr, Op, Options, Pages, Pd, Qp, RecvWr, SendWr, Srq};

use crate::{Case, case, pair};

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

/// The near end of a pair posts what is refused.
fn post(context: &Arc<Context>, wr: impl FnOnce(&Mr) -> SendWr) -> Result<()> {
    let pair = pair(context)?;
    let mr = pair.near.region(PAGE)?;
    refused(pair.near.qp.post_send(&wr(&mr)))
}

pub(crate) const CASES: &[Case] = &[
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
];
