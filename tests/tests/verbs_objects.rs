//! Registering memory; destroying what is in use.

use anyhow::{Context as _, Result, bail, ensure};
use urxe_ffi::verbs as v;
use urxe_tests::verbs::datagram::{Ah, towards};
use urxe_tests::verbs::memory::{ALL_ACCESS, PAGE, pattern};
use urxe_tests::verbs::qp::Init;
use urxe_tests::verbs::{
    Channel, Context, Cq, Errno, Mr, Op, Options, Pages, Pair, Pd, Qp, RecvWr, SendWr, Srq, Status,
};
use urxe_tests::{in_world, in_world_over_udp};

const LOCAL_WRITE: u32 = v::IBV_ACCESS_LOCAL_WRITE;
const REMOTE_WRITE: u32 = v::IBV_ACCESS_REMOTE_WRITE;
const REMOTE_READ: u32 = v::IBV_ACCESS_REMOTE_READ;
const REMOTE_ATOMIC: u32 = v::IBV_ACCESS_REMOTE_ATOMIC;

const BUSY: Result<(), Errno> = Err(Errno(libc::EBUSY));

/// ibv_reg_mr(3), and the kernel's `ib_umem_get`: EFAULT for memory that is not there or not writable, EINVAL for what
/// makes no sense (`ib_access_writable`, `ib_check_mr_access`).
//= spec/memory.md#mem-010
//= type=test
//# A region MUST NOT be registered over memory that is not mapped, or for writing where it is read only.
#[test]
fn registrations() {
    /// Memory of two pages: writable, read-only, unmapped, or the second unmapped.
    #[derive(Clone, Copy)]
    enum Memory {
        Writable,
        ReadOnly,
        Inaccessible,
        Unmapped,
        HalfUnmapped,
        HalfReadOnly,
    }
    use Memory::{HalfReadOnly, HalfUnmapped, Inaccessible, ReadOnly, Unmapped, Writable};
    type Case = (&'static str, Memory, usize, u32, Result<(), i32>);
    const CASES: [Case; 22] = [
        ("all of it", Writable, 2 * PAGE, ALL_ACCESS, Ok(())),
        ("one byte", Writable, 1, ALL_ACCESS, Ok(())),
        ("no access", Writable, PAGE, 0, Ok(())),
        ("remote read alone", Writable, PAGE, REMOTE_READ, Ok(())),
        ("relaxed ordering", Writable, PAGE, LOCAL_WRITE | v::IBV_ACCESS_RELAXED_ORDERING, Ok(())),
        ("no length", Writable, 0, LOCAL_WRITE, Err(libc::EINVAL)),
        ("remote write without local write", Writable, PAGE, REMOTE_WRITE, Err(libc::EINVAL)),
        ("remote atomic without local write", Writable, PAGE, REMOTE_ATOMIC, Err(libc::EINVAL)),
        ("unknown access flag", Writable, PAGE, 1 << 15, Err(libc::EINVAL)),
        ("read-only, no access", ReadOnly, PAGE, 0, Ok(())),
        ("read-only, remote read", ReadOnly, PAGE, REMOTE_READ, Ok(())),
        ("read-only, local write", ReadOnly, PAGE, LOCAL_WRITE, Err(libc::EFAULT)),
        ("read-only, everything", ReadOnly, PAGE, ALL_ACCESS, Err(libc::EFAULT)),
        ("inaccessible", Inaccessible, PAGE, 0, Err(libc::EFAULT)),
        ("unmapped", Unmapped, PAGE, LOCAL_WRITE, Err(libc::EFAULT)),
        ("unmapped, no access", Unmapped, 1, 0, Err(libc::EFAULT)),
        ("half unmapped", HalfUnmapped, PAGE + 1, LOCAL_WRITE, Err(libc::EFAULT)),
        ("half unmapped, the other half", HalfUnmapped, PAGE, LOCAL_WRITE, Ok(())),
        ("half read-only", HalfReadOnly, PAGE + 1, LOCAL_WRITE, Err(libc::EFAULT)),
        ("half read-only, no access", HalfReadOnly, 2 * PAGE, 0, Ok(())),
        ("beyond the end", Writable, 2 * PAGE + 1, LOCAL_WRITE, Err(libc::EFAULT)),
        ("more than there is", Writable, usize::MAX, LOCAL_WRITE, Err(libc::EINVAL)),
    ];
    in_world(|| {
        let pd = Pd::new(&Context::open()?)?;
        let mut failures = Vec::new();
        for (name, memory, len, access, expected) in CASES {
            let pages = Pages::new(2 * PAGE);
            match memory {
                Writable => {}
                ReadOnly => pages.protect(libc::PROT_READ),
                Inaccessible => pages.protect(libc::PROT_NONE),
                Unmapped => pages.unmap(),
                HalfUnmapped => pages.unmap_from(PAGE),
                HalfReadOnly => pages.protect_from(PAGE, libc::PROT_READ),
            }
            let result = Mr::of_address(&pd, pages.addr(), len, access);
            let found = result.as_ref().map(|_| ()).map_err(|error| error.0);
            if found != expected {
                failures.push(format!("{name}: {:?}", result.err()));
            }
        }
        for addr in [0, 0x10, u64::MAX, u64::MAX - 100, 0xffff_8000_0000_0000] {
            let error = Mr::of_address(&pd, addr, 8, 0).err().map_or(0, |error| error.0);
            if error != libc::EFAULT && (addr < u64::MAX - 7 || error != libc::EINVAL) {
                failures.push(format!("address {addr:#x}: errno {error}"));
            }
        }
        if failures.is_empty() { Ok(()) } else { bail!("{}", failures.join("\n")) }
    });
}

/// Regions may overlap, and each has its own rights; a key does not come back at once, so that a late packet
/// does not meet the next region.
#[test]
fn keys_of_regions() {
    in_world(|| {
        let pd = Pd::new(&Context::open()?)?;
        let pages = Pages::new(PAGE);
        let first = Mr::of(&pd, &pages, 0, PAGE, ALL_ACCESS)?;
        let mut last = first.rkey();
        for round in 0..1000 {
            let mr = Mr::of(&pd, &pages, 8, 16, 0)?;
            ensure!(mr.lkey() != first.lkey() && mr.rkey() != first.rkey(), "two regions of one key");
            ensure!(mr.rkey() != last, "round {round}: the key of the region before");
            last = mr.rkey();
        }
        Ok(())
    });
}

/// ibv_reg_mr_iova(3): work requests and peers name the region by the address chosen.
#[test]
fn an_address_of_ones_own() {
    in_world(|| {
        let Pair { near, far } = &Pair::new(&Options::default())?;
        let (local, pages) = (near.region(PAGE)?, Pages::new(PAGE));
        let iova = 0x7777_0000_0000;
        let mr = Mr::of_iova(&far.pd, &pages, PAGE, iova, ALL_ACCESS)?;
        local.pages().write(0, &pattern(1, 100));
        let write = |offset: usize, len| SendWr::new(Op::Write(mr.at(offset)), &[local.sge(0, len)]);
        ensure!(mr.at(0).addr == iova);
        ensure!(near.complete(&write(PAGE - 100, 100))?.status == Status::SUCCESS);
        ensure!(pages.read(PAGE - 100, 100) == pattern(1, 100));
        ensure!(near.complete(&write(PAGE - 99, 100))?.status == Status::REM_ACCESS_ERR);
        Ok(())
    });
}

/// The kernel's `ib_uverbs_reg_mr`: EINVAL, whatever the rights.
//= spec/memory.md#mem-014
//= type=test
//# The iova of a region MUST have the same offset in a page as its address.
#[test]
fn an_address_with_another_offset_in_a_page() {
    in_world(|| {
        let pd = Pd::new(&Context::open()?)?;
        let pages = Pages::new(PAGE);
        for (iova, access) in [
            (0x7777_0000_0123, ALL_ACCESS),
            (1, 0),
            (pages.addr() + 8, REMOTE_READ),
            (pages.addr() + 64, ALL_ACCESS | v::IBV_ACCESS_ZERO_BASED),
        ] {
            let error = Mr::of_iova(&pd, &pages, 64, iova, access).err();
            ensure!(error == Some(Errno(libc::EINVAL)), "{iova:#x}: {error:?}");
        }
        Mr::of_iova(&pd, &pages, 64, pages.addr() + PAGE as u64, ALL_ACCESS)?;
        Ok(())
    });
}

/// The kernel's `ib_umem_get` counts pages: a region of no bytes within a page has one, which must be there; at the start of
/// a page it has none (EINVAL, in `registrations`). Nothing can be done with it but messages without bytes.
#[test]
fn a_region_of_no_bytes_within_a_page() {
    in_world(|| {
        let Pair { near, far } = &Pair::new(&Options::default())?;
        let local = near.region(PAGE)?;
        let pages = Pages::new(2 * PAGE);
        let mr = Mr::of_address(&far.pd, pages.addr() + 8, 0, ALL_ACCESS)?;
        ensure!(near.complete(&SendWr::new(Op::Write(mr.at(0)), &[local.sge(0, 0)]))?.status == Status::SUCCESS);
        ensure!(near.complete(&SendWr::new(Op::Write(mr.at(0)), &[local.sge(0, 1)]))?.status == Status::REM_ACCESS_ERR);
        pages.unmap_from(PAGE);
        let unmapped = Mr::of_address(&far.pd, pages.addr() + PAGE as u64 + 8, 0, 0).err();
        ensure!(unmapped == Some(Errno(libc::EFAULT)), "{unmapped:?}");
        Ok(())
    });
}

/// ibv_dealloc_pd(3), ibv_destroy_cq(3), ibv_destroy_comp_channel(3): EBUSY as long as something needs them; nothing is
/// lost by having tried.
#[test]
fn objects_in_use() {
    in_world(|| {
        let context = Context::open()?;
        let (pd, other) = (Pd::new(&context)?, Pd::new(&context)?);
        let channel = Channel::new(&context)?;
        let (send_cq, recv_cq) = (Cq::new(&context, 16, Some(&channel))?, Cq::new(&context, 16, None)?);
        let qp = Qp::new(&pd, &send_cq, &recv_cq, &Init::default())?;
        let mr = Mr::alloc(&other, PAGE, ALL_ACCESS)?;
        for _ in 0..2 {
            ensure!(pd.dealloc() == BUSY, "a PD with a QP");
            ensure!(other.dealloc() == BUSY, "a PD with an MR");
            ensure!(send_cq.destroy() == BUSY, "the send CQ of a QP");
            ensure!(recv_cq.destroy() == BUSY, "the receive CQ of a QP");
            ensure!(channel.destroy() == BUSY, "the channel of a CQ");
        }
        qp.destroy()?;
        pd.dealloc().context("the PD")?;
        ensure!(channel.destroy() == BUSY, "the channel of a CQ");
        send_cq.destroy().context("the send CQ")?;
        channel.destroy().context("the channel")?;
        recv_cq.destroy().context("the receive CQ")?;
        mr.dereg()?;
        other.dealloc()?;
        context.close()?;
        Ok(())
    });
}

/// Goes through `round` with patience from 0 to 29, and on until a request has come too late: on a busy machine all of
/// them may be through each time.
fn until_some_are_refused(mut round: impl FnMut(u64) -> Result<Status>) -> Result<()> {
    const LEAST: u64 = 30;
    const MOST: u64 = 50 * LEAST;
    let mut refused = 0;
    for at in 0..MOST {
        if at >= LEAST && refused > 0 {
            return Ok(());
        }
        match round(at % LEAST).with_context(|| format!("round {at}"))? {
            Status::SUCCESS => {}
            Status::REM_ACCESS_ERR => refused += 1,
            other => bail!("round {at}: {other:?}"),
        }
    }
    bail!("every request was through before its region was deregistered")
}

/// Deregistering takes the memory back at once: when it returns, nobody copies any more. What is under way fails.
//= spec/memory.md#mem-007
//= type=test
//# When deregistration returns, nobody MUST copy from or to the memory any more.
#[test]
fn deregistering_memory_that_is_being_read() {
    in_world_over_udp(|| {
        let len = 1 << 20;
        until_some_are_refused(|patience| {
            let Pair { near, far } = &Pair::new(&Options::default())?;
            let (local, remote) = (near.region(len)?, far.region(len)?);
            near.qp.post_send(&SendWr::new(Op::Read(remote.at(0)), &[local.sge(0, len)]))?;
            for _ in 0..patience {
                near.send_cq.poll(0)?;
                std::thread::yield_now();
            }
            remote.dereg()?;
            remote.pages().unmap();
            Ok(near.send_cq.next()?.status)
        })
    });
}

/// Deregistration of a target: not a byte changes after ibv_dereg_mr has returned.
//= spec/memory.md#mem-007
//= type=test
//# When deregistration returns, nobody MUST copy from or to the memory any more.
#[test]
fn deregistering_memory_that_is_being_written() {
    in_world_over_udp(|| {
        let len = 1 << 20;
        until_some_are_refused(|patience| {
            let Pair { near, far } = &Pair::new(&Options::default())?;
            let (local, remote) = (near.region(len)?, far.region(len)?);
            local.pages().write(0, &pattern(patience, len));
            near.qp.post_send(&SendWr::new(Op::Write(remote.at(0)), &[local.sge(0, len)]))?;
            for _ in 0..patience {
                near.send_cq.poll(0)?;
                std::thread::yield_now();
            }
            remote.dereg()?;
            let then = remote.pages().read(0, len);
            let status = near.send_cq.next()?.status;
            ensure!(remote.pages().read(0, len) == then, "written after it was deregistered");
            Ok(status)
        })
    });
}

/// A QP may be destroyed with work outstanding (ibv_destroy_qp(3)); its completions go with it.
//= spec/states.md#qps-010
//= type=test
//# Destroying or modifying a queue pair at work MUST be safe, whatever is arriving for it.
#[test]
fn destroying_a_queue_pair_at_work() {
    in_world(|| {
        let len = 1 << 20;
        for round in 0..20 {
            let Pair { near, far } = &Pair::new(&Options::default())?;
            let (local, remote) = (near.region(len)?, far.region(len)?);
            far.qp.post_recvs(&vec![RecvWr::new(0, &[remote.sge(0, len)]); 4])?;
            let ops = [Op::Send, Op::Write(remote.at(0)), Op::Read(remote.at(0)), Op::Send];
            near.qp.post_sends(&ops.map(|op| SendWr::new(op, &[local.sge(0, len)])))?;
            let end = if round % 2 == 0 { near } else { far };
            end.qp.destroy()?;
            ensure!(end.send_cq.poll(8)?.is_empty() && end.recv_cq.poll(8)?.is_empty(), "completions of no QP");
            end.send_cq.destroy()?;
            end.recv_cq.destroy()?;
        }
        Ok(())
    });
}

/// QP numbers: 24 bits, neither 0 nor 1 (the management QPs), not used again at once (DESIGN, trap 9).
#[test]
fn numbers_of_queue_pairs() {
    in_world(|| {
        let context = Context::open()?;
        let (pd, cq) = (Pd::new(&context)?, Cq::new(&context, 16, None)?);
        let mut numbers = std::collections::HashSet::new();
        for _ in 0..100 {
            let number = Qp::new(&pd, &cq, &cq, &Init::default())?.number();
            ensure!((2..1 << 24).contains(&number), "{number:#x}");
            ensure!(numbers.insert(number), "{number:#x} was used again at once");
        }
        Ok(())
    });
}

/// Types that the device lacks are refused.
#[test]
fn unsupported_queue_pairs() {
    in_world(|| {
        let context = Context::open()?;
        let (pd, cq) = (Pd::new(&context)?, Cq::new(&context, 16, None)?);
        for qp_type in [v::IBV_QPT_DRIVER, 0, 1, 99] {
            let error = Qp::new(&pd, &cq, &cq, &Init { qp_type, ..Init::default() }).err();
            let error = error.with_context(|| format!("a QP of type {qp_type}"))?;
            // As the kernel's `create_qp` and the drivers behind it.
            let known = qp_type == v::IBV_QPT_DRIVER;
            ensure!(error.0 == if known { libc::EOPNOTSUPP } else { libc::EINVAL }, "type {qp_type}: {error}");
        }
        Ok(())
    });
}

/// So many can be made, and one more when there is one less.
fn exhaust<T>(name: &str, most: i32, make: impl Fn() -> Result<T, Errno>) -> Result<()> {
    let mut made = (0..most).map(|_| make()).collect::<Result<Vec<T>, _>>().with_context(|| name.to_owned())?;
    ensure!(make().err() == Some(Errno(libc::ENOMEM)), "{name}: more than {most}");
    made.pop();
    made.push(make().with_context(|| format!("{name}, one less"))?);
    ensure!(make().err() == Some(Errno(libc::ENOMEM)), "{name}: more than {most}");
    Ok(())
}

/// Limits of ibv_query_device(3) can be reached, and not exceeded.
#[test]
fn as_many_objects_as_the_device_has() {
    in_world(|| {
        let context = Context::open()?;
        let attr = context.query_device()?;
        exhaust("max_pd", attr.max_pd, || Pd::new(&context))?;
        exhaust("max_cq", attr.max_cq, || Cq::new(&context, 1, None))?;
        let pd = Pd::new(&context)?;
        exhaust("max_srq", attr.max_srq, || Srq::new(&pd, 1, 1))?;
        let gid = context.query_gid(1, 1)?;
        exhaust("max_ah", attr.max_ah, || Ah::new(&pd, towards(gid, 1)))
    });
}

/// Numbers of queue pairs take descriptors.
#[test]
fn as_many_queue_pairs_as_descriptors_allow() {
    in_world(|| {
        let limit = libc::rlimit { rlim_cur: 128, rlim_max: 128 };
        // SAFETY: a limit of this process' own.
        ensure!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) } == 0);
        let context = Context::open()?;
        let (pd, cq) = (Pd::new(&context)?, Cq::new(&context, 1, None)?);
        let most = context.query_device()?.max_qp;
        ensure!(most == 4096, "{most}");
        exhaust("max_qp", most, || Qp::new(&pd, &cq, &cq, &Init::default()))
    });
}
