//! Shared receive queues and XRC through libibverbs.

use std::fs::File;
use std::mem::MaybeUninit;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use urxe_ffi::verbs as v;
use urxe_tests::in_world;
use urxe_tests::verbs::memory::{ALL_ACCESS, Mr};
use urxe_tests::verbs::pair::connect;
use urxe_tests::verbs::qp::Init;
use urxe_tests::verbs::{
    Change, Context, Cq, Errno, Op, Options, PATIENCE, Pd, PostError, Qp, RecvWr, SendWr, Srq, Status, Xrcd,
};

const EBUSY: Result<(), Errno> = Err(Errno(libc::EBUSY));
const EINVAL: Result<(), Errno> = Err(Errno(libc::EINVAL));

/// One context, with what queue pairs need.
struct Device {
    context: Arc<Context>,
    pd: Arc<Pd>,
    cq: Arc<Cq>,
}

impl Device {
    fn new() -> Result<Self> {
        let context = Context::open()?;
        Ok(Self { pd: Pd::new(&context)?, cq: Cq::new(&context, 256, None)?, context })
    }

    /// `count` queue pairs with an SRQ, each with a peer.
    fn sharing(&self, srq: &Arc<Srq>, count: usize) -> Result<Vec<(Qp, Qp)>> {
        let pair = |_| {
            let near = Qp::new(&self.pd, &self.cq, &self.cq, &Init::default())?;
            let far = Qp::with_srq(&self.pd, &self.cq, srq, &Init::default())?;
            connect(&self.context, &near, &far, &Options::default())?;
            Ok((near, far))
        };
        (0..count).map(pair).collect()
    }
}

fn refused(result: Result<(), PostError>, errno: i32, bad: usize) -> Result<()> {
    let error = result.err().context("it was not refused")?;
    ensure!(error.errno.0 == errno && error.bad == Some(bad), "{error:?}");
    Ok(())
}

/// Receives come from one queue in the order they were posted, whichever queue pair gets the message.
#[test]
fn many_queue_pairs_share_one_queue() {
    in_world(|| {
        let device = Device::new()?;
        let srq = Srq::new(&device.pd, 64, 2)?;
        let pairs = device.sharing(&srq, 4)?;
        let mr = Mr::alloc(&device.pd, 4096, ALL_ACCESS)?;
        for round in 0..8_u64 {
            let list: Vec<_> = (0..8).map(|id| RecvWr::new(round * 8 + id, &[mr.sge(0, 64)])).collect();
            srq.post_recvs(&list)?;
            for id in 0..8 {
                let (near, far) = &pairs[usize::try_from(id * 3 + round)? % pairs.len()];
                near.post_send(&SendWr::new(Op::Send, &[mr.sge(64, 8)]).unsignaled())?;
                let wc = device.cq.next()?;
                ensure!(wc.status == Status::SUCCESS && wc.wr_id == round * 8 + id, "{wc:?}");
                ensure!(wc.qp_num == far.number() && wc.byte_len == 8, "{wc:?}");
            }
        }
        let (near, far) = &pairs[0];
        ensure!(far.cap().max_recv_wr == 0, "it has no receive queue");
        refused(far.post_recv(&RecvWr::new(0, &[])), libc::EINVAL, 0)?;
        // Not ready until something is posted.
        near.post_send(&SendWr::new(Op::SendImm(7), &[]))?;
        srq.post_recv(&RecvWr::new(99, &[]))?;
        let mut ids: Vec<_> = device.cq.take(2)?.into_iter().map(|wc| (wc.wr_id, wc.status)).collect();
        ids.sort_by_key(|(id, _)| *id);
        ensure!(ids == [(0, Status::SUCCESS), (99, Status::SUCCESS)], "{ids:?}");
        Ok(())
    });
}

#[test]
fn sizes_and_resizing() {
    in_world(|| {
        let device = Device::new()?;
        let attr = device.context.query_device()?;
        ensure!(attr.max_srq > 0 && attr.max_srq_sge > 0, "{} {}", attr.max_srq, attr.max_srq_sge);
        ensure!(attr.device_cap_flags & v::IBV_DEVICE_SRQ_RESIZE != 0, "{:#x}", attr.device_cap_flags);
        let most = u32::try_from(attr.max_srq_wr)?;
        for (max_wr, max_sge) in [(0, 1), (most + 1, 1), (1, u32::try_from(attr.max_srq_sge)? + 1)] {
            let error = Srq::new(&device.pd, max_wr, max_sge).err().context("it was not refused")?;
            ensure!(error == Errno(libc::EINVAL), "{error}");
        }
        let srq = Srq::new(&device.pd, 4, 1)?;
        ensure!(srq.created().max_wr >= 4 && srq.query()? == (4, 1, 0), "{:?}", srq.query()?);
        let mr = Mr::alloc(&device.pd, 4096, ALL_ACCESS)?;
        let list: Vec<_> = (0..5).map(|id| RecvWr::new(id, &[])).collect();
        refused(srq.post_recvs(&list), libc::ENOMEM, 4)?;
        refused(srq.post_recv(&RecvWr::new(9, &[mr.sge(0, 1), mr.sge(1, 1)])), libc::ENOMEM, 0)?;
        srq.modify(Some(8), None).context("larger")?;
        refused(srq.post_recv(&RecvWr::new(9, &[mr.sge(0, 1), mr.sge(1, 1)])), libc::EINVAL, 0)?;
        srq.post_recv(&list[4])?;
        ensure!(srq.modify(Some(4), None) == EINVAL, "smaller than what is posted");
        ensure!(srq.modify(Some(most + 1), None) == EINVAL, "larger than the device's");
        ensure!(srq.modify(None, Some(9)) == EINVAL, "a limit beyond the size");
        ensure!(srq.modify(Some(5), Some(6)) == EINVAL, "both, and one is wrong");
        ensure!(srq.query()? == (8, 1, 0), "nothing was changed: {:?}", srq.query()?);
        srq.modify(Some(5), Some(3))?;
        ensure!(srq.query()? == (5, 1, 3), "{:?}", srq.query()?);
        let pairs = device.sharing(&srq, 1)?;
        pairs[0].0.post_send(&SendWr::new(Op::Send, &[]).unsignaled())?;
        ensure!(device.cq.next()?.wr_id == 0, "what was posted has stayed");
        ensure!(srq.number() == Err(Errno(libc::EINVAL)), "only XRC SRQs have numbers");
        Ok(())
    });
}

/// ibv_modify_srq(3): the event comes once the number of WRs drops below the limit; each arming gives one.
#[test]
fn the_limit_event() {
    in_world(|| {
        let device = Device::new()?;
        let srq = Srq::new(&device.pd, 16, 1)?;
        let pairs = device.sharing(&srq, 1)?;
        let list: Vec<_> = (0..6).map(|id| RecvWr::new(id, &[])).collect();
        srq.post_recvs(&list)?;
        srq.modify(None, Some(5))?;
        let receive = || -> Result<()> {
            pairs[0].0.post_send(&SendWr::new(Op::Send, &[]).unsignaled())?;
            ensure!(device.cq.next()?.status == Status::SUCCESS);
            Ok(())
        };
        receive()?;
        device.context.expect_no_event(Duration::ZERO).context("five are not below five")?;
        receive()?;
        device.context.expect_event(v::IBV_EVENT_SRQ_LIMIT_REACHED, srq.address())?;
        ensure!(srq.query()?.2 == 0, "it is disarmed");
        receive()?;
        device.context.expect_no_event(Duration::ZERO).context("armed once")?;
        srq.modify(None, Some(3))?;
        receive()?;
        device.context.expect_event(v::IBV_EVENT_SRQ_LIMIT_REACHED, srq.address())?;
        Ok(())
    });
}

/// An event that was read holds up `ibv_destroy_srq` until it is acknowledged; one that was not read vanishes.
#[test]
fn destruction_waits_for_acknowledgements() {
    in_world(|| {
        let device = Device::new()?;
        for read in [false, true] {
            let srq = Srq::new(&device.pd, 16, 1)?;
            let pairs = device.sharing(&srq, 1)?;
            srq.post_recv(&RecvWr::new(0, &[]))?;
            srq.modify(None, Some(1))?;
            pairs[0].0.post_send(&SendWr::new(Op::Send, &[]).unsignaled())?;
            device.cq.next()?;
            ensure!(srq.destroy() == EBUSY, "a queue pair uses it");
            drop(pairs);
            if read {
                let event = device.context.async_event(PATIENCE)?.context("no event")?.keep_unacknowledged();
                let acknowledger = std::thread::spawn(move || {
                    std::thread::sleep(Duration::from_millis(20));
                    event.acknowledge();
                });
                srq.destroy()?;
                ensure!(acknowledger.is_finished() || acknowledger.join().is_ok(), "it panicked");
            } else {
                srq.destroy()?;
            }
            device.context.expect_no_event(Duration::ZERO)?;
        }
        Ok(())
    });
}

/// A queue pair in ERR takes nothing any more, says so, and leaves the queue to the others (IBA 11.6.3.1).
#[test]
fn last_wqe_reached() {
    in_world(|| {
        let device = Device::new()?;
        let srq = Srq::new(&device.pd, 16, 1)?;
        let pairs = device.sharing(&srq, 2)?;
        srq.post_recvs(&[RecvWr::new(1, &[]), RecvWr::new(2, &[])])?;
        pairs[0].1.modify(&Change::to(v::IBV_QPS_ERR))?;
        device.context.expect_event(v::IBV_EVENT_QP_LAST_WQE_REACHED, pairs[0].1.address())?;
        ensure!(device.cq.poll(4)?.is_empty(), "nothing of the queue was flushed");
        pairs[1].0.post_send(&SendWr::new(Op::Send, &[]).unsignaled())?;
        let wc = device.cq.next()?;
        ensure!(wc.wr_id == 1 && wc.status == Status::SUCCESS && wc.qp_num == pairs[1].1.number(), "{wc:?}");
        device.context.expect_no_event(Duration::ZERO)
    });
}

/// Target and SRQs of one XRC domain, and an initiator.
struct Xrc {
    initiator: Qp,
    target: Qp,
    srqs: Vec<(Arc<Srq>, Arc<Cq>)>,
    xrcd: Arc<Xrcd>,
    device: Device,
}

impl Xrc {
    fn new(srqs: usize) -> Result<Self> {
        let device = Device::new()?;
        let xrcd = Xrcd::open(&device.context, -1, libc::O_CREAT)?;
        let srq = |_| {
            let cq = Cq::new(&device.context, 16, None)?;
            Ok((Srq::xrc(&device.pd, &xrcd, &cq, 16)?, cq))
        };
        let srqs = (0..srqs).map(srq).collect::<Result<_>>()?;
        let initiator = Qp::xrc_initiator(&device.pd, &device.cq, &Init::default())?;
        let target = Qp::xrc_target(&device.pd, &xrcd)?;
        connect(&device.context, &initiator, &target, &Options::default())?;
        Ok(Self { initiator, target, srqs, xrcd, device })
    }

    fn complete(&self, wr: &SendWr) -> Result<Status> {
        self.initiator.post_send(wr)?;
        Ok(self.device.cq.next()?.status)
    }
}

#[test]
fn xrc_messages_go_to_the_srq_they_name() {
    in_world(|| {
        let xrc = Xrc::new(2)?;
        let flags = xrc.device.context.query_device()?.device_cap_flags;
        ensure!(flags & v::IBV_DEVICE_XRC != 0, "{flags:#x}");
        let mr = Mr::alloc(&xrc.device.pd, 4096, ALL_ACCESS)?;
        for (id, (srq, cq)) in (1..).zip(&xrc.srqs) {
            srq.post_recv(&RecvWr::new(id, &[mr.sge(0, 8)]))?;
            mr.pages().write(64, &id.to_ne_bytes());
            let send = SendWr::new(Op::Send, &[mr.sge(64, 8)]).to_srq(srq.number()?);
            ensure!(xrc.complete(&send)? == Status::SUCCESS);
            let wc = cq.next()?;
            ensure!(wc.wr_id == id && wc.qp_num == xrc.target.number() && wc.byte_len == 8, "{wc:?}");
            ensure!(mr.pages().read_u64(0) == id);
        }
        let number = xrc.srqs[0].0.number()?;
        let read = SendWr::new(Op::Read(mr.at(64)), &[mr.sge(128, 8)]).to_srq(number);
        ensure!(xrc.complete(&read)? == Status::SUCCESS && mr.pages().read_u64(128) == 2);
        let add = Op::FetchAdd { remote: mr.at(64), add: 40 };
        ensure!(xrc.complete(&SendWr::new(add, &[mr.sge(128, 8)]).to_srq(number))? == Status::SUCCESS);
        ensure!(mr.pages().read_u64(64) == 42);
        refused(xrc.initiator.post_recv(&RecvWr::new(0, &[])), libc::EINVAL, 0)?;
        refused(xrc.target.post_recv(&RecvWr::new(0, &[])), libc::EINVAL, 0)?;
        refused(xrc.target.post_send(&SendWr::new(Op::Send, &[])), libc::EINVAL, 0)?;
        // A number that is a queue pair's, and so certainly no SRQ's.
        let no_srq = xrc.target.number();
        ensure!(xrc.complete(&SendWr::new(Op::Send, &[]).to_srq(no_srq))? == Status::REM_INV_REQ_ERR);
        xrc.device.context.expect_event(v::IBV_EVENT_QP_REQ_ERR, xrc.target.address())?;
        Ok(())
    });
}

/// Objects in a domain keep it and its CQ open; a closed target answers nobody.
#[test]
fn xrc_objects_in_use() {
    in_world(|| {
        let xrc = Xrc::new(1)?;
        let (srq, cq) = &xrc.srqs[0];
        ensure!(xrc.xrcd.close() == EBUSY && cq.destroy() == EBUSY, "SRQ and target are in there");
        srq.destroy()?;
        cq.destroy()?;
        ensure!(xrc.xrcd.close() == EBUSY, "the target is in there");
        xrc.target.destroy()?;
        Ok(xrc.xrcd.close()?)
    });
}

/// ibv_open_xrcd(3): domains of files are shared by who opens the same file.
#[test]
fn xrc_domains_of_files() {
    in_world(|| {
        let (here, there) = (Device::new()?, Device::new()?);
        let [file, again, other] = ["exe", "exe", "status"].map(|name| File::open(format!("/proc/self/{name}")));
        let (file, again, other) = (file?, again?, other?);
        let open = |device: &Device, file: &File, oflags| Xrcd::open(&device.context, file.as_raw_fd(), oflags);
        ensure!(open(&here, &file, 0).err() == Some(Errno(libc::EAGAIN)), "there is none yet");
        let domain = open(&here, &file, libc::O_CREAT | libc::O_EXCL)?;
        ensure!(open(&there, &again, libc::O_CREAT | libc::O_EXCL).err() == Some(Errno(libc::EINVAL)), "there is one");
        let shared = open(&there, &again, 0)?;
        let strange = open(&there, &other, libc::O_CREAT)?;

        // A target made in one context delivers to an SRQ made in the other.
        let target = Qp::xrc_target(&here.pd, &domain)?;
        let initiator = Qp::xrc_initiator(&here.pd, &here.cq, &Init::default())?;
        connect(&here.context, &initiator, &target, &Options::default())?;
        let srq = Srq::xrc(&there.pd, &shared, &there.cq, 4)?;
        srq.post_recv(&RecvWr::new(5, &[]))?;
        initiator.post_send(&SendWr::new(Op::Send, &[]).to_srq(srq.number()?))?;
        ensure!(here.cq.next()?.status == Status::SUCCESS && there.cq.next()?.wr_id == 5);

        // The other context opens it too (ibv_open_qp(3)), and it lives until the last one is closed.
        ensure!(Qp::open(&there.pd, &strange, target.number()).err() == Some(Errno(libc::EINVAL)), "another domain's");
        ensure!(Qp::open(&there.pd, &shared, initiator.number()).err() == Some(Errno(libc::EINVAL)), "no target");
        let opened = Qp::open(&there.pd, &shared, target.number())?;
        ensure!(opened.state()? == v::IBV_QPS_RTS && opened.number() == target.number());
        target.destroy()?;
        srq.post_recv(&RecvWr::new(6, &[]))?;
        initiator.post_send(&SendWr::new(Op::Send, &[]).to_srq(srq.number()?))?;
        ensure!(here.cq.next()?.status == Status::SUCCESS && there.cq.next()?.wr_id == 6);
        Ok(())
    });
}

/// `comp_mask` says that a domain or a completion queue is given, and it is null.
#[test]
fn objects_of_xrc_that_are_not_given_are_refused() {
    in_world(|| {
        let device = Device::new()?;
        let xrcd = Xrcd::open(&device.context, -1, libc::O_CREAT)?;
        let null = std::ptr::null_mut();
        for (domain, cq) in [(null, device.cq.raw()), (xrcd.raw(), null.cast())] {
            // SAFETY: a plain C struct of numbers and pointers.
            let mut init: v::ibv_srq_init_attr_ex = unsafe { MaybeUninit::zeroed().assume_init() };
            init.attr = v::ibv_srq_attr { max_wr: 1, max_sge: 1, srq_limit: 0 };
            init.comp_mask = v::IBV_SRQ_INIT_ATTR_TYPE
                | v::IBV_SRQ_INIT_ATTR_PD
                | v::IBV_SRQ_INIT_ATTR_XRCD
                | v::IBV_SRQ_INIT_ATTR_CQ;
            (init.srq_type, init.pd, init.xrcd, init.cq) = (v::IBV_SRQT_XRC, device.pd.raw(), domain, cq);
            // SAFETY: as the inline function of verbs.h does.
            let srq = unsafe {
                let create = (*device.context.extended()).create_srq_ex.context("libibverbs always has it")?;
                create(device.context.raw(), &raw mut init)
            };
            ensure!(srq.is_null() && Errno::last() == Errno(libc::EINVAL), "{:?}", Errno::last());
        }
        let mut attr = v::ibv_qp_open_attr {
            comp_mask: v::IBV_QP_OPEN_ATTR_NUM | v::IBV_QP_OPEN_ATTR_XRCD | v::IBV_QP_OPEN_ATTR_TYPE,
            qp_num: 17,
            xrcd: null,
            qp_context: std::ptr::null_mut(),
            qp_type: v::IBV_QPT_XRC_RECV,
        };
        // SAFETY: as above.
        let qp = unsafe {
            let open = (*device.context.extended()).open_qp.context("libibverbs always has it")?;
            open(device.context.raw(), &raw mut attr)
        };
        ensure!(qp.is_null() && Errno::last() == Errno(libc::EINVAL), "{:?}", Errno::last());
        Ok(())
    });
}
