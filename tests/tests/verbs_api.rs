//! Kinds of memory, domains, and extended objects: what the device does beyond classic verbs, and what it refuses.

use std::ffi::{c_int, c_void};
use std::sync::Arc;

use anyhow::{Context as _, Result, ensure};
use urxe_ffi::{functions as f, verbs as v};
use urxe_tests::in_world;
use urxe_tests::verbs::child::does_not_hang;
use urxe_tests::verbs::memory::{Pages, pattern};
use urxe_tests::verbs::{Context, Cq, Mr, Op, Options, Pair, Pd, RecvWr, SendWr, Status};

/// Extended context that the inline functions of `verbs.h` use.
fn extended(context: &Context) -> &v::verbs_context {
    // SAFETY: an extended context has the public one as its last member (`verbs_get_ctx`).
    unsafe { &*context.raw().byte_sub(std::mem::offset_of!(v::verbs_context, context)).cast() }
}

fn errno() -> c_int {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

/// Calls an op of the extended context.
macro_rules! op {
    ($context:expr, $name:ident($($argument:expr),*)) => {{
        let op = extended($context).$name.context(stringify!($name))?;
        // SAFETY: live objects and structures of the caller.
        unsafe { op($($argument),*) }
    }};
}

/// A region made by an op, deregistered at the end.
struct Region(*mut v::ibv_mr);

impl Region {
    fn new(mr: *mut v::ibv_mr) -> Result<Self> {
        ensure!(!mr.is_null(), "{}", std::io::Error::last_os_error());
        Ok(Self(mr))
    }

    fn sge(&self, addr: u64, length: u32) -> v::ibv_sge {
        // SAFETY: a live region.
        v::ibv_sge { addr, length, lkey: unsafe { (*self.0).lkey } }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: ours, once.
        assert_eq!(unsafe { f::ibv_dereg_mr(self.0) }, 0);
    }
}

#[test]
fn a_null_region_reads_as_zeros_and_swallows_what_is_written() {
    in_world(|| {
        let Pair { near, far } = &Pair::new(&Options::default())?;
        let null = Region::new(op!(&near.context, alloc_null_mr(near.pd.raw())))?;
        let region = far.region(4096)?;
        region.pages().write(0, &pattern(1, 4096));
        let sge = null.sge(0xdead_beef, 3000);
        let wc = near.complete(&SendWr::new(Op::Write(region.at(0)), &[sge]))?;
        ensure!(wc.status == Status::SUCCESS, "{wc:?}");
        ensure!(
            region.pages().read(0, 3000) == [0; 3000] && region.pages().read(3000, 8) == pattern(1, 4096)[3000..3008]
        );
        let wc = near.complete(&SendWr::new(Op::Read(region.at(0)), &[sge]))?;
        ensure!(wc.status == Status::SUCCESS, "{wc:?}");
        // Not for peers: its R_Key is none.
        let far_null = Region::new(op!(&far.context, alloc_null_mr(far.pd.raw())))?;
        // SAFETY: a live region.
        ensure!(unsafe { (*far_null.0).rkey } == 0);
        Ok(())
    });
}

/// A null region is no object of the kernel's on mlx5, so programs free its domain first, or never deregister it (perftest's
/// `--use-null-mr`).
#[test]
fn a_null_region_does_not_keep_its_domain() {
    in_world(|| {
        let context = Context::open()?;
        let pd = Pd::new(&context)?;
        let null = Region::new(op!(&context, alloc_null_mr(pd.raw())))?;
        pd.dealloc()?;
        drop(null);
        Ok(())
    });
}

#[test]
fn device_memory_holds_what_is_copied_and_what_peers_write() {
    in_world(|| {
        let Pair { near, far } = &Pair::new(&Options::default())?;
        let most = usize::try_from(far.context.query_device_ex()?.max_dm_size)?;
        let mut attr = v::ibv_alloc_dm_attr { length: most + 1, log_align_req: 0, comp_mask: 0 };
        ensure!(op!(&far.context, alloc_dm(far.context.raw(), &raw mut attr)).is_null() && errno() == libc::ENOMEM);
        attr.length = most;
        let dm = op!(&far.context, alloc_dm(far.context.raw(), &raw mut attr));
        ensure!(!dm.is_null(), "all of it, although more was refused before");
        let copy = |to_dm: bool, offset: u64, bytes: &mut [u8]| {
            // SAFETY: live device memory and a buffer of that length.
            unsafe {
                let at: *mut c_void = bytes.as_mut_ptr().cast();
                match to_dm {
                    true => (*dm).memcpy_to_dm.map(|copy| copy(dm, offset, at, bytes.len())),
                    false => (*dm).memcpy_from_dm.map(|copy| copy(at, dm, offset, bytes.len())),
                }
            }
            .context("no function")
        };
        let mut bytes = pattern(7, 10_000);
        ensure!(copy(true, 4, &mut bytes)? == 0);
        let mut back = vec![0; 10_000];
        ensure!(copy(false, 4, &mut back)? == 0 && back == bytes);
        for (offset, length) in [(3, 4), (4, 3), (most as u64, 4), (u64::MAX - 3, 8)] {
            ensure!(copy(true, offset, &mut vec![0; length])? == libc::EINVAL, "{offset}+{length}");
        }

        let access = v::IBV_ACCESS_ZERO_BASED | v::IBV_ACCESS_LOCAL_WRITE | v::IBV_ACCESS_REMOTE_WRITE;
        let register = |length, access| -> Result<*mut v::ibv_mr> {
            Ok(op!(&far.context, reg_dm_mr(far.pd.raw(), dm, 4, length, access)))
        };
        ensure!(register(4096, v::IBV_ACCESS_LOCAL_WRITE)?.is_null(), "addresses must count from 0");
        ensure!(register(most, access)?.is_null(), "too long");
        let region = Region::new(register(4096, access)?)?;
        ensure!(op!(&far.context, free_dm(dm)) == libc::EBUSY);
        let source = near.region(4096)?;
        source.pages().write(0, &pattern(9, 4096));
        // SAFETY: a live region.
        let remote = urxe_tests::verbs::Remote { addr: 0, rkey: unsafe { (*region.0).rkey } };
        let wc = near.complete(&SendWr::new(Op::Write(remote), &[source.sge(0, 4096)]))?;
        ensure!(wc.status == Status::SUCCESS, "{wc:?}");
        let mut back = vec![0; 4096];
        ensure!(copy(false, 4, &mut back)? == 0 && back == pattern(9, 4096));
        drop(region);
        ensure!(op!(&far.context, free_dm(dm)) == 0);
        Ok(())
    });
}

#[test]
fn all_of_memory_may_be_one_region_on_demand() {
    in_world(|| {
        let Pair { near, far } = &Pair::new(&Options::default())?;
        let access = v::IBV_ACCESS_ON_DEMAND | v::IBV_ACCESS_LOCAL_WRITE;
        let everything = Mr::of_address(&near.pd, 0, usize::MAX, access)?;
        let sink = far.region(4096)?;
        far.qp.post_recv(&RecvWr::new(1, &[sink.sge(0, 4096)]))?;
        let message = pattern(3, 500);
        let wc = near.complete(&SendWr::new(Op::Send, &[everything.sge(message.as_ptr() as usize, 500)]))?;
        ensure!(wc.status == Status::SUCCESS && sink.pages().read(0, 500) == message, "{wc:?}");
        // What is not there when it is needed is a protection error, not a crash.
        let wc = near.complete(&SendWr::new(Op::Send, &[everything.sge(4096, 8)]))?;
        ensure!(wc.status == Status(v::IBV_WC_LOC_PROT_ERR), "{wc:?}");
        ensure!(Mr::of_address(&near.pd, 0, usize::MAX, v::IBV_ACCESS_LOCAL_WRITE).is_err(), "not on demand");
        Ok(())
    });
}

//= spec/memory.md#mem-011
//= type=test
//# Advice on memory MUST change nothing in it, nor happen after the call has returned.
#[test]
fn advice_changes_nothing() {
    const LEN: usize = 1 << 20;
    /// `IBV_ADVISE_MR_FLAG_FLUSH`, which the header makes a macro.
    const FLUSH: u32 = 1;
    let kinds = [
        v::IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH,
        v::IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH_WRITE,
        v::IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT,
    ];
    in_world(|| {
        let context = Context::open()?;
        let pd = Pd::new(&context)?;
        let access = v::IBV_ACCESS_ON_DEMAND | v::IBV_ACCESS_LOCAL_WRITE;
        let advise = |advice, flags, mut sge: v::ibv_sge| -> Result<i32> {
            Ok(op!(&context, advise_mr(pd.raw(), advice, flags, &raw mut sge, 1)))
        };
        for flush in [0, FLUSH] {
            for advice in kinds {
                let region = Mr::alloc(&pd, LEN, access)?;
                let pages = Arc::clone(region.pages());
                pages.write(0, &pattern(advice.into(), LEN));
                ensure!(advise(advice, flush, region.sge(0, LEN))? == 0);
                ensure!(advise(advice, flush, region.sge(4096, LEN))? == libc::EFAULT, "beyond its end");
                let sge = region.sge(0, LEN);
                drop(region);
                ensure!(pages.read(0, LEN) == pattern(advice.into(), LEN));
                ensure!(advise(advice, flush, sge)? == libc::ENOENT, "deregistered");
                // What takes the place of the memory is nobody's business.
                pages.unmap();
                let next = Pages::new(LEN);
                next.write(0, &pattern(7, LEN));
                std::thread::sleep(std::time::Duration::from_millis(10));
                ensure!(next.read(0, LEN) == pattern(7, LEN));
            }
        }
        let read_only = Mr::alloc(&pd, LEN, v::IBV_ACCESS_ON_DEMAND)?;
        let write = v::IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH_WRITE;
        ensure!(advise(write, 0, read_only.sge(0, LEN))? == libc::EPERM, "no right to write");
        ensure!(advise(99, 0, read_only.sge(0, LEN))? == libc::EOPNOTSUPP);
        Ok(())
    });
}

#[test]
fn a_parent_domain_is_its_domain_and_keeps_it() {
    in_world(|| {
        let context = Context::open()?;
        let pd = Pd::new(&context)?;
        let mut td_attr = v::ibv_td_init_attr { comp_mask: 0 };
        let td = op!(&context, alloc_td(context.raw(), &raw mut td_attr));
        ensure!(!td.is_null());
        // SAFETY: all-zero is a value of this plain C struct.
        let mut attr = unsafe { std::mem::zeroed::<v::ibv_parent_domain_init_attr>() };
        attr.td = td;
        let alloc = |attr: &mut v::ibv_parent_domain_init_attr| -> Result<*mut v::ibv_pd> {
            Ok(op!(&context, alloc_parent_domain(context.raw(), std::ptr::from_mut(attr))))
        };
        ensure!(alloc(&mut attr)?.is_null() && errno() == libc::EINVAL, "without a domain");
        attr.pd = pd.raw();
        // Memory that a confidential guest shares with its host may be used (rdma-core 64); what comes next may not.
        attr.comp_mask = 1 << 3;
        ensure!(alloc(&mut attr)?.is_null() && errno() == libc::EINVAL, "an unknown attribute");
        attr.comp_mask = 1 << 2;
        let parent = alloc(&mut attr)?;
        ensure!(!parent.is_null());
        ensure!(op!(&context, dealloc_td(td)) == libc::EBUSY);
        // SAFETY: live domains.
        unsafe {
            ensure!(f::ibv_dealloc_pd(pd.raw()) == libc::EBUSY);
            ensure!(f::ibv_dealloc_pd(parent) == 0);
        }
        ensure!(op!(&context, dealloc_td(td)) == 0);
        Ok(())
    });
}

#[test]
fn unsupported_operations_and_flags_are_refused() {
    in_world(|| {
        let context = Context::open()?;
        let pd = Pd::new(&context)?;
        let cq = Cq::new(&context, 16, None)?;
        let create_qp = |set: &dyn Fn(&mut v::ibv_qp_init_attr_ex)| -> Result<*mut v::ibv_qp> {
            // SAFETY: all-zero is a value of this plain C struct.
            let mut attr = unsafe { std::mem::zeroed::<v::ibv_qp_init_attr_ex>() };
            (attr.pd, attr.send_cq, attr.recv_cq) = (pd.raw(), cq.raw(), cq.raw());
            attr.qp_type = v::IBV_QPT_RC;
            attr.comp_mask = v::IBV_QP_INIT_ATTR_PD | v::IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
            set(&mut attr);
            Ok(op!(&context, create_qp_ex(context.raw(), &raw mut attr)))
        };
        let flags = |flags: u32| {
            create_qp(&|attr| {
                attr.comp_mask |= v::IBV_QP_INIT_ATTR_CREATE_FLAGS;
                attr.create_flags = flags;
            })
        };
        let operations = |qp_type, operations: u32| {
            create_qp(&|attr| (attr.qp_type, attr.send_ops_flags) = (qp_type, u64::from(operations)))
        };
        for (what, qp) in [
            ("TSO", operations(v::IBV_QPT_RC, v::IBV_QP_EX_WITH_TSO)?),
            ("READ on UC", operations(v::IBV_QPT_UC, v::IBV_QP_EX_WITH_RDMA_READ)?),
            ("WRITE on UD", operations(v::IBV_QPT_UD, v::IBV_QP_EX_WITH_RDMA_WRITE)?),
            ("loopback blocking", flags(v::IBV_QP_CREATE_BLOCK_SELF_MCAST_LB)?),
        ] {
            ensure!(qp.is_null() && errno() == libc::EOPNOTSUPP, "{what}");
        }
        let qp = flags(0)?;
        ensure!(!qp.is_null());
        // SAFETY: live, and destroyed here.
        ensure!(unsafe { f::ibv_destroy_qp(qp) } == 0);

        for (what, wc_flags) in [("tag matching", v::IBV_WC_EX_WITH_TM_INFO), ("unknown", 1 << 30)] {
            // SAFETY: all-zero is a value of this plain C struct.
            let mut attr = unsafe { std::mem::zeroed::<v::ibv_cq_init_attr_ex>() };
            (attr.cqe, attr.wc_flags) = (16, u64::from(wc_flags));
            ensure!(op!(&context, create_cq_ex(context.raw(), &raw mut attr)).is_null(), "{what}");
            ensure!(errno() == libc::EOPNOTSUPP, "{what}");
        }
        Ok(())
    });
}

#[test]
fn the_clock_of_timestamps_goes_on() {
    in_world(|| {
        let context: Arc<Context> = Context::open()?;
        let mut before = 0;
        for _ in 0..100 {
            // SAFETY: all-zero is a value of this plain C struct.
            let mut values = unsafe { std::mem::zeroed::<v::ibv_values_ex>() };
            values.comp_mask = v::IBV_VALUES_MASK_RAW_CLOCK;
            ensure!(op!(&context, query_rt_values(context.raw(), &raw mut values)) == 0);
            ensure!(values.comp_mask == v::IBV_VALUES_MASK_RAW_CLOCK && values.raw_clock.tv_sec == 0);
            ensure!(values.raw_clock.tv_nsec >= before);
            before = values.raw_clock.tv_nsec;
        }
        Ok(())
    });
}

//= spec/requester.md#req-020
//= type=test
//# A work request with more elements or inline data than the queue pair was made for MUST be refused when posted.
#[test]
fn builders_say_at_the_end_what_was_wrong_and_leave_the_queue_pair_usable() {
    in_world(|| {
        let context = Context::open()?;
        let pd = Pd::new(&context)?;
        let cq = Cq::new(&context, 16, None)?;
        // SAFETY: all-zero is a value of this plain C struct.
        let mut attr = unsafe { std::mem::zeroed::<v::ibv_qp_init_attr_ex>() };
        (attr.pd, attr.send_cq, attr.recv_cq) = (pd.raw(), cq.raw(), cq.raw());
        (attr.cap.max_send_wr, attr.cap.max_send_sge, attr.cap.max_inline_data) = (4, 1, 16);
        attr.qp_type = v::IBV_QPT_RC;
        attr.comp_mask = v::IBV_QP_INIT_ATTR_PD | v::IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
        attr.send_ops_flags = u64::from(v::IBV_QP_EX_WITH_SEND);
        let qp = op!(&context, create_qp_ex(context.raw(), &raw mut attr));
        ensure!(!qp.is_null());
        // SAFETY: it has builders, and `ibv_qp` is the prefix of what has them.
        let builders = unsafe { &mut *qp.cast::<v::ibv_qp_ex>() };
        ensure!(builders.wr_send.is_some() && builders.wr_rdma_read.is_none(), "those asked for");
        let (start, complete) = (builders.wr_start.context("start")?, builders.wr_complete.context("complete")?);
        let (abort, send) = (builders.wr_abort.context("abort")?, builders.wr_send.context("send")?);
        let inline = builders.wr_set_inline_data.context("inline")?;
        let inline_list = builders.wr_set_inline_data_list.context("inline list")?;
        let mut bytes = [0_u8; 17];
        let ex = std::ptr::from_mut(builders);
        // SAFETY: a live queue pair, in the order that the man page asks for; each start waits for the end before.
        unsafe {
            start(ex);
            send(ex);
            abort(ex);
            start(ex);
            ensure!(complete(ex) == 0, "nothing was left from before");
            start(ex);
            send(ex);
            ensure!(complete(ex) == libc::EINVAL, "in RESET");
            start(ex);
            inline(ex, bytes.as_mut_ptr().cast(), 16);
            ensure!(complete(ex) == libc::EINVAL, "data of no request");
            start(ex);
            send(ex);
            inline(ex, bytes.as_mut_ptr().cast(), usize::try_from(attr.cap.max_inline_data)? + 1);
            ensure!(complete(ex) == libc::EINVAL, "too long");
            start(ex);
            send(ex);
            inline(ex, bytes.as_mut_ptr().cast(), usize::MAX);
            ensure!(complete(ex) == libc::EINVAL, "as long as can be");
            // Together they are one byte long, if one does not look.
            let parts = [(bytes.as_mut_ptr(), 2), (bytes.as_mut_ptr(), usize::MAX)];
            let parts = parts.map(|(addr, length)| v::ibv_data_buf { addr: addr.cast(), length });
            start(ex);
            send(ex);
            inline_list(ex, parts.len(), parts.as_ptr());
            ensure!(complete(ex) == libc::EINVAL, "parts of which the lengths overflow");
            ensure!(f::ibv_destroy_qp(qp) == 0);
        }
        Ok(())
    });
}

/// `ibv_cq_ex` is locked from `start_poll` to `end_poll`, but not by a `start_poll` that fails.
//= spec/completions.md#cq-008
//= type=test
//# A poll that finds nothing MUST leave an extended queue free for every other thread.
#[test]
fn an_empty_poll_leaves_the_queue_free() {
    in_world(|| {
        let context: Arc<Context> = Context::open()?;
        // SAFETY: all-zero is a value of this plain C struct.
        let mut attr = unsafe { std::mem::zeroed::<v::ibv_cq_init_attr_ex>() };
        (attr.cqe, attr.wc_flags) = (16, u64::from(v::IBV_WC_EX_WITH_BYTE_LEN));
        let cq = op!(&context, create_cq_ex(context.raw(), &raw mut attr));
        ensure!(!cq.is_null());
        // SAFETY: live.
        let start = unsafe { (*cq).start_poll }.context("start_poll")?;
        let address = cq as usize;
        let polls = move || {
            (0..1000).all(|_| {
                // SAFETY: all-zero is a value of this plain C struct.
                let mut attr = unsafe { std::mem::zeroed::<v::ibv_poll_cq_attr>() };
                // SAFETY: a live queue. Nothing is found, so no `end_poll` must follow.
                unsafe { start(address as *mut v::ibv_cq_ex, &raw mut attr) == libc::ENOENT }
            })
        };
        let other = std::thread::spawn(polls);
        ensure!(does_not_hang("polling an empty queue", polls)?, "something was found in an empty queue");
        ensure!(does_not_hang("polling it from another thread", move || other.join())?.unwrap_or(false));
        // SAFETY: live, and destroyed here; an `ibv_cq` is the prefix of what was polled.
        ensure!(unsafe { f::ibv_destroy_cq(cq.cast()) } == 0);
        Ok(())
    });
}

/// Options of enhanced connection establishment, and rates of queue pairs of RoCE: there are none, and EOPNOTSUPP is what librdmacm
/// takes for that.
#[test]
fn ece_and_rate_limits_are_not_supported() {
    in_world(|| {
        let Pair { near, .. } = &Pair::new(&Options::default())?;
        let qp = near.qp.raw();
        let mut ece = v::ibv_ece { vendor_id: 1, options: 0, comp_mask: 0 };
        // SAFETY: a live queue pair, and structures of this test.
        unsafe {
            ensure!(f::ibv_set_ece(qp, &raw mut ece) == libc::EOPNOTSUPP);
            ensure!(f::ibv_query_ece(qp, &raw mut ece) == libc::EOPNOTSUPP);
        }
        let mut limit =
            v::ibv_qp_rate_limit_attr { rate_limit: 1000, max_burst_sz: 0, typical_pkt_sz: 0, comp_mask: 0 };
        ensure!(op!(&near.context, modify_qp_rate_limit(qp, &raw mut limit)) == libc::EOPNOTSUPP);
        Ok(())
    });
}
